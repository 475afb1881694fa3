/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that span more than 2^31 and 2^32 elements, of which a call touches a few: offsets have
 * 64 bits. They lie in address space that takes no memory until it is written. */

#include "support.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

typedef struct space {
    unsigned char *data;
    size_t size;
} space;

static space space_make(size_t size)
{
    space s = {NULL, size};
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert(map != MAP_FAILED, "no address space for %zu bytes", size);
    s.data = map;
    return s;
}

static void space_free(space *s)
{
    cr_assert_eq(munmap(s->data, s->size), 0);
}

/* Copies the elements of one view to another of the same shape. */
static void copy(const fwa_tensor *from, const fwa_tensor *to)
{
    const int64_t size = (int64_t)fwa_dtype_size(from->dtype);
    for (int64_t i = tensor_count(from) - 1; i >= 0; i--)
        memcpy((char *)to->data + tensor_offset(to, i) * size,
               (char *)from->data + tensor_offset(from, i) * size, (size_t)size);
}

/* ---- Pools ---- */

/* The call's own pool has POOL_SMALL slots; in the large one they are the last. 131200 states of
 * 128 x 128 are more than 2^31 elements. */
#define POOL_SMALL 3
#define POOL_LARGE 131200
#define POOL_DIM   128

/* Makes the carry parts of a call large pools; a part takes address space of its own. Returns how
 * many parts. */
static int enlarge_pools(call *c, const char *carry, space *spaces)
{
    int made = 0;
    for (int i = 0; i < c->count; i++) {
        fwa_tensor *t = c->tensors[i].tensor, small = *t, last;
        int64_t row = 1;
        if (strncmp(c->tensors[i].name, carry, strlen(carry)) != 0)
            continue;
        for (int axis = 1; axis < t->rank; axis++)
            row *= t->shape[axis];
        spaces[made] = space_make((size_t)(POOL_LARGE * row) * fwa_dtype_size(t->dtype));
        t->data = spaces[made++].data;
        t->shape[0] = POOL_LARGE;
        last = tensor_rows(t, POOL_LARGE - POOL_SMALL, POOL_SMALL);
        copy(&small, &last);
    }
    return made;
}

static setup pool_setup(const char *backend, int32_t form, int64_t tokens)
{
    setup s = setup_small(backend);
    s.problem.key_dim = s.problem.value_dim = POOL_DIM;
    s.problem.heads_key = s.problem.heads_value = s.problem.heads_query = 1;
    s.problem.form = form;
    s.batch = 2;
    s.tokens = tokens;
    s.seen = 4;
    s.rows_in = s.rows_out = POOL_SMALL;
    return s;
}

/* Two rows that read and write the last slots: the same as in a small pool. */
static void check_pool(const setup *base, bool in_place)
{
    static const int32_t in[] = {2, 1}, out[] = {1, 2}, far = POOL_LARGE - POOL_SMALL;
    setup s = *base;
    s.in_place = in_place;
    call *small = call_new(&s, FWA_PASS_FORWARD), *large = call_new(&s, FWA_PASS_FORWARD);
    space spaces[12];
    int made = enlarge_pools(large, "carry_in.", spaces);
    if (in_place)
        large->forward.carry_out = large->forward.carry_in;
    else
        made += enlarge_pools(large, "carry_out.", spaces + made);
    cr_assert_geq(made, in_place ? 3 : 6); /* seen, state, prev_key at least */
    for (int i = 0; i < 2; i++) {
        const int32_t shift = i ? far : 0;
        const int32_t in_there[] = {in[0] + shift, in[1] + shift};
        const int32_t out_there[] = {out[0] + shift, out[1] + shift};
        call *c = i ? large : small;
        call_integers(c, "slot_in", 2, in_there);
        call_integers(c, "slot_out", 2, out_there);
        cr_assert_eq(call_run(c), FWA_OK, "%s", fwa_error_message());
    }
    cr_expect(tensor_same(&small->forward.o, &large->forward.o), "o");
    for (int i = 0; i < small->count; i++) {
        const char *name = small->tensors[i].name;
        if (strncmp(name, in_place ? "carry_in." : "carry_out.", in_place ? 9 : 10) != 0)
            continue;
        for (int row = 0; row < 2; row++) {
            const fwa_tensor want = tensor_rows(small->tensors[i].tensor, out[row], 1);
            const fwa_tensor got = tensor_rows(call_get(large, name), out[row] + far, 1);
            cr_expect(tensor_same(&want, &got), "%s of row %d", name, row);
        }
    }
    call_free(small);
    call_free(large);
    while (made-- > 0)
        space_free(&spaces[made]);
}

/* Prefill and decoding from and into the last slots (B079). */
Test(large, pools)
{
    static const int32_t forms[] = {FWA_FORM_RECURRENT, FWA_FORM_MASKED, FWA_FORM_CHUNKED};
    for (int form = 0; form < 3; form++)
        for (int i = 0; i < 4; i++) {
            setup s = pool_setup("cpu", forms[form], i % 2 ? 70 : 1);
            if (i / 2) {
                s.problem.window = 1;
                s.problem.dtype = s.problem.state_dtype = FWA_DTYPE_BF16;
            }
            check_pool(&s, i % 2 == 0);
        }
    setup s = pool_setup("reference", FWA_FORM_RECURRENT, 2);
    check_pool(&s, true);
}

/* The backward reads the states of the last slots. */
Test(large, pools_backward)
{
    static const int32_t near[] = {2, 1}, far[] = {POOL_LARGE - 1, POOL_LARGE - 2};
    FOR_BACKENDS(backend)
    {
        setup s = pool_setup(backend, FWA_FORM_AUTO, 20);
        call *small = call_new(&s, FWA_PASS_BACKWARD), *large = call_new(&s, FWA_PASS_BACKWARD);
        space spaces[12];
        int made = enlarge_pools(large, "carry_in.", spaces);
        call_integers(small, "slot_in", 2, near);
        call_integers(large, "slot_in", 2, far);
        cr_assert_eq(call_run(small), FWA_OK, "%s", fwa_error_message());
        cr_assert_eq(call_run(large), FWA_OK, "%s", fwa_error_message());
        expect_same_outputs(small, large);
        call_free(small);
        call_free(large);
        while (made-- > 0)
            space_free(&spaces[made]);
    }
}

/* ---- Strides ---- */

#define FAR (((int64_t)1 << 32) + 4096)

/* Puts the rows along one axis, not the last, FAR elements apart in every f32 tensor that has two
 * of them, all in one space: the tensors lie between each other's rows. */
static void spread(call *c, int axis, const space *s)
{
    int64_t at = 0;
    for (int i = 0; i < c->count; i++) {
        fwa_tensor *t = c->tensors[i].tensor, dense = *t;
        if (t->dtype != FWA_DTYPE_F32 || axis >= t->rank - 1 || t->shape[axis] != 2)
            continue;
        t->data = s->data + at * 4;
        t->stride[axis] = FAR;
        at += tensor_count(&dense);
        copy(&dense, t);
    }
    cr_assert_leq(at, 4096);
    cr_assert_gt(at, 0);
}

/* Two batch rows, or two heads, 2^32 elements apart are as good as rows side by side (B077). */
static void check_far(const char *backend, int32_t form, int pass, int axis)
{
    setup s = setup_small(backend);
    s.problem.form = form;
    s.problem.heads_key = s.problem.heads_query = s.problem.heads_value = 2;
    s.batch = 2;
    s.tokens = 5;
    call *dense = call_new(&s, (fwa_pass)pass), *apart = call_new(&s, (fwa_pass)pass);
    space memory = space_make((size_t)(FAR + 4096) * 4);
    spread(apart, axis, &memory);
    cr_assert_eq(call_run(dense), FWA_OK, "%s", fwa_error_message());
    cr_assert_eq(call_run(apart), FWA_OK, "%s", fwa_error_message());
    expect_same_outputs(dense, apart);
    call_free(dense);
    call_free(apart);
    space_free(&memory);
}

Test(large, strides)
{
    static const int32_t forms[] = {FWA_FORM_RECURRENT, FWA_FORM_MASKED, FWA_FORM_CHUNKED};
    for (int pass = 0; pass < 2; pass++)
        for (int axis = 0; axis <= 2; axis += 2) {
            for (int form = 0; form < 3; form++)
                check_far("cpu", forms[form], pass, axis);
            check_far("reference", FWA_FORM_RECURRENT, pass, axis);
        }
}
