/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's peaks, timing, that nothing wrong is timed, reports, the command. */
#include "../src/bench/machine.h"
#include "../src/bench/report.h"
#include "bench_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
    cr_assert_eq(bench_meter_begin(&f->meter, f->setup.reference, 2, &message), 0, "%s",
                 message.text);
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
    for (int i = 0; i < BENCH_PEAKS; i++) {
        const bench_peak peak = (bench_peak)i;
        const double first = bench_meter_sample(&f.meter, peak, 1);
        const double last = bench_meter_sample(&f.meter, peak, 1);
        const bench_series one = bench_meter_series(&f.meter, peak, 1);
        cr_expect_eq(bench_meter_series(&f.meter, peak, 2).count, 0);
        if (f.meter.loops[peak] == NULL) {
            cr_expect_eq(peak, BENCH_PEAK_FMA_BF16); /* all others are there on any machine */
            cr_expect(first == 0 && one.count == 0);
            continue;
        }
        cr_expect(first > 0.01 && first < 1e5 && isfinite(last), "%s: %g", bench_peak_name(peak),
                  first);
        cr_expect_eq(one.count, 2);
        cr_expect_eq(one.first, first);
        cr_expect_eq(one.last, last);
        cr_expect_eq(one.least, fmin(first, last));
        cr_expect_eq(one.greatest, fmax(first, last));
        cr_expect_gt(bench_meter_sample(&f.meter, peak, 2), 0);
        cr_expect_eq(bench_meter_series(&f.meter, peak, 2).count, 1);
        cr_expect_eq(bench_meter_series(&f.meter, peak, 1).count, 2);
    }
    cr_expect_eq(bench_meter_drift(&f.meter), 0); /* one sample on all threads */
    cr_expect_gt(f.meter.floats * (int64_t)sizeof(float), (1 << 26) - 4 * BENCH_LOOP_STEP);
    end(&f);
}

/* The loops that a peak is measured with do what it is named after. */
Test(bench, loops)
{
    fixture f;
    begin(&f);
    enum { N = 2 * BENCH_LOOP_STEP };
    for (int i = 0; i < BENCH_PEAKS; i++) {
        const bench_loops *loops = f.meter.loops[i];
        float a[N];
        for (int j = 0; loops && j < N; j++)
            a[j] = j < N / 3 ? 1 : j < 2 * N / 3 ? 4 : 6;
        if (i == BENCH_PEAK_READ_L1 || i == BENCH_PEAK_READ_L2 || i == BENCH_PEAK_READ) {
            /* One lane of the sums. */
            const float sum = loops->loop[BENCH_LOOP_READ].run(a, N, 3);
            cr_expect(sum > 0 && fmodf(3 * N * 11 / 3, sum) == 0, "%g", sum);
        } else if (i == BENCH_PEAK_UPDATE) {
            cr_expect_eq(loops->loop[BENCH_LOOP_UPDATE].run(a, N, 1), 1.5f);
            cr_expect_eq(a[N - 1], 4);
        } else if (i == BENCH_PEAK_TRIAD) {
            cr_expect_eq(loops->loop[BENCH_LOOP_TRIAD].run(a, N, 1), 7);
            cr_expect(a[N / 3 - 1] == 7 && a[N / 3] == 4);
        }
    }
    end(&f);
}

/* What a call takes besides inputs and outputs, and how much of it was compared. */
static void expect_memory(const bench_result *r)
{
    cr_expect_gt(r->extra, 0);
    cr_expect_eq(r->copies, 1); /* a processor's caches are not emptied */
    cr_expect_eq(r->host, 0);
    cr_expect_eq(r->check.all_pairs, r->problem.batch * r->problem.problem.heads_key);
    cr_expect(r->check.pairs > 0 && r->check.pairs <= r->check.all_pairs);
}

static const char *const timed[] = {
    "preset=falcon1 T=20 D=16",
    "preset=gated_deltanet T=20 B=2 D=16 pass=backward",
    "preset=falcon3 T=20 D=16 pass=train",
    "preset=falcon1 B=2 D=16 pass=decode",
    "preset=falcon3 B=2 Hk=2 D=64 pass=decode cache=cold",
    "preset=falcon1 T=20 D=16 dtype=bf16 threads=1",
    "preset=gated_deltanet T=70 B=3 Hk=2 Hv=4 D=16 packed=1",
    "preset=falcon3 T=20 B=3 D=16 pass=train packed=1",
};

static bench_peak bound_of(const bench_problem *p, const bench_meter *meter)
{
    if (p->pass == BENCH_DECODE)
        return BENCH_PEAK_UPDATE;
    return p->problem.dtype == FWA_DTYPE_BF16 && meter->loops[BENCH_PEAK_FMA_BF16]
               ? BENCH_PEAK_FMA_BF16
               : BENCH_PEAK_FMA_F32;
}

/* What the system says of a process's time is behind by up to a tick for each thread that is running;
 * both are looked at once a round. */
static double processor_limit(const bench_setup *setup)
{
    const double tick = 0.01, rounds = 4;
    return 1.05 + rounds * tick / setup->seconds;
}

static void expect_times(const bench_result *r, const bench_setup *setup)
{
    const bench_meter *meter = setup->meter;
    const bench_rates rates = bench_rates_of(r);
    const int decode = r->problem.pass == BENCH_DECODE;
    cr_assert_eq(r->verdict, BENCH_TIMED, "%s: %s", r->problem.name, r->message.text);
    cr_expect(r->minimum > 0 && r->minimum <= r->median && r->median <= r->p90 && isfinite(r->p90));
    cr_expect_geq(r->samples, 4);
    cr_expect(r->processor > 0 && r->processor < processor_limit(setup), "%g", r->processor);
    cr_expect_geq(r->calls, 1);
    for (int peak = 0; peak < BENCH_PEAKS; peak++)
        cr_expect_eq(r->peaks[peak] > 0, meter->loops[peak] != NULL);
    cr_expect_eq(r->bound, bound_of(&r->problem, meter));
    cr_expect_float_eq(rates.gflops, bench_flops(&r->problem) / r->minimum * 1e-9, 1e-9);
    cr_expect_float_eq(rates.tokens * r->minimum, (double)(r->problem.batch * r->problem.tokens),
                       1e-6);
    cr_expect_float_eq(rates.of_bound, (decode ? rates.gbytes : rates.gflops) / r->peaks[r->bound],
                       1e-9);
    cr_expect(rates.of_bound > 0 && (decode || rates.of_bound < 1), "%g", rates.of_bound);
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
        f.setup.seconds = i == 0 ? 0.8 : 0.01;
        bench_measure(&f.setup, &p, &result);
        expect_times(&result, &f.setup);
        expect_memory(&result);
        cr_expect_eq(result.check.pairs, result.check.all_pairs);
        cr_expect_eq(result.threads, p.threads ? p.threads : 2);
    }
    end(&f);
}

/* Rows and heads that repeat what was verified, in every pass, with shared keys and packed. */
Test(bench, measures_parts)
{
    static const struct {
        const char *line;
        double limit;
        int64_t pairs, all;
    } cases[] = {
        {"preset=gated_deltanet T=70 B=5 Hk=2 Hv=4 D=16", 4e4, 4, 10},
        {"preset=gated_deltanet T=70 B=5 Hk=2 Hv=4 D=16 packed=1", 4e4, 4, 10},
        {"preset=falcon2 T=70 B=2 Hk=3 Hv=6 Hq=6 D=16 pass=backward", 1, 1, 6},
        {"preset=falcon3 T=70 B=2 Hk=3 Hv=6 D=16 pass=train packed=1", 1, 1, 6},
        {"preset=falcon3 B=4 Hk=3 Hv=6 D=64 pass=decode cache=cold", 1, 1, 12},
    };
    fixture f;
    begin(&f);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const bench_problem p = parse(cases[i].line);
        bench_result result;
        f.setup.part = cases[i].limit;
        bench_measure(&f.setup, &p, &result);
        expect_times(&result, &f.setup);
        expect_memory(&result);
        cr_expect_eq(result.check.pairs, cases[i].pairs, "%s: %lld", cases[i].line,
                     (long long)result.check.pairs);
        cr_expect_eq(result.check.all_pairs, cases[i].all);
    }
    end(&f);
}

static void expect_device_report(const bench_setup *setup, const bench_result *result)
{
    const bench_origin origin = bench_origin_now(NULL);
    json_t *report = bench_report(setup, &origin, result, 1);
    const json_t *one = json_array_get(json_object_get(report, "problems"), 0);
    cr_expect_gt(json_real_value(json_object_get(one, "host_seconds")), 0);
    cr_expect_gt(json_real_value(json_object_get(one, "extra_bytes")), 0);
    cr_expect_eq(json_integer_value(json_object_get(one, "copies")), result->copies);
    cr_expect_null(json_object_get(one, "bound"));
    cr_expect_null(json_object_get(one, "of_bound"));
    cr_expect_null(json_object_get(one, "processor"));
    cr_expect_null(json_object_get(report, "peaks"));
    json_decref(report);
}

/* A device has no peaks, but a host that calls it, and inputs that its caches cannot hold. */
Test(bench, devices)
{
    static const struct {
        const char *line;
        int64_t copies;
    } cases[] = {
        {"preset=gated_deltanet T=6 B=3 Hk=1 Hv=2 D=4 packed=1 dtype=bf16", 64},
        {"preset=falcon1 T=5 Hk=2 D=4 pass=train", 64},
        {"preset=falcon3 T=5 Hk=2 D=4 pass=backward", 64},
        {"preset=retnet B=2 Hk=2 D=4 pass=decode", 1},
    };
    const char *modules = getenv("FWA_EMULATED");
    bench_setup setup = {.seconds = 0.01};
    cr_assert_not_null(modules, "FWA_EMULATED must name the directory of the emulated GPUs");
    setenv("FWA_BACKEND_PATH", modules, 1);
    setup.context = context_of("emulated32", 1);
    setup.reference = context_of("reference", 1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const bench_problem p = parse(cases[i].line);
        bench_result r;
        bench_measure(&setup, &p, &r);
        cr_assert_eq(r.verdict, BENCH_TIMED, "%s: %s", cases[i].line, r.message.text);
        cr_expect(r.minimum > 0 && r.minimum <= r.median && r.median <= r.p90);
        cr_expect_eq(r.copies, cases[i].copies);
        cr_expect(r.host > 0 && r.host < 1 && r.extra > 0 && r.processor == 0);
        cr_expect_eq(bench_rates_of(&r).of_bound, 0);
        cr_expect_gt(bench_rates_of(&r).tokens, 0);
        cr_expect_eq(strncmp(r.kernel, "emulated32/", 11), 0, "%s", r.kernel);
        expect_device_report(&setup, &r);
    }
    fwa_context_destroy(setup.context);
    fwa_context_destroy(setup.reference);
}

/* A token that is wrong in a row that only repeats what was verified. */
Test(bench, parts_hide_nothing)
{
    fixture f;
    bench_result result;
    begin(&f);
    const bench_problem p = parse("preset=falcon1 T=20 B=4 Hk=2 D=16 packed=1");
    f.setup.part = 1;
    planted = (fault){"o", 67, 80, 0};
    bench_measure(&f.setup, &p, &result);
    cr_expect_eq(result.verdict, BENCH_WRONG);
    cr_expect_str_eq(result.message.text, "o is not bit for bit what was verified");
    end(&f);
}

/* Training hands the forward's states to the backward: in each call that is verified or timed. */
Test(bench, backward_has_states)
{
    static const struct {
        const char *line;
        int saved;
    } lines[] = {
        {"preset=falcon1 T=40 D=16 pass=backward", 1},
        {"preset=falcon1 T=40 D=16 pass=train", 1},
        {"preset=falcon1 T=40 D=16 pass=train saved=0", 0},
    };
    fixture f;
    begin(&f);
    for (size_t i = 0; i < COUNT(lines); i++) {
        const bench_problem p = parse(lines[i].line);
        bench_result result;
        backwards = backwards_saved = 0;
        bench_measure(&f.setup, &p, &result);
        cr_assert_eq(result.verdict, BENCH_TIMED, "%s", result.message.text);
        cr_expect_gt(backwards, result.samples * result.calls);
        cr_expect_eq(backwards_saved, lines[i].saved ? backwards : 0, "%s: %lld of %lld",
                     lines[i].line, (long long)backwards_saved, (long long)backwards);
    }
    end(&f);
}

Test(bench, threads)
{
    fixture f;
    bench_result result;
    begin(&f);
    const bench_problem p = parse("preset=falcon1 T=20 D=16 threads=3");
    bench_measure(&f.setup, &p, &result);
    cr_expect_eq(result.verdict, BENCH_REFUSED);
    cr_expect_str_eq(result.message.text, "it is for 3 threads; there are 2");
    end(&f);
}

static bench_result result_of(const char *name, int32_t threads, double seconds)
{
    bench_result result = {.verdict = BENCH_TIMED, .threads = threads, .minimum = seconds};
    snprintf(result.problem.name, sizeof result.problem.name, "%s", name);
    return result;
}

Test(bench, efficiency)
{
    bench_result results[] = {result_of("a", 1, 8), result_of("b", 1, 100), result_of("a", 2, 5),
                              result_of("a", 4, 4), result_of("c", 4, 1)};
    cr_expect_eq(bench_efficiency(results, 5, &results[0]), 0);
    cr_expect_float_eq(bench_efficiency(results, 5, &results[2]), 0.8, 1e-12);
    cr_expect_float_eq(bench_efficiency(results, 5, &results[3]), 0.5, 1e-12);
    cr_expect_eq(bench_efficiency(results, 5, &results[4]), 0);
    results[0].verdict = BENCH_WRONG;
    cr_expect_eq(bench_efficiency(results, 5, &results[2]), 0);
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

/* `keys` are words. */
static void expect_members(const json_t *object, const char *keys)
{
    char copy[1024], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", keys);
    for (char *key = strtok_r(copy, " ", &rest); key; key = strtok_r(NULL, " ", &rest))
        cr_expect_not_null(json_object_get(object, key), "'%s' is missing", key);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static void expect_origin(const json_t *root)
{
    int year, month, day, hour, minute, second, used = 0;
    const json_t *machine = json_object_get(root, "machine"),
                 *build = json_object_get(root, "build");
    expect_members(machine, "cpu architecture processors kernel caches");
    expect_members(build, "commit compiler type");
    cr_expect_null(strchr(text_of(build, "commit"), '/'));
    cr_expect_gt(strlen(text_of(build, "commit")), 6);
    cr_expect_not_null(strpbrk(text_of(build, "compiler"), "123456789"));
    cr_expect_str_eq(text_of(root, "command"), "fwa bench x");
    cr_expect_eq(sscanf(text_of(root, "date"), "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &year, &month, &day,
                        &hour, &minute, &second, &used),
                 6);
    cr_expect_eq(used, 20);
    cr_expect_not_null(strstr(text_of(root, "device"), text_of(root, "isa")));
    cr_expect_gt(strlen(text_of(root, "isa")), 3);
}

static void expect_peaks(const json_t *peaks)
{
    size_t i;
    const json_t *one;
    cr_expect_gt(json_array_size(peaks), 0);
    json_array_foreach(peaks, i, one)
    {
        expect_members(one, "peak unit isa threads samples first last least greatest");
        cr_expect_eq(json_integer_value(json_object_get(one, "threads")), 2);
    }
}

static void expect_report(const json_t *root)
{
    expect_members(root,
                   "version backend device isa date command threads machine build environment "
                   "peaks peak_drift peak_memory_bytes problems");
    expect_origin(root);
    expect_peaks(json_object_get(root, "peaks"));
    const json_t *problems = json_object_get(root, "problems");
    cr_assert_eq(json_array_size(problems), 2);
    const json_t *first = json_array_get(problems, 0), *second = json_array_get(problems, 1);
    expect_members(first, "name preset pass B T Hk Hv Hq D V window dtype form data gates threads "
                          "packed verdict kernel verified seconds spread processor extra_bytes "
                          "copies flops gflops tokens_per_second peaks bound of_bound");
    cr_expect_null(json_object_get(first, "host_seconds"));
    expect_members(json_object_get(first, "peaks"),
                   "fma_f32 fma_f64 read_l1 read_l2 read_memory update_memory triad_memory");
    cr_expect_str_eq(text_of(first, "bound"), "fma_f32");
    cr_expect_eq(json_integer_value(json_object_get(first, "threads")), 2);
    cr_expect_str_eq(json_string_value(json_object_get(first, "verdict")), "timed");
    cr_expect_eq(json_integer_value(json_object_get(first, "T")), 20);
    cr_expect_gt(json_real_value(json_object_get(first, "of_bound")), 0);
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
    const bench_origin origin = bench_origin_now("fwa bench x");
    json_t *report = bench_report(&f.setup, &origin, results, 2);
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
    {"preset=falcon1 T=20 D=16 threads=scaling", "--seconds 0.01 --threads 2 --json -", 0,
     "\"efficiency\": "},
    {"preset=falcon1 T=20 D=16 threads=2", "--seconds 0.01 --threads 1", 4, "refused: it is for 2"},
    {"", "--list", 0, "preset=falcon1"},
    {"", "--list", 0, "forgetting:"},
    {"", "--list", 0, "gpu-decode:"},
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
