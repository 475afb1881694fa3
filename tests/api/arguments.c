/* SPDX-License-Identifier: Apache-2.0 */
/* What fwa_forward and fwa_backward refuse about structs, tensors and buffers. Every refusal names
 * the argument, its value and the limit, and leaves every byte alone. */

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kinds of calls: all parts of a carry but norm; norm; the masked form with its mask, which
 * only the CPU has. */
static setup setup_kind(int kind, const char *backend)
{
    setup s = kind == 1 ? setup_normalizer(backend) : setup_small(backend);
    if (kind < 2)
        return s;
    s.problem.form = FWA_FORM_MASKED;
    s.mask = true;
    s.backend = strcmp(backend, "cpu") == 0 ? backend : NULL;
    return s;
}

#define FOR_CALLS(c)                                                                               \
    for (int kind_ = 0; kind_ < 3; kind_++)                                                        \
        FOR_BACKENDS(backend)                                                                      \
    for (int pass_ = 0; pass_ < 2; pass_++)                                                        \
        for (setup s_ = setup_kind(kind_, backend); s_.backend; s_.backend = NULL)                 \
            for (call *c = call_new(&s_, (fwa_pass)pass_); c; call_free(c), c = NULL)

/* A state may have any stride on its last axis. */
static bool is_state(const call_tensor *t)
{
    return ends_with(t->name, ".state");
}

static bool is_required(const call_tensor *t)
{
    return strlen(t->name) == 1 || strcmp(t->name, "o_grad") == 0;
}

/* The calls that all refusals below start from are good ones. */
Test(arguments, starting_point)
{
    FOR_CALLS(c)
    {
        call_ok(c);
        for (int i = 0; i < c->count; i++)
            cr_assert(!c->tensors[i].output || tensor_finite(c->tensors[i].tensor), "%s",
                      c->tensors[i].name);
    }
}

Test(arguments, struct_size)
{
    FOR_CALLS(c)
    {
        struct {
            fwa_forward_args known;
            unsigned char tail[8];
        } forward = {c->forward, {0}};
        struct {
            fwa_backward_args known;
            unsigned char tail[8];
        } backward = {c->backward, {0}};
        const bool is_forward = c->pass == FWA_PASS_FORWARD;
        size_t *size = is_forward ? &c->forward.struct_size : &c->backward.struct_size;
        const size_t right = *size;
        *size = 0;
        call_fails(c, FWA_ERROR_STRUCT_SIZE, "args->struct_size is 0");
        *size = right - 8;
        call_fails(c, FWA_ERROR_STRUCT_SIZE, "args->struct_size is ", "INIT macro");
        *size = 1 << 20;
        call_fails(c, FWA_ERROR_STRUCT_SIZE, "args->struct_size is 1048576");
        *size = right;
        forward.known.struct_size = sizeof forward;
        backward.known.struct_size = sizeof backward;
        cr_assert_eq(is_forward ? fwa_forward(c->plan, &forward.known)
                                : fwa_backward(c->plan, &backward.known),
                     FWA_OK);
        forward.tail[7] = backward.tail[7] = 1;
        expect_message(is_forward ? fwa_forward(c->plan, &forward.known)
                                  : fwa_backward(c->plan, &backward.known),
                       FWA_ERROR_STRUCT_SIZE, "args has a non-zero byte at offset",
                       "newer feature");
    }
}

/* Each tensor in turn. */
#define FOR_TENSORS(c, t) for (call_tensor *t = c->tensors; t < c->tensors + c->count; t++)

Test(arguments, absent)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    if (is_required(t)) {
        fwa_tensor kept = *t->tensor;
        *t->tensor = (fwa_tensor){0};
        call_fails(c, FWA_ERROR_NULL, t->name, " is absent");
        *t->tensor = kept;
    }
}

Test(arguments, null_data)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    {
        void *kept = t->tensor->data;
        char text[64];
        snprintf(text, sizeof text, "%s.data is NULL", t->name);
        t->tensor->data = NULL;
        call_fails(c, FWA_ERROR_NULL, text);
        t->tensor->data = kept;
    }
}

Test(arguments, rank)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    {
        const int32_t right = t->tensor->rank;
        const int32_t bad[] = {-1, 0, right - 1, right + 1, 6, INT32_MAX, INT32_MIN};
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            char text[64];
            t->tensor->rank = bad[i];
            snprintf(text, sizeof text, "%s.rank is %d; it must be %d", t->name, (int)bad[i],
                     (int)right);
            call_fails(c, FWA_ERROR_SHAPE, text);
        }
        t->tensor->rank = right;
    }
}

/* One extent off: q's own batch and tokens change what the others must be, so the first to disagree
 * is named. */
Test(arguments, shape)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    for (int axis = 0; axis < t->tensor->rank; axis++) {
        int64_t *extent = &t->tensor->shape[axis], right = *extent;
        const int64_t bad[] = {right + 1, right - 1, -1, INT64_MIN, INT64_MAX, (int64_t)1 << 62};
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            bool leads = strcmp(t->name, "q") == 0 && axis < 2;
            char text[64], value[32];
            *extent = bad[i];
            snprintf(text, sizeof text, "%s.shape[%d] is %lld; it ", t->name, axis,
                     (long long)bad[i]);
            snprintf(value, sizeof value, "%lld", (long long)bad[i]);
            if (leads)
                call_fails(c, FWA_ERROR_SHAPE, ".shape", value);
            else
                call_fails(c, FWA_ERROR_SHAPE, text);
        }
        *extent = right;
    }
}

Test(arguments, dtype)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    {
        const int32_t right = t->tensor->dtype;
        for (int32_t dtype = -1; dtype <= 8; dtype++) {
            char text[64];
            if (dtype == right)
                continue;
            t->tensor->dtype = dtype;
            snprintf(text, sizeof text, "%s.dtype is %d (", t->name, (int)dtype);
            call_fails(c, FWA_ERROR_DTYPE, text, "it must be", fwa_dtype_name(right));
        }
        t->tensor->dtype = right;
    }
}

Test(arguments, strides)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    for (int axis = 0; axis < t->tensor->rank; axis++) {
        int64_t *stride = &t->tensor->stride[axis], right = *stride;
        const bool last = axis == t->tensor->rank - 1 && axis > 0 && !is_state(t);
        const int64_t bad[] = {-1,
                               -right,
                               INT64_MIN,
                               INT64_MAX,
                               (int64_t)1 << 61,
                               t->output ? 0 : -2,
                               last ? 2 : -3,
                               last ? 16 : -4};
        if (t->tensor->shape[axis] == 1)
            continue;
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            char text[64];
            *stride = bad[i];
            snprintf(text, sizeof text, "%s.stride[%d] is %lld", t->name, axis, (long long)bad[i]);
            if (bad[i] > 16 && !last)
                call_fails(c, FWA_ERROR_STRIDE, text, "spans more than 2^60 bytes");
            else
                call_fails(c, FWA_ERROR_STRIDE, text,
                           bad[i] < 2  ? "it must be at least"
                           : t->output ? "must have 1"
                                       : "1 or 0");
        }
        *stride = right;
    }
}

/* Strides that put two elements of an output in one place. */
Test(arguments, outputs_that_overlap_themselves)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    for (int axis = 0; t->output && axis + 1 < t->tensor->rank; axis++) {
        int64_t *stride = &t->tensor->stride[axis], right = *stride;
        if (t->tensor->shape[axis] == 1 || right == 1)
            continue;
        *stride = right - 1;
        call_fails(c, FWA_ERROR_STRIDE, t->name, ".stride[", "of an output may not interleave");
        *stride = 1;
        call_fails(c, FWA_ERROR_STRIDE, t->name, ".stride[", "of an output may not interleave");
        *stride = right;
    }
}

Test(arguments, misaligned_data)
{
    for (int32_t dtype = FWA_DTYPE_F32; dtype <= FWA_DTYPE_F64; dtype++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = setup_small("reference");
            s.problem.dtype = dtype;
            call *c = call_new(&s, (fwa_pass)pass);
            FOR_TENSORS(c, t)
            for (size_t shift = 1; shift < fwa_dtype_size(t->tensor->dtype); shift++) {
                char *kept = t->tensor->data, text[64];
                t->tensor->data = kept + shift;
                snprintf(text, sizeof text, "%s.data is %p, not aligned to its element size, %zu",
                         t->name, (void *)(kept + shift), fwa_dtype_size(t->tensor->dtype));
                call_fails(c, FWA_ERROR_ALIGNMENT, text);
                t->tensor->data = kept;
            }
            call_free(c);
        }
}

/* The end of the address space is no place to wrap around. */
Test(arguments, address_space)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    {
        void *kept = t->tensor->data;
        t->tensor->data = (void *)(UINTPTR_MAX - 7);
        call_fails(c, FWA_ERROR_STRIDE, t->name, " spans ", "beyond the address space");
        t->tensor->data = kept;
    }
}

/* ---- Overlaps ---- */

/* Every output on every other tensor: at its start, and at its last element. Where the output is
 * the longer one, it may lie on a third tensor as well, and that may be named. */
Test(arguments, overlaps)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    FOR_TENSORS(c, other)
    {
        char *kept = t->tensor->data, *at = other->tensor->data;
        const size_t size = fwa_dtype_size(t->tensor->dtype);
        const char *named = t->memory.size <= other->memory.size ? other->name : "";
        if (!t->output || other == t)
            continue;
        t->tensor->data = (void *)(((uintptr_t)at + size - 1) / size * size);
        /* The same part of carry_in is the one place where an output may be. */
        if (other->output || strncmp(t->name, "carry_out", 9) != 0 ||
            !ends_with(other->name, t->name + 9))
            call_fails(c, FWA_ERROR_OVERLAP, *named ? t->name : "", named, "shares memory with");
        if (tensor_count(other->tensor) > 1 && other->memory.size > size) {
            t->tensor->data = (void *)((uintptr_t)(at + other->memory.size - 1) / size * size);
            call_fails(c, FWA_ERROR_OVERLAP, "shares memory with");
        }
        t->tensor->data = kept;
    }
}

Test(arguments, overlaps_with_buffers)
{
    FOR_CALLS(c)
    FOR_TENSORS(c, t)
    {
        void *kept = t->tensor->data;
        t->tensor->data = c->workspace.data + 64;
        call_fails(c, FWA_ERROR_OVERLAP, "workspace at ", t->name, "shares memory with");
        t->tensor->data = kept;
    }
}

Test(arguments, workspace_over_a_tensor_with_a_huge_size)
{
    FOR_CALLS(c)
    {
        size_t *size = c->pass == FWA_PASS_FORWARD ? &c->forward.workspace_size
                                                   : &c->backward.workspace_size;
        void **data = c->pass == FWA_PASS_FORWARD ? &c->forward.workspace : &c->backward.workspace;
        /* Below every tensor, and as large as can be: behind the end there is only wrapping around.
         */
        *data = (void *)(uintptr_t)4096;
        *size = SIZE_MAX;
        call_fails(c, FWA_ERROR_OVERLAP, "workspace at ", "shares memory with");
    }
}

/* In place means the same view: another pitch, or shifted by a row, is an overlap. */
Test(arguments, in_place_is_exact)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        s.in_place = true;
        s.rows_in = s.rows_out = 5;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        fwa_carry *out = &c->forward.carry_out;
        fwa_tensor *parts[] = {&out->seen, &out->state, &out->prev_key, &out->tail_key,
                               &out->tail_value};
        static const char *const names[] = {"carry_out.seen", "carry_out.state",
                                            "carry_out.prev_key", "carry_out.tail_key",
                                            "carry_out.tail_value"};
        const int32_t slots[] = {4, 1};
        call_integers(c, "slot_in", 2, slots);
        call_ok(c);
        for (int i = 0; i < 5; i++) {
            fwa_tensor kept = *parts[i];
            parts[i]->data = (char *)kept.data +
                             kept.stride[0] * (int64_t)fwa_dtype_size(kept.dtype);
            parts[i]->shape[0] = 4;
            for (int j = 0; j < 5; j++)
                parts[j]->shape[0] = 4;
            const int32_t fewer[] = {3, 1};
            call_integers(c, "slot_in", 2, fewer);
            call_fails(c, FWA_ERROR_OVERLAP, names[i], "shares memory with carry_in");
            *parts[i] = kept;
            for (int j = 0; j < 5; j++)
                parts[j]->shape[0] = 5;
            call_integers(c, "slot_in", 2, slots);
        }
        call_free(c);
    }
}

/* One fused buffer [B, T, 3 H D] for three gradients is no overlap, nor are neighbours head by
 * head; one element more is. */
Test(arguments, fused_outputs)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        s.problem.heads_key = s.problem.heads_value = s.problem.heads_query = 2;
        s.problem.value_dim = s.problem.key_dim = 4;
        call *apart = call_new(&s, FWA_PASS_BACKWARD), *fused = call_new(&s, FWA_PASS_BACKWARD);
        const int64_t hd = 2 * 4;
        fwa_tensor *grads[] = {&fused->backward.q_grad, &fused->backward.k_grad,
                               &fused->backward.v_grad};
        float *buffer = malloc(sizeof(float) * 2 * 5 * 3 * 2 * 4);
        call_ok(apart);
        for (int layout = 0; layout < 2; layout++) {
            for (int i = 0; i < 3; i++) {
                grads[i]->data = buffer + i * (layout ? 4 : hd);
                grads[i]->stride[0] = 5 * 3 * hd;
                grads[i]->stride[1] = 3 * hd;
                grads[i]->stride[2] = layout ? 3 * 4 : 4;
            }
            for (int i = 0; i < 2 * 5 * 3 * 2 * 4; i++)
                buffer[i] = -77;
            call_ok(fused);
            expect_same_outputs(apart, fused);
            grads[1]->data = (float *)grads[1]->data + 1;
            call_fails(fused, FWA_ERROR_OVERLAP, "k_grad", "v_grad");
            grads[1]->data = (float *)grads[1]->data - 2;
            call_fails(fused, FWA_ERROR_OVERLAP, "q_grad", "k_grad");
        }
        free(buffer);
        call_free(apart);
        call_free(fused);
    }
}

/* o beside q, k and v in one buffer: an output next to inputs. */
Test(arguments, output_beside_inputs)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        s.problem.heads_key = s.problem.heads_value = s.problem.heads_query = 2;
        s.problem.value_dim = s.problem.key_dim = 4;
        call *apart = call_new(&s, FWA_PASS_FORWARD), *fused = call_new(&s, FWA_PASS_FORWARD);
        fwa_tensor *parts[] = {&fused->forward.q, &fused->forward.k, &fused->forward.v,
                               &fused->forward.o};
        float *buffer = malloc(sizeof(float) * 2 * 5 * 4 * 8);
        call_ok(apart);
        for (int i = 0; i < 4; i++) {
            fwa_tensor dense = *parts[i];
            parts[i]->data = buffer + i * 8;
            parts[i]->stride[0] = 5 * 4 * 8;
            parts[i]->stride[1] = 4 * 8;
            for (int64_t j = 0; j < tensor_count(&dense); j++)
                tensor_set(parts[i], j, tensor_get(&dense, j));
        }
        call_ok(fused);
        expect_same_outputs(apart, fused);
        parts[3]->data = buffer + 3 * 8 - 1;
        call_fails(fused, FWA_ERROR_OVERLAP, "o at ", "shares memory with v");
        free(buffer);
        call_free(apart);
        call_free(fused);
    }
}

/* ---- Buffers ---- */

Test(arguments, workspace)
{
    FOR_CALLS(c)
    {
        const bool forward = c->pass == FWA_PASS_FORWARD;
        size_t *size = forward ? &c->forward.workspace_size : &c->backward.workspace_size;
        void **data = forward ? &c->forward.workspace : &c->backward.workspace;
        void *kept = *data;
        const size_t right = *size;
        char value[64], needed[64];
        cr_assert_gt(right, 0);
        snprintf(value, sizeof value, "workspace_size is %zu", right - 1);
        snprintf(needed, sizeof needed, "need %zu bytes", right);
        *size = right - 1;
        call_fails(c, FWA_ERROR_WORKSPACE, value, needed, "2 x 5 tokens in 2 sequences");
        *size = 0;
        call_fails(c, FWA_ERROR_WORKSPACE, "workspace_size is 0", needed);
        *size = right;
        *data = NULL;
        call_fails(c, FWA_ERROR_NULL, "workspace is NULL");
        *size = SIZE_MAX;
        call_fails(c, FWA_ERROR_NULL, "workspace is NULL");
        *size = right;
        for (int shift = 1; shift < FWA_BUFFER_ALIGNMENT; shift++) {
            *data = (char *)kept + shift;
            call_fails(c, FWA_ERROR_ALIGNMENT, "workspace is 0x", "not aligned to 16");
        }
        *data = kept;
        call_ok(c);
    }
}

Test(arguments, saved)
{
    FOR_CALLS(c)
    {
        size_t right = 0;
        block saved;
        cr_assert_eq(fwa_plan_saved_size(c->plan, 2, 5, 2, &right), FWA_OK);
        saved = block_make(right + 16, 16, PLACE_MARGINS);
        for (int shift = 1; shift < FWA_BUFFER_ALIGNMENT; shift++) {
            c->forward.saved = saved.data + shift;
            c->backward.saved = saved.data + shift;
            c->forward.saved_size = c->backward.saved_size = right;
            call_fails(c, FWA_ERROR_ALIGNMENT, "saved is 0x", "not aligned to 16");
        }
        c->forward.saved = saved.data;
        c->backward.saved = saved.data;
        if (right > 0) {
            c->forward.saved_size = c->backward.saved_size = right - 1;
            call_fails(c, FWA_ERROR_WORKSPACE, "saved_size is ", "need ");
        }
        c->forward.saved = c->workspace.data;
        c->backward.saved = c->workspace.data;
        c->forward.saved_size = c->backward.saved_size = right + 16;
        call_fails(c, FWA_ERROR_OVERLAP, "saved at ", "shares memory with workspace at ");
        for (size_t i = 0; i < saved.size; i++)
            cr_assert_eq(saved.data[i], POISON);
        cr_assert(block_margins_intact(&saved));
        block_free(&saved);
    }
}

/* What the forward saves is what the backward needs: the gradients are the same with it, and the
 * forward's outputs too. */
Test(arguments, saved_changes_nothing)
{
    FOR_BACKENDS(backend)
    for (int kind = 0; kind < 2; kind++) {
        setup s = kind ? setup_normalizer(backend) : setup_small(backend);
        s.tokens = 70;
        call *forward = call_new(&s, FWA_PASS_FORWARD), *backward = call_new(&s, FWA_PASS_BACKWARD);
        call *plain = call_new(&s, FWA_PASS_FORWARD), *other = call_new(&s, FWA_PASS_BACKWARD);
        size_t size = 0;
        block saved;
        cr_assert_eq(fwa_plan_saved_size(forward->plan, 2, 70, 2, &size), FWA_OK);
        saved = block_make(size, 16, PLACE_MARGINS);
        forward->forward.saved = saved.data;
        forward->forward.saved_size = saved.size;
        backward->backward.saved = saved.data;
        backward->backward.saved_size = saved.size;
        call_ok(forward);
        call_ok(plain);
        expect_same_outputs(forward, plain);
        cr_assert(block_margins_intact(&saved));
        call_ok(backward);
        call_ok(other);
        expect_same_outputs(backward, other);
        block_free(&saved);
        call_free(forward);
        call_free(backward);
        call_free(plain);
        call_free(other);
    }
}

/* ---- Arguments that do not go together ---- */

Test(arguments, parts_that_the_problem_lacks)
{
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        static const char *const carries[2][2] = {{"carry_in", "carry_out"},
                                                  {"carry_in_grad", "carry_out_grad"}};
        setup s = setup_small(backend);
        s.problem.window = 1;
        s.problem.alignment = FWA_ALIGNMENT_SAME_STEP;
        call *c = call_new(&s, (fwa_pass)pass);
        float memory[64] = {0};
        for (int which = 0; which < 2; which++) {
            fwa_carry *carry = pass ? (which ? &c->backward.carry_out_grad
                                             : &c->backward.carry_in_grad)
                                    : (which ? &c->forward.carry_out : &c->forward.carry_in);
            char prev_key[48], norm[48], tail[64];
            snprintf(prev_key, sizeof prev_key, "%s.prev_key is given", carries[pass][which]);
            snprintf(norm, sizeof norm, "%s.norm is given", carries[pass][which]);
            snprintf(tail, sizeof tail, "%s.tail_key.shape[1] is 1; it must be 0",
                     carries[pass][which]);
            carry->prev_key = fwa_tensor_contiguous(memory, FWA_DTYPE_F32, 3, 2, 1, 4);
            call_fails(c, FWA_ERROR_VALUE, prev_key, "alignment is same_step");
            carry->prev_key = (fwa_tensor){0};
            carry->norm = fwa_tensor_contiguous(memory, FWA_DTYPE_F32, 3, 2, 2, 4);
            call_fails(c, FWA_ERROR_VALUE, norm, "normalizer is 0");
            carry->norm = (fwa_tensor){0};
            carry->tail_key = fwa_tensor_contiguous(memory, FWA_DTYPE_F32, 4, 2, 1, 1, 4);
            call_fails(c, FWA_ERROR_SHAPE, tail);
            carry->tail_key = (fwa_tensor){0};
        }
        call_free(c);
    }
}

Test(arguments, mask_needs_the_masked_form)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        s.mask = true;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        call_fails(c, FWA_ERROR_UNSUPPORTED, "mask is given", "FWA_FORM_MASKED");
        call_free(c);
    }
    setup s = setup_small("cpu");
    const int64_t lengths[] = {2, 3};
    s.problem.form = FWA_FORM_MASKED;
    s.batch = 1;
    s.lengths = lengths;
    s.sequences = 2;
    s.mask = true;
    call *c = call_new(&s, FWA_PASS_FORWARD);
    call_fails(c, FWA_ERROR_UNSUPPORTED, "mask is given", "no cu_seqlens");
    call_free(c);
}

Test(arguments, backward_refuses)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        call *c = call_new(&s, FWA_PASS_BACKWARD);
        int32_t commit[2] = {1, 1};
        int64_t seen[2] = {0, 0};
        c->backward.commit = fwa_tensor_contiguous(commit, FWA_DTYPE_I32, 1, 2);
        call_fails(c, FWA_ERROR_VALUE, "commit is given", "inference");
        c->backward.commit = (fwa_tensor){0};
        c->backward.carry_in_grad.seen = fwa_tensor_contiguous(seen, FWA_DTYPE_I64, 1, 2);
        call_fails(c, FWA_ERROR_VALUE, "carry_in_grad.seen is given");
        c->backward.carry_in_grad.seen = (fwa_tensor){0};
        c->backward.carry_out_grad.seen = fwa_tensor_contiguous(seen, FWA_DTYPE_I64, 1, 2);
        call_fails(c, FWA_ERROR_VALUE, "carry_out_grad.seen is given");
        call_free(c);
    }
}

static void nowhere(void *user)
{
    (void)user;
}

Test(arguments, team)
{
    FOR_CALLS(c)
    {
        static const fwa_team bad[] = {{0, 0, nowhere, NULL},  {-1, 2, nowhere, NULL},
                                       {2, 2, nowhere, NULL},  {0, -1, nowhere, NULL},
                                       {5, -1, nowhere, NULL}, {0, INT32_MIN, nowhere, NULL}};
        const fwa_team no_barrier = {0, 2, NULL, NULL}, alone = {0, 1, NULL, NULL};
        const fwa_team **team = c->pass == FWA_PASS_FORWARD ? &c->forward.team : &c->backward.team;
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            char text[64];
            *team = &bad[i];
            snprintf(text, sizeof text, "team->member is %d of %d", (int)bad[i].member,
                     (int)bad[i].size);
            call_fails(c, FWA_ERROR_VALUE, text, "0 to size - 1");
        }
        *team = &no_barrier;
        call_fails(c, FWA_ERROR_NULL, "team->barrier is NULL");
        *team = &alone;
        call_ok(c);
    }
}
