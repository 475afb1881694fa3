/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FWA_H
#define FWA_FWA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
/*
 * libfwa: fast-weight attention
 * =============================
 *
 * A fast-weight layer keeps, per sequence and head, a D x V matrix S (the state) and rewrites it at
 * every token from a key and a value; a query reads it. This library computes such layers: the
 * Falcon rules of "Fast Weight Attention for Continual Learning" (arXiv 2608.27763), and, as
 * presets of the same kernels, DeltaNet, Gated DeltaNet, Mamba-2's SSD, RetNet, lightning attention
 * and linear attention. It runs forward, backward and token-by-token decoding.
 *
 * What is computed
 * ----------------
 * With q_t, k_t in R^D and v_t in R^V, the write feature x_t (the previous key by default, the
 * present one with FWA_ALIGNMENT_SAME_STEP), the step size eta_t and the carry gamma_t in (0, 1]:
 *
 *     inner product:   S_t = gamma_t S_{t-1} + eta_t x_t v_t^T
 *     regression:      S_t = gamma_t S_{t-1} + eta_t x_t (v_t - S_{t-1}^T x_t)^T
 *     output:          o_t = scale * S_t^T q_t
 *
 * With FWA_STEP_NORMALIZED, eta = beta / (E + lambda + eps) where E is |x|^2, and
 * gamma = max(1 - eta lambda, decay_floor) * exp(log_gate). The objective (regression or inner
 * product), the dynamics (one beta per head or one per value channel) and the window (how many of
 * the last pairs each step rehearses) name the six rules of the paper:
 *
 *     falcon1  regression, per head             falcon1a  inner product, per head
 *     falcon2  regression, per channel          falcon2a  inner product, per channel
 *     falcon3  regression, per head, window B   falcon3a  inner product, per head, window B
 *
 * The remaining fields of fwa_problem are the paper's other knobs. doc/maths.md has all formulas.
 *
 * How to use it
 * -------------
 *     1. fwa_context_create()        a backend ("cpu", "reference", ...) and its threads
 *     2. fill an fwa_problem         FWA_PROBLEM_INIT, fwa_problem_preset(), sizes, dtype
 *     3. fwa_plan_create()           validates once; the plan is immutable
 *     4. fwa_plan_workspace_size()   allocate that much scratch memory yourself
 *     5. fwa_forward(), fwa_backward(), as often as you like, with any batch size and length
 *
 * A complete program (build: cc first.c $(pkg-config --cflags --libs fwa)):
 *
 *     #include <fwa/fwa.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *     int main(void) {
 *         float q[] = {1,0, 0,1, 1,0, 0,1}, v[] = {1,2, 3,4, 5,6, 7,8}, beta[] = {1,1,1,1}, o[8];
 *         fwa_context *context; fwa_plan *plan;
 *         fwa_problem problem = FWA_PROBLEM_INIT;
 *         fwa_forward_args args = FWA_FORWARD_ARGS_INIT;
 *         fwa_problem_preset(&problem, "falcon1");
 *         problem.key_dim = problem.value_dim = 2;
 *         args.q = args.k = fwa_tensor_contiguous(q, FWA_DTYPE_F32, 4, 1, 4, 1, 2);
 *         args.v = fwa_tensor_contiguous(v, FWA_DTYPE_F32, 4, 1, 4, 1, 2);
 *         args.o = fwa_tensor_contiguous(o, FWA_DTYPE_F32, 4, 1, 4, 1, 2);
 *         args.beta = fwa_tensor_contiguous(beta, FWA_DTYPE_F32, 3, 1, 4, 1);
 *         if (fwa_context_create(NULL, &context) || fwa_plan_create(context, &problem, &plan) ||
 *             fwa_plan_workspace_size(plan, FWA_PASS_FORWARD, 1, 4, 1, &args.workspace_size) ||
 *             !(args.workspace = malloc(args.workspace_size)) || fwa_forward(plan, &args))
 *             return fprintf(stderr, "%s\n", fwa_error_message()), 1;
 *         for (int t = 0; t < 8; t += 2) printf("%.4g %.4g\n", o[t], o[t + 1]);
 *     }
 *
 * Shapes
 * ------
 *     q               [batch, T, Hq, D]     Hq is Hk or Hv
 *     k               [batch, T, Hk, D]     value head h reads key head h / (Hv / Hk)
 *     v, o            [batch, T, Hv, V]     Hv is a multiple of Hk
 *     beta            [batch, T, Hv], per channel [batch, T, Hv, V]
 *     lambda, log_gate [batch, T, Hv]
 *     cu_seqlens      [N + 1]               int32 or int64: packed sequences of different lengths
 *
 * Without cu_seqlens the batch rows are the sequences, N = batch. With it, batch is 1 and sequence
 * n is the tokens cu_seqlens[n] .. cu_seqlens[n + 1] - 1; it starts at 0, never falls and ends at
 * T. An input may have any stride that is not negative on the outer axes, 0 included (broadcast);
 * its last axis has stride 1 or 0. An output has positive strides, none less than what the axes
 * inside it take up, and stride 1 on the last axis. A carry's state may have any stride on its last
 * axis too, so pools that are kept value-major, [N, Hv, V, D], are passed as a transposed view. A
 * vector (cu_seqlens, seen, slots, commit) may have any stride that is not negative, and an axis of
 * extent 1 any at all. D and V run from 1 to 256, the window from 1 to 32. All offsets are 64-bit.
 *
 * Types
 * -----
 * q, k, v, o and their gradients have problem.dtype: F32, BF16 or F16 (arithmetic in float32), on
 * the reference backend F64 too. beta, lambda, log_gate, their gradients and all parts of a carry
 * are F32 (F64 where dtype is F64); the state alone may be stored as BF16 or F16
 * (problem.state_dtype).
 *
 * Values
 * ------
 * beta >= 0, lambda >= 0, log_gate <= 0 are preconditions. A backend whose memory the host can read
 * checks them and refuses (FWA_ERROR_VALUE). A log_gate below -104, -infinity included, acts as
 * -104: "forget everything". Non-finite q, k, v, beta, lambda or states are no error: what follows
 * from them stays in its head and sequence, in outputs from the token on that has them
 * (doc/maths.md, section 12).
 *
 * Continuation
 * ------------
 * fwa_carry holds all that a sequence needs to go on: pass carry_out of one call as carry_in of the
 * next, and any split of a sequence, down to single tokens, gives the same outputs to rounding.
 * Decoding is nothing else: fwa_forward with T = 1 on a pool of carries, in place. Pools are
 * addressed by slot_in and slot_out; commit writes the carry of an earlier token (speculative
 * decoding).
 *
 * Memory, threads, errors
 * -----------------------
 * After plan creation nothing allocates, prints, reads the environment or waits for a device; but
 * a context's first call on several threads starts them. They wait asleep. The caller owns the
 * workspace; its contents mean nothing between calls, and two calls that run at once need two of
 * them. Contexts and plans are immutable: any number of threads may use one at once. Results do not
 * depend on the number of threads, on the batch a sequence is in, or on what ran before, bit for
 * bit.
 *
 * Every function that can fail returns an fwa_status; fwa_error_message() then explains it in words
 * with the argument, its value and the limit. After an error nothing was written to any tensor.
 * The library never aborts, never prints and installs no handlers.
 *
 * The environment is read when a context is created or backends are listed, and only for two
 * things: FWA_BACKEND_PATH, the module directory, and FWA_CPU_ISA, which holds the CPU backend to
 * "generic", "neon", "avx2", "avx512", "avx512bf16" or "amx" kernels. Privileged programs ignore
 * both.
 *
 * After fork() a child may go on using its contexts and plans; it starts threads of its own.
 */
/* clang-format on */

/* ---- Version --------------------------------------------------------------------------------- */

#define FWA_VERSION_MAJOR 0
#define FWA_VERSION_MINOR 1
#define FWA_VERSION_PATCH 0

#if defined(_WIN32)
#define FWA_API
#elif defined(__GNUC__)
#define FWA_API __attribute__((visibility("default")))
#else
#define FWA_API
#endif

/* The version of the library that runs, as major * 1000000 + minor * 1000 + patch. */
FWA_API uint32_t fwa_version(void);
/* The same as text, "0.1.0"; static. */
FWA_API const char *fwa_version_string(void);

/* ---- Status ---------------------------------------------------------------------------------- */

/* The numbers are part of the ABI and never change. */
typedef enum fwa_status {
    FWA_OK = 0,
    FWA_ERROR_NULL = 1,         /* a required pointer or tensor is missing */
    FWA_ERROR_STRUCT_SIZE = 2,  /* struct_size is wrong, or an unknown field is not zero */
    FWA_ERROR_VALUE = 3,        /* an enum, a knob or a datum is out of its range */
    FWA_ERROR_SHAPE = 4,        /* a rank or extent is wrong, negative or too large */
    FWA_ERROR_STRIDE = 5,       /* a stride is not allowed for this tensor */
    FWA_ERROR_DTYPE = 6,        /* a tensor's type is not the one the plan wants */
    FWA_ERROR_ALIGNMENT = 7,    /* a pointer is not aligned to its element or buffer alignment */
    FWA_ERROR_OVERLAP = 8,      /* an output shares memory with another tensor */
    FWA_ERROR_WORKSPACE = 9,    /* workspace or saved is smaller than asked for */
    FWA_ERROR_SEQUENCE = 10,    /* cu_seqlens, seen, slots or commit are inconsistent */
    FWA_ERROR_UNSUPPORTED = 11, /* valid, but this backend or version does not do it */
    FWA_ERROR_MEMORY = 12,      /* the system has no memory left */
    FWA_ERROR_NO_BACKEND = 13,  /* no such backend, or its module cannot be loaded */
    FWA_ERROR_ABI = 14,         /* the backend module speaks another ABI version */
    FWA_ERROR_DEVICE = 15,      /* the device reported a fault */
    FWA_ERROR_INTERNAL = 16     /* a defect of the library: please report it */
} fwa_status;

/* "FWA_ERROR_SHAPE" and so on; static; "FWA_STATUS_UNKNOWN" for other numbers. */
FWA_API const char *fwa_status_name(fwa_status status);
/* What went wrong in this thread's last call that failed; "" if none has. The text stays valid
 * until the next call that fails in the same thread. */
FWA_API const char *fwa_error_message(void);

/* ---- Tensors --------------------------------------------------------------------------------- */

typedef enum fwa_dtype {
    FWA_DTYPE_NONE = 0,
    FWA_DTYPE_F32 = 1,
    FWA_DTYPE_BF16 = 2,
    FWA_DTYPE_F16 = 3,
    FWA_DTYPE_F64 = 4,
    FWA_DTYPE_I32 = 5,
    FWA_DTYPE_I64 = 6
} fwa_dtype;

#define FWA_MAX_RANK 5

/* A strided view of the caller's memory, where the context's device can reach it. Strides count
 * elements. A tensor that is all zero ({0}) is absent. This struct has no struct_size: it is fixed.
 */
typedef struct fwa_tensor {
    void *data; /* aligned to the element size; may be NULL if an extent is 0 */
    int32_t dtype;
    int32_t rank;
    int64_t shape[FWA_MAX_RANK];
    int64_t stride[FWA_MAX_RANK];
} fwa_tensor;

/* A dense row-major tensor of `rank` extents (1 to 5), each an int or int64_t:
 *     fwa_tensor_contiguous(data, FWA_DTYPE_F32, 4, batch, tokens, heads, dim) */
#define fwa_tensor_contiguous(data, dtype, rank, ...)                                              \
    fwa_tensor_dense((data), (dtype), (rank), FWA_EXTENTS_(__VA_ARGS__, 0, 0, 0, 0, 0))
#define FWA_EXTENTS_(a, b, c, d, e, ...)                                                           \
    (int64_t)(a), (int64_t)(b), (int64_t)(c), (int64_t)(d), (int64_t)(e)

static inline fwa_tensor fwa_tensor_dense(void *data, int32_t dtype, int32_t rank, int64_t n0,
                                          int64_t n1, int64_t n2, int64_t n3, int64_t n4)
{
    const int64_t extent[FWA_MAX_RANK] = {n0, n1, n2, n3, n4};
    fwa_tensor tensor;
    uint64_t stride = 1; /* wraps where the product is too large; calls refuse such tensors */
    int32_t axis;
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = rank;
    for (axis = FWA_MAX_RANK - 1; axis >= 0; axis--) {
        tensor.shape[axis] = axis < rank ? extent[axis] : 0;
        tensor.stride[axis] = axis < rank ? (int64_t)stride : 0;
        stride *= axis < rank && extent[axis] > 0 ? (uint64_t)extent[axis] : 1;
    }
    return tensor;
}

/* Bytes of one element; 0 for an unknown type. */
FWA_API size_t fwa_dtype_size(int32_t dtype);
/* "f32", "bf16", "f16", "f64", "i32", "i64", "none"; static. */
FWA_API const char *fwa_dtype_name(int32_t dtype);

/* ---- Contexts: a backend, a device, threads ------------------------------------------------- */

typedef struct fwa_context fwa_context;

/* Runs task(task_data, i) for every i in [0, count), in any order, on any threads, and returns when
 * all are done. Must run every index exactly once; running them one after another is fine. */
typedef void (*fwa_parallel_for)(void *user, int64_t count,
                                 void (*task)(void *task_data, int64_t i), void *task_data);

typedef struct fwa_context_options {
    size_t struct_size;
    const char *backend; /* "cpu" (NULL means this), "reference", or a module: "cuda", "hip" */
    int32_t device;      /* index of the backend's device, default 0 */
    int32_t threads; /* most threads a call uses, 1 to 4096; 0: what OpenMP, the affinity mask and
                        a control group's quota allow when the context is created */
    fwa_parallel_for parallel_for; /* NULL: own threads. Else calls run `threads` tasks in this */
    void *parallel_for_user;       /* handed to parallel_for */
} fwa_context_options;
#define FWA_CONTEXT_OPTIONS_INIT                                                                   \
    {                                                                                              \
        sizeof(fwa_context_options), NULL, 0, 0, NULL, NULL                                        \
    }

/* Makes a context; options may be NULL (the CPU, all threads). Backends are never chosen by what
 * the machine has, since the pointers of all calls must lie in the backend's memory. May load a
 * module. Errors: NULL, STRUCT_SIZE, VALUE, NO_BACKEND, ABI, UNSUPPORTED (FWA_CPU_ISA names kernels
 * that this machine cannot run), DEVICE, MEMORY. Thread-safe. */
FWA_API fwa_status fwa_context_create(const fwa_context_options *options, fwa_context **context);
/* Frees it; NULL is fine. Plans made from it must be gone. */
FWA_API void fwa_context_destroy(fwa_context *context);
/* "cpu"; lives as long as the context. */
FWA_API const char *fwa_context_backend(const fwa_context *context);
/* The device in words, "AMD EPYC 9655, avx512"; lives as long as the context. */
FWA_API const char *fwa_context_device(const fwa_context *context);
/* The most threads that a call will use. */
FWA_API int32_t fwa_context_threads(const fwa_context *context);

/* Memory that the device can reach, for tools and tests (engines have their own). Zero bytes are
 * fine. Device backends' copies wait for the device. */
FWA_API fwa_status fwa_memory_allocate(fwa_context *context, size_t size, void **memory);
FWA_API void fwa_memory_free(fwa_context *context, void *memory);
FWA_API fwa_status fwa_memory_write(fwa_context *context, void *device, const void *host,
                                    size_t size);
FWA_API fwa_status fwa_memory_read(fwa_context *context, void *host, const void *device,
                                   size_t size);

/* ---- Backends ------------------------------------------------------------------------------- */

typedef struct fwa_backend_info {
    size_t struct_size;
    char name[32];
    char description[128]; /* "" where the backend is absent */
    char origin[512];      /* "built in", or the path where the module is or was looked for */
    char reason[512];      /* "" where it is present, else why it is absent */
    int32_t available;     /* 1 where a context can be made */
    int32_t device_count;
} fwa_backend_info;
#define FWA_BACKEND_INFO_INIT                                                                      \
    {                                                                                              \
        sizeof(fwa_backend_info), "", "", "", "", 0, 0                                             \
    }

/* How many backends are known: built in, in the module directory, or looked for in vain. */
FWA_API int32_t fwa_backend_count(void);
/* The index-th of them, in the order of preference. Loads modules that were not loaded yet. Errors:
 * NULL, STRUCT_SIZE, VALUE. Thread-safe. */
FWA_API fwa_status fwa_backend_get(int32_t index, fwa_backend_info *info);

/* ---- Problems ------------------------------------------------------------------------------- */

typedef enum fwa_objective {
    FWA_OBJECTIVE_REGRESSION = 0,   /* write the residual v - S^T x (section 4; falcon1, 2, 3) */
    FWA_OBJECTIVE_INNER_PRODUCT = 1 /* write v itself (falcon1a, 2a, 3a) */
} fwa_objective;

typedef enum fwa_dynamics {
    FWA_DYNAMICS_PER_HEAD = 0,   /* one beta per head */
    FWA_DYNAMICS_PER_CHANNEL = 1 /* one beta per value channel (falcon2, falcon2a); window 1 only */
} fwa_dynamics;

typedef enum fwa_alignment {
    FWA_ALIGNMENT_NEXT_LATENT = 0, /* the pair is (k_{t-1}, v_t); a fresh sequence's first token
                                      neither writes nor decays (section 3) */
    FWA_ALIGNMENT_SAME_STEP = 1    /* the pair is (k_t, v_t) */
} fwa_alignment;

typedef enum fwa_read {
    FWA_READ_AFTER_WRITE = 0, /* o_t = scale S_t^T q_t (fig. 11) */
    FWA_READ_BEFORE_WRITE = 1 /* o_t = scale S_{t-1}^T q_t */
} fwa_read;

typedef enum fwa_step {
    FWA_STEP_NORMALIZED = 0, /* eta = beta / (E + lambda + eps) */
    FWA_STEP_DIRECT = 1      /* beta is eta itself */
} fwa_step;

typedef enum fwa_ridge {
    FWA_RIDGE_ACTUAL = 0,            /* lambda as given */
    FWA_RIDGE_SCALE_COUPLED = 1,     /* lambda = given * E; no gradient flows through that E */
    FWA_RIDGE_SCALE_COUPLED_LIVE = 2 /* the same, and the gradient flows */
} fwa_ridge;

typedef enum fwa_prediction {
    FWA_PREDICTION_PREVIOUS = 0, /* residual against S_{t-1} */
    FWA_PREDICTION_DECAYED = 1   /* residual against gamma_t S_{t-1} (DeltaNet's convention) */
} fwa_prediction;

typedef enum fwa_norm {
    FWA_NORM_NONE = 0,
    FWA_NORM_L2 = 1, /* u / sqrt(sum u^2 + norm_eps) */
    FWA_NORM_RMS = 2 /* u / sqrt(mean u^2 + norm_eps) */
} fwa_norm;

typedef enum fwa_feature_map {
    FWA_FEATURE_MAP_IDENTITY = 0,
    FWA_FEATURE_MAP_RELU = 1,
    FWA_FEATURE_MAP_ELU1 = 2 /* elu(u) + 1 */
} fwa_feature_map;

/* How a call computes; what it computes never depends on it. */
typedef enum fwa_form {
    FWA_FORM_AUTO = 0,      /* chunked where the backend has it, else recurrent */
    FWA_FORM_RECURRENT = 1, /* token by token */
    FWA_FORM_MASKED = 2,    /* a sequence as one block, O(T^2): for inspection and tests */
    FWA_FORM_CHUNKED = 3    /* blocks of tokens, dense inside: the fast one */
} fwa_form;

typedef struct fwa_problem {
    size_t struct_size;
    /* The rule. */
    int32_t objective;  /* fwa_objective */
    int32_t dynamics;   /* fwa_dynamics */
    int32_t window;     /* B, pairs that each step uses, 1 to 32; > 1 needs PER_HEAD. Default 1 */
    int32_t alignment;  /* fwa_alignment */
    int32_t read;       /* fwa_read */
    int32_t step;       /* fwa_step */
    int32_t ridge;      /* fwa_ridge */
    int32_t prediction; /* fwa_prediction */
    /* The features: x = phi(norm(k)), and the same for q. */
    int32_t qk_norm; /* fwa_norm */
    int32_t phi;     /* fwa_feature_map */
    /* 1: divide the output by z^T q + eps_attn, z_t = gamma z_{t-1} + eta * mean of the window's x
     * (C.1). Inner product, per head only. Unsafe with features of both signs (C.2): use phi. */
    int32_t normalizer;
    int32_t form; /* fwa_form */
    /* Unless dtype is f64, each of these is 0 or from FLT_MIN to FLT_MAX in size. */
    double eps;         /* in the step size's denominator, >= 0; default 1e-6 */
    double decay_floor; /* least 1 - eta lambda (4.20), in (0, 1]; default 1e-6 */
    double scale;       /* of the output, any finite; default 1 */
    double norm_eps;    /* inside the norm's root, >= 0; default 1e-6 */
    double eps_attn;    /* in the normaliser's denominator, >= 0; default 0 */
    /* Sizes. */
    int32_t heads_query; /* Hq: Hk or Hv; 0 means Hk */
    int32_t heads_key;   /* Hk; default 1 */
    int32_t heads_value; /* Hv, a multiple of Hk; 0 means Hk */
    int32_t key_dim;     /* D, 1 to 256; has no default */
    int32_t value_dim;   /* V, 1 to 256; has no default */
    /* Types. */
    int32_t dtype;       /* of q, k, v, o: F32 (default), BF16, F16; F64 on the reference backend */
    int32_t state_dtype; /* of the carry's state: NONE (default) is F32, F64 where dtype is F64;
                            BF16 and F16 halve a pool and round the state at every call */
} fwa_problem;
#define FWA_PROBLEM_INIT                                                                           \
    {                                                                                              \
        sizeof(fwa_problem), 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1e-6, 1e-6, 1.0, 1e-6, 0.0, 0, 1, \
            0, 0, 0, FWA_DTYPE_F32, FWA_DTYPE_NONE                                                 \
    }

typedef struct fwa_preset {
    const char *name;   /* "gated_deltanet" */
    const char *title;  /* one line of words */
    const char *inputs; /* what beta, lambda and log_gate mean there */
} fwa_preset;

/* Rows of the preset table: falcon1, falcon2, falcon3 (window 4), falcon1a, falcon2a, falcon3a
 * (window 4), the paper's recipes falcon1a.1, falcon1a.2, falcon1a.3, falcon3a.3, and deltanet,
 * gated_deltanet, linear_attention, retnet, lightning_attention, mamba2. NULL past the end. Static.
 */
FWA_API const fwa_preset *fwa_preset_get(int32_t index);
/* Sets the rule, knob and feature fields of an initialised problem; sizes, types, form, eps,
 * decay_floor, scale and norm_eps stay. Errors: NULL, STRUCT_SIZE, VALUE (no such name). */
FWA_API fwa_status fwa_problem_preset(fwa_problem *problem, const char *name);

/* ---- Plans ---------------------------------------------------------------------------------- */

typedef struct fwa_plan fwa_plan;

typedef enum fwa_pass { FWA_PASS_FORWARD = 0, FWA_PASS_BACKWARD = 1 } fwa_pass;

/* Validates the problem and fixes how this context runs it. Errors: NULL, STRUCT_SIZE, VALUE, SHAPE
 * (sizes), DTYPE, UNSUPPORTED, MEMORY. Thread-safe. */
FWA_API fwa_status fwa_plan_create(fwa_context *context, const fwa_problem *problem,
                                   fwa_plan **plan);
/* Frees it; NULL is fine. No call may be running on it. */
FWA_API void fwa_plan_destroy(fwa_plan *plan);
/* What will run: "cpu/avx2/chunked/64/regression/head/window1/f32/forward"; lives as long as the
 * plan. */
FWA_API const char *fwa_plan_kernel_name(const fwa_plan *plan, fwa_pass pass);
/* Bytes of workspace for calls up to this size: `batch` rows of `tokens` tokens holding `sequences`
 * sequences (sequences = batch without cu_seqlens; batch = 1 with it). Never falls when an argument
 * grows. 0: pass NULL. The backward's workspace has room for what the forward would have saved:
 * O(tokens / chunk) states, and for some rules a row of values per token. Errors: NULL, VALUE,
 * SHAPE (negative or too large). */
FWA_API fwa_status fwa_plan_workspace_size(const fwa_plan *plan, fwa_pass pass, int64_t batch,
                                           int64_t tokens, int64_t sequences, size_t *size);
/* Bytes of the optional buffer through which the forward spares the backward a pass. */
FWA_API fwa_status fwa_plan_saved_size(const fwa_plan *plan, int64_t batch, int64_t tokens,
                                       int64_t sequences, size_t *size);

/* workspace and saved must be aligned to this: what malloc gives. */
#define FWA_BUFFER_ALIGNMENT 16

/* ---- Carries -------------------------------------------------------------------------------- */

/* What a sequence needs to go on (C.5, C.7). N is the number of sequences, or of slots of a pool.
 */
typedef struct fwa_carry {
    fwa_tensor seen;  /* int64 [N]: tokens consumed so far; 0, or absent, is a fresh sequence */
    fwa_tensor state; /* state_dtype [N, Hv, D, V]: S. Read even where seen is 0; absent: zeros */
    fwa_tensor prev_key; /* [N, Hk, D], next_latent: the raw last key. Read where seen > 0 */
    fwa_tensor
        tail_key; /* [N, B-1, Hk, D], window B > 1: raw write keys of the last pairs, newest */
    fwa_tensor
        tail_value;  /* [N, B-1, Hv, V]  last. Slots never filled are ignored, and written as 0 */
    fwa_tensor norm; /* [N, Hv, D], normalizer: z. Read even where seen is 0; absent: zeros */
} fwa_carry;

/* A caller's team: every member calls the same function with the same arguments but its own
 * `member`; the work is shared between them (between as many as the context has threads), and each
 * returns when all of it is done. */
typedef struct fwa_team {
    int32_t member; /* 0 .. size - 1 */
    int32_t size;
    void (*barrier)(void *user); /* returns when all members have called it */
    void *user;
} fwa_team;

#define FWA_SLOT_NONE                                                                              \
    (-1) /* in either array: a padded row: nothing is read, its outputs are zeros,                 \
            no carry is written */
#define FWA_SLOT_FRESH                                                                             \
    (-2) /* slot_in: start from zeros, whatever the pool holds;                                    \
            slot_out: write no carry */

typedef struct fwa_forward_args {
    size_t struct_size;
    fwa_tensor q, k, v;
    fwa_tensor beta;       /* absent: 1 */
    fwa_tensor lambda;     /* absent: 0 */
    fwa_tensor log_gate;   /* absent: 0 */
    fwa_tensor cu_seqlens; /* absent: the batch rows are the sequences */
    fwa_carry carry_in;    /* parts may be absent: fresh sequences */
    fwa_carry carry_out;   /* parts may be absent: not wanted. A part may be the same memory as
                              carry_in's (in place); no other output may overlap anything */
    fwa_tensor slot_in;  /* int32 [N], absent: row n. Rows of carry_in's pool; -1, -2: see above */
    fwa_tensor slot_out; /* int32 [N], absent: as slot_in where that is given, else row n */
    fwa_tensor commit; /* int32 [N], 0 .. length: the carry written is the one after so many tokens
                          of this call; 0 hands carry_in over bit for bit. Absent: all */
    fwa_tensor o;      /* output */
    fwa_tensor mask;   /* optional output of FWA_FORM_MASKED without cu_seqlens, F32 (F64):
                          [batch, Hv, T, T], per channel [batch, Hv, V, T, T]: the weight with
                          which pair j stands in the state that token t reads, decay and step
                          sizes together (for regression with a window: residuals held fixed) */
    void *workspace;
    size_t workspace_size;
    void *saved; /* optional, for fwa_backward */
    size_t saved_size;
    void *stream;         /* device backends: the stream to run on; else ignored */
    const fwa_team *team; /* optional, host backends */
} fwa_forward_args;
#define FWA_FORWARD_ARGS_INIT fwa_forward_args_init()
static inline fwa_forward_args fwa_forward_args_init(void)
{
    fwa_forward_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    return args;
}

/* o = rule(q, k, v, ...) and the carry after it. Errors: all of the argument errors above,
 * WORKSPACE, SEQUENCE, UNSUPPORTED, DEVICE; nothing was written then. Zero sizes (batch, T or N =
 * 0) are fine. Two rows of slot_out must not name one slot; a slot may be read by any number of
 * rows, one that another row writes included: all rows see the pool as it was before the call.
 * Thread-safe. */
FWA_API fwa_status fwa_forward(const fwa_plan *plan, const fwa_forward_args *args);

typedef struct fwa_backward_args {
    size_t struct_size;
    fwa_tensor q, k, v, beta, lambda, log_gate, cu_seqlens; /* as in the forward */
    fwa_carry carry_in;
    fwa_tensor slot_in;       /* as in the forward; gradients of a carry have row n, not a slot */
    fwa_tensor commit;        /* must be absent: commit is for inference */
    fwa_tensor o_grad;        /* given: the gradient that reaches o */
    fwa_carry carry_out_grad; /* given, optional: the gradient that reaches the final carry (without
                                 seen); absent parts are zeros */
    fwa_tensor q_grad, k_grad, v_grad, beta_grad, lambda_grad, log_gate_grad; /* outputs, each
                                 optional, shaped as the input; per-channel beta_grad has V */
    fwa_carry carry_in_grad; /* outputs, each optional (without seen); state has F32 (F64) */
    void *workspace;
    size_t workspace_size;
    const void *saved; /* what the forward of the same arguments wrote, or NULL. Rows that its
                          slot_out padded (-1) are not in it: then NULL */
    size_t saved_size;
    void *stream;
    const fwa_team *team;
} fwa_backward_args;
#define FWA_BACKWARD_ARGS_INIT fwa_backward_args_init()
static inline fwa_backward_args fwa_backward_args_init(void)
{
    fwa_backward_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    return args;
}

/* The gradients of all inputs. Errors as in fwa_forward. Thread-safe. */
FWA_API fwa_status fwa_backward(const fwa_plan *plan, const fwa_backward_args *args);

#ifdef __cplusplus
}
#endif

#endif
