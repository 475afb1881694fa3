/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_MODEL_H
#define LM_MODEL_H

/*
 * A small decoder-only language model whose token mixing is a fast-weight layer of libfwa.
 *
 *     x = embedding[token]
 *     per layer:  h = norm(x)
 *                 q, k, v = silu(conv(h Wqkv^T))               4 taps, causal, depthwise
 *                 beta, lambda, log_gate = maps of h Wgate^T + bias     (recipe.h)
 *                 x += norm(fast weights(q, k, v, ...)) Wout^T      norm per head
 *                 x += swiglu(norm(x) Win^T) Wdown^T
 *     logits = norm(x) embedding^T
 *
 * Batches are packed: sequences of any lengths lie one after another in one row of tokens, told
 * apart by cu_seqlens. Generation is the same forward with an lm_state, a token at a time.
 */

#include "common.h"
#include "recipe.h"

#include <fwa/fwa.h>

enum { VOCABULARY = 256 };

typedef struct lm_config {
    const char *rule;
    int32_t window; /* 0: the preset's */
    int32_t layers;
    int32_t dim;
    int32_t heads;
    int32_t head_dim; /* D and V */
    int32_t hidden;   /* width of the MLP */
} lm_config;

typedef struct parameter {
    char name[48];
    int64_t rows, columns; /* rows 1: a vector */
    size_t offset;         /* in floats, into each of the flat arrays below */
    int32_t decay;         /* 1: AdamW's weight decay applies */
} parameter;

/* Offsets of one layer's parameters. */
typedef struct layer_offsets {
    size_t mixer_norm;  /* [dim] */
    size_t qkv;         /* [3 heads head_dim, dim] */
    size_t conv;        /* [CONV_TAPS, 3 heads head_dim] */
    size_t gates;       /* [gate_width, dim], absent where gate_width is 0 */
    size_t gates_bias;  /* [gate_width] */
    size_t rate;        /* [heads], log of the gate's rate; GATE_PROJECTED and GATE_OF_BETA */
    size_t output_norm; /* [heads, head_dim] */
    size_t output;      /* [dim, heads head_dim] */
    size_t mlp_norm;    /* [dim] */
    size_t mlp_in;      /* [2 hidden, dim] */
    size_t mlp_out;     /* [dim, hidden] */
} layer_offsets;

typedef struct lm_model {
    lm_config config;
    const lm_recipe *recipe;
    fwa_problem problem; /* the same for all layers */
    fwa_plan *plan;
    int32_t beta_width; /* columns of the gate projection for beta: 0, heads or heads * head_dim */
    int32_t lambda_width; /* the next ones: 0 or heads */
    int32_t rate_width;   /* the last ones: 0 or heads */
    int32_t gate_width;   /* their sum */
    int32_t trained_rate; /* 1: layer_offsets.rate is there */
    float key_scale;      /* recipe_key_scale() */
    float *fixed_gate;    /* [heads] */

    layer_offsets *layers;
    size_t embedding;  /* [VOCABULARY, dim], tied to the logits */
    size_t final_norm; /* [dim] */
    parameter *parameters;
    int32_t parameter_count;
    size_t size;                                  /* floats */
    float *weights, *gradients, *mean, *variance; /* mean and variance: AdamW's moments */
} lm_model;

/* Packed sequences. */
typedef struct lm_batch {
    int64_t token_capacity, sequence_capacity;
    int64_t tokens, sequences;
    int64_t *starts; /* [sequences + 1] */
    uint8_t *input;  /* [tokens] */
    int16_t *target; /* [tokens], the next byte; -1: no loss here */
} lm_batch;

/* What a sequence needs to go on: per layer, the fast weights' carry and the convolution's last
 * rows. */
typedef struct lm_state {
    int64_t sequences;
    fwa_carry *carry; /* [layers] */
    float **history;  /* [layers][sequences, CONV_TAPS - 1, 3 heads head_dim] */
    void *memory;
} lm_state;

/* Makes the model and its random weights. The context must outlive it. */
int model_create(lm_model *model, fwa_context *context, const lm_config *config, uint64_t seed,
                 lm_message *message);
void model_destroy(lm_model *model);

int batch_create(lm_batch *batch, int64_t tokens, int64_t sequences, lm_message *message);
void batch_destroy(lm_batch *batch);
/* Empties it. */
void batch_clear(lm_batch *batch);
/* Appends text[0 .. length - 1] with the next bytes as targets, those before `first` left out; text
 * has length + 1 bytes. */
void batch_append(lm_batch *batch, const uint8_t *text, int64_t length, int64_t first);

/* Fresh sequences. */
int model_state_create(lm_state *state, const lm_model *model, int64_t sequences,
                       lm_message *message);
void model_state_destroy(lm_state *state);

#endif
