/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_file.h"

#include <string.h>

#define FORWARD(field)  offsetof(fwa_forward_args, field)
#define BACKWARD(field) offsetof(fwa_backward_args, field)
#define BOTH(field)     FORWARD(field), BACKWARD(field)

#define INPUT(name, axes, type, when, required, field)                                             \
    {                                                                                              \
        name, axes, PROBLEM_INPUT, PROBLEM_TYPE_##type, PROBLEM_##when, required, BOTH(field)      \
    }
#define OUTPUT(name, axes, type, when, field)                                                      \
    {                                                                                              \
        name, axes, PROBLEM_OUTPUT, PROBLEM_TYPE_##type, PROBLEM_##when, 0, FORWARD(field),        \
            PROBLEM_NO_FIELD                                                                       \
    }
#define UPSTREAM(name, axes, type, when, field)                                                    \
    {                                                                                              \
        name, axes, PROBLEM_UPSTREAM, PROBLEM_TYPE_##type, PROBLEM_##when, 0, PROBLEM_NO_FIELD,    \
            BACKWARD(field)                                                                        \
    }
#define GRADIENT(name, axes, type, when, field)                                                    \
    {                                                                                              \
        name, axes, PROBLEM_GRADIENT, PROBLEM_TYPE_##type, PROBLEM_##when, 0, PROBLEM_NO_FIELD,    \
            BACKWARD(field)                                                                        \
    }

static const problem_tensor tensors[] = {
    INPUT("q", "BTqD", DATA, ALWAYS, 1, q),
    INPUT("k", "BTkD", DATA, ALWAYS, 1, k),
    INPUT("v", "BTvV", DATA, ALWAYS, 1, v),
    INPUT("beta", "BTvc", GATE, ALWAYS, 1, beta),
    INPUT("lambda", "BTv", GATE, ALWAYS, 1, lambda),
    INPUT("log_gate", "BTv", GATE, ALWAYS, 0, log_gate),
    INPUT("cu_seqlens", "M", INDEX, ALWAYS, 0, cu_seqlens),
    INPUT("seen_in", "N", COUNT, ALWAYS, 0, carry_in.seen),
    INPUT("state_in", "NvDV", STATE, ALWAYS, 0, carry_in.state),
    INPUT("prev_key_in", "NkD", GATE, NEXT_LATENT, 0, carry_in.prev_key),
    INPUT("tail_key_in", "NWkD", GATE, WINDOWED, 0, carry_in.tail_key),
    INPUT("tail_value_in", "NWvV", GATE, WINDOWED, 0, carry_in.tail_value),
    INPUT("norm_in", "NvD", GATE, NORMALIZED, 0, carry_in.norm),
    OUTPUT("o", "BTvV", DATA, ALWAYS, o),
    OUTPUT("seen_out", "N", COUNT, ALWAYS, carry_out.seen),
    OUTPUT("state_out", "NvDV", STATE, ALWAYS, carry_out.state),
    OUTPUT("prev_key_out", "NkD", GATE, NEXT_LATENT, carry_out.prev_key),
    OUTPUT("tail_key_out", "NWkD", GATE, WINDOWED, carry_out.tail_key),
    OUTPUT("tail_value_out", "NWvV", GATE, WINDOWED, carry_out.tail_value),
    OUTPUT("norm_out", "NvD", GATE, NORMALIZED, carry_out.norm),
    UPSTREAM("do", "BTvV", DATA, ALWAYS, o_grad),
    UPSTREAM("dstate_out", "NvDV", GATE, ALWAYS, carry_out_grad.state),
    UPSTREAM("dprev_key_out", "NkD", GATE, NEXT_LATENT, carry_out_grad.prev_key),
    UPSTREAM("dtail_key_out", "NWkD", GATE, WINDOWED, carry_out_grad.tail_key),
    UPSTREAM("dtail_value_out", "NWvV", GATE, WINDOWED, carry_out_grad.tail_value),
    UPSTREAM("dnorm_out", "NvD", GATE, NORMALIZED, carry_out_grad.norm),
    GRADIENT("dq", "BTqD", DATA, ALWAYS, q_grad),
    GRADIENT("dk", "BTkD", DATA, ALWAYS, k_grad),
    GRADIENT("dv", "BTvV", DATA, ALWAYS, v_grad),
    GRADIENT("dbeta", "BTvc", GATE, ALWAYS, beta_grad),
    GRADIENT("dlambda", "BTv", GATE, ALWAYS, lambda_grad),
    GRADIENT("dlog_gate", "BTv", GATE, ALWAYS, log_gate_grad),
    GRADIENT("dstate_in", "NvDV", GATE, ALWAYS, carry_in_grad.state),
    GRADIENT("dprev_key_in", "NkD", GATE, NEXT_LATENT, carry_in_grad.prev_key),
    GRADIENT("dtail_key_in", "NWkD", GATE, WINDOWED, carry_in_grad.tail_key),
    GRADIENT("dtail_value_in", "NWvV", GATE, WINDOWED, carry_in_grad.tail_value),
    GRADIENT("dnorm_in", "NvD", GATE, NORMALIZED, carry_in_grad.norm),
    {"mask", "BvcTT", PROBLEM_MASK, PROBLEM_TYPE_GATE, PROBLEM_ALWAYS, 0, FORWARD(mask),
     PROBLEM_NO_FIELD},
};

_Static_assert(sizeof tensors / sizeof *tensors == PROBLEM_TENSORS,
               "PROBLEM_TENSORS is out of date");

const problem_tensor *problem_tensor_get(int32_t index)
{
    return index >= 0 && index < PROBLEM_TENSORS ? &tensors[index] : NULL;
}

const problem_tensor *problem_tensor_find(const char *name)
{
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        if (strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    return NULL;
}

int problem_tensor_applies(const problem_tensor *tensor, const fwa_problem *problem)
{
    switch (tensor->when) {
    case PROBLEM_NEXT_LATENT: return problem->alignment == FWA_ALIGNMENT_NEXT_LATENT;
    case PROBLEM_WINDOWED: return problem->window > 1;
    case PROBLEM_NORMALIZED: return problem->normalizer != 0;
    default: return 1;
    }
}

int32_t problem_tensor_dtype(const problem_tensor *tensor, const fwa_problem *problem)
{
    const int32_t gate = problem->dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : FWA_DTYPE_F32;
    switch (tensor->type) {
    case PROBLEM_TYPE_DATA: return problem->dtype;
    case PROBLEM_TYPE_GATE: return gate;
    case PROBLEM_TYPE_STATE:
        return problem->state_dtype == FWA_DTYPE_NONE ? gate : problem->state_dtype;
    case PROBLEM_TYPE_COUNT: return FWA_DTYPE_I64;
    default: return FWA_DTYPE_NONE;
    }
}

int32_t problem_tensor_shape(const problem_tensor *tensor, const fwa_problem *problem,
                             const problem_extent *extent, int64_t shape[FWA_MAX_RANK])
{
    const struct {
        char letter;
        int64_t extent;
    } axes[] = {
        {'B', extent->batch},         {'T', extent->tokens},       {'N', extent->sequences},
        {'M', extent->sequences + 1}, {'W', problem->window - 1},  {'q', problem->heads_query},
        {'k', problem->heads_key},    {'v', problem->heads_value}, {'D', problem->key_dim},
        {'V', problem->value_dim},    {'c', problem->value_dim},
    };
    int32_t rank = 0;
    for (const char *letter = tensor->axes; *letter; letter++) {
        if (*letter == 'c' && problem->dynamics == FWA_DYNAMICS_PER_HEAD)
            continue;
        for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
            if (axes[i].letter == *letter)
                shape[rank++] = axes[i].extent;
    }
    return rank;
}
