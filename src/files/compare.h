/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_COMPARE_H
#define FWA_FILES_COMPARE_H

/* How far an answer is from the right one, and how far it may be: the only place with bounds. */

#include "safetensors.h"

#include <fwa/fwa.h>

typedef struct compare_error {
    double rms;     /* |got - want| / |want|, Euclidean norms over the tensor */
    double maximum; /* largest |got - want| / largest |want| */
} compare_error;

/* Errors over n elements. Where all of `want` is zero there is nothing to be relative to, and both
 * errors are absolute: root mean square and largest of |got|. An element that is not finite in one
 * of the two must be the same in the other (NaN and NaN, or equal infinities): it then counts
 * nothing; else both errors are infinite. n = 0: zeros. */
compare_error compare_arrays(const double *got, const double *want, int64_t n);

/* The same for two tensors of any floating types, or of integers: those are 0 where all are equal,
 * and infinite otherwise. Different shapes are infinite too. */
compare_error compare_tensors(const safetensors_tensor *got, const safetensors_tensor *want);

/* What small numbers are held to; compare.c says why. Zeros: to nothing but themselves. */
typedef struct compare_allowance {
    /* An element may be off by this, whatever its size: only what is beyond counts. */
    double smallest;
    /* The terms that an answer is the sum of: their norm over the tensor, and the largest. Where
     * they are so far above the answer that they have cancelled, errors are relative to them. */
    double terms_norm, terms_largest;
} compare_allowance;

/* compare_tensors with allowances. */
compare_error compare_tensors_allowing(const safetensors_tensor *got,
                                       const safetensors_tensor *want,
                                       const compare_allowance *allowance);

/* The `smallest` of the type in which a tensor was computed or is stored. */
double compare_smallest_for(int32_t dtype);

/* What a result may be off; both parts must hold. */
typedef struct compare_bound {
    double rms;
    double maximum;
} compare_bound;

/* The bound of a plan's type, or of the type in which a tensor is stored; compare.c says why. Types
 * that are no floats give zeros. */
compare_bound compare_bound_for(int32_t dtype);

/* The larger of the two in each part. */
compare_bound compare_bound_looser(compare_bound left, compare_bound right);

/* error / bound, the worse of the two parts: at most 1 is good. Infinite for an infinite error. */
double compare_ratio(compare_error error, compare_bound bound);

#endif
