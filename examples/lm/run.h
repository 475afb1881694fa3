/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_RUN_H
#define LM_RUN_H

/* A whole run: training, evaluation, tests, generation. */

#include "settings.h"

/* The program's exit statuses. */
typedef enum run_status {
    RUN_OK = 0,
    RUN_FAILED = 1,       /* with the message filled */
    RUN_USAGE = 2,        /* with the message filled */
    RUN_INTERRUPTED = 130 /* by SIGINT or SIGTERM; the message says what was saved */
} run_status;

run_status run(fwa_context *context, lm_settings *settings, lm_message *message);

#endif
