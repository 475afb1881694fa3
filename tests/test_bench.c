/* SPDX-License-Identifier: Apache-2.0 */
/* The language of benchmark problems, what their work is, and that nothing wrong is timed. */
#include "../src/bench/call.h"
#include "../src/bench/inputs.h"
#include "../src/bench/machine.h"
#include "../src/bench/report.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- Faults ------------------------------------------------------------------------------------
 * The library's two calls, with a fault of our own put into what the CPU backend answers: the
 * linker sends the callers of fwa_NAME to __wrap_fwa_NAME (--wrap). */

fwa_status __real_fwa_forward(const fwa_plan *plan, const fwa_forward_args *args);
fwa_status __real_fwa_backward(const fwa_plan *plan, const fwa_backward_args *args);
fwa_status __wrap_fwa_forward(const fwa_plan *plan, const fwa_forward_args *args);
fwa_status __wrap_fwa_backward(const fwa_plan *plan, const fwa_backward_args *args);

typedef struct fault {
    const char *tensor; /* NULL: none */
    int64_t token;      /* of the row that is hit, or the first element of a carry's part */
    int64_t tokens;     /* only calls of so many tokens */
    int calls;          /* right ones before */
} fault;

static fault planted;

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
    if (status == FWA_OK) {
        spoil(plan, "dq", &args->q_grad, args->q.shape[1]);
        spoil(plan, "dk", &args->k_grad, args->q.shape[1]);
        spoil(plan, "dv", &args->v_grad, args->q.shape[1]);
    }
    return status;
}

/* ---- Lines ---- */

static bench_problem parse(const char *line)
{
    bench_problem problem;
    bench_message message = {""};
    cr_assert_eq(bench_parse_line(line, &problem, &message), 1, "'%s': %s", line, message.text);
    return problem;
}

Test(bench, least_line)
{
    const bench_problem p = parse("preset=falcon1 T=7 D=5");
    cr_expect_str_eq(p.preset, "falcon1");
    cr_expect_eq(p.pass, BENCH_FORWARD);
    cr_expect_eq(p.batch, 1);
    cr_expect_eq(p.tokens, 7);
    cr_expect_eq(p.problem.heads_key, 1);
    cr_expect_eq(p.problem.heads_value, 1);
    cr_expect_eq(p.problem.heads_query, 1);
    cr_expect_eq(p.problem.key_dim, 5);
    cr_expect_eq(p.problem.value_dim, 5);
    cr_expect_eq(p.problem.dtype, FWA_DTYPE_F32);
    cr_expect_eq(p.problem.state_dtype, FWA_DTYPE_NONE);
    cr_expect_eq(p.problem.form, FWA_FORM_AUTO);
    cr_expect_eq(p.gates, CONFORMANCE_BETA | CONFORMANCE_LAMBDA);
    cr_expect_str_eq(bench_data_get(p.data)->name, "random");
    cr_expect_eq(p.cold, 0);
    cr_expect_eq(p.saved, 1);
    cr_expect_str_eq(p.name, "falcon1-forward-1x7-1-5");
}

/* The preset comes last here, and must not undo what stands before it. */
Test(bench, full_line)
{
    const bench_problem p = parse(
        "\tname=a-b_c.9 pass=decode B=3 T=2 Hk=2 Hv=6 Hq=6 D=8 V=9 dtype=bf16 "
        "state_dtype=f16 form=recurrent data=strong gates=log_gate+beta cache=cold window=5 "
        "align=same_step scale=0.5 preset=falcon3 # and a word");
    cr_expect_str_eq(p.name, "a-b_c.9");
    cr_expect_eq(p.pass, BENCH_DECODE);
    cr_expect_eq(p.batch, 3);
    cr_expect_eq(p.tokens, 2);
    cr_expect_eq(p.problem.heads_key, 2);
    cr_expect_eq(p.problem.heads_value, 6);
    cr_expect_eq(p.problem.heads_query, 6);
    cr_expect_eq(p.problem.key_dim, 8);
    cr_expect_eq(p.problem.value_dim, 9);
    cr_expect_eq(p.problem.dtype, FWA_DTYPE_BF16);
    cr_expect_eq(p.problem.state_dtype, FWA_DTYPE_F16);
    cr_expect_eq(p.problem.form, FWA_FORM_RECURRENT);
    cr_expect_str_eq(bench_data_get(p.data)->name, "strong");
    cr_expect_eq(p.gates, CONFORMANCE_BETA | CONFORMANCE_LOG_GATE);
    cr_expect_eq(p.cold, 1);
    cr_expect_eq(p.problem.window, 5);
    cr_expect_eq(p.problem.alignment, FWA_ALIGNMENT_SAME_STEP);
    cr_expect_eq(p.problem.objective, FWA_OBJECTIVE_REGRESSION);
    cr_expect_eq(p.problem.scale, 0.5);
}

Test(bench, defaults_that_depend)
{
    cr_expect_eq(parse("preset=falcon1 D=5 pass=decode").tokens, 1);
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 Hk=3").problem.heads_value, 3);
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 Hk=3 Hv=6").problem.heads_query, 3);
    cr_expect_eq(parse("preset=retnet T=1 D=5").gates, CONFORMANCE_LOG_GATE);
    cr_expect_eq(parse("preset=linear_attention T=1 D=5").gates, 0);
    cr_expect_eq(parse("preset=gated_deltanet T=1 D=5").gates,
                 CONFORMANCE_BETA | CONFORMANCE_LOG_GATE);
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 gates=none").gates, 0);
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 pass=train saved=0").saved, 0);
}

Test(bench, blank_lines)
{
    static const char *const lines[] = {"", "   \t", "# preset=falcon1 T=1 D=1", "  # x"};
    for (size_t i = 0; i < COUNT(lines); i++) {
        bench_problem problem;
        bench_message message;
        cr_expect_eq(bench_parse_line(lines[i], &problem, &message), 0, "'%s'", lines[i]);
    }
}

static const struct {
    const char *line, *words;
} bad_lines[] = {
    {"T=1 D=1", "key 'preset' is missing"},
    {"preset=falcon1 D=1", "key 'T' is missing"},
    {"preset=falcon1 T=1", "key 'D' is missing"},
    {"preset=falcon9 T=1 D=1", "key 'preset' is 'falcon9'"},
    {"preset=falcon1 T=1 D=1 colour=red", "no key 'colour'"},
    {"preset=falcon1 T=1 D=1 T=2", "key 'T' is there twice"},
    {"preset=falcon1 T=1 D", "'D' is no key=value"},
    {"preset=falcon1 T=1 =4", "'=4' is no key=value"},
    {"preset=falcon1 T=0 D=1", "key 'T' is '0'; it must be an integer from 1 to 16777216"},
    {"preset=falcon1 T=-3 D=1", "key 'T' is '-3'"},
    {"preset=falcon1 T=+3 D=1", "key 'T' is '+3'"},
    {"preset=falcon1 T=1e3 D=1", "key 'T' is '1e3'"},
    {"preset=falcon1 T= D=1", "key 'T' is ''"},
    {"preset=falcon1 T=99999999999999999999 D=1", "key 'T'"},
    {"preset=falcon1 T=1 D=257", "key 'D' is '257'; it must be an integer from 1 to 256"},
    {"preset=falcon1 T=1 D=1 V=257", "key 'V' is '257'"},
    {"preset=falcon1 T=1 D=1 Hk=65537", "key 'Hk'"},
    {"preset=falcon1 T=1 D=1 B=0", "key 'B'"},
    {"preset=falcon1 T=1 D=1 Hk=2 Hv=3", "key 'Hv' is 3; it must be a multiple of Hk, 2"},
    {"preset=falcon1 T=1 D=1 Hk=2 Hv=4 Hq=3", "key 'Hq' is 3"},
    {"preset=falcon1 T=1 D=1 pass=sideways", "one of forward backward train decode"},
    {"preset=falcon1 T=1 D=1 dtype=i32", "one of f32 bf16 f16 f64"},
    {"preset=falcon1 T=1 D=1 dtype=", "key 'dtype' is ''"},
    {"preset=falcon1 T=1 D=1 state_dtype=f64", "one of f32 bf16 f16"},
    {"preset=falcon1 T=1 D=1 form=square", "one of auto recurrent masked chunked"},
    {"preset=falcon1 T=1 D=1 data=nice", "key 'data' is 'nice'; it must be one of random strong"},
    {"preset=falcon1 T=1 D=1 gates=none+beta", "key 'gates'"},
    {"preset=falcon1 T=1 D=1 gates=beta+beta", "key 'gates'"},
    {"preset=falcon1 T=1 D=1 gates=beta+", "key 'gates'"},
    {"preset=falcon1 T=1 D=1 cache=cold", "key 'cache' goes with pass=decode only"},
    {"preset=falcon1 T=1 D=1 saved=0", "key 'saved' goes with pass=backward"},
    {"preset=falcon1 T=1 D=1 name=a/b", "key 'name' is 'a/b'"},
    {"preset=falcon1 T=1 D=1 name=", "key 'name' is ''"},
    {"preset=falcon1 T=1 D=1 window=many", "key 'window' is 'many'; it must be an integer"},
    {"preset=falcon1 T=1 D=1 align=left", "one of next_latent, same_step"},
};

Test(bench, bad_lines)
{
    for (size_t i = 0; i < COUNT(bad_lines); i++) {
        bench_problem problem;
        bench_message message = {""};
        cr_expect_eq(bench_parse_line(bad_lines[i].line, &problem, &message), -1, "'%s'",
                     bad_lines[i].line);
        cr_expect_not_null(strstr(message.text, bad_lines[i].words), "'%s' gave '%s'",
                           bad_lines[i].line, message.text);
    }
}

Test(bench, long_line)
{
    char line[4000];
    bench_problem problem;
    bench_message message;
    memset(line, ' ', sizeof line);
    line[sizeof line - 1] = '\0';
    cr_expect_eq(bench_parse_line(line, &problem, &message), -1);
    cr_expect_not_null(strstr(message.text, "longer than 1023 bytes"), "%s", message.text);
}

/* ---- Texts, files, sets ---- */

Test(bench, text)
{
    bench_list list = {0};
    bench_message message = {""};
    cr_assert_eq(bench_parse_text("# a\npreset=falcon1 T=1 D=2\n\npreset=falcon2 T=3 D=4", "here",
                                  &list, &message),
                 0);
    cr_assert_eq(list.count, 2);
    cr_expect_eq(list.problems[0].problem.key_dim, 2);
    cr_expect_eq(list.problems[1].tokens, 3);
    cr_expect_eq(bench_parse_text("\n\npreset=falcon1 T=1\n", "here", &list, &message), -1);
    cr_expect_str_eq(message.text, "here:3: key 'D' is missing");
    cr_expect_eq(list.count, 2);
    bench_list_free(&list);
    cr_expect_eq(list.count, 0);
}

static void write_file(char *path, const void *bytes, size_t size)
{
    const int descriptor = mkstemp(path);
    cr_assert_geq(descriptor, 0);
    cr_assert_eq(write(descriptor, bytes, size), (ssize_t)size);
    close(descriptor);
}

static void expect_unreadable(const char *path, const char *words)
{
    bench_list list = {0};
    bench_message message = {""};
    cr_expect_eq(bench_read_file(path, &list, &message), -1);
    cr_expect_not_null(strstr(message.text, words), "%s", message.text);
    cr_expect_eq(list.count, 0);
}

Test(bench, files)
{
    static const char text[] = "preset=falcon1 T=1 D=2\n", zero[] = "preset=falcon1\0 T=1";
    char good[] = "/tmp/fwa-bench-XXXXXX", bad[] = "/tmp/fwa-bench-XXXXXX";
    bench_list list = {0};
    bench_message message = {""};
    write_file(good, text, sizeof text - 1);
    cr_expect_eq(bench_read_file(good, &list, &message), 0, "%s", message.text);
    cr_expect_eq(list.count, 1);
    bench_list_free(&list);
    unlink(good);
    expect_unreadable(good, "cannot be read: No such file");
    expect_unreadable("/tmp", "cannot be read");
    write_file(bad, zero, sizeof zero - 1);
    expect_unreadable(bad, "holds a zero byte");
    unlink(bad);
}

static fwa_context *context_of(const char *backend, int threads)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_context *context;
    options.backend = backend;
    options.threads = threads;
    cr_assert_eq(fwa_context_create(&options, &context), FWA_OK, "%s", fwa_error_message());
    return context;
}

Test(bench, sets)
{
    fwa_context *context = context_of("cpu", 1);
    cr_expect_not_null(bench_set_find("default"));
    cr_expect_null(bench_set_find("nothing"));
    for (int32_t i = 0; bench_set_get(i) != NULL; i++) {
        const bench_set *set = bench_set_get(i);
        bench_list list = {0};
        bench_message message = {""};
        cr_assert_eq(bench_parse_text(set->text, set->name, &list, &message), 0, "%s",
                     message.text);
        cr_expect_gt(list.count, 1);
        cr_expect_eq(bench_set_find(set->name), set);
        for (int64_t j = 0; j < list.count; j++) {
            fwa_plan *plan = NULL;
            cr_expect_eq(fwa_plan_create(context, &list.problems[j].problem, &plan), FWA_OK,
                         "%s, %s: %s", set->name, list.problems[j].name, fwa_error_message());
            fwa_plan_destroy(plan);
            for (int64_t k = 0; k < j; k++)
                cr_expect_str_neq(list.problems[j].name, list.problems[k].name);
        }
        bench_list_free(&list);
    }
    fwa_context_destroy(context);
}

/* ---- Work ---- */

static const struct {
    const char *line;
    double flops, bytes;
} work[] = {
    {"preset=falcon1 T=2048 Hk=16 D=128", 3221225472.0, 0},
    {"preset=falcon1 T=2048 Hk=4 Hv=16 D=128", 3221225472.0, 0},
    {"preset=falcon1 T=2048 Hk=16 D=128 pass=backward", 6442450944.0, 0},
    {"preset=falcon1 T=2048 Hk=16 D=128 pass=train", 9663676416.0, 0},
    {"preset=falcon1a T=2048 Hk=16 D=128", 2147483648.0, 0},
    {"preset=falcon1a T=2048 Hk=16 D=128 pass=backward", 4294967296.0, 0},
    {"preset=falcon3 T=10 B=3 D=7 V=5", 6300, 0},
    {"preset=falcon1 B=32 Hk=16 D=128 pass=decode", 50331648.0, 67108864.0},
    {"preset=falcon1 B=32 Hk=16 D=128 pass=decode state_dtype=bf16", 50331648.0, 33554432.0},
    {"preset=mamba2 B=2 T=3 Hk=1 Hv=2 D=4 V=5 pass=decode", 960, 640},
};

Test(bench, work)
{
    for (size_t i = 0; i < COUNT(work); i++) {
        const bench_problem p = parse(work[i].line);
        cr_expect_eq(bench_flops(&p), work[i].flops, "%s: %g", work[i].line, bench_flops(&p));
        cr_expect_eq(bench_state_bytes(&p), work[i].bytes, "%s: %g", work[i].line,
                     bench_state_bytes(&p));
    }
}

/* ---- Verifying ---- */

/* The tokens at each end that were compared go to *tokens. */
static bench_verify_result verify(const char *line, double limit, int64_t *tokens,
                                  bench_message *message)
{
    const bench_problem p = parse(line);
    fwa_context *context = context_of("cpu", 2), *reference = context_of("reference", 2);
    conformance_data data = bench_inputs(&p), results;
    bench_check check;
    message->text[0] = '\0';
    const bench_verify_result result = bench_verify(&p, &data, context, reference, limit, &check,
                                                    &results, message);
    *tokens = check.tokens;
    conformance_data_free(&results);
    conformance_data_free(&data);
    fwa_context_destroy(context);
    fwa_context_destroy(reference);
    return result;
}

static const char *const verified[] = {
    "preset=falcon1 T=250 Hk=2 D=20 V=24",
    "preset=falcon1 T=250 Hk=2 D=20 pass=backward",
    "preset=falcon3 T=250 B=2 Hk=1 Hv=2 D=20 pass=train",
    "preset=falcon2 T=250 D=20 pass=train saved=0",
    "preset=falcon3a.3 T=250 D=20 pass=train data=correlated",
    "preset=gated_deltanet T=250 D=20 pass=train data=wild",
    "preset=falcon1a T=250 D=20 pass=train normalizer=1",
    "preset=linear_attention T=250 D=20 pass=train",
    "preset=falcon1 T=250 D=20 dtype=bf16 state_dtype=bf16",
};

/* All tokens, and only those at the ends. */
Test(bench, verifies)
{
    int64_t tokens;
    bench_message message;
    for (size_t i = 0; i < COUNT(verified); i++) {
        cr_expect_eq(verify(verified[i], 1e12, &tokens, &message), BENCH_VERIFY_GOOD, "%s: %s",
                     verified[i], message.text);
        cr_expect_eq(tokens, 0);
        cr_expect_eq(verify(verified[i], 1, &tokens, &message), BENCH_VERIFY_GOOD, "%s: %s",
                     verified[i], message.text);
        cr_expect_eq(tokens, 96);
    }
}

Test(bench, verifies_decoding)
{
    static const char *const lines[] = {
        "preset=falcon1 B=3 Hk=2 D=20 pass=decode", "preset=falcon3 T=3 D=20 pass=decode",
        "preset=mamba2 B=2 Hk=1 Hv=2 D=20 pass=decode state_dtype=bf16 cache=cold"};
    int64_t tokens;
    bench_message message;
    for (size_t i = 0; i < COUNT(lines); i++)
        cr_expect_eq(verify(lines[i], 0, &tokens, &message), BENCH_VERIFY_GOOD, "%s: %s", lines[i],
                     message.text);
}

static const struct {
    const char *line;
    fault fault;
    double limit;
} faults[] = {
    {"preset=falcon1 T=250 D=20", {"o", 100, 250, 0}, 1e12},
    {"preset=falcon1 T=250 D=20", {"state_out", 0, 250, 0}, 1e12},
    {"preset=falcon1 T=250 D=20", {"o", 0, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20", {"o", 95, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20", {"o", 154, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20", {"o", 249, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20", {"state_out", 0, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20 pass=train", {"o", 3, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20 pass=backward", {"dk", 3, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20 pass=backward", {"dk", 240, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20 pass=backward", {"dq", 95, 250, 0}, 1},
    {"preset=falcon1 T=250 D=20 pass=train", {"dv", 154, 250, 0}, 1},
    {"preset=falcon1 D=20 pass=decode", {"o", 0, 1, 0}, 0},
    {"preset=falcon1 D=20 pass=decode", {"state_out", 0, 1, 0}, 0},
};

Test(bench, sees_faults)
{
    int64_t tokens;
    bench_message message;
    for (size_t i = 0; i < COUNT(faults); i++) {
        planted = faults[i].fault;
        cr_expect_eq(verify(faults[i].line, faults[i].limit, &tokens, &message), BENCH_VERIFY_WRONG,
                     "%s, %s of token %lld", faults[i].line, faults[i].fault.tensor,
                     (long long)faults[i].fault.token);
        cr_expect_eq(strncmp(message.text, planted.tensor, strlen(planted.tensor)), 0, "%s",
                     message.text);
    }
    planted = (fault){0};
}

Test(bench, refused)
{
    int64_t tokens;
    bench_message message;
    cr_expect_eq(verify("preset=falcon1 T=5 D=4 dtype=f64", 0, &tokens, &message),
                 BENCH_VERIFY_REFUSED);
    cr_expect_not_null(strstr(message.text, "FWA_ERROR_UNSUPPORTED"), "%s", message.text);
}

/* ---- Measuring ---- */

typedef struct fixture {
    bench_setup setup;
    bench_meter meter;
} fixture;

static void begin(fixture *f)
{
    bench_message message;
    memset(f, 0, sizeof *f);
    f->setup.context = context_of("cpu", 2);
    f->setup.reference = context_of("reference", 2);
    f->setup.seconds = 0.01;
    cr_assert_eq(bench_meter_begin(&f->meter, 2, &message), 0, "%s", message.text);
    f->setup.meter = &f->meter;
}

static void end(fixture *f)
{
    planted = (fault){0};
    bench_meter_end(&f->meter);
    fwa_context_destroy(f->setup.context);
    fwa_context_destroy(f->setup.reference);
}

Test(bench, peaks)
{
    fixture f;
    begin(&f);
    for (int peak = 0; peak < BENCH_PEAKS; peak++) {
        const bench_series *one = bench_meter_series(&f.meter, (bench_peak)peak, 0);
        const bench_series *all = bench_meter_series(&f.meter, (bench_peak)peak, 1);
        const double first = bench_meter_sample(&f.meter, (bench_peak)peak, 0);
        const double last = bench_meter_sample(&f.meter, (bench_peak)peak, 0);
        cr_expect(first > 0.01 && first < 1e5 && isfinite(last));
        cr_expect_eq(one->count, 2);
        cr_expect_eq(one->first, first);
        cr_expect_eq(one->last, last);
        cr_expect_eq(one->least, fmin(first, last));
        cr_expect_eq(one->greatest, fmax(first, last));
        cr_expect_eq(all->count, 0);
        cr_expect_gt(bench_meter_sample(&f.meter, (bench_peak)peak, 1), 0);
        cr_expect_eq(all->count, 1);
    }
    cr_expect_eq(bench_meter_drift(&f.meter), 0); /* one sample on all threads */
    cr_expect_gt(f.meter.floats * 3 * (int64_t)sizeof(float), (1 << 26) - 1024);
    end(&f);
}

static const char *const timed[] = {
    "preset=falcon1 T=20 D=16",
    "preset=gated_deltanet T=20 B=2 D=16 pass=backward",
    "preset=falcon3 T=20 D=16 pass=train",
    "preset=falcon1 B=2 D=16 pass=decode",
    "preset=falcon3 B=2 Hk=2 D=64 pass=decode cache=cold",
};

static void expect_times(const bench_result *r)
{
    const bench_rates rates = bench_rates_of(r);
    const int decode = r->problem.pass == BENCH_DECODE;
    cr_assert_eq(r->verdict, BENCH_TIMED, "%s: %s", r->problem.name, r->message.text);
    cr_expect(r->minimum > 0 && r->minimum <= r->median && r->median <= r->p90 && isfinite(r->p90));
    cr_expect_geq(r->samples, 4);
    cr_expect(r->processor > 0 && r->processor < 1.1, "%g", r->processor);
    cr_expect_geq(r->calls, 1);
    cr_expect_gt(r->peak_fma, 0);
    cr_expect_float_eq(rates.gflops, bench_flops(&r->problem) / r->minimum * 1e-9, 1e-9);
    cr_expect_float_eq(rates.tokens * r->minimum, (double)(r->problem.batch * r->problem.tokens),
                       1e-6);
    cr_expect_eq(rates.of_fma > 0 && rates.of_fma < 1, !decode, "%g", rates.of_fma);
    cr_expect_eq(rates.of_update > 0 && isfinite(rates.of_update), decode);
    cr_expect_eq(rates.gbytes > 0, decode);
    cr_expect_eq(strncmp(r->kernel, "cpu/", 4), 0, "%s", r->kernel);
    cr_expect_eq(strstr(r->kernel, " + cpu/") != NULL, r->problem.pass == BENCH_TRAIN);
}

Test(bench, measures)
{
    fixture f;
    begin(&f);
    for (size_t i = 0; i < COUNT(timed); i++) {
        const bench_problem p = parse(timed[i]);
        bench_result result;
        bench_measure(&f.setup, &p, &result);
        expect_times(&result);
    }
    end(&f);
}

/* Right when it is verified, wrong in the call that would be timed; and wrong from the start. */
Test(bench, times_nothing_wrong)
{
    fixture f;
    bench_result result;
    begin(&f);
    const bench_problem p = parse("preset=falcon1 T=20 D=16");
    planted = (fault){"o", 7, 20, 1};
    bench_measure(&f.setup, &p, &result);
    cr_expect_eq(result.verdict, BENCH_WRONG);
    cr_expect_str_eq(result.message.text, "o is not bit for bit what was verified");
    cr_expect_eq(result.samples, 0);
    planted = (fault){"o", 7, 20, 0};
    bench_measure(&f.setup, &p, &result);
    cr_expect_eq(result.verdict, BENCH_WRONG);
    cr_expect_eq(bench_rates_of(&result).gflops, 0);
    end(&f);
}

Test(bench, no_memory)
{
    fixture f;
    bench_result result;
    begin(&f);
    const bench_problem p = parse("preset=falcon1 B=1000000 T=16000000 Hk=60000 D=256");
    bench_measure(&f.setup, &p, &result);
    cr_expect_eq(result.verdict, BENCH_REFUSED);
    cr_expect_not_null(strstr(result.message.text, "GiB of memory"), "%s", result.message.text);
    end(&f);
}

/* ---- JSON ---- */

static void expect_members(const json_t *object, const char *const *keys)
{
    for (int i = 0; keys[i] != NULL; i++)
        cr_expect_not_null(json_object_get(object, keys[i]), "'%s' is missing", keys[i]);
}

static void expect_report(const json_t *root)
{
    static const char *const top[] = {"version", "backend",  "device", "threads",
                                      "machine", "problems", "peaks",  NULL};
    static const char *const peaks[] = {"isa",           "drift",        "fma_gflops",
                                        "update_gbytes", "triad_gbytes", NULL};
    static const char *const good[] = {"name",
                                       "preset",
                                       "pass",
                                       "B",
                                       "T",
                                       "Hk",
                                       "Hv",
                                       "Hq",
                                       "D",
                                       "V",
                                       "window",
                                       "dtype",
                                       "form",
                                       "data",
                                       "cache",
                                       "verdict",
                                       "kernel",
                                       "verified",
                                       "seconds",
                                       "spread",
                                       "processor",
                                       "flops",
                                       "gflops",
                                       "tokens_per_second",
                                       "peak_fma_gflops",
                                       "of_fma",
                                       NULL};
    expect_members(root, top);
    expect_members(json_object_get(root, "peaks"), peaks);
    const json_t *problems = json_object_get(root, "problems");
    cr_assert_eq(json_array_size(problems), 2);
    const json_t *first = json_array_get(problems, 0), *second = json_array_get(problems, 1);
    expect_members(first, good);
    cr_expect_str_eq(json_string_value(json_object_get(first, "verdict")), "timed");
    cr_expect_eq(json_integer_value(json_object_get(first, "T")), 20);
    cr_expect_gt(json_real_value(json_object_get(first, "of_fma")), 0);
    cr_expect_str_eq(json_string_value(json_object_get(second, "verdict")), "failed");
    cr_expect_not_null(json_object_get(second, "message"));
    cr_expect_null(json_object_get(second, "seconds"));
}

Test(bench, json)
{
    fixture f;
    bench_result results[2];
    json_error_t error;
    begin(&f);
    const bench_problem p = parse("preset=falcon1 T=20 D=16");
    bench_measure(&f.setup, &p, &results[0]);
    planted = (fault){"o", 7, 20, 0};
    bench_measure(&f.setup, &p, &results[1]);
    json_t *report = bench_report(&f.setup, results, 2);
    cr_assert_not_null(report);
    char *text = json_dumps(report, 0);
    json_t *again = json_loads(text, 0, &error);
    cr_assert_not_null(again, "%s", error.text);
    expect_report(again);
    json_decref(again);
    json_decref(report);
    free(text);
    end(&f);
}

/* ---- The command ---- */

/* Runs `fwa bench ARGUMENTS` on a file of these lines; its output goes to *output, for the caller
 * to free. Returns the exit status. */
static int run_tool(const char *lines, const char *arguments, char **output)
{
    char path[] = "/tmp/fwa-bench-XXXXXX", command[512];
    const char *tool = getenv("FWA_TOOL");
    size_t size = 0;
    int byte;
    cr_assert_not_null(tool, "FWA_TOOL must name the tool");
    write_file(path, lines, strlen(lines));
    snprintf(command, sizeof command, "'%s' bench %s '%s' 2>&1", tool, arguments, path);
    FILE *pipe = popen(command, "r"), *memory = open_memstream(output, &size);
    cr_assert(pipe != NULL && memory != NULL);
    while ((byte = fgetc(pipe)) != EOF)
        fputc(byte, memory);
    fclose(memory);
    const int status = pclose(pipe);
    unlink(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(bench, command_json)
{
    char *output;
    json_error_t error;
    cr_expect_eq(run_tool("preset=falcon1 T=20 D=16\npreset=falcon1 D=16 pass=decode\n",
                          "--json - --seconds 0.01 --pass decode --dtype bf16 --threads 1",
                          &output),
                 0, "%s", output);
    json_t *root = json_loads(output, 0, &error);
    cr_assert_not_null(root, "%s", output);
    const json_t *problems = json_object_get(root, "problems");
    const json_t *only = json_array_get(problems, 0);
    cr_expect_eq(json_integer_value(json_object_get(root, "threads")), 1);
    cr_expect_eq(json_array_size(problems), 1);
    cr_expect_str_eq(json_string_value(json_object_get(only, "pass")), "decode");
    cr_expect_str_eq(json_string_value(json_object_get(only, "dtype")), "bf16");
    cr_expect_gt(json_real_value(json_object_get(only, "gbytes")), 0);
    json_decref(root);
    free(output);
}

static const struct {
    const char *lines, *arguments;
    int status;
    const char *words;
} runs[] = {
    {"preset=falcon1 T=20 D=16 name=one", "--seconds 0.01", 0, "one "},
    {"preset=falcon1 T=20 D=16 name=one", "--seconds 0.01 --threads 1 --backend reference", 0,
     "reference/recurrent"},
    {"\npreset=falcon1 T=20 D=999", "", 3, ":2: key 'D' is '999'"},
    {"preset=falcon1 T=20 D=16", "--pass decode", 2, "no problem is left"},
    {"preset=falcon1 T=20 D=16", "--pass upward", 2, "--pass is 'upward'"},
    {"preset=falcon1 T=20 D=16", "--seconds 0", 2, "--seconds is 0"},
    {"preset=falcon1 T=20 D=16", "--seconds nan", 2, "--seconds is nan"},
    {"preset=falcon1 T=20 D=16", "nothing", 3, "'nothing' is no set"},
    {"preset=falcon1 T=20 D=16", "--json /nonexistent/x", 5, "cannot write"},
    {"preset=falcon1 T=20 D=16 dtype=f64", "--seconds 0.01", 4, "refused: "},
    {"", "--list", 0, "preset=falcon1"},
};

Test(bench, command)
{
    for (size_t i = 0; i < COUNT(runs); i++) {
        char *output;
        cr_expect_eq(run_tool(runs[i].lines, runs[i].arguments, &output), runs[i].status, "%zu: %s",
                     i, output);
        cr_expect_not_null(strstr(output, runs[i].words), "%zu: %s", i, output);
        free(output);
    }
}
