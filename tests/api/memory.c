/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that notice stray accesses, and tensors. */

#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
    x ^= x >> 31;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

bool full_run(void)
{
    const char *given = getenv("FWA_TEST_FULL");
    return given && strcmp(given, "1") == 0;
}

/* ---- Memory ---- */

static void place_margins(block *b, size_t alignment)
{
    b->region_size = b->size + 4 * 64;
    b->map = aligned_alloc(64, (b->region_size + 63) / 64 * 64);
    cr_assert(b->map != NULL);
    b->region = b->map;
    b->data = b->region + 64 + alignment;
}

static void place_guard(block *b, size_t alignment, bool behind)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), slack;
    b->region_size = (b->size + page - 1) / page * page;
    if (b->region_size == 0)
        b->region_size = page;
    b->map_size = b->region_size + 2 * page;
    b->map = mmap(NULL, b->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(b->map != MAP_FAILED);
    b->region = (unsigned char *)b->map + page;
    cr_assert_eq(mprotect(b->region, b->region_size, PROT_READ | PROT_WRITE), 0);
    slack = b->region_size - b->size;
    b->data = b->region + (behind ? slack / alignment * alignment : 0);
}

block block_make(size_t size, size_t alignment, placement place)
{
    block b = {.size = size};
    if (place == PLACE_MARGINS)
        place_margins(&b, alignment);
    else
        place_guard(&b, alignment, place == PLACE_GUARD_BEHIND);
    memset(b.region, POISON, b.region_size);
    return b;
}

void block_free(block *b)
{
    if (b->map_size)
        munmap(b->map, b->map_size);
    else
        free(b->map);
    *b = (block){0};
}

bool block_margins_intact(const block *b)
{
    const unsigned char *at, *end = b->region + b->region_size;
    for (at = b->region; at < b->data; at++)
        if (*at != POISON)
            return false;
    for (at = b->data + b->size; at < end; at++)
        if (*at != POISON)
            return false;
    return true;
}

uint64_t block_hash(const block *b)
{
    uint64_t hash = 0, word;
    size_t i;
    for (i = 0; i + 8 <= b->size; i += 8) {
        memcpy(&word, b->data + i, 8);
        hash = mix(hash, word);
    }
    for (; i < b->size; i++)
        hash = mix(hash, b->data[i]);
    return hash;
}

/* ---- Tensors ---- */

int64_t tensor_count(const fwa_tensor *t)
{
    int64_t count = 1;
    int32_t axis;
    for (axis = 0; axis < t->rank; axis++)
        count *= t->shape[axis];
    return count;
}

int64_t tensor_offset(const fwa_tensor *t, int64_t linear)
{
    int64_t offset = 0;
    int32_t axis;
    for (axis = t->rank - 1; axis >= 0; axis--) {
        if (t->shape[axis] > 1)
            offset += linear % t->shape[axis] * t->stride[axis];
        linear /= t->shape[axis];
    }
    return offset;
}

static float half_get(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(fraction + 1024), exponent - 25);
    return half & 0x8000 ? -value : value;
}

/* Of a value that is exact and normal there, or 0, infinite or NaN. */
static uint16_t half_set(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    int exponent;
    float fraction = frexpf(fabsf(value), &exponent);
    if (isnan(value))
        return 0x7e00;
    if (isinf(value))
        return sign | 0x7c00;
    if (value == 0)
        return sign;
    return (uint16_t)(sign | ((exponent + 14) << 10) | ((int)(fraction * 2048) & 1023));
}

static char *element(const fwa_tensor *t, int64_t linear)
{
    return (char *)t->data + tensor_offset(t, linear) * (int64_t)fwa_dtype_size(t->dtype);
}

double tensor_get(const fwa_tensor *t, int64_t linear)
{
    const char *at = element(t, linear);
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
        uint16_t half;
        uint32_t bits;
    } u = {.f64 = 0};
    memcpy(&u, at, fwa_dtype_size(t->dtype));
    switch (t->dtype) {
    case FWA_DTYPE_F32: return u.f32;
    case FWA_DTYPE_F64: return u.f64;
    case FWA_DTYPE_I32: return u.i32;
    case FWA_DTYPE_I64: return (double)u.i64;
    case FWA_DTYPE_F16: return half_get(u.half);
    default: u.bits <<= 16; return u.f32;
    }
}

void tensor_set(const fwa_tensor *t, int64_t linear, double value)
{
    const float narrow = (float)value;
    const int32_t i32 = t->dtype == FWA_DTYPE_I32 ? (int32_t)value : 0;
    const int64_t i64 = t->dtype == FWA_DTYPE_I64 ? (int64_t)value : 0;
    uint16_t half;
    uint32_t bits;
    char *at = element(t, linear);
    memcpy(&bits, &narrow, 4);
    half = t->dtype == FWA_DTYPE_F16 ? half_set(narrow) : (uint16_t)(bits >> 16);
    switch (t->dtype) {
    case FWA_DTYPE_F32: memcpy(at, &narrow, 4); break;
    case FWA_DTYPE_F64: memcpy(at, &value, 8); break;
    case FWA_DTYPE_I32: memcpy(at, &i32, 4); break;
    case FWA_DTYPE_I64: memcpy(at, &i64, 8); break;
    default: memcpy(at, &half, 2); break;
    }
}

void tensor_fill(const fwa_tensor *t, uint64_t seed, double low, double high)
{
    int64_t count = tensor_count(t), i;
    uint64_t steps = (uint64_t)((high - low) * 64) + 1;
    for (i = 0; i < count; i++)
        tensor_set(t, i, low + (double)(mix(seed, (uint64_t)i) % steps) / 64);
}

bool tensor_same(const fwa_tensor *a, const fwa_tensor *b)
{
    int64_t count = tensor_count(a), i;
    int32_t axis;
    if (a->rank != b->rank || a->dtype != b->dtype)
        return false;
    for (axis = 0; axis < a->rank; axis++)
        if (a->shape[axis] != b->shape[axis])
            return false;
    for (i = 0; i < count; i++)
        if (memcmp(element(a, i), element(b, i), fwa_dtype_size(a->dtype)) != 0)
            return false;
    return true;
}

bool tensor_all(const fwa_tensor *t, double value)
{
    int64_t count = tensor_count(t), i;
    for (i = 0; i < count; i++)
        if (tensor_get(t, i) != value)
            return false;
    return true;
}

bool tensor_finite(const fwa_tensor *t)
{
    int64_t count = tensor_count(t), i;
    for (i = 0; i < count; i++)
        if (!isfinite(tensor_get(t, i)))
            return false;
    return true;
}

static fwa_tensor part(const fwa_tensor *t, int32_t axis, int64_t from, int64_t count)
{
    fwa_tensor view = *t;
    view.data = (char *)t->data + from * t->stride[axis] * (int64_t)fwa_dtype_size(t->dtype);
    view.shape[axis] = count;
    return view;
}

fwa_tensor tensor_rows(const fwa_tensor *t, int64_t from, int64_t count)
{
    return part(t, 0, from, count);
}

fwa_tensor tensor_tokens(const fwa_tensor *t, int64_t from, int64_t count)
{
    return part(t, 1, from, count);
}
