/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_ARGS_H
#define FWA_GPU_ARGS_H

/* What every kernel gets: one plain struct by value, the same for host code in C and device code.
 * Numbers of enums are those of fwa.h. */

#include <stdint.h>

/* A pointer to the device's memory; a vendor's dialect may know a better one of the same size. */
#ifndef FWA_POINTER
#define FWA_POINTER(type) type *
#endif

/* A strided view of device memory; strides count elements. Absent: rank 0. */
typedef struct fwa_gpu_view {
    FWA_POINTER(void) data;
    int64_t stride[5];
    int32_t dtype;
    int32_t rank;
} fwa_gpu_view;

typedef struct fwa_gpu_carry {
    fwa_gpu_view seen, state, prev_key, tail_key, tail_value, norm;
} fwa_gpu_carry;

typedef struct fwa_gpu_args {
    /* The problem. */
    int32_t objective, dynamics, window, alignment, read, step, ridge, prediction;
    int32_t qk_norm, phi, normalizer;
    int32_t heads_query, heads_key, heads_value, key_dim, value_dim;
    float eps, decay_floor, scale, norm_eps, eps_attn;
    /* The call: sizes, rows of the pools, value columns of a unit and units of a head. */
    int64_t batch, tokens, sequences, pool_in, pool_out;
    int32_t columns, blocks;
    int32_t chunk_columns, chunk_blocks; /* the same of the chunked kernels */
    int64_t chunk_slots;                 /* of the call's chunks with records */
    int64_t short_tokens; /* sequences of up to so many are run by the recurrent kernels */
    fwa_gpu_view q, k, v, o, beta, lambda, log_gate, cu_seqlens, slot_in, slot_out, commit;
    fwa_gpu_carry carry_in, carry_out;
    /* The backward's. */
    fwa_gpu_view o_grad, q_grad, k_grad, v_grad, beta_grad, lambda_grad, log_gate_grad;
    fwa_gpu_carry carry_out_grad, carry_in_grad;
    /* Parts of the workspace, whose contents stand in op/workspace.h. */
    FWA_POINTER(float) statistic;
    FWA_POINTER(float) top;
    FWA_POINTER(float) norms;
    FWA_POINTER(float) carries;
    fwa_gpu_view kept;
    FWA_POINTER(int32_t) order;
    FWA_POINTER(float) states;
    FWA_POINTER(float) segment;
    FWA_POINTER(float) key_partial;
    FWA_POINTER(float) query_partial;
    FWA_POINTER(float) gate_partial;
    FWA_POINTER(float) energy_grad;
    FWA_POINTER(unsigned char) records;
    FWA_POINTER(uint16_t) key_rows;
    FWA_POINTER(uint16_t) query_rows;
    FWA_POINTER(uint16_t) chunk_states;
    FWA_POINTER(uint16_t) chunk_state_grads;
    FWA_POINTER(uint16_t) residuals;
    FWA_POINTER(uint16_t) residual_grads;
    int32_t crossing; /* slots may cross: rows of `order` are run after the others */
    int32_t segments; /* blocks that have a segment of their own */
} fwa_gpu_args;

#endif
