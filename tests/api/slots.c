/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of carries: forks, swaps, cycles, padded and fresh rows, commits; in place or not. */

#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_LIMIT 16

/* Which slots the rows of a call read and write. */
typedef struct plan_of_slots {
    int rows;
    int32_t in[ROWS_LIMIT], out[ROWS_LIMIT], commit[ROWS_LIMIT];
    bool given_out, given_commit;
} plan_of_slots;

static const char *const parts[] = {"seen", "state", "prev_key", "tail_key", "tail_value", "norm"};

static const char *part_name(char name[32], const char *carry, int i)
{
    strcpy(name, carry);
    strcat(name, ".");
    return strcat(name, parts[i]);
}

#define VARIANTS 8
static setup variant(const char *backend, int i)
{
    setup s = i == 1 ? setup_normalizer(backend) : setup_small(backend);
    switch (i) {
    case 2: s.problem.state_dtype = FWA_DTYPE_BF16; break;
    case 3: s.problem.state_dtype = FWA_DTYPE_F16, s.problem.dtype = FWA_DTYPE_BF16; break;
    case 4: s.problem.window = 6, s.problem.alignment = FWA_ALIGNMENT_SAME_STEP; break;
    case 5: s.problem.window = 1, s.problem.dynamics = FWA_DYNAMICS_PER_CHANNEL; break;
    case 6: s.problem.window = 4, s.problem.objective = FWA_OBJECTIVE_INNER_PRODUCT; break;
    case 7: s.problem.window = 2, s.problem.form = FWA_FORM_RECURRENT; break;
    default: break;
    }
    return s;
}

static void give_slots(call *c, const plan_of_slots *p)
{
    call_integers(c, "slot_in", p->rows, p->in);
    if (p->given_out)
        call_integers(c, "slot_out", p->rows, p->out);
    if (p->given_commit)
        call_integers(c, "commit", p->rows, p->commit);
}

static int32_t slot_written(const plan_of_slots *p, int row)
{
    return p->in[row] == FWA_SLOT_NONE ? FWA_SLOT_NONE : p->given_out ? p->out[row] : p->in[row];
}

static bool is_padded(const plan_of_slots *p, int row)
{
    return p->in[row] == FWA_SLOT_NONE || slot_written(p, row) == FWA_SLOT_NONE;
}

/* The tokens of one row of a call. */
static fwa_tensor tokens_of(const call *c, const fwa_tensor *t, int row)
{
    int64_t first = 0;
    if (!c->setup.lengths)
        return tensor_rows(t, row, 1);
    for (int n = 0; n < row; n++)
        first += c->setup.lengths[n];
    return tensor_tokens(t, first, c->setup.lengths[row]);
}

static void copy_elements(const fwa_tensor *from, const fwa_tensor *to)
{
    const size_t size = fwa_dtype_size(from->dtype);
    cr_assert_eq(tensor_count(from), tensor_count(to));
    for (int64_t i = 0; i < tensor_count(from); i++)
        memcpy((char *)to->data + tensor_offset(to, i) * (int64_t)size,
               (char *)from->data + tensor_offset(from, i) * (int64_t)size, size);
}

/* One row of a call as a call without slots, run. */
static call *run_alone(call *whole, const plan_of_slots *p, int row)
{
    setup s = whole->setup;
    call *c;
    s.batch = 1;
    s.tokens = s.lengths ? s.lengths[row] : s.tokens;
    s.lengths = NULL;
    s.in_place = false;
    s.rows_in = s.rows_out = 1;
    s.no_carry_in = p->in[row] == FWA_SLOT_FRESH;
    c = call_new(&s, FWA_PASS_FORWARD);
    for (int i = 0; i < c->count; i++) {
        call_tensor *t = &c->tensors[i];
        const fwa_tensor *source = t->output ? NULL : call_get(whole, t->name);
        fwa_tensor view;
        if (t->output)
            continue;
        view = strchr(t->name, '.') ? tensor_rows(source, p->in[row], 1)
                                    : tokens_of(whole, source, row);
        copy_elements(&view, t->tensor);
    }
    if (p->given_commit)
        call_integers(c, "commit", 1, &p->commit[row]);
    call_ok(c);
    return c;
}

/* Outputs and carries of a call out of place are those of each row alone. */
static void expect_rows_alone(call *apart, const plan_of_slots *p)
{
    for (int row = 0; row < p->rows; row++) {
        fwa_tensor o = tokens_of(apart, &apart->forward.o, row);
        call *alone;
        if (is_padded(p, row)) {
            cr_assert(tensor_all(&o, 0), "o of the padded row %d", row);
            continue;
        }
        alone = run_alone(apart, p, row);
        cr_assert(tensor_same(&o, &alone->forward.o), "o of row %d", row);
        for (int i = 0; slot_written(p, row) >= 0 && i < 6; i++) {
            char name[32];
            if (call_has(apart, part_name(name, "carry_out", i))) {
                fwa_tensor written = tensor_rows(call_get(apart, name), slot_written(p, row), 1);
                cr_assert(tensor_same(&written, call_get(alone, name)), "%s of row %d", name, row);
            }
        }
        call_free(alone);
    }
}

/* The pool after a call in place: written slots are those written out of place, all others are as
 * they were before, and out of place they were not touched. */
static void expect_same_pools(call *apart, call *in_place, const plan_of_slots *p)
{
    for (int i = 0; i < 6; i++) {
        char in[32], out[32];
        if (!call_has(apart, part_name(out, "carry_out", i)))
            continue;
        const fwa_tensor *before = call_get(apart, part_name(in, "carry_in", i));
        const fwa_tensor *expected = call_get(apart, out), *got = call_get(in_place, in);
        for (int64_t slot = 0; slot < before->shape[0]; slot++) {
            fwa_tensor old = tensor_rows(before, slot, 1), written = tensor_rows(expected, slot, 1);
            fwa_tensor now = tensor_rows(got, slot, 1);
            const unsigned char *bytes = written.data;
            size_t size = (size_t)tensor_count(&written) * fwa_dtype_size(written.dtype), j;
            bool is_written = false;
            for (int row = 0; row < p->rows; row++)
                is_written |= !is_padded(p, row) && slot_written(p, row) == slot;
            cr_assert(tensor_same(&now, is_written ? &written : &old), "%s, slot %d", in,
                      (int)slot);
            for (j = 0; !is_written && j < size; j++)
                cr_assert_eq(bytes[j], POISON, "%s, slot %d was written", out, (int)slot);
        }
    }
}

/* Fills the slots that only fresh rows name with NaN: nobody may read them (B058). */
static void poison_slots(call *c, const plan_of_slots *p, int64_t slots)
{
    for (int64_t slot = 0; slot < slots; slot++) {
        bool read = false;
        for (int row = 0; row < p->rows; row++)
            read |= p->in[row] == slot;
        for (int i = 1; !read && i < 6; i++) {
            char name[32];
            if (call_has(c, part_name(name, "carry_in", i))) {
                fwa_tensor view = tensor_rows(call_get(c, name), slot, 1);
                for (int64_t j = 0; j < tensor_count(&view); j++)
                    tensor_set(&view, j, NAN);
            }
        }
    }
}

static void check_slots(const setup *base, const plan_of_slots *p)
{
    setup s = *base;
    call *apart, *in_place;
    s.batch = s.lengths ? 1 : p->rows;
    s.sequences = s.lengths ? p->rows : 0;
    if (!s.rows_in)
        s.rows_in = s.rows_out = 9;
    apart = call_new(&s, FWA_PASS_FORWARD);
    s.in_place = true;
    in_place = call_new(&s, FWA_PASS_FORWARD);
    for (int i = 0; i < 2; i++) {
        call *c = i ? in_place : apart;
        fwa_tensor *seen = call_get(c, "carry_in.seen");
        for (int64_t slot = 0; slot < s.rows_in; slot++)
            tensor_set(seen, slot, (double)(slot * 3 % 8));
        give_slots(c, p);
        poison_slots(c, p, s.rows_in);
        call_ok(c);
    }
    expect_rows_alone(apart, p);
    cr_assert(tensor_same(&apart->forward.o, &in_place->forward.o));
    expect_same_pools(apart, in_place, p);
    call_free(apart);
    call_free(in_place);
}

/* Every named pattern, for every variant and each number of tokens from 1 to 8 (B061). */
static void check_pattern(const plan_of_slots *p)
{
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int64_t tokens = 1; tokens <= 8; tokens++) {
            plan_of_slots with = *p;
            setup s = variant(backend, i);
            s.tokens = tokens;
            check_slots(&s, p);
            with.given_commit = true;
            for (int row = 0; row < p->rows; row++)
                with.commit[row] = (int32_t)((tokens + row) % (tokens + 1));
            check_slots(&s, &with);
        }
}

#define OUT .given_out = true, .out

Test(slots, pool_larger_than_the_batch)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {7, 0, 4}});
}

Test(slots, fork)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {0, 0, 0}, OUT = {1, 2, 3}});
}

Test(slots, fork_onto_itself)
{
    check_pattern(&(plan_of_slots){.rows = 2, .in = {0, 0}, OUT = {0, 1}});
}

Test(slots, fork_onto_itself_last)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {5, 5, 5}, OUT = {1, 2, 5}});
}

Test(slots, swap)
{
    check_pattern(&(plan_of_slots){.rows = 2, .in = {3, 1}, OUT = {1, 3}});
}

Test(slots, cycle_of_three)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {0, 1, 2}, OUT = {1, 2, 0}});
}

Test(slots, chain)
{
    check_pattern(&(plan_of_slots){.rows = 4, .in = {0, 1, 2, 3}, OUT = {1, 2, 3, 4}});
}

Test(slots, chain_backwards)
{
    check_pattern(&(plan_of_slots){.rows = 4, .in = {4, 3, 2, 1}, OUT = {3, 2, 1, 0}});
}

Test(slots, two_cycles_a_fork_and_a_chain)
{
    check_pattern(&(plan_of_slots){
        .rows = 9, .in = {0, 1, 2, 3, 4, 0, 4, 7, 8}, OUT = {1, 0, 3, 4, 2, 5, 6, 8, 7}});
}

Test(slots, padded_rows)
{
    check_pattern(&(plan_of_slots){.rows = 8, .in = {6, 2, 0, 3, 1, -1, -1, -1}});
}

Test(slots, padded_by_either)
{
    check_pattern(&(plan_of_slots){.rows = 4, .in = {1, -1, 2, 0}, OUT = {-1, 3, 2, 1}});
}

Test(slots, all_padded)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {-1, -1, -1}});
}

/* The mask is an output as well. */
Test(slots, mask_of_padded_rows)
{
    static const int32_t in[] = {1, -1, 2}, out[] = {-1, 3, 2};
    for (int i = 0; i < VARIANTS; i++) {
        setup s = variant("cpu", i);
        s.problem.form = FWA_FORM_MASKED;
        s.mask = true;
        s.batch = 3;
        s.rows_in = s.rows_out = 4;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        call_integers(c, "slot_in", 3, in);
        call_integers(c, "slot_out", 3, out);
        call_ok(c);
        for (int row = 0; row < 3; row++) {
            fwa_tensor mask = tensor_rows(&c->forward.mask, row, 1);
            cr_assert(tensor_finite(&mask), "mask of row %d, variant %d", row, i);
            cr_assert_eq(tensor_all(&mask, 0), row < 2, "mask of row %d, variant %d", row, i);
        }
        call_free(c);
    }
}

Test(slots, fresh)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {-2, 4, -2}, OUT = {6, 4, 8}});
}

Test(slots, fresh_onto_a_slot_that_is_read)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {-2, 4, 1}, OUT = {4, 5, -2}});
}

Test(slots, write_nothing)
{
    check_pattern(&(plan_of_slots){.rows = 3, .in = {1, 1, 2}, OUT = {-2, -2, -2}});
}

/* Random maps from rows to slots: any reads, distinct writes. */
Test(slots, random)
{
    const int rounds = full_run() ? 3000 : 250;
    for (int round = 0; round < rounds; round++) {
        plan_of_slots p = {.rows = 1 + (int)(mix(1, (uint64_t)round) % 9), .given_out = true};
        int32_t order[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
        setup s = variant(backends[round % 2], (int)(mix(2, (uint64_t)round) % VARIANTS));
        s.tokens = 1 + (int64_t)(mix(3, (uint64_t)round) % 8);
        s.threads = 1 + round % 3;
        p.given_commit = mix(4, (uint64_t)round) % 2;
        for (int i = 0; i < p.rows; i++) {
            uint64_t r = mix(mix(5, (uint64_t)round), (uint64_t)i);
            int j = i + (int)(r % (uint64_t)(9 - i));
            int32_t slot = order[j];
            order[j] = order[i];
            order[i] = slot;
            p.out[i] = (r >> 16) % 8 ? slot : -(int32_t)(1 + (r >> 19) % 2);
            p.in[i] = (int32_t)((r >> 24) % 11) - 2;
            p.commit[i] = (int32_t)((r >> 40) % (uint64_t)(s.tokens + 1));
        }
        check_slots(&s, &p);
    }
}

/* Packed sequences, empty ones with valid slots among them: those slots stay as they are (B059). */
Test(slots, packed)
{
    static const int64_t lengths[] = {3, 0, 1, 0, 6};
    static const plan_of_slots patterns[] = {
        {.rows = 5, .in = {4, 2, 0, 1, 3}},
        {.rows = 5, .in = {4, 2, 0, 1, 3}, OUT = {2, 4, 1, 0, 3}},
        {.rows = 5, .in = {0, -2, -1, 1, 1}, OUT = {1, 5, 7, 0, 8}},
    };
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (size_t j = 0; j < sizeof patterns / sizeof patterns[0]; j++) {
            setup s = variant(backend, i);
            s.lengths = lengths;
            s.tokens = 10;
            check_slots(&s, &patterns[j]);
        }
}

/* ---- Commit ---- */

/* Every bit pattern goes over when nothing is committed, NaNs and all (B071). */
Test(slots, commit_nothing)
{
    static const int32_t zeros[] = {0, 0};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (int64_t seen = 0; seen < 6; seen += 5) {
                setup s = variant(backend, i);
                s.in_place = in_place;
                s.seen = seen;
                call *c = call_new(&s, FWA_PASS_FORWARD), *same = call_new(&s, FWA_PASS_FORWARD);
                call_integers(c, "commit", 2, zeros);
                for (int part = 1; part < 6; part++) {
                    char name[32];
                    if (!call_has(c, part_name(name, "carry_in", part)))
                        continue;
                    block *memory[] = {&call_find(c, name)->memory, &call_find(same, name)->memory};
                    for (size_t at = 0; at < memory[0]->size; at++)
                        memory[0]->data[at] = memory[1]->data[at] = (unsigned char)mix(
                            (uint64_t)part, at);
                }
                call_ok(c);
                for (int part = 0; part < 6; part++) {
                    char in[32], out[32];
                    if (!call_has(c, part_name(in, "carry_in", part)))
                        continue;
                    cr_assert(tensor_same(call_get(same, in),
                                          in_place
                                              ? call_get(c, in)
                                              : call_get(c, part_name(out, "carry_out", part))),
                              "%s of variant %d on %s", in, i, backend);
                }
                call_free(c);
                call_free(same);
            }
}

static void cut_tokens(call *c, int64_t tokens)
{
    for (int i = 0; i < c->count; i++)
        if (!strchr(c->tensors[i].name, '.'))
            c->tensors[i].tensor->shape[1] = tokens;
}

/* The carry after `kept` tokens is that of a call with so many; what the rejected tokens hold, NaN
 * even, does not matter (B076). */
static void check_commit(const setup *s, int64_t kept)
{
    static const char *const tokens_args[] = {"q", "k", "v", "beta", "lambda", "log_gate"};
    const int32_t commit[] = {(int32_t)kept, (int32_t)kept};
    call *c = call_new(s, FWA_PASS_FORWARD), *shorter = call_new(s, FWA_PASS_FORWARD);
    call_integers(c, "commit", 2, commit);
    for (int arg = 0; arg < 6; arg++) {
        fwa_tensor *t = call_get(c, tokens_args[arg]);
        for (int64_t row = 0; row < 2; row++) {
            fwa_tensor one = tensor_rows(t, row, 1);
            fwa_tensor rejected = tensor_tokens(&one, kept, s->tokens - kept);
            for (int64_t j = 0; j < tensor_count(&rejected); j++)
                tensor_set(&rejected, j, NAN);
        }
    }
    cut_tokens(shorter, kept);
    call_ok(c);
    call_ok(shorter);
    c->forward.o.shape[1] = kept;
    expect_same_outputs(c, shorter);
    for (int part = 1; part < 6; part++) {
        char name[32];
        if (call_has(c, part_name(name, "carry_out", part)))
            cr_assert(tensor_finite(call_get(c, name)), "%s, %d of %d", name, (int)kept,
                      (int)s->tokens);
    }
    call_free(c);
    call_free(shorter);
}

Test(slots, commit_some)
{
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++)
        for (int64_t tokens = 1; tokens <= 40; tokens += tokens < 8 ? 1 : 16)
            for (int64_t kept = 0; kept <= tokens; kept += kept < 8 ? 1 : 5) {
                setup s = variant(backend, i);
                s.tokens = tokens;
                check_commit(&s, kept);
            }
}

/* bf16 in whole vectors: chunks of products in bf16, from 16 tokens on. */
Test(slots, commit_in_a_chunk)
{
    for (int i = 0; i < 16; i++)
        for (int64_t kept = 16; kept <= 75; kept += 1 + kept % 3) {
            setup s = setup_small("cpu");
            s.problem.window = 1;
            s.problem.key_dim = 32 << i / 8;
            s.problem.value_dim = 48;
            s.problem.dtype = FWA_DTYPE_BF16;
            s.problem.objective = i & 1;
            s.problem.alignment = i >> 1 & 1;
            s.problem.read = i >> 2 & 1;
            s.tokens = 75;
            check_commit(&s, kept);
        }
}

/* ---- Backward ---- */

/* Rows of a pool, forks too: the gradients are those of the rows gathered. */
Test(slots, backward_reads_slots)
{
    static const int32_t slots[] = {4, 4, -2, 0};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++) {
        setup s = variant(backend, i);
        s.batch = 4;
        s.rows_in = 5;
        call *pool = call_new(&s, FWA_PASS_BACKWARD);
        s.rows_in = 4;
        call *rows = call_new(&s, FWA_PASS_BACKWARD);
        call_integers(pool, "slot_in", 4, slots);
        for (int part = 0; part < 6; part++) {
            char name[32];
            if (!call_has(pool, part_name(name, "carry_in", part)))
                continue;
            for (int row = 0; row < 4; row++) {
                fwa_tensor from = tensor_rows(call_get(pool, name), slots[row] < 0 ? 0 : slots[row],
                                              1);
                fwa_tensor to = tensor_rows(call_get(rows, name), row, 1);
                copy_elements(&from, &to);
                for (int64_t j = 0; slots[row] < 0 && j < tensor_count(&to); j++)
                    tensor_set(&to, j, 0);
            }
        }
        call_ok(pool);
        call_ok(rows);
        for (int j = 0; j < pool->count; j++) {
            call_tensor *t = &pool->tensors[j];
            for (int row = 0; t->output && row < 4; row++) {
                fwa_tensor a = tensor_rows(t->tensor, row, 1);
                fwa_tensor b = tensor_rows(call_get(rows, t->name), row, 1);
                cr_assert(tensor_same(&a, &b) || (slots[row] < 0 && strchr(t->name, '.')),
                          "%s of row %d, variant %d on %s", t->name, row, i, backend);
            }
        }
        call_free(pool);
        call_free(rows);
    }
}

/* A padded row has no gradients and touches nobody else's, whatever it holds. */
Test(slots, backward_of_padded_rows)
{
    static const int32_t slots[] = {1, -1, 0};
    FOR_BACKENDS(backend)
    for (int i = 0; i < VARIANTS; i++) {
        setup s = variant(backend, i);
        s.batch = 3;
        call *padded = call_new(&s, FWA_PASS_BACKWARD), *nan = call_new(&s, FWA_PASS_BACKWARD);
        call_integers(padded, "slot_in", 3, slots);
        call_integers(nan, "slot_in", 3, slots);
        for (int j = 0; j < nan->count; j++) {
            const call_tensor *t = &nan->tensors[j];
            fwa_tensor row = tensor_rows(t->tensor, 1, 1);
            /* Slot 1 is live: only what has one row for each sequence is poisoned. */
            if (t->output || strcmp(t->name, "slot_in") == 0 ||
                strncmp(t->name, "carry_in.", 9) == 0)
                continue;
            for (int64_t at = 0; at < tensor_count(&row); at++)
                tensor_set(&row, at, NAN);
        }
        call_ok(padded);
        call_ok(nan);
        expect_same_outputs(padded, nan);
        for (int j = 0; j < padded->count; j++) {
            fwa_tensor row = tensor_rows(padded->tensors[j].tensor, 1, 1);
            cr_assert(!padded->tensors[j].output || tensor_all(&row, 0), "%s of the padded row",
                      padded->tensors[j].name);
        }
        call_free(padded);
        call_free(nan);
    }
}
