/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <float.h>
#include <math.h>

#define DIM_LIMIT    256
#define WINDOW_LIMIT 32
#define HEADS_LIMIT  65536

/* The enumerations of a problem: values 0 .. last are valid. */
static const struct {
    const char *name;
    size_t offset;
    int32_t last;
} choices[] = {
    {"objective", offsetof(fwa_problem, objective), FWA_OBJECTIVE_INNER_PRODUCT},
    {"dynamics", offsetof(fwa_problem, dynamics), FWA_DYNAMICS_PER_CHANNEL},
    {"alignment", offsetof(fwa_problem, alignment), FWA_ALIGNMENT_SAME_STEP},
    {"read", offsetof(fwa_problem, read), FWA_READ_BEFORE_WRITE},
    {"step", offsetof(fwa_problem, step), FWA_STEP_DIRECT},
    {"ridge", offsetof(fwa_problem, ridge), FWA_RIDGE_SCALE_COUPLED_LIVE},
    {"prediction", offsetof(fwa_problem, prediction), FWA_PREDICTION_DECAYED},
    {"qk_norm", offsetof(fwa_problem, qk_norm), FWA_NORM_RMS},
    {"phi", offsetof(fwa_problem, phi), FWA_FEATURE_MAP_ELU1},
    {"normalizer", offsetof(fwa_problem, normalizer), 1},
    {"form", offsetof(fwa_problem, form), FWA_FORM_CHUNKED},
};

/* The numeric knobs and what they may be. All must be finite. */
static const struct {
    const char *name;
    size_t offset;
    bool signed_;
} numbers[] = {
    {"eps", offsetof(fwa_problem, eps), false},
    {"decay_floor", offsetof(fwa_problem, decay_floor), false},
    {"scale", offsetof(fwa_problem, scale), true},
    {"norm_eps", offsetof(fwa_problem, norm_eps), false},
    {"eps_attn", offsetof(fwa_problem, eps_attn), false},
};

static const struct {
    const char *name;
    size_t offset;
    int32_t least, most;
} sizes[] = {
    {"heads_key", offsetof(fwa_problem, heads_key), 1, HEADS_LIMIT},
    {"heads_value", offsetof(fwa_problem, heads_value), 0, HEADS_LIMIT},
    {"heads_query", offsetof(fwa_problem, heads_query), 0, HEADS_LIMIT},
    {"key_dim", offsetof(fwa_problem, key_dim), 1, DIM_LIMIT},
    {"value_dim", offsetof(fwa_problem, value_dim), 1, DIM_LIMIT},
};

static int32_t int_at(const fwa_problem *p, size_t offset)
{
    int32_t value;
    memcpy(&value, (const char *)p + offset, sizeof value);
    return value;
}

static double double_at(const fwa_problem *p, size_t offset)
{
    double value;
    memcpy(&value, (const char *)p + offset, sizeof value);
    return value;
}

static fwa_status check_knobs(const fwa_problem *p)
{
    size_t i;
    for (i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        int32_t value = int_at(p, choices[i].offset);
        if (value < 0 || value > choices[i].last)
            return fwa_fail(FWA_ERROR_VALUE, "problem->%s is %d; it runs from 0 to %d",
                            choices[i].name, (int)value, (int)choices[i].last);
    }
    if (p->window < 1 || p->window > WINDOW_LIMIT)
        return fwa_fail(FWA_ERROR_VALUE, "problem->window is %d; it runs from 1 to %d",
                        (int)p->window, WINDOW_LIMIT);
    for (i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double value = double_at(p, numbers[i].offset);
        if (!isfinite(value) || (!numbers[i].signed_ && value < 0))
            return fwa_fail(FWA_ERROR_VALUE, "problem->%s is %g; it must be finite%s",
                            numbers[i].name, value, numbers[i].signed_ ? "" : " and at least 0");
        if (p->dtype != FWA_DTYPE_F64 && value != 0 &&
            (fabs(value) > FLT_MAX || fabs(value) < FLT_MIN))
            return fwa_fail(
                FWA_ERROR_VALUE,
                "problem->%s is %g; with dtype %s it must be a float32: %sfrom %g to %g",
                numbers[i].name, value, fwa_dtype_name(p->dtype),
                numbers[i].signed_ ? "0, or in size " : "0, or ", (double)FLT_MIN, (double)FLT_MAX);
    }
    if (p->decay_floor <= 0 || p->decay_floor > 1)
        return fwa_fail(FWA_ERROR_VALUE, "problem->decay_floor is %g; it must be in (0, 1]",
                        p->decay_floor);
    return FWA_OK;
}

static fwa_status check_sizes(fwa_problem *p)
{
    size_t i;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int32_t value = int_at(p, sizes[i].offset);
        if (value < sizes[i].least || value > sizes[i].most)
            return fwa_fail(FWA_ERROR_SHAPE, "problem->%s is %d; it runs from %d to %d",
                            sizes[i].name, (int)value, (int)sizes[i].least, (int)sizes[i].most);
    }
    if (!p->heads_value)
        p->heads_value = p->heads_key;
    if (!p->heads_query)
        p->heads_query = p->heads_key;
    if (p->heads_value % p->heads_key)
        return fwa_fail(FWA_ERROR_SHAPE, "problem->heads_value is %d, no multiple of heads_key, %d",
                        (int)p->heads_value, (int)p->heads_key);
    if (p->heads_query != p->heads_key && p->heads_query != p->heads_value)
        return fwa_fail(FWA_ERROR_SHAPE,
                        "problem->heads_query is %d; it must be heads_key, %d, or heads_value, %d",
                        (int)p->heads_query, (int)p->heads_key, (int)p->heads_value);
    return FWA_OK;
}

int32_t fwa_wide_dtype(const fwa_problem *p)
{
    return p->dtype == FWA_DTYPE_F64 ? FWA_DTYPE_F64 : FWA_DTYPE_F32;
}

static fwa_status check_types(fwa_problem *p)
{
    int32_t wide = fwa_wide_dtype(p);
    if (p->dtype < FWA_DTYPE_F32 || p->dtype > FWA_DTYPE_F64)
        return fwa_fail(FWA_ERROR_DTYPE,
                        "problem->dtype is %d (%s); it must be f32, bf16, f16 or f64",
                        (int)p->dtype, fwa_dtype_name(p->dtype));
    if (p->state_dtype == FWA_DTYPE_NONE)
        p->state_dtype = wide;
    if (p->state_dtype != wide && (wide == FWA_DTYPE_F64 || (p->state_dtype != FWA_DTYPE_BF16 &&
                                                             p->state_dtype != FWA_DTYPE_F16)))
        return fwa_fail(
            FWA_ERROR_DTYPE, "problem->state_dtype is %d (%s); with dtype %s it must be %s",
            (int)p->state_dtype, fwa_dtype_name(p->state_dtype), fwa_dtype_name(p->dtype),
            wide == FWA_DTYPE_F64 ? "f64" : "f32, bf16 or f16");
    return FWA_OK;
}

/* Combinations that have values in range and no meaning, or none yet. */
static fwa_status check_combinations(const fwa_problem *p)
{
    if (p->window > 1 && p->dynamics == FWA_DYNAMICS_PER_CHANNEL)
        return fwa_fail(FWA_ERROR_UNSUPPORTED,
                        "problem->window is %d with per-channel dynamics; a window over 1 needs "
                        "FWA_DYNAMICS_PER_HEAD",
                        (int)p->window);
    if (p->normalizer &&
        (p->objective != FWA_OBJECTIVE_INNER_PRODUCT || p->dynamics != FWA_DYNAMICS_PER_HEAD))
        return fwa_fail(FWA_ERROR_UNSUPPORTED,
                        "problem->normalizer is 1; it needs FWA_OBJECTIVE_INNER_PRODUCT and "
                        "FWA_DYNAMICS_PER_HEAD");
    return FWA_OK;
}

fwa_status fwa_problem_resolve(const fwa_problem *given, fwa_problem *resolved)
{
    fwa_status status = fwa_check_struct("problem", given, sizeof *given);
    if (status != FWA_OK)
        return status;
    *resolved = *given;
    resolved->struct_size = sizeof *resolved;
    if ((status = check_knobs(resolved)) != FWA_OK || (status = check_sizes(resolved)) != FWA_OK ||
        (status = check_types(resolved)) != FWA_OK)
        return status;
    return check_combinations(resolved);
}
