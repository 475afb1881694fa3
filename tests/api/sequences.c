/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths, slots, commits, carries and gates that are refused, and calls with nothing in them. */

#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static setup setup_packed(const char *backend, const int64_t *lengths, int64_t count)
{
    setup s = setup_small(backend);
    s.batch = 1;
    s.tokens = 0;
    s.lengths = lengths;
    s.sequences = count;
    for (int64_t n = 0; n < count; n++)
        s.tokens += lengths[n];
    return s;
}

/* ---- cu_seqlens ---- */

Test(sequences, lengths)
{
    static const int64_t lengths[] = {2, 0, 3, 1};
    static const struct {
        int64_t at, value;
        const char *text, *limit;
    } bad[] = {
        {0, 1, "cu_seqlens[0] is 1", "must be 0"},
        {0, -1, "cu_seqlens[0] is -1", "must be 0"},
        {1, -1, "cu_seqlens[1] is -1", "from 0 to 6"},
        {1, 7, "cu_seqlens[1] is 7", "from 0 to 6"},
        {2, 1, "cu_seqlens[2] is 1", "from 2 to 6"},
        {3, 1, "cu_seqlens[3] is 1", "from 2 to 6"},
        {3, INT32_MAX, "cu_seqlens[3] is 2147483647", "from 2 to 6"},
        {3, INT32_MIN, "cu_seqlens[3] is -2147483648", "from 2 to 6"},
        {4, 5, "cu_seqlens[4] is 5", "6 tokens"},
        {4, 7, "cu_seqlens[4] is 7", "from 5 to 6"},
        {4, 0, "cu_seqlens[4] is 0", "from 5 to 6"},
    };
    FOR_BACKENDS(backend)
    for (int wide = 0; wide < 2; wide++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = setup_packed(backend, lengths, 4);
            s.wide_lengths = wide;
            call *c = call_new(&s, (fwa_pass)pass);
            fwa_tensor *cu = call_get(c, "cu_seqlens");
            call_ok(c);
            for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                double right = tensor_get(cu, bad[i].at);
                tensor_set(cu, bad[i].at, (double)bad[i].value);
                call_fails(c, FWA_ERROR_SEQUENCE, bad[i].text, bad[i].limit);
                tensor_set(cu, bad[i].at, right);
            }
            for (int64_t n = 0; wide && n < 5; n++) {
                double right = tensor_get(cu, n);
                tensor_set(cu, n, 4294967296.0 + right);
                call_fails(c, FWA_ERROR_SEQUENCE, "cu_seqlens[", " is 42949");
                tensor_set(cu, n, right);
            }
            call_ok(c);
            call_free(c);
        }
}

Test(sequences, packed_shapes)
{
    static const int64_t lengths[] = {2, 3};
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        setup s = setup_packed(backend, lengths, 2);
        call *c = call_new(&s, (fwa_pass)pass);
        fwa_tensor *q = call_get(c, "q"), *cu = call_get(c, "cu_seqlens");
        q->shape[0] = 2;
        call_fails(c, FWA_ERROR_SHAPE, "q.shape[0] is 2", "with cu_seqlens it must be 1");
        q->shape[0] = 0;
        call_fails(c, FWA_ERROR_SHAPE, "q.shape[0] is 0", "with cu_seqlens it must be 1");
        q->shape[0] = 1;
        cu->shape[0] = 0;
        call_fails(c, FWA_ERROR_SHAPE, "cu_seqlens has rank 1 and 0 elements", "N + 1");
        cu->shape[0] = -3;
        call_fails(c, FWA_ERROR_SHAPE, "cu_seqlens has rank 1 and -3 elements");
        cu->shape[0] = (int64_t)1 << 33;
        call_fails(c, FWA_ERROR_SHAPE, "8589934591 sequences", "2147483647");
        cu->shape[0] = 3;
        cu->rank = 2;
        call_fails(c, FWA_ERROR_SHAPE, "cu_seqlens has rank 2");
        cu->rank = 1;
        cu->dtype = FWA_DTYPE_F32;
        call_fails(c, FWA_ERROR_DTYPE, "cu_seqlens.dtype is 1 (f32)", "i32 or i64");
        call_free(c);
    }
}

/* ---- Slots and commit ---- */

Test(sequences, slots_out_of_range)
{
    static const int32_t bad[] = {5, -3, INT32_MAX, INT32_MIN};
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < 4; i++)
            for (int n = 0; n < 2; n++) {
                setup s = setup_small(backend);
                s.rows_in = s.rows_out = 5;
                call *c = call_new(&s, (fwa_pass)pass);
                int32_t slots[] = {4, 3};
                char text[64];
                slots[n] = bad[i];
                call_integers(c, "slot_in", 2, slots);
                snprintf(text, sizeof text, "slot_in[%d] is %d; it runs from -2 to 4", n,
                         (int)bad[i]);
                call_fails(c, FWA_ERROR_SEQUENCE, text);
                if (pass == FWA_PASS_FORWARD) {
                    const int32_t good[] = {0, 0};
                    call_integers(c, "slot_in", 2, good);
                    call_integers(c, "slot_out", 2, slots);
                    snprintf(text, sizeof text, "slot_out[%d] is %d; it runs from -2 to 4", n,
                             (int)bad[i]);
                    call_fails(c, FWA_ERROR_SEQUENCE, text);
                }
                call_free(c);
            }
}

/* slot_in alone is slot_out too, so it must fit both pools. */
Test(sequences, slot_in_fits_the_pool_that_is_written)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        const int32_t slots[] = {1, 4};
        s.rows_in = 5;
        s.rows_out = 4;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        call_integers(c, "slot_in", 2, slots);
        call_fails(c, FWA_ERROR_SEQUENCE, "slot_in[1] is 4; it runs from -2 to 3");
        call_free(c);
    }
}

Test(sequences, two_rows_for_one_slot)
{
    FOR_BACKENDS(backend)
    for (int in_place = 0; in_place < 2; in_place++) {
        setup s = setup_small(backend);
        const int32_t slots[] = {1, 3, 1, 0}, apart[] = {0, 1, 2, 3};
        s.batch = 4;
        s.rows_in = s.rows_out = 5;
        s.in_place = in_place;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        call_integers(c, "slot_in", 4, slots);
        call_fails(c, FWA_ERROR_SEQUENCE, "slot_in[2] is 1, as slot_in[0] is", "two rows");
        call_integers(c, "slot_in", 4, apart);
        call_integers(c, "slot_out", 4, slots);
        call_fails(c, FWA_ERROR_SEQUENCE, "slot_out[2] is 1, as slot_out[0] is", "two rows");
        call_free(c);
    }
    /* Without a carry to write, or for rows that write none, there is nothing to collide. */
    setup s = setup_small("cpu");
    const int32_t same[] = {1, 1}, none[] = {-2, -2}, padded[] = {-1, -1};
    s.rows_in = 5;
    s.no_carry_out = true;
    call *c = call_new(&s, FWA_PASS_FORWARD);
    call_integers(c, "slot_in", 2, same);
    call_ok(c);
    call_free(c);
    s.no_carry_out = false;
    c = call_new(&s, FWA_PASS_FORWARD);
    call_integers(c, "slot_in", 2, same);
    call_integers(c, "slot_out", 2, none);
    call_ok(c);
    call_integers(c, "slot_out", 2, padded);
    call_ok(c);
    call_free(c);
}

/* The first duplicate is found among very many rows. */
Test(sequences, many_rows_two_for_one_slot)
{
    enum { ROWS = 3000 };
    setup s = setup_small("cpu");
    int32_t slots[ROWS];
    s.batch = ROWS;
    s.tokens = 1;
    s.in_place = true;
    call *c = call_new(&s, FWA_PASS_FORWARD);
    for (int n = 0; n < ROWS; n++)
        slots[n] = (int32_t)((n * 7 + 5) % ROWS);
    call_integers(c, "slot_in", ROWS, slots);
    cr_assert_eq(call_run(c), FWA_OK, "%s", fwa_error_message());
    slots[2999] = slots[17];
    call_integers(c, "slot_in", ROWS, slots);
    call_fails(c, FWA_ERROR_SEQUENCE, "slot_in[2999] is 124, as slot_in[17] is");
    call_free(c);
}

Test(sequences, commit)
{
    static const int32_t bad[] = {-1, 6, INT32_MIN, INT32_MAX};
    FOR_BACKENDS(backend)
    for (size_t i = 0; i < 4; i++)
        for (int n = 0; n < 2; n++) {
            setup s = setup_small(backend);
            int32_t commit[] = {5, 0};
            char text[64];
            call *c = call_new(&s, FWA_PASS_FORWARD);
            call_integers(c, "commit", 2, commit);
            call_ok(c);
            commit[n] = bad[i];
            call_integers(c, "commit", 2, commit);
            snprintf(text, sizeof text, "commit[%d] is %d; it runs from 0 to the 5 tokens", n,
                     (int)bad[i]);
            call_fails(c, FWA_ERROR_SEQUENCE, text);
            call_free(c);
        }
}

/* A packed sequence's commit is limited by its own length. */
Test(sequences, commit_of_packed_sequences)
{
    static const int64_t lengths[] = {2, 0, 3};
    FOR_BACKENDS(backend)
    for (int n = 0; n < 3; n++) {
        setup s = setup_packed(backend, lengths, 3);
        int32_t commit[] = {2, 0, 3};
        char text[64];
        call *c = call_new(&s, FWA_PASS_FORWARD);
        call_integers(c, "commit", 3, commit);
        call_ok(c);
        commit[n]++;
        call_integers(c, "commit", 3, commit);
        snprintf(text, sizeof text, "commit[%d] is %d; it runs from 0 to the %d tokens", n,
                 (int)commit[n], (int)lengths[n]);
        call_fails(c, FWA_ERROR_SEQUENCE, text);
        call_free(c);
    }
}

/* ---- Carries ---- */

Test(sequences, seen)
{
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        setup s = setup_small(backend);
        call *c = call_new(&s, (fwa_pass)pass);
        fwa_tensor *seen = call_get(c, "carry_in.seen");
        int64_t *values = seen->data;
        values[1] = -1;
        call_fails(c, FWA_ERROR_SEQUENCE, "carry_in.seen of sequence 1 is -1", "from 0");
        values[1] = INT64_MIN;
        call_fails(c, FWA_ERROR_SEQUENCE, "carry_in.seen of sequence 1 is -9223372036854775808");
        values[1] = INT64_MAX;
        call_fails(c, FWA_ERROR_SEQUENCE, "carry_in.seen of sequence 1 is 9223372036854775807");
        values[1] = INT64_MAX - 4;
        call_fails(c, FWA_ERROR_SEQUENCE, "carry_in.seen of sequence 1 is 9223372036854775803");
        values[1] = INT64_MAX - 5;
        call_ok(c);
        call_free(c);
    }
}

Test(sequences, missing_parts)
{
    static const char *const parts[] = {"prev_key", "tail_key", "tail_value"};
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 3; i++) {
            setup s = setup_small(backend);
            char name[32], text[64];
            snprintf(name, sizeof name, "carry_in.%s", parts[i]);
            snprintf(text, sizeof text, "carry_in.%s is absent", parts[i]);
            call *c = call_new(&s, (fwa_pass)pass);
            int64_t *seen = call_get(c, "carry_in.seen")->data;
            call_drop(c, name);
            seen[0] = 0;
            call_fails(c, FWA_ERROR_SEQUENCE, text, "carry_in.seen of sequence 1 is 4");
            seen[1] = 0;
            call_ok(c);
            /* After one token a next_latent sequence has a key and no pair yet. */
            seen[0] = 1;
            if (i == 0)
                call_fails(c, FWA_ERROR_SEQUENCE, text, "carry_in.seen of sequence 0 is 1");
            else
                call_ok(c);
            call_free(c);
        }
}

/* ---- Gates ---- */

Test(sequences, signs)
{
    static const struct {
        const char *name, *limit;
        double bad[3], good[4];
    } gates[] = {
        {"log_gate", "must be at most 0", {1e-30, 2, INFINITY}, {0, -0.0, -1000, -INFINITY}},
        {"beta", "must be at least 0", {-1e-30, -2, -INFINITY}, {0, -0.0, 1e6, INFINITY}},
        {"lambda", "must be at least 0", {-1e-30, -2, -INFINITY}, {0, -0.0, 1e6, INFINITY}},
    };
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < 3; i++) {
            setup s = setup_small(backend);
            call *c = call_new(&s, (fwa_pass)pass);
            fwa_tensor *gate = call_get(c, gates[i].name);
            const int64_t count = tensor_count(gate);
            for (int64_t at = 0; at < count; at++) {
                double right = tensor_get(gate, at);
                char place[64];
                snprintf(place, sizeof place, "%s at [%d, %d, %d] is ", gates[i].name,
                         (int)(at / 10), (int)(at / 2 % 5), (int)(at % 2));
                for (int j = 0; j < 3; j++) {
                    tensor_set(gate, at, gates[i].bad[j]);
                    call_fails(c, FWA_ERROR_VALUE, place, gates[i].limit);
                }
                tensor_set(gate, at, right);
            }
            for (int j = 0; j < 4; j++) {
                tensor_set(gate, count / 2, gates[i].good[j]);
                cr_assert_eq(call_run(c), FWA_OK, "%s %g: %s", gates[i].name, gates[i].good[j],
                             fwa_error_message());
            }
            tensor_set(gate, count / 2, NAN);
            cr_assert_eq(call_run(c), FWA_OK, "%s is NaN: %s", gates[i].name, fwa_error_message());
            call_free(c);
        }
}

Test(sequences, signs_of_channels)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        s.problem.window = 1;
        s.problem.dynamics = FWA_DYNAMICS_PER_CHANNEL;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        fwa_tensor *beta = call_get(c, "beta");
        cr_assert_eq(beta->rank, 4);
        tensor_set(beta, tensor_count(beta) - 1, -0.5);
        call_fails(c, FWA_ERROR_VALUE, "beta at [1, 4, 1", "is -0.5", "must be at least 0");
        call_free(c);
    }
}

/* What a padded row holds is nobody's business. */
Test(sequences, padded_rows_are_not_checked)
{
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        setup s = setup_small(backend);
        const int32_t slots[] = {0, -1}, commit[] = {5, 99};
        call *c = call_new(&s, (fwa_pass)pass);
        call_integers(c, "slot_in", 2, slots);
        if (pass == FWA_PASS_FORWARD)
            call_integers(c, "commit", 2, commit);
        tensor_set(call_get(c, "beta"), 15, -1);
        tensor_set(call_get(c, "lambda"), 15, -1);
        tensor_set(call_get(c, "log_gate"), 15, 1);
        tensor_set(call_get(c, "carry_in.seen"), 1, -1);
        call_ok(c);
        call_free(c);
    }
}

/* Inputs broadcast over tokens and heads are checked all the same. */
Test(sequences, signs_of_broadcasts)
{
    FOR_BACKENDS(backend)
    {
        setup s = setup_small(backend);
        static const int64_t strides[][3] = {{0, 0, 0}, {0, 1, 0}, {1, 0, 0}, {0, 0, 1}, {5, 1, 0}};
        for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
            call *c = call_new(&s, FWA_PASS_FORWARD);
            fwa_tensor *gate = call_get(c, "log_gate");
            call_restride(c, "log_gate", strides[i], 0);
            call_ok(c);
            tensor_set(gate, tensor_count(gate) - 1, 0.25);
            call_fails(c, FWA_ERROR_VALUE, "log_gate at [", "is 0.25");
            call_free(c);
        }
    }
}

/* ---- Nothing to do ---- */

/* Outputs have no elements, so carry_out is all that may change: it becomes carry_in. */
static void check_empty(call *c)
{
    static const char *const parts[] = {"seen",     "state",      "prev_key",
                                        "tail_key", "tail_value", "norm"};
    const bool forward = c->pass == FWA_PASS_FORWARD;
    for (int i = forward ? 0 : 1; i < 6; i++) {
        char from[40], to[40];
        snprintf(from, sizeof from, "%s.%s", forward ? "carry_in" : "carry_out_grad", parts[i]);
        snprintf(to, sizeof to, "%s.%s", forward ? "carry_out" : "carry_in_grad", parts[i]);
        if (call_has(c, to))
            cr_assert(tensor_same(call_get(c, from), call_get(c, to)), "%s is not %s", to, from);
    }
}

Test(sequences, zero_sizes)
{
    static const struct {
        int64_t batch, tokens;
    } sizes[] = {{0, 0}, {0, 5}, {2, 0}, {1, 0}, {7, 0}};
    FOR_BACKENDS(backend)
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int kind = 0; kind < 2; kind++)
            for (int pass = 0; pass < 2; pass++)
                for (int null = 0; null < 2; null++) {
                    setup s = kind ? setup_normalizer(backend) : setup_small(backend);
                    s.batch = sizes[i].batch;
                    s.tokens = sizes[i].tokens;
                    call *c = call_new(&s, (fwa_pass)pass);
                    for (int j = 0; null && j < c->count; j++)
                        if (tensor_count(c->tensors[j].tensor) == 0)
                            c->tensors[j].tensor->data = NULL;
                    call_ok(c);
                    check_empty(c);
                    call_free(c);
                }
}

Test(sequences, zero_lengths)
{
    static const int64_t zeros[3] = {0, 0, 0};
    FOR_BACKENDS(backend)
    for (int64_t count = 0; count <= 3; count++)
        for (int wide = 0; wide < 2; wide++)
            for (int pass = 0; pass < 2; pass++) {
                setup s = setup_packed(backend, zeros, count);
                s.wide_lengths = wide;
                call *c = call_new(&s, (fwa_pass)pass);
                call_ok(c);
                check_empty(c);
                call_free(c);
            }
}

/* cu_seqlens = [0] has no room for tokens. */
Test(sequences, tokens_of_no_sequence)
{
    static const int64_t none[1] = {0};
    FOR_BACKENDS(backend)
    {
        setup s = setup_packed(backend, none, 0);
        s.tokens = 4;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        call_fails(c, FWA_ERROR_SEQUENCE, "cu_seqlens[0] is 0", "4 tokens");
        call_free(c);
    }
}

/* Nothing is to do, but such lengths are wrong. */
Test(sequences, no_sequence_from_7)
{
    static const int64_t none[1] = {0};
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++) {
        setup s = setup_packed(backend, none, 0);
        call *c = call_new(&s, (fwa_pass)pass);
        call_ok(c);
        tensor_set(call_get(c, "cu_seqlens"), 0, 7);
        call_fails(c, FWA_ERROR_SEQUENCE, "cu_seqlens[0] is 7", "must be 0");
        call_free(c);
    }
}

/* The state's shape comes from the value heads (B034). */
Test(sequences, zero_lengths_with_grouped_heads)
{
    static const int64_t zeros[2] = {0, 0};
    FOR_BACKENDS(backend)
    {
        setup s = setup_packed(backend, zeros, 2);
        s.problem.heads_key = s.problem.heads_query = 2;
        s.problem.heads_value = 4;
        s.problem.key_dim = 64;
        s.problem.value_dim = 128;
        call *c = call_new(&s, FWA_PASS_FORWARD);
        cr_assert_eq(c->forward.carry_out.state.shape[1], 4);
        call_ok(c);
        check_empty(c);
        call_free(c);
    }
}

/* Empty sequences between others: each sequence as if it were alone (B031). */
Test(sequences, empty_sequences_between_others)
{
    static const int64_t lengths[] = {0, 5, 0, 0, 65, 0};
    FOR_BACKENDS(backend)
    for (int wide = 0; wide < 2; wide++)
        for (int pass = 0; pass < 2; pass++) {
            setup s = setup_packed(backend, lengths, 6);
            s.wide_lengths = wide;
            call *packed = call_new(&s, (fwa_pass)pass);
            int64_t first = 0;
            call_ok(packed);
            for (int64_t n = 0; n < 6; first += lengths[n++]) {
                setup one = s;
                one.lengths = NULL;
                one.batch = 1;
                one.tokens = lengths[n];
                call *alone = call_new(&one, (fwa_pass)pass);
                for (int i = 0; i < alone->count; i++) {
                    call_tensor *t = &alone->tensors[i];
                    fwa_tensor *whole = call_get(packed, t->name);
                    bool row = strchr(t->name, '.') != NULL;
                    fwa_tensor view = row ? tensor_rows(whole, n, 1)
                                          : tensor_tokens(whole, first, lengths[n]);
                    for (int64_t j = 0; !t->output && j < tensor_count(&view); j++)
                        tensor_set(t->tensor, j, tensor_get(&view, j));
                }
                call_ok(alone);
                for (int i = 0; i < alone->count; i++) {
                    call_tensor *t = &alone->tensors[i];
                    fwa_tensor *whole = call_get(packed, t->name);
                    bool row = strchr(t->name, '.') != NULL;
                    fwa_tensor view = row ? tensor_rows(whole, n, 1)
                                          : tensor_tokens(whole, first, lengths[n]);
                    cr_assert(!t->output || tensor_same(t->tensor, &view), "%s of sequence %d",
                              t->name, (int)n);
                }
                call_free(alone);
            }
            call_free(packed);
        }
}
