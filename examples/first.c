/* SPDX-License-Identifier: Apache-2.0 */

/* The program in the head of fwa.h: four tokens through falcon1. A test holds it to the header. */
/* clang-format off */
#include <fwa/fwa.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    float q[] = {1,0, 0,1, 1,0, 0,1}, v[] = {1,2, 3,4, 5,6, 7,8}, beta[] = {1,1,1,1}, o[8];
    fwa_context *context; fwa_plan *plan;
    fwa_problem problem = FWA_PROBLEM_INIT;
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    fwa_problem_preset(&problem, "falcon1");
    problem.key_dim = problem.value_dim = 2;
    args.q = args.k = fwa_tensor_contiguous(q, FWA_DTYPE_F32, 4, 1, 4, 1, 2);
    args.v = fwa_tensor_contiguous(v, FWA_DTYPE_F32, 4, 1, 4, 1, 2);
    args.o = fwa_tensor_contiguous(o, FWA_DTYPE_F32, 4, 1, 4, 1, 2);
    args.beta = fwa_tensor_contiguous(beta, FWA_DTYPE_F32, 3, 1, 4, 1);
    if (fwa_context_create(NULL, &context) || fwa_plan_create(context, &problem, &plan) ||
        fwa_plan_workspace_size(plan, FWA_PASS_FORWARD, 1, 4, 1, &args.workspace_size) ||
        !(args.workspace = malloc(args.workspace_size)) || fwa_forward(plan, &args))
        return fprintf(stderr, "%s\n", fwa_error_message()), 1;
    for (int t = 0; t < 8; t += 2) printf("%.4g %.4g\n", o[t], o[t + 1]);
}
