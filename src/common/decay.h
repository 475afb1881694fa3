/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_DECAY_H
#define FWA_COMMON_DECAY_H

/*
 * The decay algebra, once for every backend: step size, positive-decay clamp, log-space carry,
 * prefix differences and their gradients. Plain C that is also valid device code: define FWA_DEVICE
 * to the qualifiers a function needs there. Every exponent evaluated here is <= 0.
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
#define FWA_DECAY_LOG   logf
#define FWA_DECAY_LOG1P log1pf
#include "decay_tmpl.h"

#define FWA_REAL        double
#define FWA_DECAY(name) fwa_decay_##name##_f64
#define FWA_DECAY_EXP   exp
#define FWA_DECAY_LOG   log
#define FWA_DECAY_LOG1P log1p
#include "decay_tmpl.h"

#endif
