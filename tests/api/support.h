/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_API_SUPPORT_H
#define FWA_TESTS_API_SUPPORT_H

/* What the tests of the interface share: memory that notices stray writes and reads, tensors with
 * contents that depend on the logical index alone, and calls with all their tensors. */

#include <criterion/criterion.h>
#include <fwa/fwa.h>
#include <stdbool.h>

/* ---- Memory ---- */

/* Everything around a block, and every output before a call, has all bits set: NaN in each
 * floating-point type. */
#define POISON 0xff

typedef enum placement {
    PLACE_MARGINS,      /* poisoned margins on both sides; aligned to the element, not to more */
    PLACE_GUARD_BEHIND, /* the page behind cannot be touched */
    PLACE_GUARD_FRONT   /* the page in front cannot be touched */
} placement;

typedef struct block {
    unsigned char *data;
    size_t size;
    unsigned char *region; /* accessible bytes around and including data */
    size_t region_size;
    void *map;
    size_t map_size; /* 0: from malloc */
} block;

block block_make(size_t size, size_t alignment, placement place);
void block_free(block *b);
/* True where no byte of the region outside of data has changed. */
bool block_margins_intact(const block *b);
/* A hash of the data. */
uint64_t block_hash(const block *b);

/* ---- Tensors ---- */

int64_t tensor_count(const fwa_tensor *t);
/* Offset in elements of the linear-th element in row-major order. */
int64_t tensor_offset(const fwa_tensor *t, int64_t linear);
double tensor_get(const fwa_tensor *t, int64_t linear);
void tensor_set(const fwa_tensor *t, int64_t linear, double value);
/* Contents from `low` to `high` that depend on seed and logical index only: multiples of 1/64,
 * exact in every floating-point type while |low|, |high| <= 2. */
void tensor_fill(const fwa_tensor *t, uint64_t seed, double low, double high);
/* Bitwise equality of the elements; shapes and types must agree. */
bool tensor_same(const fwa_tensor *a, const fwa_tensor *b);
bool tensor_all(const fwa_tensor *t, double value);
bool tensor_finite(const fwa_tensor *t);
/* The rows [from, from + count) of the first axis. */
fwa_tensor tensor_rows(const fwa_tensor *t, int64_t from, int64_t count);
/* The tokens [from, from + count) of batch row 0. */
fwa_tensor tensor_tokens(const fwa_tensor *t, int64_t from, int64_t count);

/* ---- Calls ---- */

typedef struct setup {
    const char *backend;
    fwa_problem problem;
    int64_t batch, tokens;
    const int64_t *lengths;    /* of packed sequences; NULL: the batch rows are the sequences */
    int64_t sequences;         /* with lengths */
    bool wide_lengths;         /* cu_seqlens is int64 */
    int64_t rows_in, rows_out; /* rows of the carries; 0: as many as there are sequences */
    bool no_gates;             /* beta, lambda and log_gate are absent */
    bool no_carry_in, no_carry_out;
    bool in_place; /* carry_out is carry_in */
    bool mask;
    int64_t seen; /* of every row of carry_in */
    int32_t threads;
    placement place;
    uint64_t seed;
} setup;

/* A small problem that has all parts of a carry but norm: falcon3, window 3, two value heads for
 * one key head, D = 4, V = 3, batch 2, T = 5, everything given. */
setup setup_small(const char *backend);
/* The other one: falcon1a with the normaliser and positive features. */
setup setup_normalizer(const char *backend);

#define CALL_TENSORS 40

typedef struct call_tensor {
    const char *name; /* as in the library's messages */
    fwa_tensor *tensor;
    bool output;
    block memory;
} call_tensor;

/* One call of one pass, in place in memory: do not copy it. */
typedef struct call {
    setup setup;
    fwa_pass pass;
    fwa_context *context;
    fwa_plan *plan;
    fwa_forward_args forward;
    fwa_backward_args backward;
    call_tensor tensors[CALL_TENSORS];
    int count;
    block workspace;
} call;

fwa_context *make_context(const char *backend, int32_t threads);
fwa_plan *make_plan(fwa_context *context, const fwa_problem *problem);

/* Makes context, plan, tensors and workspace; inputs are filled, outputs poisoned. */
call *call_new(const setup *s, fwa_pass pass);
void call_free(call *c);
/* An argument by its name, "carry_in.state"; fails the test where it is not given. */
call_tensor *call_find(call *c, const char *name);
fwa_tensor *call_get(call *c, const char *name);
bool call_has(const call *c, const char *name);
/* True for ("carry_in.state", ".state"). */
bool ends_with(const char *name, const char *end);
/* Takes an argument away. */
void call_drop(call *c, const char *name);
/* Gives an absent argument dense memory of its own. */
call_tensor *call_add(call *c, const char *name, fwa_tensor *tensor, bool output, int32_t dtype,
                      int32_t rank, const int64_t *shape);
/* Sets slot_in, slot_out or commit. */
void call_integers(call *c, const char *name, int64_t count, const int32_t *values);
/* Moves an argument to memory with these strides (elements), `lead` elements from its start. Other
 * elements are poison. */
void call_restride(call *c, const char *name, const int64_t *stride, int64_t lead);
/* Poisons the outputs that are not in place with an input. */
void call_poison(call *c);
fwa_status call_run(call *c);
/* Runs, expects FWA_OK and intact margins. */
void call_ok(call *c);
/* Runs; expects that status, a message that has all of the texts (up to NULL), and that no byte of
 * a tensor, of a margin or around the workspace changed. */
void call_fails_(call *c, const char *file, int line, fwa_status status, ...);
#define call_fails(c, ...) call_fails_((c), __FILE__, __LINE__, __VA_ARGS__, (const char *)NULL)
/* Outputs (all of a, by name) are the same in both, bit for bit. */
void expect_same_outputs_(call *a, call *b, const char *file, int line);
#define expect_same_outputs(a, b) expect_same_outputs_((a), (b), __FILE__, __LINE__)
/* A function other than a call has failed so: status and texts. */
void expect_message_(const char *file, int line, fwa_status got, fwa_status status, ...);
#define expect_message(got, ...)                                                                   \
    expect_message_(__FILE__, __LINE__, (got), __VA_ARGS__, (const char *)NULL)

/* The host backends; every test of calls runs on both. */
extern const char *const backends[2];
#define FOR_BACKENDS(backend)                                                                      \
    for (int backend##_ = 0; backend##_ < 2; backend##_++)                                         \
        for (const char *backend = backends[backend##_]; backend; backend = NULL)

/* FWA_TEST_FULL=1: the long sweeps. */
bool full_run(void);
/* A 64-bit mix of two numbers. */
uint64_t mix(uint64_t a, uint64_t b);

#endif
