/* SPDX-License-Identifier: Apache-2.0 */
/* The file layer: safetensors, problem files, the definition of errors, running and verifying. */
#include "../src/files/compare.h"
#include "../src/files/problem_answer.h"
#include "../src/files/problem_verify.h"
#include "../src/files/safetensors.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The vectors are in the folder that the build names. */
static const char *vectors(void)
{
    const char *folder = getenv("FWA_VECTORS");
    return folder ? folder : "tests/vectors";
}

static char *vector_path(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s.safetensors", vectors(), name);
    return path;
}

static void expect_words(const safetensors_message *message, const char *words, const char *what)
{
    cr_expect_not_null(strstr(message->text, words), "%s: '%s' does not say '%s'", what,
                       message->text, words);
}

/* ---- Malformed bytes
 * ----------------------------------------------------------------------------- */

/* A file image: the header's length, the header, `data` zero bytes. */
static unsigned char *image(const char *header, size_t length, size_t data, size_t *size)
{
    *size = 8 + length + data;
    unsigned char *bytes = calloc(*size, 1);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    return bytes;
}

#define ENTRY(type, shape, offsets)                                                                \
    "{\"a\":{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TENSOR(name, offsets)                                                                      \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    const char *words;
} malformed[] = {
    {"", 0, "the header is no JSON"},
    {"{", 0, "the header is no JSON"},
    {"{} x", 0, "the header is no JSON"},
    {"[]", 0, "no JSON object"},
    {"{\"a\":5}", 0, "tensor 'a' is not described by dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor 'a' is not described"},
    {ENTRY("7", "[1]", "[0,4]"), 4, "tensor 'a' has no 'dtype' string"},
    {ENTRY("\"U8\"", "[4]", "[0,4]"), 4, "type 'U8', which is none of F64 F32 F16 BF16 I32 I64"},
    {ENTRY("\"f32\"", "[1]", "[0,4]"), 4, "type 'f32'"},
    {ENTRY("\"F32\"", "1", "[0,4]"), 4, "no 'shape' list"},
    {ENTRY("\"F32\"", "[1.5]", "[0,4]"), 4, "extent 0 is no integer"},
    {ENTRY("\"F32\"", "[1,-1]", "[0,4]"), 4, "extent 1 is -1; it must be >= 0"},
    {ENTRY("\"F32\"", "[1,1,1,1,1,1]", "[0,4]"), 4, "rank 6; the most is 5"},
    {ENTRY("\"F32\"", "[4611686018427387904,4]", "[0,4]"), 4, "no 63-bit product"},
    {ENTRY("\"F32\"", "[2305843009213693952]", "[0,4]"), 4, "no 63-bit product"},
    {ENTRY("\"F32\"", "[99999999999999999999]", "[0,4]"), 4, "the header is no JSON"},
    {ENTRY("\"F32\"", "[1]", "[0]"), 4, "no 'data_offsets' of two integers"},
    {ENTRY("\"F32\"", "[1]", "[0,4.0]"), 4, "no 'data_offsets' of two integers"},
    {ENTRY("\"F32\"", "[1]", "{}"), 4, "no 'data_offsets' of two integers"},
    {ENTRY("\"F32\"", "[1]", "[-4,0]"), 4, "[-4, 0] do not lie in the 4 bytes of data"},
    {ENTRY("\"F32\"", "[1]", "[4,0]"), 4, "[4, 0] do not lie in the 4 bytes of data"},
    {ENTRY("\"F32\"", "[1]", "[0,4]"), 3, "[0, 4] do not lie in the 3 bytes of data"},
    {ENTRY("\"F32\"", "[2]", "[0,4]"), 4, "takes 8 bytes by its shape and type"},
    {ENTRY("\"F16\"", "[1]", "[0,4]"), 4, "takes 2 bytes by its shape and type"},
    {ENTRY("\"F32\"", "[1]", "[4,8]"), 8,
     "begins at byte 4 of the data, which leaves a hole after 0"},
    {ENTRY("\"F32\"", "[1]", "[0,4]"), 7, "3 bytes follow the last tensor"},
    {"{}", 1, "1 bytes follow the last tensor"},
    {"{" TENSOR("a", "[0,4]") "," TENSOR("b", "[2,6]") "}", 6, "inside the tensor that ends at 4"},
    {"{" TENSOR("b", "[8,12]") "," TENSOR("a", "[0,4]") "}", 12, "leaves a hole after 4"},
    {"{" TENSOR("a", "[0,4]") "," TENSOR("a", "[4,8]") "}", 8, "duplicate"},
    {"{" TENSOR("", "[0,4]") "}", 4, "name is empty"},
    {"{" TENSOR("a\\u0007", "[0,4]") "}", 4, "control characters"},
    {"{" TENSOR("a\\u0000", "[0,4]") "}", 4, "the header is no JSON"},
    {"{" TENSOR("\xff", "[0,4]") "}", 4, "the header is no JSON"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
    {"{\"__metadata__\":{\"eps\":0}}", 0, "metadata 'eps' is no string"},
};

Test(safetensors, malformed_headers)
{
    for (size_t i = 0; i < COUNT(malformed); i++) {
        safetensors_message message = {""};
        size_t size;
        unsigned char *bytes = image(malformed[i].header, strlen(malformed[i].header),
                                     malformed[i].data, &size);
        cr_expect_null(safetensors_parse(bytes, size, &message), "%s", malformed[i].header);
        expect_words(&message, malformed[i].words, malformed[i].header);
        free(bytes);
    }
}

Test(safetensors, header_length)
{
    static const struct {
        uint64_t length;
        const char *words;
    } lengths[] = {
        {3, "claims a header of 3 bytes; the file has 2"},
        {100000001, "claims a header of 100000001 bytes"},
        {UINT64_MAX, "claims a header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, "claims a header of 18446744073709551608 bytes"},
    };
    for (size_t i = 0; i < COUNT(lengths); i++) {
        unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        safetensors_message message = {""};
        for (int j = 0; j < 8; j++)
            bytes[j] = (unsigned char)(lengths[i].length >> (8 * j));
        cr_expect_null(safetensors_parse(bytes, sizeof bytes, &message));
        expect_words(&message, lengths[i].words, "length");
    }
    for (size_t size = 0; size < 8; size++) {
        const unsigned char bytes[8] = {0};
        safetensors_message message = {""};
        cr_expect_null(safetensors_parse(bytes, size, &message));
        expect_words(&message, "too short for the header's length", "short");
    }
}

/* Recursion in a parser must end in a message. */
Test(safetensors, deep_nesting)
{
    enum { DEPTH = 1000000 };
    char *header = malloc(DEPTH);
    safetensors_message message = {""};
    size_t size;
    memset(header, '[', DEPTH);
    unsigned char *bytes = image(header, DEPTH, 0, &size);
    cr_expect_null(safetensors_parse(bytes, size, &message));
    expect_words(&message, "the header is no JSON", "nesting");
    free(bytes);
    free(header);
}

/* Header keys by the ten thousand take time in proportion. */
Test(safetensors, many_metadata_keys, .timeout = 20)
{
    enum { KEYS = 200000 };
    char *header = malloc(KEYS * 16 + 64), *at = header;
    safetensors_message message = {""};
    size_t size;
    at += sprintf(at, "{\"__metadata__\":{");
    for (int i = 0; i < KEYS; i++)
        at += sprintf(at, "%s\"%d\":\"\"", i ? "," : "", i);
    at += sprintf(at, "}}");
    unsigned char *bytes = image(header, (size_t)(at - header), 0, &size);
    safetensors *file = safetensors_parse(bytes, size, &message);
    cr_assert_not_null(file, "%s", message.text);
    cr_expect_eq(safetensors_metadata_count(file), KEYS);
    safetensors_free(file);
    free(bytes);
    free(header);
}

Test(safetensors, every_truncation_has_a_message)
{
    FILE *stream = fopen(vector_path("falcon3a_one_token"), "rb");
    cr_assert_not_null(stream);
    static unsigned char bytes[1 << 20];
    const size_t size = fread(bytes, 1, sizeof bytes, stream);
    fclose(stream);
    safetensors_message message = {""};
    safetensors *file = safetensors_parse(bytes, size, &message);
    cr_assert_not_null(file, "%s", message.text);
    safetensors_free(file);
    for (size_t length = 0; length < size; length++) {
        /* An exact allocation, so that a sanitizer sees a read beyond it. */
        unsigned char *piece = malloc(length + (length == 0));
        memcpy(piece, bytes, length);
        message.text[0] = '\0';
        file = safetensors_parse(piece, length, &message);
        cr_expect_null(file, "%zu bytes", length);
        cr_expect(strlen(message.text) > 10, "%zu bytes", length);
        free(piece);
    }
}

/* ---- Paths
 * --------------------------------------------------------------------------------------- */

static char *folder(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/fwa-test-files-XXXXXX");
    cr_assert_not_null(mkdtemp(path));
    return path;
}

static int entries_in(const char *path)
{
    DIR *listing = opendir(path);
    int count = 0;
    while (readdir(listing) != NULL)
        count++;
    closedir(listing);
    return count - 2; /* . and .. */
}

Test(safetensors, odd_paths)
{
    char path[256];
    const char *base = folder();
    safetensors_message message = {""};
    cr_expect_null(safetensors_read(base, &message));
    expect_words(&message, "it is a directory", "folder");
    expect_words(&message, base, "the path is named");

    snprintf(path, sizeof path, "%s/none", base);
    cr_expect_null(safetensors_read(path, &message));
    expect_words(&message, "No such file", "none");

    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_expect_null(safetensors_read(path, &message));
    expect_words(&message, "it is not a regular file", "fifo");
    safetensors *file = safetensors_new(&message);
    cr_expect_eq(safetensors_write(file, path, &message), -1);
    expect_words(&message, "it is not a regular file", "fifo");
    unlink(path);

    cr_expect_eq(safetensors_write(file, base, &message), -1);
    expect_words(&message, "it is a directory", "folder");
    snprintf(path, sizeof path, "%s/none/file", base);
    cr_expect_eq(safetensors_write(file, path, &message), -1);
    expect_words(&message, "No such file", "missing folder");

    snprintf(path, sizeof path, "%s/empty", base);
    fclose(fopen(path, "wb"));
    cr_expect_null(safetensors_read(path, &message));
    expect_words(&message, "0 bytes, too short", "empty");
    unlink(path);
    safetensors_free(file);
    cr_expect_eq(entries_in(base), 0);
    rmdir(base);
}

/* ---- Round trip
 * ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int32_t dtype, rank;
    int64_t shape[FWA_MAX_RANK];
    size_t size;
} kinds[] = {
    {"half", FWA_DTYPE_F16, 1, {3}, 6},
    {"double", FWA_DTYPE_F64, 2, {2, 3}, 48},
    {"scalar", FWA_DTYPE_F32, 0, {0}, 4},
    {"brain", FWA_DTYPE_BF16, 3, {1, 5, 1}, 10},
    {"empty", FWA_DTYPE_F64, 3, {4, 0, 2}, 0},
    {"int", FWA_DTYPE_I32, 1, {7}, 28},
    {"größe", FWA_DTYPE_I64, 5, {1, 1, 2, 1, 1}, 16},
};

static safetensors *all_kinds(void)
{
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        safetensors_tensor *tensor = safetensors_add(file, kinds[i].name, kinds[i].dtype,
                                                     kinds[i].rank, kinds[i].shape, &message);
        cr_assert_not_null(tensor, "%s", message.text);
        cr_assert_eq(tensor->size, kinds[i].size);
        for (size_t j = 0; j < tensor->size; j++) {
            cr_assert_eq(((unsigned char *)tensor->data)[j], 0);
            ((unsigned char *)tensor->data)[j] = (unsigned char)(17 * i + 3 * j + 1);
        }
    }
    safetensors_set_metadata(file, "note", "a \"quoted\" ü\n", &message);
    safetensors_set_metadata(file, "rule", "old", &message);
    safetensors_set_metadata(file, "rule", "new", &message);
    return file;
}

static void expect_kinds(const safetensors *file)
{
    cr_expect_eq(safetensors_count(file), (int32_t)COUNT(kinds));
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const safetensors_tensor *tensor = safetensors_find(file, kinds[i].name);
        cr_assert_not_null(tensor);
        cr_expect_eq(tensor->dtype, kinds[i].dtype);
        cr_expect_eq(tensor->rank, kinds[i].rank);
        cr_expect_eq(tensor->size, kinds[i].size);
        cr_expect_eq((uintptr_t)tensor->data % 64, 0u);
        for (int32_t axis = 0; axis < tensor->rank; axis++)
            cr_expect_eq(tensor->shape[axis], kinds[i].shape[axis]);
        for (size_t j = 0; j < tensor->size; j++)
            cr_expect_eq(((unsigned char *)tensor->data)[j], (unsigned char)(17 * i + 3 * j + 1));
    }
    cr_expect_eq(safetensors_metadata_count(file), 2);
    cr_expect_str_eq(safetensors_metadata(file, "note"), "a \"quoted\" ü\n");
    cr_expect_str_eq(safetensors_metadata(file, "rule"), "new");
    cr_expect_null(safetensors_metadata(file, "none"));
}

Test(safetensors, round_trip)
{
    char path[256], link_path[256];
    const char *base = folder();
    safetensors_message message = {""};
    safetensors *file = all_kinds(), *back;
    snprintf(path, sizeof path, "%s/file.safetensors", base);
    snprintf(link_path, sizeof link_path, "%s/link", base);
    cr_assert_eq(safetensors_write(file, path, &message), 0, "%s", message.text);
    expect_kinds(file);
    back = safetensors_read(path, &message);
    cr_assert_not_null(back, "%s", message.text);
    expect_kinds(back);
    safetensors_free(back);

    /* Data begin at a multiple of 8, and writing through a link keeps the link. */
    unsigned char prefix[8];
    FILE *stream = fopen(path, "rb");
    cr_assert_eq(fread(prefix, 1, 8, stream), 8u);
    fclose(stream);
    cr_expect_eq(prefix[0] % 8, 0);
    struct stat status;
    cr_assert_eq(symlink(path, link_path), 0);
    cr_assert_eq(safetensors_write(file, link_path, &message), 0, "%s", message.text);
    cr_assert_eq(lstat(link_path, &status), 0);
    cr_expect(S_ISLNK(status.st_mode));
    cr_expect_eq(entries_in(base), 2, "a temporary file is left");
    unlink(link_path);
    unlink(path);
    rmdir(base);
    safetensors_free(file);
}

Test(safetensors, add_replaces_and_refuses)
{
    static const int64_t two[] = {2}, three[] = {3}, below[] = {-1};
    static const int64_t huge[] = {INT64_MAX, INT64_MAX};
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    safetensors_tensor *first = safetensors_add(file, "a", FWA_DTYPE_F32, 1, two, &message);
    ((float *)first->data)[1] = 5;
    safetensors_tensor *second = safetensors_add(file, "a", FWA_DTYPE_F64, 1, three, &message);
    cr_expect_eq(first, second);
    cr_expect_eq(safetensors_count(file), 1);
    cr_expect_eq(second->size, 24u);
    cr_expect_eq(safetensors_elements(second), 3);
    cr_expect_eq(((double *)second->data)[1], 0);
    cr_expect_null(safetensors_add(file, "", FWA_DTYPE_F32, 1, two, &message));
    cr_expect_null(safetensors_add(file, "__metadata__", FWA_DTYPE_F32, 1, two, &message));
    cr_expect_null(safetensors_add(file, "b", FWA_DTYPE_NONE, 1, two, &message));
    expect_words(&message, "type 0", "type");
    cr_expect_null(safetensors_add(file, "b", FWA_DTYPE_F32, 6, two, &message));
    expect_words(&message, "rank 6", "rank");
    cr_expect_null(safetensors_add(file, "b", FWA_DTYPE_F32, 1, below, &message));
    expect_words(&message, "extent 0 is -1", "extent");
    cr_expect_null(safetensors_add(file, "b", FWA_DTYPE_F32, 2, huge, &message));
    expect_words(&message, "no 63-bit product", "product");
    cr_expect_null(safetensors_get(file, 1));
    cr_expect_null(safetensors_get(file, -1));
    safetensors_free(file);
    safetensors_free(NULL);
}

/* ---- Knobs
 * --------------------------------------------------------------------------------------- */

/* What a metadata pair must give, told apart from the reader's own table. */
static int knob_holds(const fwa_problem *p, const char *key, const char *text)
{
    const struct {
        const char *key, *text;
        int32_t got, want;
    } names[] = {
        {"align", "next_latent", p->alignment, FWA_ALIGNMENT_NEXT_LATENT},
        {"align", "same_step", p->alignment, FWA_ALIGNMENT_SAME_STEP},
        {"read", "after_write", p->read, FWA_READ_AFTER_WRITE},
        {"read", "before_write", p->read, FWA_READ_BEFORE_WRITE},
        {"step", "normalized", p->step, FWA_STEP_NORMALIZED},
        {"step", "direct", p->step, FWA_STEP_DIRECT},
        {"ridge", "actual", p->ridge, FWA_RIDGE_ACTUAL},
        {"ridge", "scale_coupled", p->ridge, FWA_RIDGE_SCALE_COUPLED},
        {"ridge", "scale_coupled_live", p->ridge, FWA_RIDGE_SCALE_COUPLED_LIVE},
        {"predict_from", "previous", p->prediction, FWA_PREDICTION_PREVIOUS},
        {"predict_from", "decayed", p->prediction, FWA_PREDICTION_DECAYED},
        {"qk_norm", "none", p->qk_norm, FWA_NORM_NONE},
        {"qk_norm", "l2", p->qk_norm, FWA_NORM_L2},
        {"qk_norm", "rms", p->qk_norm, FWA_NORM_RMS},
        {"phi", "identity", p->phi, FWA_FEATURE_MAP_IDENTITY},
        {"phi", "relu", p->phi, FWA_FEATURE_MAP_RELU},
        {"phi", "elu1", p->phi, FWA_FEATURE_MAP_ELU1},
        {"normalizer", "0", p->normalizer, 0},
        {"normalizer", "1", p->normalizer, 1},
    };
    const struct {
        const char *key;
        double got;
    } numbers[] = {{"eps", p->eps},           {"decay_floor", p->decay_floor},
                   {"scale", p->scale},       {"norm_eps", p->norm_eps},
                   {"eps_attn", p->eps_attn}, {"window", p->window}};
    for (size_t i = 0; i < COUNT(names); i++)
        if (strcmp(names[i].key, key) == 0 && strcmp(names[i].text, text) == 0)
            return names[i].got == names[i].want;
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (strcmp(numbers[i].key, key) == 0)
            return numbers[i].got == atof(text);
    return 0;
}

static int rule_holds(const fwa_problem *p, const char *rule)
{
    const int adds = rule[strlen(rule) - 1] == 'a', channels = rule[6] == '2';
    return p->objective == (adds ? FWA_OBJECTIVE_INNER_PRODUCT : FWA_OBJECTIVE_REGRESSION) &&
           p->dynamics == (channels ? FWA_DYNAMICS_PER_CHANNEL : FWA_DYNAMICS_PER_HEAD);
}

static void check_vector(const char *path)
{
    safetensors_message message = {""};
    fwa_problem problem, again;
    safetensors *file = safetensors_read(path, &message);
    cr_assert_not_null(file, "%s", message.text);
    cr_assert_eq(problem_file_read_problem(file, &problem, &message), 0, "%s: %s", path,
                 message.text);
    for (int32_t i = 0; i < safetensors_metadata_count(file); i++) {
        const char *key = safetensors_metadata_key(file, i);
        const char *text = safetensors_metadata(file, key);
        if (strcmp(key, "rule") == 0)
            cr_expect(rule_holds(&problem, text), "%s: %s", path, text);
        else if (strcmp(key, "note") != 0)
            cr_expect(knob_holds(&problem, key, text), "%s: %s = %s", path, key, text);
    }
    const int64_t *q = safetensors_find(file, "q")->shape, *v = safetensors_find(file, "v")->shape;
    cr_expect_eq(problem.heads_query, q[2]);
    cr_expect_eq(problem.heads_key, safetensors_find(file, "k")->shape[2]);
    cr_expect_eq(problem.heads_value, v[2]);
    cr_expect_eq(problem.key_dim, q[3]);
    cr_expect_eq(problem.value_dim, v[3]);
    cr_expect_eq(problem.dtype, FWA_DTYPE_F64);
    cr_expect_eq(problem.form, FWA_FORM_AUTO);

    /* Written back over the old knobs and read again: the same problem. */
    cr_assert_eq(problem_file_write_problem(file, &problem, &message), 0, "%s", message.text);
    cr_assert_eq(problem_file_read_problem(file, &again, &message), 0, "%s", message.text);
    /* All fields; nothing but padding follows the last. */
    const size_t fields = offsetof(fwa_problem, state_dtype) + sizeof problem.state_dtype;
    cr_expect_eq(memcmp(&problem, &again, fields), 0, "%s", path);
    safetensors_free(file);
}

Test(problem_file, every_vector)
{
    glob_t found;
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/*.safetensors", vectors());
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "no vectors at %s", pattern);
    cr_expect_eq(found.gl_pathc, 184u);
    for (size_t i = 0; i < found.gl_pathc; i++)
        check_vector(found.gl_pathv[i]);
    globfree(&found);
}

/* ---- Problem files that are wrong
 * ---------------------------------------------------------------- */

static void add(safetensors *file, const char *name, int32_t dtype, int32_t rank, int64_t a,
                int64_t b, int64_t c, int64_t d)
{
    const int64_t shape[] = {a, b, c, d};
    safetensors_message message = {""};
    cr_assert_not_null(safetensors_add(file, name, dtype, rank, shape, &message), "%s",
                       message.text);
}

/* A good problem: batch 2, T 3, Hk 1, Hv 2, D 4, V 5. */
static safetensors *good(const char *rule)
{
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    add(file, "q", FWA_DTYPE_F32, 4, 2, 3, 1, 4);
    add(file, "k", FWA_DTYPE_F32, 4, 2, 3, 1, 4);
    add(file, "v", FWA_DTYPE_F32, 4, 2, 3, 2, 5);
    add(file, "beta", FWA_DTYPE_F32, strchr(rule, '2') ? 4 : 3, 2, 3, 2, 5);
    add(file, "lambda", FWA_DTYPE_F32, 3, 2, 3, 2, 0);
    safetensors_set_metadata(file, "rule", rule, &message);
    return file;
}

static void expect_refused(safetensors *file, const char *words)
{
    fwa_problem problem;
    safetensors_message message = {""};
    cr_expect_eq(problem_file_read_problem(file, &problem, &message), -1, "%s", words);
    expect_words(&message, words, "refused");
    safetensors_free(file);
}

static void expect_metadata_refused(const char *rule, const char *key, const char *value,
                                    const char *words)
{
    safetensors_message message = {""};
    safetensors *file = good(rule);
    safetensors_set_metadata(file, key, value, &message);
    expect_refused(file, words);
}

Test(problem_file, metadata)
{
    static const char *const numbers[] = {"eps", "decay_floor", "scale", "norm_eps", "eps_attn"};
    static const char *const texts[] = {"nan", "inf", "-inf", "1e999", "", " 1", "1 ", "1,5", "x"};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        for (size_t j = 0; j < COUNT(texts); j++) {
            char words[128];
            snprintf(words, sizeof words, "metadata '%s' is '%s'; it must be a finite number",
                     numbers[i], texts[j]);
            expect_metadata_refused("falcon1", numbers[i], texts[j], words);
        }
    }
    expect_metadata_refused("falcon1", "rule", "falcon4", "'rule' is 'falcon4'; it must be one of");
    expect_metadata_refused("falcon1", "epsilon", "1", "metadata 'epsilon' is no knob");
    expect_metadata_refused("falcon1", "align", "same", "it must be one of next_latent, same_step");
    expect_metadata_refused("falcon1", "normalizer", "2", "it must be one of 0, 1");
    expect_metadata_refused("falcon3", "window", "4.0", "'window' is '4.0'; it must be an integer");
    expect_metadata_refused("falcon3", "window", "4294967297", "it must be an integer");
    expect_metadata_refused("falcon1", "window", "4", "'window' is 4, but falcon1 has no window");
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    expect_refused(file, "metadata 'rule' is missing");
}

Test(problem_file, tensors)
{
    static const char *const required[] = {"q", "k", "v", "beta", "lambda"};
    safetensors_message message = {""};
    for (size_t i = 0; i < COUNT(required); i++) {
        safetensors *whole = good("falcon1"), *file = safetensors_new(&message);
        char words[64];
        safetensors_set_metadata(file, "rule", "falcon1", &message);
        for (int32_t j = 0; j < safetensors_count(whole); j++) {
            const safetensors_tensor *one = safetensors_get(whole, j);
            if (strcmp(one->name, required[i]) != 0)
                safetensors_add(file, one->name, one->dtype, one->rank, one->shape, &message);
        }
        safetensors_free(whole);
        snprintf(words, sizeof words, "tensor '%s' is missing", required[i]);
        expect_refused(file, words);
    }
    static const struct {
        const char *rule, *name;
        int32_t dtype, rank;
        int64_t shape[4];
        const char *words;
    } wrong[] = {
        {"falcon1", "log_gates", FWA_DTYPE_F32, 3, {2, 3, 2}, "'log_gates' is none that"},
        {"falcon1", "mask", FWA_DTYPE_F32, 3, {2, 3, 2}, "'mask' is none that"},
        {"falcon1", "q", FWA_DTYPE_I64, 4, {2, 3, 1, 4}, "'q' has the type I64; it must be F64,"},
        {"falcon1", "seen_in", FWA_DTYPE_I32, 1, {2}, "'seen_in' has the type I32; it must be I64"},
        {"falcon1", "cu_seqlens", FWA_DTYPE_F32, 1, {2}, "it must be I32 or I64"},
        {"falcon1", "q", FWA_DTYPE_F32, 3, {2, 3, 4}, "'q' has rank 3; it must be 4"},
        {"falcon1",
         "beta",
         FWA_DTYPE_F32,
         4,
         {2, 3, 2, 5},
         "rank 4; with rule falcon1 it must be 3"},
        {"falcon2", "beta", FWA_DTYPE_F32, 3, {2, 3, 2}, "rank 3; with rule falcon2 it must be 4"},
        {"falcon1", "k", FWA_DTYPE_F32, 4, {2, 3, 0, 4}, "'k': extent 2 is 0; it must be 1 to"},
        {"falcon1", "v", FWA_DTYPE_F32, 4, {2, 3, 2, 0}, "'v': extent 3 is 0; it must be 1 to"},
        {"falcon1", "q", FWA_DTYPE_F32, 4, {0, 3, (int64_t)1 << 32, 4}, "extent 2 is 4294967296"},
        {"falcon1",
         "state_in",
         FWA_DTYPE_F32,
         4,
         {2, 2, 4, 5},
         "'state_in' needs tensor 'seen_in'"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        safetensors *file = good(wrong[i].rule);
        add(file, wrong[i].name, wrong[i].dtype, wrong[i].rank, wrong[i].shape[0],
            wrong[i].shape[1], wrong[i].shape[2], wrong[i].shape[3]);
        expect_refused(file, wrong[i].words);
    }
}

Test(problem_file, illegal_problems_are_not_written)
{
    safetensors_message message = {""};
    safetensors *file = safetensors_new(&message);
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.eps = NAN;
    cr_expect_eq(problem_file_write_problem(file, &problem, &message), -1);
    expect_words(&message, "knob 'eps' has no legal value", "eps");
    problem.eps = 0;
    problem.phi = 3;
    cr_expect_eq(problem_file_write_problem(file, &problem, &message), -1);
    expect_words(&message, "knob 'phi' has no legal value", "phi");
    problem.phi = 0;
    problem.dynamics = FWA_DYNAMICS_PER_CHANNEL;
    problem.window = 2;
    cr_expect_eq(problem_file_write_problem(file, &problem, &message), -1);
    expect_words(&message, "no rule has objective 0, dynamics 1 and window 2", "rule");
    safetensors_free(file);
}
