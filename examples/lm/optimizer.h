/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_OPTIMIZER_H
#define LM_OPTIMIZER_H

/* AdamW with gradient clipping, and the learning rate's schedule. */

#include "model.h"

typedef struct optimizer_options {
    double weight_decay; /* of matrices; norms, biases and the embedding have none */
    double clip;         /* largest norm of the gradient; 0: no limit */
} optimizer_options;

/* Linear warm-up over the first `warmup` of the run, then a cosine to a tenth. progress in [0, 1].
 */
double optimizer_rate(double peak, double warmup, double progress);

/* One step, counted from 1, on model->gradients. Returns their norm before clipping;
 * where that is not finite, nothing was changed. */
double optimizer_step(lm_model *model, const optimizer_options *options, double rate, int64_t step);

#endif
