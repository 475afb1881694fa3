/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's table: plans, sizes, and how a call is shared out over lanes. */

#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Value columns of a unit in the masked form, whose backward keeps T^2 of each. */
#define MASKED_BLOCK 16
/* In the chunked form backward, where each unit works on the keys anew: at least so many, and no
 * more units a sequence than these. */
#define ADJOINT_BLOCK 32
#define ADJOINT_UNITS 4

static int32_t device_count(fwa_message *message)
{
    (void)message;
    return 1;
}

/* The processor's name, as the kernel tells it. */
static void processor_name(char *name, size_t size)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(name, size, "CPU");
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && at) {
            snprintf(name, size, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
            break;
        }
    }
    if (file)
        fclose(file);
}

static fwa_status open_device(int32_t index, void **device, char *name, size_t name_size,
                              fwa_message *message)
{
    /* For tests: a lower level than the machine's best. */
    const char *isa = secure_getenv("FWA_CPU_ISA");
    const fwa_cpu_kernels *kernels = fwa_cpu_kernels_select(isa && *isa ? isa : NULL);
    char processor[128], list[64];
    (void)index;
    if (!kernels) {
        fwa_cpu_kernels_list(list, sizeof list);
        snprintf(message->text, sizeof message->text,
                 "FWA_CPU_ISA is \"%.32s\"; this machine and build have %s", isa, list);
        return FWA_ERROR_UNSUPPORTED;
    }
    processor_name(processor, sizeof processor);
    snprintf(name, name_size, "%s, %s", processor, kernels->isa);
    *device = (void *)(uintptr_t)kernels;
    return FWA_OK;
}

static void close_device(void *device)
{
    (void)device;
}

static int32_t score(void *device, const fwa_problem *problem, fwa_message *message)
{
    (void)device;
    if (problem->dtype == FWA_DTYPE_F64) {
        snprintf(message->text, sizeof message->text,
                 "problem->dtype is f64, which only the reference backend has");
        return 0;
    }
    return 100;
}

/* The value columns of a unit of the adjoint: of few heads, so many as make ADJOINT_UNITS of them.
 * Sums over value columns are taken unit by unit: it must not depend on the call or the threads. */
static int32_t adjoint_block(const fwa_problem *p)
{
    const int32_t wanted = ADJOINT_UNITS / p->heads_value, most = p->value_dim / ADJOINT_BLOCK;
    const int32_t blocks = wanted < most ? wanted : most;
    const int32_t columns = blocks > 1 ? (p->value_dim + blocks - 1) / blocks : p->value_dim;
    return blocks > 1 ? (columns + ADJOINT_BLOCK - 1) / ADJOINT_BLOCK * ADJOINT_BLOCK : columns;
}

static int32_t greatest_block(const fwa_cpu_plan *plan)
{
    const fwa_problem *p = &plan->problem;
    const int32_t block = plan->adjoint                   ? adjoint_block(p)
                          : plan->form == FWA_FORM_MASKED ? MASKED_BLOCK
                                                          : plan->kernels->block;
    /* The normaliser's z has one owner. */
    return p->normalizer || p->value_dim < block ? p->value_dim : block;
}

/* Panels of the state that the first cache holds besides the rows that a pass multiplies: two,
 * where it is 48 KiB and D is 128, hide each other's waits. */
static int32_t panels_together(const fwa_cpu_plan *plan)
{
    const long rows = 12 * 1024, usual = 32 * 1024, most = 2;
    const long panel = (long)sizeof(float) * plan->kernels->panel * plan->problem.key_dim;
    long cache = 0;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    cache = sysconf(_SC_LEVEL1_DCACHE_SIZE);
#endif
    cache = ((cache > 0 ? cache : usual) - rows) / panel;
    return (int32_t)(cache < 1 ? 1 : cache < most ? cache : most);
}

/* True where the forward may take products of bf16 pairs: inputs are bf16, and so are features but
 * for a factor of the row; the sums and solves within a chunk are those of one pair a token with
 * one gate a head. */
static bool fits_bf16(const fwa_cpu_plan *plan)
{
    const fwa_problem *p = &plan->problem;
    return plan->kernels->bf16 && plan->fused && p->dtype == FWA_DTYPE_BF16 && p->window == 1 &&
           p->dynamics == FWA_DYNAMICS_PER_HEAD && !p->normalizer &&
           p->phi != FWA_FEATURE_MAP_ELU1 && p->key_dim % 32 == 0 && p->value_dim % 16 == 0;
}

/* "cpu/avx512/chunked/16/regression/head/window1/f32/adjoint": where forms are in chunks, with
 * their tokens; and last the pass, "backward" where the walk goes back. */
static void name_pass(fwa_cpu_plan *plan, fwa_pass pass)
{
    static const char *const forms[] = {"", "recurrent", "masked", "chunked"};
    const fwa_problem *p = &plan->problem;
    const bool forward = pass == FWA_PASS_FORWARD;
    const int64_t chunk = forward         ? FWA_CPU_FUSED_BLOCK
                          : plan->adjoint ? FWA_CPU_ADJOINT_CHUNK
                                          : plan->chunk;
    char length[24] = "";
    if (plan->form == FWA_FORM_CHUNKED)
        snprintf(length, sizeof length, "%lld/", (long long)chunk);
    snprintf(plan->name[pass], sizeof plan->name[pass], "cpu/%s/%s/%s%s/%s/window%d/%s/%s",
             plan->kernels->isa, forms[plan->form], length,
             p->objective == FWA_OBJECTIVE_REGRESSION ? "regression" : "inner_product",
             p->dynamics == FWA_DYNAMICS_PER_HEAD ? "head" : "channel", (int)p->window,
             fwa_dtype_name(p->dtype),
             forward         ? "forward"
             : plan->adjoint ? "adjoint"
                             : "backward");
}

static fwa_status make_plan(void *device, const fwa_problem *problem, int32_t lanes, void **result,
                            fwa_message *message)
{
    fwa_cpu_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        snprintf(message->text, sizeof message->text, "no memory for a plan");
        return FWA_ERROR_MEMORY;
    }
    plan->problem = *problem;
    plan->kernels = device;
    plan->lanes = lanes;
    plan->form = problem->form == FWA_FORM_AUTO ? FWA_FORM_CHUNKED : problem->form;
    plan->chunk = plan->form == FWA_FORM_CHUNKED ? plan->kernels->chunk
                                                 : plan->form == FWA_FORM_RECURRENT;
    plan->segment = plan->chunk ? FWA_CPU_SEGMENT_TOKENS : 0;
    plan->fused = plan->form == FWA_FORM_CHUNKED;
    plan->bf16 = fits_bf16(plan);
    plan->adjoint = plan->fused && !problem->normalizer;
    plan->block = greatest_block(plan);
    plan->together = panels_together(plan);
    plan->blocks = (problem->value_dim + plan->block - 1) / plan->block;
    plan->own_gates = plan->adjoint && plan->blocks == 1;
    plan->own_keys = plan->own_gates && problem->heads_key == problem->heads_value;
    plan->own_queries = plan->own_gates && problem->heads_query == problem->heads_value;
    name_pass(plan, FWA_PASS_FORWARD);
    name_pass(plan, FWA_PASS_BACKWARD);
    *result = plan;
    return FWA_OK;
}

static const char *kernel_name(const void *plan, fwa_pass pass)
{
    return ((const fwa_cpu_plan *)plan)->name[pass];
}

/* ---- Sizes ---- */

/* a * b * c * d floats, or SIZE_MAX. */
static size_t floats(int64_t a, int64_t b, int64_t c, int64_t d)
{
    size_t bytes;
    if (__builtin_mul_overflow((size_t)a, (size_t)b, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)c, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)d, &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(float), &bytes) || bytes > PTRDIFF_MAX / 2)
        return SIZE_MAX;
    return (bytes + 63) / 64 * 64;
}

static size_t add_sizes(size_t a, size_t b)
{
    return a > PTRDIFF_MAX || b > PTRDIFF_MAX || a + b > PTRDIFF_MAX ? SIZE_MAX : a + b;
}

/* Bytes of the kept states, and of the kept rows behind them. */
static size_t states_size(const fwa_cpu_plan *plan, const fwa_extent *extent)
{
    const fwa_problem *p = &plan->problem;
    return floats(p->heads_value, fwa_cpu_segments(plan, extent), p->key_dim,
                  fwa_cpu_kept_stride(p));
}

static size_t rows_size(const fwa_cpu_plan *plan, const fwa_extent *extent)
{
    const fwa_problem *p = &plan->problem;
    if (!plan->adjoint || p->objective != FWA_OBJECTIVE_REGRESSION)
        return 0;
    return floats(p->heads_value, extent->batch * extent->tokens, fwa_cpu_kept_stride(p), 1);
}

static size_t saved_size(const void *plan, const fwa_extent *extent)
{
    return add_sizes(states_size(plan, extent), rows_size(plan, extent));
}

/* Lets the parts be in memory of saved_size bytes. */
static void place_kept(const fwa_cpu_plan *plan, const fwa_extent *extent, char *base,
                       fwa_cpu_partials *parts)
{
    parts->states = (float *)(void *)base;
    parts->rows = rows_size(plan, extent) ? (float *)(void *)(base + states_size(plan, extent))
                                          : NULL;
}

/* The parts of a backward's workspace behind the lanes' scratch; places them where base is given.
 */
static size_t place_partials(const fwa_cpu_plan *plan, const fwa_extent *extent, char *base,
                             fwa_cpu_partials *parts)
{
    const fwa_problem *p = &plan->problem;
    const int64_t units = (int64_t)p->heads_value * plan->blocks;
    const int64_t stride = (p->key_dim + 15) / 16 * 16;
    float **places[] = {&parts->x, &parts->q, &parts->gates, &parts->norm};
    size_t sizes[4], total = 0, i;
    parts->tokens = extent->batch * extent->tokens;
    parts->sequences = extent->sequences;
    parts->pairs = extent->sequences * (p->window - 1) +
                   (plan->own_keys ? extent->sequences : parts->tokens);
    parts->segments = fwa_cpu_segments(plan, extent);
    sizes[0] = floats(units, parts->pairs, stride, 1);
    sizes[1] = plan->own_queries ? 0 : floats(units, parts->tokens, stride, 1);
    sizes[2] = plan->own_gates ? 0 : floats(units, parts->tokens, 3, 1);
    sizes[3] = plan->adjoint ? 0 : floats(units, parts->sequences, stride, 1);
    for (i = 0; i < 4; i++) {
        *places[i] = base ? (float *)(void *)(base + total) : NULL;
        total = add_sizes(total, sizes[i]);
    }
    if (base)
        place_kept(plan, extent, base + total, parts);
    return add_sizes(total, saved_size(plan, extent));
}

/* Bytes of one lane's scratch. */
static size_t lane_size(const fwa_cpu_plan *plan, int64_t tokens, bool backward)
{
    fwa_cpu_chunk chunk;
    fwa_cpu_fused fused;
    fwa_cpu_bf16 bf16;
    fwa_cpu_adjoint adjoint;
    size_t other = plan->bf16 ? fwa_cpu_bf16_layout(plan, NULL, &bf16) : 0;
    size_t forward = plan->fused ? fwa_cpu_fused_layout(plan, NULL, &fused)
                                 : fwa_cpu_chunk_layout(plan, tokens, backward, NULL, &chunk);
    size_t size = !backward       ? 0
                  : plan->adjoint ? fwa_cpu_adjoint_layout(plan, NULL, &adjoint)
                                  : fwa_cpu_chunk_layout(plan, tokens, true, NULL, &chunk);
    forward = other > forward ? other : forward;
    return size > forward ? size : forward;
}

static size_t lanes_size(const fwa_cpu_plan *plan, const fwa_extent *extent, bool backward)
{
    size_t lane = lane_size(plan, extent->tokens, backward), total;
    if (lane == SIZE_MAX || __builtin_mul_overflow(lane, (size_t)plan->lanes, &total) ||
        total > PTRDIFF_MAX)
        return SIZE_MAX;
    return total;
}

static size_t workspace_size(const void *data, fwa_pass pass, const fwa_extent *extent)
{
    const fwa_cpu_plan *plan = data;
    fwa_cpu_partials parts;
    if (pass == FWA_PASS_FORWARD)
        return add_sizes(lanes_size(plan, extent, false), fwa_host_kept_size(&plan->problem));
    return add_sizes(lanes_size(plan, extent, true), place_partials(plan, extent, NULL, &parts));
}

/* ---- Calls ---- */

typedef struct {
    const fwa_cpu_plan *plan;
    const fwa_call *call;
    fwa_inputs in;
    bool backward;
    char *scratch;
    size_t lane_size;
    const fwa_cpu_partials *kept; /* where the forward keeps states; NULL: nowhere */
    fwa_cpu_partials parts;
    int64_t units;         /* of a sequence; of the adjoint, its tasks */
    int64_t states;        /* units of a sequence in a pass that forms the states */
    int64_t together;      /* units of the adjoint side by side, which are one task */
    int64_t heads, splits; /* of fused units: heads of each; units that share a head */
    int32_t columns;       /* value columns of each */
} call_work;

/* How many of a sequence's `all` heads or units, `most` at most, one task takes so that no lane is
 * idle for long. */
static int64_t side_by_side(const fwa_cpu_plan *plan, int64_t sequences, int64_t all, int64_t most)
{
    const int64_t lanes = plan->lanes;
    int64_t some = most;
    for (; some > 1; some--) {
        int64_t tasks = sequences * ((all + some - 1) / some);
        int64_t turns = (tasks + lanes - 1) / lanes * some; /* one after the other */
        if (20 * turns <= 21 * ((sequences * all + lanes - 1) / lanes))
            break;
    }
    return some;
}

/* How a fused call is cut into units: several heads, where that leaves no lane idle; all of a
 * head's value columns, so that its keys are worked on once, but fewer where lanes would be idle.
 * The numbers do not depend on it. The normaliser's z, which may be handed on in place, has one
 * owner. */
static void cut_fused(call_work *work, int64_t sequences)
{
    const fwa_cpu_plan *plan = work->plan;
    const fwa_problem *p = &plan->problem;
    const int64_t lanes = plan->lanes, total = sequences * p->heads_value;
    const int32_t panel = plan->kernels->panel, panels = (p->value_dim + panel - 1) / panel;
    int64_t split = 1, heads = fwa_cpu_fused_heads(plan);
    while (split < panels && total * split < 4 * lanes && lanes > 1 && !p->normalizer)
        split++;
    work->columns = (int32_t)((panels + split - 1) / split) * panel;
    work->splits = (p->value_dim + work->columns - 1) / work->columns;
    heads = side_by_side(plan, sequences, p->heads_value, work->splits > 1 ? 1 : heads);
    work->heads = heads;
    work->states = (p->heads_value + heads - 1) / heads * work->splits;
}

static call_work begin(const fwa_cpu_plan *plan, const fwa_call *call, bool backward)
{
    call_work work = {.plan = plan, .call = call, .backward = backward, .scratch = call->workspace};
    const fwa_problem *p = &plan->problem;
    work.in = fwa_call_inputs(call);
    work.lane_size = lane_size(plan, call->extent.tokens, backward);
    work.states = work.units = (int64_t)p->heads_value * plan->blocks;
    if (plan->fused)
        cut_fused(&work, call->extent.sequences);
    if (backward && plan->adjoint) {
        const int64_t units = work.units;
        work.together = side_by_side(plan, call->extent.sequences, units,
                                     fwa_cpu_adjoint_units(plan));
        work.units = (units + work.together - 1) / work.together;
    }
    return work;
}

/* The lane's scratch, its padding columns zero. */
static fwa_cpu_chunk lane_chunk(const call_work *work, int64_t lane)
{
    fwa_cpu_chunk c;
    int64_t pairs;
    fwa_cpu_chunk_layout(work->plan, work->call->extent.tokens, work->backward,
                         work->scratch + (size_t)lane * work->lane_size, &c);
    pairs = c.capacity + work->plan->problem.window - 1;
    memset(c.x, 0, sizeof(float) * (size_t)(pairs * c.dim_stride));
    memset(c.q, 0, sizeof(float) * (size_t)(c.capacity * c.dim_stride));
    memset(c.v, 0, sizeof(float) * (size_t)(pairs * c.stride));
    return c;
}

/* Results below 2^-126 become zero in a unit: after a few strong decays all numbers would be such,
 * and each of their products costs Intel's processors an assist of the microcode. Operands stay
 * what they are: f16's small numbers are read through them. Returns what end_flush puts back. */
static uint32_t begin_flush(void)
{
#ifdef __SSE__
    const uint32_t before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8000); /* FZ */
    return before;
#else
    return 0;
#endif
}

static void end_flush(uint32_t before)
{
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(before);
#else
    (void)before;
#endif
}

/* Forms the states of a unit, and the outputs where the call is a forward. */
static void run_states(const call_work *work, const fwa_carry *in, const fwa_sequence *s,
                       int64_t unit, int64_t lane, const fwa_cpu_partials *kept)
{
    const fwa_cpu_plan *plan = work->plan;
    const uint32_t environment = begin_flush();
    if (plan->fused) {
        const int64_t head = unit / work->splits * work->heads;
        const int64_t left = plan->problem.heads_value - head;
        const fwa_cpu_fused_unit u = {head, left < work->heads ? left : work->heads,
                                      unit % work->splits * work->columns, work->columns};
        char *scratch = work->scratch + (size_t)lane * work->lane_size;
        if (plan->bf16 && s->length >= FWA_CPU_BF16_TOKENS) {
            fwa_cpu_bf16 bf16;
            fwa_cpu_bf16_layout(plan, scratch, &bf16);
            plan->kernels->bf16(plan, work->call, in, s, &u, &bf16, kept);
        } else {
            fwa_cpu_fused fused;
            fwa_cpu_fused_layout(plan, scratch, &fused);
            plan->kernels->fused(plan, work->call, in, s, &u, &fused, kept);
        }
    } else {
        fwa_cpu_chunk chunk = lane_chunk(work, lane);
        chunk.w_trace = NULL;
        plan->kernels->forward(plan, work->call, in, s, unit, &chunk, kept);
    }
    end_flush(environment);
}

static void forward_unit(void *data, const fwa_carry *in, const fwa_sequence *s, int64_t unit,
                         int64_t lane)
{
    const call_work *work = data;
    run_states(work, in, s, unit, lane, work->kept);
}

static fwa_status forward(const void *data, const fwa_call *call, fwa_message *message)
{
    const fwa_cpu_plan *plan = data;
    call_work work = begin(plan, call, false);
    fwa_cpu_partials kept;
    (void)message;
    if (call->forward->saved) {
        place_partials(plan, &call->extent, NULL, &kept);
        place_kept(plan, &call->extent, call->forward->saved, &kept);
        work.kept = &kept;
    }
    fwa_host_forward(call, &plan->problem, work.states, forward_unit, &work,
                     work.scratch + work.lane_size * (size_t)plan->lanes);
    return FWA_OK;
}

/* The states at segment starts, where the forward did not save them. */
static void recompute_unit(void *data, int64_t index, int64_t lane)
{
    const call_work *work = data;
    fwa_sequence s = fwa_sequence_get(&work->in, index / work->states);
    run_states(work, work->in.carry, &s, index % work->states, lane, &work->parts);
}

static void backward_unit(void *data, int64_t index, int64_t lane)
{
    const call_work *work = data;
    const fwa_cpu_plan *plan = work->plan;
    fwa_sequence s = fwa_sequence_get(&work->in, index / work->units);
    const uint32_t environment = begin_flush();
    if (plan->adjoint) {
        const int64_t unit = index % work->units * work->together;
        const int64_t left = (int64_t)plan->problem.heads_value * plan->blocks - unit;
        fwa_cpu_adjoint adjoint;
        fwa_cpu_adjoint_layout(plan, work->scratch + (size_t)lane * work->lane_size, &adjoint);
        plan->kernels->adjoint(plan, work->call, &s, unit,
                               left < work->together ? left : work->together, &adjoint,
                               &work->parts);
    } else {
        fwa_cpu_chunk chunk = lane_chunk(work, lane);
        plan->kernels->backward(plan, work->call, &s, index % work->units, &chunk, &work->parts);
    }
    end_flush(environment);
}

static fwa_status backward(const void *data, const fwa_call *call, fwa_message *message)
{
    const fwa_cpu_plan *plan = data;
    call_work work = begin(plan, call, true);
    const int64_t sequences = call->extent.sequences;
    (void)message;
    place_partials(plan, &call->extent, work.scratch + work.lane_size * (size_t)plan->lanes,
                   &work.parts);
    if (call->backward->saved)
        place_kept(plan, &call->extent, (char *)(uintptr_t)call->backward->saved, /* only read */
                   &work.parts);
    else
        fwa_host_tasks(call->executor, sequences * work.states, recompute_unit, &work);
    fwa_host_tasks(call->executor, sequences * work.units, backward_unit, &work);
    fwa_cpu_finish(plan, call, &work.parts);
    return FWA_OK;
}

const fwa_backend fwa_cpu_backend = {
    .abi = FWA_BACKEND_ABI,
    .struct_size = sizeof(fwa_backend),
    .name = "cpu",
    .description = "chunked kernels for CPUs, with threads; compiled for " FWA_CPU_LEVELS,
    .host_memory = 1,
    .device_count = device_count,
    .open = open_device,
    .close = close_device,
    .allocate = fwa_host_allocate,
    .release = fwa_host_release,
    .write = fwa_host_copy,
    .read = fwa_host_copy,
    .score = score,
    .plan = make_plan,
    .plan_release = free,
    .kernel_name = kernel_name,
    .workspace_size = workspace_size,
    .saved_size = saved_size,
    .forward = forward,
    .backward = backward,
};
