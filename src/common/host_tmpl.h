/* SPDX-License-Identifier: Apache-2.0 */
/* Included by host.h once per floating-point type; no include guard. */

/* Converts n elements, `step` apart, that begin at `at`. */
static inline __attribute__((always_inline)) void
FWA_HOST(load_from)(const char *at, int32_t dtype, int64_t step, int64_t n, FWA_REAL *to)
{
    int64_t i;
    switch (dtype) {
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

/* Reads n elements that start at `offset` into dense reals; the last axis may have any stride. */
static inline void FWA_HOST(load)(const fwa_tensor *t, int64_t offset, int64_t n, FWA_REAL *to)
{
    const char *at = fwa_element(t, offset);
    int64_t step = n > 1 ? t->stride[t->rank - 1] : 1;
    if (step == 1) /* a constant, so that compilers make vectors of it */
        FWA_HOST(load_from)(at, t->dtype, 1, n, to);
    else
        FWA_HOST(load_from)(at, t->dtype, step, n, to);
}

/* One element, or `absent` where the tensor is. */
static inline FWA_REAL FWA_HOST(load_one)(const fwa_tensor *t, int64_t offset, FWA_REAL absent)
{
    if (fwa_present(t))
        FWA_HOST(load)(t, offset, 1, &absent);
    return absent;
}

static inline __attribute__((always_inline)) void
FWA_HOST(store_to)(char *at, int32_t dtype, int64_t step, int64_t n, const FWA_REAL *from)
{
    int64_t i;
    switch (dtype) {
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

/* Writes n dense reals from `offset` on. */
static inline void FWA_HOST(store)(const fwa_tensor *t, int64_t offset, int64_t n,
                                   const FWA_REAL *from)
{
    char *at = fwa_element(t, offset);
    int64_t step = n > 1 ? t->stride[t->rank - 1] : 1;
    if (step == 1)
        FWA_HOST(store_to)(at, t->dtype, 1, n, from);
    else
        FWA_HOST(store_to)(at, t->dtype, step, n, from);
}

/* Sum of a * b over the D elements of a feature, in FWA_HOST_LANES chains that a compiler can keep
 * in vectors: one chain would wait for itself. */
static inline FWA_REAL FWA_HOST(feature_dot)(const fwa_problem *p, const FWA_REAL *a,
                                             const FWA_REAL *b)
{
    FWA_REAL chain[FWA_HOST_LANES] = {0}, sum = 0;
    int32_t i = 0, lane;
    for (; i + FWA_HOST_LANES <= p->key_dim; i += FWA_HOST_LANES)
        for (lane = 0; lane < FWA_HOST_LANES; lane++)
            chain[lane] += a[i + lane] * b[i + lane];
    for (lane = 0; i < p->key_dim; i++, lane++)
        chain[lane] += a[i] * b[i];
    for (lane = 0; lane < FWA_HOST_LANES; lane++)
        sum += chain[lane];
    return sum;
}

/* The norm's denominator sqrt(sum or mean of u^2 + norm_eps); 1 without a norm. */
static inline FWA_REAL FWA_HOST(feature_root)(const fwa_problem *p, const FWA_REAL *raw)
{
    FWA_REAL sum;
    if (p->qk_norm == FWA_NORM_NONE)
        return 1;
    sum = FWA_HOST(feature_dot)(p, raw, raw);
    if (p->qk_norm == FWA_NORM_RMS)
        sum /= (FWA_REAL)p->key_dim;
    return FWA_HOST_SQRT(sum + (FWA_REAL)p->norm_eps);
}

/* x = phi(norm(raw)), D elements; in place is fine. A zero vector with norm_eps 0 has norm 0. */
static inline void FWA_HOST(feature)(const fwa_problem *p, const FWA_REAL *raw, FWA_REAL *x)
{
    FWA_REAL root = FWA_HOST(feature_root)(p, raw), inverse = root != 0 ? 1 / root : 0;
    int32_t i;
    for (i = 0; i < p->key_dim; i++)
        x[i] = raw[i] * inverse;
    if (p->phi == FWA_FEATURE_MAP_RELU)
        for (i = 0; i < p->key_dim; i++)
            x[i] = x[i] < 0 ? 0 : x[i]; /* a NaN stays */
    else if (p->phi == FWA_FEATURE_MAP_ELU1)
        for (i = 0; i < p->key_dim; i++)
            x[i] = x[i] > 0 ? x[i] + 1 : FWA_HOST_EXP(x[i]);
}

/* What is left of the gradient of a vector of one element, whose normalised form is +-1 but for
 * norm_eps: du = g norm_eps / n^3. The general formula is the difference of two almost equal terms
 * there. In this order no factor overflows before the result does. */
static inline FWA_REAL FWA_HOST(feature_slope)(const fwa_problem *p, FWA_REAL inverse)
{
    return (FWA_REAL)p->norm_eps * inverse * inverse * inverse;
}

/* The gradient of raw from that of x: du = (g - w <w,g>/m)/n with w = raw/n, m = 1 (l2) or D (rms).
 * `raw_grad` may be `x_grad`. */
static inline void FWA_HOST(feature_backward)(const fwa_problem *p, const FWA_REAL *raw,
                                              const FWA_REAL *x_grad, FWA_REAL *raw_grad)
{
    FWA_REAL root = FWA_HOST(feature_root)(p, raw), inverse = root != 0 ? 1 / root : 0, along;
    int32_t i;
    if (p->phi == FWA_FEATURE_MAP_RELU)
        for (i = 0; i < p->key_dim; i++)
            raw_grad[i] = raw[i] * inverse > 0 ? x_grad[i] : 0;
    else if (p->phi == FWA_FEATURE_MAP_ELU1)
        for (i = 0; i < p->key_dim; i++)
            raw_grad[i] = raw[i] * inverse > 0 ? x_grad[i]
                                               : x_grad[i] * FWA_HOST_EXP(raw[i] * inverse);
    else
        memmove(raw_grad, x_grad, sizeof *raw_grad * (size_t)p->key_dim);
    if (p->qk_norm == FWA_NORM_NONE)
        return;
    if (p->key_dim == 1) {
        raw_grad[0] *= FWA_HOST(feature_slope)(p, inverse);
        return;
    }
    along = FWA_HOST(feature_dot)(p, raw, raw_grad) * inverse;
    if (p->qk_norm == FWA_NORM_RMS)
        along /= (FWA_REAL)p->key_dim;
    for (i = 0; i < p->key_dim; i++)
        raw_grad[i] = (raw_grad[i] - raw[i] * inverse * along) * inverse;
}

static inline FWA_DECAY(knobs) FWA_HOST(problem_knobs)(const fwa_problem *p)
{
    FWA_DECAY(knobs)
    knobs = {p->step == FWA_STEP_NORMALIZED, p->ridge != FWA_RIDGE_ACTUAL,
             p->ridge == FWA_RIDGE_SCALE_COUPLED_LIVE, (FWA_REAL)p->eps, (FWA_REAL)p->decay_floor};
    return knobs;
}

#undef FWA_REAL
#undef FWA_HOST
#undef FWA_DECAY
#undef FWA_HOST_SQRT
#undef FWA_HOST_EXP
