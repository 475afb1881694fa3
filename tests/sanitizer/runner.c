/* SPDX-License-Identifier: Apache-2.0 */
/* Runs Criterion's tests one after another, each in a forked child. Linked into the test programs of
 * the sanitizer builds, where it takes the place of Criterion's own runner, whose sandbox
 *   - maps memory at addresses that ThreadSanitizer does not allow, and
 *   - ends each test's process without looking for leaks.
 * It defines the functions that Criterion's macros call, so nothing of Criterion's runner is used. A
 * sanitizer's report fails its test. Output: TAP on the standard output, messages on the standard
 * error.
 *
 * Usage: PROGRAM [--filter SUITE/TEST], with wildcards as in fnmatch(3); other options are ignored. */

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The linker's names for the sections in which Criterion's macros collect tests and suites. Weak: a
 * program may have no suite with options of its own. */
extern struct criterion_test *__start_cr_tst[], *__stop_cr_tst[];
extern struct criterion_suite *__start_cr_sts[] __attribute__((weak));
extern struct criterion_suite *__stop_cr_sts[] __attribute__((weak));

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_LEAK_CHECK 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HAVE_LEAK_CHECK 1
#endif
#ifdef HAVE_LEAK_CHECK
#include <sanitizer/lsan_interface.h>
#endif

static const struct criterion_test *current;
static const struct criterion_suite *current_suite;
static void *current_parameter;
static jmp_buf test_end;
static atomic_int failures; /* of the current test; assertions may run on any thread */
static int all_good = 1;

#define FAILED 99 /* exit status of a test */

/* ---- What Criterion's macros call ---- */

void cri_asserts_passed_incr(void)
{
}

void criterion_send_assert(struct criterion_assert_stats *stats)
{
    if (stats->passed)
        return;
    atomic_fetch_add(&failures, 1);
    fprintf(stderr, "%s:%u: %s/%s: %s\n", stats->file, (unsigned)stats->line, current->category,
            current->name, stats->message);
}

void criterion_abort_test(void)
{
    longjmp(test_end, 1);
}

void criterion_continue_test(void)
{
}

void criterion_skip_test(const char *message, ...)
{
    fprintf(stderr, "%s/%s: skipped: %s\n", current->category, current->name, message);
    atomic_fetch_add(&failures, 1); /* every case counts */
    longjmp(test_end, 1);
}

void criterion_test_die(const char *message, ...)
{
    va_list arguments;
    va_start(arguments, message);
    vfprintf(stderr, message, arguments);
    va_end(arguments);
    atomic_fetch_add(&failures, 1);
    longjmp(test_end, 1);
}

static void call_if(void (*function)(void))
{
    if (function)
        function();
}

void criterion_internal_test_setup(void)
{
    if (current_suite && current_suite->data)
        call_if(current_suite->data->init);
    call_if(current->data->init);
}

void criterion_internal_test_main(void (*function)(void))
{
    if (current->data->kind_ == CR_TEST_PARAMETERIZED)
        ((void (*)(void *))function)(current_parameter);
    else
        function();
}

void criterion_internal_test_teardown(void)
{
    call_if(current->data->fini);
    if (current_suite && current_suite->data)
        call_if(current_suite->data->fini);
}

/* ---- The runner ---- */

static void find_suite(void)
{
    struct criterion_suite **suite;
    current_suite = NULL;
    for (suite = __start_cr_sts; suite < __stop_cr_sts; suite++)
        if (*suite && strcmp((*suite)->name, current->category) == 0)
            current_suite = *suite;
}

/* AddressSanitizer is to answer as malloc does where a request is too large. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* What OpenMP's runtime keeps for its threads is not ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libomp\nleak:libgomp\n";
}

const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

/* ThreadSanitizer calls this at each report, which so belongs to a test. */
void __tsan_on_report(void *report);
void __tsan_on_report(void *report)
{
    (void)report;
    atomic_fetch_add(&failures, 1);
}

static int run_here(void)
{
    if (setjmp(test_end) == 0) {
        current->test();
#ifdef HAVE_LEAK_CHECK
        /* A test that gave up midway has freed nothing: its leaks say nothing. */
        if (atomic_load(&failures) == 0 && __lsan_do_recoverable_leak_check())
            atomic_fetch_add(&failures, 1);
#endif
    }
    return atomic_load(&failures) == 0;
}

/* Runs the current test in a child of this process, which itself stays as it is. */
static void run_one(void *parameter)
{
    const struct criterion_test_extra_data *data = current->data;
    int status = 0, good;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        current_parameter = parameter;
        _exit(run_here() ? 0 : FAILED);
    }
    good = child > 0 && waitpid(child, &status, 0) == child;
    if (data->signal)
        good = good && WIFSIGNALED(status) && WTERMSIG(status) == data->signal;
    else
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == data->exit_code;
    if (!good && child > 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == FAILED))
        fprintf(stderr, "%s/%s: ended with wait status 0x%x\n", current->category, current->name,
                (unsigned)status);
    printf("%s - %s::%s\n", good ? "ok" : "not ok", current->category, current->name);
    all_good = all_good && good;
}

/* Runs the current test, or only counts its runs. */
static size_t visit(int run)
{
    struct criterion_test_params parameters = {.length = 1};
    size_t i;
    if (current->data->kind_ == CR_TEST_PARAMETERIZED)
        parameters = current->data->param_();
    for (i = 0; run && i < parameters.length; i++)
        run_one(parameters.params ? (char *)parameters.params + i * parameters.size : NULL);
    if (parameters.cleanup)
        parameters.cleanup(&parameters);
    return parameters.length;
}

static size_t visit_all(const char *filter, int run)
{
    struct criterion_test **test;
    size_t count = 0;
    for (test = __start_cr_tst; test < __stop_cr_tst; test++) {
        char name[256];
        if (!*test)
            continue;
        current = *test;
        snprintf(name, sizeof name, "%s/%s", current->category, current->name);
        if (fnmatch(filter, name, 0) != 0)
            continue;
        find_suite();
        count += visit(run);
    }
    return count;
}

int main(int argc, char **argv)
{
    const char *filter = "*";
    int i;
    for (i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--filter") == 0)
            filter = argv[i + 1];
    printf("TAP version 13\n1..%zu\n", visit_all(filter, 0));
    visit_all(filter, 1);
    return !all_good;
}
