/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_SELF_TEST_H
#define LM_SELF_TEST_H

#include "common.h"

#include <fwa/fwa.h>

/* Checks gradients, generation, checkpoints and refusals; prints what fails and 'N passed, N
 * failed'. Returns how many failed. */
int self_test(fwa_context *context);

/* What the parts share. */
typedef struct self_test_tally {
    fwa_context *context;
    int passed, failed;
} self_test_tally;

/* Counts one check, and prints the words where it failed. */
void self_test_check(self_test_tally *tally, int passed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void self_test_model(self_test_tally *tally, const char *rule); /* gradients and generation */
void self_test_optimizer(self_test_tally *tally);
void self_test_runs(self_test_tally *tally); /* training and checkpoints */

#endif
