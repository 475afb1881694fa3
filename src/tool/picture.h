/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_TOOL_PICTURE_H
#define FWA_TOOL_PICTURE_H

/* A square matrix as a PNG. Zero is white, positive entries go to red, negative ones to blue; the
 * largest finite magnitude has the full colour; entries that are not finite are green. With
 * `logarithmic` the colour falls by a sixth for every factor of ten, to white at a millionth. A
 * pixel that covers several entries shows the one of the largest magnitude. */

#include "tool.h"

#define PICTURE_LIMIT 8192 /* pixels a side */

/* `size` pixels a side. TOOL_OK, TOOL_LIBRARY (memory) or TOOL_OUTPUT with *message filled. */
tool_exit picture_write(const char *path, const float *matrix, int64_t extent, int size,
                        int logarithmic, safetensors_message *message);

/* The largest finite magnitude. */
float picture_scale(const float *matrix, int64_t extent);

#endif
