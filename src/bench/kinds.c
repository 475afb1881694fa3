/* SPDX-License-Identifier: Apache-2.0 */
/* What the data of a problem may be like, and which gates are given. */

#include "../conformance/cases.h"
#include "problems.h"

#include <string.h>

/* ---- Data ---- */

/* The conformance cases' random gates forget everything within some ten tokens; layers that are
 * trained keep most of their state for hundreds. */
static const bench_data_kind kinds[] = {
    {"random", CONFORMANCE_RANDOM, 0.1, 0, 0},
    {"strong", CONFORMANCE_RANDOM, 1, 0, 0},
    {"equal", CONFORMANCE_EQUAL_KEYS, 1, 0, 0},
    {"correlated", CONFORMANCE_CORRELATED_KEYS, 1, 0, 0},
    {"zero", CONFORMANCE_ZERO_KEYS, 1, 0, 0},
    {"wild", CONFORMANCE_WILD_GATES, 1, 0, 0},
    {"closed", CONFORMANCE_CLOSED_GATES, 1, 0, 0},
    {"clamped", CONFORMANCE_CLAMPED, 1, 0, 0},
    {"scaled", CONFORMANCE_SCALED, 1, 0, 0},
    /* How much is forgotten at a token: nothing, most, all that float32 can tell. */
    {"keep", CONFORMANCE_RANDOM, 0, 0, 0},
    {"fade", CONFORMANCE_RANDOM, 0.1, 0.2, 0},
    {"wipe", CONFORMANCE_RANDOM, 0.1, 1e-6, 0},
    /* Nothing, and each step reflects the state nearly: the longest steps that are stable. */
    {"reflect", CONFORMANCE_RANDOM, 0, 0, 1.9},
};

#define KINDS ((int32_t)(sizeof kinds / sizeof *kinds))

const bench_data_kind *bench_data_get(int32_t index)
{
    return index >= 0 && index < KINDS ? &kinds[index] : NULL;
}

/* ---- Gates ---- */

static const struct {
    const char *name;
    int32_t gate;
} gates[] = {
    {"none", 0},
    {"beta", CONFORMANCE_BETA},
    {"lambda", CONFORMANCE_LAMBDA},
    {"log_gate", CONFORMANCE_LOG_GATE},
};

#define GATES ((int32_t)(sizeof gates / sizeof *gates))

const char *bench_gate_name(int32_t index)
{
    return index >= 0 && index < GATES ? gates[index].name : NULL;
}

int32_t bench_gate(int32_t index)
{
    return gates[index].gate;
}

/* What users of a preset hand over; the rest, the paper's rules, have a gain and a ridge. */
static const struct {
    const char *preset;
    int32_t gates;
} preset_gates[] = {
    {"deltanet", CONFORMANCE_BETA},
    {"gated_deltanet", CONFORMANCE_BETA | CONFORMANCE_LOG_GATE},
    {"linear_attention", 0},
    {"retnet", CONFORMANCE_LOG_GATE},
    {"lightning_attention", CONFORMANCE_LOG_GATE},
    {"mamba2", CONFORMANCE_BETA | CONFORMANCE_LOG_GATE},
};

int32_t bench_preset_gates(const char *preset)
{
    for (size_t i = 0; i < sizeof preset_gates / sizeof *preset_gates; i++)
        if (strcmp(preset_gates[i].preset, preset) == 0)
            return preset_gates[i].gates;
    return CONFORMANCE_BETA | CONFORMANCE_LAMBDA;
}
