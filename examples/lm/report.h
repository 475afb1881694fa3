/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_REPORT_H
#define LM_REPORT_H

/* What the user sees: a bar on a terminal, lines, tables, and CSV files. */

#include "trainer.h"

#include <stdio.h>

typedef struct lm_report {
    const lm_trainer *trainer;
    FILE *curve;      /* or NULL */
    int32_t terminal; /* 1: standard output is one */
    int64_t start_step;
    double start_done, start_seconds, start_tokens;
    double bar_time; /* when the bar was last drawn */
    double loss_sum; /* since the last line */
    int64_t loss_count;
    double train_loss, validation_loss; /* of the last line */
} lm_report;

int report_open(lm_report *report, const lm_trainer *trainer, lm_message *message);
/* Closes the curve; fails where it could not be written. */
int report_close(lm_report *report, lm_message *message);

/* After every step. */
void report_step(lm_report *report, double loss);
/* After an evaluation: a line, and a row of the curve. */
void report_line(lm_report *report, double validation_loss);

/* The final table, and a row of the summary file. */
int report_summary(const lm_report *report, lm_message *message);
/* The final test on additions. */
int report_additions(lm_trainer *trainer, lm_message *message);

#endif
