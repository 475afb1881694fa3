/* SPDX-License-Identifier: Apache-2.0 */
/* The command `fwa`, run as a user runs it: exit codes, messages, files. FWA_TOOL is its path. */
#include "../src/files/safetensors.h"

#include <criterion/criterion.h>
#include <png.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define WORDS        16

extern char **environ;

/* ---- Running
 * ------------------------------------------------------------------------------------- */

static char folder[64];

static void enter(void)
{
    snprintf(folder, sizeof folder, "/tmp/fwa-test-tool-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
}

static void leave(void)
{
    char command[128];
    cr_assert_eq(chdir("/"), 0);
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_expect_eq(system(command), 0);
}

TestSuite(tool, .init = enter, .fini = leave, .timeout = 300);

typedef struct outcome {
    int code; /* the exit status, or minus the signal */
    char out[1 << 16], error[1 << 14];
} outcome;

static void slurp(const char *path, char *text, size_t size)
{
    FILE *stream = fopen(path, "rb");
    cr_assert_not_null(stream);
    text[fread(text, 1, size - 1, stream)] = '\0';
    fclose(stream);
}

/* Runs the tool with words that single blanks part; its standard output goes to `output`. */
static const outcome *run_to(const char *output, const char *line)
{
    static outcome result;
    static char words[4096];
    char *argv[WORDS + 2] = {getenv("FWA_TOOL")};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status, count = 1;
    cr_assert_not_null(argv[0], "FWA_TOOL is not set");
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word && count <= WORDS; word = strtok(NULL, " "))
        argv[count++] = word;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, "stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_eq(posix_spawn(&child, argv[0], &actions, NULL, argv, environ), 0, "%s", argv[0]);
    posix_spawn_file_actions_destroy(&actions);
    cr_assert_eq(waitpid(child, &status, 0), child);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (strcmp(output, "stdout") == 0)
        slurp("stdout", result.out, sizeof result.out);
    slurp("stderr", result.error, sizeof result.error);
    return &result;
}

static const outcome *run(const char *line)
{
    return run_to("stdout", line);
}

/* Runs, and expects a code and words on the standard error (code 0: on the standard output). */
static void expect(const char *line, int code, const char *words)
{
    const outcome *result = run(line);
    cr_expect_eq(result->code, code, "fwa %s: %d, not %d: %s", line, result->code, code,
                 result->error);
    const char *text = code <= 1 ? result->out : result->error;
    cr_expect_not_null(strstr(text, words), "fwa %s: '%s' does not say '%s'", line, text, words);
    if (code == 0)
        cr_expect_str_empty(result->error, "fwa %s: %s", line, result->error);
    else if (code != 1)
        cr_expect_eq(strncmp(result->error, "fwa: ", 5), 0, "fwa %s: %s", line, result->error);
}

/* ---- Files
 * --------------------------------------------------------------------------------------- */

static const char *vector_path(const char *name)
{
    static char path[4096];
    const char *vectors = getenv("FWA_VECTORS");
    cr_assert_not_null(vectors, "FWA_VECTORS is not set");
    snprintf(path, sizeof path, "%s/%s.safetensors", vectors, name);
    return path;
}

static safetensors *vector(const char *name)
{
    safetensors_message message = {""};
    safetensors *file = safetensors_read(vector_path(name), &message);
    cr_assert_not_null(file, "%s", message.text);
    return file;
}

static void save(safetensors *file, const char *path)
{
    safetensors_message message = {""};
    cr_assert_eq(safetensors_write(file, path, &message), 0, "%s", message.text);
    safetensors_free(file);
}

static double *doubles(safetensors *file, const char *name)
{
    return safetensors_find(file, name)->data;
}

static double *put(safetensors *file, const char *name, int32_t dtype, int32_t rank,
                   const int64_t *shape)
{
    safetensors_message message = {""};
    safetensors_tensor *tensor = safetensors_add(file, name, dtype, rank, shape, &message);
    cr_assert_not_null(tensor, "%s", message.text);
    return tensor->data;
}

/* ---- Usage
 * --------------------------------------------------------------------------------------- */

Test(tool, usage)
{
    static const struct {
        const char *line;
        int code;
        const char *words;
    } lines[] = {
        {"--version", 0, "fwa 0.1.0\n"},
        {"--help", 0, "Exit status: 0 good"},
        {"info --help", 0, "Usage: fwa info"},
        {"run --help", 0, "Usage: fwa run IN -o OUT"},
        {"verify --help", 0, "Usage: fwa verify FILE..."},
        {"check --help", 0, "Usage: fwa check"},
        {"bench --help", 0, "Usage: fwa bench"},
        {"mask --help", 0, "Usage: fwa mask IN -o OUT.png"},
        {"bogus", 2, "'bogus' is no command"},
        {"--bogus", 2, "'--bogus' is no command"},
        {"run --bogus", 2, "--bogus: unknown option"},
        {"run", 2, "an argument is missing"},
        {"run a", 2, "-o OUT is missing"},
        {"run a b -o c", 2, "'b' is one argument too many"},
        {"run a -o", 2, "missing argument"},
        {"run a -o b --threads x", 2, "x: invalid numeric value"},
        {"run a -o b --threads -1", 2, "threads is -1"},
        {"run a -o b --form fast", 2, "--form is 'fast'"},
        {"run a -o b --dtype f8", 2, "--dtype is 'f8'; it must be f64, f32, bf16 or f16"},
        {"run a -o b --state-dtype all", 2, "--state-dtype is 'all'"},
        {"run a -o b --backend none", 4, "none"},
        {"info x", 2, "'x' is one argument too many"},
        {"verify", 2, "an argument is missing"},
        {"verify a --form fast", 2, "--form is 'fast'"},
        {"verify a --backend none", 4, "none"},
        {"mask a", 2, "-o OUT.png is missing"},
        {"mask a -o b --what x", 2, "--what is 'x'; it must be effective or mask"},
        {"mask a -o b --size 8193", 2, "--size is 8193; it runs from 1 to 8192"},
        {"mask a -o b --size -1", 2, "--size is -1"},
    };
    for (size_t i = 0; i < COUNT(lines); i++)
        expect(lines[i].line, lines[i].code, lines[i].words);
    const outcome *nothing = run("");
    cr_expect_eq(nothing->code, 2);
    cr_expect_not_null(strstr(nothing->error, "Usage: fwa COMMAND"));
}

Test(tool, info)
{
    static const char *const words[] = {"libfwa 0.1.0",      "cpu: present", "reference: present",
                                        "float64 reference", "threads:",     "gated_deltanet",
                                        "falcon3a.3"};
    for (size_t i = 0; i < COUNT(words); i++)
        expect("info", 0, words[i]);
    /* The levels that were compiled in, and those that there are here, whichever is asked for. */
    expect("info", 0, "with threads; compiled for generic");
    expect("info", 0, "\n    this machine has generic");
    cr_assert_eq(setenv("FWA_CPU_ISA", "generic", 1), 0);
    const char *list = strstr(run("info")->out, "this machine has generic");
    cr_assert_not_null(list);
    cr_expect_not_null(strstr(list, ", generic; threads:"), "%s", list);
    unsetenv("FWA_CPU_ISA");
    /* Modules are looked for where the environment says, and the table says where that is. */
    cr_assert_eq(setenv("FWA_BACKEND_PATH", folder, 1), 0);
    expect("info", 0, "cuda: absent: no such file\n    looked for in /tmp/fwa-test-tool-");
    unsetenv("FWA_BACKEND_PATH");
}

/* ---- Odd files
 * ----------------------------------------------------------------------------------- */

/* Every command that reads a problem refuses it with 3 and these words, and writes nothing. */
static void expect_refused(const char *path, const char *words)
{
    static const char *const formats[] = {"run %s -o out --backward", "verify %s",
                                          "mask %s -o out"};
    for (size_t i = 0; i < COUNT(formats); i++) {
        char line[512];
        snprintf(line, sizeof line, formats[i], path);
        expect(line, 3, words);
        cr_expect_eq(access("out", F_OK), -1, "fwa %s wrote its output", line);
    }
}

Test(tool, odd_paths)
{
    fclose(fopen("empty", "wb"));
    cr_assert_eq(mkfifo("fifo", 0600), 0);
    expect_refused("empty", "empty: not a safetensors file: 0 bytes");
    expect_refused("missing", "missing: No such file or directory");
    expect_refused(".", ".: it is a directory");
    expect_refused("fifo", "fifo: it is not a regular file");
    expect_refused("/dev/null", "it is not a regular file");
}

Test(tool, truncated)
{
    static char bytes[1 << 16];
    FILE *stream = fopen(vector_path("falcon3a_one_token"), "rb");
    cr_assert_not_null(stream);
    const size_t size = fread(bytes, 1, sizeof bytes, stream);
    fclose(stream);
    cr_assert(size > 4000 && size < sizeof bytes);
    for (size_t length = 0; length < size; length += 97) {
        stream = fopen("cut", "wb");
        cr_assert_eq(fwrite(bytes, 1, length, stream), length);
        fclose(stream);
        expect_refused("cut", "cut: ");
    }
}

Test(tool, garbage)
{
    uint64_t state = 1;
    for (int trial = 0; trial < 20; trial++) {
        FILE *stream = fopen("garbage", "wb");
        for (int i = 0; i < 500; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            /* Half of them with a plausible header length. */
            fputc(trial % 2 && i < 8 ? (i == 0 ? 200 : 0) : (int)(state >> 56), stream);
        }
        fclose(stream);
        expect_refused("garbage", "garbage: ");
    }
}

static void drop(const char *name, const char *dropped, const char *path)
{
    safetensors_message message = {""};
    safetensors *file = vector(name), *out = safetensors_new(&message);
    for (int32_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *one = safetensors_get(file, i);
        if (strcmp(one->name, dropped) != 0)
            memcpy(put(out, one->name, one->dtype, one->rank, one->shape), one->data, one->size);
    }
    safetensors_set_metadata(out, "rule", safetensors_metadata(file, "rule"), &message);
    safetensors_free(file);
    save(out, path);
}

Test(tool, wrong_problems)
{
    safetensors_message message = {""};
    safetensors *file = vector("falcon1_plain");
    safetensors_set_metadata(file, "eps", "nan", &message);
    save(file, "bad");
    expect_refused("bad", "bad: metadata 'eps' is 'nan'; it must be a finite number");

    drop("falcon1_plain", "q", "bad");
    expect_refused("bad", "bad: tensor 'q' is missing");

    file = vector("falcon1_plain");
    const safetensors_tensor *q = safetensors_find(file, "q");
    put(file, "q", FWA_DTYPE_I64, q->rank, q->shape);
    save(file, "bad");
    expect_refused("bad", "bad: tensor 'q' has the type I64");

    file = vector("falcon1_plain");
    safetensors_set_metadata(file, "decay_floor", "2", &message);
    save(file, "bad");
    expect_refused("bad", "decay_floor is 2");

    file = vector("falcon1_plain");
    doubles(file, "beta")[3] = -1;
    save(file, "bad");
    expect_refused("bad", "beta");

    file = vector("falcon1_packed");
    ((int64_t *)safetensors_find(file, "cu_seqlens")->data)[8]++;
    save(file, "bad");
    expect_refused("bad", "cu_seqlens");
}

/* An element beyond the type that the file is run in would be infinite there. */
Test(tool, elements_out_of_range)
{
    safetensors *file = vector("falcon1_plain");
    const safetensors_tensor *v = safetensors_find(file, "v");
    const int64_t last = safetensors_elements(v) - 1;
    char words[160];
    doubles(file, "v")[last] = -1e39;
    save(file, "wide");
    file = vector("falcon1_plain");
    v = safetensors_find(file, "v");
    snprintf(words, sizeof words,
             "wide: tensor 'v' has -1e+39 at [%d, %d, %d, %d], which is outside the range of f32",
             (int)v->shape[0] - 1, (int)v->shape[1] - 1, (int)v->shape[2] - 1,
             (int)v->shape[3] - 1);
    expect("run wide -o wide -g -b reference", 0, "wide: reference/");
    expect_refused("wide", words);
    expect("run wide -o out -g -b reference -d f32", 3, words);
    expect("verify wide -b reference", 0, "\n1 passed, 0 failed\n");

    /* The greatest finite f16 is 65504; half a step beyond it is the first that rounds to none. */
    doubles(file, "v")[last] = 65520;
    save(file, "wide");
    expect("run wide -o out -d f16", 3, "has 65520 at [");
    expect("run wide -o out -d bf16", 0, "out: cpu/");
    file = vector("falcon1_plain");
    doubles(file, "v")[last] = 65519;
    save(file, "wide");
    expect("run wide -o out -d f16", 0, "out: cpu/");
}

/* One extent of one tensor is wrong: a message names the tensor, or the size of the problem that is
 * read from it. */
Test(tool, inconsistent_shapes)
{
    static const struct {
        const char *name;
        const char *words[4]; /* by axis */
    } tensors[] = {
        {"k", {"k.shape[0]", "k.shape[1]", "heads_key, 3", "k.shape[3]"}},
        {"v", {"v.shape[0]", "v.shape[1]", "heads_value is 3", "state.shape[3]"}},
        {"beta", {"beta.shape[0]", "beta.shape[1]", "beta.shape[2]"}},
        {"lambda", {"lambda.shape[0]", "lambda.shape[1]", "lambda.shape[2]"}},
        {"seen_in", {"carry_in.seen.shape[0]"}},
        {"state_in", {"state.shape[0]", "state.shape[1]", "state.shape[2]", "state.shape[3]"}},
        {"prev_key_in", {"prev_key.shape[0]", "prev_key.shape[1]", "prev_key.shape[2]"}},
        {"tail_key_in",
         {"tail_key.shape[0]", "tail_key.shape[1]", "tail_key.shape[2]", "tail_key.shape[3]"}},
    };
    for (size_t i = 0; i < COUNT(tensors); i++) {
        for (int32_t axis = 0; axis < 4 && tensors[i].words[axis] != NULL; axis++) {
            safetensors *file = vector("falcon3_continue");
            const safetensors_tensor *one = safetensors_find(file, tensors[i].name);
            int64_t shape[FWA_MAX_RANK];
            memcpy(shape, one->shape, sizeof shape);
            shape[axis]++;
            put(file, tensors[i].name, one->dtype, one->rank, shape);
            save(file, "bad");
            expect_refused("bad", tensors[i].words[axis]);
        }
    }
}

/* ---- run and verify
 * ------------------------------------------------------------------------------ */

Test(tool, round_trip)
{
    static const char *const names[] = {"falcon1_plain", "falcon2_packed", "falcon3_continue",
                                        "falcon3a_normalizer", "preset_gated_deltanet"};
    static const char *const dtypes[] = {"", " -d bf16", " -d f16", " -d f32 -s bf16"};
    for (size_t i = 0; i < COUNT(names); i++) {
        for (size_t j = 0; j < COUNT(dtypes); j++) {
            char line[4400];
            snprintf(line, sizeof line, "run %s -o out -g%s", vector_path(names[i]), dtypes[j]);
            expect(line, 0, "out: cpu/");
            /* Three forms of the CPU, and the reference. */
            expect("verify out", 0, "\n4 passed, 0 failed\n");
        }
    }
}

Test(tool, run_writes_a_complete_problem_file)
{
    safetensors_message message = {""};
    char line[4400];
    snprintf(line, sizeof line, "run %s -o out --backward", vector_path("falcon1_continue"));
    expect(line, 0, "out: cpu/");
    safetensors *file = vector("falcon1_continue"), *out = safetensors_read("out", &message);
    cr_assert_not_null(out, "%s", message.text);
    cr_expect_eq(safetensors_count(out), safetensors_count(file));
    cr_expect_str_eq(safetensors_metadata(out, "rule"), "falcon1");
    cr_expect_eq(safetensors_find(out, "q")->dtype, FWA_DTYPE_F32);
    cr_expect_eq(safetensors_find(out, "dq")->dtype, FWA_DTYPE_F32);
    safetensors_free(out);

    /* Without the backward its results go, and what it starts from stays. */
    snprintf(line, sizeof line, "run %s -o out -b reference", vector_path("falcon1_continue"));
    expect(line, 0, "out: reference/recurrent/");
    out = safetensors_read("out", &message);
    cr_expect_null(safetensors_find(out, "dq"));
    cr_expect_not_null(safetensors_find(out, "do"));
    const safetensors_tensor *o = safetensors_find(out, "o");
    cr_expect_eq(o->dtype, FWA_DTYPE_F64);
    for (int64_t i = 0; i < safetensors_elements(o); i++)
        cr_expect_float_eq(((const double *)o->data)[i], doubles(file, "o")[i], 1e-12);
    safetensors_free(out);
    safetensors_free(file);

    /* In place. */
    expect("run out -o out -g", 0, "out: cpu/");
    expect("verify out -b reference", 0, "\n1 passed, 0 failed\n");
    drop("falcon1_plain", "do", "no_do");
    expect("run no_do -o out --backward", 3, "no_do: tensor 'do' is missing");
    expect("run no_do -o out -b reference -f chunked", 4, "recurrent form");
    expect("run no_do -o out -d f64", 4, "f64");
}

Test(tool, verify_finds_what_is_wrong)
{
    safetensors *file = vector("falcon1_plain");
    doubles(file, "dlambda")[0] += 1e-3;
    save(file, "wrong");
    save(vector("falcon1_plain"), "right");
    expect("verify right", 0, "\n4 passed, 0 failed\n");
    expect("verify wrong", 1, "\n0 passed, 4 failed\n");
    expect("verify wrong", 1, "FAIL");
    expect("verify wrong", 1, "dlambda");
    /* The kernel is that of the pass that the tensor comes from. */
    expect("verify wrong -b cpu -f chunked", 1, "/f32/adjoint ");
    file = vector("falcon1_plain");
    doubles(file, "o")[0] += 1e-3;
    save(file, "wrong_o");
    expect("verify wrong_o -b cpu -f chunked", 1, "/f32/forward ");
    expect("verify right wrong", 1, "\n4 passed, 4 failed\n");
    expect("verify right wrong -b reference -d all", 1, "\n4 passed, 4 failed\n");
    expect("verify right -b all -d bf16 -f chunked", 0, "\n1 passed, 0 failed\n");
    /* A file that cannot be read counts as failed; the others are verified all the same. */
    expect("verify missing right", 3, "missing: No such file");
    cr_expect_not_null(strstr(run("verify missing right")->out, "\n4 passed, 1 failed\n"));
    expect("verify missing wrong", 1, "\n0 passed, 5 failed\n");
    /* What was asked for by name and is not there is an error. */
    expect("verify right -b reference -f chunked", 4, "recurrent form");
    expect("verify right -b cpu -d f64", 4, "f64");
    drop("falcon1_plain", "do", "gradients");
    expect("verify gradients", 3, "answers what the file does not ask: tensor 'do' is missing");
}

Test(tool, outputs_that_cannot_be_written)
{
    save(vector("falcon1_plain"), "in");
    expect("run in -o .", 5, "cannot write '.': it is a directory");
    expect("run in -o none/out", 5, "cannot write 'none/out': No such file or directory");
    expect("run in -o /dev/null", 5, "it is not a regular file");
    expect("mask in -o .", 5, "cannot write '.': it is a directory");
    const outcome *full = run_to("/dev/full", "info");
    cr_expect_eq(full->code, 5);
    cr_expect_not_null(strstr(full->error, "cannot write the standard output"), "%s", full->error);
}

/* ---- mask
 * ---------------------------------------------------------------------------------------- */

/* Two tokens, D = V = 2, no decay: P = [[1, 0], [-1/2, 1]] for the inner product. */
static void save_two_tokens(const char *rule, const char *path)
{
    static const int64_t shape[] = {1, 2, 1, 2}, gate[] = {1, 2, 1, 2};
    static const double keys[] = {1, 0, 0, 1}, queries[] = {1, 0, -0.5, 1}, betas[] = {1, 0, 1, 1};
    const int channels = strchr(rule, '2') != NULL;
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    memcpy(put(file, "k", FWA_DTYPE_F64, 4, shape), keys, sizeof keys);
    memcpy(put(file, "q", FWA_DTYPE_F64, 4, shape), queries, sizeof queries);
    put(file, "v", FWA_DTYPE_F64, 4, shape);
    put(file, "lambda", FWA_DTYPE_F64, 3, gate);
    double *beta = put(file, "beta", FWA_DTYPE_F64, channels ? 4 : 3, gate);
    for (int i = 0; i < (channels ? 4 : 2); i++)
        beta[i] = channels ? betas[i] : 1;
    safetensors_set_metadata(file, "rule", rule, &message);
    safetensors_set_metadata(file, "align", "same_step", &message);
    safetensors_set_metadata(file, "step", "direct", &message);
    save(file, path);
}

/* Four pixels, row by row, three bytes each, within rounding. */
static void expect_pixels(const char *line, const unsigned char want[12])
{
    unsigned char got[12];
    png_image image;
    expect(line, 0, "2 x 2 tokens on 2 x 2 pixels");
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    cr_assert(png_image_begin_read_from_file(&image, "out"), "%s", image.message);
    image.format = PNG_FORMAT_RGB;
    cr_assert_eq(PNG_IMAGE_SIZE(image), sizeof got);
    cr_assert(png_image_finish_read(&image, NULL, got, 0, NULL), "%s", image.message);
    for (size_t i = 0; i < sizeof got; i++)
        cr_expect(abs(got[i] - want[i]) <= 1, "%s: byte %zu is %d, not %d", line, i, got[i],
                  want[i]);
}

#define RED   178, 24, 43
#define WHITE 255, 255, 255

Test(tool, mask_colours)
{
    static const unsigned char linear[] = {RED, WHITE, 144, 178, 214, RED};
    /* log10(1/2) / 6 = -0.0502: the blue of 0.9498. */
    static const unsigned char logarithmic[] = {RED, WHITE, 44, 110, 176, RED};
    static const unsigned char decays[] = {RED, WHITE, RED, RED};
    /* The second channel's first beta is 0: nothing of the first token is written. */
    static const unsigned char channel[] = {WHITE, WHITE, WHITE, RED};
    save_two_tokens("falcon1a", "in");
    expect_pixels("mask in -o out --size 2", linear);
    expect_pixels("mask in -o out --size 2 -b reference", linear);
    expect_pixels("mask in -o out --size 2 --log", logarithmic);
    expect_pixels("mask in -o out --size 2 --what mask", decays);
    save_two_tokens("falcon2a", "in");
    expect_pixels("mask in -o out --size 2", linear);
    expect_pixels("mask in -o out --size 2 --channel 1", channel);
    expect_pixels("mask in -o out --size 2 --channel 1 --what mask", channel);
}

static void expect_png(const char *line, unsigned size)
{
    static const unsigned char signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    unsigned char bytes[24];
    expect(line, 0, "out: ");
    FILE *stream = fopen("out", "rb");
    cr_assert_not_null(stream);
    cr_assert_eq(fread(bytes, 1, sizeof bytes, stream), sizeof bytes);
    fclose(stream);
    cr_expect_eq(memcmp(bytes, signature, sizeof signature), 0);
    for (int i = 16; i < 24; i += 4)
        cr_expect_eq(
            (unsigned)(bytes[i] << 24 | bytes[i + 1] << 16 | bytes[i + 2] << 8 | bytes[i + 3]),
            size, "%s", line);
}

/* A batch of nothing. */
static void save_no_rows(const char *name)
{
    static const char *const data[] = {"q", "k", "v"}, *const gates[] = {"beta", "lambda"};
    static const int64_t shape[] = {0, 3, 1, 2};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    for (size_t i = 0; i < COUNT(data); i++)
        safetensors_add(file, data[i], FWA_DTYPE_F64, 4, shape, &message);
    for (size_t i = 0; i < COUNT(gates); i++)
        safetensors_add(file, gates[i], FWA_DTYPE_F64, 3, shape, &message);
    safetensors_set_metadata(file, "rule", "falcon1", &message);
    save(file, name);
}

Test(tool, mask_sizes)
{
    save(vector("falcon2_wide"), "in"); /* 130 tokens */
    expect_png("mask in -o out", 910);
    expect_png("mask in -o out --size 300 --channel 63", 300);
    expect_png("mask in -o out --size 7 --what mask", 7);
    expect("mask in -o out --channel 64", 2, "--channel is 64; it runs from 0 to 63");
    expect("mask in -o out --head 1", 2, "--head is 1; it runs from 0 to 0");
    expect("mask in -o out --sequence 1", 2, "--sequence is 1; it runs from 0 to 0");
    save_no_rows("none");
    expect("mask none -o out", 4, "the file has no sequence to make a picture of");
    save(vector("falcon3_packed"), "in");
    safetensors *file = vector("falcon3_packed");
    const int64_t *bounds = safetensors_find(file, "cu_seqlens")->data;
    for (int n = 0; n < 8; n++) {
        const int tokens = (int)(bounds[n + 1] - bounds[n]);
        char line[64];
        snprintf(line, sizeof line, "mask in -o out -H 1 -n %d", n);
        if (tokens == 0)
            expect(line, 4, "has 0 tokens; a picture needs 1 to 8192");
        else
            expect_png(line, (unsigned)(tokens * (1024 / tokens)));
    }
    safetensors_free(file);
}
