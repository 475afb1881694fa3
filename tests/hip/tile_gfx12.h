/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of gfx12 on this processor. */
#define MATRIX_MODEL 12
#include "matrix_models.h"

#include "../../src/gpu/tile/mma_halves.h"
