/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Decoding with a pool of carries, as an inference engine does it
 * ===============================================================
 *
 * An engine keeps one pool of carries, one slot per live request, for each layer. Every call of
 * fwa_forward names, for each row of its batch, the slot it reads and the slot it writes:
 *
 *     prefill          prompts of different lengths packed in one call, each into a slot of its own
 *     decode           one token per row, slots in place, padded rows where the batch is not full
 *     fork             one slot read by two rows that write two slots: beams, shared prefixes
 *     speculation      drafts are run without writing (commit 0); the ones that turn out right are
 *                      replayed in front of the next drafts (commit = how many were right)
 *
 * What a call means never depends on its shape: the prefill kernel and the decode kernel give the
 * same outputs. This program checks that, against one forward over each whole request, and exits
 * with 1 if it finds a difference.
 */

#include <fwa/fwa.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADS = 2,
    DIM = 8,     /* D and V */
    WINDOW = 4,  /* falcon3's */
    SLOTS = 4,   /* of the pool */
    ROWS = 3,    /* of a decode batch; an engine's is fixed so that graphs can be captured */
    LENGTH = 12, /* the most tokens of a request */
    REQUESTS = 3,
    TOKENS = 16 /* the most tokens of a call */
};

/* ---- The pool ---- */

/* All parts have the slot as their first axis. falcon3 has every part but the normaliser's. */
static struct {
    int64_t seen[SLOTS];
    float state[SLOTS][HEADS][DIM][DIM];
    float previous_key[SLOTS][HEADS][DIM];
    float tail_key[SLOTS][WINDOW - 1][HEADS][DIM];
    float tail_value[SLOTS][WINDOW - 1][HEADS][DIM];
} pool;

static fwa_carry pool_carry(void)
{
    fwa_carry carry;
    memset(&carry, 0, sizeof carry);
    carry.seen = fwa_tensor_contiguous(pool.seen, FWA_DTYPE_I64, 1, SLOTS);
    carry.state = fwa_tensor_contiguous(pool.state, FWA_DTYPE_F32, 4, SLOTS, HEADS, DIM, DIM);
    carry.prev_key = fwa_tensor_contiguous(pool.previous_key, FWA_DTYPE_F32, 3, SLOTS, HEADS, DIM);
    carry.tail_key = fwa_tensor_contiguous(pool.tail_key, FWA_DTYPE_F32, 4, SLOTS, WINDOW - 1,
                                           HEADS, DIM);
    carry.tail_value = fwa_tensor_contiguous(pool.tail_value, FWA_DTYPE_F32, 4, SLOTS, WINDOW - 1,
                                             HEADS, DIM);
    return carry;
}

/* ---- One call ---- */

/* The tokens of a call, one after another; an engine's projections would write these. */
static struct {
    float q[TOKENS][HEADS][DIM], k[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM];
    float beta[TOKENS][HEADS], lambda[TOKENS][HEADS];
    float o[TOKENS][HEADS][DIM];
} call;

static const fwa_plan *plan;
static void *workspace;
static size_t workspace_size;

/* Stands in for the layers before: numbers that depend on the request and the position only. */
static void put_token(int at, int request, int position)
{
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < DIM; i++) {
            const double x = 1.0 + 7.0 * request + 0.9 * position + 3.1 * h + 0.37 * i;
            call.q[at][h][i] = (float)sin(3.0 * x * x);
            call.k[at][h][i] = (float)cos(5.0 * x * x);
            call.v[at][h][i] = (float)sin(11.0 * x * x);
        }
        call.beta[at][h] = 0.5f + 0.1f * (float)(position % 5);
        call.lambda[at][h] = 0.02f * (float)(1 + h);
    }
}

/* `rows` rows of `tokens` tokens each; or, where starts is given, one row that holds `rows`
 * sequences starts[n] .. starts[n + 1] - 1. slot_out NULL: as slot_in. commit NULL: all tokens. */
static void run(int rows, int tokens, int32_t *starts, int32_t *slot_in, int32_t *slot_out,
                int32_t *commit)
{
    const int batch = starts ? 1 : rows;
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    args.q = fwa_tensor_contiguous(call.q, FWA_DTYPE_F32, 4, batch, tokens, HEADS, DIM);
    args.k = fwa_tensor_contiguous(call.k, FWA_DTYPE_F32, 4, batch, tokens, HEADS, DIM);
    args.v = fwa_tensor_contiguous(call.v, FWA_DTYPE_F32, 4, batch, tokens, HEADS, DIM);
    args.o = fwa_tensor_contiguous(call.o, FWA_DTYPE_F32, 4, batch, tokens, HEADS, DIM);
    args.beta = fwa_tensor_contiguous(call.beta, FWA_DTYPE_F32, 3, batch, tokens, HEADS);
    args.lambda = fwa_tensor_contiguous(call.lambda, FWA_DTYPE_F32, 3, batch, tokens, HEADS);
    if (starts)
        args.cu_seqlens = fwa_tensor_contiguous(starts, FWA_DTYPE_I32, 1, rows + 1);
    args.carry_in = args.carry_out = pool_carry(); /* in place: all rows see the pool as it was */
    args.slot_in = fwa_tensor_contiguous(slot_in, FWA_DTYPE_I32, 1, rows);
    if (slot_out)
        args.slot_out = fwa_tensor_contiguous(slot_out, FWA_DTYPE_I32, 1, rows);
    if (commit)
        args.commit = fwa_tensor_contiguous(commit, FWA_DTYPE_I32, 1, rows);
    args.workspace = workspace;
    args.workspace_size = workspace_size;
    if (fwa_forward(plan, &args) != FWA_OK) {
        fprintf(stderr, "decode: %s\n", fwa_error_message());
        exit(1);
    }
}

/* ---- The engine ---- */

/* What each request's tokens gave, and how many there were. */
static float outputs[REQUESTS][LENGTH][HEADS][DIM];
static int lengths[REQUESTS];

static void keep_output(int request, int position, int at)
{
    memcpy(outputs[request][position], call.o[at], sizeof call.o[at]);
}

/* Requests 0 and 1 arrive with prompts of 5 and 2 tokens: one packed call into slots 0 and 2. FRESH
 * starts from zeros whatever an earlier request left in the slot. */
static void prefill(void)
{
    int32_t starts[] = {0, 5, 7};
    int32_t slot_in[] = {FWA_SLOT_FRESH, FWA_SLOT_FRESH}, slot_out[] = {0, 2};
    for (int request = 0; request < 2; request++)
        for (int at = starts[request]; at < starts[request + 1]; at++)
            put_token(at, request, lengths[request]++);
    run(2, starts[2], starts, slot_in, slot_out, NULL);
    for (int request = 0; request < 2; request++)
        for (int at = starts[request]; at < starts[request + 1]; at++)
            keep_output(request, at - starts[request], at);
}

/* One token for both; the third row of the batch is padding. */
static void decode_step(void)
{
    int32_t slots[ROWS] = {0, 2, FWA_SLOT_NONE};
    for (int request = 0; request < 2; request++)
        put_token(request, request, lengths[request]);
    run(ROWS, 1, NULL, slots, NULL, NULL);
    for (int request = 0; request < 2; request++)
        keep_output(request, lengths[request]++, request);
}

/* Request 2 goes on from where request 0 stands, with other tokens: both read slot 0, and each
 * writes its own. Nothing is copied beforehand. */
static void fork_step(void)
{
    int32_t slot_in[] = {0, 0}, slot_out[] = {0, 3};
    memcpy(outputs[2], outputs[0], sizeof outputs[2]);
    lengths[2] = lengths[0];
    put_token(0, 0, lengths[0]);
    put_token(1, 2, lengths[2]);
    run(2, 1, NULL, slot_in, slot_out, NULL);
    keep_output(0, lengths[0]++, 0);
    keep_output(2, lengths[2]++, 1);
}

/* Request 1 is decoded with drafts of three tokens. A round runs the tokens that the last round
 * found right, again, and then the new drafts: only the former are committed, so a wrong draft
 * never gets into the pool and nothing has to be rolled back. */
static void speculative_rounds(void)
{
    enum { DRAFTS = 3, ROUNDS = 2 };
    static const int RIGHT[ROUNDS] = {2, 1}; /* a real engine compares drafts and samples */
    int32_t slot[] = {2}, commit[] = {0};
    int pending = 0; /* right, but not in the pool yet */
    for (int round = 0; round < ROUNDS; round++) {
        const int start = lengths[1] - pending;
        for (int t = 0; t < pending + DRAFTS; t++) {
            /* Drafts after the last right one are wrong: tokens of nobody's. */
            const int right = t < pending + RIGHT[round];
            put_token(t, right ? 1 : 99, start + t);
        }
        commit[0] = pending;
        run(1, pending + DRAFTS, NULL, slot, NULL, commit);
        for (int t = pending; t < pending + RIGHT[round]; t++)
            keep_output(1, lengths[1]++, t);
        pending = RIGHT[round];
    }
}

/* ---- The check ---- */

/* Runs a whole request in one call that leaves the pool alone, and returns the largest difference.
 */
static double check_request(int request, int shared)
{
    int32_t slot_in[] = {FWA_SLOT_FRESH}, slot_out[] = {FWA_SLOT_FRESH};
    double largest = 0.0;
    for (int t = 0; t < lengths[request]; t++)
        put_token(t, t < shared ? 0 : request, t);
    run(1, lengths[request], NULL, slot_in, slot_out, NULL);
    for (int t = 0; t < lengths[request]; t++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < DIM; i++) {
                const double difference = fabs((double)outputs[request][t][h][i] -
                                               (double)call.o[t][h][i]);
                largest = difference <= largest ? largest : difference;
            }
    return largest;
}

static int check_all(int shared)
{
    int wrong = 0;
    printf("request  tokens  difference from one forward\n");
    for (int request = 0; request < REQUESTS; request++) {
        const double difference = check_request(request, request == 2 ? shared : 0);
        const int bad = !(difference <= 1e-5);
        printf("%7d  %6d  %.1e%s\n", request, lengths[request], difference, bad ? "  WRONG" : "");
        wrong += bad;
    }
    return wrong;
}

int main(void)
{
    fwa_context *context = NULL;
    fwa_plan *made = NULL;
    fwa_problem problem = FWA_PROBLEM_INIT;
    int shared, wrong;
    fwa_problem_preset(&problem, "falcon3");
    problem.window = WINDOW;
    problem.heads_key = HEADS;
    problem.key_dim = problem.value_dim = DIM;
    /* An engine asks once for its largest call: here ROWS rows, or TOKENS tokens of one. */
    if (fwa_context_create(NULL, &context) || fwa_plan_create(context, &problem, &made) ||
        fwa_plan_workspace_size(made, FWA_PASS_FORWARD, ROWS, TOKENS, ROWS, &workspace_size)) {
        fprintf(stderr, "decode: %s\n", fwa_error_message());
        return 1;
    }
    workspace = malloc(workspace_size ? workspace_size : 1);
    if (!workspace) {
        fprintf(stderr, "decode: no memory\n");
        return 1;
    }
    plan = made;
    memset(&pool, 0xff, sizeof pool); /* a stale pool, all NaN: nothing of it may show */
    prefill();
    for (int step = 0; step < 3; step++)
        decode_step();
    shared = lengths[0];
    fork_step();
    speculative_rounds();
    wrong = check_all(shared);
    free(workspace);
    fwa_plan_destroy(made);
    fwa_context_destroy(context);
    return wrong > 0;
}
