/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CONFORMANCE_FACTORS_H
#define FWA_CONFORMANCE_FACTORS_H

/* The settings of a case and their levels. */

#include <fwa/fwa.h>

enum {
    FACTOR_RULE,
    FACTOR_ALIGNMENT,
    FACTOR_READ,
    FACTOR_STEP,
    FACTOR_RIDGE,
    FACTOR_PREDICTION,
    FACTOR_NORM,
    FACTOR_PHI,
    FACTOR_EPS,
    FACTOR_FLOOR,
    FACTOR_SCALE,
    FACTOR_NORM_EPS,
    FACTOR_EPS_ATTN,
    FACTOR_HEADS,
    FACTOR_KEY_DIM,
    FACTOR_VALUE_DIM,
    FACTOR_TOKENS,
    FACTOR_DTYPE,
    FACTOR_STATE,
    FACTOR_KIND,
    FACTOR_GATES,
    FACTOR_SEQUENCES,
    FACTOR_CARRYING,
    FACTOR_LAYOUT,
    FACTOR_IN_PLACE,
    FACTOR_INDEX,
    FACTORS
};

typedef struct factor_rule {
    const char *name;
    int32_t objective, dynamics, window, normalizer;
} factor_rule;

#define FACTOR_RULES   16
#define FACTOR_HEADS_N 7
#define FACTOR_DIMS    13
#define FACTOR_TIMES   14

extern const factor_rule factor_rules[FACTOR_RULES];
extern const int32_t factor_heads[FACTOR_HEADS_N][3]; /* key, value, query */
extern const int32_t factor_dims[FACTOR_DIMS];
extern const int32_t factor_tokens[FACTOR_TIMES];
extern const double factor_eps[3], factor_floor[3], factor_norm_eps[3], factor_eps_attn[2];
extern const int32_t factor_dtypes[3], factor_states[3], factor_gates[5];

#endif
