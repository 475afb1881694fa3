/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan is made of: kernels, shared memory, the workspace. */

#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks of the backward that run at once, each with room for the states of a segment. */
#define SEGMENT_BLOCKS_PER_PROCESSOR 2

int32_t fwa_gpu_score(void *device, const fwa_problem *p, fwa_message *message)
{
    (void)device;
    if (p->dtype == FWA_DTYPE_F64) {
        snprintf(message->text, sizeof message->text,
                 "problem->dtype is f64, which only the reference backend has");
        return 0;
    }
    if (p->form == FWA_FORM_MASKED || p->form == FWA_FORM_CHUNKED) {
        snprintf(message->text, sizeof message->text,
                 "problem->form is %d; GPU backends have the recurrent form, and by the automatic "
                 "choice a chunked forward",
                 (int)p->form);
        return 0;
    }
    return 100;
}

/* ---- Kernels ---- */

static bool always(const fwa_problem *p)
{
    return p != NULL;
}

static bool has_norm(const fwa_problem *p)
{
    return p->normalizer != 0;
}

static bool is_chunked(const fwa_problem *p)
{
    return p->form != FWA_FORM_RECURRENT && p->window == 1;
}

/* One gate per head, and nothing that chunks' records lack. */
static bool is_framed(const fwa_problem *p)
{
    return is_chunked(p) && p->dynamics == FWA_DYNAMICS_PER_HEAD && !p->normalizer;
}

static bool is_chunked_otherwise(const fwa_problem *p)
{
    return is_chunked(p) && !is_framed(p);
}

static bool is_not_framed(const fwa_problem *p)
{
    return !is_framed(p);
}

typedef enum {
    NO_SHARED,
    CHUNK_SHARED,
    PREPARE_SHARED,
    PASS_SHARED,
    GRADIENT_SHARED,
    FORWARD_SHARED,
    BACKWARD_SHARED,
    STATISTIC_SHARED
} sharing;

static const struct {
    const char *name;
    bool by_dim;     /* "_64", "_128" or "_256" follows */
    int32_t threads; /* 0: FWA_GPU_CHUNK_WAVES waves; -1: FWA_GPU_FRAME_WAVES */
    sharing shared;
    bool (*needed)(const fwa_problem *p);
} kernels[FWA_GPU_KERNELS] = {
    [FWA_GPU_STATISTIC] = {"statistic", false, 64, STATISTIC_SHARED, fwa_gpu_has_eigen},
    [FWA_GPU_CARRY_GATHER] = {"carry_gather", false, 128, NO_SHARED, always},
    [FWA_GPU_CARRY_SCATTER] = {"carry_scatter", false, 128, NO_SHARED, always},
    [FWA_GPU_ORDER_SUCCESSORS] = {"order_successors", false, 128, NO_SHARED, always},
    [FWA_GPU_ORDER_LIST] = {"order_list", false, 128, NO_SHARED, always},
    [FWA_GPU_CHUNK_FORWARD] = {"chunk_forward", true, 0, CHUNK_SHARED, is_chunked_otherwise},
    [FWA_GPU_CHUNK_PREPARE] = {"chunk_prepare", true, -1, PREPARE_SHARED, is_framed},
    [FWA_GPU_CHUNK_FORWARD_PASS] = {"chunk_forward_pass", true, -1, PASS_SHARED, is_framed},
    [FWA_GPU_CHUNK_BACKWARD_PASS] = {"chunk_backward_pass", true, -1, PASS_SHARED, is_framed},
    [FWA_GPU_CHUNK_GRADIENTS] = {"chunk_gradients", true, -1, GRADIENT_SHARED, is_framed},
    [FWA_GPU_RECURRENT_FORWARD] = {"recurrent_forward", true, 128, FORWARD_SHARED, always},
    [FWA_GPU_RECURRENT_ORDERED] = {"recurrent_ordered", true, 128, FORWARD_SHARED, always},
    [FWA_GPU_RECURRENT_BACKWARD] = {"recurrent_backward", true, 128, BACKWARD_SHARED,
                                    is_not_framed},
    [FWA_GPU_KEY_GRADIENTS] = {"key_gradients", false, 128, NO_SHARED, always},
    [FWA_GPU_QUERY_GRADIENTS] = {"query_gradients", false, 128, NO_SHARED, always},
    [FWA_GPU_GATE_GRADIENTS] = {"gate_gradients", false, 128, NO_SHARED, is_not_framed},
    [FWA_GPU_NORM_GRADIENTS] = {"norm_gradients", false, 128, NO_SHARED, has_norm},
};

/* bf16 numbers that add up to one of the I/O type (tile/tile.h). elu1 makes float32 numbers of bf16
 * ones: rounding them as well as the state would be too much. */
static int32_t parts_of(const fwa_problem *p)
{
    if (p->dtype == FWA_DTYPE_BF16)
        return p->phi == FWA_FEATURE_MAP_ELU1 ? 2 : 1;
    return p->dtype == FWA_DTYPE_F16 ? 2 : 3;
}

static const char *type_name(const fwa_problem *p)
{
    return p->dtype == FWA_DTYPE_BF16 ? "bf16" : p->dtype == FWA_DTYPE_F16 ? "f16" : "f32";
}

static int32_t shared_bytes(const fwa_gpu_plan *plan, sharing shared)
{
    const fwa_problem *p = &plan->problem;
    const int32_t wave = plan->device->properties.wave;
    int32_t floats = 0;
    if (shared == FORWARD_SHARED || shared == BACKWARD_SHARED)
        floats = fwa_gpu_recurrent_floats(p->window, plan->padded, FWA_GPU_THREADS / wave,
                                          shared == BACKWARD_SHARED);
    if (shared == CHUNK_SHARED) {
        const int32_t channel = p->dynamics == FWA_DYNAMICS_PER_CHANNEL, parts = plan->parts;
        const int32_t slots = FWA_GPU_CHUNK_SLOTS(parts, plan->padded, channel, FWA_SHARED_LIMIT);
        return FWA_GPU_CHUNK_BYTES(parts, plan->padded, channel, slots);
    }
    if (shared == PREPARE_SHARED)
        return FWA_GPU_PREPARE_BYTES(plan->parts, plan->padded, plan->tiles);
    if (shared == PASS_SHARED)
        return FWA_GPU_PASS_BYTES(plan->parts, plan->padded, plan->tiles,
                                  FWA_GPU_FRAME_SLOTS(plan->parts, plan->padded, FWA_SHARED_LIMIT));
    if (shared == GRADIENT_SHARED)
        return FWA_GPU_GRADIENT_BYTES(plan->parts, plan->tiles);
    if (shared == STATISTIC_SHARED)
        floats = fwa_gpu_statistic_floats(p->window, p->key_dim, wave);
    return floats * (int32_t)sizeof(float);
}

static fwa_status load_kernel(fwa_gpu_plan *plan, int id, fwa_message *message)
{
    char name[64], kind[32] = "", dim[16] = "";
    fwa_gpu_kernel *kernel = &plan->kernels[id];
    if (!kernels[id].needed(&plan->problem))
        return FWA_OK;
    if (kernels[id].by_dim)
        snprintf(dim, sizeof dim, "_%d", (int)plan->padded);
    if (id == FWA_GPU_RECURRENT_FORWARD)
        snprintf(kind, sizeof kind, "_%s", plan->problem.window == 1 ? "single" : "window");
    if (kernels[id].shared == CHUNK_SHARED)
        snprintf(kind, sizeof kind, "_%s_%d",
                 plan->problem.dynamics == FWA_DYNAMICS_PER_HEAD ? "head" : "channel",
                 (int)plan->parts);
    if (kernels[id].threads < 0)
        snprintf(kind, sizeof kind, "_%d", (int)plan->parts);
    snprintf(name, sizeof name, "%s%s%s", kernels[id].name, kind, dim);
    kernel->threads = kernels[id].threads > 0
                          ? kernels[id].threads
                          : (kernels[id].threads ? FWA_GPU_FRAME_WAVES : FWA_GPU_CHUNK_WAVES) *
                                plan->device->properties.wave;
    kernel->shared = shared_bytes(plan, kernels[id].shared);
    if (kernel->shared > plan->device->properties.shared) {
        snprintf(message->text, sizeof message->text,
                 "kernel %s needs %d bytes of shared memory, the device has %d", name,
                 (int)kernel->shared, (int)plan->device->properties.shared);
        return FWA_ERROR_UNSUPPORTED;
    }
    return fwa_gpu_driver_table.kernel(plan->device->driver, name, kernel->shared, &kernel->kernel,
                                       message);
}

fwa_status fwa_gpu_make_plan(void *device, const fwa_problem *p, int32_t lanes, void **result,
                             fwa_message *message)
{
    fwa_gpu_plan *plan = calloc(1, sizeof *plan);
    char form[2][16] = {"recurrent", "recurrent"};
    fwa_status status = FWA_OK;
    int id, pass;
    (void)lanes;
    if (!plan) {
        snprintf(message->text, sizeof message->text, "no memory for a plan");
        return FWA_ERROR_MEMORY;
    }
    plan->device = device;
    plan->problem = *p;
    plan->chunked = is_chunked(p);
    plan->framed = is_framed(p);
    plan->padded = p->key_dim <= 64 ? 64 : p->key_dim <= 128 ? 128 : 256;
    plan->parts = parts_of(p);
    plan->tiles = FWA_GPU_FRAME_TILES(plan->parts, plan->padded, FWA_SHARED_LIMIT);
    for (id = 0; id < FWA_GPU_KERNELS && status == FWA_OK; id++)
        status = load_kernel(plan, id, message);
    if (status != FWA_OK) {
        free(plan);
        return status;
    }
    if (plan->framed)
        snprintf(form[0], sizeof form[0], "chunked/%d", 16 * (int)plan->tiles);
    if (plan->framed)
        memcpy(form[1], form[0], sizeof form[1]);
    else if (plan->chunked)
        snprintf(form[0], sizeof form[0], "chunked/16");
    for (pass = 0; pass < 2; pass++)
        snprintf(plan->name[pass], sizeof plan->name[pass], "%s/%s/%s/%s/window%d/%s/%s",
                 FWA_GPU_NAME, form[pass],
                 p->objective == FWA_OBJECTIVE_REGRESSION ? "regression" : "inner_product",
                 p->dynamics == FWA_DYNAMICS_PER_HEAD ? "head" : "channel", (int)p->window,
                 type_name(p), pass == FWA_PASS_FORWARD ? "forward" : "backward");
    *result = plan;
    return FWA_OK;
}

void fwa_gpu_release_plan(void *plan)
{
    free(plan);
}

const char *fwa_gpu_kernel_name(const void *plan, fwa_pass pass)
{
    return ((const fwa_gpu_plan *)plan)->name[pass];
}

/* ---- The workspace ---- */

typedef struct {
    char *base;  /* NULL: only count */
    size_t size; /* SIZE_MAX once it has overflowed */
} arena;

/* Room for a * b * c * d words of 4 bytes, aligned to 256. */
static void *take(arena *room, int64_t a, int64_t b, int64_t c, int64_t d)
{
    size_t bytes = sizeof(float), at = room->size;
    if (at == SIZE_MAX || __builtin_mul_overflow(bytes, (size_t)a, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)b, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)c, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)d, &bytes) ||
        __builtin_add_overflow(bytes, at + 255, &bytes) || bytes > PTRDIFF_MAX) {
        room->size = SIZE_MAX;
        return NULL;
    }
    room->size = bytes / 256 * 256;
    return room->base ? room->base + at : NULL;
}

static void place_forward(const fwa_gpu_plan *plan, const fwa_extent *e, arena *room,
                          fwa_gpu_args *args)
{
    const fwa_problem *p = &plan->problem;
    const fwa_gpu_args shape = {.alignment = p->alignment,
                                .window = p->window,
                                .heads_key = p->heads_key,
                                .heads_value = p->heads_value,
                                .key_dim = p->key_dim,
                                .value_dim = p->value_dim};
    args->norms = take(room, p->normalizer ? e->sequences : 0, p->heads_value, p->key_dim, 1);
    args->carries = take(room, e->sequences, fwa_gpu_carry_floats(&shape), 1, 1);
    args->order = take(room, e->sequences * 5 + 1, 1, 1, 1);
    args->kept = (fwa_gpu_view){
        .data = take(room, p->heads_value, p->key_dim, p->value_dim, 1),
        .stride = {0, (int64_t)p->key_dim * p->value_dim, p->value_dim, 1, 0},
        .dtype = FWA_DTYPE_F32,
        .rank = 4,
    };
}

/* Chunks' records, and what the backward keeps of each. */
static void place_frames(const fwa_gpu_plan *plan, const fwa_extent *e, fwa_pass pass, arena *room,
                         fwa_gpu_args *args)
{
    const fwa_problem *p = &plan->problem;
    const int64_t chunk = 16 * plan->tiles, tokens = e->batch * e->tokens;
    const int64_t halves = plan->parts, solving = FWA_GPU_SOLVING_PARTS(plan->parts);
    const int64_t slots = tokens / chunk + 3 * e->sequences, units = slots * p->heads_value;
    const int64_t columns = (p->value_dim + FWA_GPU_FRAME_COLUMNS - 1) / FWA_GPU_FRAME_COLUMNS *
                            FWA_GPU_FRAME_COLUMNS;
    args->chunk_slots = slots;
    args->records = take(room, units, FWA_GPU_RECORD_BYTES(plan->parts, plan->tiles) / 4, 1, 1);
    args->key_rows = take(room, slots * p->heads_key, halves, chunk, plan->padded / 2);
    args->query_rows = take(room, slots * p->heads_query, halves, chunk, plan->padded / 2);
    if (pass == FWA_PASS_FORWARD)
        return;
    args->chunk_states = take(room, units, solving, columns, plan->padded / 2);
    args->chunk_state_grads = take(room, units, halves, columns, plan->padded / 2);
    args->residuals = take(room, units, solving, columns, chunk / 2);
    args->residual_grads = take(room, units, solving, columns, chunk / 2);
    args->key_partial = take(room, p->heads_value, tokens, p->key_dim, 1);
    args->query_partial = take(room, p->heads_value, tokens, p->key_dim, 1);
    args->energy_grad = take(room, p->heads_value, tokens, 1, 1);
}

static int64_t segment_blocks(const fwa_gpu_plan *plan, const fwa_extent *e)
{
    const int64_t most = (int64_t)plan->device->properties.processors *
                         SEGMENT_BLOCKS_PER_PROCESSOR;
    const int64_t per_sequence = (int64_t)plan->problem.heads_value *
                                 fwa_gpu_blocks(&plan->problem);
    return e->sequences > most / per_sequence ? most : e->sequences * per_sequence;
}

static void place_backward(const fwa_gpu_plan *plan, const fwa_extent *e, arena *room,
                           fwa_gpu_args *args)
{
    const fwa_problem *p = &plan->problem;
    const int64_t units = (int64_t)p->heads_value * fwa_gpu_blocks(p);
    const int64_t tokens = e->batch * e->tokens;
    const int64_t state = (int64_t)plan->padded * (FWA_GPU_COLUMNS + 1);
    args->segments = (int32_t)segment_blocks(plan, e);
    args->top = take(room, fwa_gpu_has_eigen(p) ? tokens : 0, p->heads_key, p->window, 1);
    args->norms = take(room, p->normalizer ? e->sequences : 0, units, p->key_dim, 1);
    args->states = take(room, units, tokens / FWA_GPU_SEGMENT + e->sequences, state, 1);
    args->segment = take(room, args->segments, FWA_GPU_SEGMENT, state, 1);
    args->key_partial = take(room, units, tokens + e->sequences * (p->window - 1), p->key_dim, 1);
    args->query_partial = take(room, units, tokens, p->key_dim, 1);
    args->gate_partial = take(room, units, tokens, 3, 1);
}

size_t fwa_gpu_place(const fwa_gpu_plan *plan, fwa_pass pass, const fwa_extent *e, char *base,
                     fwa_gpu_args *args)
{
    arena room = {base, 0};
    /* Callers align to less than the parts are. */
    if (base)
        room.base += (256 - (uintptr_t)base % 256) % 256;
    args->statistic = take(&room, fwa_gpu_has_eigen(&plan->problem) ? e->batch * e->tokens : 0,
                           plan->problem.heads_key, 1, 1);
    if (plan->framed)
        place_frames(plan, e, pass, &room, args);
    if (pass == FWA_PASS_FORWARD)
        place_forward(plan, e, &room, args);
    else if (!plan->framed)
        place_backward(plan, e, &room, args);
    return room.size > PTRDIFF_MAX - 256 ? SIZE_MAX : room.size + 256;
}

size_t fwa_gpu_workspace_size(const void *plan, fwa_pass pass, const fwa_extent *extent)
{
    fwa_gpu_args args = {0};
    return fwa_gpu_place(plan, pass, extent, NULL, &args);
}

size_t fwa_gpu_saved_size(const void *plan, const fwa_extent *extent)
{
    (void)plan, (void)extent;
    return 0;
}
