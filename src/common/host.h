/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_HOST_H
#define FWA_COMMON_HOST_H

/* What every backend in host memory needs: rows of strided tensors, the feature pipeline, the decay
 * knobs of a problem, sequences and their carries. */

#include "decay.h"
#include "half.h"

#include <fwa/backend.h>
#include <stdbool.h>

static inline bool fwa_present(const fwa_tensor *tensor)
{
    return tensor->rank != 0;
}

static inline char *fwa_element(const fwa_tensor *tensor, int64_t offset)
{
    static const int8_t size[] = {0, 4, 2, 2, 8, 4, 8}; /* by fwa_dtype */
    return (char *)tensor->data + offset * size[tensor->dtype];
}

/* Offset of an element, or of the start of a row, by its leading indices. */
static inline int64_t fwa_at2(const fwa_tensor *t, int64_t i, int64_t j)
{
    return i * t->stride[0] + j * t->stride[1];
}
static inline int64_t fwa_at3(const fwa_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return fwa_at2(t, i, j) + k * t->stride[2];
}

/* One integer of an int32 or int64 vector. */
static inline int64_t fwa_integer(const fwa_tensor *t, int64_t i)
{
    const char *at = fwa_element(t, i * t->stride[0]);
    int64_t wide;
    int32_t narrow;
    if (t->dtype == FWA_DTYPE_I64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

/* The tensors that the forward and the backward have in common. */
typedef struct fwa_inputs {
    const fwa_tensor *q, *k, *v, *beta, *lambda, *log_gate, *cu_seqlens;
    const fwa_carry *carry;
    const fwa_tensor *slot_in, *slot_out, *commit;
} fwa_inputs;

static inline fwa_inputs fwa_call_inputs(const fwa_call *call)
{
#define FWA_INPUTS(a, out)                                                                         \
    {                                                                                              \
        &(a)->q, &(a)->k, &(a)->v, &(a)->beta, &(a)->lambda, &(a)->log_gate, &(a)->cu_seqlens,     \
            &(a)->carry_in, &(a)->slot_in, out, &(a)->commit                                       \
    }
    if (call->forward) {
        fwa_inputs inputs = FWA_INPUTS(call->forward, &call->forward->slot_out);
        return inputs;
    } else {
        fwa_inputs inputs = FWA_INPUTS(call->backward, &call->backward->commit); /* absent */
        return inputs;
    }
#undef FWA_INPUTS
}

/* One sequence of a call. Token i of it is [row, first + i] of q, k, v, ... */
typedef struct fwa_sequence {
    int64_t index; /* among the call's sequences */
    int64_t row, first, length;
    int64_t before;   /* tokens of the earlier sequences of the call */
    int64_t seen;     /* tokens before the call; 0: fresh */
    int64_t commit;   /* tokens after which the carry is written, 0 .. length */
    int64_t slot_in;  /* row of carry_in, or -1: from zeros */
    int64_t slot_out; /* row of carry_out, or -1: not written */
    bool padded;      /* read nothing; outputs are zeros */
} fwa_sequence;

static inline fwa_sequence fwa_sequence_get(const fwa_inputs *in, int64_t n)
{
    fwa_sequence s = {n, n, 0, in->q->shape[1], 0, 0, 0, n, n, false};
    if (fwa_present(in->cu_seqlens)) {
        s.row = 0;
        s.before = s.first = fwa_integer(in->cu_seqlens, n);
        s.length = fwa_integer(in->cu_seqlens, n + 1) - s.first;
    } else {
        s.before = n * s.length;
    }
    if (fwa_present(in->slot_in))
        s.slot_in = s.slot_out = fwa_integer(in->slot_in, n);
    if (fwa_present(in->slot_out))
        s.slot_out = fwa_integer(in->slot_out, n);
    s.padded = s.slot_in == FWA_SLOT_NONE || s.slot_out == FWA_SLOT_NONE;
    if (s.padded || s.slot_in < 0)
        s.slot_in = -1;
    if (s.padded || s.slot_out < 0)
        s.slot_out = -1;
    s.commit = fwa_present(in->commit) && !s.padded ? fwa_integer(in->commit, n) : s.length;
    if (s.slot_in >= 0 && fwa_present(&in->carry->seen))
        s.seen = fwa_integer(&in->carry->seen, s.slot_in);
    return s;
}

/* True where token 0 of the sequence is no pair: it neither writes nor decays (section 3). */
static inline bool fwa_starts_bare(const fwa_problem *p, int64_t seen)
{
    return p->alignment == FWA_ALIGNMENT_NEXT_LATENT && seen == 0;
}

/* How many of the last window - 1 pairs a carry with that many tokens holds. */
static inline int64_t fwa_tail_fill(const fwa_problem *p, int64_t seen)
{
    int64_t pairs = p->alignment == FWA_ALIGNMENT_NEXT_LATENT && seen > 0 ? seen - 1 : seen;
    return pairs < p->window - 1 ? pairs : p->window - 1;
}

/* Writes seen, prev_key, tail_key and tail_value of one sequence (state and norm are the kernels'
 * business), or copies them bit for bit where nothing is committed. In place is fine. `in` is
 * args->carry_in, or a copy that was kept aside (with sequence->slot_in its row there). */
void fwa_carry_write(const fwa_problem *problem, const fwa_forward_args *args, const fwa_carry *in,
                     const fwa_sequence *sequence);
/* Copies row `from` of a carry part to row `to` of another of the same shape, bit for bit; zeros
 * where from is -1. Heads [head, head + heads) of axis 1 only. */
void fwa_carry_copy(const fwa_tensor *source, int64_t from, const fwa_tensor *target, int64_t to,
                    int64_t head, int64_t heads);

#define FWA_HOST_LANES 16

#define FWA_REAL        float
#define FWA_HOST(name)  fwa_##name##_f32
#define FWA_DECAY(name) fwa_decay_##name##_f32
#define FWA_HOST_SQRT   sqrtf
#define FWA_HOST_EXP    expf
#include "host_tmpl.h"

#define FWA_REAL        double
#define FWA_HOST(name)  fwa_##name##_f64
#define FWA_DECAY(name) fwa_decay_##name##_f64
#define FWA_HOST_SQRT   sqrt
#define FWA_HOST_EXP    exp
#include "host_tmpl.h"

#endif
