/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CONFORMANCE_DATA_H
#define FWA_CONFORMANCE_DATA_H

/* All tensors of one call as dense doubles, by their names in problem files; integers too. */

#include "../files/problem_file.h"

#include <fwa/fwa.h>

typedef struct conformance_data {
    fwa_problem problem; /* heads filled in */
    problem_extent extent;
    int64_t pool;                         /* rows of the carries; 0: as many as sequences */
    double *values[PROBLEM_TENSORS];      /* by row of the tensor table; NULL: absent */
    int32_t *slot_in, *slot_out, *commit; /* [sequences], NULL: absent */
} conformance_data;

/* Zeroed memory, never NULL: without memory the program ends with a message. */
void *conformance_allocate(size_t count, size_t size);

/* A call without tensors. */
conformance_data conformance_data_new(const fwa_problem *problem, int64_t batch, int64_t tokens,
                                      int64_t sequences);
conformance_data conformance_data_copy(const conformance_data *data);
void conformance_data_free(conformance_data *data);

/* Adds a tensor of zeros, or returns the one that is there. The name must be in the table. */
double *conformance_add(conformance_data *data, const char *name);
/* Takes a tensor out; absent is fine. */
void conformance_drop(conformance_data *data, const char *name);
/* NULL: absent. */
double *conformance_get(const conformance_data *data, const char *name);
int32_t conformance_shape(const conformance_data *data, const problem_tensor *row,
                          int64_t shape[FWA_MAX_RANK]);
int64_t conformance_count(const conformance_data *data, const char *name);
int64_t conformance_row_count(const conformance_data *data, const problem_tensor *row);

/* First token and length of a sequence. */
int64_t conformance_first(const conformance_data *data, int64_t sequence);
int64_t conformance_length(const conformance_data *data, int64_t sequence);

/* ---- New calls from old ones; carries' slots are not followed ---- */

/* Tokens [from, to) of every row of a call without cu_seqlens; carries stay. */
conformance_data conformance_slice(const conformance_data *data, int64_t from, int64_t to);
/* One sequence of a call, batch row or packed, as a call of its own. */
conformance_data conformance_single(const conformance_data *data, int64_t sequence);
/* The parts, calls of one sequence each that have the same tensors, one after another with
 * cu_seqlens, or, where they have one length, as batch rows. */
conformance_data conformance_pack(const conformance_data *const *parts, int64_t count);
conformance_data conformance_stack(const conformance_data *const *parts, int64_t count);
/* Makes the results' outgoing carry the incoming one of *next. */
void conformance_hand_over(const conformance_data *results, conformance_data *next);

/* The values as a plan of these types sees them. */
void conformance_round(conformance_data *data, int32_t dtype, int32_t state_dtype);

#endif
