/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

typedef struct {
    fwa_preset preset;
    int32_t objective, dynamics, window, alignment, step, prediction, qk_norm;
} row;

enum {
    FIT = FWA_OBJECTIVE_REGRESSION,
    ADD = FWA_OBJECTIVE_INNER_PRODUCT,
    HEAD = FWA_DYNAMICS_PER_HEAD,
    CHANNEL = FWA_DYNAMICS_PER_CHANNEL,
    NEXT = FWA_ALIGNMENT_NEXT_LATENT,
    SAME = FWA_ALIGNMENT_SAME_STEP,
    SCALED = FWA_STEP_NORMALIZED,
    DIRECT = FWA_STEP_DIRECT,
    BEFORE = FWA_PREDICTION_PREVIOUS,
    AFTER = FWA_PREDICTION_DECAYED,
    NONE = FWA_NORM_NONE,
    L2 = FWA_NORM_L2,
    RMS = FWA_NORM_RMS
};

#define GAIN  "beta: gain in (0, 2); lambda: ridge; log_gate: optional"
#define SIZE  "beta: step size; lambda: ridge; log_gate: optional"
#define FIXED "beta: absent; log_gate: log g per head (stride 0 over tokens)"

/* Reads are after the write, the ridge is as given, phi is the identity, no normaliser. */
/* clang-format off */
static const row rows[] = {
    {{"falcon1", "Falcon-1: one normalised regression step per head", GAIN},
     FIT, HEAD, 1, NEXT, SCALED, BEFORE, NONE},
    {{"falcon2", "Falcon-2: Falcon-1 with a gain per value channel", GAIN},
     FIT, CHANNEL, 1, NEXT, SCALED, BEFORE, NONE},
    {{"falcon3", "Falcon-3: Falcon-1 over a sliding window of 4 pairs", GAIN},
     FIT, HEAD, 4, NEXT, SCALED, BEFORE, NONE},
    {{"falcon1a", "Falcon-1A: the inner-product objective", GAIN},
     ADD, HEAD, 1, NEXT, SCALED, BEFORE, NONE},
    {{"falcon2a", "Falcon-2A: Falcon-1A with a gain per value channel", GAIN},
     ADD, CHANNEL, 1, NEXT, SCALED, BEFORE, NONE},
    {{"falcon3a", "Falcon-3A: Falcon-1A over a sliding window of 4 pairs", GAIN},
     ADD, HEAD, 4, NEXT, SCALED, BEFORE, NONE},
    {{"falcon1a.1", "Falcon-1A, the paper's recipe 1: l2 keys, normalised steps", GAIN},
     ADD, HEAD, 1, NEXT, SCALED, BEFORE, L2},
    {{"falcon1a.2", "Falcon-1A, the paper's recipe 2: l2 keys, direct steps", SIZE},
     ADD, HEAD, 1, NEXT, DIRECT, BEFORE, L2},
    {{"falcon1a.3", "Falcon-1A, the paper's recipe 3: rms keys, direct steps", SIZE},
     ADD, HEAD, 1, NEXT, DIRECT, BEFORE, RMS},
    {{"falcon3a.3", "Falcon-3A, the paper's recipe 3: rms keys, direct steps, window 4", SIZE},
     ADD, HEAD, 4, NEXT, DIRECT, BEFORE, RMS},
    {{"deltanet", "DeltaNet: S = (I - b k k^T) S + b k v^T", "beta: b in (0, 1) or (0, 2)"},
     FIT, HEAD, 1, SAME, DIRECT, AFTER, L2},
    {{"gated_deltanet", "Gated DeltaNet: S = g (I - b k k^T) S + b k v^T",
      "beta: b in (0, 1) or (0, 2); log_gate: log g"},
     FIT, HEAD, 1, SAME, DIRECT, AFTER, L2},
    {{"linear_attention", "Linear attention: S = S + k v^T", "beta: absent, or a weight per token"},
     ADD, HEAD, 1, SAME, DIRECT, BEFORE, NONE},
    {{"retnet", "RetNet: S = g S + k v^T, one fixed g per head", FIXED},
     ADD, HEAD, 1, SAME, DIRECT, BEFORE, NONE},
    {{"lightning_attention", "Lightning attention: S = g S + k v^T, one fixed g per head", FIXED},
     ADD, HEAD, 1, SAME, DIRECT, BEFORE, NONE},
    {{"mamba2", "Mamba-2 SSD: S = exp(dt a) S + dt b x^T, read with c",
      "q: c; k: b; v: x; beta: dt; log_gate: dt * a"},
     ADD, HEAD, 1, SAME, DIRECT, BEFORE, NONE},
};
/* clang-format on */

const fwa_preset *fwa_preset_get(int32_t index)
{
    return index >= 0 && (size_t)index < sizeof rows / sizeof rows[0] ? &rows[index].preset : NULL;
}

fwa_status fwa_problem_preset(fwa_problem *problem, const char *name)
{
    fwa_status status = fwa_check_struct("problem", problem, sizeof *problem);
    size_t i;
    if (status != FWA_OK)
        return status;
    if (!name)
        return fwa_fail(FWA_ERROR_NULL, "name is NULL");
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const row *r = &rows[i];
        if (strcmp(r->preset.name, name) != 0)
            continue;
        problem->objective = r->objective;
        problem->dynamics = r->dynamics;
        problem->window = r->window;
        problem->alignment = r->alignment;
        problem->read = FWA_READ_AFTER_WRITE;
        problem->step = r->step;
        problem->ridge = FWA_RIDGE_ACTUAL;
        problem->prediction = r->prediction;
        problem->qk_norm = r->qk_norm;
        problem->phi = FWA_FEATURE_MAP_IDENTITY;
        problem->normalizer = 0;
        problem->eps_attn = 0;
        return FWA_OK;
    }
    return fwa_fail(FWA_ERROR_VALUE,
                    "name is \"%.40s\"; no preset is called so (fwa info lists them)", name);
}
