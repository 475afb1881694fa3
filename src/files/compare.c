/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"
#include "element.h"

#include <math.h>
#include <string.h>

/*
 * The bounds.
 *
 * They hold against the float64 recurrence on the same inputs, that is, after the inputs were
 * rounded to the plan's types: what remains is the arithmetic of the backend and the rounding of
 * its outputs.
 *
 * f64: the reference itself against answers that were made independently. The unit roundoff is
 * 1.1e-16 and sums run over some hundred tokens and up to 256 coordinates: 1e-15 is usual. 1e-9
 * leaves room for long files, and is far below any mistake in a formula.
 *
 * f32: the unit roundoff is 6e-8. A state is a sum over all tokens, whose rounding errors decay as
 * slowly as its terms do, so errors grow like the root of tokens * D at worst: 2e-5 is 330
 * roundoffs; the usual is 1e-6. Where a tensor is a small difference of large terms, the terms set
 * its error. Where algebra can avoid that (1 - eta lambda, and lambda's gradient, which is the sum
 * of a share through eta and one through gamma) a backend must; what is left is cancellation
 * between tokens or coordinates. A single element may cancel completely; the norm over the whole
 * tensor does not, save where the exact answer is zero, and then the error is absolute.
 *
 * bf16, f16: an element of an output is rounded by at most its 2^-8 and 2^-11 (3.9e-3, 4.9e-4),
 * half as much on average, and matrix units may round operands of products inside a chunk to the
 * same type, which adds about as much again: 4e-3 and 1e-3. f16 outputs above 65504 are outside
 * this bound: they become infinite and are reported.
 *
 * The maximum is relative to the largest element. One wrong element among n has a relative norm of
 * only 1/sqrt(n), so the norm alone would let it pass. Rounding errors are spread like noise: the
 * largest of a million is about 5 deviations, but where errors are
 * large the elements usually are, too: 4 times.
 *
 * Small numbers have two allowances, for what no relative bound can say.
 *
 * `smallest`: what a type has no numbers for. Kernels may flush results below the smallest normal
 * number (2^-126 in float32, in which 16-bit types are computed too) to zero, and an element is a
 * sum of terms, each of which may have been; or such a product is multiplied by more afterwards:
 * 2^10 times that number stands for both. The smallest normal number of float64 stands for its
 * subnormals likewise. An f16 result is besides rounded to a multiple of 2^-24, and off by up to
 * half of it. Of each element's difference only what is beyond counts, so that a normal number in a
 * zero's place is an error as ever.
 *
 * Terms: an answer may be zero, or a millionth of a millionth, because terms of usual size cancel:
 * a gradient along a key of one normalised coordinate, or of an output that does not depend on the
 * query. What is left then is the rounding of the terms, in float64 too, and two right answers have
 * no digit in common. Where the largest element is below CANCELLED times the largest term, that is
 * where float32's terms have left no digit of it, the same bounds hold relative to the terms.
 * problem_verify.c finds out how large they are.
 */
#define MAXIMUM_FACTOR 4.0
#define CANCELLED      0x1p-24

static const struct {
    int32_t dtype;
    double rms, smallest;
} bounds[] = {
    {FWA_DTYPE_F64, 1e-9, 0x1p-1012},
    {FWA_DTYPE_F32, 2e-5, 0x1p-116},
    {FWA_DTYPE_BF16, 4e-3, 0x1p-116},
    {FWA_DTYPE_F16, 1e-3, 0x1p-25},
};

double compare_smallest_for(int32_t dtype)
{
    double smallest = 0;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].dtype == dtype)
            smallest = bounds[i].smallest;
    return smallest;
}

compare_bound compare_bound_for(int32_t dtype)
{
    compare_bound bound = {0, 0};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (bounds[i].dtype == dtype) {
            bound.rms = bounds[i].rms;
            bound.maximum = bounds[i].rms * MAXIMUM_FACTOR;
        }
    }
    return bound;
}

compare_bound compare_bound_looser(compare_bound left, compare_bound right)
{
    const compare_bound looser = {fmax(left.rms, right.rms), fmax(left.maximum, right.maximum)};
    return looser;
}

double compare_ratio(compare_error error, compare_bound bound)
{
    const double rms = error.rms == 0 ? 0 : error.rms / bound.rms;
    const double maximum = error.maximum == 0 ? 0 : error.maximum / bound.maximum;
    return fmax(rms, maximum);
}

/* Sums of squares are kept relative to the largest element seen, so that they neither overflow nor
 * vanish. */
typedef struct norm {
    double largest;
    double sum; /* of (element / largest)^2 */
} norm;

static void norm_add(norm *total, double element)
{
    const double size = fabs(element);
    if (size == 0)
        return;
    if (size > total->largest) {
        const double shrink = total->largest / size;
        total->sum = total->sum * shrink * shrink + 1;
        total->largest = size;
    } else {
        total->sum += size / total->largest * (size / total->largest);
    }
}

/* a / b of the two norms, in an order that cannot overflow on the way. */
static double norm_ratio(const norm *a, const norm *b)
{
    return a->largest / b->largest * sqrt(a->sum / b->sum);
}

static int same_not_finite(double got, double want)
{
    return (isnan(got) && isnan(want)) || got == want;
}

typedef double (*element_source)(const void *data, int64_t i);

static double double_at(const void *data, int64_t i)
{
    return ((const double *)data)[i];
}

static double tensor_at(const void *data, int64_t i)
{
    const safetensors_tensor *tensor = data;
    return element_get(tensor->dtype, tensor->data, i);
}

static compare_error compare(element_source at, const void *got, const void *want, int64_t n,
                             const compare_allowance *allowance)
{
    norm difference = {0, 0}, size = {0, 0};
    compare_error error = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const double g = at(got, i), w = at(want, i);
        if (isfinite(g) && isfinite(w)) {
            norm_add(&difference, fmax(fabs(g - w) - allowance->smallest, 0));
            norm_add(&size, w);
        } else if (!same_not_finite(g, w)) {
            error.rms = error.maximum = INFINITY;
            return error;
        }
    }
    if (!isfinite(difference.largest)) { /* g - w of two huge numbers */
        error.rms = error.maximum = INFINITY;
    } else if (size.largest < CANCELLED * allowance->terms_largest) {
        error.rms = difference.largest / allowance->terms_norm * sqrt(difference.sum);
        error.maximum = difference.largest / allowance->terms_largest;
    } else if (size.largest == 0) {
        error.rms = n == 0 ? 0 : difference.largest * sqrt(difference.sum / (double)n);
        error.maximum = difference.largest;
    } else if (difference.largest > 0) {
        error.rms = norm_ratio(&difference, &size);
        error.maximum = difference.largest / size.largest;
    }
    return error;
}

compare_error compare_arrays(const double *got, const double *want, int64_t n)
{
    const compare_allowance none = {0, 0, 0};
    return compare(double_at, got, want, n, &none);
}

compare_error compare_tensors(const safetensors_tensor *got, const safetensors_tensor *want)
{
    const compare_allowance none = {0, 0, 0};
    return compare_tensors_allowing(got, want, &none);
}

compare_error compare_tensors_allowing(const safetensors_tensor *got,
                                       const safetensors_tensor *want,
                                       const compare_allowance *allowance)
{
    const compare_error none = {0, 0}, infinite = {INFINITY, INFINITY};
    const int64_t n = safetensors_elements(want);
    if (got->rank != want->rank ||
        memcmp(got->shape, want->shape, (size_t)want->rank * sizeof *want->shape) != 0)
        return infinite;
    if (element_is_float(want->dtype) && element_is_float(got->dtype))
        return compare(tensor_at, got, want, n, allowance);
    const int equal = got->dtype == want->dtype && memcmp(got->data, want->data, want->size) == 0;
    return equal ? none : infinite;
}
