/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward allocate nothing, and ten thousand calls leave no trace (B139). */

#include "support.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long allocations;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
/* The sanitizers have replaced malloc already, and tell of each call. */
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *memory, size_t size)
{
    (void)memory, (void)size;
    atomic_fetch_add(&allocations, 1);
}

static void on_free(const volatile void *memory)
{
    (void)memory;
}

static void count_allocations(void)
{
    cr_assert_neq(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free), 0);
}
#else
/* These stand in front of the C library's, for libfwa too. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(alignment, size);
}

static void count_allocations(void)
{
}
#endif

/* Pages that are resident in memory. The sanitizers keep what was freed, and look for leaks
 * themselves: 0 there. */
static long resident_pages(void)
{
#ifdef SANITIZED
    return 0;
#else
    static char text[128];
    FILE *file = fopen("/proc/self/statm", "r");
    long total, resident;
    cr_assert_not_null(file);
    cr_assert_not_null(fgets(text, sizeof text, file));
    fclose(file);
    cr_assert_eq(sscanf(text, "%ld %ld", &total, &resident), 2);
    return resident;
#endif
}

/* The counter itself counts, or the tests below prove nothing. */
Test(allocation, is_counted)
{
    long before;
    count_allocations();
    before = atomic_load(&allocations);
    setup s = setup_small("cpu");
    call_free(call_new(&s, FWA_PASS_FORWARD));
    cr_assert_geq(atomic_load(&allocations) - before, 3); /* context, plan, call at least */
}

#define CALLS 10000

static void check_calls(const setup *s, fwa_pass pass, const fwa_status expected)
{
    call *c = call_new(s, pass);
    long before, pages, grown;
    const int32_t slots[] = {1, 0}, targets[] = {0, 1};
    if (s->in_place) {
        call_integers(c, "slot_in", 2, slots);
        if (pass == FWA_PASS_FORWARD)
            call_integers(c, "slot_out", 2, targets);
    }
    if (expected != FWA_OK)
        tensor_set(call_get(c, "beta"), 3, -1);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(call_run(c), expected, "%s", fwa_error_message());
    pages = resident_pages();
    pages = resident_pages();
    before = atomic_load(&allocations);
    for (int i = 0; i < CALLS; i++)
        if (call_run(c) != expected)
            cr_assert_fail("%s", fwa_error_message());
    cr_assert_eq(atomic_load(&allocations) - before, 0, "%ld allocations in %d calls",
                 atomic_load(&allocations) - before, CALLS);
    grown = resident_pages() - pages;
    cr_assert_leq(grown, 64, "%ld pages more after %d calls", grown, CALLS);
    call_free(c);
}

Test(allocation, none_in_calls, .timeout = 300)
{
    count_allocations();
    FOR_BACKENDS(backend)
    for (int pass = 0; pass < 2; pass++)
        for (int threads = 1; threads <= 2; threads++) {
            setup s = setup_small(backend);
            s.threads = threads;
            check_calls(&s, (fwa_pass)pass, FWA_OK);
        }
}

Test(allocation, none_in_decoding, .timeout = 300)
{
    count_allocations();
    for (int threads = 1; threads <= 2; threads++) {
        setup s = setup_small("cpu");
        s.threads = threads;
        s.tokens = 1;
        s.in_place = true;
        check_calls(&s, FWA_PASS_FORWARD, FWA_OK);
    }
}

Test(allocation, none_in_errors, .timeout = 300)
{
    count_allocations();
    setup s = setup_small("cpu");
    check_calls(&s, FWA_PASS_FORWARD, FWA_ERROR_VALUE);
    check_calls(&s, FWA_PASS_BACKWARD, FWA_ERROR_VALUE);
}

/* Contexts and plans give back what they took. */
Test(allocation, contexts_and_plans_are_freed)
{
    long pages = 0;
    for (int i = 0; i < 3000; i++) {
        fwa_problem p = FWA_PROBLEM_INIT;
        fwa_context *context = make_context(backends[i % 2], 1);
        fwa_plan *plan, *failed = NULL;
        p.key_dim = p.value_dim = 8;
        plan = make_plan(context, &p);
        p.window = 99;
        cr_assert_eq(fwa_plan_create(context, &p, &failed), FWA_ERROR_VALUE);
        fwa_plan_destroy(plan);
        fwa_context_destroy(context);
        if (i == 200)
            pages = resident_pages();
    }
    cr_assert_leq(resident_pages() - pages, 64);
}
