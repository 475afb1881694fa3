/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 24

void tool_error(const char *format, ...)
{
    va_list arguments;
    fflush(stdout); /* the order of lines where both go to one place */
    fputs("fwa: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static void print_cell(const tool_column *column, const char *text, int last)
{
    const int title = (int)strlen(column->title);
    const int width = column->width > title ? column->width : title;
    if (last && !column->right)
        printf("%s\n", text); /* no blanks at a line's end */
    else
        printf("%*s%s", column->right ? width : -width, text, last ? "\n" : "  ");
}

void tool_table_head(const tool_column *columns, int count)
{
    for (int i = 0; i < count; i++)
        print_cell(&columns[i], columns[i].title, i == count - 1);
}

void tool_table_row(const tool_column *columns, int count, const char *const *cells)
{
    for (int i = 0; i < count; i++)
        print_cell(&columns[i], cells[i], i == count - 1);
}

tool_progress tool_progress_begin(int64_t total)
{
    const tool_progress progress = {isatty(STDERR_FILENO), total, 0};
    return progress;
}

void tool_progress_show(tool_progress *progress, int64_t done, const char *what)
{
    char bar[BAR_WIDTH + 1];
    if (!progress->terminal || progress->total <= 0)
        return;
    const int filled = (int)(done >= progress->total ? BAR_WIDTH
                                                     : done * BAR_WIDTH / progress->total);
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', (size_t)filled);
    bar[BAR_WIDTH] = '\0';
    fflush(stdout);
    fprintf(stderr, "\r\033[K[%s] %lld/%lld %.40s", bar, (long long)done,
            (long long)progress->total, what);
    fflush(stderr);
    progress->drawn = 1;
}

void tool_progress_clear(tool_progress *progress)
{
    if (!progress->drawn)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->drawn = 0;
}
