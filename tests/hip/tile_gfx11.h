/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of gfx11 on this processor. */
#define MATRIX_MODEL 11
#include "matrix_models.h"

#include "../../src/gpu/tile/mma_gfx11.h"
