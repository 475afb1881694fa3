/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CPU_CPU_H
#define FWA_CPU_CPU_H

/*
 * The CPU backend
 * ===============
 *
 * The kernels are the walk, described here, which computes everything, and what the chunked form
 * takes instead: the fused passes (fused_tmpl.h) forward, or for bf16 inputs where it can products
 * of bf16 pairs (bf16_tmpl.h), and backward, unless there is a normaliser, the adjoint
 * (adjoint_tmpl.h).
 *
 * A unit of the walk is one sequence, one value head and one block of value columns. It walks
 * through the sequence in chunks of C tokens. With J = C + B - 1 pairs (the chunk's own and the
 * window's tail), the state inside a chunk is kept as coefficients,
 *
 *     S_t = Gamma_t S_0 + sum_j x_j w_{j,t}^T,
 *
 * so that a token costs products with the Gram matrix X X^T and the scores Q X^T, and the D x V
 * state is touched only by the dense products X S_0, Q S_0 and X^T W, once per chunk. Decays are
 * products of the gammas themselves: nothing is exponentiated. Forms are one algorithm with another
 * C: 1 (recurrent), a small constant (chunked), the whole sequence (masked). All six rules are one
 * loop.
 *
 * The kernels (kernel_tmpl.h) are compiled once per ISA; kernels.c chooses at run time.
 */

#include "../common/host_call.h"

extern const fwa_backend fwa_cpu_backend;

/* Most floats that a row of features or value columns takes, with the normaliser and padding. */
#define FWA_COLUMNS_LIMIT 272

/* Tokens between two states that the backward keeps, in the recurrent and the chunked form. */
#define FWA_CPU_SEGMENT_TOKENS 128

struct fwa_cpu_kernels;

typedef struct fwa_cpu_plan {
    fwa_problem problem;
    const struct fwa_cpu_kernels *kernels;
    int32_t lanes;
    int32_t form;     /* resolved: never AUTO */
    int64_t chunk;    /* tokens per chunk; 0: the whole sequence */
    int64_t segment;  /* tokens between two states that the backward keeps; 0: the whole sequence */
    int32_t block;    /* value columns per unit, in the chunked form per unit backward */
    int32_t blocks;   /* such units per value head */
    int32_t together; /* panels that take turns in a pass: what the first cache holds */
    bool fused;       /* the forward is fused_tmpl.h's */
    bool bf16;        /* but of sequences that are long enough bf16_tmpl.h's */
    bool adjoint;     /* the backward is adjoint_tmpl.h's */
    bool own_keys, own_queries; /* and writes these gradients itself: no two units share them */
    bool own_gates;
    char name[2][96];
} fwa_cpu_plan;

/* Where a backward call's units leave what the finishing pass sums up, and the kept states and
 * rows, which are a value head's: its units share them. Rows of `x` are a sequence's B - 1 tail
 * pairs and then its tokens, with own_keys one token (fwa_cpu_key_grad). */
typedef struct fwa_cpu_partials {
    float *x;      /* [units, pairs, dim_stride] */
    float *q;      /* [units, tokens, dim_stride]; none with own_queries */
    float *gates;  /* [units, tokens, 3]: beta (per head), lambda, log_gate; none with own_gates */
    float *norm;   /* [units, sequences, dim_stride] */
    float *states; /* [Hv, segments, D, kept stride]: the caller's saved buffer, or the workspace */
    float *rows;   /* [Hv, tokens, kept stride], behind `states`: see fwa_cpu_keeps_y; NULL: none */
    int64_t pairs, tokens, sequences, segments;
} fwa_cpu_partials;

/* One lane's scratch memory: a unit's state and one chunk. Row strides are multiples of 16 floats;
 * padding columns hold zeros. */
typedef struct fwa_cpu_chunk {
    int64_t capacity;     /* tokens that fit */
    int64_t pair_stride;  /* of gram and scores */
    int32_t dim_stride;   /* of x, q */
    int32_t stride;       /* of everything that has value columns */
    float *state;         /* [D, stride]; with the normaliser its last column is z */
    float *x, *q;         /* [pairs, dim_stride], [tokens, dim_stride]: features */
    float *v;             /* [pairs, stride]; the normaliser's column is all ones */
    float *gamma, *kappa; /* [tokens, stride]: carries, and eta / B_t */
    float *gram, *scores; /* [pairs, pair_stride], [tokens, pair_stride] */
    float *w, *y;         /* [pairs, stride]: coefficients; predictions S^T x_j */
    float *y0, *z0;       /* [pairs, stride], [tokens, stride]: X S_0, Q S_0 */
    float *o;             /* [tokens, stride]: S^T q */
    float *decay;         /* [stride]: Gamma */
    float *statistic;     /* [tokens]: E; backward, those of a segment, as `eigen` is */
    float *mask;          /* [tokens]: the masked form's row of weights */
    float *commit;        /* [D, stride]: the state that is handed on */
    float *raw;           /* [256] */
    /* The backward's own. */
    float *eigen;       /* [tokens, B]: the window's top eigenvectors */
    float *w_trace;     /* [tokens + 1, pairs, stride]: w before token t */
    float *y_trace;     /* [tokens, B, stride]: y of the window before token t */
    float *decay_trace; /* [tokens + 1, stride] */
    float *starts;      /* [segment, D, stride]: states at the chunks of a segment */
    float *state_grad, *x_grad, *q_grad, *v_grad, *o_grad, *w_grad, *y_grad, *y0_grad, *z0_grad;
    float *gram_grad, *scores_grad, *gamma_grad, *kappa_grad, *decay_grad;
    float *residual, *residual_grad; /* [B, stride] */
    float *scaled, *ones;            /* one row */
    float *late_x, *late_v; /* [B - 1, ...]: gradients of pairs that belong to earlier chunks */
} fwa_cpu_chunk;

/* Tokens of a block of the fused forward: what is loaded, and whose outputs are stored, at once. */
#define FWA_CPU_FUSED_BLOCK 64
/* Floats of a row of features: the key's, and from the middle on the query's. Rows so far apart do
 * not fall onto the same lines of a cache. */
#define FWA_CPU_FEATURE_ROW 544

/* Floats of a row of numbers of pairs: of a block's, of the longest window's tail, and a vector. */
#define FWA_CPU_LAG_ROW 112

/* Heads that a lane takes through a block one after the other: their rows are neighbours in memory,
 * on the same pages. */
#define FWA_CPU_FUSED_HEADS 8

/* One lane's scratch for the fused forward (fused_tmpl.h). J = B - 1 + group. */
typedef struct fwa_cpu_fused {
    int32_t back;            /* floats in a row of gram and scores: J */
    int64_t stride;          /* floats in a row of value columns */
    float *features;         /* [J + block, key and query] */
    float *values, *outputs; /* [B - 1 + block, stride], [block, stride] */
    float *gram, *scores;    /* [J + block, J]: x_r . x_{r-i};  [block, J]: q_t . x_{r-i} */
    float *lags;             /* [B, lag row]: gram by its diagonals */
    double *matrices;        /* [B (B + 1) / 2, lanes]: of as many windows */
    float *gamma, *kappa;    /* [block], per channel [block, stride] */
    float *factors;          /* of each group: see group_factors */
    float *sums;             /* [2 group + B, stride]: S'^T x, S'^T q; behind them for decoding */
    float *commit, *aside;   /* [D, columns of a panel]; [2 J, columns of a panel] */
    float *raw;              /* [256] */
    /* Of the head at hand, the first of heads that are head_size bytes apart. */
    size_t head_size;
    float *state;             /* panels [D, columns of the panel], one behind the other */
    float *scale, *keep;      /* [stride]: g; what the next pass multiplies S' by */
    float *complete;          /* [group, stride]: w of the pairs that the next pass adds, over g */
    float *pending, *predict; /* [J, stride]: w and y of the pairs at hand */
    bool *fold;               /* [stride]: the next pass of the panel there multiplies by `keep` */
    float *last_features, *last_gram, *last_values; /* rows that the next block looks back at */
} fwa_cpu_fused;

/* Tokens of a chunk of the adjoint; and floats of a row of numbers of pairs, as FWA_CPU_LAG_ROW,
 * but of a segment's. */
#define FWA_CPU_ADJOINT_CHUNK   16
#define FWA_CPU_ADJOINT_LAG_ROW (FWA_CPU_SEGMENT_TOKENS + 48)

/* One lane's scratch for the adjoint (adjoint_tmpl.h). C is its chunk, J = C + B - 1 are a chunk's
 * pairs, V a unit's value columns, and `units` are those side by side. Rows of states and features
 * are further apart than they are long: columns of them would share lines of a cache. */
typedef struct fwa_cpu_adjoint {
    int64_t dim_stride, width_stride;     /* floats between rows of D and V */
    int64_t state_stride, feature_stride; /* and between those of states and features */
    int64_t pair_stride;                  /* floats, or vectors, in a row of numbers of pairs */
    int64_t chunks;     /* chunks whose Gram matrices and scores are kept: several units' */
    float *starts;      /* [chunks of a segment, V, state_stride]: states, transposed */
    float *grads;       /* [units, V, state_stride]: the states' gradients, transposed */
    float *late_values; /* [units, B - 1, width_stride]: gradients of the tail's values */
    float *late_keys;   /* [units, B - 1, dim_stride]: and, with own_keys, of its features */
    float *features;    /* [B - 1 + segment, key and query, feature_stride] */
    float *values;      /* [B - 1 + segment, width_stride] */
    float *lags;        /* [B, B - 1 + segment, and a vector]: x_r . x_{r-i}, by its diagonals */
    double *matrices;   /* two times [B (B + 1) / 2, lanes], and [B, lanes]: see top_eigenvectors */
    float *eigen;       /* [segment, B]: the windows' top eigenvectors */
    float *tails;       /* [chunks of a segment, B - 1, width_stride]: S^T x of a chunk's tail */
    /* Of the chunk at hand. */
    float *gram, *scores;           /* [J, pair_stride], [C, pair_stride] */
    float *gram_grad, *scores_grad; /* likewise */
    float *entries;      /* [J, pair_stride]: the Gram matrix, each row times its entry_factor */
    float *entry_factor; /* [C]: the prediction's gradient is so many times the row in H */
    float *rows;         /* [2 C, width_stride]: H_0, dO_0, H_1, ... */
    float *scaled;       /* [2 C, width_stride]: those, as the state at the start meets them */
    float *tail_rows;    /* [B - 1, width_stride]: H of the tail's pairs */
    float *seeds, *written, *value_grads; /* [J, width_stride]: X dS; W; dV */
    float *keys;                          /* [D, keys and queries of C tokens], transposed */
    float *turned;                        /* [V, as many]: products with them */
    float *by_state;                      /* [2 C, D]: H_0 S^T, dO_0 S^T, ... */
    float *by_tail, *by_grad;             /* [B - 1, D], [J, D]: the tail's H S^T; W dS^T */
    float *x_grad, *q_grad;               /* [J, dim_stride], [C, dim_stride] */
    /* With gates per channel. */
    float *gamma, *kappa, *decay;     /* [C, width_stride], the last [C + 1, .]: as in a unit */
    float *recalled;                  /* [2 C, width_stride]: X S_0 and Q S_0, as `rows` */
    float *whole;                     /* [width_stride]: S_0 . dS, column by column */
    float *gamma_grads, *kappa_grads; /* [C, width_stride] */
    /* Of a strip of value columns. */
    float *history;                /* [C + 1, J, strip]: w before each token, and at the end */
    float *w_grad;                 /* [J, strip] */
    float *y, *y_grad, *v_grad;    /* [J, strip] */
    float *y_trace;                /* [C, B, strip]: predictions of each token's window */
    float *strip_rows;             /* [B, strip] */
    float *gram_sums, *score_sums; /* [J, pair_stride, vector], [C, pair_stride, vector] */
    float *keep, *ones;            /* one row */
    float *raw;                    /* [256] */
} fwa_cpu_adjoint;

/* Tokens of a chunk of the bf16 forward; and of a sequence, from which on it is worth its setup. */
#define FWA_CPU_BF16_CHUNK  16
#define FWA_CPU_BF16_TOKENS 16
/* Value columns of its panels. */
#define FWA_CPU_BF16_PANEL 32

/* A chunk of the bf16 forward, by its rows: tokens, and behind them what it has no tokens for. */
typedef struct fwa_cpu_bf16_chunk {
    float gram[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_CHUNK]; /* of the rows, without their factors */
    float scores[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_CHUNK];
    float solve[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_CHUNK]; /* A and W, with them */
    float read[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_CHUNK];
    float key_scale[FWA_CPU_BF16_CHUNK]; /* features are so many times the row */
    float query_scale[FWA_CPU_BF16_CHUNK];
    float energy[FWA_CPU_BF16_CHUNK]; /* |x|^2 */
    float gamma[FWA_CPU_BF16_CHUNK], eta[FWA_CPU_BF16_CHUNK];
    float predict[FWA_CPU_BF16_CHUNK]; /* E of predictions and of reads, and F, with the factors */
    float recall[FWA_CPU_BF16_CHUNK];
    float write[FWA_CPU_BF16_CHUNK];
    float scale; /* g at the chunk's start: S = g S' */
    float keep;  /* what S' is multiplied by at its end */
    bool exact_predict[FWA_CPU_BF16_CHUNK], exact_write[FWA_CPU_BF16_CHUNK];
    bool predicts_exactly, writes_exactly; /* of any row */
    bool predicts_all_exactly;
    bool bare;         /* the first row is no pair */
    int64_t b, tokens; /* tokens [b, b + tokens) of the block */
    /* In words of two bf16 numbers, which a product of pairs takes together: */
    uint32_t *keys, *queries; /* [C, D / 2]: features, but for their factors */
    uint32_t *pairs;          /* [C / 2, D]: keys of two tokens */
    float *exact_keys;        /* [C, D] */
} fwa_cpu_bf16_chunk;

/* A chunk in a panel. */
typedef struct fwa_cpu_bf16_panel {
    float sums[2 * FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_PANEL]; /* X S, Q S */
    float rows[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_PANEL];     /* R */
    float exact_sums[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_PANEL];
    float exact_written[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_PANEL];  /* F R */
    uint32_t written[FWA_CPU_BF16_CHUNK / 2][FWA_CPU_BF16_PANEL]; /* the same, rounded */
    uint16_t values[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_PANEL];
    uint16_t outputs[FWA_CPU_BF16_CHUNK][FWA_CPU_BF16_PANEL];
    const uint16_t *value; /* these, or the caller's rows */
    uint16_t *output;
    int64_t value_stride, output_stride;
} fwa_cpu_bf16_panel;

/* One lane's scratch for the bf16 forward (bf16_tmpl.h). */
typedef struct fwa_cpu_bf16 {
    fwa_cpu_bf16_chunk *chunks; /* of a block */
    fwa_cpu_bf16_panel *panel;
    uint32_t *keys, *queries; /* the chunks' */
    uint32_t *pairs;
    float *exact_keys;
    uint32_t *turned;       /* [D / 2, C]: keys of a chunk, transposed */
    uint32_t *commit_pairs; /* [C / 2, D] */
    float *commit;          /* [D, columns of a panel] */
    float *raw;             /* [2, 256] */
    size_t head_size;       /* bytes from a head's state to the next one's */
    float *state;           /* panels [D, columns of the panel], one behind the other */
    uint32_t *copy;         /* panels [D / 2, columns]: the same rounded, two rows to a word */
} fwa_cpu_bf16;

/* Heads [head, head + heads) and their value columns [column, column + columns). */
typedef struct fwa_cpu_fused_unit {
    int64_t head, heads, column;
    int32_t columns;
} fwa_cpu_fused_unit;

typedef struct fwa_cpu_kernels {
    const char *isa;
    int32_t chunk; /* tokens per chunk in the chunked form's backward */
    int32_t block; /* value columns per unit in the recurrent form */
    int32_t group; /* tokens per pass over the state in its forward */
    int32_t lanes; /* floats to a vector */
    int32_t panel; /* value columns that such a pass takes at once */
    bool (*available)(void);
    /* One unit forward; `kept` (may be NULL) gets the states at segment starts. */
    void (*forward)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                    const fwa_sequence *sequence, int64_t unit, fwa_cpu_chunk *chunk,
                    const fwa_cpu_partials *kept);
    /* The chunked form forward, any value columns of a head. */
    void (*fused)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                  const fwa_sequence *sequence, const fwa_cpu_fused_unit *unit,
                  const fwa_cpu_fused *scratch, const fwa_cpu_partials *kept);
    /* The same in products of bf16 pairs; NULL: there are none. */
    void (*bf16)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                 const fwa_sequence *sequence, const fwa_cpu_fused_unit *unit,
                 const fwa_cpu_bf16 *scratch, const fwa_cpu_partials *kept);
    /* The chunked form backward, units [unit, unit + units) side by side. */
    void (*adjoint)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_sequence *sequence,
                    int64_t unit, int64_t units, const fwa_cpu_adjoint *scratch,
                    const fwa_cpu_partials *partials);
    /* One unit backward, into the partials and the outputs that it owns. */
    void (*backward)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_sequence *sequence,
                     int64_t unit, fwa_cpu_chunk *chunk, const fwa_cpu_partials *partials);
    /* Of as many windows' Gram matrices as a vector has floats (eigen_tmpl.h); for tests. */
    void (*top_eigenvalues)(int n, double *matrices, double *to);
    void (*top_eigenvectors)(int n, double *matrices, double *room, double *to, double *vectors);
} fwa_cpu_kernels;

/* The ISAs that kernels were compiled for, as text, in the order of kernels.c's table. */
#ifdef FWA_CPU_AMX
#define FWA_CPU_LEVELS "generic, avx2, avx512, avx512bf16, amx"
#elif defined FWA_CPU_AVX512BF16
#define FWA_CPU_LEVELS "generic, avx2, avx512, avx512bf16"
#elif defined FWA_CPU_X86
#define FWA_CPU_LEVELS "generic, avx2, avx512"
#elif defined FWA_CPU_AARCH64
#define FWA_CPU_LEVELS "generic, neon"
#else
#define FWA_CPU_LEVELS "generic"
#endif

/* The kernels of that ISA, or (NULL) the best that this machine can run. NULL where it cannot. */
const fwa_cpu_kernels *fwa_cpu_kernels_select(const char *isa);
/* The ISAs that this machine can run, as text. */
void fwa_cpu_kernels_list(char *text, size_t size);

/* Lays out one lane's scratch at `base` (NULL: only counts) and returns its size, SIZE_MAX on
 * overflow. `tokens` bounds the length of a sequence. */
size_t fwa_cpu_chunk_layout(const fwa_cpu_plan *plan, int64_t tokens, bool backward, char *base,
                            fwa_cpu_chunk *chunk);

size_t fwa_cpu_fused_layout(const fwa_cpu_plan *plan, char *base, fwa_cpu_fused *fused);
size_t fwa_cpu_bf16_layout(const fwa_cpu_plan *plan, char *base, fwa_cpu_bf16 *bf16);
size_t fwa_cpu_adjoint_layout(const fwa_cpu_plan *plan, char *base, fwa_cpu_adjoint *adjoint);
/* Most heads of a unit forward: as many as have their states in a second-level cache; and most
 * units side by side backward. */
int32_t fwa_cpu_fused_heads(const fwa_cpu_plan *plan);
int32_t fwa_cpu_adjoint_units(const fwa_cpu_plan *plan);

/* Where the kept states of sequence n begin on the segment axis, and how many segments a call has
 * at most. */
int64_t fwa_cpu_first_segment(const fwa_cpu_plan *plan, const fwa_sequence *sequence);
int64_t fwa_cpu_segments(const fwa_cpu_plan *plan, const fwa_extent *extent);

/* Sums the units' partials into the gradients of keys, queries, gates and norm (finish.c). */
void fwa_cpu_finish(const fwa_cpu_plan *plan, const fwa_call *call,
                    const fwa_cpu_partials *partials);

/* The kept state of a head at a segment's start: rows of fwa_cpu_kept_stride floats, the
 * normaliser's z in column V. */
static inline int64_t fwa_cpu_kept_stride(const fwa_problem *p)
{
    return (p->value_dim + p->normalizer + 15) / 16 * 16;
}

static inline float *fwa_cpu_kept(const fwa_problem *p, const fwa_cpu_partials *parts, int64_t head,
                                  int64_t segment)
{
    return parts->states + (head * parts->segments + segment) * p->key_dim * fwa_cpu_kept_stride(p);
}

/* What the adjoint of the regression objective is told of each token: the residual v - rho S^T x of
 * its pair, or, where that is not all it needs, the prediction y = S^T x when the pair enters. */
static inline bool fwa_cpu_keeps_y(const fwa_problem *p)
{
    return p->window > 1 || p->dynamics == FWA_DYNAMICS_PER_CHANNEL;
}

static inline float *fwa_cpu_kept_row(const fwa_problem *p, const fwa_cpu_partials *parts,
                                      int64_t head, int64_t token)
{
    return parts->rows + (head * parts->tokens + token) * fwa_cpu_kept_stride(p);
}

/* Where a unit leaves the gradient of the features of a pair and of a token's query, and those of
 * its gates. */
static inline float *fwa_cpu_key_grad(const fwa_cpu_plan *plan, const fwa_cpu_partials *parts,
                                      int64_t unit, const fwa_sequence *s, int64_t pair)
{
    const int64_t tail = plan->problem.window - 1, stride = (plan->problem.key_dim + 15) / 16 * 16;
    const int64_t row = (plan->own_keys ? s->index : s->before) + (s->index + 1) * tail + pair;
    return parts->x + (unit * parts->pairs + row) * stride;
}

static inline float *fwa_cpu_query_grad(const fwa_cpu_plan *plan, const fwa_cpu_partials *parts,
                                        int64_t unit, const fwa_sequence *s, int64_t token)
{
    const int64_t stride = (plan->problem.key_dim + 15) / 16 * 16;
    return parts->q + (unit * parts->tokens + s->before + token) * stride;
}

static inline float *fwa_cpu_gate_grads(const fwa_cpu_partials *parts, int64_t unit,
                                        const fwa_sequence *s, int64_t token)
{
    return parts->gates + (unit * parts->tokens + s->before + token) * 3;
}

/* Segments of a sequence begin at its first token and where the tokens seen are a multiple. */
static inline int64_t fwa_cpu_segment_start(const fwa_cpu_plan *plan, const fwa_sequence *s,
                                            int64_t index)
{
    return index == 0 ? 0 : index * plan->segment - s->seen % plan->segment;
}

static inline bool fwa_cpu_segment_starts(const fwa_cpu_plan *plan, const fwa_sequence *s,
                                          int64_t token)
{
    return token == 0 || (plan->segment && (s->seen + token) % plan->segment == 0);
}

/* Sub-problem of a unit. */
typedef struct fwa_cpu_unit {
    int64_t head, key_head, query_head;
    int64_t column;  /* first value column */
    int32_t columns; /* value columns */
    int32_t width;   /* columns, and one more with the normaliser */
} fwa_cpu_unit;

/* At most `columns` value columns of a head, from `column` on. */
static inline fwa_cpu_unit fwa_cpu_head_unit(const fwa_cpu_plan *plan, int64_t head, int64_t column,
                                             int32_t columns)
{
    const fwa_problem *p = &plan->problem;
    fwa_cpu_unit u;
    u.head = head;
    u.key_head = head / (p->heads_value / p->heads_key);
    u.query_head = p->heads_query == p->heads_value ? u.head : u.key_head;
    u.column = column;
    u.columns = p->value_dim - column < columns ? (int32_t)(p->value_dim - column) : columns;
    u.width = u.columns + p->normalizer;
    return u;
}

static inline fwa_cpu_unit fwa_cpu_unit_get(const fwa_cpu_plan *plan, int64_t unit)
{
    return fwa_cpu_head_unit(plan, unit / plan->blocks, unit % plan->blocks * plan->block,
                             plan->block);
}

/* Pair `index` is the one that token `index` of the call writes; negative ones are the tail's.
 * These are the pairs that exist: from `first` on. */
static inline int64_t fwa_cpu_first_pair(const fwa_problem *p, const fwa_sequence *s)
{
    return fwa_starts_bare(p, s->seen) ? 1 : -fwa_tail_fill(p, s->seen);
}

#endif
