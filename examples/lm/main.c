/* SPDX-License-Identifier: Apache-2.0 */

/*
 * lm: trains a small language model whose token mixing is libfwa's. `lm --help` shows how.
 *
 *     lm --text FILE --rule falcon1 --seconds 60 --checkpoint run.safetensors --sample 300
 *     lm --resume run.safetensors --seconds 120          another 120 seconds
 *     lm --addition --batch 64 --steps 1500 --digits 1:6 --test-digits 1:9
 *
 * On a machine whose cores are shared, set OMP_WAIT_POLICY=passive. Exit status: 0, 1 for a
 * failure, 2 for a wrong command line, 130 after SIGINT or SIGTERM; standard error says why.
 */

#include "matmul.h"
#include "run.h"
#include "self_test.h"

#include <fwa/fwa.h>

#include <omp.h>
#include <stdio.h>
#include <string.h>

static void list_rules(void)
{
    const fwa_preset *preset;
    for (int32_t i = 0; (preset = fwa_preset_get(i)) != NULL; i++)
        printf("%-20s %s\n", preset->name, preset->title);
}

/* The model's own layers work on ordinary memory, so libfwa has to as well. */
static int open_context(const lm_settings *settings, fwa_context **context, lm_message *message)
{
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    options.backend = settings->backend;
    /* The self-test's models are too small for more than one thread. */
    options.threads = settings->self_test && settings->threads == 0 ? 1
                                                                    : (int32_t)settings->threads;
    if (strcmp(settings->backend, "cpu") != 0 && strcmp(settings->backend, "reference") != 0)
        return lm_fail(message, "--backend: '%.60s' is neither cpu nor reference",
                       settings->backend);
    if (fwa_context_create(&options, context) != FWA_OK)
        return lm_fail(message, "%s", fwa_error_message());
    omp_set_num_threads(fwa_context_threads(*context));
    matmul_start();
    return 0;
}

static run_status run_settings(lm_settings *settings, lm_message *message)
{
    fwa_context *context = NULL;
    run_status status;
    if (settings->list_rules) {
        list_rules();
        return RUN_OK;
    }
    if (open_context(settings, &context, message) != 0)
        return RUN_FAILED;
    status = settings->self_test ? (self_test(context) ? RUN_FAILED : RUN_OK)
                                 : run(context, settings, message);
    fwa_context_destroy(context);
    return status;
}

int main(int argc, const char **argv)
{
    lm_message message = {""};
    lm_settings settings;
    run_status status = RUN_USAGE;
    if (settings_parse(&settings, argc, argv, &message) == 0)
        status = run_settings(&settings, &message);
    settings_destroy(&settings);
    if (fflush(stdout) != 0 && status == RUN_OK) {
        lm_fail(&message, "cannot write to standard output");
        status = RUN_FAILED;
    }
    if (message.text[0])
        fprintf(stderr, "%slm: %s\n", status == RUN_INTERRUPTED ? "\n" : "", message.text);
    return status;
}
