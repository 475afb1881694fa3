/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_PROBLEM_FILE_H
#define FWA_FILES_PROBLEM_FILE_H

/* Problem files: one safetensors file is one problem and, optionally, its answer (doc/maths.md).
 * The reader trusts nothing in the file; every failure is a message, never a crash. */

#include "safetensors.h"
#include <fwa/fwa.h>

/* Fills *problem (rule, knobs, sizes; dtype stays F64 where q is F64, else q's own type; form AUTO)
 * from the metadata and the shapes of q, k, v, beta. Unknown metadata keys or values, unknown or
 * missing tensors and impossible shapes are errors. Returns 0, or -1 with *message filled. */
int problem_file_read_problem(const safetensors *file, fwa_problem *problem,
                              safetensors_message *message);

/* Writes the knobs of *problem into the metadata of *file (those that differ from the default, and
 * the rule always). */
int problem_file_write_problem(safetensors *file, const fwa_problem *problem,
                               safetensors_message *message);

/* Sets a knob by its metadata key. 0; 1 where no knob (save the rule) is called so; -1 where the
 * text is no value of it, and *legal says what is. */
int problem_set_knob(fwa_problem *problem, const char *key, const char *text, const char **legal);

/* ---- The tensors of a problem file ---- */

typedef enum problem_role {
    PROBLEM_INPUT,    /* given */
    PROBLEM_OUTPUT,   /* result of the forward */
    PROBLEM_UPSTREAM, /* given: the gradient that reaches an output */
    PROBLEM_GRADIENT, /* result of the backward */
    PROBLEM_MASK      /* result of the masked form on request; no file holds it */
} problem_role;

typedef enum problem_type {
    PROBLEM_TYPE_DATA,  /* problem.dtype */
    PROBLEM_TYPE_GATE,  /* F32, F64 where dtype is F64; carries and their gradients too */
    PROBLEM_TYPE_STATE, /* problem.state_dtype */
    PROBLEM_TYPE_INDEX, /* I32 or I64, as it is in the file */
    PROBLEM_TYPE_COUNT  /* I64 */
} problem_type;

typedef enum problem_when { /* where a tensor means something */
                            PROBLEM_ALWAYS,
                            PROBLEM_NEXT_LATENT, /* alignment next_latent */
                            PROBLEM_WINDOWED,    /* window > 1 */
                            PROBLEM_NORMALIZED   /* the read normaliser is on */
} problem_when;

#define PROBLEM_NO_FIELD ((size_t)-1)

typedef struct problem_tensor {
    const char *name;
    /* One letter an axis: B batch, T tokens, N sequences, M = N + 1, W = window - 1, q k v heads of
     * query, key, value, D key_dim, V value_dim, c = V where the dynamics are per channel, else no
     * axis. */
    const char *axes;
    problem_role role;
    problem_type type;
    problem_when when;
    int32_t required;
    size_t forward, backward; /* offset of its fwa_tensor in the args struct, or PROBLEM_NO_FIELD */
} problem_tensor;

/* How many rows the table has. */
#define PROBLEM_TENSORS 38
const problem_tensor *problem_tensor_get(int32_t index);     /* NULL past the end */
const problem_tensor *problem_tensor_find(const char *name); /* or NULL */
/* 1 where the tensor means something to this problem. */
int problem_tensor_applies(const problem_tensor *tensor, const fwa_problem *problem);
/* The type that a plan for *problem wants; PROBLEM_TYPE_INDEX gives NONE. */
int32_t problem_tensor_dtype(const problem_tensor *tensor, const fwa_problem *problem);

typedef struct problem_extent {
    int64_t batch, tokens, sequences;
} problem_extent;

/* Sizes of the file's call. 0, or -1 with *message filled. */
int problem_file_extent(const safetensors *file, problem_extent *extent,
                        safetensors_message *message);
/* The tensor's shape; returns its rank. */
int32_t problem_tensor_shape(const problem_tensor *tensor, const fwa_problem *problem,
                             const problem_extent *extent, int64_t shape[FWA_MAX_RANK]);

#endif
