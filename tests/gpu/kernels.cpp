/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels, for this processor. */

#include "../../src/gpu/kernels.h"
