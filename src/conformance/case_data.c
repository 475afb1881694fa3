/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a case. Sizes are chosen so that the state neither dies nor grows without bound:
 * what a comparison then measures is the kernel. */

#include "cases.h"
#include "random.h"

#include "../common/host.h"

#include <stdlib.h>
#include <string.h>

typedef struct maker {
    const conformance_case *c;
    conformance_data *data;
    conformance_random random;
    int32_t gates;     /* which are made */
    double energy;     /* the largest |x|^2 of all keys; 1 where all are zero */
    double least_gate; /* of the kinds that have no gates of their own */
    double forgotten;  /* greatest eta lambda of the same */
    double most_gain;  /* greatest eta |x|^2 */
} maker;

static double normal(maker *m)
{
    return conformance_random_normal(&m->random);
}

static double between(maker *m, double low, double high)
{
    return conformance_random_between(&m->random, low, high);
}

/* ---- Sequences ---- */

static int64_t sequence_count(const conformance_case *c)
{
    int64_t count = 0;
    switch (c->sequences) {
    case CONFORMANCE_ONE: return 1;
    case CONFORMANCE_BATCH: return 3;
    case CONFORMANCE_PACKED: return 6;
    default:
        for (int64_t at = 0; at < c->tokens; count++)
            at += 1 + count * 5 % 9;
        return count;
    }
}

static void make_lengths(maker *m)
{
    const int64_t n = m->data->extent.sequences, tokens = m->c->tokens;
    if (m->c->sequences != CONFORMANCE_PACKED && m->c->sequences != CONFORMANCE_PACKED_SHORT)
        return;
    double *cu = conformance_add(m->data, "cu_seqlens");
    const double first = tokens < 5 ? (double)tokens : 5;
    const double lengths[] = {0, first, 0, 0, (double)tokens - first, 0};
    for (int64_t i = 0; i < n; i++) {
        const double length = m->c->sequences == CONFORMANCE_PACKED ? lengths[i]
                                                                    : (double)(1 + i * 5 % 9);
        cu[i + 1] = fmin(cu[i] + length, (double)tokens);
    }
}

/* Pools: rows read and write slots crosswise; every fourth row is padded, every fourth fresh. */
static void make_slots(maker *m)
{
    conformance_data *data = m->data;
    const int64_t n = data->extent.sequences;
    if (m->c->carrying == CONFORMANCE_COMMITTED) {
        data->commit = conformance_allocate((size_t)n, sizeof *data->commit);
        for (int64_t i = 0; i < n; i++) {
            const int64_t length = conformance_length(data, i);
            const int64_t commits[] = {length / 2, length, 0, length > 0 ? 1 : 0};
            data->commit[i] = (int32_t)commits[i % 4];
        }
    }
    if (m->c->carrying != CONFORMANCE_POOL)
        return;
    data->pool = n + 2;
    data->slot_in = conformance_allocate((size_t)n, sizeof *data->slot_in);
    data->slot_out = conformance_allocate((size_t)n, sizeof *data->slot_out);
    for (int64_t i = 0; i < n; i++) {
        data->slot_in[i] = (int32_t)((i + 2) % data->pool);
        data->slot_out[i] = (int32_t)((i + 1) % data->pool);
        if (i % 4 == 1)
            data->slot_in[i] = FWA_SLOT_FRESH;
        if (i % 4 == 3)
            data->slot_in[i] = FWA_SLOT_NONE;
        if (i % 8 == 6)
            data->slot_out[i] = FWA_SLOT_FRESH;
    }
}

/* ---- Keys, queries, values ---- */

/* Raw keys [rows, heads, D]. `salt` tells the carry's from the call's. */
static void make_keys(maker *m, double *keys, int64_t rows, int64_t seed_row)
{
    const fwa_problem *p = &m->data->problem;
    const int64_t d = p->key_dim, heads = p->heads_key;
    const int64_t n = rows * heads * d;
    for (int64_t i = 0; i < n; i++) {
        const int64_t head = i / d % heads, row = i / d / heads + seed_row, element = i % d;
        conformance_random shared = conformance_random_seed(m->c->seed * 7919 +
                                                            (uint64_t)(head * d + element));
        const double common = conformance_random_normal(&shared);
        double key = normal(m);
        if (m->c->kind == CONFORMANCE_EQUAL_KEYS)
            key = common;
        else if (m->c->kind == CONFORMANCE_CORRELATED_KEYS)
            key = 0.9 * common + sqrt(1 - 0.81) * key;
        else if (m->c->kind == CONFORMANCE_SCALED)
            key *= 30;
        /* The normaliser divides by z^T q: features of both signs may make that zero (C.2). */
        if (p->normalizer)
            key = fabs(key) + 0.05;
        if (m->c->kind == CONFORMANCE_ZERO_KEYS && (head == 0 || row % 3 == 1))
            key = 0;
        keys[i] = key;
    }
}

static void make_normals(maker *m, const char *name, double size)
{
    double *values = conformance_add(m->data, name);
    const int64_t n = conformance_count(m->data, name);
    for (int64_t i = 0; i < n; i++)
        values[i] = size * normal(m);
}

static void make_queries(maker *m)
{
    make_normals(m, "q", 1);
    double *q = conformance_get(m->data, "q");
    const int64_t n = conformance_count(m->data, "q");
    for (int64_t i = 0; i < n && m->data->problem.normalizer; i++)
        q[i] = fabs(q[i]) + 0.05;
}

static void find_energy(maker *m, const char *name)
{
    const fwa_problem *p = &m->data->problem;
    const double *keys = conformance_get(m->data, name);
    const int64_t n = keys ? conformance_count(m->data, name) / p->key_dim : 0;
    for (int64_t i = 0; i < n; i++) {
        double x[256], sum = 0;
        fwa_feature_f64(p, keys + i * p->key_dim, x);
        for (int32_t j = 0; j < p->key_dim; j++)
            sum += x[j] * x[j];
        m->energy = sum > m->energy ? sum : m->energy;
    }
}

/* ---- Carries ---- */

/* What a carry holds but nobody may read: NaN. */
static void hide(double *part, int64_t row, int64_t width, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++)
        part[row * width + i] = NAN;
}

static void hide_unread(maker *m, int64_t row, int64_t seen)
{
    conformance_data *data = m->data;
    const fwa_problem *p = &data->problem;
    const int64_t tail = p->window - 1, fill = fwa_tail_fill(p, seen);
    const int64_t key = (int64_t)p->heads_key * p->key_dim;
    const int64_t value = (int64_t)p->heads_value * p->value_dim;
    if (conformance_get(data, "prev_key_in") && seen == 0)
        hide(conformance_get(data, "prev_key_in"), row, key, 0, key);
    if (conformance_get(data, "tail_key_in"))
        hide(conformance_get(data, "tail_key_in"), row, tail * key, 0, (tail - fill) * key);
    if (conformance_get(data, "tail_value_in"))
        hide(conformance_get(data, "tail_value_in"), row, tail * value, 0, (tail - fill) * value);
}

static void make_state(maker *m)
{
    conformance_data *data = m->data;
    make_normals(m, "state_in", m->c->kind == CONFORMANCE_SCALED ? 1e-4 : 0.3);
    if (!data->problem.normalizer)
        return;
    double *norm = conformance_add(data, "norm_in");
    const int64_t n = conformance_count(data, "norm_in");
    for (int64_t i = 0; i < n; i++)
        norm[i] = between(m, 0.5, 1.5);
}

static void make_carry(maker *m)
{
    static const double seen_tokens[] = {0, 40, 1, 2, 3, 0, 7};
    conformance_data *data = m->data;
    const fwa_problem *p = &data->problem;
    const int64_t rows = data->pool ? data->pool : data->extent.sequences;
    if (m->c->carrying == CONFORMANCE_FRESH)
        return;
    make_state(m);
    if (m->c->carrying == CONFORMANCE_GIVEN_STATE)
        return;
    double *seen = conformance_add(data, "seen_in");
    if (p->alignment == FWA_ALIGNMENT_NEXT_LATENT)
        make_keys(m, conformance_add(data, "prev_key_in"), rows, 0);
    if (p->window > 1) {
        make_keys(m, conformance_add(data, "tail_key_in"), rows * (p->window - 1), 1);
        make_normals(m, "tail_value_in", m->c->kind == CONFORMANCE_SCALED ? 0.01 : 1);
    }
    find_energy(m, "prev_key_in");
    find_energy(m, "tail_key_in");
    for (int64_t i = 0; i < rows; i++) {
        seen[i] = seen_tokens[(i + (rows == 1)) % 7];
        hide_unread(m, i, (int64_t)seen[i]);
    }
}

/* ---- Gates ---- */

/* Bounds within which |gamma - eta |x|^2| stays at most 1, for the residual against S_{t-1}: beyond
 * them the exact answer grows by a factor at each token, and its rounding errors with it. Against
 * gamma S_{t-1} any decay will do. */
static void set_bounds(maker *m)
{
    const fwa_problem *p = &m->data->problem;
    const int undamped = m->c->kind == CONFORMANCE_EQUAL_KEYS ||
                         m->c->kind == CONFORMANCE_CORRELATED_KEYS;
    const int separate = p->objective == FWA_OBJECTIVE_REGRESSION &&
                         p->prediction == FWA_PREDICTION_PREVIOUS;
    const int decays = (m->gates & CONFORMANCE_LOG_GATE) != 0 ||
                       (p->step == FWA_STEP_DIRECT && (m->gates & CONFORMANCE_LAMBDA) != 0);
    m->least_gate = undamped && separate ? -0.03 : -0.5;
    m->forgotten = undamped && separate ? 0.05 : 0.3;
    m->most_gain = separate && decays ? (undamped ? 1.9 : 1) : 1.999;
}

static double make_gain(maker *m, int64_t head)
{
    static const double undamped[] = {1, 1.5, 1.9, 1.999};
    double gain = between(m, 0.05, 1.9);
    switch (m->c->kind) {
    case CONFORMANCE_EQUAL_KEYS: gain = undamped[(head + (int64_t)m->c->seed) % 4]; break;
    case CONFORMANCE_CORRELATED_KEYS: gain = 1.9; break;
    case CONFORMANCE_CLAMPED: gain = m->data->problem.step == FWA_STEP_DIRECT ? 0.8 : 1.8; break;
    case CONFORMANCE_BIG_RIDGE: gain = 1; break;
    default: gain = gain > m->most_gain ? gain / 2 : gain; break;
    }
    if (m->c->kind == CONFORMANCE_CLAMPED)
        return gain;
    return gain > m->most_gain ? m->most_gain : gain;
}

static void make_beta(maker *m)
{
    const fwa_problem *p = &m->data->problem;
    double *beta = conformance_add(m->data, "beta");
    const int64_t n = conformance_count(m->data, "beta");
    const int64_t width = p->dynamics == FWA_DYNAMICS_PER_CHANNEL ? p->value_dim : 1;
    for (int64_t i = 0; i < n; i++) {
        const double gain = make_gain(m, i / width % p->heads_value);
        beta[i] = p->step == FWA_STEP_DIRECT ? gain / m->energy : gain;
    }
}

static void make_lambda(maker *m)
{
    const fwa_problem *p = &m->data->problem;
    double *lambda = conformance_add(m->data, "lambda");
    const int64_t n = conformance_count(m->data, "lambda");
    for (int64_t i = 0; i < n; i++) {
        /* Relative to |x|^2; with direct steps eta lambda is at most this. */
        double ridge = between(m, 0, m->forgotten);
        if (m->c->kind == CONFORMANCE_CLAMPED)
            ridge = 5;
        /* Not 1e6 and 1e8: with |x|^2 = 1, 100 the carry 1 - eta lambda would sit at the floor. */
        if (m->c->kind == CONFORMANCE_BIG_RIDGE)
            ridge = i % p->heads_value % 2 ? 1.37e8 : 1.37e6;
        else if (p->ridge == FWA_RIDGE_ACTUAL)
            ridge *= m->energy;
        lambda[i] = ridge;
    }
}

static double make_log_gate(maker *m, int64_t token, int64_t head, int64_t tokens)
{
    const double wild = -exp(3 * normal(m)), drawn = between(m, 0, 1);
    switch (m->c->kind) {
    case CONFORMANCE_TINY_GATES:
        return head == 0 || token == tokens / 2 ? log(1e-12) : -0.1 * drawn;
    case CONFORMANCE_WILD_GATES: return wild < -50 ? -50 : wild;
    case CONFORMANCE_HALF_OPEN_GATES: return drawn < 0.5 ? 0 : -drawn;
    case CONFORMANCE_CLOSED_GATES: return drawn < 0.2 ? -INFINITY : -0.1 * drawn;
    default: return m->least_gate * drawn;
    }
}

static void make_log_gates(maker *m)
{
    const int64_t heads = m->data->problem.heads_value, tokens = m->data->extent.tokens;
    double *gate = conformance_add(m->data, "log_gate");
    const int64_t n = conformance_count(m->data, "log_gate");
    for (int64_t i = 0; i < n; i++)
        gate[i] = make_log_gate(m, i / heads % tokens, i % heads, tokens);
}

/* The layout repeats the first of each head's gates. */
static void make_constant(maker *m, const char *name)
{
    const fwa_problem *p = &m->data->problem;
    double *gate = conformance_get(m->data, name);
    const int64_t n = gate ? conformance_count(m->data, name) : 0;
    const int64_t width = strcmp(name, "beta") == 0 && p->dynamics == FWA_DYNAMICS_PER_CHANNEL
                              ? p->value_dim
                              : 1;
    for (int64_t i = 0; i < n; i++)
        gate[i] = gate[i / width % p->heads_value * width];
}

static int32_t needed_gates(const maker *m)
{
    const fwa_problem *p = &m->data->problem;
    const int32_t kind = m->c->kind;
    int32_t gates = m->c->gates;
    if (p->step == FWA_STEP_DIRECT || kind == CONFORMANCE_EQUAL_KEYS)
        gates |= CONFORMANCE_BETA; /* else beta is 1, too long a step for long keys */
    if (kind >= CONFORMANCE_TINY_GATES && kind <= CONFORMANCE_CLOSED_GATES)
        gates |= CONFORMANCE_LOG_GATE;
    if (kind == CONFORMANCE_CLAMPED || kind == CONFORMANCE_BIG_RIDGE)
        gates |= CONFORMANCE_LAMBDA | CONFORMANCE_BETA;
    return gates;
}

/* ---- All ---- */

static void make_upstream(maker *m)
{
    static const char *const names[] = {"dstate_out", "dprev_key_out", "dtail_key_out",
                                        "dtail_value_out", "dnorm_out"};
    make_normals(m, "do", 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (problem_tensor_applies(problem_tensor_find(names[i]), &m->data->problem) &&
            m->c->seed % 3 != 0)
            make_normals(m, names[i], 0.3);
}

/* Tokens of a padded row must not be read. */
static void hide_padded(maker *m)
{
    static const char *const names[] = {"q", "k", "v", "beta", "lambda", "log_gate", "do"};
    conformance_data *data = m->data;
    const int packed = conformance_get(data, "cu_seqlens") != NULL;
    for (int64_t n = 0; data->slot_in && n < data->extent.sequences; n++) {
        if (data->slot_in[n] != FWA_SLOT_NONE)
            continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const int64_t all = data->extent.batch * data->extent.tokens;
            double *values = conformance_get(data, names[i]);
            const int64_t width = values && all ? conformance_count(data, names[i]) / all : 0;
            const int64_t first = packed ? conformance_first(data, n) : n * data->extent.tokens;
            const int repeated = m->c->layout == CONFORMANCE_BROADCAST && i >= 3 && i <= 5;
            if (width && !repeated)
                hide(values, 0, 0, first * width, (first + conformance_length(data, n)) * width);
        }
    }
}

conformance_data conformance_case_data(const conformance_case *c)
{
    const int64_t n = sequence_count(c);
    conformance_data data = conformance_data_new(
        &c->problem, c->sequences == CONFORMANCE_BATCH ? n : 1, c->tokens, n);
    maker m = {c, &data, conformance_random_seed(c->seed), 0, 0, 0, 0, 0};
    make_lengths(&m);
    make_slots(&m);
    make_queries(&m);
    make_keys(&m, conformance_add(&data, "k"), data.extent.batch * c->tokens, 0);
    make_normals(&m, "v", c->kind == CONFORMANCE_SCALED ? 0.01 : 1);
    find_energy(&m, "k");
    make_carry(&m);
    if (m.energy == 0)
        m.energy = 1;
    m.gates = needed_gates(&m);
    set_bounds(&m);
    if (m.gates & CONFORMANCE_BETA)
        make_beta(&m);
    if (m.gates & CONFORMANCE_LAMBDA)
        make_lambda(&m);
    if (m.gates & CONFORMANCE_LOG_GATE)
        make_log_gates(&m);
    if (c->layout == CONFORMANCE_BROADCAST) {
        make_constant(&m, "beta");
        make_constant(&m, "lambda");
        make_constant(&m, "log_gate");
    }
    make_upstream(&m);
    hide_padded(&m);
    conformance_round(&data, c->problem.dtype, c->problem.state_dtype);
    return data;
}
