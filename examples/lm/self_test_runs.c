/* SPDX-License-Identifier: Apache-2.0 */

/* Training runs: resuming gives what an uninterrupted run gives, bit for bit; the data are what
 * they should be; unusable input is refused in words. */

#include "self_test.h"
#include "trainer.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 6, HALF = 3, ARGUMENTS = 40, PATH = 512 };

/* Files of the test, in a folder of their own. */
typedef struct test_files {
    char folder[PATH], text[PATH + 16], checkpoint[PATH + 16], other[PATH + 16];
} test_files;

static int make_files(test_files *files)
{
    const char *parent = getenv("TMPDIR");
    FILE *text;
    snprintf(files->folder, sizeof files->folder, "%.400s/lm-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(files->folder))
        return -1;
    snprintf(files->text, sizeof files->text, "%s/text", files->folder);
    snprintf(files->checkpoint, sizeof files->checkpoint, "%s/checkpoint", files->folder);
    snprintf(files->other, sizeof files->other, "%s/other", files->folder);
    text = fopen(files->text, "w");
    if (!text)
        return -1;
    for (int i = 0; i < 40; i++)
        fprintf(text, "%d squared is %d.\n", i, i * i);
    return fclose(text);
}

static void remove_files(const test_files *files)
{
    unlink(files->text);
    unlink(files->checkpoint);
    unlink(files->other);
    rmdir(files->folder);
}

/* A tiny run with further options, which end with NULL; or one resumed from a checkpoint, which
 * knows the rest. */
static int start_run(lm_trainer *trainer, lm_settings *settings, fwa_context *context,
                     const char *const *more, lm_message *message)
{
    static const char *const TINY[] = {"lm",      "--layers",   "1",       "--dim",   "16",
                                       "--heads", "2",          "--batch", "3",       "--context",
                                       "20",      "--head-dim", "8",       "--steps", "6"};
    const char *arguments[ARGUMENTS];
    int count = 0;
    const int resumed = *more && strcmp(*more, "--resume") == 0;
    for (size_t i = 0; i < (resumed ? 1 : sizeof TINY / sizeof *TINY); i++)
        arguments[count++] = TINY[i];
    for (; *more && count < ARGUMENTS - 1; more++)
        arguments[count++] = *more;
    arguments[count] = NULL;
    if (settings_parse(settings, count, arguments, message) != 0) {
        settings_destroy(settings);
        return -1;
    }
    if (trainer_create(trainer, context, settings, message) != 0) {
        settings_destroy(settings);
        return -1;
    }
    return 0;
}

static void end_run(lm_trainer *trainer, lm_settings *settings)
{
    trainer_destroy(trainer);
    settings_destroy(settings);
}

/* Runs `steps` steps, keeps their losses, and saves or hands out the weights where wanted. */
static int run_steps(fwa_context *context, const char *const *more, int steps, double *losses,
                     const char *save_to, uint64_t *digest, lm_message *message)
{
    lm_trainer trainer;
    lm_settings settings;
    int result = start_run(&trainer, &settings, context, more, message);
    if (result != 0)
        return result;
    for (int i = 0; result == 0 && i < steps; i++)
        result = trainer_step(&trainer, &losses[i], message);
    if (result == 0 && save_to)
        result = trainer_save(&trainer, save_to, message);
    if (digest) {
        const unsigned char *bytes = (const unsigned char *)trainer.model.weights;
        *digest = UINT64_C(14695981039346656037); /* FNV-1a */
        for (size_t i = 0; i < trainer.model.size * sizeof(float); i++)
            *digest = (*digest ^ bytes[i]) * UINT64_C(1099511628211);
    }
    end_run(&trainer, &settings);
    return result;
}

/* ---- Resuming ---- */

static void check_resume(self_test_tally *tally, const test_files *files, const char *const *data,
                         const char *name)
{
    double whole[STEPS] = {0}, parts[STEPS] = {1};
    uint64_t whole_digest = 0, parts_digest = 1;
    lm_message message = {""};
    const char *resume[] = {"--resume", files->checkpoint, NULL};
    const int result =
        run_steps(tally->context, data, STEPS, whole, NULL, &whole_digest, &message) ||
        run_steps(tally->context, data, HALF, parts, files->checkpoint, NULL, &message) ||
        run_steps(tally->context, resume, STEPS - HALF, parts + HALF, NULL, &parts_digest,
                  &message);
    self_test_check(tally, result == 0, "%s: %s", name, message.text);
    self_test_check(tally, memcmp(whole, parts, sizeof whole) == 0,
                    "%s: a resumed run has other losses: the last is %.17g, not %.17g", name,
                    parts[STEPS - 1], whole[STEPS - 1]);
    self_test_check(tally, whole_digest == parts_digest, "%s: a resumed run has other weights",
                    name);
    self_test_check(tally, whole[STEPS - 1] < whole[0], "%s: the loss does not fall: %g, %g", name,
                    whole[0], whole[STEPS - 1]);
}

/* --steps and --seconds of a resumed run come on top of the HALF steps that the checkpoint has, and
 * 0 asks for nothing more. */
static void check_going_on(self_test_tally *tally, const test_files *files)
{
    const char *const cases[][2] = {{"--steps", "2"}, {"--steps", "0"}, {"--seconds", "0.001"}};
    const int64_t totals[] = {HALF + 2, 0};
    for (int i = 0; i < 3; i++) {
        const char *const more[] = {"--resume", files->checkpoint, cases[i][0], cases[i][1], NULL};
        lm_trainer trainer;
        lm_settings settings;
        lm_message message = {""};
        const int result = start_run(&trainer, &settings, tally->context, more, &message);
        self_test_check(tally, result == 0, "%s %s: %s", cases[i][0], cases[i][1], message.text);
        if (result != 0)
            continue;
        const double total = i < 2 ? (double)totals[i] : trainer.progress.seconds + 0.001;
        const double got = i < 2 ? (double)settings.steps : settings.seconds;
        self_test_check(tally, got == total, "%s %s: %.17g in all, not %.17g", cases[i][0],
                        cases[i][1], got, total);
        self_test_check(tally, (trainer_done(&trainer) < 1.0) == (i != 1), "%s %s: done is %g",
                        cases[i][0], cases[i][1], trainer_done(&trainer));
        end_run(&trainer, &settings);
    }
}

static void check_threads(self_test_tally *tally, const char *const *data)
{
    const int threads = omp_get_max_threads();
    double one[STEPS] = {0}, more[STEPS] = {1};
    lm_message message = {""};
    int result;
    omp_set_num_threads(1);
    result = run_steps(tally->context, data, STEPS, one, NULL, NULL, &message);
    omp_set_num_threads(3);
    result |= run_steps(tally->context, data, STEPS, more, NULL, NULL, &message);
    omp_set_num_threads(threads);
    self_test_check(tally, result == 0 && memcmp(one, more, sizeof one) == 0,
                    "losses depend on the number of threads: %.17g, %.17g %s", one[STEPS - 1],
                    more[STEPS - 1], message.text);
}

/* ---- Data ---- */

/* Adds the two numbers of a row by machine arithmetic and compares with its targets. */
static int is_right_addition(const lm_batch *batch)
{
    char text[64] = "", sum[64], reversed[64];
    long long a, b;
    int length, equals;
    snprintf(text, sizeof text, "%.*s", (int)batch->tokens, (const char *)batch->input);
    if (sscanf(text, "%lld+%lld=", &a, &b) != 2)
        return 0;
    equals = (int)(strchr(text, '=') - text);
    length = snprintf(sum, sizeof sum, "%lld", a + b);
    for (int i = 0; i < length; i++)
        reversed[i] = sum[length - 1 - i];
    reversed[length] = '\n';
    if (batch->tokens != equals + 1 + length)
        return 0;
    for (int64_t t = 0; t < batch->tokens; t++)
        if (batch->target[t] != (t < equals ? -1 : reversed[t - equals]))
            return 0;
    return 1;
}

static void check_additions(self_test_tally *tally)
{
    enum { ROWS = 500, HIGH = 15 };
    lm_data data;
    lm_batch batch = {0};
    lm_message message = {""};
    int wrong = ROWS;
    data_open_addition(&data, 1, HIGH, 4);
    if (batch_create(&batch, data.context, 1, &message) == 0) {
        wrong = 0;
        for (uint64_t row = 0; row < ROWS; row++) {
            batch_clear(&batch);
            data_append_row(&data, RANDOM_TRAIN, row, &batch);
            wrong += !is_right_addition(&batch);
        }
    }
    batch_destroy(&batch);
    self_test_check(tally, wrong == 0, "%d additions are wrong %s", wrong, message.text);
}

/* ---- Refusals ---- */

static void check_refusal(self_test_tally *tally, const char *const *more, const char *words)
{
    lm_trainer trainer;
    lm_settings settings;
    lm_message message = {""};
    const int result = start_run(&trainer, &settings, tally->context, more, &message);
    if (result == 0)
        end_run(&trainer, &settings);
    self_test_check(tally, result != 0 && strstr(message.text, words),
                    "'%s' was expected in the message '%s'", words, message.text);
}

/* Copies the first `size` bytes of the checkpoint, and a tail after them. */
static int damage(const test_files *files, long size, const char *tail)
{
    FILE *from = fopen(files->checkpoint, "rb"), *to = fopen(files->other, "wb");
    int byte, result = from && to ? 0 : -1;
    for (long i = 0; result == 0 && i < size && (byte = fgetc(from)) != EOF; i++)
        fputc(byte, to);
    if (to)
        fputs(tail, to);
    if (from)
        fclose(from);
    return to && fclose(to) == 0 ? result : -1;
}

/* Copies the checkpoint with another value in its metadata. */
static int falsify(const test_files *files, const char *key, const char *value)
{
    safetensors_message message;
    safetensors *file = safetensors_read(files->checkpoint, &message);
    const int result = !file || safetensors_set_metadata(file, key, value, &message) ||
                       safetensors_write(file, files->other, &message);
    safetensors_free(file);
    return result;
}

static void check_refusals(self_test_tally *tally, const test_files *files)
{
    const char *const cases[][6] = {
        {"is not a whole number", "--addition", "--batch", "x", NULL},
        {"is not between", "--addition", "--batch", "0", NULL},
        {"is not between", "--addition", "--learning-rate", "nan", NULL},
        {"LO:HI", "--addition", "--digits", "5", NULL},
        {"is not between", "--addition", "--digits", "5:2", NULL},
        {"is not an option", "--addition", "extra", NULL},
        {"unknown option", "--colour", NULL},
        {"nothing to train on", NULL},
        {"exclude each other", "--addition", "--text", files->text, NULL},
        {"cannot open", "--text", "/nowhere/text", NULL},
        {"needs", "--text", files->text, "--context", "5000", NULL},
        {"no rule is called", "--addition", "--rule", "falcon9", NULL},
        {"window", "--addition", "--rule", "falcon2", "--window", "4"},
        {"cannot read the checkpoint", "--resume", "/nowhere/checkpoint", NULL},
        {"--dim 16, not 32", "--resume", files->checkpoint, "--dim", "32", NULL},
        {"--rule falcon1, not retnet", "--resume", files->checkpoint, "--rule", "retnet", NULL},
        {"cannot read the checkpoint", "--resume", files->text, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *arguments[6] = {NULL};
        for (int j = 0; j < 5; j++)
            arguments[j] = cases[i][j + 1];
        check_refusal(tally, arguments, cases[i][0]);
    }
}

/* Checkpoints cut short, with bytes behind their end, or with metadata that their tensors deny. */
static void check_damage(self_test_tally *tally, const test_files *files)
{
    static const long SIZES[] = {0, 7, 8, 100, 3000, 20000, 100000000};
    static const char *const FALSE_DATA[][3] = {
        {"format", "another", "is not a checkpoint of this program"},
        {"dim", "24", "'embedding' is not f32 [256, 24]"},
        {"layers", "2", "'layers.1.mixer.norm' is missing"},
        {"rule", "nonsense", "no rule is called 'nonsense'"},
        {"heads", "many", "'many' is not a whole number"},
        {"progress.step", "-1", "-1 is not between 0 and"},
    };
    const char *resume[] = {"--resume", files->other, NULL};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        self_test_check(tally, damage(files, SIZES[i], "x") == 0, "cannot write %s", files->other);
        check_refusal(tally, resume, "cannot read the checkpoint");
    }
    for (size_t i = 0; i < sizeof FALSE_DATA / sizeof *FALSE_DATA; i++) {
        self_test_check(tally, falsify(files, FALSE_DATA[i][0], FALSE_DATA[i][1]) == 0,
                        "cannot write %s", files->other);
        check_refusal(tally, resume, FALSE_DATA[i][2]);
    }
}

void self_test_runs(self_test_tally *tally)
{
    test_files files;
    const int made = make_files(&files);
    const char *const additions[] = {"--addition", "--digits", "1:5", NULL};
    const char *const text[] = {"--text", files.text, NULL};
    self_test_check(tally, made == 0, "cannot write in %s", files.folder);
    if (made == 0) {
        check_additions(tally);
        check_threads(tally, additions);
        check_resume(tally, &files, additions, "additions");
        check_resume(tally, &files, text, "text");
        check_going_on(tally, &files);
        check_refusals(tally, &files);
        check_damage(tally, &files);
    }
    remove_files(&files);
}
