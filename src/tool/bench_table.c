/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_table.h"
#include "tool.h"

#include <math.h>
#include <string.h>

#define DRIFT_SHOWN     0.05 /* a peak that moved more spoils the fractions */
#define PROCESSOR_SHOWN 0.9  /* and so do calls that had the processor for less of their time */
#define CELL            48

static const tool_column columns[] = {
    {"problem", 24, 0}, {"threads", 7, 1}, {"min ms", 9, 1},   {"median", 9, 1},
    {"spread", 6, 1},   {"cpu", 5, 1},     {"tokens/s", 9, 1}, {"GFLOP/s", 7, 1},
    {"GB/s", 6, 1},     {"of peak", 7, 1}, {"bound", 13, 0},   {"efficiency", 10, 1},
    {"extra MB", 8, 1}, {"host us", 7, 1}, {"error", 7, 1},    {"checked", 14, 1},
    {"kernel", 0, 0},
};

#define COLUMNS ((int)(sizeof columns / sizeof *columns))

/* "-" where there is no number. */
static void format(char cell[CELL], const char *pattern, double number)
{
    if (number > 0)
        snprintf(cell, CELL, pattern, number);
    else
        snprintf(cell, CELL, "-");
}

/* ---- Peaks ---- */

static void print_peaks(const bench_meter *meter)
{
    char all[CELL];
    const tool_column peak_columns[] = {
        {"peak", 13, 0}, {"unit", 7, 0}, {"isa", 10, 0}, {"1 thread", 8, 1}, {all, 10, 1}};
    const int count = meter->threads > 1 ? 5 : 4;
    snprintf(all, sizeof all, "%d threads", meter->threads);
    tool_table_head(peak_columns, count);
    for (int peak = 0; peak < BENCH_PEAKS; peak++) {
        char one[CELL], more[CELL];
        if (meter->loops[peak] == NULL)
            continue;
        format(one, "%.1f", bench_meter_series(meter, (bench_peak)peak, 1).greatest);
        format(more, "%.1f", bench_meter_series(meter, (bench_peak)peak, meter->threads).greatest);
        const char *const cells[] = {bench_peak_name((bench_peak)peak),
                                     bench_peak_unit((bench_peak)peak), meter->loops[peak]->isa,
                                     one, more};
        tool_table_row(peak_columns, count, cells);
    }
    printf("\n");
}

void bench_table_machine(const bench_setup *setup)
{
    printf("libfwa %s, %s (%s), threads: %d\n\n", fwa_version_string(),
           fwa_context_backend(setup->context), fwa_context_device(setup->context),
           (int)fwa_context_threads(setup->context));
    if (setup->meter)
        print_peaks(setup->meter);
    else
        printf("No peak of this device was measured: there is nothing to hold its rates to.\n"
               "Extra memory is workspace and saved states, without inputs and outputs.\n\n");
}

/* The least part of its time in which a timed problem had the processor. */
static double least_processor(const bench_result *results, int64_t count)
{
    double least = 1;
    for (int64_t i = 0; i < count; i++)
        if (results[i].verdict == BENCH_TIMED)
            least = fmin(least, results[i].processor);
    return least;
}

void bench_table_drift(const bench_setup *setup, const bench_result *results, int64_t count)
{
    if (setup->meter == NULL)
        return;
    const bench_series fma = bench_meter_series(setup->meter, BENCH_PEAK_FMA_F32,
                                                setup->meter->threads);
    const int uncertain = bench_meter_drift(setup->meter) > DRIFT_SHOWN ||
                          least_processor(results, count) < PROCESSOR_SHOWN;
    printf(
        "\n%s: %.1f %s at first, %.1f at last, %.1f to %.1f between%s\n", bench_peak_name(fma.peak),
        fma.first, bench_peak_unit(fma.peak), fma.last, fma.least, fma.greatest,
        uncertain ? ".\nThe clock moved, or other programs ran: take the figures with care." : "");
}

/* ---- Results ---- */

void bench_table_head(void)
{
    tool_table_head(columns, COLUMNS);
}

static const char *milliseconds(double seconds)
{
    return seconds < 1e-3 ? "%.4f" : seconds < 1 ? "%.3f" : "%.1f";
}

/* "all", "2 x 305", and after it "1/16" where the other fifteen repeat what was compared. */
static void print_checked(char cell[CELL], const bench_check *check)
{
    char tokens[24] = "all";
    if (check->tokens > 0)
        snprintf(tokens, sizeof tokens, "2 x %lld", (long long)check->tokens);
    if (check->pairs < check->all_pairs)
        snprintf(cell, CELL, "%s, %lld/%lld", tokens, (long long)check->pairs,
                 (long long)check->all_pairs);
    else
        snprintf(cell, CELL, "%s", tokens);
}

static void print_times(const bench_result *r, double efficiency)
{
    const bench_rates rates = bench_rates_of(r);
    char text[COLUMNS][CELL];
    const char *cells[COLUMNS];
    for (int i = 0; i < COLUMNS; i++)
        cells[i] = text[i];
    cells[0] = r->problem.name;
    snprintf(text[10], CELL, "%s", r->peaks[r->bound] > 0 ? bench_peak_name(r->bound) : "-");
    cells[COLUMNS - 1] = r->kernel;
    snprintf(text[1], CELL, "%d", (int)r->threads);
    format(text[2], milliseconds(r->minimum), r->minimum * 1e3);
    format(text[3], milliseconds(r->median), r->median * 1e3);
    format(text[4], "%.2f", r->p90 / r->minimum);
    format(text[5], "%.0f %%", 100 * r->processor);
    format(text[6], rates.tokens < 1e7 ? "%.0f" : "%.3g", rates.tokens);
    format(text[7], rates.gflops < 1000 ? "%.1f" : "%.0f", rates.gflops);
    format(text[8], "%.1f", rates.gbytes);
    format(text[9], "%.1f %%", 100 * rates.of_bound);
    format(text[11], "%.1f %%", 100 * efficiency);
    format(text[12], r->extra < 1e7 ? "%.2f" : "%.0f", r->extra * 1e-6);
    format(text[13], "%.1f", r->host * 1e6);
    snprintf(text[14], CELL, "%.1e", r->check.error.rms);
    print_checked(text[15], &r->check);
    tool_table_row(columns, COLUMNS, cells);
}

void bench_table_row(const bench_result *results, int64_t count)
{
    const bench_result *last = &results[count - 1];
    const char *set = last->problem.set;
    if (set[0] && (count == 1 || strcmp(set, results[count - 2].problem.set) != 0))
        printf("%s%s:\n", count > 1 ? "\n" : "", set);
    if (last->verdict == BENCH_TIMED)
        print_times(last, bench_efficiency(results, count, last));
    else
        printf("%-*s  %s: %s\n", columns[0].width, last->problem.name,
               last->verdict == BENCH_WRONG ? "FAILED" : "refused", last->message.text);
}
