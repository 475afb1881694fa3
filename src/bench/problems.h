/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_PROBLEMS_H
#define FWA_BENCH_PROBLEMS_H

/*
 * What a benchmark runs: problems, one a line.
 *
 *     line  = { blank } [ token { blank { blank } token } { blank } ] [ "#" anything ]
 *     token = key "=" value
 *
 * Keys may come in any order, each at most once; keys and values hold no blanks and no "#".
 *
 *     preset       a preset of the library (`fwa info` lists them); required
 *     pass         forward *, backward, train (forward and backward), decode
 *     B, T         batch rows; tokens: required, save that decode has 1 where none is given
 *     Hk, Hv, Hq   heads of key, value and query; 1, Hk and Hk where not given
 *     D, V         key and value dimension; D is required, V is D where not given
 *     dtype        f32 *, bf16, f16, f64 (the reference backend)
 *     state_dtype  f32 *, bf16, f16: the carry's state
 *     form         auto *, recurrent, masked, chunked
 *     data         random *, strong, equal, correlated, zero, wild, closed, clamped, scaled, keep,
 *                  fade, wipe, reflect: see kinds.c
 *     gates        inputs that are given: none, or some of beta, lambda, log_gate with "+" between;
 *                  the preset's own where not given
 *     cache        decode: hot *, the same states at every call; cold, states that no cache holds
 *     packed       not with decode: 0 *; 1, the rows are packed into one, with cu_seqlens
 *     saved        backward, train: 1 *, the forward keeps states for the backward; 0, it does not
 *     threads      all *, those that the run has; a number; scaling, 1, 2, 4, ... and all, each a
 *                  problem of its own
 *     name         up to 40 letters, digits and "-_."; made from the rest where not given
 *
 * and the knobs of problem files: window, align, read, step, ridge, predict_from, qk_norm, phi,
 * normalizer, eps, decay_floor, scale, norm_eps, eps_attn, over what the preset sets. (* default.)
 */

#include "message.h"

#include <fwa/fwa.h>

typedef enum bench_pass {
    BENCH_FORWARD,
    BENCH_BACKWARD,
    BENCH_TRAIN,
    BENCH_DECODE,
    BENCH_PASSES
} bench_pass;

#define BENCH_NAME            41
#define BENCH_LINE            1024 /* bytes of a line, less one */
#define BENCH_THREADS_ALL     0
#define BENCH_THREADS_SCALING (-1)

typedef struct bench_problem {
    char set[BENCH_NAME]; /* the set or file that it is from; "" where it is from neither */
    char name[BENCH_NAME];
    const char *preset;  /* static */
    fwa_problem problem; /* all heads filled in */
    int64_t batch, tokens;
    int32_t pass;  /* bench_pass */
    int32_t data;  /* row of bench_data_get() */
    int32_t gates; /* CONFORMANCE_BETA and so on */
    int32_t cold, packed, saved;
    int32_t threads; /* a number, or one of the above */
} bench_problem;

/* Parses a line. 1: a problem; 0: blank; -1 with *message filled, naming the key. */
int bench_parse_line(const char *line, bench_problem *problem, bench_message *message);
/* ---- Lists ---- */

typedef struct bench_list {
    bench_problem *problems;
    int64_t count;
} bench_list;

/* Appends the problems of a text. 0, or -1 with *message filled, which begins "ORIGIN:LINE: ". */
int bench_parse_text(const char *text, const char *origin, bench_list *list,
                     bench_message *message);
/* The same from a file. */
int bench_read_file(const char *path, bench_list *list, bench_message *message);
/* Puts problems on 1, 2, 4, ... and `most` threads in the place of each that scales. 0, or -1 with
 * *message filled. */
int bench_list_expand(bench_list *list, int32_t most, bench_message *message);
void bench_list_free(bench_list *list);

/* The sets that are built in: bench/problems/NAME.txt. NULL past the end. */
typedef struct bench_set {
    const char *name;
    const char *text; /* the first comment after the licence says what the set is for */
} bench_set;
const bench_set *bench_set_get(int32_t index);
const bench_set *bench_set_find(const char *name); /* or NULL */

/* "forward" and so on; NULL past the end. */
const char *bench_pass_name(int32_t pass);

/* The inputs that a line's "gates" can name, 0 being none; NULL past the end. */
const char *bench_gate_name(int32_t index);
int32_t bench_gate(int32_t index); /* CONFORMANCE_BETA and so on */
/* Those that users of a preset hand over. */
int32_t bench_preset_gates(const char *preset);

/* A kind of data: one of the conformance cases', with other decays and gains. */
typedef struct bench_data_kind {
    const char *name;
    int32_t kind;  /* conformance_kind */
    double forget; /* log gates and ridges are multiplied by this */
    double gamma;  /* above 0: log gates are given, within a tenth of this decay's */
    double gain;   /* above 0: beta is given; the gains eta |x|^2 are from this to 1.999 */
} bench_data_kind;
const bench_data_kind *bench_data_get(int32_t index); /* NULL past the end */

/* ---- Work -------------------------------------------------------------------------------------
 *
 * What the rule needs at least, whatever a kernel does: D V multiply-adds, two operations each, per
 * token and value head, times
 *
 *                     forward                       backward
 *     regression      3: predict, write, read       6: S dO, q dO^T, S dR, L R, L^T x, x dR^T
 *     inner product   2: write, read                4: S dO, q dO^T, L v, L^T x
 *
 * Windows, gates and norms cost extra, which is not counted. */

/* Operations of one call. */
double bench_flops(const bench_problem *problem);
/* Bytes of the carried states that a decoding call reads and writes; 0 for other passes. */
double bench_state_bytes(const bench_problem *problem);

#endif
