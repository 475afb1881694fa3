/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"
#include "../files/element.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY      64   /* bytes before and after a buffer */
#define CANARY_BYTE 0x5a /* no NaN, no small integer in any type */
#define POISON_BYTE 0xff /* NaN in every floating type, -1 in the integers */

/* ---- Memory ---- */

/* Bytes that the device sees, as they were handed over. */
typedef struct region {
    char *image;  /* host copy of all bytes, canaries included */
    char *device; /* the same on the device */
    size_t size;  /* all bytes */
    size_t begin; /* the caller's part starts here */
    size_t used;  /* and is so long */
    char *pages;  /* where the memory is mapped with a guard page, else NULL */
    size_t pages_size;
} region;

/* `shift` moves the start off the usual alignment. */
static region region_new(size_t used, size_t shift, int guarded)
{
    region r;
    memset(&r, 0, sizeof r);
    r.begin = guarded ? 0 : CANARY + shift;
    r.used = used;
    r.size = guarded ? used : r.begin + used + CANARY;
    r.image = conformance_allocate(r.size, 1);
    memset(r.image, CANARY_BYTE, r.size);
    memset(r.image + r.begin, POISON_BYTE, used);
    return r;
}

static fwa_status map_pages(region *r)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inside = (r->size + page - 1) / page * page;
    r->pages_size = inside + page;
    r->pages = mmap(NULL, r->pages_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
    if (r->pages == MAP_FAILED) {
        r->pages = NULL;
        return FWA_ERROR_MEMORY;
    }
    r->device = r->pages + inside - r->size;
    return mprotect(r->pages + inside, page, PROT_NONE) == 0 ? FWA_OK : FWA_ERROR_MEMORY;
}

static fwa_status region_upload(region *r, fwa_context *context, int guarded)
{
    void *memory = NULL;
    if (guarded) {
        const fwa_status mapped = map_pages(r);
        if (mapped == FWA_OK && r->size > 0)
            memcpy(r->device, r->image, r->size);
        return mapped;
    }
    const fwa_status status = fwa_memory_allocate(context, r->size, &memory);
    if (status != FWA_OK)
        return status;
    r->device = memory;
    return fwa_memory_write(context, r->device, r->image, r->size);
}

/* What the device holds now, in memory that the caller frees. */
static char *region_download(const region *r, fwa_context *context)
{
    char *now = conformance_allocate(r->size, 1);
    if (r->pages)
        memcpy(now, r->device, r->size);
    else if (fwa_memory_read(context, now, r->device, r->size) != FWA_OK)
        memset(now, 0, r->size);
    return now;
}

static void region_free(region *r, fwa_context *context)
{
    if (r->pages)
        munmap(r->pages, r->pages_size);
    else
        fwa_memory_free(context, r->device);
    free(r->image);
}

/* ---- Tensors ---- */

typedef struct binding {
    const problem_tensor *row;
    int32_t index;     /* of the row */
    fwa_tensor tensor; /* data unset until uploaded */
    region memory;
    int32_t shares; /* index of the binding whose memory this one uses, or -1 */
    int32_t output;
} binding;

typedef struct run {
    const conformance_data *data;
    const conformance_options *options;
    conformance_outcome *outcome;
    fwa_problem problem; /* of the plan */
    fwa_plan *plan;
    binding bindings[PROBLEM_TENSORS];
    int32_t count;
    region workspace[2], saved;
    fwa_tensor slots[3]; /* slot_in, slot_out, commit */
    region slot_memory[3];
} run;

static int fail(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(run *r, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(r->outcome->message, sizeof r->outcome->message, format, list);
    va_end(list);
    return -1;
}

static int refuse(run *r, fwa_status status, const char *what)
{
    r->outcome->status = status;
    return fail(r, "%s: %s: %s", what, fwa_status_name(status), fwa_error_message());
}

static int is_gate(const problem_tensor *row)
{
    return strcmp(row->name, "beta") == 0 || strcmp(row->name, "lambda") == 0 ||
           strcmp(row->name, "log_gate") == 0;
}

/* Sets the strides; returns the elements that the tensor takes. */
static int64_t lay_out(const problem_tensor *row, int32_t layout, fwa_tensor *t)
{
    int32_t order[FWA_MAX_RANK] = {0, 1, 2, 3, 4};
    int64_t step = 1, taken = 1;
    if (layout == CONFORMANCE_HEADS_OUTER && t->rank > 3 && row->axes[1] == 'T')
        order[1] = 2, order[2] = 1;
    for (int32_t i = t->rank - 1; i >= 0; i--) {
        const int32_t axis = order[i];
        const int repeated = layout == CONFORMANCE_BROADCAST && is_gate(row) &&
                             strchr("BTc", row->axes[axis]) != NULL;
        const int64_t extent = repeated ? 1 : t->shape[axis];
        if (layout == CONFORMANCE_PADDED && t->rank == 1)
            step = 2;
        t->stride[axis] = repeated ? 0 : step;
        taken = extent > 0 ? taken + (extent - 1) * step : taken;
        step = extent > 1 ? step * extent : step;
        if (layout == CONFORMANCE_PADDED)
            step += 3;
    }
    for (int32_t axis = 0; axis < t->rank; axis++)
        if (t->shape[axis] == 0)
            return 0;
    return taken;
}

static int64_t elements_of(const fwa_tensor *t)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < t->rank; axis++)
        count *= t->shape[axis];
    return count;
}

/* Offset of the first element of a row, the rows of the last axis counted in order. */
static int64_t row_offset(const fwa_tensor *t, int64_t row)
{
    int64_t offset = 0;
    for (int32_t axis = t->rank - 2; axis >= 0; axis--) {
        offset += row % t->shape[axis] * t->stride[axis];
        row /= t->shape[axis];
    }
    return offset;
}

static void put(const fwa_tensor *t, char *at, int64_t i, double value)
{
    if (t->dtype == FWA_DTYPE_I32)
        ((int32_t *)(void *)at)[i] = (int32_t)value;
    else if (t->dtype == FWA_DTYPE_I64)
        ((int64_t *)(void *)at)[i] = (int64_t)value;
    else
        element_set(t->dtype, at, i, value);
}

static double take(const fwa_tensor *t, const char *at, int64_t i)
{
    if (t->dtype == FWA_DTYPE_I32)
        return (double)((const int32_t *)(const void *)at)[i];
    if (t->dtype == FWA_DTYPE_I64)
        return (double)((const int64_t *)(const void *)at)[i];
    return element_get(t->dtype, at, i);
}

static int is_bound(const run *r, const problem_tensor *row, int32_t index)
{
    const int given = r->data->values[index] != NULL;
    switch (row->role) {
    case PROBLEM_INPUT: return given;
    case PROBLEM_UPSTREAM: return given && r->options->backward;
    case PROBLEM_OUTPUT: return problem_tensor_applies(row, &r->problem);
    case PROBLEM_MASK: return r->options->mask;
    default:
        return r->options->backward && problem_tensor_applies(row, &r->problem) &&
               conformance_get(r->data, row->name + 1) != NULL;
    }
}

/* In place: "state_out" uses the memory of "state_in". */
static int32_t find_shared(const run *r, const problem_tensor *row)
{
    const size_t stem = strlen(row->name) - 3;
    if (!r->options->in_place || row->role != PROBLEM_OUTPUT || row->axes[0] != 'N')
        return -1;
    for (int32_t i = 0; i < r->count; i++) {
        const char *name = r->bindings[i].row->name;
        if (r->bindings[i].row->role == PROBLEM_INPUT && strncmp(name, row->name, stem) == 0 &&
            strcmp(name + stem, "in") == 0)
            return i;
    }
    return -1;
}

/* Backwards, so that of values that share an element the first one stays. */
static void fill(binding *b, const double *values)
{
    const fwa_tensor *t = &b->tensor;
    const int64_t n = elements_of(t), width = n ? t->shape[t->rank - 1] : 1;
    for (int64_t row = n / width - 1; row >= 0; row--) {
        const int64_t offset = row_offset(t, row);
        for (int64_t i = width - 1; i >= 0; i--)
            put(t, b->memory.image + b->memory.begin, offset + i * t->stride[t->rank - 1],
                values[row * width + i]);
    }
}

static void bind(run *r, const problem_tensor *row, int32_t index)
{
    binding *b = &r->bindings[r->count];
    memset(b, 0, sizeof *b);
    b->row = row;
    b->index = index;
    b->output = row->role != PROBLEM_INPUT && row->role != PROBLEM_UPSTREAM;
    b->shares = find_shared(r, row);
    b->tensor.dtype = problem_tensor_dtype(row, &r->problem);
    if (b->tensor.dtype == FWA_DTYPE_NONE)
        b->tensor.dtype = r->options->index64 ? FWA_DTYPE_I64 : FWA_DTYPE_I32;
    b->tensor.rank = conformance_shape(r->data, row, b->tensor.shape);
    if (b->shares >= 0) {
        b->tensor = r->bindings[b->shares].tensor;
    } else {
        const size_t size = fwa_dtype_size(b->tensor.dtype);
        const int64_t taken = lay_out(row, r->options->layout, &b->tensor);
        b->memory = region_new((size_t)taken * size,
                               r->options->layout == CONFORMANCE_PADDED ? size : 0,
                               r->options->layout == CONFORMANCE_GUARDED);
        if (!b->output)
            fill(b, r->data->values[index]);
    }
    r->count++;
}

static const int32_t *slot_values(const conformance_data *data, int which)
{
    return which == 0 ? data->slot_in : which == 1 ? data->slot_out : data->commit;
}

static fwa_status upload(run *r)
{
    const int guarded = r->options->layout == CONFORMANCE_GUARDED;
    fwa_status status = FWA_OK;
    for (int32_t i = 0; i < r->count && status == FWA_OK; i++) {
        binding *b = &r->bindings[i];
        if (b->shares < 0)
            status = region_upload(&b->memory, r->options->context, guarded);
        const region *memory = b->shares < 0 ? &b->memory : &r->bindings[b->shares].memory;
        b->tensor.data = memory->device ? memory->device + memory->begin : NULL;
    }
    for (int which = 0; which < 3 && status == FWA_OK; which++) {
        const int64_t n = r->data->extent.sequences;
        region *memory = &r->slot_memory[which];
        if (slot_values(r->data, which) == NULL)
            continue;
        *memory = region_new((size_t)n * sizeof(int32_t), 0, guarded);
        if (n > 0)
            memcpy(memory->image + memory->begin, slot_values(r->data, which),
                   (size_t)n * sizeof(int32_t));
        status = region_upload(memory, r->options->context, guarded);
        if (status == FWA_OK)
            r->slots[which] = fwa_tensor_contiguous(memory->device + memory->begin, FWA_DTYPE_I32,
                                                    1, n);
    }
    return status;
}

/* ---- Calling ---- */

static fwa_status make_scratch(run *r, fwa_pass pass)
{
    const problem_extent *e = &r->data->extent;
    const int guarded = r->options->layout == CONFORMANCE_GUARDED;
    size_t size;
    fwa_status status = fwa_plan_workspace_size(r->plan, pass, e->batch, e->tokens, e->sequences,
                                                &size);
    if (status != FWA_OK)
        return status;
    /* Aligned to FWA_BUFFER_ALIGNMENT and to no more. */
    size = (size + FWA_BUFFER_ALIGNMENT - 1) / FWA_BUFFER_ALIGNMENT * FWA_BUFFER_ALIGNMENT;
    r->workspace[pass] = region_new(size, FWA_BUFFER_ALIGNMENT, guarded);
    return region_upload(&r->workspace[pass], r->options->context, guarded);
}

static fwa_status make_saved(run *r)
{
    const problem_extent *e = &r->data->extent;
    const int guarded = r->options->layout == CONFORMANCE_GUARDED;
    size_t size;
    fwa_status status = fwa_plan_saved_size(r->plan, e->batch, e->tokens, e->sequences, &size);
    if (status != FWA_OK)
        return status;
    size = (size + FWA_BUFFER_ALIGNMENT - 1) / FWA_BUFFER_ALIGNMENT * FWA_BUFFER_ALIGNMENT;
    r->saved = region_new(size, FWA_BUFFER_ALIGNMENT, guarded);
    return region_upload(&r->saved, r->options->context, guarded);
}

static void fill_args(const run *r, void *args, fwa_pass pass)
{
    for (int32_t i = 0; i < r->count; i++) {
        const binding *b = &r->bindings[i];
        const size_t field = pass == FWA_PASS_FORWARD ? b->row->forward : b->row->backward;
        if (field != PROBLEM_NO_FIELD)
            memcpy((char *)args + field, &b->tensor, sizeof b->tensor);
    }
}

static void *buffer_of(const region *memory)
{
    return memory->device && memory->used ? memory->device + memory->begin : NULL;
}

static fwa_status call_forward(const run *r)
{
    fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
    fill_args(r, &args, FWA_PASS_FORWARD);
    args.slot_in = r->slots[0];
    args.slot_out = r->slots[1];
    args.commit = r->slots[2];
    args.workspace = buffer_of(&r->workspace[FWA_PASS_FORWARD]);
    args.workspace_size = r->workspace[FWA_PASS_FORWARD].used;
    args.saved = buffer_of(&r->saved);
    args.saved_size = r->saved.used;
    return fwa_forward(r->plan, &args);
}

static fwa_status call_backward(const run *r)
{
    fwa_backward_args args = FWA_BACKWARD_ARGS_INIT;
    fill_args(r, &args, FWA_PASS_BACKWARD);
    args.slot_in = r->slots[0];
    args.workspace = buffer_of(&r->workspace[FWA_PASS_BACKWARD]);
    args.workspace_size = r->workspace[FWA_PASS_BACKWARD].used;
    args.saved = buffer_of(&r->saved);
    args.saved_size = r->saved.used;
    return fwa_backward(r->plan, &args);
}

/* In place the forward would have changed the carry that the backward has to read. */
static void restore_inputs(const run *r)
{
    for (int32_t i = 0; i < r->count; i++) {
        const binding *b = &r->bindings[i];
        const region *m = b->shares >= 0 ? &r->bindings[b->shares].memory : NULL;
        if (m != NULL && m->pages)
            memcpy(m->device, m->image, m->size);
        else if (m != NULL && fwa_memory_write(r->options->context, m->device, m->image, m->size))
            fail((run *)(uintptr_t)r, "restoring a carry: %s", fwa_error_message());
    }
}

/* ---- Collecting ---- */

/* Bytes outside the elements of outputs must be what they were; `now` has the elements put back. */
static int check_region(run *r, const char *name, const region *memory, const char *now)
{
    size_t i = 0;
    if (memory->size == 0 || memcmp(now, memory->image, memory->size) == 0)
        return 0;
    while (now[i] == memory->image[i])
        i++;
    const char *where = i < memory->begin                  ? "before"
                        : i < memory->begin + memory->used ? "between"
                                                           : "after";
    return fail(r, "%s: byte %lld, %s its elements, was overwritten", name,
                (long long)i - (long long)memory->begin, where);
}

static int check_scratch(run *r, const char *name, const region *memory)
{
    if (memory->device == NULL || memory->pages)
        return 0;
    char *now = region_download(memory, r->options->context);
    memcpy(now + memory->begin, memory->image + memory->begin, memory->used);
    const int failed = check_region(r, name, memory, now);
    free(now);
    return failed;
}

/* Takes an output's elements from `now`, where it leaves those of the image. */
static void take_elements(const binding *b, char *now, double *values)
{
    const fwa_tensor *t = &b->tensor;
    const size_t size = fwa_dtype_size(t->dtype);
    const int64_t n = elements_of(t), width = n ? t->shape[t->rank - 1] : 1;
    for (int64_t row = 0; row < n / width; row++) {
        const int64_t offset = row_offset(t, row);
        for (int64_t i = 0; i < width; i++) {
            const int64_t at = offset + i * t->stride[t->rank - 1];
            const size_t byte = b->memory.begin + (size_t)at * size;
            values[row * width + i] = take(t, now + b->memory.begin, at);
            memcpy(now + byte, b->memory.image + byte, size);
        }
    }
}

/* Checks the memory of one binding and takes the results that it holds. */
static int collect(run *r, int32_t index, conformance_data *results)
{
    const binding *b = &r->bindings[index];
    if (b->shares >= 0)
        return 0; /* taken with the binding that it shares */
    char *now = region_download(&b->memory, r->options->context);
    for (int32_t i = 0; i < r->count; i++) {
        const binding *owner = &r->bindings[i];
        if (owner->output && (i == index || owner->shares == index))
            take_elements(b, now, conformance_add(results, owner->row->name));
    }
    const int failed = check_region(r, b->row->name, &b->memory, now);
    free(now);
    return failed;
}

/* After the forward all but the gradients; after the backward those, and the inputs once more. What
 * went out in place was taken after the forward and has been put back since. */
static int collect_pass(run *r, conformance_data *results, fwa_pass pass)
{
    int failed = 0;
    for (int32_t i = 0; i < r->count && !failed; i++) {
        const problem_role role = r->bindings[i].row->role;
        int due = pass == FWA_PASS_FORWARD ? role != PROBLEM_GRADIENT
                                           : role != PROBLEM_OUTPUT && role != PROBLEM_MASK;
        for (int32_t j = 0; j < r->count && pass == FWA_PASS_BACKWARD; j++)
            due = due && r->bindings[j].shares != i;
        failed = due ? collect(r, i, results) : 0;
    }
    return failed;
}

static int finish(run *r)
{
    static const char *const names[] = {"forward workspace", "backward workspace"};
    int failed = 0;
    for (int pass = 0; pass < 2 && !failed; pass++)
        failed = check_scratch(r, names[pass], &r->workspace[pass]);
    return failed ? failed : check_scratch(r, "saved", &r->saved);
}

static int execute(run *r, conformance_data *results)
{
    fwa_status status = upload(r);
    if (status == FWA_OK && r->options->saved)
        status = make_saved(r);
    if (status == FWA_OK)
        status = make_scratch(r, FWA_PASS_FORWARD);
    if (status != FWA_OK)
        return refuse(r, status, "memory");
    if ((status = call_forward(r)) != FWA_OK)
        return refuse(r, status, "forward");
    if (collect_pass(r, results, FWA_PASS_FORWARD))
        return -1;
    if (r->options->backward) {
        restore_inputs(r);
        if ((status = make_scratch(r, FWA_PASS_BACKWARD)) != FWA_OK)
            return refuse(r, status, "memory");
        if ((status = call_backward(r)) != FWA_OK)
            return refuse(r, status, "backward");
        if (collect_pass(r, results, FWA_PASS_BACKWARD))
            return -1;
    }
    return finish(r);
}

int conformance_run(const conformance_data *data, const conformance_options *options,
                    conformance_data *results, conformance_outcome *outcome)
{
    run r;
    int failed;
    memset(&r, 0, sizeof r);
    memset(outcome, 0, sizeof *outcome);
    r.data = data;
    r.options = options;
    r.outcome = outcome;
    r.problem = data->problem;
    r.problem.form = options->form;
    r.problem.dtype = options->dtype;
    r.problem.state_dtype = options->state_dtype;
    *results = conformance_data_new(&data->problem, data->extent.batch, data->extent.tokens,
                                    data->extent.sequences);
    results->pool = data->pool;
    const fwa_status status = fwa_plan_create(options->context, &r.problem, &r.plan);
    if (status != FWA_OK)
        return refuse(&r, status, "plan");
    for (int pass = 0; pass < 2; pass++)
        snprintf(outcome->kernel[pass], sizeof outcome->kernel[pass], "%s",
                 fwa_plan_kernel_name(r.plan, (fwa_pass)pass));
    for (int32_t i = 0; i < PROBLEM_TENSORS; i++)
        if (is_bound(&r, problem_tensor_get(i), i))
            bind(&r, problem_tensor_get(i), i);
    failed = execute(&r, results);
    for (int32_t i = 0; i < r.count; i++)
        region_free(&r.bindings[i].memory, options->context);
    for (int i = 0; i < 3; i++)
        region_free(&r.slot_memory[i], options->context);
    for (int pass = 0; pass < 2; pass++)
        region_free(&r.workspace[pass], options->context);
    region_free(&r.saved, options->context);
    fwa_plan_destroy(r.plan);
    if (failed)
        conformance_data_free(results);
    return failed;
}
