/* SPDX-License-Identifier: Apache-2.0 */
/* Included by host.h once per floating-point type; no include guard. */

/* Reads n elements that start at `offset` into dense reals; the last axis may have any stride. */
static inline void FWA_HOST(load)(const fwa_tensor *t, int64_t offset, int64_t n, FWA_REAL *to)
{
    const char *at = fwa_element(t, offset);
    int64_t i, step = n > 1 ? t->stride[t->rank - 1] : 1;
    switch (t->dtype) {
    case FWA_DTYPE_F32:
        for (i = 0; i < n; i++)
            to[i] = (FWA_REAL)((const float *)(const void *)at)[i * step];
        break;
    case FWA_DTYPE_F64:
        for (i = 0; i < n; i++)
            to[i] = (FWA_REAL)((const double *)(const void *)at)[i * step];
        break;
    case FWA_DTYPE_BF16:
        for (i = 0; i < n; i++)
            to[i] = (FWA_REAL)fwa_bf16_to_float(((const uint16_t *)(const void *)at)[i * step]);
        break;
    case FWA_DTYPE_F16:
        for (i = 0; i < n; i++)
            to[i] = (FWA_REAL)fwa_f16_to_float(((const uint16_t *)(const void *)at)[i * step]);
        break;
    default: break;
    }
}

/* One element, or `absent` where the tensor is. */
static inline FWA_REAL FWA_HOST(load_one)(const fwa_tensor *t, int64_t offset, FWA_REAL absent)
{
    if (fwa_present(t))
        FWA_HOST(load)(t, offset, 1, &absent);
    return absent;
}

/* Writes n dense reals from `offset` on. */
static inline void FWA_HOST(store)(const fwa_tensor *t, int64_t offset, int64_t n,
                                   const FWA_REAL *from)
{
    char *at = fwa_element(t, offset);
    int64_t i, step = n > 1 ? t->stride[t->rank - 1] : 1;
    switch (t->dtype) {
    case FWA_DTYPE_F32:
        for (i = 0; i < n; i++)
            ((float *)(void *)at)[i * step] = (float)from[i];
        break;
    case FWA_DTYPE_F64:
        for (i = 0; i < n; i++)
            ((double *)(void *)at)[i * step] = (double)from[i];
        break;
    case FWA_DTYPE_BF16:
        for (i = 0; i < n; i++)
            ((uint16_t *)(void *)at)[i * step] = fwa_bf16_from_float((float)from[i]);
        break;
    case FWA_DTYPE_F16:
        for (i = 0; i < n; i++)
            ((uint16_t *)(void *)at)[i * step] = fwa_f16_from_float((float)from[i]);
        break;
    default: break;
    }
}

/* The norm's denominator sqrt(sum or mean of u^2 + norm_eps); 1 without a norm. */
static inline FWA_REAL FWA_HOST(feature_root)(const fwa_problem *p, const FWA_REAL *raw)
{
    FWA_REAL sum = 0;
    int32_t i;
    if (p->qk_norm == FWA_NORM_NONE)
        return 1;
    for (i = 0; i < p->key_dim; i++)
        sum += raw[i] * raw[i];
    if (p->qk_norm == FWA_NORM_RMS)
        sum /= (FWA_REAL)p->key_dim;
    return FWA_HOST_SQRT(sum + (FWA_REAL)p->norm_eps);
}

/* x = phi(norm(raw)), D elements; in place is fine. A zero vector with norm_eps 0 has norm 0. */
static inline void FWA_HOST(feature)(const fwa_problem *p, const FWA_REAL *raw, FWA_REAL *x)
{
    FWA_REAL root = FWA_HOST(feature_root)(p, raw);
    int32_t i;
    for (i = 0; i < p->key_dim; i++) {
        FWA_REAL u = p->qk_norm == FWA_NORM_NONE ? raw[i] : root != 0 ? raw[i] / root : 0;
        if (p->phi == FWA_FEATURE_MAP_RELU)
            u = u < 0 ? 0 : u; /* a NaN stays */
        else if (p->phi == FWA_FEATURE_MAP_ELU1)
            u = u > 0 ? u + 1 : FWA_HOST_EXP(u);
        x[i] = u;
    }
}

/* The gradient of raw from that of x: du = (g - w <w,g>/m)/n with w = raw/n, m = 1 (l2) or D (rms).
 * `raw_grad` may be `x_grad`. */
static inline void FWA_HOST(feature_backward)(const fwa_problem *p, const FWA_REAL *raw,
                                              const FWA_REAL *x_grad, FWA_REAL *raw_grad)
{
    FWA_REAL root = FWA_HOST(feature_root)(p, raw), inverse = root != 0 ? 1 / root : 0, along = 0;
    int32_t i;
    for (i = 0; i < p->key_dim; i++) {
        FWA_REAL w = raw[i] * inverse, g = x_grad[i];
        if (p->phi == FWA_FEATURE_MAP_RELU)
            g = w > 0 ? g : 0;
        else if (p->phi == FWA_FEATURE_MAP_ELU1)
            g = w > 0 ? g : g * FWA_HOST_EXP(w);
        raw_grad[i] = g;
        along += w * g;
    }
    if (p->qk_norm == FWA_NORM_NONE)
        return;
    if (p->qk_norm == FWA_NORM_RMS)
        along /= (FWA_REAL)p->key_dim;
    for (i = 0; i < p->key_dim; i++)
        raw_grad[i] = (raw_grad[i] - raw[i] * inverse * along) * inverse;
}

static inline FWA_DECAY(knobs) FWA_HOST(problem_knobs)(const fwa_problem *p)
{
    FWA_DECAY(knobs) knobs = {p->step == FWA_STEP_NORMALIZED, p->ridge != FWA_RIDGE_ACTUAL,
                              p->ridge == FWA_RIDGE_SCALE_COUPLED_LIVE, (FWA_REAL)p->eps,
                              (FWA_REAL)p->decay_floor};
    return knobs;
}

#undef FWA_REAL
#undef FWA_HOST
#undef FWA_DECAY
#undef FWA_HOST_SQRT
#undef FWA_HOST_EXP
