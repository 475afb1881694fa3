/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_support.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bench_problem parse(const char *line)
{
    bench_problem problem;
    bench_message message = {""};
    cr_assert_eq(bench_parse_line(line, &problem, &message), 1, "'%s': %s", line, message.text);
    return problem;
}

fwa_context *context_of(const char *backend, int threads)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context;
    options.backend = backend;
    options.threads = threads;
    cr_assert_eq(fwa_context_create(&options, &context), FWA_OK, "%s", fwa_error_message());
    return context;
}

void write_file(char *path, const void *bytes, size_t size)
{
    const int descriptor = mkstemp(path);
    cr_assert_geq(descriptor, 0);
    cr_assert_eq(write(descriptor, bytes, size), (ssize_t)size);
    close(descriptor);
}

/* ---- Faults ---- */

fwa_status __real_fwa_forward(const fwa_plan *plan, const fwa_forward_args *args);
fwa_status __real_fwa_backward(const fwa_plan *plan, const fwa_backward_args *args);
fwa_status __wrap_fwa_forward(const fwa_plan *plan, const fwa_forward_args *args);
fwa_status __wrap_fwa_backward(const fwa_plan *plan, const fwa_backward_args *args);

fault planted;
int64_t backwards, backwards_saved;

static void spoil(const fwa_plan *plan, const char *name, const fwa_tensor *tensor, int64_t tokens)
{
    if (planted.tensor == NULL || strcmp(planted.tensor, name) != 0 || tensor->rank == 0 ||
        strncmp(fwa_plan_kernel_name(plan, FWA_PASS_FORWARD), "cpu/", 4) != 0 ||
        tokens != planted.tokens || planted.calls-- > 0)
        return;
    float *data = tensor->data;
    data[tensor->rank > 2 ? planted.token * tensor->stride[1] : 0] += 1;
}

fwa_status __wrap_fwa_forward(const fwa_plan *plan, const fwa_forward_args *args)
{
    const fwa_status status = __real_fwa_forward(plan, args);
    if (status == FWA_OK) {
        spoil(plan, "o", &args->o, args->q.shape[1]);
        spoil(plan, "state_out", &args->carry_out.state, args->q.shape[1]);
    }
    return status;
}

fwa_status __wrap_fwa_backward(const fwa_plan *plan, const fwa_backward_args *args)
{
    const fwa_status status = __real_fwa_backward(plan, args);
    if (strncmp(fwa_plan_kernel_name(plan, FWA_PASS_BACKWARD), "cpu/", 4) == 0) {
        size_t size = 0;
        fwa_plan_saved_size(plan, args->q.shape[0], args->q.shape[1], args->q.shape[0], &size);
        backwards++;
        backwards_saved += args->saved != NULL && size > 0 && args->saved_size == size;
    }
    if (status == FWA_OK) {
        spoil(plan, "dq", &args->q_grad, args->q.shape[1]);
        spoil(plan, "dk", &args->k_grad, args->q.shape[1]);
        spoil(plan, "dv", &args->v_grad, args->q.shape[1]);
    }
    return status;
}
