/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_ELEMENT_H
#define FWA_FILES_ELEMENT_H

/* Elements of the floating types as doubles. A double becomes a 16-bit number by way of float32, as
 * a caller's own data would. */

#include "../common/half.h"

#include <fwa/fwa.h>

static inline int element_is_float(int32_t dtype)
{
    return dtype == FWA_DTYPE_F64 || dtype == FWA_DTYPE_F32 || dtype == FWA_DTYPE_BF16 ||
           dtype == FWA_DTYPE_F16;
}

static inline double element_get(int32_t dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case FWA_DTYPE_F64: return ((const double *)data)[i];
    case FWA_DTYPE_F32: return (double)((const float *)data)[i];
    case FWA_DTYPE_BF16: return (double)fwa_bf16_to_float(((const uint16_t *)data)[i]);
    default: return (double)fwa_f16_to_float(((const uint16_t *)data)[i]);
    }
}

static inline void element_set(int32_t dtype, void *data, int64_t i, double value)
{
    switch (dtype) {
    case FWA_DTYPE_F64: ((double *)data)[i] = value; break;
    case FWA_DTYPE_F32: ((float *)data)[i] = (float)value; break;
    case FWA_DTYPE_BF16: ((uint16_t *)data)[i] = fwa_bf16_from_float((float)value); break;
    default: ((uint16_t *)data)[i] = fwa_f16_from_float((float)value); break;
    }
}

static inline double element_round(int32_t dtype, double value)
{
    switch (dtype) {
    case FWA_DTYPE_F64: return value;
    case FWA_DTYPE_F32: return (double)(float)value;
    case FWA_DTYPE_BF16: return (double)fwa_bf16_to_float(fwa_bf16_from_float((float)value));
    default: return (double)fwa_f16_to_float(fwa_f16_from_float((float)value));
    }
}

#endif
