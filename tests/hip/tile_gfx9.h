/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of gfx9 on this processor. */
#define MATRIX_MODEL 9
#include "matrix_models.h"

#include "../../src/gpu/tile/mma_halves.h"
