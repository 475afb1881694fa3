/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_DECAY_H
#define FWA_COMMON_DECAY_H

/*
 * The decay algebra, once for every backend: step size, positive-decay clamp, carry and their
 * gradients. Plain C that is also valid device code: define FWA_DEVICE to the qualifiers a function
 * needs there. The one exponent evaluated here, a gate's, is <= 0. Decays over several tokens are
 * products of carries, which have no logarithm to lose digits in.
 *
 * fwa_decay_step_f32 and _f64 etc. come from decay_tmpl.h.
 */

#ifndef FWA_DEVICE
#define FWA_DEVICE static inline
#endif

#include <math.h>

/* exp(-104) is 0 in float32: gates below act as this. */
#define FWA_LOG_GATE_MIN (-104)

#define FWA_REAL        float
#define FWA_DECAY(name) fwa_decay_##name##_f32
#define FWA_DECAY_EXP   expf
#include "decay_tmpl.h"

#ifndef FWA_DECAY_FLOAT_ONLY
#define FWA_REAL        double
#define FWA_DECAY(name) fwa_decay_##name##_f64
#define FWA_DECAY_EXP   exp
#include "decay_tmpl.h"
#endif

#endif
