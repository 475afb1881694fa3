/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CONFORMANCE_RUN_H
#define FWA_CONFORMANCE_RUN_H

/* Runs one call through the public interface, the way a hostile caller would lay it out: canaries
 * before and after every buffer, NaN between rows, workspaces of exactly the size asked for. */

#include "data.h"

typedef enum conformance_layout {
    CONFORMANCE_DENSE,
    CONFORMANCE_PADDED, /* odd strides, NaN between rows, pointers aligned to an element only */
    CONFORMANCE_HEADS_OUTER, /* [batch, heads, T, dim] in memory */
    CONFORMANCE_BROADCAST,   /* stride 0 over batch, tokens and channels of the gates: only their
                                first   values count */
    CONFORMANCE_GUARDED, /* dense, the last byte right before a page that must not be touched; host
                            memory only */
    CONFORMANCE_LAYOUTS
} conformance_layout;

typedef struct conformance_options {
    fwa_context *context;
    int32_t form;        /* fwa_form */
    int32_t dtype;       /* of the plan */
    int32_t state_dtype; /* NONE: the default */
    int32_t layout;      /* conformance_layout */
    int32_t backward;    /* 1: gradients too, of every input that is there; the data need `do` */
    int32_t saved;       /* 1: with a saved buffer from the forward to the backward */
    int32_t in_place;    /* 1: the carry goes out where it came in */
    int32_t mask;        /* 1: the masked form's mask too */
    int32_t index64;     /* 1: cu_seqlens in int64 */
} conformance_options;

#define CONFORMANCE_TEXT 512

typedef struct conformance_outcome {
    fwa_status status;
    char message[CONFORMANCE_TEXT]; /* "" where all went well */
    char kernel[2][128];            /* by fwa_pass */
} conformance_outcome;

/* Runs the forward, and the backward where it is asked for. Results: every output that the problem
 * has, and every gradient. Returns 0; or -1 where the library refuses (outcome->status) or touches
 * memory that is not its own (outcome->status is OK then), with outcome->message filled and no
 * results. */
int conformance_run(const conformance_data *data, const conformance_options *options,
                    conformance_data *results, conformance_outcome *outcome);

#endif
