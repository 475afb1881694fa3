/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CPU_CPU_H
#define FWA_CPU_CPU_H

/*
 * The CPU backend
 * ===============
 *
 * A unit of work is one sequence, one value head and one block of value columns. It walks through
 * the sequence in chunks of C tokens. With J = C + B - 1 pairs (the chunk's own and the window's
 * tail), the state inside a chunk is kept as coefficients,
 *
 *     S_t = Gamma_t S_0 + sum_j x_j w_{j,t}^T,
 *
 * so that a token costs products with the Gram matrix X X^T and the scores Q X^T, and the D x V
 * state is touched only by the dense products X S_0, Q S_0 and X^T W, once per chunk. Decays are
 * products of the gammas themselves: nothing is exponentiated. The three forms are one algorithm
 * with another C: 1 (recurrent), a small constant (chunked), the whole sequence (masked). All six
 * rules are one loop.
 *
 * The kernels (kernel_tmpl.h) are compiled once per ISA; kernels.c chooses at run time.
 */

#include "../common/host_call.h"

extern const fwa_backend fwa_cpu_backend;

/* Most floats that a row of features or value columns takes, with the normaliser and padding. */
#define FWA_COLUMNS_LIMIT 272

struct fwa_cpu_kernels;

typedef struct fwa_cpu_plan {
    fwa_problem problem;
    const struct fwa_cpu_kernels *kernels;
    int32_t lanes;
    int32_t form;    /* resolved: never AUTO */
    int64_t chunk;   /* tokens per chunk; 0: the whole sequence */
    int64_t segment; /* chunks between two states that the backward keeps; 0: the whole sequence */
    int32_t block;   /* value columns per unit */
    int32_t blocks;  /* units per value head */
    char name[2][96];
} fwa_cpu_plan;

/* Where a backward call's units leave what the finishing pass sums up, and the kept states. All
 * have the unit as their first axis. Rows of `x` are a sequence's B - 1 tail pairs and then its
 * tokens. */
typedef struct fwa_cpu_partials {
    float *x;      /* [units, tokens + sequences * (B - 1), dim_stride] */
    float *q;      /* [units, tokens, dim_stride] */
    float *gates;  /* [units, tokens, 3]: beta (per head), lambda, log_gate */
    float *norm;   /* [units, sequences, dim_stride] */
    float *states; /* [units, segments, D, stride]: the caller's saved buffer, or the workspace */
    int64_t rows, tokens, sequences, segments;
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
    float *statistic;     /* [tokens]: E */
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

typedef struct fwa_cpu_kernels {
    const char *isa;
    int32_t chunk; /* tokens per chunk in the chunked form */
    int32_t block; /* value columns per unit */
    bool (*available)(void);
    /* One unit forward; `kept` (may be NULL) gets the states at segment starts. */
    void (*forward)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                    const fwa_sequence *sequence, int64_t unit, fwa_cpu_chunk *chunk,
                    const fwa_cpu_partials *kept);
    /* One unit backward, into the partials and the outputs that it owns. */
    void (*backward)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_sequence *sequence,
                     int64_t unit, fwa_cpu_chunk *chunk, const fwa_cpu_partials *partials);
} fwa_cpu_kernels;

/* The kernels of that ISA, or (NULL) the best that this machine can run. NULL where it cannot. */
const fwa_cpu_kernels *fwa_cpu_kernels_select(const char *isa);
/* The ISAs that this machine can run, as text. */
void fwa_cpu_kernels_list(char *text, size_t size);

/* Lays out one lane's scratch at `base` (NULL: only counts) and returns its size, SIZE_MAX on
 * overflow. `tokens` bounds the length of a sequence. */
size_t fwa_cpu_chunk_layout(const fwa_cpu_plan *plan, int64_t tokens, bool backward, char *base,
                            fwa_cpu_chunk *chunk);

/* Where the kept states of sequence n begin on the segment axis, and how many segments a call has
 * at most. */
int64_t fwa_cpu_first_segment(const fwa_cpu_plan *plan, const fwa_sequence *sequence);
int64_t fwa_cpu_segments(const fwa_cpu_plan *plan, const fwa_extent *extent);

/* Sums the units' partials into the gradients of keys, queries, gates and norm (finish.c). */
void fwa_cpu_finish(const fwa_cpu_plan *plan, const fwa_call *call,
                    const fwa_cpu_partials *partials);

/* Sub-problem of a unit. */
typedef struct fwa_cpu_unit {
    int64_t head, key_head, query_head;
    int64_t column;  /* first value column */
    int32_t columns; /* value columns */
    int32_t width;   /* columns, and one more with the normaliser */
} fwa_cpu_unit;

static inline fwa_cpu_unit fwa_cpu_unit_get(const fwa_cpu_plan *plan, int64_t unit)
{
    const fwa_problem *p = &plan->problem;
    int64_t group = p->heads_value / p->heads_key;
    fwa_cpu_unit u;
    u.head = unit / plan->blocks;
    u.key_head = u.head / group;
    u.query_head = p->heads_query == p->heads_value ? u.head : u.key_head;
    u.column = unit % plan->blocks * plan->block;
    u.columns = p->value_dim - u.column < plan->block ? (int32_t)(p->value_dim - u.column)
                                                      : plan->block;
    u.width = u.columns + p->normalizer;
    return u;
}

/* Pair `index` is the one that token `index` of the call writes; negative ones are the tail's.
 * These are the pairs that exist: from `first` on. */
static inline int64_t fwa_cpu_first_pair(const fwa_problem *p, const fwa_sequence *s)
{
    return fwa_starts_bare(p, s->seen) ? 1 : -fwa_tail_fill(p, s->seen);
}

#endif
