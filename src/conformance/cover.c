/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that hold every allowed pair of levels of any two factors. */

#include "cases.h"
#include "factors.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

#define REGRESSION FWA_OBJECTIVE_REGRESSION
#define PRODUCT    FWA_OBJECTIVE_INNER_PRODUCT
#define HEAD       FWA_DYNAMICS_PER_HEAD
#define CHANNEL    FWA_DYNAMICS_PER_CHANNEL

const factor_rule factor_rules[FACTOR_RULES] = {
    {"falcon1", REGRESSION, HEAD, 1, 0},
    {"falcon2", REGRESSION, CHANNEL, 1, 0},
    {"falcon3.2", REGRESSION, HEAD, 2, 0},
    {"falcon3.3", REGRESSION, HEAD, 3, 0},
    {"falcon3.4", REGRESSION, HEAD, 4, 0},
    {"falcon3.8", REGRESSION, HEAD, 8, 0},
    {"falcon3.32", REGRESSION, HEAD, 32, 0},
    {"falcon1a", PRODUCT, HEAD, 1, 0},
    {"falcon2a", PRODUCT, CHANNEL, 1, 0},
    {"falcon3a.2", PRODUCT, HEAD, 2, 0},
    {"falcon3a.3", PRODUCT, HEAD, 3, 0},
    {"falcon3a.8", PRODUCT, HEAD, 8, 0},
    {"falcon3a.32", PRODUCT, HEAD, 32, 0},
    {"falcon1a-normalizer", PRODUCT, HEAD, 1, 1},
    {"falcon3a.4-normalizer", PRODUCT, HEAD, 4, 1},
    {"falcon3a.4", PRODUCT, HEAD, 4, 0},
};
const int32_t factor_heads[FACTOR_HEADS_N][3] = {{1, 1, 1}, {2, 2, 2}, {1, 2, 1}, {1, 3, 3},
                                                 {2, 8, 2}, {2, 4, 4}, {3, 3, 3}};
const int32_t factor_dims[FACTOR_DIMS] = {1, 2, 3, 5, 7, 8, 16, 33, 64, 80, 100, 128, 256};
const int32_t factor_tokens[FACTOR_TIMES] = {1,  2,  7,  15, 16,  17,  33,
                                             63, 64, 65, 70, 100, 129, 150};
const double factor_eps[3] = {1e-6, 0, 0.1}, factor_floor[3] = {1e-6, 0.5, 1};
const double factor_norm_eps[3] = {1e-6, 0, 0.1}, factor_eps_attn[2] = {0, 0.01};
const int32_t factor_dtypes[3] = {FWA_DTYPE_F32, FWA_DTYPE_BF16, FWA_DTYPE_F16};
const int32_t factor_states[3] = {FWA_DTYPE_NONE, FWA_DTYPE_BF16, FWA_DTYPE_F16};
const int32_t factor_gates[5] = {
    CONFORMANCE_BETA | CONFORMANCE_LAMBDA | CONFORMANCE_LOG_GATE,
    CONFORMANCE_BETA | CONFORMANCE_LAMBDA,
    CONFORMANCE_BETA,
    CONFORMANCE_BETA | CONFORMANCE_LOG_GATE,
    0,
};

const conformance_factor conformance_factors[CONFORMANCE_FACTORS] = {
    [FACTOR_RULE] = {"rule", FACTOR_RULES},
    [FACTOR_ALIGNMENT] = {"alignment", 2},
    [FACTOR_READ] = {"read", 2},
    [FACTOR_STEP] = {"step", 2},
    [FACTOR_RIDGE] = {"ridge", 3},
    [FACTOR_PREDICTION] = {"prediction", 2},
    [FACTOR_NORM] = {"qk_norm", 3},
    [FACTOR_PHI] = {"phi", 3},
    [FACTOR_EPS] = {"eps", 3},
    [FACTOR_FLOOR] = {"decay_floor", 3},
    [FACTOR_SCALE] = {"scale", 3},
    [FACTOR_NORM_EPS] = {"norm_eps", 3},
    [FACTOR_EPS_ATTN] = {"eps_attn", 2},
    [FACTOR_HEADS] = {"heads", FACTOR_HEADS_N},
    [FACTOR_KEY_DIM] = {"key_dim", FACTOR_DIMS},
    [FACTOR_VALUE_DIM] = {"value_dim", FACTOR_DIMS},
    [FACTOR_TOKENS] = {"tokens", FACTOR_TIMES},
    [FACTOR_DTYPE] = {"dtype", 3},
    [FACTOR_STATE] = {"state_dtype", 3},
    [FACTOR_KIND] = {"kind", CONFORMANCE_KINDS},
    [FACTOR_GATES] = {"gates", 5},
    [FACTOR_SEQUENCES] = {"sequences", CONFORMANCE_SEQUENCES},
    [FACTOR_CARRYING] = {"carrying", CONFORMANCE_CARRYINGS},
    [FACTOR_LAYOUT] = {"layout", CONFORMANCE_GUARDED},
    [FACTOR_IN_PLACE] = {"in_place", 2},
    [FACTOR_INDEX] = {"index", 2},
};

_Static_assert(FACTORS == CONFORMANCE_FACTORS, "CONFORMANCE_FACTORS is out of date");

/* Levels [from, to] of one factor do not meet levels [other_from, other_to] of another. */
static const struct {
    int32_t factor, from, to, other, other_from, other_to;
} forbidden[] = {
    /* Results below 2^-14 have no full precision in f16. */
    {FACTOR_KIND, CONFORMANCE_BIG_RIDGE, CONFORMANCE_SCALED, FACTOR_DTYPE, 2, 2},
    {FACTOR_KIND, CONFORMANCE_BIG_RIDGE, CONFORMANCE_SCALED, FACTOR_STATE, 2, 2},
    /* Rows stay small. */
    {FACTOR_HEADS, 4, 4, FACTOR_KEY_DIM, 10, 12},
    {FACTOR_HEADS, 4, 4, FACTOR_VALUE_DIM, 10, 12},
    {FACTOR_SEQUENCES, CONFORMANCE_BATCH, CONFORMANCE_BATCH, FACTOR_KEY_DIM, 12, 12},
    {FACTOR_SEQUENCES, CONFORMANCE_BATCH, CONFORMANCE_BATCH, FACTOR_VALUE_DIM, 12, 12},
};

static int is_within(int32_t level, int32_t from, int32_t to)
{
    return level >= from && level <= to;
}

int conformance_pair_allowed(int32_t factor, int32_t level, int32_t other, int32_t other_level)
{
    if (factor > other)
        return conformance_pair_allowed(other, other_level, factor, level);
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        const int straight = forbidden[i].factor == factor && forbidden[i].other == other &&
                             is_within(level, forbidden[i].from, forbidden[i].to) &&
                             is_within(other_level, forbidden[i].other_from, forbidden[i].other_to);
        const int crossed = forbidden[i].factor == other && forbidden[i].other == factor &&
                            is_within(other_level, forbidden[i].from, forbidden[i].to) &&
                            is_within(level, forbidden[i].other_from, forbidden[i].other_to);
        if (straight || crossed)
            return 0;
    }
    return 1;
}

/* ---- The greedy search ---- */

#define LEVELS     16
#define CANDIDATES 12
#define ROWS_MOST  512

typedef struct cover {
    /* 1: this pair is in no row yet; the first factor is the smaller. */
    uint8_t open[FACTORS][FACTORS][LEVELS][LEVELS];
    int32_t count;
    conformance_random random;
} cover;

static uint8_t *pair_of(cover *c, int32_t f, int32_t level, int32_t g, int32_t other)
{
    return f < g ? &c->open[f][g][level][other] : &c->open[g][f][other][level];
}

static void open_all(cover *c)
{
    memset(c, 0, sizeof *c);
    c->random = conformance_random_seed(1);
    for (int32_t f = 0; f < FACTORS; f++)
        for (int32_t g = f + 1; g < FACTORS; g++)
            for (int32_t i = 0; i < conformance_factors[f].levels; i++)
                for (int32_t j = 0; j < conformance_factors[g].levels; j++) {
                    c->open[f][g][i][j] = (uint8_t)conformance_pair_allowed(f, i, g, j);
                    c->count += c->open[f][g][i][j];
                }
}

/* How many open pairs a level would close; -1 where it may not meet the row. */
static int32_t gain(cover *c, const int32_t *row, int32_t factor, int32_t level)
{
    int32_t closed = 0;
    for (int32_t g = 0; g < FACTORS; g++) {
        if (g == factor || row[g] < 0)
            continue;
        if (!conformance_pair_allowed(factor, level, g, row[g]))
            return -1;
        closed += *pair_of(c, factor, level, g, row[g]);
    }
    return closed;
}

/* Sets the best level of one factor; equals are drawn. 0 where none may. */
static int choose(cover *c, int32_t *row, int32_t factor)
{
    int32_t best = -1, ties = 0;
    for (int32_t level = 0; level < conformance_factors[factor].levels; level++) {
        const int32_t closed = gain(c, row, factor, level);
        if (closed < best || closed < 0)
            continue;
        ties = closed > best ? 1 : ties + 1;
        if (closed > best || conformance_random_below(&c->random, ties) == 0)
            row[factor] = level;
        best = closed;
    }
    return best >= 0;
}

/* Starts from an open pair, the n-th, and fills the other factors in a drawn order. */
static int candidate(cover *c, int32_t *row)
{
    int64_t n = conformance_random_below(&c->random, c->count);
    int32_t order[FACTORS];
    for (int32_t f = 0; f < FACTORS; f++)
        row[f] = -1, order[f] = f;
    const uint8_t *all = &c->open[0][0][0][0];
    int64_t at = 0;
    for (;; at++)
        if (all[at] && n-- == 0)
            break;
    row[at / (FACTORS * LEVELS * LEVELS)] = (int32_t)(at / LEVELS % LEVELS);
    row[at / (LEVELS * LEVELS) % FACTORS] = (int32_t)(at % LEVELS);
    for (int32_t i = FACTORS - 1; i >= 0; i--) {
        const int64_t j = conformance_random_below(&c->random, i + 1);
        const int32_t factor = order[j];
        order[j] = order[i];
        if (row[factor] < 0 && !choose(c, row, factor))
            return 0;
    }
    return 1;
}

static int32_t closes(cover *c, const int32_t *row, int mark)
{
    int32_t closed = 0;
    for (int32_t f = 0; f < FACTORS; f++)
        for (int32_t g = f + 1; g < FACTORS; g++) {
            uint8_t *open = pair_of(c, f, row[f], g, row[g]);
            closed += *open;
            *open = mark ? 0 : *open;
        }
    return closed;
}

int32_t (*conformance_cover(int32_t *rows))[CONFORMANCE_FACTORS]
{
    int32_t(*table)[FACTORS] = conformance_allocate(ROWS_MOST, sizeof *table);
    cover *c = conformance_allocate(1, sizeof *c);
    open_all(c);
    for (*rows = 0; c->count > 0 && *rows < ROWS_MOST; ++*rows) {
        int32_t best = 0, row[FACTORS];
        while (best == 0)
            for (int tries = 0; tries < CANDIDATES; tries++) {
                const int32_t closed = candidate(c, row) ? closes(c, row, 0) : 0;
                if (closed > best)
                    memcpy(table[*rows], row, sizeof row);
                best = closed > best ? closed : best;
            }
        c->count -= closes(c, table[*rows], 1);
    }
    free(c);
    return table;
}
