/* SPDX-License-Identifier: Apache-2.0 */
#include "inputs.h"
#include "../common/host.h"
#include "../conformance/cases.h"
#include "../conformance/random.h"

#include <stdlib.h>

#define GREATEST_GAIN 1.999
#define PART_NUMBERS  0x1p25 /* a quarter of a gigabyte of doubles */

static void scale(conformance_data *data, const char *name, double factor)
{
    double *values = conformance_get(data, name);
    const int64_t n = values && factor != 1 ? conformance_count(data, name) : 0;
    for (int64_t i = 0; i < n; i++)
        values[i] *= factor;
}

static void set_log_gates(conformance_data *data, double gamma, uint64_t seed)
{
    conformance_random random = conformance_random_seed(seed);
    double *gates = conformance_add(data, "log_gate");
    const int64_t n = conformance_count(data, "log_gate");
    for (int64_t i = 0; i < n; i++)
        gates[i] = log(gamma) * conformance_random_between(&random, 0.9, 1.1);
}

/* The largest |x|^2 of the keys under this name. */
static double find_energy(const conformance_data *data, const char *name)
{
    const fwa_problem *p = &data->problem;
    const double *keys = conformance_get(data, name);
    const int64_t n = keys ? conformance_count(data, name) / p->key_dim : 0;
    double energy = 0;
    for (int64_t i = 0; i < n; i++) {
        double x[256], sum = 0;
        fwa_feature_f64(p, keys + i * p->key_dim, x);
        for (int32_t j = 0; j < p->key_dim; j++)
            sum += x[j] * x[j];
        energy = sum > energy ? sum : energy; /* keys that nobody may read are NaN */
    }
    return energy;
}

/* Normalised steps divide by |x|^2 themselves; for direct ones beta must hold for all keys. */
static void set_gains(conformance_data *data, double least, uint64_t seed)
{
    static const char *const names[] = {"k", "prev_key_in", "tail_key_in"};
    conformance_random random = conformance_random_seed(seed);
    double *beta = conformance_add(data, "beta"), energy = 0;
    const int64_t n = conformance_count(data, "beta");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        energy = fmax(energy, find_energy(data, names[i]));
    if (data->problem.step != FWA_STEP_DIRECT || energy == 0)
        energy = 1;
    for (int64_t i = 0; i < n; i++)
        beta[i] = conformance_random_between(&random, least, GREATEST_GAIN) / energy;
}

/* One batch row. */
static conformance_data make_row(const bench_problem *p, int64_t row)
{
    const bench_data_kind *kind = bench_data_get(p->data);
    conformance_case one = {.problem = p->problem,
                            .kind = kind->kind,
                            .gates = p->gates,
                            .sequences = CONFORMANCE_ONE,
                            .layout = CONFORMANCE_DENSE,
                            .tokens = p->tokens};
    one.carrying = p->pass == BENCH_DECODE ? CONFORMANCE_CONTINUED : CONFORMANCE_FRESH;
    /* Multiples of three: the cases then have no gradient of the final carry. */
    one.seed = 3 * (uint64_t)(row + 1);
    one.gates |= kind->gamma > 0 ? CONFORMANCE_LOG_GATE : 0;
    one.gates |= kind->gain > 0 ? CONFORMANCE_BETA : 0;
    conformance_data data = conformance_case_data(&one);
    if (p->pass != BENCH_BACKWARD && p->pass != BENCH_TRAIN)
        conformance_drop(&data, "do");
    if ((one.gates & CONFORMANCE_BETA) == 0 && kind->kind == CONFORMANCE_RANDOM)
        conformance_drop(&data, "beta");
    scale(&data, "lambda", kind->forget);
    scale(&data, "log_gate", kind->forget);
    if (kind->gamma > 0)
        set_log_gates(&data, kind->gamma, one.seed);
    if (kind->gain > 0)
        set_gains(&data, kind->gain, one.seed);
    return data;
}

conformance_data bench_inputs(const bench_problem *problem)
{
    const int64_t rows = problem->batch;
    conformance_data *parts = conformance_allocate((size_t)rows, sizeof *parts);
    const conformance_data **list = conformance_allocate((size_t)rows, sizeof *list);
    conformance_data whole;
    for (int64_t row = 0; row < rows; row++) {
        parts[row] = make_row(problem, row);
        list[row] = &parts[row];
    }
    whole = conformance_stack(list, rows);
    conformance_round(&whole, problem->problem.dtype, problem->problem.state_dtype);
    for (int64_t row = 0; row < rows; row++)
        conformance_data_free(&parts[row]);
    free(list);
    free(parts);
    return whole;
}

/* Numbers of q, k, v, o and the states. */
static double count_numbers(const bench_problem *problem)
{
    const fwa_problem *p = &problem->problem;
    const double batch = (double)problem->batch, tokens = batch * (double)problem->tokens;
    return tokens * p->key_dim * (p->heads_query + p->heads_key) +
           2 * tokens * p->value_dim * p->heads_value +
           batch * p->heads_value * p->key_dim * p->value_dim;
}

bench_problem bench_inputs_part(const bench_problem *problem, double limit)
{
    const fwa_problem *whole = &problem->problem;
    const double most = limit > 0 ? limit : PART_NUMBERS;
    bench_problem part = *problem;
    fwa_problem *p = &part.problem;
    while (count_numbers(&part) > most && part.batch > 1)
        part.batch = (part.batch + 1) / 2;
    while (count_numbers(&part) > most && p->heads_key > 1) {
        p->heads_key = (p->heads_key + 1) / 2;
        p->heads_value = whole->heads_value / whole->heads_key * p->heads_key;
        p->heads_query = whole->heads_query == whole->heads_key ? p->heads_key : p->heads_value;
    }
    return part;
}

double bench_inputs_memory(const bench_problem *problem, const bench_problem *part)
{
    const int backward = problem->pass == BENCH_BACKWARD || problem->pass == BENCH_TRAIN;
    const double size = (double)fwa_dtype_size(problem->problem.dtype);
    /* Doubles of the part's inputs, twice while they are put together, of the results, and the pieces
     * that are verified; the whole problem's tensors and their images; gradients as much again. */
    return count_numbers(part) * 8 * (backward ? 8 : 5) +
           count_numbers(problem) * size * (backward ? 3 : 2);
}
