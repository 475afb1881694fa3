/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"

#include "../files/atomic_file.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECADES 6.0f

typedef struct colour {
    float red, green, blue;
} colour;

static const colour white = {255, 255, 255}, positive = {178, 24, 43}, negative = {33, 102, 172},
                    not_finite = {0, 160, 60};

float picture_scale(const float *matrix, int64_t extent)
{
    float largest = 0;
    for (int64_t i = 0; i < extent * extent; i++)
        if (isfinite(matrix[i]))
            largest = fmaxf(largest, fabsf(matrix[i]));
    return largest;
}

/* The entry of the largest magnitude in a box of rows and columns; what is not finite wins. */
static float box_entry(const float *matrix, int64_t extent, const int64_t row[2],
                       const int64_t column[2])
{
    float chosen = 0;
    for (int64_t i = row[0]; i < row[1]; i++) {
        for (int64_t j = column[0]; j < column[1]; j++) {
            const float entry = matrix[i * extent + j];
            if (!isfinite(entry))
                return entry;
            if (fabsf(entry) > fabsf(chosen))
                chosen = entry;
        }
    }
    return chosen;
}

/* The entries, one at least, that a pixel covers. */
static void pixel_range(int64_t extent, int size, int pixel, int64_t range[2])
{
    range[0] = pixel * extent / size;
    range[1] = ((pixel + 1) * extent + size - 1) / size;
}

static void paint(png_byte *pixel, float entry, float scale, int logarithmic)
{
    const colour *end = entry > 0 ? &positive : &negative;
    float weight = 0;
    if (!isfinite(entry)) {
        end = &not_finite;
        weight = 1;
    } else if (entry != 0) {
        const float relative = fabsf(entry) / scale;
        weight = logarithmic ? fmaxf(0, 1 + log10f(relative) / DECADES) : relative;
    }
    pixel[0] = (png_byte)lrintf(white.red + weight * (end->red - white.red));
    pixel[1] = (png_byte)lrintf(white.green + weight * (end->green - white.green));
    pixel[2] = (png_byte)lrintf(white.blue + weight * (end->blue - white.blue));
}

static void paint_all(png_byte *pixels, const float *matrix, int64_t extent, int size,
                      int logarithmic)
{
    const float scale = picture_scale(matrix, extent);
    int64_t row[2], column[2];
    for (int y = 0; y < size; y++) {
        pixel_range(extent, size, y, row);
        for (int x = 0; x < size; x++) {
            pixel_range(extent, size, x, column);
            paint(pixels + ((size_t)y * (size_t)size + (size_t)x) * 3,
                  box_entry(matrix, extent, row, column), scale, logarithmic);
        }
    }
}

tool_exit picture_write(const char *path, const float *matrix, int64_t extent, int size,
                        int logarithmic, safetensors_message *message)
{
    atomic_file file;
    png_image image;
    png_byte *pixels = calloc((size_t)size * (size_t)size, 3);
    if (pixels == NULL) {
        snprintf(message->text, sizeof message->text, "no memory for %d x %d pixels", size, size);
        return TOOL_LIBRARY;
    }
    paint_all(pixels, matrix, extent, size, logarithmic);
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    image.width = image.height = (png_uint_32)size;
    image.format = PNG_FORMAT_RGB;
    int failed = atomic_file_open(&file, path, message);
    if (!failed && !png_image_write_to_stdio(&image, file.stream, 0, pixels, 0, NULL)) {
        snprintf(message->text, sizeof message->text, "cannot write '%.200s': %s", path,
                 image.message);
        atomic_file_discard(&file);
        failed = 1;
    } else if (!failed) {
        failed = atomic_file_commit(&file, message);
    }
    free(pixels);
    return failed ? TOOL_OUTPUT : TOOL_OK;
}
