/* SPDX-License-Identifier: Apache-2.0 */
#include "recipe.h"

#include <math.h>
#include <string.h>

/* Normalised regression steps are stable for beta in (0, 2): the error along x shrinks by 1 - beta.
 */
static const lm_recipe RECIPES[] = {
    {"falcon1", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon2", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon3", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon1a", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon2a", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon3a", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon1a.1", BETA_SIGMOID, 2.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon1a.2", BETA_SIGMOID, 1.0f, 0.5f, 1, GATE_NONE, FWA_NORM_L2},
    {"falcon1a.3", BETA_SIGMOID, 1.0f, 0.5f, 1, GATE_NONE, FWA_NORM_RMS},
    {"falcon3a.3", BETA_SIGMOID, 1.0f, 0.5f, 1, GATE_NONE, FWA_NORM_RMS},
    {"deltanet", BETA_SIGMOID, 1.0f, 0.5f, 0, GATE_NONE, FWA_NORM_L2},
    {"gated_deltanet", BETA_SIGMOID, 1.0f, 0.5f, 0, GATE_PROJECTED, FWA_NORM_L2},
    {"linear_attention", BETA_ONE, 1.0f, 1.0f, 0, GATE_NONE, FWA_NORM_NONE},
    {"retnet", BETA_ONE, 1.0f, 1.0f, 0, GATE_RETNET, FWA_NORM_NONE},
    {"lightning_attention", BETA_ONE, 1.0f, 1.0f, 0, GATE_LIGHTNING, FWA_NORM_NONE},
    {"mamba2", BETA_SOFTPLUS, 1.0f, 1.0f, 0, GATE_OF_BETA, FWA_NORM_NONE},
};

const lm_recipe *recipe_find(const char *rule, lm_message *message)
{
    for (size_t i = 0; i < sizeof RECIPES / sizeof *RECIPES; i++)
        if (strcmp(RECIPES[i].rule, rule) == 0)
            return &RECIPES[i];
    lm_fail(message, "no rule is called '%.60s'; --list-rules shows their names", rule);
    return NULL;
}

float recipe_key_scale(const fwa_problem *problem)
{
    const int32_t large = problem->step == FWA_STEP_DIRECT && problem->qk_norm == FWA_NORM_RMS;
    return large ? (float)problem->key_dim : 1.0f;
}

float recipe_fixed_gate(recipe_gate gate, int32_t head, int32_t heads)
{
    switch (gate) {
    case GATE_RETNET: return log1pf(-exp2f(-5.0f - (float)head));
    case GATE_LIGHTNING: return -exp2f(-8.0f * (float)(head + 1) / (float)heads);
    default: return 0.0f;
    }
}
