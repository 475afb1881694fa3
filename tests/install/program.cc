// SPDX-License-Identifier: Apache-2.0
// A C++17 program that uses the installed headers and library: fills structs with the INIT macros,
// runs four tokens and prints what first.c prints, in a way of its own.
#include <fwa/backend.h>
#include <fwa/fwa.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace
{

template <typename T, void (*Destroy)(T *)> struct destroyer {
    void operator()(T *object) const
    {
        Destroy(object);
    }
};
using context_pointer = std::unique_ptr<fwa_context, destroyer<fwa_context, fwa_context_destroy>>;
using plan_pointer = std::unique_ptr<fwa_plan, destroyer<fwa_plan, fwa_plan_destroy>>;

void require(fwa_status status)
{
    if (status == FWA_OK)
        return;
    std::fprintf(stderr, "%s: %s\n", fwa_status_name(status), fwa_error_message());
    std::exit(1);
}

context_pointer make_context()
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = nullptr;
    options.threads = 1;
    require(fwa_context_create(&options, &context));
    return context_pointer(context);
}

plan_pointer make_plan(fwa_context *context, int32_t key_dim, int32_t value_dim)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    fwa_plan *plan = nullptr;
    require(fwa_problem_preset(&problem, "falcon1"));
    problem.key_dim = key_dim;
    problem.value_dim = value_dim;
    require(fwa_plan_create(context, &problem, &plan));
    return plan_pointer(plan);
}

} // namespace

int main()
{
    constexpr int tokens = 4, dim = 2;
    std::array<float, tokens *dim> q = {1, 0, 0, 1, 1, 0, 0, 1}, v = {1, 2, 3, 4, 5, 6, 7, 8},
                                   o = {};
    std::array<float, tokens> beta = {1, 1, 1, 1};
    const context_pointer context = make_context();
    const plan_pointer plan = make_plan(context.get(), dim, dim);

    if (fwa_version() !=
        FWA_VERSION_MAJOR * 1000000 + FWA_VERSION_MINOR * 1000 + FWA_VERSION_PATCH) {
        std::fprintf(stderr, "library and headers are of two versions\n");
        return 1;
    }
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    args.q = args.k = fwa_tensor_contiguous(q.data(), FWA_DTYPE_F32, 4, 1, tokens, 1, dim);
    args.v = fwa_tensor_contiguous(v.data(), FWA_DTYPE_F32, 4, 1, tokens, 1, dim);
    args.o = fwa_tensor_contiguous(o.data(), FWA_DTYPE_F32, 4, 1, tokens, 1, dim);
    args.beta = fwa_tensor_contiguous(beta.data(), FWA_DTYPE_F32, 3, 1, tokens, 1);
    require(
        fwa_plan_workspace_size(plan.get(), FWA_PASS_FORWARD, 1, tokens, 1, &args.workspace_size));
    std::vector<unsigned char> workspace(args.workspace_size);
    args.workspace = workspace.data();
    require(fwa_forward(plan.get(), &args));
    for (int t = 0; t < tokens; t++)
        std::printf("%g %g\n", static_cast<double>(o[2 * t]), static_cast<double>(o[2 * t + 1]));
    return 0;
}
