/* SPDX-License-Identifier: Apache-2.0 */
/* The case table: that it covers what it says, and that every engine passes it. */

#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t forms[] = {FWA_FORM_RECURRENT, FWA_FORM_MASKED, FWA_FORM_CHUNKED};

/* Every pair of levels that may meet does, in some row; no row has one that may not. */
Test(cases, pairs_are_covered)
{
    int32_t rows;
    int32_t(*table)[CONFORMANCE_FACTORS] = conformance_cover(&rows);
    cr_expect(rows >= 100 && rows <= 400, "%d rows", (int)rows);
    for (int32_t f = 0; f < CONFORMANCE_FACTORS; f++)
        for (int32_t g = f + 1; g < CONFORMANCE_FACTORS; g++)
            for (int32_t i = 0; i < conformance_factors[f].levels; i++)
                for (int32_t j = 0; j < conformance_factors[g].levels; j++) {
                    int32_t met = 0;
                    for (int32_t row = 0; row < rows; row++)
                        met += table[row][f] == i && table[row][g] == j;
                    cr_expect_eq(met > 0, conformance_pair_allowed(f, i, g, j),
                                 "%s %d and %s %d are in %d rows", conformance_factors[f].name,
                                 (int)i, conformance_factors[g].name, (int)j, (int)met);
                }
    free(table);
}

/* Each preset has its rows, and all names differ. */
Test(cases, names)
{
    const int32_t count = conformance_case_count();
    conformance_case *cases = conformance_cases();
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = i + 1; j < count; j++)
            cr_expect_neq(strcmp(cases[i].name, cases[j].name), 0, "two cases are %s",
                          cases[i].name);
    for (int32_t i = 0; fwa_preset_get(i); i++) {
        char part[64];
        int found = 0;
        snprintf(part, sizeof part, "preset/%s/", fwa_preset_get(i)->name);
        for (int32_t j = 0; j < count; j++)
            found += strstr(cases[j].name, part) != NULL;
        cr_expect_geq(found, 2, "preset %s has %d rows", fwa_preset_get(i)->name, found);
    }
    free(cases);
}

/* The same seed gives the same data, whoever asks. */
Test(cases, data_are_fixed)
{
    const int32_t count = conformance_case_count();
    conformance_case *cases = conformance_cases(), *again = conformance_cases();
    cr_expect_eq(memcmp(cases, again, (size_t)count * sizeof *cases), 0);
    for (int32_t i = 0; i < count; i += 17) {
        const char *name = "";
        conformance_data left = conformance_case_data(&cases[i]);
        conformance_data right = conformance_case_data(&again[i]);
        cr_expect(conformance_same(&left, &right, &name), "%s: %s differs", cases[i].name, name);
        conformance_data_free(&left);
        conformance_data_free(&right);
    }
    free(cases);
    free(again);
}

/* Every fourth case in all forms. Gaps are counted: what a backend refuses must be declared. */
static void check_cases(const char *backend, int32_t first)
{
    const int32_t count = conformance_case_count();
    conformance_case *cases = conformance_cases();
    for (int32_t i = first; i < count; i += 4) {
        conformance_answer answer = conformance_answer_new(&cases[i], context_of("reference", 1));
        for (int64_t j = 0; j < COUNT(forms); j++) {
            const conformance_result result = conformance_check(&answer, forms[j],
                                                                context_of(backend, 1));
            const int gap = conformance_declared_gap(backend, forms[j], cases[i].problem.dtype);
            cr_expect_eq(result.verdict, gap ? CONFORMANCE_GAP : CONFORMANCE_PASSED,
                         "%s, %s %s: %s", cases[i].name, backend, conformance_form_name(forms[j]),
                         gap && result.verdict == CONFORMANCE_PASSED ? "a gap is declared"
                                                                     : result.message);
        }
        conformance_answer_free(&answer);
    }
    free(cases);
}

Test(cases, cpu_0)
{
    check_cases("cpu", 0);
}

Test(cases, cpu_1)
{
    check_cases("cpu", 1);
}

Test(cases, cpu_2)
{
    check_cases("cpu", 2);
}

Test(cases, cpu_3)
{
    check_cases("cpu", 3);
}

/* The reference with 32 and 16-bit tensors against itself with 64-bit ones. */
Test(cases, reference_0)
{
    check_cases("reference", 0);
}

Test(cases, reference_1)
{
    check_cases("reference", 1);
}

Test(cases, reference_2)
{
    check_cases("reference", 2);
}

Test(cases, reference_3)
{
    check_cases("reference", 3);
}

/* ---- The judge itself: faults that it must see ---- */

static conformance_data small_data(void)
{
    fwa_problem problem = FWA_PROBLEM_INIT;
    problem.key_dim = 3;
    problem.value_dim = 2;
    conformance_data data = random_data(&problem, 1, 5, 3);
    conformance_round(&data, FWA_DTYPE_F32, FWA_DTYPE_NONE);
    return data;
}

Test(cases, judge_sees_one_wrong_element)
{
    conformance_data data = small_data();
    conformance_data want = run_engine(&engines[0], &data, 0), got = conformance_data_copy(&want);
    conformance_result result;
    memset(&result, 0, sizeof result);
    conformance_judge(&got, &want, &data.problem, &result);
    cr_expect_eq(result.ratio, 0);
    conformance_get(&got, "o")[7] *= 1.01;
    memset(&result, 0, sizeof result);
    conformance_judge(&got, &want, &data.problem, &result);
    cr_expect_gt(result.ratio, 1);
    cr_expect_str_eq(result.tensor, "o");
    conformance_get(&got, "o")[7] = NAN;
    memset(&result, 0, sizeof result);
    conformance_judge(&got, &want, &data.problem, &result);
    cr_expect_eq(result.ratio, INFINITY);
    conformance_drop(&got, "o");
    memset(&result, 0, sizeof result);
    conformance_judge(&got, &want, &data.problem, &result);
    cr_expect_eq(result.ratio, INFINITY, "a missing tensor");
    conformance_data_free(&data);
    conformance_data_free(&want);
    conformance_data_free(&got);
}

Test(cases, same_is_bit_for_bit)
{
    conformance_data left = small_data(), right = conformance_data_copy(&left);
    const char *name = "";
    cr_expect(conformance_same(&left, &right, &name));
    conformance_get(&right, "v")[3] = nextafter(conformance_get(&right, "v")[3], 9);
    cr_expect_not(conformance_same(&left, &right, &name));
    cr_expect_str_eq(name, "v");
    conformance_drop(&right, "v");
    cr_expect_not(conformance_same(&left, &right, &name));
    conformance_data_free(&left);
    conformance_data_free(&right);
}
