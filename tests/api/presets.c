/* SPDX-License-Identifier: Apache-2.0 */
/* The preset table, versions, types and the DLPack views. */

#include "support.h"

#include <fwa/dlpack.h>
#include <stdio.h>
#include <string.h>

/* ---- Presets ---- */

/* The fields that a preset sets. */
typedef struct preset {
    const char *name;
    int32_t objective, dynamics, window, alignment, step, prediction, qk_norm;
} preset;

/* SPEC: the six rules; the paper's recipes (1A.1 l2; 1A.2 l2, direct; 1A.3 and 3A.3 rms, direct);
 * and the decayed prediction with direct steps for the baselines, of which the delta rules
 * normalise. */
static const preset expected[] = {
    {"falcon1", 0, 0, 1, 0, 0, 0, 0},
    {"falcon2", 0, 1, 1, 0, 0, 0, 0},
    {"falcon3", 0, 0, 4, 0, 0, 0, 0},
    {"falcon1a", 1, 0, 1, 0, 0, 0, 0},
    {"falcon2a", 1, 1, 1, 0, 0, 0, 0},
    {"falcon3a", 1, 0, 4, 0, 0, 0, 0},
    {"falcon1a.1", 1, 0, 1, 0, 0, 0, 1},
    {"falcon1a.2", 1, 0, 1, 0, 1, 0, 1},
    {"falcon1a.3", 1, 0, 1, 0, 1, 0, 2},
    {"falcon3a.3", 1, 0, 4, 0, 1, 0, 2},
    {"deltanet", 0, 0, 1, 1, 1, 1, 1},
    {"gated_deltanet", 0, 0, 1, 1, 1, 1, 1},
    {"linear_attention", 1, 0, 1, 1, 1, 0, 0},
    {"retnet", 1, 0, 1, 1, 1, 0, 0},
    {"lightning_attention", 1, 0, 1, 1, 1, 0, 0},
    {"mamba2", 1, 0, 1, 1, 1, 0, 0},
};
#define PRESETS ((int32_t)(sizeof expected / sizeof expected[0]))

Test(presets, table)
{
    for (int32_t i = 0; i < PRESETS; i++) {
        const fwa_preset *p = fwa_preset_get(i);
        cr_assert_not_null(p);
        cr_assert_str_eq(p->name, expected[i].name);
        cr_assert_gt(strlen(p->title), 0);
        cr_assert_gt(strlen(p->inputs), 0);
        cr_assert(strchr(p->title, '\n') == NULL);
    }
    cr_assert_null(fwa_preset_get(PRESETS));
    cr_assert_null(fwa_preset_get(-1));
    cr_assert_null(fwa_preset_get(INT32_MAX));
    cr_assert_null(fwa_preset_get(INT32_MIN));
}

/* Exactly the documented fields change, and to these values. */
Test(presets, fields)
{
    for (int32_t i = 0; i < PRESETS; i++) {
        const preset *e = &expected[i];
        fwa_problem before, after, wanted;
        memset(&before, 0x55, sizeof before);
        before.struct_size = sizeof before;
        after = wanted = before;
        wanted.objective = e->objective;
        wanted.dynamics = e->dynamics;
        wanted.window = e->window;
        wanted.alignment = e->alignment;
        wanted.read = FWA_READ_AFTER_WRITE;
        wanted.step = e->step;
        wanted.ridge = FWA_RIDGE_ACTUAL;
        wanted.prediction = e->prediction;
        wanted.qk_norm = e->qk_norm;
        wanted.phi = FWA_FEATURE_MAP_IDENTITY;
        wanted.normalizer = 0;
        wanted.eps_attn = 0;
        cr_assert_eq(fwa_problem_preset(&after, e->name), FWA_OK);
        cr_assert_arr_eq(&after, &wanted, sizeof after, "%s", e->name);
    }
}

/* Each of them runs. */
Test(presets, run)
{
    FOR_BACKENDS(backend)
    for (int32_t i = 0; i < PRESETS; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = setup_small(backend);
            cr_assert_eq(fwa_problem_preset(&s.problem, expected[i].name), FWA_OK);
            call *c = call_new(&s, (fwa_pass)pass);
            call_ok(c);
            for (int j = 0; j < c->count; j++)
                cr_assert(!c->tensors[j].output || tensor_finite(c->tensors[j].tensor), "%s of %s",
                          c->tensors[j].name, expected[i].name);
            call_free(c);
        }
}

Test(presets, unknown)
{
    static const char *const names[] = {"", "falcon", "Falcon1", "falcon1 ", "falcon4", "mamba"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        fwa_problem p = FWA_PROBLEM_INIT, same = p;
        char text[64];
        snprintf(text, sizeof text, "name is \"%s\"", names[i]);
        expect_message(fwa_problem_preset(&p, names[i]), FWA_ERROR_VALUE, text, "no preset");
        cr_assert_arr_eq(&p, &same, sizeof p);
    }
    /* A very long name is cut, not spilled. */
    char name[5000];
    fwa_problem p = FWA_PROBLEM_INIT;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_message(fwa_problem_preset(&p, name), FWA_ERROR_VALUE, "name is \"xxx", "\"; no preset");
}

/* ---- Versions and types ---- */

Test(presets, version)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", FWA_VERSION_MAJOR, FWA_VERSION_MINOR,
             FWA_VERSION_PATCH);
    cr_assert_str_eq(fwa_version_string(), text);
    cr_assert_str_eq(text, PROJECT_VERSION);
    cr_assert_eq(fwa_version(),
                 FWA_VERSION_MAJOR * 1000000u + FWA_VERSION_MINOR * 1000u + FWA_VERSION_PATCH);
}

Test(presets, dtypes)
{
    static const struct {
        int32_t dtype;
        const char *name;
        size_t size;
    } types[] = {{0, "none", 0},  {1, "f32", 4},          {2, "bf16", 2},        {3, "f16", 2},
                 {4, "f64", 8},   {5, "i32", 4},          {6, "i64", 8},         {7, "none", 0},
                 {-1, "none", 0}, {INT32_MAX, "none", 0}, {INT32_MIN, "none", 0}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        cr_assert_str_eq(fwa_dtype_name(types[i].dtype), types[i].name);
        cr_assert_eq(fwa_dtype_size(types[i].dtype), types[i].size);
    }
}

Test(presets, contiguous)
{
    float memory[1];
    fwa_tensor t = fwa_tensor_contiguous(memory, FWA_DTYPE_F32, 4, 2, 3, 4, 5);
    const int64_t shape[] = {2, 3, 4, 5, 0}, stride[] = {60, 20, 5, 1, 0};
    cr_assert_arr_eq(t.shape, shape, sizeof shape);
    cr_assert_arr_eq(t.stride, stride, sizeof stride);
    cr_assert_eq(t.data, (void *)memory);
    cr_assert_eq(t.rank, 4);
    cr_assert_eq(t.dtype, FWA_DTYPE_F32);
    t = fwa_tensor_contiguous(memory, FWA_DTYPE_I64, 1, (int64_t)1 << 40);
    cr_assert_eq(t.shape[0], (int64_t)1 << 40);
    cr_assert_eq(t.stride[0], 1);
    t = fwa_tensor_contiguous(NULL, FWA_DTYPE_BF16, 5, 2, 0, 3, 4, 5);
    cr_assert_eq(t.shape[4], 5);
    cr_assert_eq(t.stride[4], 1);
    cr_assert_eq(t.stride[0], 60);
}

/* A product beyond 64 bits is no undefined behaviour, and no call takes the tensor. */
Test(presets, contiguous_overflow)
{
    const int64_t large = (int64_t)1 << 40;
    fwa_tensor t = fwa_tensor_contiguous(NULL, FWA_DTYPE_F32, 4, 2, large, large, large);
    cr_assert_eq(t.stride[3], 1);
    cr_assert_eq(t.stride[2], large);
    setup s = setup_small("cpu");
    call *c = call_new(&s, FWA_PASS_FORWARD);
    *call_get(c, "k") = t;
    call_fails(c, FWA_ERROR_SHAPE, "k.shape[1] is 1099511627776");
    call_free(c);
}

/* ---- DLPack ---- */

Test(presets, dlpack_types)
{
    static const struct {
        int32_t dtype;
        DLDataType type;
    } types[] = {{FWA_DTYPE_F32, {kDLFloat, 32, 1}}, {FWA_DTYPE_BF16, {kDLBfloat, 16, 1}},
                 {FWA_DTYPE_F16, {kDLFloat, 16, 1}}, {FWA_DTYPE_F64, {kDLFloat, 64, 1}},
                 {FWA_DTYPE_I32, {kDLInt, 32, 1}},   {FWA_DTYPE_I64, {kDLInt, 64, 1}}};
    static const DLDataType others[] = {
        {kDLFloat, 32, 2}, {kDLUInt, 32, 1}, {kDLFloat, 8, 1}, {kDLInt, 16, 1}, {kDLBfloat, 32, 1}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        DLDataType type = fwa_dtype_to_dlpack(types[i].dtype);
        cr_assert_eq(type.code, types[i].type.code);
        cr_assert_eq(type.bits, types[i].type.bits);
        cr_assert_eq(type.lanes, 1);
        cr_assert_eq(fwa_dtype_from_dlpack(type), types[i].dtype);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        cr_assert_eq(fwa_dtype_from_dlpack(others[i]), FWA_DTYPE_NONE);
    cr_assert_eq(fwa_dtype_to_dlpack(FWA_DTYPE_NONE).code, 255);
    cr_assert_eq(fwa_dtype_to_dlpack(7).code, 255);
    cr_assert_eq(fwa_dtype_to_dlpack(-1).code, 255);
}

Test(presets, dlpack_round_trip)
{
    float memory[2 * 5 * 7];
    const DLDevice device = {kDLCPU, 0};
    fwa_tensor t = fwa_tensor_contiguous(memory, FWA_DTYPE_F32, 3, 2, 3, 4), back;
    DLTensor view;
    t.stride[0] = 35;
    t.stride[1] = 7;
    cr_assert_eq(fwa_tensor_to_dlpack(&t, device, &view), FWA_OK);
    cr_assert_eq(view.data, (void *)memory);
    cr_assert_eq(view.ndim, 3);
    cr_assert_eq(view.byte_offset, 0);
    cr_assert_eq(view.shape[2], 4);
    cr_assert_eq(view.strides[0], 35);
    cr_assert_eq(fwa_tensor_from_dlpack(&view, &back), FWA_OK);
    cr_assert_arr_eq(&back, &t, sizeof t);
    /* An offset in bytes, and no strides: row-major. */
    view.byte_offset = 8;
    view.strides = NULL;
    cr_assert_eq(fwa_tensor_from_dlpack(&view, &back), FWA_OK);
    cr_assert_eq(back.data, (void *)(memory + 2));
    cr_assert_eq(back.stride[0], 12);
    cr_assert_eq(back.stride[1], 4);
    cr_assert_eq(back.stride[2], 1);
}

Test(presets, dlpack_errors)
{
    float memory[1] = {0};
    const DLDevice device = {kDLCPU, 0};
    int64_t shape[6] = {1, 1, 1, 1, 1, 1};
    fwa_tensor t = fwa_tensor_contiguous(memory, FWA_DTYPE_F32, 1, 1), same = t;
    DLTensor view = {
        .data = memory, .device = device, .ndim = 6, .dtype = {kDLFloat, 32, 1}, .shape = shape};
    cr_assert_eq(fwa_tensor_from_dlpack(NULL, &t), FWA_ERROR_NULL);
    cr_assert_eq(fwa_tensor_from_dlpack(&view, NULL), FWA_ERROR_NULL);
    cr_assert_eq(fwa_tensor_from_dlpack(&view, &t), FWA_ERROR_SHAPE);
    view.ndim = -1;
    cr_assert_eq(fwa_tensor_from_dlpack(&view, &t), FWA_ERROR_SHAPE);
    view.ndim = 5;
    view.dtype.lanes = 4;
    cr_assert_eq(fwa_tensor_from_dlpack(&view, &t), FWA_ERROR_DTYPE);
    cr_assert_arr_eq(&t, &same, sizeof t);
    cr_assert_eq(fwa_tensor_to_dlpack(NULL, device, &view), FWA_ERROR_NULL);
    cr_assert_eq(fwa_tensor_to_dlpack(&t, device, NULL), FWA_ERROR_NULL);
    t.dtype = 42;
    cr_assert_eq(fwa_tensor_to_dlpack(&t, device, &view), FWA_ERROR_DTYPE);
}
