/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LM_DATA_H
#define LM_DATA_H

/* Training data: the bytes of a text file, or generated additions. */

#include "model.h"
#include "random.h"

enum { DIGITS_LIMIT = 99 };

typedef struct lm_data {
    uint8_t *text; /* NULL: additions */
    int64_t size;
    int64_t train_size; /* the first nine tenths; the rest is held out */
    int64_t context;    /* tokens of a row, the most of one for additions */
    int64_t low, high;  /* digits of the summands */
    uint64_t seed;
} lm_data;

int data_open_text(lm_data *data, const char *path, int64_t context, uint64_t seed,
                   lm_message *message);
void data_open_addition(lm_data *data, int64_t low, int64_t high, uint64_t seed);
void data_close(lm_data *data);

/* Appends row `index` of the training stream: a piece of the text, or an addition whose loss counts
 * on the sum only. The batch must have room for data->context tokens. */
void data_append_row(const lm_data *data, random_domain domain, uint64_t index, lm_batch *batch);

/* How many rows the held-out part has, and one of them. Additions have ADDITION_HELD_OUT. */
enum { ADDITION_HELD_OUT = 128 };
int64_t data_held_out_rows(const lm_data *data);
void data_append_held_out(const lm_data *data, int64_t row, lm_batch *batch);

/* Appends "a+b=" and the reversed sum and an end mark, with summands of `digits` digits both. */
void data_append_addition(const lm_data *data, int64_t digits, uint64_t index, lm_batch *batch);
/* The most tokens of such a row. */
int64_t data_addition_tokens(int64_t digits);

#endif
