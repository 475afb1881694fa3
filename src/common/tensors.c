/* SPDX-License-Identifier: Apache-2.0 */
/* What a call's tensors must be: ranks, shapes, types, strides, pointers, overlaps. */

#include "call.h"

#include <stdio.h>

static bool is_given(const fwa_tensor *t)
{
    return t->data || t->rank || t->dtype;
}

static fwa_status check_shape(const fwa_tensor_rule *rule)
{
    const fwa_tensor *t = rule->tensor;
    int axis;
    if (t->rank != rule->rank)
        return fwa_fail(FWA_ERROR_SHAPE, "%s.rank is %d; it must be %d", rule->name, (int)t->rank,
                        (int)rule->rank);
    for (axis = 0; axis < t->rank; axis++) {
        if (t->shape[axis] < 0 || t->shape[axis] > FWA_AXIS_LIMIT)
            return fwa_fail(FWA_ERROR_SHAPE, "%s.shape[%d] is %lld; it runs from 0 to %lld",
                            rule->name, axis, (long long)t->shape[axis], (long long)FWA_AXIS_LIMIT);
        if (rule->shape[axis] >= 0 && t->shape[axis] != rule->shape[axis])
            return fwa_fail(FWA_ERROR_SHAPE, "%s.shape[%d] is %lld; it must be %lld", rule->name,
                            axis, (long long)t->shape[axis], (long long)rule->shape[axis]);
    }
    return FWA_OK;
}

static fwa_status check_dtype(const fwa_tensor_rule *rule)
{
    int32_t dtype = rule->tensor->dtype;
    if (rule->dtype & FWA_ANY_INTEGER ? dtype == FWA_DTYPE_I32 || dtype == FWA_DTYPE_I64
                                      : dtype == rule->dtype)
        return FWA_OK;
    return fwa_fail(FWA_ERROR_DTYPE, "%s.dtype is %d (%s); it must be %s", rule->name, (int)dtype,
                    fwa_dtype_name(dtype),
                    rule->dtype & FWA_ANY_INTEGER ? "i32 or i64" : fwa_dtype_name(rule->dtype));
}

static bool is_empty(const fwa_tensor *t)
{
    int axis;
    for (axis = 0; axis < t->rank; axis++)
        if (t->shape[axis] == 0)
            return true;
    return false;
}

/* Bytes from the first to behind the last element. -1: beyond FWA_SPAN_LIMIT. */
static int64_t span(const fwa_tensor *t)
{
    int64_t size = (int64_t)fwa_dtype_size(t->dtype), total = size, step;
    int axis;
    for (axis = 0; axis < t->rank; axis++)
        if (t->shape[axis] > 1 &&
            (__builtin_mul_overflow(t->shape[axis] - 1, t->stride[axis], &step) ||
             __builtin_mul_overflow(step, size, &step) ||
             __builtin_add_overflow(total, step, &total) || total > FWA_SPAN_LIMIT))
            return -1;
    return total;
}

/* Axes of extent > 1, longest stride first. */
static int sorted_axes(const fwa_tensor *t, int order[FWA_MAX_RANK])
{
    int count = 0, axis, i;
    for (axis = 0; axis < t->rank; axis++) {
        if (t->shape[axis] <= 1)
            continue;
        for (i = count++; i > 0 && t->stride[order[i - 1]] < t->stride[axis]; i--)
            order[i] = order[i - 1];
        order[i] = axis;
    }
    return count;
}

/* The axis along which elements lie farthest apart. */
static int longest_axis(const fwa_tensor *t)
{
    int axis, longest = 0;
    double most = -1;
    for (axis = 0; axis < t->rank; axis++) {
        double length = ((double)t->shape[axis] - 1) * (double)t->stride[axis];
        if (length > most) {
            most = length;
            longest = axis;
        }
    }
    return longest;
}

static fwa_status check_strides(const fwa_tensor_rule *rule)
{
    const fwa_tensor *t = rule->tensor;
    int order[FWA_MAX_RANK], count, axis, i;
    int64_t inner = 1; /* elements that the axes inside take */
    if (is_empty(t))
        return FWA_OK;
    for (axis = 0; axis < t->rank; axis++) {
        bool last = axis == t->rank - 1 && t->rank > 1;
        if (t->shape[axis] <= 1)
            continue;
        if (t->stride[axis] < 0 || (rule->output && t->stride[axis] == 0))
            return fwa_fail(FWA_ERROR_STRIDE, "%s.stride[%d] is %lld; it must be at least %d",
                            rule->name, axis, (long long)t->stride[axis], rule->output ? 1 : 0);
        if (last && t->stride[axis] > 1 && !rule->any_last)
            return fwa_fail(FWA_ERROR_STRIDE, "%s.stride[%d] is %lld; the last axis must have 1%s",
                            rule->name, axis, (long long)t->stride[axis],
                            rule->output ? "" : " or 0");
    }
    if (span(t) < 0) {
        axis = longest_axis(t);
        return fwa_fail(FWA_ERROR_STRIDE,
                        "%s.stride[%d] is %lld, with %lld elements along that axis: the tensor "
                        "spans more than 2^60 bytes",
                        rule->name, axis, (long long)t->stride[axis], (long long)t->shape[axis]);
    }
    if (!rule->output)
        return FWA_OK;
    count = sorted_axes(t, order);
    for (i = count - 1; i >= 0; i--) {
        axis = order[i];
        if (t->stride[axis] < inner)
            return fwa_fail(
                FWA_ERROR_STRIDE,
                "%s.stride[%d] is %lld, less than the %lld elements of the axes inside: the axes "
                "of an output may not interleave",
                rule->name, axis, (long long)t->stride[axis], (long long)inner);
        inner = (t->shape[axis] - 1) * t->stride[axis] + inner;
    }
    return FWA_OK;
}

static fwa_status check_pointer(const fwa_tensor_rule *rule)
{
    const fwa_tensor *t = rule->tensor;
    size_t size = fwa_dtype_size(t->dtype);
    if (is_empty(t))
        return FWA_OK;
    if (!t->data)
        return fwa_fail(FWA_ERROR_NULL, "%s.data is NULL", rule->name);
    if ((uintptr_t)t->data % size)
        return fwa_fail(FWA_ERROR_ALIGNMENT, "%s.data is %p, not aligned to its element size, %zu",
                        rule->name, t->data, size);
    if ((uintptr_t)span(t) > UINTPTR_MAX - (uintptr_t)t->data)
        return fwa_fail(FWA_ERROR_STRIDE, "%s spans %lld bytes from %p, beyond the address space",
                        rule->name, (long long)span(t), t->data);
    return FWA_OK;
}

/* Bytes [0, extent) tiled along outer axes. */
typedef struct {
    int64_t extent[FWA_MAX_RANK], stride[FWA_MAX_RANK]; /* strides in bytes, longest first */
    int count;
    int64_t element;
} lattice;

static lattice lattice_of(const fwa_tensor *t)
{
    int order[FWA_MAX_RANK], i;
    lattice l;
    l.element = (int64_t)fwa_dtype_size(t->dtype);
    l.count = sorted_axes(t, order);
    for (i = 0; i < l.count; i++) {
        l.extent[i] = t->shape[order[i]];
        l.stride[i] = t->stride[order[i]] * l.element;
    }
    return l;
}

static int64_t lattice_span(const lattice *l, int from)
{
    int64_t total = l->element;
    int i;
    for (i = from; i < l->count; i++)
        total += (l->extent[i] - 1) * l->stride[i];
    return total;
}

/* May a, from its axis i on, and b, from its axis j on and `shift` bytes further, share a byte?
 * Exact where both have the same outer strides, as the parts of one fused buffer do; else errs on
 * the side of yes. */
static bool may_meet(const lattice *a, int i, const lattice *b, int j, int64_t shift)
{
    int64_t span_a = lattice_span(a, i), span_b = lattice_span(b, j), stride, inner_a, inner_b,
            rest;
    if (shift >= span_a || -shift >= span_b)
        return false;
    if (i == a->count && j == b->count)
        return true;
    /* An axis that only one of them has is walked along with the longer stride of the two. */
    stride = i < a->count ? a->stride[i] : 0;
    if (j < b->count && b->stride[j] > stride)
        stride = b->stride[j];
    inner_a = i < a->count && a->stride[i] == stride ? lattice_span(a, i + 1) : span_a;
    inner_b = j < b->count && b->stride[j] == stride ? lattice_span(b, j + 1) : span_b;
    if (stride == 0 || inner_a > stride || inner_b > stride)
        return true;
    i += i < a->count && a->stride[i] == stride;
    j += j < b->count && b->stride[j] == stride;
    rest = ((shift % stride) + stride) % stride;
    return may_meet(a, i, b, j, rest) || may_meet(a, i, b, j, rest - stride);
}

static bool overlap(const fwa_tensor *a, const fwa_tensor *b)
{
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    lattice la, lb;
    if (is_empty(a) || is_empty(b) || x + (uintptr_t)span(a) <= y || y + (uintptr_t)span(b) <= x)
        return false;
    la = lattice_of(a);
    lb = lattice_of(b);
    return may_meet(&la, 0, &lb, 0, (int64_t)(y - x));
}

static bool same_view(const fwa_tensor *a, const fwa_tensor *b)
{
    int axis;
    if (a->data != b->data || a->dtype != b->dtype)
        return false;
    for (axis = 0; axis < a->rank; axis++)
        if (a->shape[axis] > 1 && b->shape[axis] > 1 && a->stride[axis] != b->stride[axis])
            return false;
    return true;
}

/* An output shares no byte with any other tensor, but for the input that it may be in place with.
 */
static fwa_status check_overlaps(const fwa_tensor_rule *rules, int32_t count, int32_t output)
{
    const fwa_tensor_rule *rule = &rules[output];
    int32_t i;
    for (i = 0; i < count; i++) {
        const fwa_tensor *other = rules[i].tensor;
        if (i == output || (rules[i].output && i < output) || !is_given(other) ||
            !overlap(rule->tensor, other) || (i == rule->partner && same_view(rule->tensor, other)))
            continue;
        return fwa_fail(FWA_ERROR_OVERLAP, "%s at %p shares memory with %s at %p", rule->name,
                        rule->tensor->data, rules[i].name, other->data);
    }
    return FWA_OK;
}

/* Buffers are scratch: they lie over no tensor. */
static fwa_status check_buffers(const fwa_tensor_rule *rule, const fwa_buffer *buffers,
                                int32_t buffer_count)
{
    const fwa_tensor *t = rule->tensor;
    uintptr_t at = (uintptr_t)t->data;
    int32_t i;
    for (i = 0; i < buffer_count && !is_empty(t); i++) {
        uintptr_t buffer = (uintptr_t)buffers[i].data;
        if (buffer && at < fwa_buffer_end(&buffers[i]) && buffer < at + (uintptr_t)span(t))
            return fwa_fail(FWA_ERROR_OVERLAP, "%s at %p shares memory with %s at %p",
                            buffers[i].name, buffers[i].data, rule->name, t->data);
    }
    return FWA_OK;
}

fwa_status fwa_check_tensors(const fwa_tensor_rule *rules, int32_t count, const fwa_buffer *buffers,
                             int32_t buffer_count)
{
    fwa_status status;
    int32_t i;
    for (i = 0; i < count; i++) {
        const fwa_tensor_rule *rule = &rules[i];
        if (!is_given(rule->tensor)) {
            if (rule->required)
                return fwa_fail(FWA_ERROR_NULL, "%s is absent", rule->name);
            continue;
        }
        if ((status = check_shape(rule)) != FWA_OK || (status = check_dtype(rule)) != FWA_OK ||
            (status = check_strides(rule)) != FWA_OK || (status = check_pointer(rule)) != FWA_OK)
            return status;
    }
    for (i = 0; i < count; i++) {
        if (!is_given(rules[i].tensor))
            continue;
        if ((rules[i].output && (status = check_overlaps(rules, count, i)) != FWA_OK) ||
            (status = check_buffers(&rules[i], buffers, buffer_count)) != FWA_OK)
            return status;
    }
    return FWA_OK;
}
