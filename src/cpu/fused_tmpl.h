/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form's forward: one pass over the state per group of tokens. Compiled once per ISA.
 *
 * The state lies in panels of PANEL_VECTORS vectors of columns, one behind the other, that stay in
 * the first cache. For GROUP tokens, a pass loads each row of a panel once, adds what the pairs
 * that are complete contribute, stores it, and multiplies the same registers by the group's keys
 * and queries: three products for one load and one store. What the group's own pairs add is worked
 * out from their Gram matrix and scores, and is the next pass's business. With
 *
 *     S_t = g Gamma_t S' + sum_j x_j w_{j,t}^T
 *
 * S' is what the panel holds; g is a factor per column, which saves the pass a multiplication. It
 * is folded into S' at the end of each block of tokens, and where it becomes small. A pair of a
 * sliding window is complete, so that x_j w_j^T moves into S', when the window has left it. */

#include "panel_tmpl.h"
#include "block_tmpl.h"
#include "group_tmpl.h"
#include "unit_tmpl.h"
#include "decode_tmpl.h"

static void FWA_KERNEL(fused)(const fwa_cpu_plan *plan, const fwa_call *call, const fwa_carry *in,
                              const fwa_sequence *s, const fwa_cpu_fused_unit *unit,
                              const fwa_cpu_fused *scratch, const fwa_cpu_partials *kept)
{
    fwa_cpu_fused first = *scratch, current = *scratch;
    const fwa_cpu_unit none = {0};
    fused_work f = {.w = unit_begin(plan, call, in, s, none, NULL),
                    .f = &current,
                    .unit = unit,
                    .args = call->forward};
    int64_t segment = fwa_cpu_first_segment(plan, s), start, tokens, next, after, h;
    f.base = f.w.window - 1 + GROUP;
    f.dim = (f.w.p->key_dim + FWA_LANES - 1) / FWA_LANES * FWA_LANES;
    /* The same numbers as those of the passes below, but for the signs of zeros: they add pairs of
     * zeros too, where a group has fewer. */
    if (!kept && decode_fits(&f)) {
        const bool more = s->index + 1 < call->extent.sequences;
        fwa_sequence other = *s;
        if (more)
            other = fwa_sequence_get(&f.w.in, s->index + 1);
        for (h = 0; h < unit->heads; h++) {
            select_head(&f, &first, h);
            set_block(&f, 0, s->length, NULL);
            if (s->commit == 0)
                copy_state(&f.w, &f.args->carry_out);
            decode_head(&f, &other, h + 1 < unit->heads || (more && other.slot_in >= 0));
        }
        return;
    }
    for (h = 0; h < unit->heads; h++) {
        select_head(&f, &first, h);
        if (s->padded && f.args)
            clear_outputs(&f.w, &f.args->o);
        else if (f.args && s->commit == 0)
            copy_state(&f.w, &f.args->carry_out);
        set_block(&f, 0, 0, NULL);
        if (!s->padded && s->length > 0)
            begin_head(&f);
    }
    for (start = 0; !s->padded && start < s->length; start = next) {
        const bool segment_starts = kept && fwa_cpu_segment_starts(plan, s, start);
        tokens = grid_tokens(&f.w, start, FWA_CPU_FUSED_BLOCK);
        next = start + tokens;
        after = next < s->length ? grid_tokens(&f.w, next, FWA_CPU_FUSED_BLOCK) : 0;
        for (h = 0; h < unit->heads; h++) {
            const fwa_cpu_unit before = f.w.u;
            fetcher ahead;
            bool same_keys;
            select_head(&f, &first, h);
            same_keys = h > 0 && before.key_head == f.w.u.key_head &&
                        before.query_head == f.w.u.query_head;
            set_block(&f, start, tokens, kept);
            if (segment_starts) {
                float *to = fwa_cpu_kept(f.w.p, kept, f.w.u.head, segment);
#define KEEP(U) keep_panel(&f, to, at, U)
                EACH_PANEL(&f, KEEP);
#undef KEEP
            }
            copy_rows(&f, true);
            load_block(&f, same_keys);
            if (h + 1 < unit->heads)
                ahead = fetcher_make(&f, f.w.u.head + 1, start, tokens);
            else
                ahead = fetcher_make(&f, unit->head, after ? next : start, after);
            run_block(&f, &ahead, kept && fwa_cpu_segment_starts(plan, s, next));
            copy_rows(&f, false);
            if (f.args)
                store_block(&f);
        }
        segment += segment_starts;
    }
}
