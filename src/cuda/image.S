/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled kernels as data, in the section where NVIDIA's tools look for such. The build copies
 * this file whenever the kernels were compiled anew, so that they are read again. */

#ifdef __CET__
#include <cet.h>
#endif

    .section .nv_fatbin, "a", %progbits
    .balign 64
    .globl fwa_cuda_image
    .hidden fwa_cuda_image
    .type fwa_cuda_image, %object
fwa_cuda_image:
    .incbin "kernels.fatbin"
    .size fwa_cuda_image, . - fwa_cuda_image

    .section .note.GNU-stack, "", %progbits
