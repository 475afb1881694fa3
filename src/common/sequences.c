/* SPDX-License-Identifier: Apache-2.0 */
/* What can be checked about sequences where the host can read their tensors: lengths, slots,
 * carries, the signs of gates; and the order in which rows must run whose slots cross. */

#include "host.h"
#include "common.h"

#include <math.h>

static fwa_status check_lengths(const fwa_inputs *in, const fwa_extent *extent)
{
    int64_t n, previous = 0;
    if (!fwa_present(in->cu_seqlens))
        return FWA_OK;
    if (fwa_integer(in->cu_seqlens, 0) != 0)
        return fwa_fail(FWA_ERROR_SEQUENCE, "cu_seqlens[0] is %lld; it must be 0",
                        (long long)fwa_integer(in->cu_seqlens, 0));
    for (n = 1; n <= extent->sequences; n++) {
        int64_t next = fwa_integer(in->cu_seqlens, n);
        if (next < previous || next > extent->tokens)
            return fwa_fail(FWA_ERROR_SEQUENCE,
                            "cu_seqlens[%lld] is %lld; it must be from %lld to %lld", (long long)n,
                            (long long)next, (long long)previous, (long long)extent->tokens);
        previous = next;
    }
    if (previous != extent->tokens)
        return fwa_fail(
            FWA_ERROR_SEQUENCE, "cu_seqlens[%lld] is %lld; it must end at the %lld tokens",
            (long long)extent->sequences, (long long)previous, (long long)extent->tokens);
    return FWA_OK;
}

/* Rows of a pool: the first axis of the parts that are given; -1 if none is. */
static int64_t pool_rows(const fwa_carry *carry)
{
    const fwa_tensor *parts[] = {&carry->seen,     &carry->state,      &carry->prev_key,
                                 &carry->tail_key, &carry->tail_value, &carry->norm};
    size_t i;
    for (i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (fwa_present(parts[i]))
            return parts[i]->shape[0];
    return -1;
}

static fwa_status check_slot(const char *name, int64_t n, int64_t slot, int64_t rows)
{
    if (slot >= FWA_SLOT_FRESH && (slot < rows || rows < 0))
        return FWA_OK;
    return fwa_fail(FWA_ERROR_SEQUENCE, "%s[%lld] is %lld; it runs from %d to %lld", name,
                    (long long)n, (long long)slot, FWA_SLOT_FRESH, (long long)rows - 1);
}

/* What a sequence that goes on needs of its carry. */
static fwa_status check_seen(const fwa_problem *p, const fwa_inputs *in, int64_t n,
                             const fwa_sequence *s)
{
    const struct {
        const char *name;
        bool needed, given;
    } parts[] = {
        {"prev_key", p->alignment == FWA_ALIGNMENT_NEXT_LATENT, fwa_present(&in->carry->prev_key)},
        {"tail_key", fwa_tail_fill(p, s->seen) > 0, fwa_present(&in->carry->tail_key)},
        {"tail_value", fwa_tail_fill(p, s->seen) > 0, fwa_present(&in->carry->tail_value)},
    };
    size_t i;
    if (s->seen < 0 || s->seen > INT64_MAX - s->length)
        return fwa_fail(FWA_ERROR_SEQUENCE,
                        "carry_in.seen of sequence %lld is %lld; it must be from 0 to 2^63 - 1 "
                        "less the call's tokens",
                        (long long)n, (long long)s->seen);
    for (i = 0; s->seen > 0 && i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].needed && !parts[i].given)
            return fwa_fail(
                FWA_ERROR_SEQUENCE,
                "carry_in.%s is absent, but carry_in.seen of sequence %lld is %lld: this "
                "problem needs it to go on",
                parts[i].name, (long long)n, (long long)s->seen);
    return FWA_OK;
}

/* True where none of the dense numbers has the wrong sign: those of all columns of all tokens are
 * looked at in each call. */
static bool signs_are_right(const float *x, int64_t count, float sign)
{
    typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
    typedef int32_t four_int __attribute__((vector_size(16)));
    four_int wrong = {0};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        wrong |= (four_int)(*(const four *)(x + i) * sign < 0);
    for (; i < count; i++)
        wrong[0] |= x[i] * sign < 0;
    return !(wrong[0] | wrong[1] | wrong[2] | wrong[3]);
}

/* True where the numbers of all tokens of a row, `width` a token, follow each other. */
static bool is_one_row(const fwa_tensor *x, int64_t width)
{
    const int64_t columns = x->rank == 4 ? x->shape[3] : 1;
    return x->dtype == FWA_DTYPE_F32 && x->stride[x->rank - 1] == 1 && x->stride[1] == width &&
           x->stride[2] == columns;
}

/* The gates of a sequence: log_gate <= 0, beta >= 0, lambda >= 0. NaN is data. */
static fwa_status check_signs(const fwa_problem *p, const fwa_inputs *in, const fwa_sequence *s)
{
    const struct {
        const char *name;
        const fwa_tensor *tensor;
        double sign;
        const char *limit;
    } gates[] = {{"log_gate", in->log_gate, -1, "at most 0"},
                 {"beta", in->beta, 1, "at least 0"},
                 {"lambda", in->lambda, 1, "at least 0"}};
    double row[256];
    int64_t t, h, c, count;
    size_t i;
    for (i = 0; i < 3; i++) {
        const fwa_tensor *x = gates[i].tensor;
        /* Rows run along the last axis: heads, or the channels of one head. */
        const bool channels = fwa_present(x) && x->rank == 4;
        const int64_t width = channels ? (int64_t)p->heads_value * p->value_dim : p->heads_value;
        int64_t tokens = !fwa_present(x) ? 0 : x->stride[1] == 0 && s->length > 1 ? 1 : s->length;
        int64_t heads = fwa_present(x) && x->stride[2] == 0 ? 1 : p->heads_value;
        if (tokens > 1 && is_one_row(x, width) &&
            signs_are_right(
                (const float *)(const void *)fwa_element(x, fwa_at3(x, s->row, s->first, 0)),
                tokens * width, (float)gates[i].sign))
            continue;
        for (t = 0; t < tokens; t++)
            for (h = 0; h < heads; h += channels ? 1 : count) {
                const int64_t at = fwa_at3(x, s->row, s->first + t, h);
                count = channels ? p->value_dim : heads - h < 256 ? heads - h : 256;
                if (x->dtype == FWA_DTYPE_F32 && x->stride[x->rank - 1] == 1 &&
                    signs_are_right((const float *)(const void *)fwa_element(x, at), count,
                                    (float)gates[i].sign))
                    continue;
                fwa_load_f64(x, at, count, row);
                for (c = 0; c < count; c++)
                    if (row[c] * gates[i].sign < 0)
                        return fwa_fail(FWA_ERROR_VALUE,
                                        "%s at [%lld, %lld, %lld] is %g; it must be %s",
                                        gates[i].name, (long long)s->row, (long long)(s->first + t),
                                        (long long)(channels ? h : h + c), row[c], gates[i].limit);
            }
    }
    return FWA_OK;
}

static fwa_status check_rows(const fwa_problem *p, const fwa_inputs *in, const fwa_call *call)
{
    int64_t rows_in = pool_rows(in->carry), n;
    int64_t rows_out = call->forward ? pool_rows(&call->forward->carry_out) : -1;
    bool has_out = call->forward && fwa_present(in->slot_out);
    fwa_status status;
    for (n = 0; n < call->extent.sequences; n++) {
        fwa_sequence s;
        if (fwa_present(in->slot_in)) {
            int64_t slot = fwa_integer(in->slot_in, n);
            if ((status = check_slot("slot_in", n, slot, rows_in)) != FWA_OK ||
                (!has_out && (status = check_slot("slot_in", n, slot, rows_out)) != FWA_OK))
                return status;
        }
        if (has_out &&
            (status = check_slot("slot_out", n, fwa_integer(in->slot_out, n), rows_out)) != FWA_OK)
            return status;
        s = fwa_sequence_get(in, n);
        if (s.commit < 0 || s.commit > s.length)
            return fwa_fail(FWA_ERROR_SEQUENCE,
                            "commit[%lld] is %lld; it runs from 0 to the %lld tokens", (long long)n,
                            (long long)s.commit, (long long)s.length);
        if (s.padded)
            continue;
        if ((status = check_seen(p, in, n, &s)) != FWA_OK ||
            (status = check_signs(p, in, &s)) != FWA_OK)
            return status;
    }
    return FWA_OK;
}

/* ---- The order that crossing slots need ---- */

/* A hash table from slot to the sequence that writes it, and the graph of who must run before whom:
 * a row that reads a slot runs before the row that writes it. Each row reads one slot and each slot
 * has one writer, so a row has at most one successor. */
typedef struct {
    int32_t *writer; /* `buckets` of sequence numbers, -1: free */
    int64_t buckets; /* a power of two */
    int32_t *next;   /* the row that must wait for this one, or -1 */
    int32_t *waits;  /* how many rows this one must wait for */
    fwa_order_step *order;
} slot_graph;

static int64_t bucket_count(int64_t sequences)
{
    int64_t buckets = 4;
    while (buckets < 2 * sequences)
        buckets *= 2;
    return buckets;
}

size_t fwa_sequences_scratch(int64_t sequences)
{
    return (size_t)bucket_count(sequences) * sizeof(int32_t) +
           (size_t)sequences * (2 * sizeof(int32_t) + sizeof(fwa_order_step));
}

/* The bucket of a slot, or the free one where it belongs. */
static int64_t find_bucket(const slot_graph *g, const fwa_inputs *in, int64_t slot)
{
    int64_t mask = g->buckets - 1, b = (int64_t)((uint64_t)slot * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (g->writer[b] >= 0 && fwa_sequence_get(in, g->writer[b]).slot_out != slot)
        b = (b + 1) & mask;
    return b;
}

static fwa_status enter_writers(slot_graph *g, const fwa_inputs *in, int64_t sequences)
{
    const char *name = fwa_present(in->slot_out) ? "slot_out" : "slot_in";
    int64_t n;
    for (n = 0; n < g->buckets; n++)
        g->writer[n] = -1;
    for (n = 0; n < sequences; n++) {
        int64_t slot = fwa_sequence_get(in, n).slot_out, b;
        if (slot < 0)
            continue;
        b = find_bucket(g, in, slot);
        if (g->writer[b] >= 0)
            return fwa_fail(FWA_ERROR_SEQUENCE,
                            "%s[%lld] is %lld, as %s[%d] is: two rows would write one slot", name,
                            (long long)n, (long long)slot, name, (int)g->writer[b]);
        g->writer[b] = (int32_t)n;
    }
    return FWA_OK;
}

/* True where a row reads a slot that another row writes. */
static bool enter_readers(slot_graph *g, const fwa_inputs *in, int64_t sequences)
{
    bool crossing = false;
    int64_t n;
    memset(g->waits, 0, (size_t)sequences * sizeof g->waits[0]);
    for (n = 0; n < sequences; n++) {
        int64_t slot = fwa_sequence_get(in, n).slot_in;
        int32_t writer = slot < 0 ? -1 : g->writer[find_bucket(g, in, slot)];
        g->next[n] = writer == n ? -1 : writer;
        if (g->next[n] >= 0) {
            g->waits[writer]++;
            crossing = true;
        }
    }
    return crossing;
}

/* Rows that wait for nobody first, each releasing its successor; what remains are cycles, opened by
 * keeping aside the input of the row that would have to run first. */
static void sort_rows(slot_graph *g, int64_t sequences)
{
    int64_t count = 0, done = 0, n;
    for (n = 0; n < sequences; n++)
        if (g->waits[n] == 0)
            g->order[count++] = (fwa_order_step){(int32_t)n, -1, 0};
    for (; done < count; done++) {
        int32_t next = g->next[g->order[done].sequence];
        if (next >= 0 && --g->waits[next] == 0)
            g->order[count++] = (fwa_order_step){next, -1, 0};
    }
    for (n = 0; n < sequences; n++) {
        int64_t first = count;
        int32_t row = (int32_t)n;
        if (g->waits[n] == 0)
            continue;
        do {
            g->order[count++] = (fwa_order_step){row, -1, 0};
            g->waits[row] = 0;
            row = g->next[row];
        } while (row != n);
        g->order[first].keep = g->order[count - 1].sequence;
        g->order[count - 1].kept = 1;
    }
}

static bool shares_memory(const fwa_carry *in, const fwa_carry *out)
{
    return (fwa_present(&out->state) && out->state.data == in->state.data) ||
           (fwa_present(&out->seen) && out->seen.data == in->seen.data) ||
           (fwa_present(&out->prev_key) && out->prev_key.data == in->prev_key.data) ||
           (fwa_present(&out->tail_key) && out->tail_key.data == in->tail_key.data) ||
           (fwa_present(&out->tail_value) && out->tail_value.data == in->tail_value.data) ||
           (fwa_present(&out->norm) && out->norm.data == in->norm.data);
}

static fwa_status check_slots(const fwa_inputs *in, const fwa_call *call, void *scratch,
                              const fwa_order_step **order)
{
    int64_t sequences = call->extent.sequences;
    slot_graph g;
    fwa_status status;
    if (!call->forward || pool_rows(&call->forward->carry_out) < 0 ||
        (!fwa_present(in->slot_in) && !fwa_present(in->slot_out)))
        return FWA_OK;
    g.buckets = bucket_count(sequences);
    g.order = scratch;
    g.next = (int32_t *)(g.order + sequences);
    g.waits = g.next + sequences;
    g.writer = g.waits + sequences;
    status = enter_writers(&g, in, sequences);
    if (status != FWA_OK || !shares_memory(in->carry, &call->forward->carry_out) ||
        !enter_readers(&g, in, sequences))
        return status;
    sort_rows(&g, sequences);
    *order = g.order;
    return FWA_OK;
}

fwa_status fwa_check_lengths(const fwa_call *call)
{
    const fwa_inputs in = fwa_call_inputs(call);
    return check_lengths(&in, &call->extent);
}

fwa_status fwa_check_sequences(const fwa_problem *problem, const fwa_call *call, void *scratch,
                               const fwa_order_step **order)
{
    fwa_inputs in = fwa_call_inputs(call);
    fwa_status status;
    *order = NULL;
    if ((status = check_lengths(&in, &call->extent)) != FWA_OK ||
        (status = check_rows(problem, &in, call)) != FWA_OK)
        return status;
    return check_slots(&in, call, scratch, order);
}
