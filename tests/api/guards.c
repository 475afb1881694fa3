/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor and the workspace against a page that cannot be touched, for each form and for sizes
 * around those of tiles and chunks (B019, B022, B025, B028, B107). The outputs must be those that a
 * call with margins gives. SIZES, the number of combinations, comes from the build; FWA_TEST_FULL tries
 * them all. */

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int32_t dims[] = {1, 7, 16, 48, 80, 96, 100, 112, 192, 256};
static const int64_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 129};
enum { DIMS = 10, LENGTHS = 10, RULES = 8 };

/* The six rules, the normaliser, and same_step reads before the write. */
static void set_rule(setup *s, int rule)
{
    fwa_problem *p = &s->problem;
    p->objective = rule % 2 ? FWA_OBJECTIVE_INNER_PRODUCT : FWA_OBJECTIVE_REGRESSION;
    p->window = rule / 2 == 2 ? 5 : 1;
    p->dynamics = rule / 2 == 1 ? FWA_DYNAMICS_PER_CHANNEL : FWA_DYNAMICS_PER_HEAD;
    if (rule == 7) {
        p->normalizer = 1;
        p->phi = FWA_FEATURE_MAP_RELU;
        p->eps_attn = 0.5;
        p->qk_norm = FWA_NORM_L2;
    } else if (rule == 6) {
        p->alignment = FWA_ALIGNMENT_SAME_STEP;
        p->read = FWA_READ_BEFORE_WRITE;
        p->window = 32;
    }
}

static void set_type(setup *s, int type)
{
    static const struct {
        int32_t dtype, state;
    } types[] = {{FWA_DTYPE_F32, FWA_DTYPE_F32},
                 {FWA_DTYPE_BF16, FWA_DTYPE_F16},
                 {FWA_DTYPE_F16, FWA_DTYPE_F32},
                 {FWA_DTYPE_BF16, FWA_DTYPE_BF16}};
    s->problem.dtype = types[type].dtype;
    s->problem.state_dtype = types[type].state;
}

static void check_guarded(setup *s, const char *what)
{
    for (int pass = 0; pass < 2; pass++) {
        s->place = PLACE_MARGINS;
        call *margins = call_new(s, (fwa_pass)pass);
        call_ok(margins);
        for (int i = 0; i < margins->count; i++)
            cr_assert(!margins->tensors[i].output || tensor_finite(margins->tensors[i].tensor),
                      "%s of %s", margins->tensors[i].name, what);
        for (int place = PLACE_GUARD_BEHIND; place <= PLACE_GUARD_FRONT; place++) {
            s->place = (placement)place;
            call *guarded = call_new(s, (fwa_pass)pass);
            call_ok(guarded);
            expect_same_outputs(margins, guarded);
            call_free(guarded);
        }
        call_free(margins);
    }
}

static setup setup_of(const char *backend, int form, int64_t index)
{
    setup s = setup_small(backend);
    s.problem.form = form;
    s.problem.key_dim = dims[index % DIMS];
    s.problem.value_dim = dims[(index + index / DIMS * 3) % DIMS];
    s.tokens = lengths[(index * 7 + index / DIMS) % LENGTHS];
    s.batch = 1 + index % 2;
    s.mask = form == FWA_FORM_MASKED;
    /* The scale of the keys: |x|^2 about 1, or the regression of direct steps explodes. */
    s.problem.qk_norm = FWA_NORM_L2;
    set_rule(&s, (int)(index % RULES));
    set_type(&s, (int)(index / 3 % 4));
    return s;
}

static void sweep(const char *backend, int form, int64_t some)
{
    const int64_t count = full_run() ? DIMS * DIMS * LENGTHS : some;
    for (int64_t index = 0; index < count; index++) {
        setup s = setup_of(backend, form, index);
        char what[96];
        if (full_run()) {
            s.problem.key_dim = dims[index % DIMS];
            s.problem.value_dim = dims[index / DIMS % DIMS];
            s.tokens = lengths[index / DIMS / DIMS];
        }
        snprintf(what, sizeof what, "%s form %d, T %d, D %d, V %d, rule %d", backend, form,
                 (int)s.tokens, (int)s.problem.key_dim, (int)s.problem.value_dim,
                 (int)(index % RULES));
        check_guarded(&s, what);
    }
}

Test(guards, recurrent, .timeout = 3600)
{
    sweep("cpu", FWA_FORM_RECURRENT, SIZES);
}

Test(guards, masked, .timeout = 3600)
{
    sweep("cpu", FWA_FORM_MASKED, SIZES);
}

Test(guards, chunked, .timeout = 3600)
{
    sweep("cpu", FWA_FORM_CHUNKED, SIZES);
}

Test(guards, reference, .timeout = 3600)
{
    sweep("reference", FWA_FORM_RECURRENT, SIZES / 2);
}

/* Packed sequences, with lengths around those of chunks, and pools that are exactly sized. */
Test(guards, packed)
{
    static const int64_t packed[] = {15, 0, 64, 1, 17, 65, 2};
    static const int32_t slots[] = {6, 2, 0, 1, 5, 3, 4};
    for (int form = FWA_FORM_RECURRENT; form <= FWA_FORM_CHUNKED; form++)
        for (int rule = 0; rule < RULES; rule++)
            for (int pass = 0; pass < 2; pass++)
                for (int place = PLACE_GUARD_BEHIND; place <= PLACE_GUARD_FRONT; place++) {
                    setup s = setup_of("cpu", form, rule + 10);
                    s.batch = 1;
                    s.tokens = 164;
                    s.lengths = packed;
                    s.sequences = 7;
                    s.mask = false;
                    s.place = (placement)place;
                    call *c = call_new(&s, (fwa_pass)pass);
                    call_integers(c, "slot_in", 7, slots);
                    call_ok(c);
                    for (int i = 0; i < c->count; i++)
                        cr_assert(!c->tensors[i].output || tensor_finite(c->tensors[i].tensor),
                                  "%s", c->tensors[i].name);
                    call_free(c);
                }
}

/* Decoding in place: one token, a pool, the state and nothing else moves. */
Test(guards, decoding)
{
    for (int rule = 0; rule < RULES; rule++)
        for (int i = 0; i < DIMS; i++)
            for (int place = PLACE_GUARD_BEHIND; place <= PLACE_GUARD_FRONT; place++) {
                static const int32_t slots[] = {2, 0, -1};
                setup s = setup_of("cpu", FWA_FORM_AUTO, i * DIMS + rule);
                s.problem.key_dim = dims[i];
                s.problem.value_dim = dims[(i * 3 + rule) % DIMS];
                s.batch = 3;
                s.tokens = 1;
                s.in_place = true;
                s.place = (placement)place;
                call *c = call_new(&s, FWA_PASS_FORWARD);
                call_integers(c, "slot_in", 3, slots);
                call_ok(c);
                call_free(c);
            }
}

/* NaN in one row, or one head, reaches no other: not through padding lanes either (B025). */
static void check_spread(const setup *s, fwa_pass pass, bool one_head)
{
    static const char *const names[] = {"q", "k", "v"};
    call *clean = call_new(s, pass), *dirty = call_new(s, pass);
    for (int i = 0; i < 3; i++) {
        fwa_tensor *t = call_get(dirty, names[i]);
        fwa_tensor row = tensor_rows(t, 0, 1);
        int64_t heads = t->shape[2], width = t->shape[3];
        for (int64_t at = 0; at < tensor_count(&row); at++)
            if (!one_head || at / width % heads == 0)
                tensor_set(&row, at, NAN);
    }
    call_ok(clean);
    call_ok(dirty);
    for (int i = 0; i < clean->count; i++) {
        const fwa_tensor *a = clean->tensors[i].tensor, *b = dirty->tensors[i].tensor;
        const bool row_part = strchr(clean->tensors[i].name, '.') != NULL;
        const int head_axis = strstr(clean->tensors[i].name, "tail") || !row_part ? 2 : 1;
        fwa_tensor x = tensor_rows(a, 1, 1), y = tensor_rows(b, 1, 1);
        if (!clean->tensors[i].output)
            continue;
        cr_assert(tensor_same(&x, &y), "%s: row 1", clean->tensors[i].name);
        if (!one_head || a->rank <= head_axis)
            continue;
        x = *a, y = *b;
        x.shape[head_axis] = y.shape[head_axis] = 1;
        x.data = (char *)x.data + x.stride[head_axis] * (int64_t)fwa_dtype_size(x.dtype);
        y.data = (char *)y.data + y.stride[head_axis] * (int64_t)fwa_dtype_size(y.dtype);
        cr_assert(tensor_same(&x, &y), "%s: head 1", clean->tensors[i].name);
    }
    call_free(clean);
    call_free(dirty);
}

Test(guards, nan_stays_in_its_row_and_head)
{
    for (int form = FWA_FORM_RECURRENT; form <= FWA_FORM_CHUNKED; form++)
        for (int rule = 0; rule < RULES; rule++)
            for (int pass = 0; pass < 2; pass++)
                for (int one_head = 0; one_head < 2; one_head++) {
                    setup s = setup_of("cpu", form, 6);
                    s.problem.normalizer = 0;
                    set_rule(&s, rule);
                    s.problem.dtype = FWA_DTYPE_BF16;
                    s.problem.key_dim = 100;
                    s.problem.value_dim = 7;
                    s.problem.heads_key = s.problem.heads_value = s.problem.heads_query = 2;
                    s.tokens = 37;
                    s.batch = 2;
                    s.mask = false;
                    check_spread(&s, (fwa_pass)pass, one_head);
                }
}
