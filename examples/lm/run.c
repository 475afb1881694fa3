/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include "generate.h"
#include "matmul.h"
#include "report.h"

#include <math.h>
#include <signal.h>
#include <string.h>

/* Lines of a run, and rows of the held-out part that each of them looks at; the last one sees all.
 */
enum { LINES = 10, LINE_ROWS = 64 };

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

/* The first signal ends the run after the step, a second one at once. */
static void catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = request_stop;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int save(const lm_trainer *trainer, lm_message *message)
{
    const char *path = trainer->settings->checkpoint;
    return path[0] ? trainer_save(trainer, path, message) : 0;
}

static run_status interrupted(const lm_trainer *trainer, lm_message *message)
{
    const long long step = (long long)trainer->progress.step;
    const char *path = trainer->settings->checkpoint;
    if (!path[0])
        lm_fail(message, "interrupted after step %lld; nothing is saved without --checkpoint",
                step);
    else if (save(trainer, message) != 0)
        return RUN_FAILED;
    else
        lm_fail(message, "interrupted after step %lld; --resume %.300s goes on", step, path);
    return RUN_INTERRUPTED;
}

static int line_of(const lm_trainer *trainer)
{
    return (int)floor(trainer_done(trainer) * LINES);
}

static run_status train(lm_trainer *trainer, lm_report *report, lm_message *message)
{
    while (trainer_done(trainer) < 1.0) {
        const int line = line_of(trainer);
        double loss;
        if (trainer_step(trainer, &loss, message) != 0)
            return RUN_FAILED;
        report_step(report, loss);
        if (stop_requested)
            return interrupted(trainer, message);
        if (line_of(trainer) > line) {
            const int64_t rows = trainer_done(trainer) < 1.0 ? LINE_ROWS : 0;
            if (trainer_evaluate(trainer, rows, &loss, message) != 0)
                return RUN_FAILED;
            report_line(report, loss);
            if (save(trainer, message) != 0)
                return RUN_FAILED;
        }
    }
    return RUN_OK;
}

static int finish(lm_trainer *trainer, lm_report *report, lm_message *message)
{
    const lm_settings *settings = trainer->settings;
    const generate_options options = {settings->prompt, settings->sample, settings->temperature,
                                      (uint64_t)settings->seed};
    if (trainer_has_data(trainer)) {
        /* A run that was already done has no line yet. */
        if (isnan(report->validation_loss) &&
            trainer_evaluate(trainer, 0, &report->validation_loss, message) != 0)
            return -1;
        if (report_summary(report, message) != 0)
            return -1;
    }
    if (settings->addition && report_additions(trainer, message) != 0)
        return -1;
    if (settings->sample > 0) {
        printf("\n");
        if (generate(&trainer->model, &options, stdout, message) != 0)
            return -1;
        printf("\n");
    }
    return 0;
}

run_status run(fwa_context *context, lm_settings *settings, lm_message *message)
{
    lm_trainer trainer;
    lm_report report;
    lm_message ignored;
    run_status status;
    if (trainer_create(&trainer, context, settings, message) != 0)
        return RUN_FAILED;
    if (report_open(&report, &trainer, message) != 0) {
        trainer_destroy(&trainer);
        return RUN_FAILED;
    }
    catch_signals();
    if (trainer_done(&trainer) < 1.0)
        printf("%s on %s, %d threads, %s, %s\n", settings->rule,
               settings->addition ? "additions" : settings->text, fwa_context_threads(context),
               fwa_plan_kernel_name(trainer.model.plan, FWA_PASS_BACKWARD), matmul_library());
    status = train(&trainer, &report, message);
    if (status == RUN_OK && finish(&trainer, &report, message) != 0)
        status = RUN_FAILED;
    if (report_close(&report, status == RUN_OK ? message : &ignored) != 0 && status == RUN_OK)
        status = RUN_FAILED;
    trainer_destroy(&trainer);
    return status;
}
