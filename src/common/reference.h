/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_REFERENCE_H
#define FWA_COMMON_REFERENCE_H

/* The reference backend: the definition (doc/maths.md), token by token, in float64. Every other
 * kernel is held against it, so it shares no algebra with them and prefers the plain formula to the
 * fast one.
 *
 * reference.c has the backend table, what a token is and the forward; reference_backward.c the
 * gradients. All arrays are dense float64 in the lane's part of the workspace. */

#include "host.h"

extern const fwa_backend fwa_reference_backend;

typedef struct fwa_reference_plan {
    fwa_problem problem;
    fwa_decay_knobs_f64 knobs;
    int64_t lanes;
    int64_t group;       /* value heads that share a key head */
    int64_t query_group; /* value heads that share a query head: 1 or group */
    char kernel[96];
} fwa_reference_plan;

/* One value head of one sequence. Its pairs are numbered by their token in this call; the pairs -1,
 * -2,
 * ... -fill are those of the carry's tail. */
typedef struct fwa_reference_head {
    const fwa_reference_plan *plan;
    const fwa_inputs *inputs;
    const fwa_carry *carry;
    fwa_sequence sequence;
    int64_t value, key, query; /* indices of the heads */
    int64_t first_pair;        /* the oldest: -fill, or 1 where token 0 is bare */
} fwa_reference_head;

/* One token: the window of its pairs, the newest first, and its decay. */
typedef struct fwa_reference_token {
    int64_t index;
    int64_t pairs;              /* realised window B_t; 0: the token neither writes nor decays */
    double *query;              /* [D] q_t */
    double *key;                /* [B, D] x_j */
    double *prediction;         /* [B, V] S_{t-1}^T x_j; regression only */
    double *residual;           /* [B, V] r_j; v_j for the inner product */
    double lambda;              /* as given */
    double statistic;           /* E_t */
    double *top;                /* [B] unit top eigenvector a of the Gram matrix; regression only */
    double *gram;               /* [B, B] */
    fwa_decay_step_t_f64 *step; /* [1], per channel [V] */
    double *eta, *gamma, *rho;  /* [V], equal columns where the dynamics are per head */
} fwa_reference_token;

/* S and, with a normaliser, z. */
typedef struct fwa_reference_state {
    double *s; /* [D, V] */
    double *z; /* [D] */
} fwa_reference_state;

/* Hands out a block of memory piece by piece, or, with base NULL, only counts. The size saturates.
 */
typedef struct fwa_reference_arena {
    char *base;
    size_t used;
} fwa_reference_arena;

void *fwa_reference_take(fwa_reference_arena *arena, size_t count, size_t size);
void fwa_reference_take_token(fwa_reference_arena *arena, const fwa_problem *problem,
                              fwa_reference_token *token);
/* `count` states after one another. */
fwa_reference_state fwa_reference_take_states(fwa_reference_arena *arena,
                                              const fwa_problem *problem, size_t count);
/* The i-th of them. */
fwa_reference_state fwa_reference_state_at(const fwa_problem *problem, fwa_reference_state states,
                                           int64_t i);
void fwa_reference_copy_state(const fwa_problem *problem, fwa_reference_state from,
                              fwa_reference_state to);

/* Loads row `row` of a carry's state and norm; zeros where row is -1 or the part absent. */
void fwa_reference_load_state(const fwa_reference_head *head, const fwa_carry *carry, int64_t row,
                              fwa_reference_state state);
/* Stores them in the parts that are there. */
void fwa_reference_store_state(const fwa_reference_head *head, const fwa_carry *carry, int64_t row,
                               fwa_reference_state state);

fwa_reference_head fwa_reference_head_get(const fwa_reference_plan *plan, const fwa_inputs *inputs,
                                          const fwa_carry *carry, const fwa_sequence *sequence,
                                          int64_t value_head);
/* The raw key and query, before normalisation and phi. */
void fwa_reference_raw_key(const fwa_reference_head *head, int64_t pair, double *raw);
void fwa_reference_raw_query(const fwa_reference_head *head, int64_t token, double *raw);

/* Fills the token's query, window, statistic and steps. */
void fwa_reference_gather(const fwa_reference_head *head, int64_t index,
                          fwa_reference_token *token);
/* Fills the token's predictions and residuals from the state before it. */
void fwa_reference_predict(const fwa_reference_head *head, fwa_reference_token *token,
                           fwa_reference_state before);
/* S_{t-1} -> S_t, z_{t-1} -> z_t in place, after gather and predict. */
void fwa_reference_write(const fwa_reference_head *head, const fwa_reference_token *token,
                         fwa_reference_state state);
/* o_t = scale S^T q, divided by the normaliser's denominator, which is returned; 1 without. */
double fwa_reference_read(const fwa_reference_head *head, const fwa_reference_token *token,
                          fwa_reference_state state, double *o);

size_t fwa_reference_backward_size(const fwa_reference_plan *plan, int64_t tokens);
fwa_status fwa_reference_backward(const void *plan, const fwa_call *call, fwa_message *message);

#endif
