/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_TRAINER_H
#define LM_TRAINER_H

/* A model with its data and buffers: one step, one evaluation, one test at a time. */

#include "checkpoint.h"
#include "data.h"
#include "pass.h"

typedef struct lm_trainer {
    const lm_settings *settings;
    lm_data data;
    lm_model model;
    lm_activations activations;
    lm_batch batch;
    lm_progress progress;
} lm_trainer;

/* Opens the data and makes the model; or, where settings->resume is given, takes both from there
 * (settings are changed then). The context must outlive it. */
int trainer_create(lm_trainer *trainer, fwa_context *context, lm_settings *settings,
                   lm_message *message);
void trainer_destroy(lm_trainer *trainer);

/* 0 where neither training nor evaluation was asked for: --steps 0 without --text or --addition. */
int trainer_has_data(const lm_trainer *trainer);

/* From 0 to 1, where the run is done. */
double trainer_done(const lm_trainer *trainer);

/* One optimiser step; *loss in nats per token is that before it. */
int trainer_step(lm_trainer *trainer, double *loss, lm_message *message);

/* The held-out loss in nats per token, over at most so many rows, evenly spread (0: all). */
int trainer_evaluate(lm_trainer *trainer, int64_t rows, double *loss, lm_message *message);

/* Additions of two summands of `digits` digits, given the right digits before (teacher forcing):
 * the part of the sum's digits that are right, and of the additions that are right to the end mark.
 */
typedef struct addition_score {
    double digit_accuracy, exact_accuracy;
} addition_score;
int trainer_test_addition(lm_trainer *trainer, int64_t digits, addition_score *score,
                          lm_message *message);

int trainer_save(const lm_trainer *trainer, const char *path, lm_message *message);

double seconds_now(void);

#endif
