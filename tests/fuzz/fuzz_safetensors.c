/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads files: the parser, the knobs, and the binding of tensors to arguments. What is
 * accepted must also survive being bound in every type. */
#include "../../src/files/problem_run.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void bind_one(const safetensors *file, int32_t dtype, int32_t rounded, int32_t backward)
{
    const problem_run_options options = {
        .dtype = dtype, .rounded_dtype = rounded, .backward = backward, .mask = 1};
    safetensors_message message;
    problem_binding binding;
    if (problem_bind(file, &options, &binding, &message) == 0)
        problem_binding_free(&binding);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    safetensors_message message;
    safetensors *file = safetensors_parse(bytes, size, &message);
    fwa_problem problem;
    if (file == NULL)
        return 0;
    if (problem_file_read_problem(file, &problem, &message) == 0) {
        bind_one(file, FWA_DTYPE_F32, FWA_DTYPE_NONE, 0);
        bind_one(file, FWA_DTYPE_F64, FWA_DTYPE_F16, 1);
        bind_one(file, FWA_DTYPE_BF16, FWA_DTYPE_NONE, 1);
    }
    safetensors_free(file);
    return 0;
}
