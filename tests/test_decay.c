/* SPDX-License-Identifier: Apache-2.0 */
/* decay.h: step sizes, the clamp, carries, gradients. */

#include "../src/common/decay.h"
#include "../src/conformance/random.h"

#include <criterion/criterion.h>

/* Relative distance. */
static double off(double got, double want)
{
    return fabs(got - want) / fabs(want);
}

/* 1 - eta lambda for lambda 1e6 and 1e8, beta 1: the subtraction would leave no digit. */
Test(decay, big_ridge)
{
    static const double ridges[] = {1e6, 1e8}, energies[] = {0.01, 1, 64};
    const fwa_decay_knobs_f32 knobs = {.normalized = 1, .eps = 1e-6f, .floor = 1e-30f};
    for (int i = 0; i < 6; i++) {
        const double ridge = ridges[i / 3], energy = (double)(float)energies[i % 3];
        const double eps = (double)1e-6f, want = (energy + eps) / (energy + ridge + eps);
        const fwa_decay_step_t_f32 step = fwa_decay_step_f32(&knobs, 1, (float)ridge, 0,
                                                             (float)energy);
        cr_expect_leq(off((double)step.gamma, want), 1e-6, "lambda %g, E %g: gamma %.9g, not %.9g",
                      ridge, energy, (double)step.gamma, want);
        cr_expect_eq(step.clamped, 0);
    }
}

/* Random steps against the formulas as they are written. */
Test(decay, definition)
{
    conformance_random random = conformance_random_seed(1);
    for (int i = 0; i < 20000; i++) {
        const fwa_decay_knobs_f64 knobs = {i % 2, i / 2 % 2, i / 4 % 2, i % 3 ? 1e-6 : 0,
                                           i % 5 ? 1e-6 : 0.5};
        const double beta = conformance_random_between(&random, 0, 2);
        const double lambda = conformance_random_between(&random, 0, 3);
        const double gate = -exp(3 * conformance_random_normal(&random));
        const double energy = conformance_random_between(&random, 0.1, 4);
        const fwa_decay_step_t_f64 step = fwa_decay_step_f64(&knobs, beta, lambda, gate, energy);
        const double ridge = knobs.coupled ? lambda * energy : lambda;
        const double eta = knobs.normalized ? beta / (energy + ridge + knobs.eps) : beta;
        const double kept = fmax(1 - eta * ridge, knobs.floor);
        cr_assert_leq(fabs(step.eta - eta), 1e-14 * eta);
        cr_assert_leq(fabs(step.gamma - kept * exp(fmax(gate, -104))), 1e-14,
                      "gamma %.17g, not %.17g", step.gamma, kept * exp(gate));
        cr_assert_eq(step.clamped, 1 - eta * ridge <= knobs.floor || kept <= knobs.floor);
    }
}

Test(decay, limits)
{
    const fwa_decay_knobs_f32 knobs = {.normalized = 1, .eps = 0, .floor = 0.25f};
    /* A zero denominator neither writes nor decays. */
    fwa_decay_step_t_f32 step = fwa_decay_step_f32(&knobs, 1.5f, 0, 0, 0);
    cr_expect_eq(step.eta, 0);
    cr_expect_eq(step.gamma, 1);
    /* eta lambda > 1. */
    step = fwa_decay_step_f32(&knobs, 1.9f, 100, 0, 1);
    cr_expect_eq(step.gamma, 0.25f);
    cr_expect_eq(step.clamped, 1);
    /* "Forget everything". */
    step = fwa_decay_step_f32(&knobs, 1, 0, -INFINITY, 1);
    cr_expect_eq(step.gamma, expf(-104));
    cr_expect_eq(fwa_decay_step_f32(&knobs, 1, 0, -1e30f, 1).gamma, expf(-104));
    cr_expect_eq(fwa_decay_step_f32(&knobs, 1, 0, 0, 1).gamma, 1);
}

/* A carry is never above 1, and it is 1 where nothing is written: rounding of the denominator does
 * not make a state grow. */
Test(decay, no_growth)
{
    conformance_random random = conformance_random_seed(5);
    for (int i = 0; i < 20000; i++) {
        const fwa_decay_knobs_f32 knobs = {
            .normalized = 1, .coupled = i % 2, .eps = i / 2 % 2 ? 1e-6f : 0.1f, .floor = 1};
        const float energy = (float)conformance_random_between(&random, 1e-3, 4);
        const float lambda = (float)conformance_random_between(&random, 0, 3);
        const float beta = i % 3 ? (float)conformance_random_between(&random, 0, 1e-6) : 0;
        fwa_decay_step_t_f32 step = fwa_decay_step_f32(&knobs, beta, lambda, 0, energy);
        cr_assert_eq(step.clamped, 1, "beta %g, lambda %g, E %g", (double)beta, (double)lambda,
                     (double)energy);
        fwa_decay_knobs_f32 low = knobs;
        low.floor = 1e-6f;
        step = fwa_decay_step_f32(&low, beta, lambda, 0, energy);
        cr_assert(beta == 0 ? step.gamma == 1 : step.gamma <= 1,
                  "gamma is %.9g with beta %g, lambda %g, E %g", (double)step.gamma, (double)beta,
                  (double)lambda, (double)energy);
    }
}

/* ---- Gradients ---- */

/* beta, lambda, log_gate, E -> a eta + b gamma. */
static double objective(const fwa_decay_knobs_f64 *knobs, const double *x, double a, double b)
{
    const fwa_decay_step_t_f64 step = fwa_decay_step_f64(knobs, x[0], x[1], x[2], x[3]);
    return a * step.eta + b * step.gamma;
}

Test(decay, gradients)
{
    conformance_random random = conformance_random_seed(4);
    for (int i = 0; i < 4000; i++) {
        /* A ridge that is coupled but not live has no derivative: see `detached`. */
        const fwa_decay_knobs_f64 knobs = {i % 2, i / 2 % 2, 1, i % 3 ? 0.01 : 0,
                                           i % 5 ? 1e-6 : 0.7};
        const double x[] = {conformance_random_between(&random, 0.2, 1.8),
                            conformance_random_between(&random, 0.1, 2),
                            -conformance_random_unit(&random),
                            conformance_random_between(&random, 0.2, 4)};
        const double a = conformance_random_normal(&random), b = conformance_random_normal(&random);
        const fwa_decay_step_t_f64 step = fwa_decay_step_f64(&knobs, x[0], x[1], x[2], x[3]);
        const fwa_decay_gradient_f64 got = fwa_decay_step_backward_f64(&knobs, &step, x[1], x[3], a,
                                                                       b);
        const double kept = step.gamma / step.gate - knobs.floor;
        if (!step.clamped && kept < 1e-3)
            continue; /* the kink is in reach */
        if (step.clamped && fabs(1 - step.eta * step.lambda - knobs.floor) < 1e-3)
            continue;
        const double gradients[] = {got.beta, got.lambda, got.log_gate, got.statistic};
        for (int j = 0; j < 4; j++) {
            double moved[2][4], size;
            const double h = 1e-5;
            for (int k = 0; k < 4; k++)
                moved[0][k] = moved[1][k] = x[k];
            moved[0][j] -= h;
            moved[1][j] += h;
            const double slope =
                (objective(&knobs, moved[1], a, b) - objective(&knobs, moved[0], a, b)) / (2 * h);
            size = fabs(slope) + fabs(a) + fabs(b);
            cr_assert_leq(fabs(slope - gradients[j]), 1e-6 * size * (1 + 1 / x[3]),
                          "input %d: the slope is %.9g, the gradient %.9g", j, slope, gradients[j]);
        }
    }
}

/* Not live: E inside lambda is a constant. */
Test(decay, detached)
{
    fwa_decay_knobs_f64 knobs = {1, 1, 0, 0.01, 1e-6};
    const double beta = 0.8, ridge = 0.3, energy = 1.7;
    const fwa_decay_step_t_f64 step = fwa_decay_step_f64(&knobs, beta, ridge, -0.1, energy);
    const fwa_decay_gradient_f64 got = fwa_decay_step_backward_f64(&knobs, &step, ridge, energy,
                                                                   0.7, -0.4);
    knobs.coupled = 0;
    const fwa_decay_gradient_f64 want = fwa_decay_step_backward_f64(&knobs, &step, ridge * energy,
                                                                    energy, 0.7, -0.4);
    cr_expect_leq(fabs(got.statistic - want.statistic), 1e-15);
    cr_expect_leq(fabs(got.lambda - want.lambda * energy), 1e-15);
    cr_expect_leq(fabs(got.beta - want.beta), 1e-15);
}

/* float32 against float64 where the terms of dlambda almost cancel. */
Test(decay, big_ridge_gradients)
{
    static const double ridges[] = {1e3, 1e6, 1e8};
    for (int i = 0; i < 3; i++) {
        const fwa_decay_knobs_f32 narrow = {1, 0, 0, 1e-6f, 1e-30f};
        const fwa_decay_knobs_f64 wide = {1, 0, 0, (double)1e-6f, 1e-30};
        const fwa_decay_step_t_f32 a = fwa_decay_step_f32(&narrow, 1, (float)ridges[i], 0, 2);
        const fwa_decay_step_t_f64 b = fwa_decay_step_f64(&wide, 1, ridges[i], 0, 2);
        const fwa_decay_gradient_f32 got = fwa_decay_step_backward_f32(
            &narrow, &a, (float)ridges[i], 2, 0.75f, 0.5f);
        const fwa_decay_gradient_f64 want = fwa_decay_step_backward_f64(&wide, &b, ridges[i], 2,
                                                                        0.75, 0.5);
        cr_expect_leq(off((double)got.lambda, want.lambda), 1e-6, "lambda %g: %.9g, not %.9g",
                      ridges[i], (double)got.lambda, want.lambda);
        cr_expect_leq(off((double)got.beta, want.beta), 1e-6);
        cr_expect_leq(off((double)got.statistic, want.statistic), 1e-6);
    }
}
