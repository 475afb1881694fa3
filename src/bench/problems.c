/* SPDX-License-Identifier: Apache-2.0 */
#include "problems.h"
#include "../conformance/cases.h"
#include "../files/problem_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS        " \t\r\n\f\v"
#define KEY_LIMIT     32 /* keys of a line: more than there are */
#define KINDS_LIMIT   32 /* the same of data */
#define THREADS_LIMIT 4096

/* ---- Names ---- */

static const char *const passes[] = {"forward", "backward", "train", "decode", NULL};
static const char *const caches[] = {"hot", "cold", NULL};
static const char *const switches[] = {"0", "1", NULL};
static const char *const forms[] = {"auto", "recurrent", "masked", "chunked", NULL};
/* By their numbers; the others of fwa_dtype are no types of data. */
static const char *const dtypes[] = {"", "f32", "bf16", "f16", "f64", NULL};
static const char *const state_dtypes[] = {"", "f32", "bf16", "f16", NULL};

const char *bench_pass_name(int32_t pass)
{
    return pass >= 0 && pass < BENCH_PASSES ? passes[pass] : NULL;
}

/* ---- Values ---- */

typedef struct value {
    const char *key, *text;
} value;

static int bad(bench_message *message, const value *v, const char *limit)
{
    return bench_fail(message, "key '%s' is '%.40s'; it must be %s", v->key, v->text, limit);
}

static int set_integer(const value *v, int64_t most, int64_t *number, bench_message *message)
{
    char *end, limit[48];
    errno = 0;
    const long long parsed = strtoll(v->text, &end, 10);
    snprintf(limit, sizeof limit, "an integer from 1 to %lld", (long long)most);
    if (v->text[0] < '0' || v->text[0] > '9' || *end || errno || parsed < 1 || parsed > most)
        return bad(message, v, limit);
    *number = parsed;
    return 0;
}

/* An empty name is a number that cannot be asked for. */
static int set_name(const value *v, const char *const *names, int32_t *number,
                    bench_message *message)
{
    char limit[128] = "one of";
    for (int32_t i = 0; names[i] != NULL; i++) {
        if (names[i][0] && strcmp(names[i], v->text) == 0) {
            *number = i;
            return 0;
        }
        const size_t used = strlen(limit);
        if (names[i][0])
            snprintf(limit + used, sizeof limit - used, " %s", names[i]);
    }
    return bad(message, v, limit);
}

static int set_kind(const value *v, int32_t *number, bench_message *message)
{
    const char *names[KINDS_LIMIT] = {NULL};
    for (int32_t i = 0; bench_data_get(i) != NULL; i++)
        names[i] = bench_data_get(i)->name;
    return set_name(v, names, number, message);
}

static int set_gates(const value *v, int32_t *number, bench_message *message)
{
    const char *at = v->text;
    *number = 0;
    for (;;) {
        const size_t length = strcspn(at, "+");
        int32_t i = at == v->text && at[length] == '\0' ? 0 : 1; /* "none" stands alone */
        for (; bench_gate_name(i) != NULL; i++)
            if (strlen(bench_gate_name(i)) == length &&
                strncmp(bench_gate_name(i), at, length) == 0)
                break;
        if (bench_gate_name(i) == NULL || (*number & bench_gate(i)))
            return bad(message, v, "none, or beta, lambda, log_gate with '+' between");
        *number |= bench_gate(i);
        if (at[length] == '\0')
            return 0;
        at += length + 1;
    }
}

static int set_threads(const value *v, int32_t *threads, bench_message *message)
{
    char *end;
    const long number = strtol(v->text, &end, 10);
    const int digits = v->text[0] >= '0' && v->text[0] <= '9' && *end == '\0';
    if (strcmp(v->text, "all") == 0)
        *threads = BENCH_THREADS_ALL;
    else if (strcmp(v->text, "scaling") == 0)
        *threads = BENCH_THREADS_SCALING;
    else if (digits && number >= 1 && number <= THREADS_LIMIT)
        *threads = (int32_t)number;
    else
        return bad(message, v, "all, scaling, or an integer from 1 to 4096");
    return 0;
}

static int set_text_name(const value *v, char *name, bench_message *message)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t length = strlen(v->text);
    if (length == 0 || length >= BENCH_NAME || strspn(v->text, letters) != length)
        return bad(message, v, "1 to 40 letters, digits and '-_.'");
    memcpy(name, v->text, length + 1);
    return 0;
}

static int set_preset(const value *v, bench_problem *p, bench_message *message)
{
    if (fwa_problem_preset(&p->problem, v->text) != FWA_OK)
        return bad(message, v, "a preset (fwa info lists them)");
    for (int32_t i = 0; fwa_preset_get(i) != NULL; i++)
        if (strcmp(fwa_preset_get(i)->name, v->text) == 0)
            p->preset = fwa_preset_get(i)->name;
    p->gates = bench_preset_gates(p->preset);
    return 0;
}

/* ---- Keys ---- */

typedef enum key_kind {
    KEY_PRESET,
    KEY_NAME,
    KEY_INT32,
    KEY_INT64,
    KEY_CHOICE,
    KEY_DATA,
    KEY_GATES,
    KEY_THREADS
} key_kind;

/* Needed of a line whatever else it has, or in some passes only. */
typedef enum key_rule { KEY_FREE, KEY_NEEDED, KEY_DECODE, KEY_NO_DECODE, KEY_BACKWARD } key_rule;

typedef struct key {
    const char *name;
    key_kind kind;
    key_rule rule;
    size_t field; /* offset in bench_problem */
    int64_t most; /* of numbers */
    const char *const *names;
} key;

#define FIELD(name) offsetof(bench_problem, name)

static const key keys[] = {
    {"preset", KEY_PRESET, KEY_NEEDED, 0, 0, NULL},
    {"name", KEY_NAME, KEY_FREE, 0, 0, NULL},
    {"pass", KEY_CHOICE, KEY_FREE, FIELD(pass), 0, passes},
    {"B", KEY_INT64, KEY_FREE, FIELD(batch), 1 << 20, NULL},
    {"T", KEY_INT64, KEY_FREE, FIELD(tokens), 1 << 24, NULL},
    {"Hk", KEY_INT32, KEY_FREE, FIELD(problem.heads_key), 1 << 16, NULL},
    {"Hv", KEY_INT32, KEY_FREE, FIELD(problem.heads_value), 1 << 16, NULL},
    {"Hq", KEY_INT32, KEY_FREE, FIELD(problem.heads_query), 1 << 16, NULL},
    {"D", KEY_INT32, KEY_NEEDED, FIELD(problem.key_dim), 256, NULL},
    {"V", KEY_INT32, KEY_FREE, FIELD(problem.value_dim), 256, NULL},
    {"dtype", KEY_CHOICE, KEY_FREE, FIELD(problem.dtype), 0, dtypes},
    {"state_dtype", KEY_CHOICE, KEY_FREE, FIELD(problem.state_dtype), 0, state_dtypes},
    {"form", KEY_CHOICE, KEY_FREE, FIELD(problem.form), 0, forms},
    {"data", KEY_DATA, KEY_FREE, FIELD(data), 0, NULL},
    {"gates", KEY_GATES, KEY_FREE, FIELD(gates), 0, NULL},
    {"cache", KEY_CHOICE, KEY_DECODE, FIELD(cold), 0, caches},
    {"packed", KEY_CHOICE, KEY_NO_DECODE, FIELD(packed), 0, switches},
    {"saved", KEY_CHOICE, KEY_BACKWARD, FIELD(saved), 0, switches},
    {"threads", KEY_THREADS, KEY_FREE, FIELD(threads), 0, NULL},
};

#define KEYS (sizeof keys / sizeof *keys)

static const key *find_key(const char *name)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static int set_knob(const value *v, bench_problem *p, bench_message *message)
{
    const char *legal = NULL;
    const int result = problem_set_knob(&p->problem, v->key, v->text, &legal);
    if (result > 0)
        return bench_fail(message, "there is no key '%.40s'", v->key);
    return result < 0 ? bad(message, v, legal) : 0;
}

static int set_value(const value *v, bench_problem *p, bench_message *message)
{
    const key *one = find_key(v->key);
    void *field = one ? (char *)p + one->field : NULL;
    int64_t number;
    if (one == NULL)
        return set_knob(v, p, message);
    switch (one->kind) {
    case KEY_PRESET: return 0; /* set before all others */
    case KEY_NAME: return set_text_name(v, p->name, message);
    case KEY_INT64: return set_integer(v, one->most, field, message);
    case KEY_INT32:
        if (set_integer(v, one->most, &number, message))
            return -1;
        *(int32_t *)field = (int32_t)number;
        return 0;
    case KEY_CHOICE: return set_name(v, one->names, field, message);
    case KEY_DATA: return set_kind(v, field, message);
    case KEY_THREADS: return set_threads(v, field, message);
    default: return set_gates(v, field, message);
    }
}

/* ---- Lines ---- */

/* Cuts the line into keys and values; returns how many, or -1. */
static int cut(char *line, value *values, bench_message *message)
{
    int count = 0;
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
    for (char *token = strtok_r(line, BLANKS, &rest); token;
         token = strtok_r(NULL, BLANKS, &rest)) {
        char *equals = strchr(token, '=');
        if (equals == NULL || equals == token)
            return bench_fail(message, "'%.40s' is no key=value", token);
        *equals = '\0';
        for (int i = 0; i < count; i++)
            if (strcmp(values[i].key, token) == 0)
                return bench_fail(message, "key '%.40s' is there twice", token);
        if (count == KEY_LIMIT)
            return bench_fail(message, "there are more than %d keys", KEY_LIMIT);
        values[count++] = (value){token, equals + 1};
    }
    return count;
}

static const value *find_value(const value *values, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(values[i].key, name) == 0)
            return &values[i];
    return NULL;
}

/* What keys say of each other. */
static int check_keys(const value *values, int count, const bench_problem *p,
                      bench_message *message)
{
    const int backward = p->pass == BENCH_BACKWARD || p->pass == BENCH_TRAIN;
    for (size_t i = 0; i < KEYS; i++) {
        const int given = find_value(values, count, keys[i].name) != NULL;
        if (keys[i].rule == KEY_NEEDED && !given)
            return bench_fail(message, "key '%s' is missing", keys[i].name);
        if (given && keys[i].rule == KEY_DECODE && p->pass != BENCH_DECODE)
            return bench_fail(message, "key '%s' goes with pass=decode only", keys[i].name);
        if (given && keys[i].rule == KEY_NO_DECODE && p->pass == BENCH_DECODE)
            return bench_fail(message, "key '%s' does not go with pass=decode", keys[i].name);
        if (given && keys[i].rule == KEY_BACKWARD && !backward)
            return bench_fail(message, "key '%s' goes with pass=backward and pass=train only",
                              keys[i].name);
    }
    if (p->tokens == 0 && p->pass != BENCH_DECODE)
        return bench_fail(message, "key 'T' is missing");
    return 0;
}

static int fill_sizes(bench_problem *p, bench_message *message)
{
    fwa_problem *q = &p->problem;
    q->heads_value = q->heads_value ? q->heads_value : q->heads_key;
    q->heads_query = q->heads_query ? q->heads_query : q->heads_key;
    q->value_dim = q->value_dim ? q->value_dim : q->key_dim;
    p->tokens = p->tokens ? p->tokens : 1;
    if (q->heads_value % q->heads_key != 0)
        return bench_fail(message, "key 'Hv' is %d; it must be a multiple of Hk, %d",
                          (int)q->heads_value, (int)q->heads_key);
    if (q->heads_query != q->heads_key && q->heads_query != q->heads_value)
        return bench_fail(message, "key 'Hq' is %d; it must be Hk, %d, or Hv, %d",
                          (int)q->heads_query, (int)q->heads_key, (int)q->heads_value);
    return 0;
}

static void make_name(bench_problem *p)
{
    if (p->name[0] == '\0')
        snprintf(p->name, sizeof p->name, "%.16s-%s-%lldx%lld-%d-%d", p->preset, passes[p->pass],
                 (long long)p->batch, (long long)p->tokens, (int)p->problem.heads_value,
                 (int)p->problem.key_dim);
}

int bench_parse_line(const char *line, bench_problem *problem, bench_message *message)
{
    static const bench_problem defaults = {.problem = FWA_PROBLEM_INIT, .batch = 1, .saved = 1};
    char copy[BENCH_LINE];
    value values[KEY_LIMIT];
    *problem = defaults;
    if (snprintf(copy, sizeof copy, "%s", line) >= BENCH_LINE)
        return bench_fail(message, "the line is longer than %d bytes", BENCH_LINE - 1);
    const int count = cut(copy, values, message);
    if (count <= 0)
        return count;
    const value *preset = find_value(values, count, "preset");
    if (preset == NULL)
        return bench_fail(message, "key 'preset' is missing");
    if (set_preset(preset, problem, message))
        return -1;
    for (int i = 0; i < count; i++)
        if (set_value(&values[i], problem, message))
            return -1;
    if (check_keys(values, count, problem, message) || fill_sizes(problem, message))
        return -1;
    make_name(problem);
    return 1;
}

/* ---- Work ---- */

double bench_flops(const bench_problem *problem)
{
    /* Products of D x V per token and value head, by objective and pass. */
    static const double products[2][BENCH_PASSES] = {{3, 6, 9, 3}, {2, 4, 6, 2}};
    const fwa_problem *p = &problem->problem;
    return 2 * products[p->objective][problem->pass] * p->key_dim * p->value_dim *
           (double)p->heads_value * (double)problem->batch * (double)problem->tokens;
}

double bench_state_bytes(const bench_problem *problem)
{
    const fwa_problem *p = &problem->problem;
    const int32_t dtype = problem_tensor_dtype(problem_tensor_find("state_in"), p);
    if (problem->pass != BENCH_DECODE)
        return 0;
    return 2.0 * (double)fwa_dtype_size(dtype) * p->key_dim * p->value_dim *
           (double)p->heads_value * (double)problem->batch;
}
