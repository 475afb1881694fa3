/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_GPU_TILE_MMA_AMD_H
#define FWA_GPU_TILE_MMA_AMD_H

/* Which products of tiles serve which of AMD's processors; those without matrix instructions for bf16 get
 * the ones by multiply-adds. */

#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) ||    \
    defined(__gfx950__) || defined(__GFX12__)
#include "mma_halves.h"
#elif defined(__GFX11__)
#include "mma_gfx11.h"
#else
#include "fma.h"
#endif

#endif
