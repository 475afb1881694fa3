/* SPDX-License-Identifier: Apache-2.0 */
#include "inputs.h"
#include "../conformance/cases.h"

#include <stdlib.h>

static void scale(conformance_data *data, const char *name, double factor)
{
    double *values = conformance_get(data, name);
    const int64_t n = values && factor != 1 ? conformance_count(data, name) : 0;
    for (int64_t i = 0; i < n; i++)
        values[i] *= factor;
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
    conformance_data data = conformance_case_data(&one);
    if (p->pass != BENCH_BACKWARD && p->pass != BENCH_TRAIN)
        conformance_drop(&data, "do");
    if ((p->gates & CONFORMANCE_BETA) == 0 && kind->kind == CONFORMANCE_RANDOM)
        conformance_drop(&data, "beta");
    scale(&data, "lambda", kind->forget);
    scale(&data, "log_gate", kind->forget);
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

double bench_inputs_memory(const bench_problem *problem)
{
    const fwa_problem *p = &problem->problem;
    const double batch = (double)problem->batch, tokens = batch * (double)problem->tokens;
    const double key = tokens * p->key_dim, value = tokens * p->value_dim * p->heads_value;
    const int backward = problem->pass == BENCH_BACKWARD || problem->pass == BENCH_TRAIN;
    const double call = key * (p->heads_query + p->heads_key) + 2 * value +
                        batch * p->heads_value * p->key_dim * p->value_dim;
    /* Doubles of the inputs, twice while they are put together, of the results, and the parts that
     * are verified; the library's own tensors and their images; gradients as much again. */
    return call * 8 * (backward ? 8 : 5);
}
