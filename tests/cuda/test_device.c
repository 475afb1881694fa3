/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend on a real GPU, beside what the case table holds it to: graphs, streams, contexts,
 * repeats, what a call costs the host. Each test is a process, so CUDA begins anew in each.
 *
 * Pointers to the host's memory, or to another device's, are not found out by a device plan, and nothing
 * promises it: no test gives any. */

#include "../support.h"
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

TestSuite(device, .timeout = 120);

/* ---- Calls and their data ---- */

#define ROWS 8
#define POOL 10

/* How the tokens of a call fall into sequences, and which slots these use. Either of two sets, which
 * take each other's place in the same memory. */
typedef struct layout {
    const char *name;
    int64_t batch, tokens; /* of a call without lengths */
    int packed, slots, commits;
} layout;

enum { ROWS_OF_200, ROWS_OF_70, PACKED, PACKED_POOL, COMMITS, DECODING, LAYOUTS };
static const layout layouts[LAYOUTS] = {
    [ROWS_OF_200] = {"rows", 2, 200, 0, 0, 0},  [ROWS_OF_70] = {"short rows", 2, 70, 0, 0, 0},
    [PACKED] = {"packed", 1, 200, 1, 0, 0},     [PACKED_POOL] = {"packed pool", 1, 200, 1, 1, 0},
    [COMMITS] = {"commits", ROWS, 60, 0, 0, 1}, [DECODING] = {"decoding", ROWS, 1, 0, 1, 0},
};

/* Sums are 200. Empty sequences, some that are shorter than a chunk pays for, some of whole chunks. */
static const int32_t lengths[2][ROWS] = {{70, 1, 0, 33, 5, 64, 3, 24},
                                         {2, 80, 4, 0, 17, 64, 32, 1}};
/* Forks, chains and a cycle (rows 5 and 6 of the first), fresh and padded rows, rows without a carry. */
static const int32_t slots_in[2][ROWS] = {{2, 3, -2, 4, -1, 0, 6, 7}, {5, 5, 1, -2, 8, 9, -1, 3}};
static const int32_t slots_out[2][ROWS] = {{1, 2, 3, 4, 5, 6, 0, -2}, {1, 5, 9, 2, -2, 8, -1, 3}};
static const int32_t commits[2][ROWS] = {{0, 60, 13, 1, 59, 16, 30, 4},
                                         {60, 5, 0, 59, 1, 60, 17, 0}};

/* One kind of call. */
typedef struct setting {
    const char *preset;
    int32_t form, dtype, state_dtype, layout;
    int backward;
} setting;

/* Keys are shared by two heads each. */
static fwa_problem problem_of(const setting *s)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    cr_assert_eq(fwa_problem_preset(&problem, s->preset), FWA_OK, "%s", fwa_error_message());
    problem.form = s->form;
    problem.dtype = s->dtype;
    problem.state_dtype = s->state_dtype;
    problem.heads_key = 2;
    problem.heads_query = 2;
    problem.heads_value = 4;
    problem.key_dim = problem.value_dim = 128;
    return problem;
}

static int32_t *copy_row(const int32_t *row)
{
    int32_t *copy = conformance_allocate(ROWS, sizeof *copy);
    memcpy(copy, row, ROWS * sizeof *copy);
    return copy;
}

/* The data of set 0 or 1, rounded to the types. */
static conformance_data data_of(const setting *s, int set)
{
    const layout *l = &layouts[s->layout];
    const fwa_problem problem = problem_of(s);
    const uint64_t seed = 7 + (uint64_t)set;
    conformance_data data = random_data(&problem, l->batch, l->tokens, seed);
    if (l->packed) {
        data.extent.sequences = ROWS;
        double *cu = conformance_add(&data, "cu_seqlens");
        for (int i = 0; i < ROWS; i++)
            cu[i + 1] = cu[i] + lengths[set][i];
        cr_assert_eq(cu[ROWS], (double)l->tokens);
    }
    if (l->slots) {
        data.pool = POOL;
        data.slot_in = copy_row(slots_in[set]);
        data.slot_out = copy_row(slots_out[set]);
    }
    if (l->commits)
        data.commit = copy_row(commits[set]);
    random_gates(&data, seed);
    random_carry(&data, 5, seed);
    double *seen = conformance_get(&data, "seen_in");
    for (int64_t i = 0; i < conformance_count(&data, "seen_in"); i++)
        seen[i] = (double)(i * 3 % 7);
    if (s->backward)
        random_upstream(&data, 1, seed);
    conformance_round(&data, s->dtype, s->state_dtype);
    return data;
}

/* Pools are used in place, as in decoding. */
static int in_place(const setting *s)
{
    return layouts[s->layout].slots;
}

static conformance_data want_of(const setting *s, const conformance_data *data)
{
    const conformance_options options = {.context = context_of("reference", 4),
                                         .form = FWA_FORM_RECURRENT,
                                         .dtype = FWA_DTYPE_F64,
                                         .backward = s->backward,
                                         .in_place = in_place(s)};
    return run_options(&options, data);
}

static const char *name_of(const setting *s)
{
    static char name[96];
    snprintf(name, sizeof name, "%s %s %s %s", s->preset, fwa_dtype_name(s->dtype),
             conformance_form_name(s->form), layouts[s->layout].name);
    return name;
}

static fwa_plan *plan_of(fwa_context *context, const setting *s)
{
    const fwa_problem problem = problem_of(s);
    fwa_plan *plan = NULL;
    cr_assert_eq(fwa_plan_create(context, &problem, &plan), FWA_OK, "%s: %s", name_of(s),
                 fwa_error_message());
    return plan;
}

static device_call *call_of(fwa_context *context, const fwa_plan *plan, const setting *s, int set)
{
    const fwa_problem problem = problem_of(s);
    conformance_data data = data_of(s, set);
    device_call *call = device_call_new(context, plan, &problem, &data, s->backward, in_place(s));
    conformance_data_free(&data);
    return call;
}

static void refill(device_call *call, const setting *s, int set)
{
    conformance_data data = data_of(s, set);
    device_call_fill(call, &data);
    conformance_data_free(&data);
}

/* The results of one call on the default stream, in memory of its own. */
static conformance_data results_of(fwa_context *context, const fwa_plan *plan, const setting *s,
                                   int set)
{
    device_call *call = call_of(context, plan, s, set);
    device_call_good(call, NULL);
    conformance_data results = device_call_results(call);
    device_call_free(call);
    return results;
}

static void expect_bits(const setting *s, const char *what, const conformance_data *got,
                        const conformance_data *want)
{
    const char *name = "";
    cr_expect(conformance_same(got, want, &name), "%s: %s: %s differs", name_of(s), what, name);
}

static void expect_right(const setting *s, const conformance_data *got)
{
    const fwa_problem problem = problem_of(s);
    conformance_data data = data_of(s, 1);
    conformance_data want = want_of(s, &data);
    conformance_result worst;
    memset(&worst, 0, sizeof worst);
    conformance_judge(got, &want, &problem, &worst);
    cr_expect_leq(worst.ratio, 1,
                  "%s: %s is off by %.3g (bound %.3g), at most by %.3g (bound %.3g)", name_of(s),
                  worst.tensor, worst.error.rms, worst.bound.rms, worst.error.maximum,
                  worst.bound.maximum);
    conformance_data_free(&want);
    conformance_data_free(&data);
}

/* ---- Graphs ---- */

static const struct {
    const char *name;
    CUstreamCaptureMode mode;
} modes[] = {
    {"captured in the global mode", CU_STREAM_CAPTURE_MODE_GLOBAL},
    {"captured in the thread's mode", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
    {"captured in the relaxed mode", CU_STREAM_CAPTURE_MODE_RELAXED},
};

/* One capture, of a call on the first data; the second, put in their place, must then count, and after
 * them the first again. The first capture of all is the plan's first call. */
static void expect_graph(const setting *s, int mode, device_call *call, CUstream stream,
                         conformance_data results[2])
{
    refill(call, s, 0);
    device_graph graph = device_capture(call, stream, modes[mode].mode);
    cr_assert_eq(graph.status, FWA_OK, "%s: %s: %s", name_of(s), modes[mode].name,
                 fwa_error_message());
    device_expect(graph.result, modes[mode].name);
    cr_expect_gt(graph.nodes, 0);
    cr_expect_eq(graph.kernels, graph.nodes, "%s: %zu of %zu nodes are kernels", name_of(s),
                 graph.kernels, graph.nodes);
    conformance_data before = device_call_results(call);
    cr_expect(isnan(conformance_get(&before, "o")[0]), "%s: %s: it ran", name_of(s),
              modes[mode].name);
    conformance_data_free(&before);
    for (int turn = 0; turn < 2; turn++) {
        const int set = 1 - turn;
        refill(call, s, set);
        device_expect(device_replay(&graph, stream), "cuGraphLaunch");
        CUDA(cuStreamSynchronize, stream);
        results[set] = device_call_results(call);
    }
    device_graph_free(&graph);
}

static void check_graphs(const setting *s)
{
    fwa_context *context = device_context_new(0);
    fwa_plan *plan = plan_of(context, s);
    CUstream stream = device_stream();
    device_call *call = call_of(context, plan, s, 0);
    conformance_data captured[COUNT(modes)][2];
    for (int mode = 0; mode < COUNT(modes); mode++)
        expect_graph(s, mode, call, stream, captured[mode]);
    for (int set = 0; set < 2; set++) {
        conformance_data direct = results_of(context, plan, s, set);
        for (int mode = 0; mode < COUNT(modes); mode++) {
            expect_bits(s, modes[mode].name, &captured[mode][set], &direct);
            conformance_data_free(&captured[mode][set]);
        }
        if (set == 1)
            expect_right(s, &direct);
        conformance_data_free(&direct);
    }
    device_call_free(call);
    CUDA(cuStreamDestroy, stream);
    fwa_plan_destroy(plan);
    fwa_context_destroy(context);
}

Test(device, graphs_of_inference)
{
    static const setting settings[] = {
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 0},
        {"gated_deltanet", FWA_FORM_RECURRENT, FWA_DTYPE_F32, 0, ROWS_OF_70, 0},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED_POOL, 0},
        {"falcon1", FWA_FORM_RECURRENT, FWA_DTYPE_F32, 0, PACKED_POOL, 0},
        {"falcon3", FWA_FORM_AUTO, FWA_DTYPE_F16, 0, PACKED_POOL, 0},
        {"falcon2a", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED, 0},
        {"deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, COMMITS, 0},
        {"falcon3a", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, COMMITS, 0},
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, DECODING, 0},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_BF16, FWA_DTYPE_BF16, DECODING, 0},
        {"falcon3", FWA_FORM_RECURRENT, FWA_DTYPE_F32, 0, DECODING, 0},
    };
    device_use(0);
    for (int i = 0; i < COUNT(settings); i++)
        check_graphs(&settings[i]);
}

Test(device, graphs_of_training)
{
    static const setting settings[] = {
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 1},
        {"gated_deltanet", FWA_FORM_RECURRENT, FWA_DTYPE_F32, 0, ROWS_OF_70, 1},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_F16, 0, PACKED, 1},
        {"falcon2", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED, 1},
        {"falcon3", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED, 1},
        {"retnet", FWA_FORM_AUTO, FWA_DTYPE_F32, 0, PACKED, 1},
    };
    device_use(0);
    for (int i = 0; i < COUNT(settings); i++)
        check_graphs(&settings[i]);
}

/* ---- Threads and streams ---- */

#define THREADS 8
#define TURNS   20

typedef struct caller {
    device_call *call;
    CUstream stream;
    CUcontext context;
    pthread_barrier_t *start;
    int captures; /* 1: captures each call and launches the graph */
    fwa_status status;
    char message[512];
    CUresult result;
} caller;

static CUresult call_captured(caller *c)
{
    device_graph graph = device_capture(c->call, c->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CUresult result = graph.result;
    c->status = graph.status;
    if (result == CUDA_SUCCESS)
        result = device_replay(&graph, c->stream);
    if (result == CUDA_SUCCESS)
        result = device_load()->cuStreamSynchronize(c->stream);
    device_graph_free(&graph);
    return result;
}

static void *call_again_and_again(void *argument)
{
    caller *c = argument;
    const device_driver *d = device_load();
    c->result = d->cuCtxSetCurrent(c->context);
    pthread_barrier_wait(c->start);
    for (int i = 0; i < TURNS && c->status == FWA_OK && c->result == CUDA_SUCCESS; i++) {
        if (c->captures)
            c->result = call_captured(c);
        else
            c->status = device_call_run(c->call, c->stream);
    }
    if (c->status != FWA_OK)
        snprintf(c->message, sizeof c->message, "%s", fwa_error_message());
    if (c->result == CUDA_SUCCESS)
        c->result = d->cuStreamSynchronize(c->stream);
    return NULL;
}

static void check_streams(fwa_context *context, const setting *s)
{
    fwa_plan *plan = plan_of(context, s);
    caller callers[THREADS];
    pthread_t threads[THREADS];
    pthread_barrier_t start;
    CUcontext current;
    conformance_data want[2] = {results_of(context, plan, s, 0), results_of(context, plan, s, 1)};
    CUDA(cuCtxGetCurrent, &current);
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        callers[i] = (caller){.call = call_of(context, plan, s, i % 2),
                              .stream = device_stream(),
                              .context = current,
                              .start = &start,
                              .captures = i % 4 == 3};
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, call_again_and_again, &callers[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        const caller *c = &callers[i];
        char what[32];
        snprintf(what, sizeof what, "thread %d", i);
        cr_assert_eq(c->status, FWA_OK, "%s: %s: %s", name_of(s), what, c->message);
        device_expect(c->result, what);
        conformance_data got = device_call_results(c->call);
        expect_bits(s, what, &got, &want[i % 2]);
        conformance_data_free(&got);
        device_call_free(c->call);
        CUDA(cuStreamDestroy, c->stream);
    }
    conformance_data_free(&want[0]);
    conformance_data_free(&want[1]);
    pthread_barrier_destroy(&start);
    fwa_plan_destroy(plan);
}

/* One plan for all threads, each with a stream, a workspace and tensors of its own. */
Test(device, streams)
{
    static const setting settings[] = {
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 1},
        {"falcon3", FWA_FORM_AUTO, FWA_DTYPE_F32, 0, PACKED, 1},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED, 0},
    };
    device_use(0);
    fwa_context *context = device_context_new(0);
    for (int i = 0; i < COUNT(settings); i++)
        check_streams(context, &settings[i]);
    fwa_context_destroy(context);
}

/* ---- Contexts ---- */

/* What the calling thread's context was and must stay. */
static CUcontext own_context;

static void expect_context(const char *call)
{
    CUcontext now = NULL;
    CUDA(cuCtxGetCurrent, &now);
    cr_assert_eq((void *)now, (void *)own_context, "the thread's CUDA context is another after %s",
                 call);
}

#define KEEPS(call)                                                                                \
    do {                                                                                           \
        const fwa_status status_ = (call);                                                         \
        cr_assert_eq(status_, FWA_OK, "%s: %s", #call, fwa_error_message());                       \
        expect_context(#call);                                                                     \
    } while (0)

/* Every function that reaches the driver, once at least. */
static void use_everything(void)
{
    static const setting s = {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 1};
    const fwa_problem problem = problem_of(&s);
    fwa_context_options options = FWA_CONTEXT_OPTIONS_INIT;
    fwa_backend_info info = FWA_BACKEND_INFO_INIT;
    fwa_context *context;
    fwa_plan *plan;
    void *memory;
    size_t size;
    char bytes[64] = "";
    for (int32_t i = 0; i < fwa_backend_count(); i++)
        KEEPS(fwa_backend_get(i, &info));
    options.backend = "cuda";
    KEEPS(fwa_context_create(&options, &context));
    KEEPS(fwa_memory_allocate(context, sizeof bytes, &memory));
    KEEPS(fwa_memory_write(context, memory, bytes, sizeof bytes));
    KEEPS(fwa_memory_read(context, bytes, memory, sizeof bytes));
    fwa_memory_free(context, memory);
    expect_context("fwa_memory_free");
    KEEPS(fwa_plan_create(context, &problem, &plan));
    KEEPS(fwa_plan_workspace_size(plan, FWA_PASS_FORWARD, 1, 100, 1, &size));
    KEEPS(fwa_plan_saved_size(plan, 1, 100, 1, &size));
    device_call *call = call_of(context, plan, &s, 1);
    KEEPS(fwa_forward(plan, &call->forward));
    KEEPS(fwa_backward(plan, &call->gradients));
    call->forward.workspace_size = 0;
    cr_assert_eq(fwa_forward(plan, &call->forward), FWA_ERROR_WORKSPACE);
    expect_context("a call that is refused");
    conformance_data got = device_call_results(call);
    expect_right(&s, &got);
    conformance_data_free(&got);
    device_call_free(call);
    fwa_plan_destroy(plan);
    expect_context("fwa_plan_destroy");
    fwa_context_destroy(context);
    expect_context("fwa_context_destroy");
    options.device = device_count();
    cr_assert_eq(fwa_context_create(&options, &context), FWA_ERROR_VALUE);
    expect_context("a context that is refused");
}

/* In a thread that has no context, then with one of the program's own, then with the one that the
 * library uses too. */
Test(device, current_context)
{
    const device_driver *d = device_load();
    cr_assert_not_null(d->create_context, "libcuda.so.1 has no cuCtxCreate_v2");
    use_everything();
    device_expect(d->create_context(&own_context, 0, d->base->device[0]), "cuCtxCreate");
    expect_context("its creation");
    use_everything();
    CUDA(cuCtxDestroy, own_context);
    own_context = NULL;
    expect_context("its end");
    device_use(0);
    CUDA(cuCtxGetCurrent, &own_context);
    use_everything();
}

/* A context with a plan and a call, which may be on another device. */
typedef struct user {
    setting setting;
    fwa_context *context;
    fwa_plan *plan;
    device_call *call;
    conformance_data want;
} user;

static user user_new(const setting *s, int32_t device)
{
    user u = {.setting = *s, .context = device_context_new(device)};
    u.plan = plan_of(u.context, s);
    u.want = results_of(u.context, u.plan, s, 1);
    u.call = call_of(u.context, u.plan, s, 1);
    return u;
}

static void user_expect(user *u, const char *what)
{
    conformance_data got = device_call_results(u->call);
    expect_bits(&u->setting, what, &got, &u->want);
    conformance_data_free(&got);
}

static void user_free(user *u)
{
    device_call_free(u->call);
    fwa_plan_destroy(u->plan);
    fwa_context_destroy(u->context);
    conformance_data_free(&u->want);
}

static const setting one_setting = {
    "gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 1};
static const setting other_setting = {"falcon3", FWA_FORM_AUTO, FWA_DTYPE_F32, 0, PACKED, 1};

/* Two at once in turn, then each without the other. Nothing else keeps CUDA's context alive here. */
static void check_two(int32_t device, int32_t other_device)
{
    user one = user_new(&one_setting, device), other = user_new(&other_setting, other_device);
    expect_right(&one.setting, &one.want);
    expect_right(&other.setting, &other.want);
    for (int i = 0; i < 5; i++) {
        device_call_good(one.call, NULL);
        device_call_good(other.call, NULL);
    }
    user_expect(&one, "in turn with another context");
    user_expect(&other, "in turn with another context");
    device_call_reset(other.call);
    device_call_good(other.call, NULL); /* may still run when the other context ends */
    user_free(&one);
    user_expect(&other, "while another context ended");
    device_call_reset(other.call);
    device_call_good(other.call, NULL);
    user_expect(&other, "after another context's end");
    one = user_new(&one_setting, device);
    device_call_good(one.call, NULL);
    user_free(&other);
    user_expect(&one, "made again");
    user_free(&one);
}

Test(device, two_contexts)
{
    const device_driver *d = device_load();
    CUcontext current = NULL;
    check_two(0, 0);
    if (device_count() > 1) {
        check_two(0, 1);
        check_two(1, 0);
    }
    device_expect(d->cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    cr_assert_null(current);
}

/* Devices of one name give the same bits. */
Test(device, every_device)
{
    const int32_t count = device_count();
    user first = user_new(&one_setting, 0);
    expect_right(&first.setting, &first.want);
    for (int32_t i = 1; i < count; i++) {
        user next = user_new(&one_setting, i);
        expect_right(&next.setting, &next.want);
        if (strcmp(fwa_context_device(first.context), fwa_context_device(next.context)) == 0)
            expect_bits(&one_setting, "on another device", &next.want, &first.want);
        user_free(&next);
    }
    printf("note - devices that were tried: %d\n", (int)count);
    fflush(stdout);
    user_free(&first);
}

/* ---- Repeats ---- */

#define REPEATS 100

static void check_repeats(fwa_context *context, const setting *s)
{
    fwa_plan *plan = plan_of(context, s);
    device_call *call = call_of(context, plan, s, 1);
    char *first = NULL;
    for (int i = 0; i < REPEATS; i++) {
        size_t size, differs = 0;
        device_call_reset(call);
        device_call_good(call, NULL);
        char *bytes = device_call_bytes(call, &size);
        first = first ? first : bytes;
        while (differs < size && bytes[differs] == first[differs])
            differs++;
        cr_expect_eq(differs, size, "%s: byte %zu of the outputs differs in run %d", name_of(s),
                     differs, i);
        if (bytes != first)
            free(bytes);
        if (differs < size)
            break;
    }
    free(first);
    device_call_free(call);
    fwa_plan_destroy(plan);
}

Test(device, repeats)
{
    static const setting settings[] = {
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 1},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_F32, 0, PACKED, 1},
        {"falcon2", FWA_FORM_AUTO, FWA_DTYPE_F16, 0, ROWS_OF_70, 1},
        {"falcon3", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED, 1},
        {"falcon1a", FWA_FORM_RECURRENT, FWA_DTYPE_BF16, 0, ROWS_OF_70, 1},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, PACKED_POOL, 0},
        {"falcon3", FWA_FORM_AUTO, FWA_DTYPE_F32, 0, DECODING, 0},
    };
    fwa_context *context = device_context_new(0);
    for (int i = 0; i < COUNT(settings); i++)
        check_repeats(context, &settings[i]);
    fwa_context_destroy(context);
}

/* ---- What a call costs the host ---- */

#define SAMPLES 20
#define CALLS   40 /* launches that wait to run, times the kernels of a call, stay far below 1024 */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Microseconds of the host in one call, or in one launch of its graph: the median sample. */
static double host_time(device_call *call, const device_graph *graph, CUstream stream)
{
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        CUDA(cuStreamSynchronize, stream);
        const double begin = now();
        for (int j = 0; j < CALLS; j++) {
            if (graph)
                device_expect(device_replay(graph, stream), "cuGraphLaunch");
            else
                device_call_good(call, stream);
        }
        samples[i] = (now() - begin) * 1e6 / CALLS;
    }
    CUDA(cuStreamSynchronize, stream);
    qsort(samples, SAMPLES, sizeof *samples, by_size);
    return samples[SAMPLES / 2];
}

static void note_host_time(fwa_context *context, const setting *s, CUstream stream)
{
    fwa_plan *plan = plan_of(context, s);
    device_call *call = call_of(context, plan, s, 1);
    device_graph graph = device_capture(call, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    device_expect(graph.result, "the capture");
    device_call_good(call, stream);
    const double direct = host_time(call, NULL, stream);
    const double replayed = host_time(call, &graph, stream);
    printf("note - %s%s: %zu launches take the host %.1f us a call, as a graph %.1f us\n",
           name_of(s), s->backward ? ", forward and backward" : "", graph.nodes, direct, replayed);
    fflush(stdout);
    device_graph_free(&graph);
    device_call_free(call);
    fwa_plan_destroy(plan);
}

/* Times are shown, whatever they are: they pass no judgement. */
Test(device, host_time)
{
    static const setting settings[] = {
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, DECODING, 0},
        {"falcon1", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, DECODING, 0},
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 0},
        {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_70, 1},
    };
    device_use(0);
    fwa_context *context = device_context_new(0);
    CUstream stream = device_stream();
    for (int i = 0; i < COUNT(settings); i++)
        note_host_time(context, &settings[i], stream);
    CUDA(cuStreamDestroy, stream);
    fwa_context_destroy(context);
}

/* ---- Misuse ---- */

static void no_workspace(fwa_forward_args *args)
{
    args->workspace = NULL;
}

static void short_workspace(fwa_forward_args *args)
{
    args->workspace_size--;
}

static void odd_workspace(fwa_forward_args *args)
{
    args->workspace = (char *)args->workspace + 8;
}

static void wrong_shape(fwa_forward_args *args)
{
    args->k.shape[3]--;
}

static void wrong_type(fwa_forward_args *args)
{
    args->v.dtype = FWA_DTYPE_F16;
}

static void wrong_stride(fwa_forward_args *args)
{
    args->o.stride[1] = 0;
}

static void overlap(fwa_forward_args *args)
{
    args->o.data = args->v.data;
}

static void odd_pointer(fwa_forward_args *args)
{
    args->q.data = (char *)args->q.data + 1;
}

static void no_output(fwa_forward_args *args)
{
    memset(&args->o, 0, sizeof args->o);
}

static void team(fwa_forward_args *args)
{
    static const fwa_team alone = {0, 1, NULL, NULL};
    args->team = &alone;
}

/* What a call can be refused for without looking at the device's memory is refused before anything is
 * launched, in a capture too, which goes on. */
Test(device, refusals)
{
    static const struct {
        const char *name;
        void (*spoil)(fwa_forward_args *args);
        fwa_status status;
    } cases[] = {
        {"no workspace", no_workspace, FWA_ERROR_NULL},
        {"a short workspace", short_workspace, FWA_ERROR_WORKSPACE},
        {"an odd workspace", odd_workspace, FWA_ERROR_ALIGNMENT},
        {"a wrong shape", wrong_shape, FWA_ERROR_SHAPE},
        {"a wrong type", wrong_type, FWA_ERROR_DTYPE},
        {"a wrong stride", wrong_stride, FWA_ERROR_STRIDE},
        {"an overlap", overlap, FWA_ERROR_OVERLAP},
        {"an odd pointer", odd_pointer, FWA_ERROR_ALIGNMENT},
        {"no output", no_output, FWA_ERROR_NULL},
        {"a team", team, FWA_ERROR_UNSUPPORTED},
    };
    static const setting s = {"gated_deltanet", FWA_FORM_AUTO, FWA_DTYPE_BF16, 0, ROWS_OF_200, 0};
    device_use(0);
    fwa_context *context = device_context_new(0);
    fwa_plan *plan = plan_of(context, &s);
    CUstream stream = device_stream();
    device_call *call = call_of(context, plan, &s, 1);
    const fwa_forward_args good = call->forward;
    size_t size, size_after;
    char *before = device_call_bytes(call, &size);
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const int c = i / 2;
        call->forward = good;
        cases[c].spoil(&call->forward);
        if (i % 2) {
            device_graph graph = device_capture(call, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
            device_expect(graph.result, cases[c].name);
            cr_expect_eq(graph.status, cases[c].status, "%s, captured: %s", cases[c].name,
                         fwa_status_name(graph.status));
            cr_expect_eq(graph.nodes, 0, "%s", cases[c].name);
            device_graph_free(&graph);
        } else {
            const fwa_status status = device_call_run(call, stream);
            cr_expect_eq(status, cases[c].status, "%s: %s", cases[c].name, fwa_status_name(status));
        }
    }
    char *after = device_call_bytes(call, &size_after);
    cr_expect_eq(size, size_after);
    cr_expect_arr_eq(before, after, size, "an output was written");
    call->forward = good;
    device_call_good(call, stream);
    conformance_data got = device_call_results(call);
    expect_right(&s, &got);
    conformance_data_free(&got);
    free(before);
    free(after);
    device_call_free(call);
    CUDA(cuStreamDestroy, stream);
    fwa_plan_destroy(plan);
    fwa_context_destroy(context);
}

/* A child has errors in words, and disturbs its parent in nothing. */
Test(device, fork)
{
    user u = user_new(&one_setting, 0);
    int status = -1;
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        void *memory = NULL;
        const int right = device_call_run(u.call, NULL) == FWA_ERROR_DEVICE &&
                          strstr(fwa_error_message(), "forked") != NULL &&
                          fwa_memory_allocate(u.context, 8, &memory) == FWA_ERROR_DEVICE;
        fwa_plan_destroy(u.plan);
        fwa_context_destroy(u.context);
        _exit(right ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "the child ended with %d", status);
    device_call_good(u.call, NULL);
    user_expect(&u, "after a fork");
    user_free(&u);
}
