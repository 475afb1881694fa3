/* SPDX-License-Identifier: Apache-2.0 */
/* The rows: those that cover all pairs, and those that are hard for one reason. */

#include "cases.h"
#include "factors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32  FWA_DTYPE_F32
#define BF16 FWA_DTYPE_BF16
#define F16  FWA_DTYPE_F16

/* A row of its own: a preset, shapes, and what is hard about it. */
typedef struct special {
    const char *preset;
    const char *reason;
    int32_t kind, alignment, read; /* -1: as the preset has it */
    int32_t heads;                 /* index into factor_heads */
    int32_t key_dim, value_dim, tokens;
    int32_t sequences, carrying, dtype;
} special;

#define HARD(preset, kind, d, v, t, dtype)                                                         \
    {                                                                                              \
        preset, "hard", CONFORMANCE_##kind, -1, -1, 1, d, v, t, CONFORMANCE_ONE,                   \
            CONFORMANCE_CONTINUED, dtype                                                           \
    }
#define EACH_RULE(kind, d, v, t, dtype)                                                            \
    HARD("falcon1", kind, d, v, t, dtype), HARD("falcon2", kind, d, v, t, dtype),                  \
        HARD("falcon3", kind, d, v, t, dtype), HARD("falcon1a", kind, d, v, t, dtype),             \
        HARD("falcon2a", kind, d, v, t, dtype), HARD("falcon3a", kind, d, v, t, dtype)
#define PRESET(preset)                                                                             \
    {preset, "preset",           CONFORMANCE_RANDOM,    -1, -1, 5, 64, 64,                         \
     70,     CONFORMANCE_PACKED, CONFORMANCE_CONTINUED, F32},                                      \
    {                                                                                              \
        preset, "preset", CONFORMANCE_WILD_GATES, -1, -1, 2, 33, 16, 37, CONFORMANCE_BATCH,        \
            CONFORMANCE_FRESH, BF16                                                                \
    }
#define SAME_STEP(kind, d, v, t)                                                                   \
    {                                                                                              \
        "falcon1", "hard", CONFORMANCE_##kind, FWA_ALIGNMENT_SAME_STEP, FWA_READ_AFTER_WRITE, 4,   \
            d, v, t, CONFORMANCE_ONE, CONFORMANCE_FRESH, F32                                       \
    }
#define ONE_FEATURE(preset)                                                                        \
    {                                                                                              \
        preset, "one-feature", CONFORMANCE_RANDOM, -1, -1, 2, 1, 5, 41, CONFORMANCE_BATCH,         \
            CONFORMANCE_CONTINUED, F32                                                             \
    }
#define DIMS(d, v)                                                                                 \
    {"falcon1",                                                                                    \
     "dims",                                                                                       \
     CONFORMANCE_RANDOM,                                                                           \
     -1,                                                                                           \
     -1,                                                                                           \
     2,                                                                                            \
     d,                                                                                            \
     v,                                                                                            \
     41,                                                                                           \
     CONFORMANCE_BATCH,                                                                            \
     CONFORMANCE_CONTINUED,                                                                        \
     F32},                                                                                         \
        {"falcon3", "dims",          CONFORMANCE_RANDOM,    -1,  -1, 2, d, v,                      \
         23,        CONFORMANCE_ONE, CONFORMANCE_CONTINUED, BF16},                                 \
        {"falcon2", "dims",          CONFORMANCE_RANDOM,    -1, -1, 1, d, v,                       \
         19,        CONFORMANCE_ONE, CONFORMANCE_CONTINUED, F32},                                  \
    {                                                                                              \
        "falcon1a", "dims", CONFORMANCE_RANDOM, -1, -1, 1, d, v, 23, CONFORMANCE_PACKED,           \
            CONFORMANCE_CONTINUED, F16                                                             \
    }
#define LONG(preset, kind, heads, d, v, t, sequences, carrying)                                    \
    {                                                                                              \
        preset, "long", CONFORMANCE_##kind, -1, -1, heads, d, v, t, CONFORMANCE_##sequences,       \
            CONFORMANCE_##carrying, BF16                                                           \
    }
#define LONG_FOR_BOTH(kind, d, v, t)                                                               \
    LONG("falcon1", kind, 1, d, v, t, ONE, CONTINUED),                                             \
        LONG("falcon1a", kind, 1, d, v, t, ONE, CONTINUED)
#define DECODE(preset, dtype)                                                                      \
    {                                                                                              \
        preset, "decode", CONFORMANCE_RANDOM, -1, -1, 5, 128, 128, 1, CONFORMANCE_BATCH,           \
            CONFORMANCE_POOL, dtype                                                                \
    }

static const special specials[] = {
    PRESET("falcon1"),
    PRESET("falcon2"),
    PRESET("falcon3"),
    PRESET("falcon1a"),
    PRESET("falcon2a"),
    PRESET("falcon3a"),
    PRESET("falcon1a.1"),
    PRESET("falcon1a.2"),
    PRESET("falcon1a.3"),
    PRESET("falcon3a.3"),
    PRESET("deltanet"),
    PRESET("gated_deltanet"),
    PRESET("linear_attention"),
    PRESET("retnet"),
    PRESET("lightning_attention"),
    PRESET("mamba2"),
    EACH_RULE(TINY_GATES, 64, 64, 64, F32),
    EACH_RULE(WILD_GATES, 16, 24, 149, F32), /* three chunks of 48 and five more */
    EACH_RULE(HALF_OPEN_GATES, 16, 16, 149, BF16),
    EACH_RULE(CLOSED_GATES, 33, 16, 149, F32),
    EACH_RULE(CLAMPED, 24, 40, 101, F32),
    EACH_RULE(ZERO_KEYS, 16, 17, 70, F32),
    EACH_RULE(BIG_RIDGE, 64, 16, 70, F32),
    EACH_RULE(CORRELATED_KEYS, 64, 32, 128, F32),
    EACH_RULE(CORRELATED_KEYS, 64, 32, 128, BF16),
    SAME_STEP(EQUAL_KEYS, 8, 8, 64),
    SAME_STEP(EQUAL_KEYS, 8, 8, 128),
    SAME_STEP(EQUAL_KEYS, 8, 8, 256),
    DIMS(24, 40),
    DIMS(40, 72),
    DIMS(96, 31),
    DIMS(112, 96),
    DIMS(160, 48),
    DIMS(192, 17),
    DIMS(31, 192),
    DIMS(48, 160),
    DECODE("falcon1", F32),
    DECODE("falcon2", F32),
    DECODE("falcon3", F32),
    DECODE("falcon1a", BF16),
    DECODE("falcon2a", F32),
    DECODE("falcon3a", F16),
    DECODE("gated_deltanet", BF16),
    DECODE("mamba2", F32),
    {"falcon1", "wide-types", CONFORMANCE_RANDOM, -1, -1, 1, 16, 16, 33, CONFORMANCE_ONE,
     CONFORMANCE_CONTINUED, FWA_DTYPE_F64},
    {"falcon3a", "wide-types", CONFORMANCE_RANDOM, -1, -1, 1, 16, 16, 33, CONFORMANCE_ONE,
     CONFORMANCE_CONTINUED, FWA_DTYPE_F64},
    /* bf16 in whole vectors, for kernels that multiply in it. */
    LONG_FOR_BOTH(RANDOM, 128, 128, 500),
    LONG_FOR_BOTH(EQUAL_KEYS, 32, 32, 531),
    LONG_FOR_BOTH(CORRELATED_KEYS, 64, 48, 531),
    LONG_FOR_BOTH(TINY_GATES, 32, 16, 149),
    LONG_FOR_BOTH(WILD_GATES, 32, 48, 149),
    LONG_FOR_BOTH(HALF_OPEN_GATES, 64, 32, 149),
    LONG_FOR_BOTH(CLOSED_GATES, 32, 80, 149),
    LONG_FOR_BOTH(CLAMPED, 32, 32, 101),
    LONG_FOR_BOTH(ZERO_KEYS, 32, 48, 101),
    LONG_FOR_BOTH(BIG_RIDGE, 64, 16, 101),
    LONG_FOR_BOTH(SCALED, 32, 32, 101),
    LONG("falcon1", RANDOM, 2, 64, 48, 200, BATCH, COMMITTED),
    LONG("falcon1", CORRELATED_KEYS, 2, 32, 32, 100, BATCH, COMMITTED),
    LONG("falcon1a", RANDOM, 5, 32, 112, 200, BATCH, COMMITTED),
    LONG("falcon1a.1", RANDOM, 4, 64, 32, 150, PACKED, CONTINUED),
    LONG("falcon1a.3", RANDOM, 1, 32, 16, 150, BATCH, POOL),
    LONG("deltanet", CORRELATED_KEYS, 3, 64, 64, 150, PACKED, CONTINUED),
    LONG("gated_deltanet", RANDOM, 5, 96, 80, 333, BATCH, POOL),
    LONG("gated_deltanet", WILD_GATES, 1, 32, 32, 150, BATCH, COMMITTED),
    LONG("mamba2", HALF_OPEN_GATES, 4, 64, 32, 150, PACKED, CONTINUED),
    LONG("retnet", RANDOM, 1, 256, 256, 80, ONE, FRESH),
    /* Normalised features that are +-1 but for norm_eps. */
    ONE_FEATURE("falcon1a.1"),
    ONE_FEATURE("falcon1a.3"),
    ONE_FEATURE("deltanet"),
};

#define SPECIALS ((int32_t)(sizeof specials / sizeof *specials))

static const char *const kind_names[CONFORMANCE_KINDS] = {
    "random",    "equal-keys",   "correlated-keys", "zero-keys", "tiny-gates", "wild-gates",
    "half-open", "closed-gates", "clamped",         "big-ridge", "scaled"};
static const char *const norm_names[] = {"", "/l2", "/rms"};
static const char *const phi_names[] = {"", "/relu", "/elu1"};
static const char *const ridge_names[] = {"", "/coupled", "/live"};
static const char *const sequence_names[] = {"one", "batch", "packed", "short"};
static const char *const carrying_names[] = {"fresh", "state", "continued", "pool", "commit"};

/* The name says what a person who reads a failure wants to know. */
static void name_case(conformance_case *c, int32_t index, const char *rule)
{
    const fwa_problem *p = &c->problem;
    snprintf(c->name, sizeof c->name,
             "%03d/%s/%s/%s%s%s%s%s%s%s%s/D%d/V%d/T%d/%s/%s/heads-%d-%d-%d/%s", (int)index, rule,
             p->alignment == FWA_ALIGNMENT_NEXT_LATENT ? "next" : "same",
             p->read == FWA_READ_AFTER_WRITE ? "after" : "before",
             p->step == FWA_STEP_DIRECT ? "/direct" : "", ridge_names[p->ridge],
             p->prediction == FWA_PREDICTION_DECAYED ? "/decayed" : "", norm_names[p->qk_norm],
             phi_names[p->phi], "/", kind_names[c->kind], (int)p->key_dim, (int)p->value_dim,
             (int)c->tokens, sequence_names[c->sequences], carrying_names[c->carrying],
             (int)p->heads_key, (int)p->heads_value, (int)p->heads_query, fwa_dtype_name(p->dtype));
}

static void set_heads(fwa_problem *p, int32_t level)
{
    p->heads_key = factor_heads[level][0];
    p->heads_value = factor_heads[level][1];
    p->heads_query = factor_heads[level][2];
}

/* Settings under which a type cannot be held to its bound, whatever computes it. */
static void soften(conformance_case *c)
{
    fwa_problem *p = &c->problem;
    /* One feature cancels out of S^T q / (z^T q): without eps_attn the gradient of q is zero. */
    if (p->key_dim == 1 && p->normalizer)
        p->eps_attn = 0.5;
    /* A zero key has the step size beta / eps; 1e6 times anything is outside f16. */
    if (p->dtype == F16 && c->kind == CONFORMANCE_ZERO_KEYS && p->eps > 0)
        p->eps = 0.1;
}

/* Work of a row, in state elements times tokens, is limited: the float64 reference has to keep up.
 */
#define WORK_MOST 12e6

static void limit_work(conformance_case *c)
{
    const fwa_problem *p = &c->problem;
    const int rows = c->sequences == CONFORMANCE_BATCH ? 3 : 1;
    /* The eigenvalue of a window's Gram matrix costs about as much as so many state elements. */
    const double eigen = p->window > 2 && p->objective == FWA_OBJECTIVE_REGRESSION
                             ? 4.0 * p->window * p->window * p->window
                             : 0;
    const double token = ((double)p->key_dim * p->value_dim + eigen) * p->heads_value * rows;
    while ((double)c->tokens * token > WORK_MOST && c->tokens > 17)
        c->tokens--;
}

static void build_covering(conformance_case *c, const int32_t *row)
{
    static const double scales[] = {1, 0, -2}; /* 0: D^-1/2 */
    const fwa_problem init = FWA_PROBLEM_INIT;
    const factor_rule *rule = &factor_rules[row[FACTOR_RULE]];
    fwa_problem *p = &c->problem;
    *p = init;
    p->objective = rule->objective;
    p->dynamics = rule->dynamics;
    p->window = rule->window;
    p->normalizer = rule->normalizer;
    p->alignment = row[FACTOR_ALIGNMENT];
    p->read = row[FACTOR_READ];
    p->step = row[FACTOR_STEP];
    p->ridge = row[FACTOR_RIDGE];
    p->prediction = row[FACTOR_PREDICTION];
    p->qk_norm = row[FACTOR_NORM];
    p->phi = row[FACTOR_PHI];
    p->eps = factor_eps[row[FACTOR_EPS]];
    p->decay_floor = factor_floor[row[FACTOR_FLOOR]];
    p->norm_eps = factor_norm_eps[row[FACTOR_NORM_EPS]];
    p->eps_attn = factor_eps_attn[row[FACTOR_EPS_ATTN]];
    p->key_dim = factor_dims[row[FACTOR_KEY_DIM]];
    p->value_dim = factor_dims[row[FACTOR_VALUE_DIM]];
    p->scale = scales[row[FACTOR_SCALE]] == 0 ? 1 / sqrt(p->key_dim) : scales[row[FACTOR_SCALE]];
    p->dtype = factor_dtypes[row[FACTOR_DTYPE]];
    p->state_dtype = factor_states[row[FACTOR_STATE]];
    set_heads(p, row[FACTOR_HEADS]);
    c->tokens = factor_tokens[row[FACTOR_TOKENS]];
    c->kind = row[FACTOR_KIND];
    c->gates = factor_gates[row[FACTOR_GATES]];
    c->sequences = row[FACTOR_SEQUENCES];
    c->carrying = row[FACTOR_CARRYING];
    c->layout = row[FACTOR_LAYOUT];
    c->in_place = row[FACTOR_IN_PLACE];
    c->index64 = row[FACTOR_INDEX];
    soften(c);
    limit_work(c);
}

static void build_special(conformance_case *c, const special *s)
{
    const fwa_problem init = FWA_PROBLEM_INIT;
    fwa_problem *p = &c->problem;
    *p = init;
    fwa_problem_preset(p, s->preset);
    p->alignment = s->alignment < 0 ? p->alignment : s->alignment;
    p->read = s->read < 0 ? p->read : s->read;
    p->key_dim = s->key_dim;
    p->value_dim = s->value_dim;
    p->dtype = s->dtype;
    set_heads(p, s->heads);
    c->kind = s->kind;
    c->gates = CONFORMANCE_BETA | CONFORMANCE_LAMBDA | CONFORMANCE_LOG_GATE;
    c->tokens = s->tokens;
    c->sequences = s->sequences;
    c->carrying = s->carrying;
    c->layout = CONFORMANCE_PADDED;
    c->in_place = s->carrying == CONFORMANCE_POOL;
    c->index64 = 1;
    soften(c);
}

int32_t conformance_case_count(void)
{
    int32_t rows;
    free(conformance_cover(&rows));
    return rows + SPECIALS;
}

conformance_case *conformance_cases(void)
{
    int32_t rows;
    int32_t(*table)[CONFORMANCE_FACTORS] = conformance_cover(&rows);
    conformance_case *cases = conformance_allocate((size_t)(rows + SPECIALS), sizeof *cases);
    for (int32_t i = 0; i < rows + SPECIALS; i++) {
        conformance_case *c = &cases[i];
        const special *s = i < rows ? NULL : &specials[i - rows];
        char rule[64];
        if (s) {
            build_special(c, s);
            snprintf(rule, sizeof rule, "%s/%s", s->reason, s->preset);
        } else {
            build_covering(c, table[i]);
            snprintf(rule, sizeof rule, "%s", factor_rules[table[i][FACTOR_RULE]].name);
        }
        c->seed = 1000 + (uint64_t)i;
        name_case(c, i, rule);
    }
    free(table);
    return cases;
}
