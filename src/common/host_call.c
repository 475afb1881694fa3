/* SPDX-License-Identifier: Apache-2.0 */
#include "host_call.h"
#include "common.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Large buffers lie on pages of this size where the system has them: rows of different heads are
 * whole pages apart otherwise, and finding them costs a tenth of a backward. */
#define HUGE_PAGE ((size_t)2 << 20)

/* Tasks are handed out in blocks, so that neighbours in memory stay on one lane and many small ones
 * do not wait for the counter; in so many per lane that the last block is soon done. */
#define BLOCKS_PER_LANE 32

typedef struct {
    void (*task)(void *data, int64_t index, int64_t lane);
    void *data;
    int64_t count, lanes, block;
    atomic_int_least64_t next;
} task_queue;

static void run_block(const task_queue *queue, int64_t first, int64_t lane)
{
    const int64_t left = queue->count - first;
    const int64_t end = first + (left < queue->block ? left : queue->block);
    int64_t index;
    for (index = first; index < end; index++)
        queue->task(queue->data, index, lane);
}

static void drain(void *data, int64_t lane)
{
    task_queue *queue = data;
    int64_t first;
    while ((first = atomic_fetch_add_explicit(&queue->next, queue->block, memory_order_relaxed)) <
           queue->count)
        run_block(queue, first, lane);
}

/* Members of a caller's team share nothing but the arguments, so no queue either: every member
 * walks through its own share. */
static void stride(void *data, int64_t lane)
{
    const task_queue *queue = data;
    int64_t first;
    for (first = lane * queue->block; first < queue->count; first += queue->lanes * queue->block)
        run_block(queue, first, lane);
}

void fwa_host_tasks(const fwa_executor *executor, int64_t count,
                    void (*task)(void *data, int64_t index, int64_t lane), void *data)
{
    const int64_t lanes = executor->lanes, block = count / (lanes * BLOCKS_PER_LANE);
    task_queue queue = {task, data, count, lanes, block > 1 ? block : 1, 0};
    if (count > 0)
        fwa_executor_run(executor, count, executor->team ? stride : drain, &queue);
}

typedef struct {
    const fwa_call *call;
    const fwa_problem *problem;
    fwa_inputs inputs;
    int64_t units;
    fwa_host_unit unit;
    void *data;
    const fwa_carry *in; /* of the sequence below, in the ordered case */
    fwa_sequence sequence;
    fwa_carry kept; /* its input row, copied; and itself, read before its slot is written */
    fwa_sequence kept_sequence;
} forward_work;

static void run_unit(void *data, int64_t index, int64_t lane)
{
    forward_work *work = data;
    fwa_sequence sequence = fwa_sequence_get(&work->inputs, index / work->units);
    work->unit(work->data, work->inputs.carry, &sequence, index % work->units, lane);
}

static void write_carry(void *data, int64_t index, int64_t lane)
{
    forward_work *work = data;
    fwa_sequence sequence = fwa_sequence_get(&work->inputs, index);
    (void)lane;
    fwa_carry_write(work->problem, work->call->forward, work->inputs.carry, &sequence);
}

static void run_ordered_unit(void *data, int64_t index, int64_t lane)
{
    forward_work *work = data;
    work->unit(work->data, work->in, &work->sequence, index, lane);
}

static void write_ordered_carry(void *data, int64_t index, int64_t lane)
{
    forward_work *work = data;
    (void)index, (void)lane;
    fwa_carry_write(work->problem, work->call->forward, work->in, &work->sequence);
}

/* The parts of a carry with the inner extents that they have in this problem. */
static void carry_parts(const fwa_problem *p, fwa_carry *carry, fwa_tensor *part[5],
                        int64_t shape[5][4])
{
    const int64_t tail = p->window - 1;
    const int64_t extents[5][4] = {{1, p->heads_value, p->key_dim, p->value_dim},
                                   {1, p->heads_key, p->key_dim, 0},
                                   {1, tail, p->heads_key, p->key_dim},
                                   {1, tail, p->heads_value, p->value_dim},
                                   {1, p->heads_value, p->key_dim, 0}};
    part[0] = &carry->state, part[1] = &carry->prev_key, part[2] = &carry->tail_key;
    part[3] = &carry->tail_value, part[4] = &carry->norm;
    memcpy(shape, extents, sizeof extents);
}

size_t fwa_host_kept_size(const fwa_problem *p)
{
    fwa_carry carry;
    fwa_tensor *part[5];
    int64_t shape[5][4];
    size_t size = 64;
    int i;
    carry_parts(p, &carry, part, shape);
    for (i = 0; i < 5; i++)
        size += (size_t)(shape[i][1] * shape[i][2] * (shape[i][3] ? shape[i][3] : 1)) * 8;
    return (size + 63) / 64 * 64;
}

/* The pool of one row that holds the copy in `memory`. */
static fwa_carry kept_carry(const fwa_problem *p, const fwa_carry *in, void *memory)
{
    fwa_carry kept = *in;
    fwa_tensor *part[5];
    int64_t shape[5][4];
    char *at = memory;
    int i;
    carry_parts(p, &kept, part, shape);
    for (i = 0; i < 5; i++) {
        if (fwa_present(part[i]))
            *part[i] = fwa_tensor_dense(at, part[i]->dtype, part[i]->rank, 1, shape[i][1],
                                        shape[i][2], shape[i][3], 0);
        at += shape[i][1] * shape[i][2] * (shape[i][3] ? shape[i][3] : 1) * 8;
    }
    return kept;
}

static void keep(void *data, int64_t index, int64_t lane)
{
    forward_work *work = data;
    fwa_carry source = *work->inputs.carry, kept = work->kept;
    fwa_tensor *from[5], *to[5];
    int64_t shape[5][4];
    int i;
    (void)index, (void)lane;
    carry_parts(work->problem, &source, from, shape);
    carry_parts(work->problem, &kept, to, shape);
    for (i = 0; i < 5; i++)
        if (fwa_present(from[i]))
            fwa_carry_copy(from[i], work->kept_sequence.slot_in, to[i], 0, 0, shape[i][1]);
}

static void forward_ordered(forward_work *work)
{
    const fwa_call *call = work->call;
    int64_t i;
    for (i = 0; i < call->extent.sequences; i++) {
        const fwa_order_step *step = &call->order[i];
        if (step->keep >= 0) {
            work->kept_sequence = fwa_sequence_get(&work->inputs, step->keep);
            fwa_host_tasks(call->executor, 1, keep, work);
        }
        if (step->kept) {
            work->sequence = work->kept_sequence;
            work->sequence.slot_in = 0;
            work->in = &work->kept;
        } else {
            work->sequence = fwa_sequence_get(&work->inputs, step->sequence);
            work->in = work->inputs.carry;
        }
        fwa_host_tasks(call->executor, work->units, run_ordered_unit, work);
        fwa_host_tasks(call->executor, 1, write_ordered_carry, work);
    }
}

void fwa_host_forward(const fwa_call *call, const fwa_problem *problem, int64_t units,
                      fwa_host_unit unit, void *data, void *kept)
{
    forward_work work = {.call = call,
                         .problem = problem,
                         .inputs = fwa_call_inputs(call),
                         .units = units,
                         .unit = unit,
                         .data = data};
    if (call->order) {
        work.kept = kept_carry(problem, work.inputs.carry, kept);
        forward_ordered(&work);
    } else {
        fwa_host_tasks(call->executor, call->extent.sequences * units, run_unit, &work);
        fwa_host_tasks(call->executor, call->extent.sequences, write_carry, &work);
    }
}

fwa_status fwa_host_allocate(void *device, size_t size, void **memory, fwa_message *message)
{
    const bool large = size >= 2 * HUGE_PAGE;
    (void)device;
    if (posix_memalign(memory, large ? HUGE_PAGE : 64, size ? size : 1) == 0) {
#ifdef MADV_HUGEPAGE
        if (large)
            (void)madvise(*memory, size, MADV_HUGEPAGE); /* a wish */
#endif
        return FWA_OK;
    }
    *memory = NULL;
    snprintf(message->text, sizeof message->text, "no memory for %zu bytes", size);
    return FWA_ERROR_MEMORY;
}

void fwa_host_release(void *device, void *memory)
{
    (void)device;
    free(memory);
}

fwa_status fwa_host_copy(void *device, void *to, const void *from, size_t size,
                         fwa_message *message)
{
    (void)device, (void)message;
    memcpy(to, from, size);
    return FWA_OK;
}
