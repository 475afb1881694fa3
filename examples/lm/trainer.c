/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include "optimizer.h"

#include <math.h>
#include <string.h>
#include <time.h>

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int open_data(lm_trainer *trainer, lm_message *message)
{
    const lm_settings *settings = trainer->settings;
    if (settings->addition && settings->text[0])
        return lm_fail(message, "--text and --addition exclude each other");
    if (settings->addition) {
        data_open_addition(&trainer->data, settings->digits.low, settings->digits.high,
                           (uint64_t)settings->seed);
        return 0;
    }
    if (settings->steps == 0 && !settings_given(settings, "text")) {
        trainer->data.context = settings->context; /* only generation is wanted */
        return 0;
    }
    if (!settings->text[0])
        return lm_fail(message, "nothing to train on: give --text FILE or --addition");
    return data_open_text(&trainer->data, settings->text, settings->context,
                          (uint64_t)settings->seed, message);
}

static int create_all(lm_trainer *trainer, fwa_context *context, lm_settings *settings,
                      const safetensors *file, lm_message *message)
{
    const lm_config config = settings_model(settings);
    const int64_t rows = settings->batch;
    if (model_create(&trainer->model, context, &config, (uint64_t)settings->seed, message) != 0)
        return -1;
    if (file &&
        (checkpoint_load(settings->resume, file, &trainer->model, &trainer->progress, message) !=
             0 ||
         settings_go_on(settings, trainer->progress.step, trainer->progress.seconds, message) != 0))
        return -1;
    if (open_data(trainer, message) != 0 ||
        batch_create(&trainer->batch, rows * trainer->data.context, rows, message) != 0)
        return -1;
    return activations_create(&trainer->activations, &trainer->model, rows * trainer->data.context,
                              rows, 1, message);
}

int trainer_create(lm_trainer *trainer, fwa_context *context, lm_settings *settings,
                   lm_message *message)
{
    safetensors *file = NULL;
    int result = 0;
    memset(trainer, 0, sizeof *trainer);
    trainer->settings = settings;
    if (settings->resume[0]) {
        file = checkpoint_open(settings->resume, settings, message);
        result = file ? 0 : -1;
    }
    if (result == 0)
        result = settings_resolve(settings, message);
    if (result == 0)
        result = create_all(trainer, context, settings, file, message);
    safetensors_free(file);
    if (result != 0)
        trainer_destroy(trainer);
    return result;
}

void trainer_destroy(lm_trainer *trainer)
{
    activations_destroy(&trainer->activations);
    batch_destroy(&trainer->batch);
    model_destroy(&trainer->model);
    data_close(&trainer->data);
}

int trainer_has_data(const lm_trainer *trainer)
{
    return trainer->data.text || trainer->settings->addition;
}

double trainer_done(const lm_trainer *trainer)
{
    const lm_settings *settings = trainer->settings;
    double done = settings->steps > 0 ? (double)trainer->progress.step / (double)settings->steps
                                      : 1;
    if (settings->seconds > 0)
        done = fmax(done, trainer->progress.seconds / settings->seconds);
    return fmin(done, 1.0);
}

int trainer_step(lm_trainer *trainer, double *loss, lm_message *message)
{
    const lm_settings *settings = trainer->settings;
    const optimizer_options options = {settings->weight_decay, settings->clip};
    const double start = seconds_now();
    const double rate = optimizer_rate(settings->learning_rate, settings->warmup,
                                       trainer_done(trainer));
    lm_batch *batch = &trainer->batch;
    int64_t count;
    double norm;
    batch_clear(batch);
    for (int64_t row = 0; row < settings->batch; row++)
        data_append_row(&trainer->data, RANDOM_TRAIN, (uint64_t)(trainer->progress.position + row),
                        batch);
    if (model_forward(&trainer->model, &trainer->activations, batch, NULL, message) != 0)
        return -1;
    *loss = model_loss(&trainer->activations, batch, &count) / (double)count;
    if (model_backward(&trainer->model, &trainer->activations, batch, message) != 0)
        return -1;
    norm = optimizer_step(&trainer->model, &options, rate, trainer->progress.step + 1);
    if (!isfinite(*loss) || !isfinite(norm))
        return lm_fail(
            message, "step %lld diverged (loss %g, gradient norm %g); try a lower --learning-rate",
            (long long)trainer->progress.step + 1, *loss, norm);
    trainer->progress.step++;
    trainer->progress.position += settings->batch;
    trainer->progress.tokens += batch->tokens;
    trainer->progress.seconds += seconds_now() - start;
    return 0;
}

int trainer_evaluate(lm_trainer *trainer, int64_t rows, double *loss, lm_message *message)
{
    const int64_t all = data_held_out_rows(&trainer->data);
    const int64_t last = rows > 0 && rows < all ? rows : all;
    lm_batch *batch = &trainer->batch;
    int64_t total = 0;
    double sum = 0.0;
    for (int64_t row = 0; row < last;) {
        int64_t count;
        batch_clear(batch);
        for (; row < last && batch->sequences < batch->sequence_capacity; row++)
            data_append_held_out(&trainer->data, row * all / last, batch);
        if (model_forward(&trainer->model, &trainer->activations, batch, NULL, message) != 0)
            return -1;
        sum += model_loss(&trainer->activations, batch, &count);
        total += count;
    }
    *loss = sum / (double)total;
    return 0;
}

static int64_t likeliest(const float *logits)
{
    int64_t best = 0;
    for (int64_t c = 1; c < VOCABULARY; c++)
        if (logits[c] > logits[best])
            best = c;
    return best;
}

/* Counts right digits, and the sequences that are right throughout. */
static void score_batch(const lm_batch *batch, const float *logits, int64_t *digits,
                        int64_t *right_digits, int64_t *right_sums)
{
    for (int64_t n = 0; n < batch->sequences; n++) {
        int all = 1;
        for (int64_t t = batch->starts[n]; t < batch->starts[n + 1]; t++) {
            const int16_t target = batch->target[t];
            const int right = target < 0 || likeliest(logits + t * VOCABULARY) == target;
            const int digit = target >= '0';
            all &= right;
            *digits += digit;
            *right_digits += digit && right;
        }
        *right_sums += all;
    }
}

int trainer_test_addition(lm_trainer *trainer, int64_t digits, addition_score *score,
                          lm_message *message)
{
    enum { SEQUENCES = 16 };
    const int64_t tests = trainer->settings->test_count;
    const int64_t capacity = SEQUENCES * data_addition_tokens(digits);
    int64_t count = 0, right_digits = 0, right_sums = 0;
    lm_activations activations = {0};
    lm_batch batch = {0};
    int result = batch_create(&batch, capacity, SEQUENCES, message);
    if (result == 0)
        result = activations_create(&activations, &trainer->model, capacity, SEQUENCES, 0, message);
    for (int64_t i = 0; result == 0 && i < tests;) {
        batch_clear(&batch);
        for (; i < tests && batch.sequences < SEQUENCES; i++)
            data_append_addition(&trainer->data, digits, (uint64_t)i, &batch);
        result = model_forward(&trainer->model, &activations, &batch, NULL, message);
        if (result == 0)
            score_batch(&batch, activations.logits, &count, &right_digits, &right_sums);
    }
    if (result == 0) {
        score->digit_accuracy = (double)right_digits / (double)count;
        score->exact_accuracy = (double)right_sums / (double)tests;
    }
    activations_destroy(&activations);
    batch_destroy(&batch);
    return result;
}

int trainer_save(const lm_trainer *trainer, const char *path, lm_message *message)
{
    return checkpoint_write(path, &trainer->model, trainer->settings, &trainer->progress, message);
}
