/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text ---- */

static int read_all(lm_data *data, FILE *file, const char *path, lm_message *message)
{
    size_t capacity = 1 << 16, size = 0, got;
    data->text = lm_allocate(capacity, 1, message);
    if (!data->text)
        return -1;
    while ((got = fread(data->text + size, 1, capacity - size, file)) > 0) {
        size += got;
        if (size == capacity) {
            uint8_t *larger = lm_allocate(2 * capacity, 1, message);
            if (!larger)
                return -1;
            memcpy(larger, data->text, size);
            free(data->text);
            data->text = larger;
            capacity *= 2;
        }
    }
    if (ferror(file))
        return lm_fail(message, "cannot read %.400s: %s", path, strerror(errno));
    data->size = (int64_t)size;
    return 0;
}

/* The first nine tenths hold a row and its last target, the rest an input and a target. */
static int64_t least_size(int64_t context)
{
    const int64_t for_training = (10 * (context + 1) + 8) / 9;
    return for_training > 20 ? for_training : 20;
}

int data_open_text(lm_data *data, const char *path, int64_t context, uint64_t seed,
                   lm_message *message)
{
    FILE *file = fopen(path, "rb");
    int result;
    memset(data, 0, sizeof *data);
    if (!file)
        return lm_fail(message, "cannot open %.400s: %s", path, strerror(errno));
    result = read_all(data, file, path, message);
    fclose(file);
    data->context = context;
    data->seed = seed;
    data->train_size = data->size - data->size / 10;
    if (result == 0 && data->size < least_size(context))
        result = lm_fail(message, "%.300s has %lld bytes: a context of %lld needs %lld", path,
                         (long long)data->size, (long long)context, (long long)least_size(context));
    if (result != 0)
        data_close(data);
    return result;
}

void data_close(lm_data *data)
{
    free(data->text);
    data->text = NULL;
}

/* ---- Additions ---- */

int64_t data_addition_tokens(int64_t digits)
{
    return 2 * digits + 2 + digits + 1; /* a + b = and the sum; the end mark is only a target */
}

void data_open_addition(lm_data *data, int64_t low, int64_t high, uint64_t seed)
{
    memset(data, 0, sizeof *data);
    data->low = low;
    data->high = high;
    data->context = data_addition_tokens(high);
    data->seed = seed;
}

/* Most significant digit first, and not 0 unless it is the only one. */
static void draw_number(random_stream *random, int64_t digits, uint8_t *number)
{
    for (int64_t i = 0; i < digits; i++) {
        const int64_t least = i == 0 && digits > 1;
        number[i] = (uint8_t)('0' + least + random_below(random, 10 - least));
    }
}

/* Writes the least significant digit first; returns how many digits the sum has. */
static int64_t write_sum(const uint8_t *a, int64_t a_digits, const uint8_t *b, int64_t b_digits,
                         uint8_t *sum)
{
    const int64_t longest = a_digits > b_digits ? a_digits : b_digits;
    int carry = 0;
    for (int64_t i = 0; i < longest; i++) {
        int digit = carry;
        digit += i < a_digits ? a[a_digits - 1 - i] - '0' : 0;
        digit += i < b_digits ? b[b_digits - 1 - i] - '0' : 0;
        sum[i] = (uint8_t)('0' + digit % 10);
        carry = digit / 10;
    }
    if (carry)
        sum[longest] = '1';
    return longest + carry;
}

static void append_addition(random_stream *random, int64_t a_digits, int64_t b_digits,
                            lm_batch *batch)
{
    uint8_t text[3 * DIGITS_LIMIT + 4];
    uint8_t *b = text + a_digits + 1, *sum = b + b_digits + 1;
    int64_t length;
    draw_number(random, a_digits, text);
    text[a_digits] = '+';
    draw_number(random, b_digits, b);
    b[b_digits] = '=';
    length = sum - text + write_sum(text, a_digits, b, b_digits, sum);
    text[length] = '\n';
    batch_append(batch, text, length, sum - text - 1);
}

void data_append_addition(const lm_data *data, int64_t digits, uint64_t index, lm_batch *batch)
{
    random_stream random = random_start(data->seed, RANDOM_TEST,
                                        index * (DIGITS_LIMIT + 1) + (uint64_t)digits);
    append_addition(&random, digits, digits, batch);
}

/* ---- Rows ---- */

void data_append_row(const lm_data *data, random_domain domain, uint64_t index, lm_batch *batch)
{
    random_stream random = random_start(data->seed, domain, index);
    if (data->text) {
        const int64_t at = random_below(&random, data->train_size - data->context);
        batch_append(batch, data->text + at, data->context, 0);
    } else {
        const int64_t widths = data->high - data->low + 1;
        const int64_t a_digits = data->low + random_below(&random, widths);
        append_addition(&random, a_digits, data->low + random_below(&random, widths), batch);
    }
}

int64_t data_held_out_rows(const lm_data *data)
{
    const int64_t targets = data->size - data->train_size - 1;
    return data->text ? (targets + data->context - 1) / data->context : ADDITION_HELD_OUT;
}

void data_append_held_out(const lm_data *data, int64_t row, lm_batch *batch)
{
    if (data->text) {
        const int64_t at = data->train_size + row * data->context, rest = data->size - 1 - at;
        batch_append(batch, data->text + at, rest < data->context ? rest : data->context, 0);
    } else {
        data_append_row(data, RANDOM_VALIDATION, (uint64_t)row, batch);
    }
}
