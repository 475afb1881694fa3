/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TESTS_SUPPORT_H
#define FWA_TESTS_SUPPORT_H

/* What the numeric tests share: the library's engines (a backend, a form, a type), small problems,
 * and expectations that say which engine and which tensor failed. */

#include "../src/conformance/cases.h"
#include "../src/conformance/factors.h"
#include "../src/conformance/random.h"
#include "../src/files/compare.h"

#include <criterion/criterion.h>
#include <math.h>

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

typedef struct engine {
    const char *backend;
    int32_t form, dtype;
} engine;

/* The first ENGINES_EXACT are float64 and float32 in every form; after them come the 16-bit types.
 */
#define ENGINES_EXACT 4
#define ENGINES       10
extern const engine engines[ENGINES];

/* "cpu chunked f32" */
const char *engine_name(const engine *e);
/* The context of a backend with so many threads, 0: one. It lives as long as the process. */
fwa_context *context_of(const char *backend, int32_t threads);
/* 1 where the long tests were asked for. */
int full_tests(void);

/* A test that takes minutes where a processor plays the GPU, and is left out there. */
#ifdef TEST_BRIEF
#define LONG_TEST(suite, name) static __attribute__((unused)) void suite##_##name(void)
#else
#define LONG_TEST(suite, name) Test(suite, name)
#endif

/* ---- Problems ---- */

/* same_step, eps 0: the setting of most closed forms. */
fwa_problem same_step_problem(int32_t key_dim, int32_t value_dim);
/* The row of factor_rules after `rule` (-1: the first) that an engine runs in tests of many runs.
 * The eigenvalues of long windows are float64 in every type and would take most of the time:
 * float32 alone has them. */
int next_rule(const engine *e, int rule);
/* The fields of a row of factor_rules. */
void set_rule(fwa_problem *problem, const factor_rule *rule);

void fill(conformance_data *data, const char *name, double value);
void fill_normal(conformance_data *data, const char *name, double size, uint64_t seed);
void fill_between(conformance_data *data, const char *name, double low, double high, uint64_t seed);
/* q, k, v; keys and queries are positive where the problem has a normaliser. */
conformance_data random_data(const fwa_problem *problem, int64_t batch, int64_t tokens,
                             uint64_t seed);
/* beta, lambda, log_gate such that no state grows without bound. */
void random_gates(conformance_data *data, uint64_t seed);
/* A carry that goes on after `seen` tokens. */
void random_carry(conformance_data *data, int64_t seen, uint64_t seed);
/* `do` and, where `carry`, gradients of the final carry. */
void random_upstream(conformance_data *data, int carry, uint64_t seed);

/* ---- Running and expecting ---- */

/* Runs, and fails the test where the library refuses. */
conformance_data run_engine(const engine *e, const conformance_data *data, int backward);
conformance_data run_options(const conformance_options *options, const conformance_data *data);
/* The value heads, tokens, columns of one number: index into o, v. */
int64_t token_at(const conformance_data *data, int64_t batch, int64_t token, int64_t head,
                 int64_t heads, int64_t width);

/* Expects n numbers within the bound of a type (times `slack`). */
void expect_close(const engine *e, const char *what, const double *got, const double *want,
                  int64_t n, double slack);
/* Expects n numbers equal: zeros of either sign are, NaN is to itself. */
void expect_equal(const engine *e, const char *what, const double *got, const double *want,
                  int64_t n);
/* Expects all tensors of two results within the bounds (times `slack`), or bit for bit. */
void expect_all_within(const engine *e, const char *what, const conformance_data *got,
                       const conformance_data *want, double slack);
void expect_all_close(const engine *e, const char *what, const conformance_data *got,
                      const conformance_data *want);
void expect_all_same(const engine *e, const char *what, const conformance_data *got,
                     const conformance_data *want);

#endif
