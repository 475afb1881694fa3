/* SPDX-License-Identifier: Apache-2.0 */
/* Carries in host memory: what is handed from one call to the next (C.5, C.7). */

#include "host.h"

/* Copies or zeroes `count` elements of a row, one type on both sides; last axes of any stride. */
static void copy_elements(const fwa_tensor *source, int64_t from, const fwa_tensor *target,
                          int64_t to, int64_t count)
{
    size_t size = fwa_dtype_size(target->dtype);
    int64_t step = count > 1 ? target->stride[target->rank - 1] : 1, i;
    int64_t source_step = source && count > 1 ? source->stride[source->rank - 1] : 1;
    if (step == 1 && source_step == 1 && source) {
        memmove(fwa_element(target, to), fwa_element(source, from), (size_t)count * size);
        return;
    }
    for (i = 0; i < count; i++) {
        char *at = fwa_element(target, to + i * step);
        if (source)
            memmove(at, fwa_element(source, from + i * source_step), size);
        else
            memset(at, 0, size);
    }
}

/* Copies the innermost rows below index [row, i] of a rank 2 to 4 part. */
static void copy_block(const fwa_tensor *source, int64_t from, const fwa_tensor *target, int64_t to)
{
    int64_t j, last = target->shape[target->rank - 1];
    if (target->rank < 4) {
        copy_elements(source, from, target, to, target->rank == 2 ? 1 : last);
        return;
    }
    for (j = 0; j < target->shape[2]; j++)
        copy_elements(source, source ? from + j * source->stride[2] : 0, target,
                      to + j * target->stride[2], last);
}

void fwa_carry_copy(const fwa_tensor *source, int64_t from, const fwa_tensor *target, int64_t to,
                    int64_t head, int64_t heads)
{
    const fwa_tensor *given = from >= 0 && fwa_present(source) ? source : NULL;
    int64_t i;
    for (i = head; i < head + heads; i++)
        copy_block(given, given ? fwa_at2(given, from, i) : 0, target, fwa_at2(target, to, i));
}

/* Row `from` of an input tensor [.., heads, n] to a carry part, converting the type; exact, since
 * the part is at least as wide. */
static void convert_heads(const fwa_tensor *source, int64_t from, const fwa_tensor *target,
                          int64_t to)
{
    double row[256];
    int64_t n = target->shape[target->rank - 1], heads = target->shape[target->rank - 2], h;
    for (h = 0; h < heads; h++) {
        const int64_t from_row = from + h * source->stride[source->rank - 2];
        const int64_t to_row = to + h * target->stride[target->rank - 2];
        if (source->dtype == target->dtype) {
            copy_elements(source, from_row, target, to_row, n);
            continue;
        }
        fwa_load_f64(source, from_row, n, row);
        fwa_store_f64(target, to_row, n, row);
    }
}

/* Tail slot i of B - 1: the write key and the value of the pair that is `age` = B - 1 - i tokens
 * before the last committed one. Pairs older than the call come from the tail handed in. */
static void write_tail_slot(const fwa_problem *p, const fwa_forward_args *a, const fwa_carry *in,
                            const fwa_sequence *s, int64_t i)
{
    const fwa_tensor *key = &a->carry_out.tail_key, *value = &a->carry_out.tail_value;
    int64_t age = p->window - 1 - i, token = s->commit - age;
    int64_t key_token = p->alignment == FWA_ALIGNMENT_NEXT_LATENT ? token - 1 : token;
    bool empty = age > fwa_tail_fill(p, s->seen + s->commit);
    if (fwa_present(key)) {
        int64_t to = fwa_at2(key, s->slot_out, i);
        if (empty)
            copy_block(NULL, 0, key, to);
        else if (token < 0)
            copy_block(&in->tail_key, fwa_at2(&in->tail_key, s->slot_in, i + s->commit), key, to);
        else if (key_token < 0)
            convert_heads(&in->prev_key, s->slot_in * in->prev_key.stride[0], key, to);
        else
            convert_heads(&a->k, fwa_at2(&a->k, s->row, s->first + key_token), key, to);
    }
    if (fwa_present(value)) {
        int64_t to = fwa_at2(value, s->slot_out, i);
        if (empty)
            copy_block(NULL, 0, value, to);
        else if (token < 0)
            copy_block(&in->tail_value, fwa_at2(&in->tail_value, s->slot_in, i + s->commit), value,
                       to);
        else
            convert_heads(&a->v, fwa_at2(&a->v, s->row, s->first + token), value, to);
    }
}

/* Nothing was committed: the carry goes over as it is. */
static void copy_carry(const fwa_carry *in, const fwa_carry *out, const fwa_sequence *s)
{
    const fwa_tensor *parts[][2] = {{&in->prev_key, &out->prev_key},
                                    {&in->tail_key, &out->tail_key},
                                    {&in->tail_value, &out->tail_value}};
    size_t i;
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (fwa_present(parts[i][1]))
            fwa_carry_copy(parts[i][0], s->slot_in, parts[i][1], s->slot_out, 0,
                           parts[i][1]->shape[1]);
}

void fwa_carry_write(const fwa_problem *p, const fwa_forward_args *a, const fwa_carry *in,
                     const fwa_sequence *s)
{
    const fwa_carry *out = &a->carry_out;
    int64_t i, seen = s->seen + s->commit;
    if (s->slot_out < 0)
        return;
    if (s->commit == 0) {
        copy_carry(in, out, s);
    } else {
        /* Oldest first, and the tail before prev_key: in place, no slot is read after it is
         * written. */
        for (i = 0; i < p->window - 1; i++)
            write_tail_slot(p, a, in, s, i);
        if (fwa_present(&out->prev_key))
            convert_heads(&a->k, fwa_at2(&a->k, s->row, s->first + s->commit - 1), &out->prev_key,
                          s->slot_out * out->prev_key.stride[0]);
    }
    if (fwa_present(&out->seen))
        memcpy(fwa_element(&out->seen, s->slot_out * out->seen.stride[0]), &seen, sizeof seen);
}
