/* SPDX-License-Identifier: Apache-2.0 */
/* Legal layouts: whatever the strides, the answer is the one of dense copies, bit for bit. */

#include "support.h"

#include <string.h>

/* Rules, sizes and types that the layouts are tried with. Tokens cover a chunk and a tail. */
#define VARIANTS 6
static setup variant(const char *backend, int i)
{
    setup s = i == 1 ? setup_normalizer(backend) : setup_small(backend);
    s.tokens = 21;
    s.problem.heads_key = s.problem.heads_query = 2;
    s.problem.heads_value = 4;
    switch (i) {
    case 2: s.problem.dtype = FWA_DTYPE_BF16, s.problem.state_dtype = FWA_DTYPE_BF16; break;
    case 3:
        s.problem.dtype = FWA_DTYPE_F16, s.problem.key_dim = 36, s.problem.value_dim = 20;
        break;
    case 4:
        s.problem.dynamics = FWA_DYNAMICS_PER_CHANNEL, s.problem.window = 1;
        s.problem.heads_query = 4;
        break;
    case 5: s.tokens = 1; break;
    default: break;
    }
    return s;
}

/* The dense strides with `pitch` elements between rows of the last axis, axes in that order
 * (outermost first; the last axis stays). */
static void strides_of(const fwa_tensor *t, const int order[FWA_MAX_RANK], int64_t pad,
                       int64_t *stride)
{
    int64_t step = t->shape[t->rank - 1] + pad;
    memset(stride, 0, FWA_MAX_RANK * sizeof *stride);
    stride[t->rank - 1] = 1;
    for (int i = t->rank - 2; i >= 0; i--) {
        stride[order[i]] = step;
        step = step * t->shape[order[i]] + pad;
    }
}

/* Another memory order of the outer axes: heads before tokens, and the like. */
static void order_of(const fwa_tensor *t, int layout, int order[FWA_MAX_RANK])
{
    for (int i = 0; i < FWA_MAX_RANK; i++)
        order[i] = i;
    if (layout == 1 && t->rank >= 4) { /* [B, H, T, D] */
        order[1] = 2;
        order[2] = 1;
    } else if (layout == 2 && t->rank >= 3) { /* tokens before the batch */
        order[0] = 1;
        order[1] = 0;
    }
}

static void expect_same_layout(const setup *s, fwa_pass pass, call *dense, const char *name,
                               int layout, int64_t pad, int64_t lead)
{
    int64_t stride[FWA_MAX_RANK];
    int order[FWA_MAX_RANK];
    call *c = call_new(s, pass);
    for (int i = 0; i < c->count; i++) {
        const call_tensor *t = &c->tensors[i];
        if ((name && strcmp(t->name, name) != 0) || t->tensor->rank < 2)
            continue;
        order_of(t->tensor, layout, order);
        strides_of(t->tensor, order, pad, stride);
        call_restride(c, t->name, stride, lead);
        i = name ? c->count : i;
    }
    call_ok(c);
    expect_same_outputs(dense, c);
    call_free(c);
}

/* Each tensor in turn, input or output, padded, transposed and at odd addresses; then all at once
 * (B043, B044, B047, B127). */
Test(strides, each_in_turn)
{
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, i);
            call *dense = call_new(&s, (fwa_pass)pass);
            call_ok(dense);
            for (int j = 0; j <= dense->count; j++)
                for (int layout = 0; layout < 3; layout++) {
                    const char *name = j < dense->count ? dense->tensors[j].name : NULL;
                    expect_same_layout(&s, (fwa_pass)pass, dense, name, layout, 0, 1);
                    expect_same_layout(&s, (fwa_pass)pass, dense, name, layout, 3, 0);
                    expect_same_layout(&s, (fwa_pass)pass, dense, name, layout, 1, 5);
                }
            call_free(dense);
        }
}

/* Axes of extent 1 may have any stride at all. */
Test(strides, axes_of_one)
{
    static const int64_t odd[] = {0, -1, 1 << 20, INT64_MAX, INT64_MIN, 7};
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (int tokens = 1; tokens < 4; tokens += 2) {
            setup s = setup_small(backend);
            s.batch = 1;
            s.tokens = tokens;
            s.problem.window = 2;
            s.problem.heads_value = s.problem.heads_query = 1;
            s.problem.key_dim = s.problem.value_dim = 1;
            call *dense = call_new(&s, (fwa_pass)pass);
            call_ok(dense);
            for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
                call *c = call_new(&s, (fwa_pass)pass);
                for (int j = 0; j < c->count; j++)
                    for (int axis = 0; axis < c->tensors[j].tensor->rank; axis++)
                        if (c->tensors[j].tensor->shape[axis] == 1)
                            c->tensors[j].tensor->stride[axis] = odd[i];
                call_ok(c);
                expect_same_outputs(dense, c);
                call_free(c);
            }
            call_free(dense);
        }
}

/* Stride 0: every input broadcast along every set of its axes equals the copy. */
static void expect_same_broadcast(const setup *s, fwa_pass pass, const char *name, unsigned axes)
{
    call *copy = call_new(s, pass), *broadcast = call_new(s, pass);
    fwa_tensor *dense = call_get(copy, name), *view = call_get(broadcast, name);
    int64_t stride[FWA_MAX_RANK], step = 1;
    for (int axis = view->rank - 1; axis >= 0; axis--) {
        stride[axis] = axes >> axis & 1 ? 0 : step;
        step *= axes >> axis & 1 ? 1 : view->shape[axis];
    }
    call_restride(broadcast, name, stride, 0);
    for (int64_t i = 0; i < tensor_count(view); i++)
        tensor_set(dense, i, tensor_get(view, i));
    call_ok(copy);
    call_ok(broadcast);
    expect_same_outputs(copy, broadcast);
    call_free(copy);
    call_free(broadcast);
}

Test(strides, broadcasts)
{
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = variant(backend, i);
            call *names = call_new(&s, (fwa_pass)pass);
            for (int j = 0; j < names->count; j++) {
                const call_tensor *t = &names->tensors[j];
                for (unsigned axes = 1; !t->output && axes < 1u << t->tensor->rank; axes++)
                    expect_same_broadcast(&s, (fwa_pass)pass, t->name, axes);
            }
            call_free(names);
        }
}

/* q, k and v as slices of one [B, T, 3 H D + pad] buffer (B043). */
Test(strides, fused_projections)
{
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (int64_t pad = 0; pad < 8; pad += 5) {
            setup s = setup_small(backend);
            s.tokens = 19;
            s.problem.heads_key = s.problem.heads_value = s.problem.heads_query = 2;
            s.problem.key_dim = s.problem.value_dim = 36;
            call *apart = call_new(&s, (fwa_pass)pass), *fused = call_new(&s, (fwa_pass)pass);
            const int64_t width = 3 * 2 * 36 + pad;
            block buffer = block_make((size_t)(2 * 19 * width) * 4, 4, PLACE_MARGINS);
            for (int i = 0; i < 3; i++) {
                static const char *const names[] = {"q", "k", "v"};
                fwa_tensor *view = call_get(fused, names[i]);
                const fwa_tensor *dense = call_get(apart, names[i]);
                view->data = buffer.data + i * 2 * 36 * 4;
                view->stride[0] = 19 * width;
                view->stride[1] = width;
                for (int64_t j = 0; j < tensor_count(dense); j++)
                    tensor_set(view, j, tensor_get(dense, j));
            }
            call_ok(apart);
            call_ok(fused);
            expect_same_outputs(apart, fused);
            block_free(&buffer);
            call_free(apart);
            call_free(fused);
        }
}

/* Vectors of integers with gaps: the carry's tokens, lengths and slots. */
Test(strides, integer_vectors)
{
    static const int64_t lengths[] = {3, 0, 2};
    static const int64_t gap[] = {3};
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        const int32_t slots[] = {2, 0, 4}, targets[] = {0, 1, 3}, commit[] = {1, 0, 2};
        s.batch = 1;
        s.tokens = 5;
        s.lengths = lengths;
        s.sequences = 3;
        s.rows_in = s.rows_out = 5;
        call *dense = call_new(&s, FWA_PASS_FORWARD), *c = call_new(&s, FWA_PASS_FORWARD);
        call *both[] = {dense, c};
        for (int i = 0; i < 2; i++) {
            call_integers(both[i], "slot_in", 3, slots);
            call_integers(both[i], "slot_out", 3, targets);
            call_integers(both[i], "commit", 3, commit);
        }
        static const char *const names[] = {"slot_in",    "slot_out",      "commit",
                                            "cu_seqlens", "carry_in.seen", "carry_out.seen"};
        for (int i = 0; i < 6; i++)
            call_restride(c, names[i], gap, 1);
        call_ok(dense);
        call_ok(c);
        expect_same_outputs(dense, c);
        call_free(dense);
        call_free(c);
    }
}

/* States kept value-major, [N, Hv, V, D], as transposed views; in place too (B023, B052). */
static void make_value_major(call *c, const char *name, int64_t lead)
{
    const fwa_tensor *t = call_get(c, name);
    const int64_t heads = t->shape[1], d = t->shape[2], v = t->shape[3];
    const int64_t stride[] = {heads * v * d + 2, v * d, 1, d};
    call_restride(c, name, stride, lead);
}

Test(strides, value_major_states)
{
    static const char *const names[2][2] = {{"carry_in.state", "carry_out.state"},
                                            {"carry_out_grad.state", "carry_in_grad.state"}};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int pass = 0; pass < 2; pass++)
            for (int which = 1; which < 4; which++) {
                setup s = variant(backend, i);
                call *dense = call_new(&s, (fwa_pass)pass), *c = call_new(&s, (fwa_pass)pass);
                for (int j = 0; j < 2; j++)
                    if (which >> j & 1)
                        make_value_major(c, names[pass][j], j);
                if (pass == FWA_PASS_BACKWARD)
                    make_value_major(c, "carry_in.state", 3);
                call_ok(dense);
                call_ok(c);
                expect_same_outputs(dense, c);
                call_free(dense);
                call_free(c);
            }
}

Test(strides, value_major_states_in_place)
{
    static const int32_t in[] = {1, 0}, out[] = {0, 1}, zeros[] = {0, 0};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int nothing = 0; nothing < 2; nothing++) {
            setup s = variant(backend, i);
            call *apart = call_new(&s, FWA_PASS_FORWARD);
            s.in_place = true;
            call *c = call_new(&s, FWA_PASS_FORWARD);
            make_value_major(c, "carry_in.state", 0);
            c->forward.carry_out.state = c->forward.carry_in.state;
            for (int j = 0; j < 2; j++) {
                call_integers(j ? apart : c, "slot_in", 2, in);
                call_integers(j ? apart : c, "slot_out", 2, out);
                if (nothing)
                    call_integers(j ? apart : c, "commit", 2, zeros);
            }
            call_ok(apart);
            call_ok(c);
            cr_assert(tensor_same(&apart->forward.o, &c->forward.o));
            cr_assert(tensor_same(&apart->forward.carry_out.state, &c->forward.carry_out.state));
            cr_assert(tensor_same(&apart->forward.carry_out.seen, &c->forward.carry_out.seen));
            call_free(apart);
            call_free(c);
        }
}

/* A wrong layout is seen where D is not V. */
Test(strides, wrong_state_layout)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        call *c = call_new(&s, FWA_PASS_FORWARD);
        fwa_tensor *state = call_get(c, "carry_in.state");
        *state = fwa_tensor_contiguous(state->data, FWA_DTYPE_F32, 4, 2, 2, 3, 4);
        call_fails(c, FWA_ERROR_SHAPE, "carry_in.state.shape[2] is 3; it must be 4");
        call_free(c);
    }
}

/* A beta of the wrong kind is no beta. */
Test(strides, beta_follows_the_dynamics)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        call *c = call_new(&s, FWA_PASS_FORWARD);
        fwa_tensor *beta = call_get(c, "beta");
        beta->rank = 4;
        beta->shape[3] = 3;
        beta->stride[3] = 0;
        call_fails(c, FWA_ERROR_SHAPE, "beta.rank is 4; it must be 3");
        call_free(c);
        s.problem.window = 1;
        s.problem.dynamics = FWA_DYNAMICS_PER_CHANNEL;
        c = call_new(&s, FWA_PASS_FORWARD);
        call_get(c, "beta")->rank = 3;
        call_fails(c, FWA_ERROR_SHAPE, "beta.rank is 3; it must be 4");
        call_free(c);
    }
}
