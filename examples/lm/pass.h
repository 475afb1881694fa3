/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_PASS_H
#define LM_PASS_H

/* Forward, loss and backward of the model. */

#include "model.h"

/* What one layer keeps for the backward; tokens are those of the batch, inner = heads * head_dim.
 */
typedef struct layer_activations {
    float *x;                        /* [tokens, dim]: the residual stream that enters */
    float *h, *h_inverse;            /* [tokens, dim], [tokens]: its norm */
    float *qkv, *mixed, *features;   /* [tokens, 3 inner] twice, [3, tokens, heads, head_dim] */
    float *gates;                    /* [tokens, gate_width] */
    float *beta, *lambda, *log_gate; /* [tokens, beta_width], [tokens, heads] twice */
    float *o, *o_inverse, *o_normed; /* [tokens, heads, head_dim], [tokens, heads], as o */
    float *middle;                   /* [tokens, dim]: the residual stream after the mixer */
    float *m, *m_inverse;            /* its norm */
    float *up, *activated;           /* [tokens, 2 hidden], [tokens, hidden] */
    char *saved;                     /* libfwa's, of saved_size bytes */
} layer_activations;

/* Scratch of the backward, shared by the layers: the gradients of the arrays of the same names. */
typedef struct gradient_buffers {
    float *x, *h, *qkv, *mixed, *features, *gates, *beta, *lambda, *log_gate, *o, *o_normed, *up,
        *activated;
} gradient_buffers;

typedef struct lm_activations {
    int32_t training; /* 1: everything for a backward is there */
    layer_activations *layers;
    gradient_buffers gradient;
    float *x, *h, *h_inverse; /* the last residual stream and its norm */
    float *logits;            /* [tokens, VOCABULARY] */
    double *loss;             /* [tokens] */
    char *workspace;
    size_t workspace_size, saved_size;
    char *memory;
} lm_activations;

/* Buffers for batches of up to so many tokens and sequences. */
int activations_create(lm_activations *activations, const lm_model *model, int64_t tokens,
                       int64_t sequences, int32_t training, lm_message *message);
void activations_destroy(lm_activations *activations);

/* Fills activations->logits. state: NULL, or what the sequences go on from; it is moved forward. */
int model_forward(const lm_model *model, lm_activations *activations, const lm_batch *batch,
                  lm_state *state, lm_message *message);

/* The sum of the losses in nats, and over how many tokens. */
double model_loss(lm_activations *activations, const lm_batch *batch, int64_t *count);

/* After a forward without a state: model->gradients = the gradient of the mean loss. */
int model_backward(lm_model *model, lm_activations *activations, const lm_batch *batch,
                   lm_message *message);

/* The gate maps of recipe.h (gates.c). The forward adds the bias to gates in place. */
void gates_forward(const lm_model *model, const layer_offsets *at, int64_t tokens,
                   layer_activations *layer);
void gates_backward(lm_model *model, const layer_offsets *at, int64_t tokens,
                    const layer_activations *layer, gradient_buffers *gradient);

/* The tensors of one layer's call of libfwa (activations.c). source: features, beta, lambda,
 * log_gate and o, of a layer or of its gradients. */
typedef struct mixer_tensors {
    fwa_tensor q, k, v, beta, lambda, log_gate, o;
} mixer_tensors;
mixer_tensors mixer_tensors_of(const lm_model *model, int64_t tokens, float *features, float *beta,
                               float *lambda, float *log_gate, float *o);

#endif
