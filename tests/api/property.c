/* SPDX-License-Identifier: Apache-2.0 */
/* A plan is made exactly where the documented rules allow it, and then both passes run (B104). */

#include "support.h"

#include <string.h>

static uint64_t seed;

static int32_t any(int32_t low, int32_t high)
{
    seed = mix(seed, 1);
    return low + (int32_t)(seed % (uint64_t)(high - low + 1));
}

/* In range nearly always, one past either end now and then. */
static int32_t nearly(int32_t low, int32_t high)
{
    switch (any(0, 59)) {
    case 0: return low - 1;
    case 1: return high + 1;
    default: return any(low, high);
    }
}

static fwa_problem any_problem(void)
{
    static const double numbers[] = {0, 1e-6, 0.5, 1};
    fwa_problem p = FWA_PROBLEM_INIT;
    p.objective = nearly(0, 1);
    p.dynamics = nearly(0, 1);
    p.window = any(0, 2) ? 1 : nearly(1, 32);
    p.alignment = nearly(0, 1);
    p.read = nearly(0, 1);
    p.step = nearly(0, 1);
    p.ridge = nearly(0, 2);
    p.prediction = nearly(0, 1);
    p.qk_norm = nearly(0, 2);
    p.phi = nearly(0, 2);
    p.normalizer = any(0, 3) == 0;
    p.form = nearly(0, 3);
    p.eps = numbers[any(0, 3)];
    p.norm_eps = numbers[any(0, 3)];
    p.eps_attn = numbers[any(0, 3)];
    p.decay_floor = numbers[any(1, 3)];
    p.heads_key = nearly(1, 3);
    p.heads_value = p.heads_key * any(0, 3) + (any(0, 29) == 0);
    p.heads_query = any(0, 2) == 0 ? 0 : any(0, 1) ? p.heads_key : p.heads_value;
    p.key_dim = any(0, 20) ? any(1, 20) : nearly(1, 256);
    p.value_dim = any(0, 20) ? any(1, 20) : nearly(1, 256);
    p.dtype = any(0, 1) ? FWA_DTYPE_F32 : nearly(1, 4);
    p.state_dtype = any(0, 1) ? FWA_DTYPE_NONE : nearly(0, 6);
    return p;
}

static bool within(int32_t value, int32_t low, int32_t high)
{
    return value >= low && value <= high;
}

static bool types_are_known(const fwa_problem *p)
{
    if (p->dtype == FWA_DTYPE_F64)
        return p->state_dtype == FWA_DTYPE_NONE || p->state_dtype == FWA_DTYPE_F64;
    return within(p->dtype, FWA_DTYPE_F32, FWA_DTYPE_F16) &&
           within(p->state_dtype, FWA_DTYPE_NONE, FWA_DTYPE_F16);
}

/* The header's rules. */
static bool is_allowed(const char *backend, const fwa_problem *p)
{
    const int32_t hv = p->heads_value ? p->heads_value : p->heads_key;
    const int32_t hq = p->heads_query ? p->heads_query : p->heads_key;
    const bool ranges = within(p->objective, 0, 1) && within(p->dynamics, 0, 1) &&
                        within(p->window, 1, 32) && within(p->alignment, 0, 1) &&
                        within(p->read, 0, 1) && within(p->step, 0, 1) && within(p->ridge, 0, 2) &&
                        within(p->prediction, 0, 1) && within(p->qk_norm, 0, 2) &&
                        within(p->phi, 0, 2) && within(p->form, 0, 3) && p->heads_key >= 1 &&
                        hv >= 1 && within(p->key_dim, 1, 256) && within(p->value_dim, 1, 256);
    if (!ranges || hv % p->heads_key || (hq != p->heads_key && hq != hv) || !types_are_known(p))
        return false;
    if (p->dynamics == FWA_DYNAMICS_PER_CHANNEL && (p->window > 1 || p->normalizer))
        return false;
    if (p->normalizer && p->objective != FWA_OBJECTIVE_INNER_PRODUCT)
        return false;
    if (strcmp(backend, "cpu") == 0)
        return p->dtype != FWA_DTYPE_F64;
    return p->form == FWA_FORM_AUTO || p->form == FWA_FORM_RECURRENT;
}

static void run_both(const char *backend, const fwa_problem *p, int round)
{
    for (int pass = 0; pass < 2; pass++) {
        setup s = setup_small(backend);
        s.problem = *p;
        s.batch = any(0, 3);
        s.tokens = any(0, 2) ? any(0, 9) : any(10, 70);
        s.seen = any(0, 3) * 2;
        s.threads = any(1, 3);
        s.seed = (uint64_t)round;
        s.no_gates = any(0, 3) == 0;
        s.no_carry_in = any(0, 3) == 0;
        s.no_carry_out = any(0, 3) == 0;
        s.mask = p->form == FWA_FORM_MASKED && any(0, 1);
        call *c = call_new(&s, (fwa_pass)pass);
        call_ok(c);
        call_free(c);
    }
}

Test(property, plans_exist_where_calls_run, .timeout = 600)
{
    const int rounds = full_run() ? 20000 : 500;
    int made = 0, refused = 0;
    FOR_BACKENDS(backend)
    {
        fwa_context *context = make_context(backend, 1);
        seed = 2024;
        for (int round = 0; round < rounds; round++) {
            fwa_problem p = any_problem();
            fwa_plan *plan = NULL;
            fwa_status status = fwa_plan_create(context, &p, &plan);
            cr_assert((status == FWA_OK) == is_allowed(backend, &p), "round %d on %s: %s, %s",
                      round, backend, fwa_status_name(status), fwa_error_message());
            if (status != FWA_OK) {
                refused++;
                continue;
            }
            cr_assert_gt(strlen(fwa_plan_kernel_name(plan, FWA_PASS_FORWARD)), 0);
            cr_assert_gt(strlen(fwa_plan_kernel_name(plan, FWA_PASS_BACKWARD)), 0);
            fwa_plan_destroy(plan);
            run_both(backend, &p, round);
            made++;
        }
        fwa_context_destroy(context);
    }
    cr_assert_gt(made, rounds / 4, "%d plans", made);
    cr_assert_gt(refused, rounds / 10, "%d refusals", refused);
}
