/* SPDX-License-Identifier: Apache-2.0 */
/* The language of benchmark problems, their data, what their work is, and that faults are seen. */
#include "../src/bench/inputs.h"
#include "../src/bench/verify.h"
#include "bench_support.h"

#include <string.h>
#include <unistd.h>

/* ---- Lines ---- */

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
    cr_expect_eq(p.threads, BENCH_THREADS_ALL);
    cr_expect_str_eq(p.set, "");
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
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 threads=all").threads, BENCH_THREADS_ALL);
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 threads=scaling").threads, BENCH_THREADS_SCALING);
    cr_expect_eq(parse("preset=falcon1 T=1 D=5 threads=3").threads, 3);
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
    {"preset=falcon1 D=1 pass=decode packed=1", "key 'packed' does not go with pass=decode"},
    {"preset=falcon1 T=1 D=1 packed=2", "key 'packed' is '2'; it must be one of 0 1"},
    {"preset=falcon1 T=1 D=1 threads=0", "key 'threads' is '0'; it must be all, scaling, or"},
    {"preset=falcon1 T=1 D=1 threads=4097", "key 'threads' is '4097'"},
    {"preset=falcon1 T=1 D=1 threads=2x", "key 'threads' is '2x'"},
    {"preset=falcon1 T=1 D=1 threads=", "key 'threads' is ''"},
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
    cr_expect_str_eq(list.problems[1].set, "here");
    cr_expect_eq(bench_parse_text("\n\npreset=falcon1 T=1\n", "here", &list, &message), -1);
    cr_expect_str_eq(message.text, "here:3: key 'D' is missing");
    cr_expect_eq(list.count, 2);
    bench_list_free(&list);
    cr_expect_eq(list.count, 0);
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
    cr_assert_eq(list.count, 1);
    cr_expect_str_eq(list.problems[0].set, good + strlen("/tmp/")); /* without its folder */
    bench_list_free(&list);
    unlink(good);
    expect_unreadable(good, "cannot be read: No such file");
    expect_unreadable("/tmp", "cannot be read");
    write_file(bad, zero, sizeof zero - 1);
    expect_unreadable(bad, "holds a zero byte");
    unlink(bad);
}

/* The threads of the problems that "a" scales to, and then b's. */
static const struct {
    int32_t most, count, threads[8];
} expanded[] = {
    {1, 1, {1}},
    {2, 2, {1, 2}},
    {6, 4, {1, 2, 4, 6}},
    {64, 7, {1, 2, 4, 8, 16, 32, 64}},
};

Test(bench, scaling)
{
    for (size_t i = 0; i < COUNT(expanded); i++) {
        bench_list list = {0};
        bench_message message = {""};
        bench_parse_text("preset=falcon1 T=1 D=2 name=a threads=scaling\n"
                         "preset=falcon1 T=1 D=2 name=b threads=5\n",
                         "here", &list, &message);
        cr_assert_eq(bench_list_expand(&list, expanded[i].most, &message), 0);
        cr_assert_eq(list.count, expanded[i].count + 1);
        for (int32_t j = 0; j < expanded[i].count; j++) {
            cr_expect_str_eq(list.problems[j].name, "a");
            cr_expect_eq(list.problems[j].threads, expanded[i].threads[j]);
        }
        cr_expect_str_eq(list.problems[list.count - 1].name, "b");
        cr_expect_eq(list.problems[list.count - 1].threads, 5);
        bench_list_free(&list);
    }
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

/* Dimensions from 1 to 256, odd ones and those beside a power of two among them. */
Test(bench, dims)
{
    static const int32_t wanted[] = {1,  2,  3,  7,   15,  16,  17,  33,
                                     63, 64, 65, 100, 127, 128, 255, 256};
    bench_list list = {0};
    bench_message message;
    cr_assert_eq(bench_parse_text(bench_set_find("dims")->text, "dims", &list, &message), 0);
    for (size_t i = 0; i < COUNT(wanted); i++) {
        int found = 0;
        for (int64_t j = 0; j < list.count; j++)
            found += list.problems[j].problem.key_dim == wanted[i];
        cr_expect_gt(found, 0, "%d", (int)wanted[i]);
    }
    bench_list_free(&list);
}

/* ---- Data ---- */

static void expect_within(const conformance_data *data, const char *name, double least, double most)
{
    const double *values = conformance_get(data, name);
    cr_assert_not_null(values, "%s", name);
    for (int64_t i = 0; i < conformance_count(data, name); i++)
        cr_expect(values[i] >= least && values[i] <= most, "%s: %g", name, values[i]);
}

/* What is made of large problems: whole sequences, of fewer rows first, then of fewer key heads, each with
 * all value heads that share it. */
Test(bench, parts)
{
    static const struct {
        const char *line;
        double limit;
        int64_t batch;
        int32_t query, key, value;
    } cases[] = {
        {"preset=falcon1 T=1000 D=10 B=8 Hk=4", 0, 8, 4, 4, 4},
        {"preset=falcon1 T=1000 D=10 B=8 Hk=4", 1.3e6, 8, 4, 4, 4}, /* 1283200 numbers */
        {"preset=falcon1 T=1000 D=10 B=8 Hk=4", 1.2e6, 4, 4, 4, 4},
        {"preset=falcon1 T=1000 D=10 B=5 Hk=4", 5e5, 3, 4, 4, 4},
        {"preset=falcon1 T=1000 D=10 B=8 Hk=5 Hv=10", 1.3e5, 1, 2, 2, 4},
        {"preset=falcon1 T=1000 D=10 B=8 Hk=5 Hv=10 Hq=10", 1.5e5, 1, 4, 2, 4},
        {"preset=falcon1 T=1000 D=10 B=8 Hk=5 Hv=10", 1, 1, 1, 1, 2},
        {"preset=falcon1 D=128 B=256 Hk=16 Hv=32 pass=decode", 0, 32, 16, 16, 32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const bench_problem whole = parse(cases[i].line);
        const bench_problem part = bench_inputs_part(&whole, cases[i].limit);
        cr_expect_eq(part.batch, cases[i].batch, "%s: %lld rows", cases[i].line,
                     (long long)part.batch);
        cr_expect_eq(part.problem.heads_query, cases[i].query, "%s", cases[i].line);
        cr_expect_eq(part.problem.heads_key, cases[i].key, "%s", cases[i].line);
        cr_expect_eq(part.problem.heads_value, cases[i].value, "%s", cases[i].line);
        cr_expect_eq(part.tokens, whole.tokens);
        cr_expect_eq(part.problem.key_dim, whole.problem.key_dim);
    }
}

static const struct {
    const char *line, *tensor;
    double least, most;
} forgetting[] = {
    {"preset=falcon1 T=50 D=4 data=keep", "lambda", 0, 0},
    {"preset=falcon1 T=50 D=4 data=keep gates=beta+log_gate", "log_gate", 0, 0},
    {"preset=retnet T=50 D=4 data=random", "log_gate", -0.05, 0},
    {"preset=falcon1 T=50 D=4 data=fade", "log_gate", -1.78, -1.44}, /* .17 to .24 */
    {"preset=falcon1 T=50 D=4 data=wipe", "log_gate", -15.2, -12.4}, /* 2.5e-7 to 4.1e-6 */
    {"preset=falcon1 T=50 D=4 data=reflect", "beta", 1.9, 1.999},
    {"preset=falcon1 T=50 D=4 data=reflect", "lambda", 0, 0},
    {"preset=linear_attention T=50 D=4 data=reflect", "beta", 0, 1.999}, /* over |x|^2 */
};

Test(bench, forgetting)
{
    for (size_t i = 0; i < COUNT(forgetting); i++) {
        const bench_problem p = parse(forgetting[i].line);
        conformance_data data = bench_inputs(&p);
        expect_within(&data, forgetting[i].tensor, forgetting[i].least, forgetting[i].most);
        conformance_data_free(&data);
    }
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
    "preset=falcon1 T=250 D=20 pass=train data=keep",
    "preset=falcon1 T=250 D=20 pass=train data=fade",
    "preset=gated_deltanet T=250 D=20 pass=train data=wipe",
    "preset=falcon1 T=250 D=20 pass=train data=reflect",
    "preset=deltanet T=250 D=20 pass=train data=reflect",
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
