/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_RECIPE_H
#define LM_RECIPE_H

/*
 * How the model makes beta, lambda and log_gate for each preset of libfwa: the part of a
 * fast-weight layer that belongs to the caller. One row per preset.
 */

#include "common.h"

#include <fwa/fwa.h>

typedef enum recipe_beta {
    BETA_ONE = 0,     /* absent: 1 */
    BETA_SIGMOID = 1, /* beta_limit * sigmoid(projection) */
    BETA_SOFTPLUS = 2 /* softplus(projection): the time step of a state-space model */
} recipe_beta;

typedef enum recipe_gate {
    GATE_NONE = 0,
    GATE_RETNET = 1,    /* fixed: log(1 - 2^-(5 + head)) */
    GATE_LIGHTNING = 2, /* fixed: -2^(-8 (head + 1) / heads) */
    GATE_PROJECTED = 3, /* -rate * softplus(projection), one trained rate per head */
    GATE_OF_BETA = 4    /* -rate * beta: the state-space model's exp(-rate * time step) */
} recipe_gate;

typedef struct lm_recipe {
    const char *rule; /* name of the preset */
    recipe_beta beta;
    float beta_limit; /* of BETA_SIGMOID */
    float beta_start; /* beta's value where the projection is 0, as a part of beta_limit */
    int32_t lambda;   /* 1: lambda = softplus(projection), LAMBDA_START at first */
    recipe_gate gate;
    fwa_norm qk_norm; /* used where the preset has no norm of its own and no feature map */
} lm_recipe;

#define LAMBDA_START 0.01f

/* The row of this name; NULL with the message filled where there is none. */
const lm_recipe *recipe_find(const char *rule, lm_message *message);

/* Step sizes of FWA_STEP_DIRECT meet the full |x|^2, which is D with RMS-normalised keys: beta is
 * then divided by D and lambda multiplied by it, so that beta |x|^2 and beta lambda keep their
 * ranges. */
float recipe_key_scale(const fwa_problem *problem);

/* One fixed log gate; 0 for the other kinds. */
float recipe_fixed_gate(recipe_gate gate, int32_t head, int32_t heads);

#endif
