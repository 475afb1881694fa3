/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_CUDA_IMAGE_H
#define FWA_CUDA_IMAGE_H

/* The compiled kernels: a fat binary, as nvcc writes it. FWA_CUDA_IMAGES, from the build, has the
 * names of the images in it ("sm_80 sm_90a compute_90"). */
extern const unsigned char fwa_cuda_image[];

#endif
