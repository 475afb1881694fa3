/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

int report_open(lm_report *report, const lm_trainer *trainer, lm_message *message)
{
    const lm_settings *settings = trainer->settings;
    const int go_on = settings->resume[0] != '\0';
    memset(report, 0, sizeof *report);
    report->trainer = trainer;
    report->terminal = isatty(STDOUT_FILENO);
    report->start_done = trainer_done(trainer);
    report->start_step = trainer->progress.step;
    report->start_seconds = trainer->progress.seconds;
    report->start_tokens = (double)trainer->progress.tokens;
    report->train_loss = report->validation_loss = NAN;
    if (!settings->curve[0])
        return 0;
    report->curve = fopen(settings->curve, go_on ? "a" : "w");
    if (!report->curve)
        return lm_fail(message, "cannot write %.400s: %s", settings->curve, strerror(errno));
    if (!go_on)
        fprintf(report->curve, "step,tokens,seconds,train_loss,validation_loss\n");
    return 0;
}

/* Closes a file that was written to, and says whether all of it arrived. */
static int close_written(FILE *file, const char *path, lm_message *message)
{
    const int bad = ferror(file);
    if (fclose(file) != 0 || bad)
        return lm_fail(message, "cannot write all of %.400s", path);
    return 0;
}

int report_close(lm_report *report, lm_message *message)
{
    FILE *curve = report->curve;
    report->curve = NULL;
    return curve ? close_written(curve, report->trainer->settings->curve, message) : 0;
}

static double tokens_per_second(const lm_report *report)
{
    const double seconds = report->trainer->progress.seconds - report->start_seconds;
    return seconds > 0.0
               ? ((double)report->trainer->progress.tokens - report->start_tokens) / seconds
               : 0.0;
}

static double seconds_left(const lm_report *report)
{
    const double done = trainer_done(report->trainer), part = done - report->start_done;
    const double seconds = report->trainer->progress.seconds - report->start_seconds;
    return part > 0.0 ? (1.0 - done) * seconds / part : 0.0;
}

static void draw_bar(lm_report *report, double loss)
{
    enum { WIDTH = 24 };
    const double done = trainer_done(report->trainer);
    const int filled = (int)(done * WIDTH);
    printf("\r[%.*s%*s] %3.0f%%  step %lld  loss %.3f  %.0f tokens/s  %.0f s left\033[K", filled,
           "########################", WIDTH - filled, "", 100.0 * done,
           (long long)report->trainer->progress.step, loss, tokens_per_second(report),
           seconds_left(report));
    fflush(stdout);
}

void report_step(lm_report *report, double loss)
{
    const double now = seconds_now();
    report->loss_sum += loss;
    report->loss_count++;
    if (report->terminal && now - report->bar_time > 0.1) {
        report->bar_time = now;
        draw_bar(report, loss);
    }
}

void report_line(lm_report *report, double validation_loss)
{
    const lm_progress *progress = &report->trainer->progress;
    report->train_loss = report->loss_sum / (double)report->loss_count;
    report->validation_loss = validation_loss;
    report->loss_sum = 0.0;
    report->loss_count = 0;
    printf("%sstep %6lld  loss %.4f  validation %.4f  %7.0f tokens/s  %5.1f s left%s\n",
           report->terminal ? "\r" : "", (long long)progress->step, report->train_loss,
           validation_loss, tokens_per_second(report), seconds_left(report),
           report->terminal ? "\033[K" : "");
    fflush(stdout);
    if (report->curve) {
        fprintf(report->curve, "%lld,%lld,%.3f,%.6f,%.6f\n", (long long)progress->step,
                (long long)progress->tokens, progress->seconds, report->train_loss,
                validation_loss);
        fflush(report->curve);
    }
}

/* ---- The end ---- */

/* Parameters as a person counts them, without the padding of the flat arrays. */
static int64_t count_parameters(const lm_model *model)
{
    int64_t count = 0;
    for (int32_t i = 0; i < model->parameter_count; i++)
        count += model->parameters[i].rows * model->parameters[i].columns;
    return count;
}

enum { FIGURE_SIZE = 40 };

/* A figure of this run's training; `none` where there was nothing left to train. */
static const char *trained(const lm_report *report, int decimals, double figure, const char *none,
                           char text[FIGURE_SIZE])
{
    if (report->trainer->progress.step == report->start_step)
        return none;
    snprintf(text, FIGURE_SIZE, "%.*f", decimals, figure);
    return text;
}

static int append_summary(const lm_report *report, const char *path, lm_message *message)
{
    const lm_trainer *trainer = report->trainer;
    const lm_progress *progress = &trainer->progress;
    char speed[FIGURE_SIZE], loss[FIGURE_SIZE];
    FILE *file = fopen(path, "a");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        lm_fail(message, "cannot write %.400s: %s", path, strerror(errno));
        if (file)
            fclose(file);
        return -1;
    }
    if (ftell(file) == 0)
        fprintf(file, "rule,kernel,parameters,steps,tokens,seconds,tokens_per_second,train_loss,"
                      "validation_loss,bits_per_byte\n");
    fprintf(file, "%s,%s,%lld,%lld,%lld,%.2f,%s,%s,%.4f,%.4f\n", trainer->model.config.rule,
            fwa_plan_kernel_name(trainer->model.plan, FWA_PASS_FORWARD),
            (long long)count_parameters(&trainer->model), (long long)progress->step,
            (long long)progress->tokens, progress->seconds,
            trained(report, 0, tokens_per_second(report), "", speed),
            trained(report, 4, report->train_loss, "", loss), report->validation_loss,
            report->validation_loss / M_LN2);
    return close_written(file, path, message);
}

int report_summary(const lm_report *report, lm_message *message)
{
    const lm_trainer *trainer = report->trainer;
    const lm_progress *progress = &trainer->progress;
    const char *path = trainer->settings->summary;
    char speed[FIGURE_SIZE], loss[FIGURE_SIZE];
    if (progress->step == report->start_step)
        printf("nothing left to train: --steps or --seconds says how much more\n");
    printf("\n"
           "rule              %s\n"
           "kernel            %s\n"
           "parameters        %lld\n"
           "steps             %lld\n"
           "tokens            %lld\n"
           "seconds           %.1f\n"
           "tokens/s          %s\n"
           "train loss        %s nats/byte\n"
           "validation loss   %.4f nats/byte\n"
           "bits per byte     %.4f\n",
           trainer->model.config.rule, fwa_plan_kernel_name(trainer->model.plan, FWA_PASS_FORWARD),
           (long long)count_parameters(&trainer->model), (long long)progress->step,
           (long long)progress->tokens, progress->seconds,
           trained(report, 0, tokens_per_second(report), "-", speed),
           trained(report, 4, report->train_loss, "-", loss), report->validation_loss,
           report->validation_loss / M_LN2);
    return path[0] ? append_summary(report, path, message) : 0;
}

int report_additions(lm_trainer *trainer, lm_message *message)
{
    const lm_settings *settings = trainer->settings;
    printf("\ndigits  digit accuracy  exact\n");
    for (int64_t n = settings->test_digits.low; n <= settings->test_digits.high; n++) {
        const int trained = n >= settings->digits.low && n <= settings->digits.high;
        addition_score score;
        if (trainer_test_addition(trainer, n, &score, message) != 0)
            return -1;
        printf("%6lld  %13.1f%%  %5.1f%%%s\n", (long long)n, 100.0 * score.digit_accuracy,
               100.0 * score.exact_accuracy, trained ? "" : "  not in training");
    }
    return 0;
}
