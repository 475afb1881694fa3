/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of problems, from texts and files. */

#include "problems.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT (1 << 20)

static int append(bench_list *list, const bench_problem *problem, bench_message *message)
{
    /* Room doubles whenever the count is a power of two. */
    if ((list->count & (list->count - 1)) == 0) {
        const size_t room = list->count ? 2 * (size_t)list->count : 1;
        bench_problem *grown = realloc(list->problems, room * sizeof *grown);
        if (grown == NULL)
            return bench_fail(message, "no memory for %zu problems", room);
        list->problems = grown;
    }
    list->problems[list->count++] = *problem;
    return 0;
}

/* Results shall not tell where a file lies. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int bench_parse_text(const char *text, const char *origin, bench_list *list, bench_message *message)
{
    int64_t number = 1;
    for (const char *at = text; *at; number++) {
        const size_t length = strcspn(at, "\n");
        char line[BENCH_LINE + 1];
        bench_problem problem;
        bench_message inner;
        snprintf(line, sizeof line, "%.*s", (int)(length < BENCH_LINE ? length : BENCH_LINE), at);
        int result = bench_parse_line(line, &problem, &inner);
        if (result > 0) {
            snprintf(problem.set, sizeof problem.set, "%.40s", base_name(origin));
            result = append(list, &problem, &inner);
        }
        if (result < 0)
            return bench_fail(message, "%.128s:%lld: %.300s", origin, (long long)number,
                              inner.text);
        at += length + (at[length] == '\n');
    }
    return 0;
}

int bench_read_file(const char *path, bench_list *list, bench_message *message)
{
    int result = -1;
    FILE *file = fopen(path, "re");
    char *text = malloc(FILE_LIMIT + 1);
    if (file == NULL) {
        bench_fail(message, "'%.200s' cannot be read: %s", path, strerror(errno));
    } else if (text == NULL) {
        bench_fail(message, "'%.200s': no memory for its text", path);
    } else {
        const size_t size = fread(text, 1, FILE_LIMIT + 1, file);
        if (ferror(file))
            bench_fail(message, "'%.200s' cannot be read: %s", path, strerror(errno));
        else if (size > FILE_LIMIT)
            bench_fail(message, "'%.200s' is longer than %d bytes", path, FILE_LIMIT);
        else if (memchr(text, '\0', size) != NULL)
            bench_fail(message, "'%.200s' holds a zero byte: it is no text", path);
        else {
            text[size] = '\0';
            result = bench_parse_text(text, path, list, message);
        }
    }
    if (file)
        fclose(file);
    free(text);
    return result;
}

int bench_list_expand(bench_list *list, int32_t most, bench_message *message)
{
    bench_list expanded = {NULL, 0};
    int failed = 0;
    for (int64_t i = 0; i < list->count && !failed; i++) {
        bench_problem problem = list->problems[i];
        if (problem.threads == BENCH_THREADS_SCALING) {
            for (problem.threads = 1; problem.threads < most && !failed; problem.threads *= 2)
                failed = append(&expanded, &problem, message);
            problem.threads = most;
        }
        failed = failed || append(&expanded, &problem, message);
    }
    bench_list_free(failed ? &expanded : list);
    if (!failed)
        *list = expanded;
    return failed ? -1 : 0;
}

void bench_list_free(bench_list *list)
{
    free(list->problems);
    memset(list, 0, sizeof *list);
}
