/* SPDX-License-Identifier: Apache-2.0 */
/* Included by decay.h once per floating-point type; no include guard. */

/* The knobs that the decay depends on. */
typedef struct {
    int normalized; /* eta = beta / (E + lambda + eps), else eta = beta */
    int coupled;    /* lambda = lambda_input * E */
    int live;       /* and the gradient flows through that E */
    FWA_REAL eps, floor;
} FWA_DECAY(knobs);

/* One step size and carry (section 4; the clamp is (4.20)). */
typedef struct {
    FWA_REAL eta;         /* 0 where the denominator is 0 */
    FWA_REAL lambda;      /* the ridge in effect */
    FWA_REAL denominator; /* E + lambda + eps; 1 for direct steps */
    FWA_REAL gate;        /* exp(log_gate) */
    FWA_REAL gamma;       /* max(1 - eta lambda, floor) * gate */
    int clamped;          /* 1 - eta lambda <= floor */
} FWA_DECAY(step_t);

/* The gradients that reach a step's inputs. */
typedef struct {
    FWA_REAL beta, lambda, log_gate, statistic;
} FWA_DECAY(gradient);

FWA_DEVICE FWA_REAL FWA_DECAY(clip_gate)(FWA_REAL log_gate)
{
    return log_gate < (FWA_REAL)FWA_LOG_GATE_MIN ? (FWA_REAL)FWA_LOG_GATE_MIN : log_gate;
}

/* 1 - eta lambda. With normalised steps the subtraction would cancel, so it is
 * (E + eps + lambda (1 - beta)) / (E + eps + lambda). */
FWA_DEVICE FWA_REAL FWA_DECAY(retention)(const FWA_DECAY(knobs) * knobs, FWA_REAL beta,
                                         FWA_REAL eta, FWA_REAL lambda, FWA_REAL statistic,
                                         FWA_REAL denominator)
{
    if (!knobs->normalized)
        return 1 - eta * lambda;
    if (!(denominator != 0))
        return 1;
    return (statistic + knobs->eps + lambda * (1 - beta)) / denominator;
}

/* The step for a gate that is given as such, not as its logarithm. */
FWA_DEVICE FWA_DECAY(step_t)
    FWA_DECAY(step_of_gate)(const FWA_DECAY(knobs) * knobs, FWA_REAL beta, FWA_REAL lambda_input,
                            FWA_REAL gate, FWA_REAL statistic)
{
    FWA_DECAY(step_t) step;
    FWA_REAL retention;
    step.lambda = knobs->coupled ? lambda_input * statistic : lambda_input;
    /* Summed as in the retention, which so is never above 1, and 1 where beta is 0. */
    step.denominator = knobs->normalized ? statistic + knobs->eps + step.lambda : 1;
    step.eta = step.denominator != 0 ? beta / step.denominator : 0;
    retention = FWA_DECAY(retention)(knobs, beta, step.eta, step.lambda, statistic,
                                     step.denominator);
    step.clamped = retention <= knobs->floor;
    step.gate = gate;
    step.gamma = (step.clamped ? knobs->floor : retention) * step.gate;
    return step;
}

FWA_DEVICE FWA_DECAY(step_t)
    FWA_DECAY(step)(const FWA_DECAY(knobs) * knobs, FWA_REAL beta, FWA_REAL lambda_input,
                    FWA_REAL log_gate, FWA_REAL statistic)
{
    return FWA_DECAY(step_of_gate)(knobs, beta, lambda_input,
                                   FWA_DECAY_EXP(FWA_DECAY(clip_gate)(log_gate)), statistic);
}

/* From the gradients of eta and gamma to those of the inputs. dgamma is never obtained from
 * d log gamma: at gamma = 1e-6 that loses a tenth of it in float32. */
FWA_DEVICE FWA_DECAY(gradient)
    FWA_DECAY(step_backward)(const FWA_DECAY(knobs) * knobs, const FWA_DECAY(step_t) * step,
                             FWA_REAL lambda_input, FWA_REAL statistic, FWA_REAL eta_grad,
                             FWA_REAL gamma_grad)
{
    FWA_DECAY(gradient) grad;
    FWA_REAL forgotten_grad = step->clamped ? 0 : -step->gate * gamma_grad;
    FWA_REAL lambda_grad = step->eta * forgotten_grad;
    FWA_REAL step_grad = eta_grad + step->lambda * forgotten_grad;
    grad.log_gate = step->gamma * gamma_grad;
    grad.beta = step_grad;
    grad.statistic = 0;
    if (knobs->normalized) {
        FWA_REAL inverse = step->denominator != 0 ? 1 / step->denominator : 0;
        grad.beta = step_grad * inverse;
        grad.statistic = -step->eta * step_grad * inverse;
        /* lambda_grad + grad.statistic; the difference of the two lambda terms, which are almost
         * equal where lambda is large, is E + eps. */
        lambda_grad = step->eta * inverse * (forgotten_grad * (statistic + knobs->eps) - eta_grad);
    }
    if (knobs->coupled) {
        if (knobs->live)
            grad.statistic += lambda_input * lambda_grad;
        lambda_grad *= statistic;
    }
    grad.lambda = lambda_grad;
    return grad;
}

#undef FWA_REAL
#undef FWA_DECAY
#undef FWA_DECAY_EXP
