/* SPDX-License-Identifier: Apache-2.0 */
/* The effective attention matrix P of one head and sequence: o = P v at S_0 = 0. It is the run of
 * the problem with v = identity, whose outputs are the columns of P, in blocks of columns. The
 * problem is cut down to the one head and sequence and handed to the library as a problem file in
 * memory. */
#include "tool.h"

#include "../files/element.h"
#include "picture.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_LIMIT  256  /* columns of P a run: the largest value_dim */
#define TOKEN_LIMIT  8192 /* P then takes 256 MiB */
#define DEFAULT_SIZE 1024

typedef struct mask_request {
    const char *input, *output, *backend, *what;
    int head, channel, sequence, logarithmic, size, threads;
} mask_request;

/* Where the one head and sequence lie in the file. */
typedef struct slice {
    const safetensors *file;
    fwa_problem problem;
    int64_t row, first, tokens; /* batch row, first token in it, length */
    int64_t sequence, head, key_head, query_head, channel;
} slice;

static int bad(safetensors_message *message, const char *name, int64_t value, int64_t count)
{
    snprintf(message->text, sizeof message->text, "--%s is %lld; it runs from 0 to %lld", name,
             (long long)value, (long long)count - 1);
    return -1;
}

static int64_t bound_at(const safetensors_tensor *bounds, int64_t n)
{
    return bounds->dtype == FWA_DTYPE_I64 ? ((const int64_t *)bounds->data)[n]
                                          : ((const int32_t *)bounds->data)[n];
}

/* The file has run once: the library has checked every shape and cu_seqlens. */
static tool_exit slice_find(const safetensors *file, const mask_request *request, slice *part,
                            safetensors_message *message)
{
    problem_extent extent;
    memset(part, 0, sizeof *part);
    part->file = file;
    if (problem_file_read_problem(file, &part->problem, message) ||
        problem_file_extent(file, &extent, message))
        return TOOL_BAD_FILE;
    const fwa_problem *problem = &part->problem;
    if (request->head < 0 || request->head >= problem->heads_value)
        return bad(message, "head", request->head, problem->heads_value), TOOL_USAGE;
    if (request->channel < 0 || request->channel >= problem->value_dim)
        return bad(message, "channel", request->channel, problem->value_dim), TOOL_USAGE;
    if (extent.sequences == 0) {
        snprintf(message->text, sizeof message->text,
                 "the file has no sequence to make a picture of");
        return TOOL_LIBRARY;
    }
    if (request->sequence < 0 || request->sequence >= extent.sequences)
        return bad(message, "sequence", request->sequence, extent.sequences), TOOL_USAGE;
    const safetensors_tensor *bounds = safetensors_find(file, "cu_seqlens");
    part->sequence = request->sequence;
    part->row = bounds == NULL ? request->sequence : 0;
    part->first = bounds == NULL ? 0 : bound_at(bounds, part->sequence);
    part->tokens = bounds == NULL ? extent.tokens
                                  : bound_at(bounds, part->sequence + 1) - part->first;
    part->head = request->head;
    part->key_head = request->head / (problem->heads_value / problem->heads_key);
    part->query_head = problem->heads_query == problem->heads_value ? part->head : part->key_head;
    part->channel = request->channel;
    if (part->tokens >= 1 && part->tokens <= TOKEN_LIMIT)
        return TOOL_OK;
    snprintf(message->text, sizeof message->text,
             "sequence %lld has %lld tokens; a picture needs 1 to %d", (long long)part->sequence,
             (long long)part->tokens, TOKEN_LIMIT);
    return TOOL_LIBRARY;
}

/* ---- The cut-down problem ---- */

/* What is taken of one axis of a tensor: `count` entries from `start` in steps of `step`. */
typedef struct axis_cut {
    int64_t start, count, step;
} axis_cut;

static axis_cut cut_axis(const slice *part, char letter, int64_t extent, int64_t width)
{
    const struct {
        char letter;
        axis_cut cut;
    } cuts[] = {
        {'B', {part->row, 1, 1}},         {'T', {part->first, part->tokens, 1}},
        {'N', {part->sequence, 1, 1}},    {'q', {part->query_head, 1, 1}},
        {'k', {part->key_head, 1, 1}},    {'v', {part->head, 1, 1}},
        {'c', {part->channel, width, 0}}, /* one channel's beta for all columns */
    };
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (cuts[i].letter == letter)
            return cuts[i].cut;
    const axis_cut whole = {0, extent, 1};
    return whole;
}

static int cut_tensor(const slice *part, const problem_tensor *row, int64_t width, safetensors *out,
                      safetensors_message *message)
{
    const safetensors_tensor *from = safetensors_find(part->file, row->name);
    axis_cut cuts[FWA_MAX_RANK];
    int64_t shape[FWA_MAX_RANK], stride[FWA_MAX_RANK], step = 1;
    for (int32_t axis = from->rank - 1; axis >= 0; axis--) {
        cuts[axis] = cut_axis(part, row->axes[axis], from->shape[axis], width);
        shape[axis] = cuts[axis].count;
        stride[axis] = step;
        step *= from->shape[axis];
    }
    safetensors_tensor *to = safetensors_add(out, row->name, from->dtype, from->rank, shape,
                                             message);
    if (to == NULL)
        return -1;
    for (int64_t i = 0; i < safetensors_elements(to); i++) {
        int64_t rest = i, offset = 0;
        for (int32_t axis = from->rank - 1; axis >= 0; axis--) {
            offset += (cuts[axis].start + rest % shape[axis] * cuts[axis].step) * stride[axis];
            rest /= shape[axis];
        }
        const size_t size = fwa_dtype_size(from->dtype);
        memcpy((char *)to->data + (size_t)i * size, (char *)from->data + (size_t)offset * size,
               size);
    }
    return 0;
}

/* v = columns `first` .. `first + width - 1` of the identity. */
static int add_identity(const slice *part, int64_t first, int64_t width, safetensors *out,
                        safetensors_message *message)
{
    const int64_t shape[] = {1, part->tokens, 1, width};
    safetensors_tensor *v = safetensors_add(out, "v", FWA_DTYPE_F64, 4, shape, message);
    if (v == NULL)
        return -1;
    for (int64_t j = 0; j < width; j++)
        ((double *)v->data)[(first + j) * width + j] = 1;
    return 0;
}

static int add_zero_tail(const slice *part, int64_t width, safetensors *out,
                         safetensors_message *message)
{
    const int64_t shape[] = {1, part->problem.window - 1, 1, width};
    return safetensors_add(out, "tail_value_in", FWA_DTYPE_F64, 4, shape, message) == NULL ? -1 : 0;
}

/* The problem of the one head and sequence with a block of the identity for v, S_0 = 0 and, where
 * the sequence goes on from an earlier call, that call's values 0. */
static safetensors *cut_problem(const slice *part, int64_t first, int64_t width,
                                safetensors_message *message)
{
    safetensors *out = safetensors_new(message);
    int failed = out == NULL || problem_file_write_problem(out, &part->problem, message) ||
                 add_identity(part, first, width, out, message);
    for (int32_t i = 0; i < PROBLEM_TENSORS && !failed; i++) {
        const problem_tensor *row = problem_tensor_get(i);
        if (row->role != PROBLEM_INPUT || row->type == PROBLEM_TYPE_INDEX ||
            safetensors_find(part->file, row->name) == NULL ||
            !problem_tensor_applies(row, &part->problem))
            continue;
        if (strchr(row->axes, 'V') == NULL)
            failed = cut_tensor(part, row, width, out, message);
        else if (strcmp(row->name, "tail_value_in") == 0)
            failed = add_zero_tail(part, width, out, message);
    }
    if (!failed)
        return out;
    safetensors_free(out);
    return NULL;
}

/* ---- The matrix ---- */

/* Fills the columns [first, first + width) of the matrix, or all of it from the mask. */
static tool_exit fill_block(const slice *part, const problem_run_options *options, int64_t first,
                            int64_t width, float *matrix, safetensors_message *message)
{
    problem_answer answer;
    safetensors *problem = cut_problem(part, first, width, message);
    if (problem == NULL)
        return TOOL_LIBRARY;
    const problem_run_result result = problem_run(problem, options, &answer, message);
    safetensors_free(problem);
    if (result != PROBLEM_RUN_OK)
        return tool_run_exit(result, answer.status);
    const char *name = options->mask ? "mask" : "o";
    const double *block = safetensors_find(answer.results, name)->data;
    const int64_t columns = options->mask ? part->tokens : width;
    for (int64_t t = 0; t < part->tokens; t++)
        for (int64_t j = 0; j < columns; j++)
            matrix[t * part->tokens + first + j] = (float)block[t * columns + j];
    problem_answer_free(&answer);
    return TOOL_OK;
}

static tool_exit fill_matrix(const slice *part, const problem_run_options *options, float *matrix,
                             safetensors_message *message)
{
    if (options->mask)
        return fill_block(part, options, 0, 1, matrix, message);
    tool_exit code = TOOL_OK;
    tool_progress progress = tool_progress_begin(part->tokens);
    for (int64_t first = 0; first < part->tokens && code == TOOL_OK; first += BLOCK_LIMIT) {
        const int64_t left = part->tokens - first;
        tool_progress_show(&progress, first, "columns");
        code = fill_block(part, options, first, left < BLOCK_LIMIT ? left : BLOCK_LIMIT, matrix,
                          message);
    }
    tool_progress_clear(&progress);
    return code;
}

static tool_exit draw(const slice *part, const mask_request *request,
                      const problem_run_options *options, safetensors_message *message)
{
    const size_t entries = (size_t)part->tokens * (size_t)part->tokens;
    const int tokens = (int)part->tokens;
    const int size = request->size > 0        ? request->size
                     : tokens >= DEFAULT_SIZE ? DEFAULT_SIZE
                                              : tokens * (DEFAULT_SIZE / tokens);
    float *matrix = calloc(entries, sizeof *matrix);
    if (matrix == NULL) {
        snprintf(message->text, sizeof message->text, "no memory for %d x %d entries", tokens,
                 tokens);
        return TOOL_LIBRARY;
    }
    tool_exit code = fill_matrix(part, options, matrix, message);
    if (code == TOOL_OK)
        code = picture_write(request->output, matrix, part->tokens, size, request->logarithmic,
                             message);
    if (code == TOOL_OK)
        printf(
            "%s: %s matrix of sequence %d, head %d, %d x %d tokens on %d x %d pixels; white is 0, "
            "red positive, blue negative, full colour %g%s\n",
            request->output, request->what, request->sequence, request->head, tokens, tokens, size,
            size, (double)picture_scale(matrix, part->tokens),
            request->logarithmic ? ", a sixth less for every factor of ten" : "");
    free(matrix);
    return code;
}

/* ---- The command ---- */

static tool_exit mask_file(const mask_request *request, const safetensors *file,
                           problem_run_options *options, safetensors_message *message)
{
    slice part;
    problem_answer whole;
    tool_exit code = tool_plan_dtype(file, options->context, &options->dtype, message);
    if (code != TOOL_OK)
        return code;
    /* One run of the file as it is: the library checks everything that the cutting relies on. */
    const problem_run_result result = problem_run(file, options, &whole, message);
    if (result != PROBLEM_RUN_OK)
        return tool_run_exit(result, whole.status);
    problem_answer_free(&whole);
    code = slice_find(file, request, &part, message);
    if (code != TOOL_OK)
        return code;
    options->mask = strcmp(request->what, "mask") == 0;
    options->form = options->mask ? FWA_FORM_MASKED : FWA_FORM_AUTO;
    return draw(&part, request, options, message);
}

static tool_exit mask_run(const mask_request *request)
{
    safetensors_message message = {""};
    problem_run_options options = {0};
    tool_exit code = tool_context(request->backend, request->threads, &options.context);
    if (code != TOOL_OK)
        return code;
    safetensors *file = safetensors_read(request->input, &message);
    if (file == NULL) {
        tool_error("%s", message.text);
        code = TOOL_BAD_FILE;
    } else {
        code = mask_file(request, file, &options, &message);
        if (code == TOOL_USAGE || code == TOOL_OUTPUT)
            tool_error("%s", message.text);
        else if (code != TOOL_OK)
            tool_error("%s: %s", request->input, message.text);
    }
    safetensors_free(file);
    fwa_context_destroy(options.context);
    return code;
}

static tool_exit check_request(const mask_request *request, const char *title)
{
    if (request->output == NULL) {
        tool_error("-o OUT.png is missing (try %s --help)", title);
        return TOOL_USAGE;
    }
    if (strcmp(request->what, "effective") != 0 && strcmp(request->what, "mask") != 0) {
        tool_error("--what is '%s'; it must be effective or mask", request->what);
        return TOOL_USAGE;
    }
    if (request->size < 0 || request->size > PICTURE_LIMIT) {
        tool_error("--size is %d; it runs from 1 to %d", request->size, PICTURE_LIMIT);
        return TOOL_USAGE;
    }
    return TOOL_OK;
}

int tool_mask(int argc, const char **argv)
{
    tool_engine engine = {0};
    mask_request request = {0};
    char *output = NULL, *what = NULL;
    const char *const *left;
    poptContext context;
    const struct poptOption options[] = {
        {"output", 'o', POPT_ARG_STRING, &output, 0, "the picture (required)", "OUT.png"},
        {"head", 'H', POPT_ARG_INT, &request.head, 0, "value head (default 0)", "H"},
        {"channel", 'c', POPT_ARG_INT, &request.channel, 0,
         "value channel whose beta is shown, per-channel rules (default 0)", "C"},
        {"sequence", 'n', POPT_ARG_INT, &request.sequence, 0, "sequence (default 0)", "N"},
        {"what", 'w', POPT_ARG_STRING, &what, 0,
         "effective: P with o = P v (default); mask: decays and step sizes alone", "WHAT"},
        {"log", 'l', POPT_ARG_NONE, &request.logarithmic, 0, "logarithmic colours, six decades",
         NULL},
        {"size", 'S', POPT_ARG_INT, &request.size, 0, "pixels a side (default: about 1024)",
         "PIXELS"},
        TOOL_OPTION_BACKEND(engine, "backend (default cpu)"),
        TOOL_OPTION_THREADS(engine),
        POPT_AUTOHELP POPT_TABLEEND};
    tool_exit code = tool_parse(argc, argv, options, "IN -o OUT.png [OPTION...]", 1, 1, &context,
                                &left);
    if (code == TOOL_OK) {
        request.input = left[0];
        request.output = output;
        request.what = what == NULL ? "effective" : what;
        request.backend = engine.backend;
        request.threads = engine.threads;
        code = check_request(&request, argv[0]);
    }
    if (code == TOOL_OK)
        code = mask_run(&request);
    poptFreeContext(context);
    tool_engine_free(&engine);
    free(output);
    free(what);
    return code;
}
