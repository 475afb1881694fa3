/* SPDX-License-Identifier: Apache-2.0 */
/* The adjoint's gates: from what its walk and its products leave to the gradients of beta, lambda,
 * log_gate and the statistic. */

/* The gradients of the gammas and kappas of the chunk's tokens, where gates are per head; and rows
 * of the Gram matrix's become what they are. `whole`: S dS. */
static void head_gradients(const adjoint_work *a, float whole, float *gamma_grad, float *kappa_grad)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const int64_t tail = w->window - 1;
    int64_t t, i;
    for (t = w->tokens - 1; t >= 0; t--) {
        const int64_t p = t + tail;
        const float read = dot(query_of(a, t), s->by_state + (2 * t + 1) * a->dim, a->dim);
        gamma_grad[t] = sum_lanes(a->gamma_sums[t]);
        kappa_grad[t] = sum_lanes(a->kappa_sums[t]);
        if (!w->before)
            whole += read;
        gamma_grad[t] += whole * a->decay[t];
        whole *= a->gamma[t];
        if (w->before)
            whole += read;
        if (w->regression && p >= w->first) {
            const float entry = dot(key_of(a, p), s->by_state + 2 * t * a->dim, a->dim);
            float *gram_grad = s->gram_grad + p * s->pair_stride;
            whole += s->entry_factor[t] * entry;
            if (!keeps_residuals(w))
                continue;
            if (w->decayed) { /* the prediction was multiplied by gamma itself */
                float y = a->decay[t] * entry;
                for (i = w->first; i < p; i++)
                    y += s->gram[p * s->pair_stride + i] * gram_grad[i];
                gamma_grad[t] -= y;
            }
            for (i = w->first; i < p; i++)
                gram_grad[i] *= s->entry_factor[t];
        }
    }
}

/* dE of the chunk's token t reaches the features of its window. */
static void statistic_gradient(const adjoint_work *a, int64_t t, int64_t count, float grad,
                               float *x_grad)
{
    const unit_work *w = &a->w;
    const fwa_cpu_adjoint *s = a->a;
    const float *eigen = s->eigen + (w->start - a->segment + t) * w->window;
    const int64_t low = t + w->window - count;
    int64_t i;
    if (w->needs_eigen) {
        memset(s->raw, 0, sizeof(float) * (size_t)a->dim);
        for (i = 0; i < count; i++)
            add_scaled(s->raw, eigen[i], key_of(a, low + i), a->dim);
    }
    for (i = 0; i < count; i++)
        add_scaled(x_grad + (low + i) * s->dim_stride,
                   2 * grad / (float)count * (w->needs_eigen ? eigen[i] : 1),
                   w->needs_eigen ? s->raw : key_of(a, low + i), a->dim);
}

/* The gradients of beta (per head), lambda and log_gate of a token: to those tensors that there are,
 * or, where units have shares of them, to the partials. */
static void store_gates(const adjoint_work *a, const fwa_tensor *const outs[3], int64_t token,
                        const float *grads)
{
    const unit_work *w = &a->w;
    if (!w->plan->own_gates) {
        memcpy(fwa_cpu_gate_grads(a->parts, a->unit, w->s, token), grads, 3 * sizeof *grads);
        return;
    }
    for (int i = 0; i < 3; i++)
        if (outs[i] && fwa_present(outs[i]))
            fwa_store_f32(outs[i], fwa_at3(outs[i], w->s->row, w->s->first + token, w->u.head), 1,
                          grads + i);
}

/* The gradients of the chunk's gates, and what the statistic passes on to x. */
static void gate_gradients(const adjoint_work *a, const float *gamma_grad, const float *kappa_grad,
                           float *x_grad)
{
    const unit_work *w = &a->w;
    const fwa_backward_args *args = a->args;
    const fwa_tensor *outs[3] = {w->per_channel ? NULL : &args->beta_grad, &args->lambda_grad,
                                 &args->log_gate_grad};
    const fwa_tensor *rows = w->per_channel ? &args->beta_grad : NULL;
    const int64_t V = w->u.columns, at = w->start - a->segment;
    int64_t t;
    for (t = 0; t < w->tokens; t++) {
        const int64_t count = pairs_at(w, w->start + t);
        const gates g = gates_of(a, t);
        float grads[3] = {0}, statistic = 0;
        column_gradients of;
        memset(of.beta, 0, w->per_channel ? sizeof of.beta : 0);
        if (count && !w->per_channel) {
            const fwa_decay_gradient_f32 grad = fwa_decay_step_backward_f32(
                &w->knobs, &a->step[at + t], g.lambda, a->statistic[at + t],
                kappa_grad[t] / (float)count, gamma_grad[t]);
            grads[0] = grad.beta;
            grads[1] = grad.lambda;
            grads[2] = grad.log_gate;
            statistic = grad.statistic;
        } else if (count) {
            load_beta_row(w, w->start + t, a->a->raw);
            column_steps_back(&w->knobs, &g, a->statistic[at + t], 1, V, a->a->raw,
                              a->a->gamma_grads + t * a->a->width_stride,
                              a->a->kappa_grads + t * a->a->width_stride, &of);
            grads[1] = sum_row(of.lambda, a->width);
            grads[2] = sum_row(of.log_gate, a->width);
            statistic = sum_row(of.statistic, a->width);
        }
        if (w->needs_statistic && count)
            statistic_gradient(a, t, count, statistic, x_grad);
        store_gates(a, outs, w->start + t, grads);
        if (rows && fwa_present(rows))
            fwa_store_f32(rows,
                          fwa_at3(rows, w->s->row, w->s->first + w->start + t, w->u.head) +
                              w->u.column * rows->stride[3],
                          V, of.beta);
    }
}
