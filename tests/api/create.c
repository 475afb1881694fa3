/* SPDX-License-Identifier: Apache-2.0 */
/* What fwa_context_create, fwa_plan_create and their like refuse, and what they say. */

#include "support.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- Structs that grow ---- */

/* A public struct with bytes behind it. */
#define GROWN(type)                                                                                \
    struct {                                                                                       \
        type known;                                                                                \
        unsigned char tail[16];                                                                    \
    }

#define EXPECT_SIZES(type, init, name, call)                                                       \
    do {                                                                                           \
        GROWN(type) grown;                                                                         \
        memset(&grown, 0, sizeof grown);                                                           \
        grown.known = (type)init;                                                                  \
        grown.known.struct_size = 0;                                                               \
        expect_message(call, FWA_ERROR_STRUCT_SIZE, name "->struct_size is 0");                    \
        grown.known.struct_size = sizeof(type) - 1;                                                \
        expect_message(call, FWA_ERROR_STRUCT_SIZE, name "->struct_size is ");                     \
        grown.known.struct_size = (size_t)-1;                                                      \
        expect_message(call, FWA_ERROR_STRUCT_SIZE, name "->struct_size is 18446744073709551615"); \
        grown.known.struct_size = sizeof grown;                                                    \
        grown.tail[15] = 1;                                                                        \
        expect_message(call, FWA_ERROR_STRUCT_SIZE, name " has a non-zero byte at offset");        \
        grown.tail[15] = 0;                                                                        \
        grown.tail[0] = 1;                                                                         \
        expect_message(call, FWA_ERROR_STRUCT_SIZE, name " has a non-zero byte at offset");        \
        grown.tail[0] = 0;                                                                         \
        cr_assert_eq(call, FWA_OK, "%s", fwa_error_message());                                     \
    } while (0)

static fwa_status create_and_destroy(const fwa_context_options *options)
{
    fwa_context *context = NULL;
    fwa_status status = fwa_context_create(options, &context);
    cr_assert((status == FWA_OK) == (context != NULL));
    fwa_context_destroy(context);
    return status;
}

static fwa_status try_problem(const char *backend, const fwa_problem *problem)
{
    fwa_context *context = make_context(backend, 1);
    fwa_plan *plan = NULL;
    fwa_status status = fwa_plan_create(context, problem, &plan);
    cr_assert((status == FWA_OK) == (plan != NULL));
    fwa_plan_destroy(plan);
    fwa_context_destroy(context);
    return status;
}

static fwa_problem small_problem(void)
{
    fwa_problem p = FWA_PROBLEM_INIT;
    p.key_dim = 4;
    p.value_dim = 3;
    return p;
}

Test(create, options_struct_size)
{
    EXPECT_SIZES(fwa_context_options, FWA_CONTEXT_OPTIONS_INIT, "options",
                 create_and_destroy(&grown.known));
}

Test(create, backend_info_struct_size)
{
    EXPECT_SIZES(fwa_backend_info, FWA_BACKEND_INFO_INIT, "info", fwa_backend_get(0, &grown.known));
}

Test(create, preset_problem_struct_size)
{
    EXPECT_SIZES(fwa_problem, FWA_PROBLEM_INIT, "problem",
                 fwa_problem_preset(&grown.known, "falcon1"));
}

Test(create, plan_problem_struct_size)
{
    GROWN(fwa_problem) grown;
    fwa_context *context = make_context("cpu", 1);
    fwa_plan *plan = NULL;
    memset(&grown, 0, sizeof grown);
    grown.known = small_problem();
    grown.known.struct_size = sizeof grown;
    grown.tail[7] = 9;
    expect_message(fwa_plan_create(context, &grown.known, &plan), FWA_ERROR_STRUCT_SIZE,
                   "problem has a non-zero byte at offset");
    cr_assert_null(plan);
    grown.tail[7] = 0;
    cr_assert_eq(fwa_plan_create(context, &grown.known, &plan), FWA_OK);
    fwa_plan_destroy(plan);
    grown.known.struct_size = 4;
    plan = NULL;
    expect_message(fwa_plan_create(context, &grown.known, &plan), FWA_ERROR_STRUCT_SIZE,
                   "problem->struct_size is 4");
    cr_assert_null(plan);
    fwa_context_destroy(context);
}

/* The info's own size survives, whatever it is. */
Test(create, backend_info_keeps_its_size)
{
    GROWN(fwa_backend_info) grown;
    memset(&grown, 0, sizeof grown);
    grown.known.struct_size = sizeof grown;
    cr_assert_eq(fwa_backend_get(0, &grown.known), FWA_OK);
    cr_assert_eq(grown.known.struct_size, sizeof grown);
    cr_assert_str_eq(grown.known.name, "cpu");
    for (size_t i = 0; i < sizeof grown.tail; i++)
        cr_assert_eq(grown.tail[i], 0);
}

/* ---- NULL ---- */

Test(create, null_pointers)
{
    fwa_context *context = make_context("cpu", 1);
    fwa_problem p = small_problem();
    fwa_plan *plan = make_plan(context, &p), *other = NULL;
    char byte = 7;
    void *memory = NULL;
    size_t size;
    expect_message(fwa_context_create(NULL, NULL), FWA_ERROR_NULL, "context is NULL");
    expect_message(fwa_backend_get(0, NULL), FWA_ERROR_NULL, "info is NULL");
    expect_message(fwa_problem_preset(NULL, "falcon1"), FWA_ERROR_NULL, "problem is NULL");
    expect_message(fwa_problem_preset(&p, NULL), FWA_ERROR_NULL, "name is NULL");
    expect_message(fwa_plan_create(NULL, &p, &other), FWA_ERROR_NULL, "context is NULL");
    expect_message(fwa_plan_create(context, NULL, &other), FWA_ERROR_NULL, "problem is NULL");
    expect_message(fwa_plan_create(context, &p, NULL), FWA_ERROR_NULL, "plan is NULL");
    cr_assert_null(other);
    expect_message(fwa_plan_workspace_size(NULL, FWA_PASS_FORWARD, 1, 1, 1, &size), FWA_ERROR_NULL,
                   "plan is NULL");
    expect_message(fwa_plan_workspace_size(plan, FWA_PASS_FORWARD, 1, 1, 1, NULL), FWA_ERROR_NULL,
                   "size is NULL");
    expect_message(fwa_plan_saved_size(NULL, 1, 1, 1, &size), FWA_ERROR_NULL, "plan is NULL");
    expect_message(fwa_plan_saved_size(plan, 1, 1, 1, NULL), FWA_ERROR_NULL, "size is NULL");
    expect_message(fwa_forward(NULL, NULL), FWA_ERROR_NULL, "plan is NULL");
    expect_message(fwa_forward(plan, NULL), FWA_ERROR_NULL, "args is NULL");
    expect_message(fwa_backward(NULL, NULL), FWA_ERROR_NULL, "plan is NULL");
    expect_message(fwa_backward(plan, NULL), FWA_ERROR_NULL, "args is NULL");
    expect_message(fwa_memory_allocate(NULL, 1, &memory), FWA_ERROR_NULL, "context is NULL");
    expect_message(fwa_memory_allocate(context, 1, NULL), FWA_ERROR_NULL, "memory is NULL");
    expect_message(fwa_memory_write(NULL, &byte, &byte, 1), FWA_ERROR_NULL, "context is NULL");
    expect_message(fwa_memory_write(context, NULL, &byte, 1), FWA_ERROR_NULL, "device is NULL");
    expect_message(fwa_memory_write(context, &byte, NULL, 1), FWA_ERROR_NULL, "host is NULL");
    expect_message(fwa_memory_read(context, NULL, &byte, 1), FWA_ERROR_NULL, "host is NULL");
    expect_message(fwa_memory_read(context, &byte, NULL, 1), FWA_ERROR_NULL, "device is NULL");
    cr_assert_eq(byte, 7);
    fwa_plan_destroy(plan);
    fwa_context_destroy(context);
}

Test(create, null_is_fine)
{
    fwa_context *context = NULL;
    cr_assert_eq(fwa_context_create(NULL, &context), FWA_OK);
    cr_assert_str_eq(fwa_context_backend(context), "cpu");
    cr_assert_gt(strlen(fwa_context_device(context)), 0);
    cr_assert_eq(fwa_memory_write(context, NULL, NULL, 0), FWA_OK);
    cr_assert_eq(fwa_memory_read(context, NULL, NULL, 0), FWA_OK);
    fwa_memory_free(context, NULL);
    fwa_memory_free(NULL, NULL);
    fwa_context_destroy(context);
    fwa_context_destroy(NULL);
    fwa_plan_destroy(NULL);
    cr_assert_str_eq(fwa_plan_kernel_name(NULL, FWA_PASS_FORWARD), "");
    cr_assert_str_eq(fwa_context_backend(NULL), "");
    cr_assert_str_eq(fwa_context_device(NULL), "");
    cr_assert_eq(fwa_context_threads(NULL), 0);
}

Test(create, memory)
{
    FOR_BACKENDS(backend)
    {
        fwa_context *context = make_context(backend, 1);
        void *memory = NULL, *none = NULL;
        char text[6] = "";
        cr_assert_eq(fwa_memory_allocate(context, 6, &memory), FWA_OK);
        cr_assert_eq(fwa_memory_allocate(context, 0, &none), FWA_OK);
        cr_assert_eq(fwa_memory_write(context, memory, "state", 6), FWA_OK);
        cr_assert_eq(fwa_memory_read(context, text, memory, 6), FWA_OK);
        cr_assert_str_eq(text, "state");
        fwa_memory_free(context, memory);
        fwa_memory_free(context, none);
        memory = NULL;
        cr_assert_eq(fwa_memory_allocate(context, SIZE_MAX / 2, &memory), FWA_ERROR_MEMORY);
        cr_assert_null(memory);
        fwa_context_destroy(context);
    }
}

/* ---- Options ---- */

Test(create, options)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    options.threads = -1;
    expect_message(create_and_destroy(&options), FWA_ERROR_VALUE, "options->threads is -1", "0",
                   "4096");
    options.threads = 4097;
    expect_message(create_and_destroy(&options), FWA_ERROR_VALUE, "options->threads is 4097",
                   "4096");
    options.threads = 4096;
    cr_assert_eq(create_and_destroy(&options), FWA_OK);
    options.threads = 1;
    options.device = -1;
    expect_message(create_and_destroy(&options), FWA_ERROR_VALUE, "options->device is -1", "cpu",
                   "1");
    options.device = 1;
    expect_message(create_and_destroy(&options), FWA_ERROR_VALUE, "options->device is 1",
                   "backend cpu has 1 device");
    cr_assert_null(strstr(fwa_error_message(), "1 devices"));
    options.device = INT32_MAX;
    expect_message(create_and_destroy(&options), FWA_ERROR_VALUE, "options->device is 2147483647");
}

Test(create, threads_are_as_asked)
{
    for (int32_t threads = 1; threads <= 9; threads += 4) {
        fwa_context *context = make_context("cpu", threads);
        cr_assert_eq(fwa_context_threads(context), threads);
        fwa_context_destroy(context);
    }
}

/* ---- Problems ---- */

#define FIELD(name)                                                                                \
    {                                                                                              \
#name, offsetof(fwa_problem, name)                                                         \
    }

static void put_int(fwa_problem *p, size_t offset, int32_t value)
{
    memcpy((char *)p + offset, &value, sizeof value);
}

static void put_double(fwa_problem *p, size_t offset, double value)
{
    memcpy((char *)p + offset, &value, sizeof value);
}

Test(create, enumerations)
{
    static const struct {
        const char *name;
        size_t offset;
        int32_t last;
    } fields[] = {
        {"objective", offsetof(fwa_problem, objective), 1},
        {"dynamics", offsetof(fwa_problem, dynamics), 1},
        {"alignment", offsetof(fwa_problem, alignment), 1},
        {"read", offsetof(fwa_problem, read), 1},
        {"step", offsetof(fwa_problem, step), 1},
        {"ridge", offsetof(fwa_problem, ridge), 2},
        {"prediction", offsetof(fwa_problem, prediction), 1},
        {"qk_norm", offsetof(fwa_problem, qk_norm), 2},
        {"phi", offsetof(fwa_problem, phi), 2},
        {"form", offsetof(fwa_problem, form), 3},
        {"normalizer", offsetof(fwa_problem, normalizer), 1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const int32_t bad[] = {-1, fields[i].last + 1, INT32_MAX, INT32_MIN};
        for (size_t j = 0; j < 4; j++) {
            fwa_problem p = small_problem();
            char text[64];
            put_int(&p, fields[i].offset, bad[j]);
            snprintf(text, sizeof text, "problem->%s is %d; it runs from 0 to %d", fields[i].name,
                     (int)bad[j], (int)fields[i].last);
            expect_message(try_problem("cpu", &p), FWA_ERROR_VALUE, text);
        }
    }
}

Test(create, numbers)
{
    static const struct {
        const char *name;
        size_t offset;
        bool negative; /* allowed */
    } fields[] = {
        FIELD(eps),      FIELD(decay_floor), {"scale", offsetof(fwa_problem, scale), true},
        FIELD(norm_eps), FIELD(eps_attn),
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const double bad[] = {NAN, INFINITY, -INFINITY, -1e-300};
        for (size_t j = 0; j < (fields[i].negative ? 3 : 4); j++) {
            fwa_problem p = small_problem();
            char text[64];
            put_double(&p, fields[i].offset, bad[j]);
            snprintf(text, sizeof text, "problem->%s is %g; it must be", fields[i].name, bad[j]);
            expect_message(try_problem("cpu", &p), FWA_ERROR_VALUE, text);
        }
    }
}

/* Arithmetic in float32 has its knobs in float32: what would be infinite there, or not be there, is
 * refused. */
Test(create, numbers_beyond_float32)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {FIELD(eps), FIELD(decay_floor), FIELD(scale), FIELD(norm_eps), FIELD(eps_attn)};
    static const int32_t dtypes[] = {FWA_DTYPE_F32, FWA_DTYPE_BF16, FWA_DTYPE_F16};
    static const struct {
        double beyond, within;
    } ends[] = {{1e39, (double)FLT_MAX}, {1e-38, (double)FLT_MIN}};
    for (size_t i = 0; i < 2 * sizeof fields / sizeof fields[0]; i++) {
        const size_t offset = fields[i / 2].offset;
        const double beyond = ends[i % 2].beyond;
        /* No floor is above 1. */
        const bool possible = beyond < 1 || strcmp(fields[i / 2].name, "decay_floor") != 0;
        fwa_problem p = small_problem();
        char text[64];
        put_double(&p, offset, beyond);
        snprintf(text, sizeof text, "problem->%s is %g", fields[i / 2].name, beyond);
        FOR_BACKENDS(backend)
        for (size_t j = 0; j < 3; j++) {
            p.dtype = dtypes[j];
            expect_message(try_problem(backend, &p), FWA_ERROR_VALUE, text,
                           fwa_dtype_name(dtypes[j]), "from 1.17549e-38 to 3.40282e+38");
        }
        p.dtype = FWA_DTYPE_F64;
        if (possible)
            cr_expect_eq(try_problem("reference", &p), FWA_OK, "%s", text);
        p.dtype = FWA_DTYPE_F32;
        put_double(&p, offset, ends[i % 2].within);
        if (possible)
            cr_expect_eq(try_problem("cpu", &p), FWA_OK, "%s", text);
    }
    fwa_problem p = small_problem();
    p.scale = -1e39;
    expect_message(try_problem("cpu", &p), FWA_ERROR_VALUE, "problem->scale is -1e+39", "in size");
    p.scale = -1e-39;
    expect_message(try_problem("cpu", &p), FWA_ERROR_VALUE, "problem->scale is -1e-39", "in size");
    p.scale = -1;
    cr_expect_eq(try_problem("cpu", &p), FWA_OK);
}

Test(create, decay_floor)
{
    fwa_problem p = small_problem();
    p.decay_floor = 0;
    expect_message(try_problem("cpu", &p), FWA_ERROR_VALUE, "problem->decay_floor is 0", "(0, 1]");
    p.decay_floor = 1.0000001;
    expect_message(try_problem("cpu", &p), FWA_ERROR_VALUE, "problem->decay_floor is 1", "(0, 1]");
    p.decay_floor = 1;
    cr_assert_eq(try_problem("cpu", &p), FWA_OK);
    p.decay_floor = 1.2e-38;
    cr_assert_eq(try_problem("cpu", &p), FWA_OK);
    p.scale = -3;
    cr_assert_eq(try_problem("cpu", &p), FWA_OK);
}

Test(create, sizes)
{
    static const struct {
        const char *name;
        size_t offset;
        fwa_status status;
        int32_t bad[4];
        const char *limit;
    } fields[] = {
        {"window",
         offsetof(fwa_problem, window),
         FWA_ERROR_VALUE,
         {0, -1, 33, INT32_MAX},
         "1 to 32"},
        {"key_dim",
         offsetof(fwa_problem, key_dim),
         FWA_ERROR_SHAPE,
         {0, -1, 257, INT32_MAX},
         "1 to 256"},
        {"value_dim",
         offsetof(fwa_problem, value_dim),
         FWA_ERROR_SHAPE,
         {0, -1, 257, INT32_MIN},
         "1 to 256"},
        {"heads_key",
         offsetof(fwa_problem, heads_key),
         FWA_ERROR_SHAPE,
         {0, -1, 65537, INT32_MIN},
         "1 to 65536"},
        {"heads_value",
         offsetof(fwa_problem, heads_value),
         FWA_ERROR_SHAPE,
         {-1, -2, 65537, INT32_MAX},
         "0 to 65536"},
        {"heads_query",
         offsetof(fwa_problem, heads_query),
         FWA_ERROR_SHAPE,
         {-1, -2, 65537, INT32_MAX},
         "0 to 65536"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        for (size_t j = 0; j < 4; j++) {
            fwa_problem p = small_problem();
            char text[64];
            put_int(&p, fields[i].offset, fields[i].bad[j]);
            snprintf(text, sizeof text, "problem->%s is %d", fields[i].name, (int)fields[i].bad[j]);
            expect_message(try_problem("cpu", &p), fields[i].status, text, fields[i].limit);
        }
}

Test(create, heads_must_group)
{
    fwa_problem p = small_problem();
    p.heads_key = 4;
    p.heads_value = 6;
    expect_message(try_problem("cpu", &p), FWA_ERROR_SHAPE, "problem->heads_value is 6",
                   "heads_key, 4");
    p.heads_value = 2;
    expect_message(try_problem("cpu", &p), FWA_ERROR_SHAPE, "problem->heads_value is 2",
                   "heads_key, 4");
    p.heads_value = 8;
    p.heads_query = 2;
    expect_message(try_problem("cpu", &p), FWA_ERROR_SHAPE, "problem->heads_query is 2", "4", "8");
    p.heads_query = 4;
    cr_assert_eq(try_problem("cpu", &p), FWA_OK);
    p.heads_query = 8;
    cr_assert_eq(try_problem("cpu", &p), FWA_OK);
}

Test(create, combinations)
{
    fwa_problem p = small_problem();
    p.window = 2;
    p.dynamics = FWA_DYNAMICS_PER_CHANNEL;
    expect_message(try_problem("cpu", &p), FWA_ERROR_UNSUPPORTED, "problem->window is 2",
                   "FWA_DYNAMICS_PER_HEAD");
    p.window = 1;
    p.normalizer = 1;
    p.objective = FWA_OBJECTIVE_INNER_PRODUCT;
    expect_message(try_problem("cpu", &p), FWA_ERROR_UNSUPPORTED, "problem->normalizer is 1",
                   "FWA_DYNAMICS_PER_HEAD");
    p.dynamics = FWA_DYNAMICS_PER_HEAD;
    cr_assert_eq(try_problem("cpu", &p), FWA_OK);
    p.objective = FWA_OBJECTIVE_REGRESSION;
    expect_message(try_problem("cpu", &p), FWA_ERROR_UNSUPPORTED, "problem->normalizer is 1",
                   "FWA_OBJECTIVE_INNER_PRODUCT");
}

Test(create, extremes_are_fine)
{
    FOR_BACKENDS(backend)
    {
        fwa_problem p = small_problem();
        p.window = 32;
        p.key_dim = p.value_dim = 256;
        cr_assert_eq(try_problem(backend, &p), FWA_OK, "%s", fwa_error_message());
        p.window = p.key_dim = p.value_dim = 1;
        cr_assert_eq(try_problem(backend, &p), FWA_OK, "%s", fwa_error_message());
    }
}

/* Every pair of types is either refused here, with its name, or runs both ways (B055). */
Test(create, types)
{
    int refused = 0, ran = 0;
    FOR_BACKENDS(backend)
    for (int32_t dtype = -1; dtype <= 7; dtype++)
        for (int32_t state = -1; state <= 7; state++) {
            setup s = setup_small(backend);
            fwa_status status;
            s.problem.dtype = dtype;
            s.problem.state_dtype = state;
            status = try_problem(backend, &s.problem);
            if (status != FWA_OK) {
                cr_assert(status == FWA_ERROR_DTYPE || status == FWA_ERROR_UNSUPPORTED);
                cr_assert(strstr(fwa_error_message(), "dtype") ||
                              strstr(fwa_error_message(), "f64"),
                          "%s", fwa_error_message());
                refused++;
                continue;
            }
            for (int pass = 0; pass < 2; pass++) {
                call *c = call_new(&s, (fwa_pass)pass);
                call_ok(c);
                for (int i = 0; i < c->count; i++)
                    cr_assert(!c->tensors[i].output || tensor_finite(c->tensors[i].tensor), "%s",
                              c->tensors[i].name);
                call_free(c);
            }
            ran++;
        }
    /* f32, bf16, f16 with the state as NONE, F32, BF16, F16; f64 with NONE and F64 where it is. */
    cr_assert_eq(ran, 12 + 12 + 2, "%d pairs of types ran", ran);
    cr_assert_eq(refused, 2 * 81 - ran);
}

Test(create, unknown_types_are_named)
{
    fwa_problem p = small_problem();
    p.dtype = FWA_DTYPE_I32;
    expect_message(try_problem("cpu", &p), FWA_ERROR_DTYPE, "problem->dtype is 5 (i32)", "bf16");
    p.dtype = 99;
    expect_message(try_problem("cpu", &p), FWA_ERROR_DTYPE, "problem->dtype is 99");
    p.dtype = FWA_DTYPE_F64;
    p.state_dtype = FWA_DTYPE_F32;
    expect_message(try_problem("reference", &p), FWA_ERROR_DTYPE, "problem->state_dtype is 1 (f32)",
                   "f64");
    p.dtype = FWA_DTYPE_BF16;
    p.state_dtype = FWA_DTYPE_F64;
    expect_message(try_problem("reference", &p), FWA_ERROR_DTYPE, "problem->state_dtype is 4 (f64)",
                   "f32, bf16 or f16");
}

/* The state is F32 unless asked otherwise (B056). */
Test(create, default_types)
{
    fwa_problem p = FWA_PROBLEM_INIT;
    cr_assert_eq(p.dtype, FWA_DTYPE_F32);
    cr_assert_eq(p.state_dtype, FWA_DTYPE_NONE);
    setup s = setup_small("cpu");
    s.problem.dtype = FWA_DTYPE_BF16;
    call *c = call_new(&s, FWA_PASS_FORWARD);
    cr_assert_eq(c->forward.carry_in.state.dtype, FWA_DTYPE_F32);
    call_ok(c);
    call_free(c);
}

/* ---- Sizes ---- */

Test(create, workspace_arguments)
{
    static const struct {
        int64_t batch, tokens, sequences;
        const char *text;
    } bad[] = {
        {-1, 1, 1, "batch is -1"},
        {1, -1, 1, "tokens is -1"},
        {1, 1, -1, "sequences is -1"},
        {INT64_MAX, 1, 1, "batch is 9223372036854775807"},
        {1, INT64_MIN, 1, "tokens is -92233"},
        {1, 1, INT64_MAX, "sequences is"},
        {(int64_t)1 << 30, (int64_t)1 << 30, 1, "batch * tokens"},
    };
    fwa_problem p = small_problem();
    FOR_BACKENDS(backend)
    {
        fwa_context *context = make_context(backend, 2);
        fwa_plan *plan = make_plan(context, &p);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            size_t size = 77;
            for (int pass = 0; pass < 2; pass++)
                expect_message(fwa_plan_workspace_size(plan, (fwa_pass)pass, bad[i].batch,
                                                       bad[i].tokens, bad[i].sequences, &size),
                               FWA_ERROR_SHAPE, bad[i].text);
            expect_message(
                fwa_plan_saved_size(plan, bad[i].batch, bad[i].tokens, bad[i].sequences, &size),
                FWA_ERROR_SHAPE, bad[i].text);
            cr_assert_eq(size, 77);
        }
        size_t size = 77;
        expect_message(fwa_plan_workspace_size(plan, (fwa_pass)2, 1, 1, 1, &size), FWA_ERROR_VALUE,
                       "pass is 2");
        expect_message(fwa_plan_workspace_size(plan, (fwa_pass)-1, 1, 1, 1, &size), FWA_ERROR_VALUE,
                       "pass is -1");
        cr_assert_str_eq(fwa_plan_kernel_name(plan, (fwa_pass)2), "");
        cr_assert_gt(strlen(fwa_plan_kernel_name(plan, FWA_PASS_BACKWARD)), 0);
        fwa_plan_destroy(plan);
        fwa_context_destroy(context);
    }
}

/* Sizes never fall when an argument grows, and do not wrap around at the largest. */
Test(create, workspace_grows)
{
    static const int64_t steps[] = {
        0, 1, 2, 3, 7, 8, 16, 17, 64, 65, 1000, 1 << 20, (int64_t)1 << 40};
    enum { STEPS = sizeof steps / sizeof steps[0] };
    fwa_problem p = small_problem();
    p.window = 5;
    p.key_dim = p.value_dim = 256;
    FOR_BACKENDS(backend)
    for (int form = 0; form <= 3; form++)
        for (int pass = 0; pass <= 2; pass++) {
            fwa_context *context = make_context(backend, 3);
            fwa_plan *plan = NULL;
            size_t sizes[STEPS][STEPS][STEPS];
            p.form = form;
            if (fwa_plan_create(context, &p, &plan) != FWA_OK) {
                cr_assert_str_eq(backend, "reference");
                fwa_context_destroy(context);
                continue;
            }
            for (int b = 0; b < STEPS; b++)
                for (int t = 0; t < STEPS; t++)
                    for (int n = 0; n < STEPS; n++) {
                        size_t *size = &sizes[b][t][n];
                        fwa_status status = pass < 2 ? fwa_plan_workspace_size(plan, (fwa_pass)pass,
                                                                               steps[b], steps[t],
                                                                               steps[n], size)
                                                     : fwa_plan_saved_size(plan, steps[b], steps[t],
                                                                           steps[n], size);
                        if (status != FWA_OK) {
                            cr_assert_eq(status, FWA_ERROR_SHAPE);
                            *size = SIZE_MAX;
                        }
                        cr_assert(b == 0 || *size >= sizes[b - 1][t][n], "%s form %d pass %d",
                                  backend, form, pass);
                        cr_assert(t == 0 || *size >= sizes[b][t - 1][n], "%s form %d pass %d",
                                  backend, form, pass);
                        cr_assert(n == 0 || *size >= sizes[b][t][n - 1], "%s form %d pass %d",
                                  backend, form, pass);
                    }
            fwa_plan_destroy(plan);
            fwa_context_destroy(context);
        }
}

/* ---- Messages ---- */

/* In a new thread, which has no failure yet. */
static void *fail_once(void *argument)
{
    fwa_context *context = NULL;
    char *words = argument;
    strcat(words, fwa_error_message());
    if (fwa_context_create(NULL, NULL) == FWA_OK || fwa_context_create(NULL, &context) != FWA_OK)
        return NULL;
    fwa_context_destroy(context);
    strcat(words, fwa_error_message());
    return NULL;
}

Test(create, message_stays_until_the_next_failure)
{
    pthread_t thread;
    char words[1024] = "";
    cr_assert_eq(pthread_create(&thread, NULL, fail_once, words), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(words, "context is NULL");
}

Test(create, status_names)
{
    static const char *const names[] = {"FWA_OK",
                                        "FWA_ERROR_NULL",
                                        "FWA_ERROR_STRUCT_SIZE",
                                        "FWA_ERROR_VALUE",
                                        "FWA_ERROR_SHAPE",
                                        "FWA_ERROR_STRIDE",
                                        "FWA_ERROR_DTYPE",
                                        "FWA_ERROR_ALIGNMENT",
                                        "FWA_ERROR_OVERLAP",
                                        "FWA_ERROR_WORKSPACE",
                                        "FWA_ERROR_SEQUENCE",
                                        "FWA_ERROR_UNSUPPORTED",
                                        "FWA_ERROR_MEMORY",
                                        "FWA_ERROR_NO_BACKEND",
                                        "FWA_ERROR_ABI",
                                        "FWA_ERROR_DEVICE",
                                        "FWA_ERROR_INTERNAL"};
    for (int i = 0; i < 17; i++)
        cr_assert_str_eq(fwa_status_name((fwa_status)i), names[i]);
    cr_assert_str_eq(fwa_status_name((fwa_status)17), "FWA_STATUS_UNKNOWN");
    cr_assert_str_eq(fwa_status_name((fwa_status)-1), "FWA_STATUS_UNKNOWN");
}
