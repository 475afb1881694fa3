/* SPDX-License-Identifier: Apache-2.0 */
/* Runs Criterion's tests one after another in this process. Linked into the test programs of the
 * sanitizer builds, where it takes the place of Criterion's own runner, whose sandbox
 *   - maps memory at addresses that ThreadSanitizer does not allow, and
 *   - ends each test's process without the exit handlers that report leaks.
 * It defines the functions that Criterion's macros call, so nothing of Criterion's runner is used.
 * A failed assertion ends its test; a crash ends the program, which then has printed fewer results
 * than it announced. Output: TAP on the standard output, messages on the standard error.
 *
 * Usage: PROGRAM [--filter SUITE/TEST], with wildcards as in fnmatch(3); other options are ignored.
 */

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

static void check_leaks(void)
{
#ifdef HAVE_LEAK_CHECK
    /* A leak stays one, so what comes after the first is not known. */
    static int leaked;
    if (!leaked && __lsan_do_recoverable_leak_check()) {
        leaked = 1;
        atomic_fetch_add(&failures, 1);
    }
#endif
}

static int run_here(void)
{
    atomic_store(&failures, 0);
    if (setjmp(test_end) == 0) {
        current->test();
        check_leaks(); /* a test that gives up midway frees nothing */
    }
    return atomic_load(&failures) == 0;
}

/* A test that must end its process, in a child. */
static int run_in_child(int signal, int exit_code)
{
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        int good = run_here();
        _exit(good ? 0 : 99);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 0;
    if (signal)
        return WIFSIGNALED(status) && WTERMSIG(status) == signal;
    return WIFEXITED(status) && WEXITSTATUS(status) == exit_code;
}

static void run_one(void *parameter)
{
    const struct criterion_test_extra_data *data = current->data;
    int good;
    current_parameter = parameter;
    good = data->signal || data->exit_code ? run_in_child(data->signal, data->exit_code)
                                           : run_here();
    printf("%s - %s::%s\n", good ? "ok" : "not ok", current->category, current->name);
    fflush(stdout);
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
    fflush(stdout);
    visit_all(filter, 1);
    return 0;
}
