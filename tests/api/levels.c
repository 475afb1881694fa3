/* SPDX-License-Identifier: Apache-2.0 */
/* FWA_CPU_ISA, which holds the CPU backend to one level of instructions. */

#include "support.h"
#include "../../src/common/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const levels[] = {"generic", "avx2", "avx512", "avx512bf16", "amx", "neon"};
#define LEVELS (sizeof levels / sizeof *levels)
#define NOBODY "none" /* is called so */

/* Tries a level, NULL for no variable. `device` gets the device's name. */
static fwa_status try_level(const char *backend, const char *level, char device[256])
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context = NULL;
    fwa_status status;
    options.backend = backend;
    if (level)
        setenv("FWA_CPU_ISA", level, 1);
    else
        unsetenv("FWA_CPU_ISA");
    status = fwa_context_create(&options, &context);
    unsetenv("FWA_CPU_ISA");
    cr_assert((status == FWA_OK) == (context != NULL));
    snprintf(device, 256, "%s", context ? fwa_context_device(context) : "");
    fwa_context_destroy(context);
    return status;
}

/* The levels that this machine and build have, as an error lists them: "generic, avx2". */
static const char *available(void)
{
    static char list[128];
    const char *const before = "cpu: FWA_CPU_ISA is \"" NOBODY "\"; this machine and build have ";
    char device[256];
    expect_message(try_level("cpu", NOBODY, device), FWA_ERROR_UNSUPPORTED, before);
    cr_assert_eq(strncmp(fwa_error_message(), before, strlen(before)), 0, "%s",
                 fwa_error_message());
    snprintf(list, sizeof list, "%s", fwa_error_message() + strlen(before));
    return list;
}

/* The list's n-th; false where it is shorter. */
static bool nth(const char *list, int n, char level[32])
{
    for (; n > 0 && list; n--)
        list = strstr(list, ", ") ? strstr(list, ", ") + 2 : NULL;
    if (list)
        snprintf(level, 32, "%.*s", (int)strcspn(list, ","), list);
    return list != NULL;
}

static bool is_listed(const char *list, const char *level)
{
    char listed[32];
    for (int n = 0; nth(list, n, listed); n++)
        if (strcmp(listed, level) == 0)
            return true;
    return false;
}

static void expect_level(const char *device, const char *level)
{
    char end[40];
    snprintf(end, sizeof end, ", %s", level);
    cr_assert(ends_with(device, end), "the device is \"%s\", not of level %s", device, level);
}

Test(levels, only_known_ones_are_listed)
{
    const char *list = available();
    char level[32];
    int n;
    for (n = 0; nth(list, n, level); n++) {
        bool known = false;
        for (size_t i = 0; i < LEVELS; i++)
            known = known || strcmp(level, levels[i]) == 0;
        cr_assert(known, "\"%s\" of \"%s\"", level, list);
    }
    cr_assert_geq(n, 1);
    nth(list, 0, level);
    cr_assert_str_eq(level, "generic");
}

/* What was compiled is the backend's description; what is listed is among it. */
Test(levels, compiled_ones_are_told)
{
    const char *list = available(), *compiled = NULL;
    fwa_backend_info info = FWA_BACKEND_INFO_INIT;
    char level[32], listed[32];
    for (int32_t i = 0; i < fwa_backend_count() && !compiled; i++) {
        cr_assert_eq(fwa_backend_get(i, &info), FWA_OK);
        if (strcmp(info.name, "cpu") == 0)
            compiled = strstr(info.description, "compiled for ");
    }
    cr_assert_not_null(compiled);
    compiled += strlen("compiled for ");
    for (int n = 0; nth(compiled, n, level); n++) {
        bool known = false;
        for (size_t i = 0; i < LEVELS; i++)
            known = known || strcmp(level, levels[i]) == 0;
        cr_expect(known, "\"%s\" of \"%s\"", level, compiled);
    }
    for (int n = 0; nth(list, n, listed); n++)
        cr_expect(is_listed(compiled, listed), "\"%s\" is not among \"%s\"", listed, compiled);
}

Test(levels, listed_ones_are_used)
{
    const char *list = available();
    char level[32], device[256];
    for (int n = 0; nth(list, n, level); n++) {
        cr_assert_eq(try_level("cpu", level, device), FWA_OK, "%s", fwa_error_message());
        expect_level(device, level);
    }
}

/* No machine has both avx2 and neon. */
Test(levels, others_are_refused)
{
    const char *list = available();
    char device[256], named[64];
    int refused = 0;
    for (size_t i = 0; i < LEVELS; i++) {
        if (is_listed(list, levels[i]))
            continue;
        snprintf(named, sizeof named, "FWA_CPU_ISA is \"%s\"", levels[i]);
        expect_message(try_level("cpu", levels[i], device), FWA_ERROR_UNSUPPORTED, named, list);
        refused++;
    }
    cr_assert_geq(refused, 1);
}

Test(levels, names_are_exact)
{
    static const char *const wrong[] = {"GENERIC", "generic ", "gener", "generic,avx2", " "};
    const char *list = available();
    char device[256];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_message(try_level("cpu", wrong[i], device), FWA_ERROR_UNSUPPORTED, wrong[i], list);
}

Test(levels, the_best_is_the_default)
{
    const char *list = available(), *comma = strrchr(list, ',');
    char device[256], same[256];
    cr_assert_eq(try_level("cpu", NULL, device), FWA_OK, "%s", fwa_error_message());
    expect_level(device, comma ? comma + 2 : list);
    cr_assert_eq(try_level("cpu", "", same), FWA_OK, "%s", fwa_error_message());
    cr_assert_str_eq(same, device);
}

Test(levels, a_long_name_is_cut)
{
    const char *list = available();
    char name[4000], device[256];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_message(try_level("cpu", name, device), FWA_ERROR_UNSUPPORTED,
                   "FWA_CPU_ISA is \"xxxxxxxx", list);
    cr_assert_eq(try_level("cpu", name, device), FWA_ERROR_UNSUPPORTED);
    cr_assert_leq(strlen(fwa_error_message()), 255);
}

Test(levels, the_reference_has_none)
{
    char device[256];
    cr_assert_eq(try_level("reference", NOBODY, device), FWA_OK, "%s", fwa_error_message());
    cr_assert_eq(try_level(NULL, NOBODY, device), FWA_ERROR_UNSUPPORTED); /* the default is cpu */
}

Test(levels, kernels_have_its_name)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    const char *list = available();
    char level[32], name[64];
    problem.key_dim = 4;
    problem.value_dim = 3;
    for (int n = 0; nth(list, n, level); n++) {
        setenv("FWA_CPU_ISA", level, 1);
        fwa_context *context = make_context("cpu", 1);
        fwa_plan *plan = make_plan(context, &problem);
        unsetenv("FWA_CPU_ISA");
        snprintf(name, sizeof name, "cpu/%s/", level);
        for (int pass = 0; pass < 2; pass++)
            cr_assert_eq(strncmp(fwa_plan_kernel_name(plan, pass), name, strlen(name)), 0, "%s",
                         fwa_plan_kernel_name(plan, pass));
        fwa_plan_destroy(plan);
        fwa_context_destroy(context);
    }
}

/* Of each form, with and without the normaliser: what the name says of chunks, and its end. */
Test(levels, kernels_say_what_runs)
{
    static const struct {
        int32_t form, normalizer;
        const char *forward, *backward, *end;
    } rows[] = {
        {FWA_FORM_RECURRENT, 0, "/recurrent/inner", "/recurrent/inner", "/backward"},
        {FWA_FORM_MASKED, 0, "/masked/inner", "/masked/inner", "/backward"},
        {FWA_FORM_CHUNKED, 0, "/chunked/64/inner", "/chunked/16/inner", "/adjoint"},
        {FWA_FORM_CHUNKED, 1, "/chunked/64/inner", "/chunked/16/inner", "/backward"},
    };
    fwa_context *context = make_context("cpu", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fwa_problem problem = FWA_PROBLEM_INIT;
        problem.objective = FWA_OBJECTIVE_INNER_PRODUCT;
        problem.key_dim = problem.value_dim = 4;
        problem.form = rows[i].form;
        problem.normalizer = rows[i].normalizer;
        fwa_plan *plan = make_plan(context, &problem);
        const char *forward = fwa_plan_kernel_name(plan, FWA_PASS_FORWARD);
        const char *backward = fwa_plan_kernel_name(plan, FWA_PASS_BACKWARD);
        cr_expect(strstr(forward, rows[i].forward) && ends_with(forward, "/forward"), "%s",
                  forward);
        cr_expect(strstr(backward, rows[i].backward) && ends_with(backward, rows[i].end), "%s",
                  backward);
        fwa_plan_destroy(plan);
    }
    fwa_context_destroy(context);
}

/* Two heads' states, with room for all numbers of 16 bits. */
#define HEADS  2
#define ROWS   137
#define WIDEST 256

static float to_float(int32_t dtype, uint16_t bits)
{
    return dtype == FWA_DTYPE_BF16 ? fwa_bf16_to_float(bits) : fwa_f16_to_float(bits);
}

static uint16_t from_float(int32_t dtype, float value)
{
    return dtype == FWA_DTYPE_BF16 ? fwa_bf16_from_float(value) : fwa_f16_from_float(value);
}

/* One token in place, with keys of ones: `v` [heads, columns] is added to each row of the state. */
static void add_to_rows(fwa_context *context, uint16_t *state, int32_t dtype, float *v,
                        int32_t columns)
{
    static float ones[ROWS], o[HEADS * WIDEST];
    fwa_problem problem = FWA_PROBLEM_INIT;
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    fwa_plan *plan;
    for (int i = 0; i < ROWS; i++)
        ones[i] = 1;
    cr_assert_eq(fwa_problem_preset(&problem, "linear_attention"), FWA_OK);
    problem.qk_norm = FWA_NORM_NONE;
    problem.phi = FWA_FEATURE_MAP_IDENTITY;
    problem.normalizer = 0;
    problem.state_dtype = dtype;
    problem.heads_value = HEADS;
    problem.key_dim = ROWS;
    problem.value_dim = columns;
    plan = make_plan(context, &problem);
    args.q = args.k = fwa_tensor_contiguous(ones, FWA_DTYPE_F32, 4, 1, 1, 1, ROWS);
    args.v = fwa_tensor_contiguous(v, FWA_DTYPE_F32, 4, 1, 1, HEADS, columns);
    args.o = fwa_tensor_contiguous(o, FWA_DTYPE_F32, 4, 1, 1, HEADS, columns);
    args.carry_in.state = args.carry_out.state = fwa_tensor_contiguous(state, dtype, 4, 1, HEADS,
                                                                       ROWS, columns);
    cr_assert_eq(fwa_plan_workspace_size(plan, FWA_PASS_FORWARD, 1, 1, 1, &args.workspace_size),
                 FWA_OK);
    args.workspace = malloc(args.workspace_size);
    cr_assert_eq(fwa_forward(plan, &args), FWA_OK, "%s", fwa_error_message());
    free(args.workspace);
    fwa_plan_destroy(plan);
}

/* A number `got` of a 16-bit state is `before` + v, rounded once. Sums below 2^-126 may be flushed. */
static void expect_sum(const char *level, int32_t dtype, uint16_t before, float v, uint16_t got)
{
    const float from = to_float(dtype, before), sum = from + v, to = to_float(dtype, got);
    if (isnan(sum))
        cr_assert(isnan(to), "%s: %04x became %04x", level, before, got);
    else if (fabsf(sum) < 0x1p-126F)
        cr_assert(to == 0 || to == sum, "%s: %g + %g is %g", level, (double)from, (double)v,
                  (double)to);
    else
        cr_assert_eq(got, from_float(dtype, sum), "%s: %g + %g is %g, not %g", level, (double)from,
                     (double)v, (double)to, (double)to_float(dtype, from_float(dtype, sum)));
}

/* Every number of a 16-bit state goes through a step of decoding, and is rounded once, to nearest
 * even; so it is in the columns that the kernels' steps of several vectors leave to single ones. */
static void every_number(const char *level, int32_t columns)
{
    static uint16_t state[HEADS * ROWS * WIDEST];
    const int numbers = HEADS * ROWS * columns;
    for (int type = 0; type < 8; type++) {
        const int32_t dtype = type % 2 ? FWA_DTYPE_BF16 : FWA_DTYPE_F16;
        fwa_context *context;
        float v[HEADS * WIDEST];
        for (int c = 0; c < HEADS * columns; c++)
            v[c] = type < 2 ? 0 : ldexpf((float)(c * 37 % 513 - 256), c * 11 % 30 - 20 - type);
        for (int i = 0; i < numbers; i++)
            state[i] = (uint16_t)i;
        setenv("FWA_CPU_ISA", level, 1);
        context = make_context("cpu", 1);
        unsetenv("FWA_CPU_ISA");
        add_to_rows(context, state, dtype, v, columns);
        fwa_context_destroy(context);
        for (int i = 0; i < numbers; i++)
            expect_sum(level, dtype, (uint16_t)i, v[i / (ROWS * columns) * columns + i % columns],
                       state[i]);
    }
}

/* Multiples of vectors of 4, 8 and 16 numbers, none of them a multiple of what these take at once
 * (16 or 32, 32, 128); and one that is a multiple of all. */
Test(levels, states_of_16_bits)
{
    static const int32_t columns[] = {252, 248, 240, WIDEST};
    const char *list = available();
    char level[32];
    cr_assert_geq(HEADS * ROWS * 240, 1 << 16);
    for (int n = 0; nth(list, n, level); n++)
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
            every_number(level, columns[i]);
}
