/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CONFORMANCE_CASES_H
#define FWA_CONFORMANCE_CASES_H

/* The case table: small calls that between them hold every pair of settings (rule, knobs, shapes,
 * types, layouts, kinds of data), and some more that are hard for one reason. Tests, `fwa check`
 * and every backend run the same rows. */

#include "run.h"
#include "../files/compare.h"

/* What the data are like. */
typedef enum conformance_kind {
    CONFORMANCE_RANDOM,
    CONFORMANCE_EQUAL_KEYS,      /* one key all along, gains 1, 1.5, 1.9, 1.999 by head */
    CONFORMANCE_CORRELATED_KEYS, /* nine tenths of a key are common, gain 1.9 */
    CONFORMANCE_ZERO_KEYS,       /* every third key is zero, in the first head all are */
    CONFORMANCE_TINY_GATES, /* decay 1e-12 at every token of head 0, at one token of the others */
    CONFORMANCE_WILD_GATES, /* log gates -exp(N(0,3)), at least -50 */
    CONFORMANCE_HALF_OPEN_GATES, /* log gate exactly 0 at half of the tokens */
    CONFORMANCE_CLOSED_GATES,    /* log gate -infinity at a fifth of the tokens */
    CONFORMANCE_CLAMPED,         /* eta lambda > 1 at most tokens */
    CONFORMANCE_BIG_RIDGE,       /* lambda 1e6 or 1e8 by head, beta 1 */
    CONFORMANCE_SCALED,          /* keys of size 30, values of size 0.01 */
    CONFORMANCE_KINDS
} conformance_kind;

/* Which of the gates are given. */
enum { CONFORMANCE_BETA = 1, CONFORMANCE_LAMBDA = 2, CONFORMANCE_LOG_GATE = 4 };

typedef enum conformance_sequences {
    CONFORMANCE_ONE,
    CONFORMANCE_BATCH,        /* three rows */
    CONFORMANCE_PACKED,       /* lengths 0, 5, 0, 0, all the rest, 0 */
    CONFORMANCE_PACKED_SHORT, /* many sequences of one to nine tokens */
    CONFORMANCE_SEQUENCES
} conformance_sequences;

typedef enum conformance_carrying {
    CONFORMANCE_FRESH,
    CONFORMANCE_GIVEN_STATE, /* fresh, from a given S_0 (and z_0) */
    CONFORMANCE_CONTINUED,   /* sequences that have seen 0, 1, 2, 40, ... tokens */
    CONFORMANCE_POOL,        /* the same, in a pool with slots, padded and fresh rows */
    CONFORMANCE_COMMITTED,   /* continued; the carry is written after a part of the tokens */
    CONFORMANCE_CARRYINGS
} conformance_carrying;

typedef struct conformance_case {
    char name[192];
    fwa_problem problem; /* dtype and state_dtype as the plan has them; form is the runner's */
    int32_t kind, gates, sequences, carrying, layout;
    int32_t in_place, index64;
    int64_t tokens;
    uint64_t seed;
} conformance_case;

/* How many rows there are. */
int32_t conformance_case_count(void);
/* Builds row `index`. The table is made anew by conformance_cases(); keep it. */
conformance_case *conformance_cases(void); /* count rows; free() it */
/* Makes a case's tensors, rounded to its types. */
conformance_data conformance_case_data(const conformance_case *c);

/* ---- Factors ---- */

#define CONFORMANCE_FACTORS 26

typedef struct conformance_factor {
    const char *name;
    int32_t levels;
} conformance_factor;
extern const conformance_factor conformance_factors[CONFORMANCE_FACTORS];

/* 1 where the two levels may meet in a row. */
int conformance_pair_allowed(int32_t factor, int32_t level, int32_t other, int32_t other_level);
/* Rows of one level per factor which hold every allowed pair; the same at every call. free() it. */
int32_t (*conformance_cover(int32_t *rows))[CONFORMANCE_FACTORS];

/* ---- Running ---- */

typedef enum conformance_verdict {
    CONFORMANCE_PASSED,
    CONFORMANCE_GAP, /* the backend refuses it, as its list of gaps says */
    CONFORMANCE_FAILED
} conformance_verdict;

typedef struct conformance_result {
    conformance_verdict verdict;
    char kernel[128]; /* of the pass that `tensor` comes from */
    char tensor[32];  /* the worst, by error over bound */
    compare_error error;
    compare_bound bound;
    double ratio;
    char message[CONFORMANCE_TEXT + 128]; /* why it failed, or was refused; "" where it passed */
} conformance_result;

/* A case's tensors and what the float64 reference makes of them. */
typedef struct conformance_answer {
    const conformance_case *c;
    conformance_data data, want;
    char message[CONFORMANCE_TEXT]; /* "" unless the reference failed */
} conformance_answer;

conformance_answer conformance_answer_new(const conformance_case *c, fwa_context *reference);
void conformance_answer_free(conformance_answer *answer);

/* Runs the case in one form on a context: forward and backward, with a saved buffer, the same
 * again, and without; holds every output and gradient to the answer. */
conformance_result conformance_check(const conformance_answer *answer, int32_t form,
                                     fwa_context *context);

/* 1 where the backend says that it does not do this. */
int conformance_declared_gap(const char *backend, int32_t form, int32_t dtype);

/* The worst of all tensors of `want`, each with the bound of its own type or that of the plan,
 * whichever is looser. */
void conformance_judge(const conformance_data *got, const conformance_data *want,
                       const fwa_problem *problem, conformance_result *result);
/* 1 where both hold the same tensors, bit for bit; else the first that differs in *name. */
int conformance_same(const conformance_data *left, const conformance_data *right,
                     const char **name);

const char *conformance_form_name(int32_t form);

#endif
