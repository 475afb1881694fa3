/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels, for the one translation unit that each vendor compiles. */

#include "op/carry.h"
#include "op/chunk_forward.h"
#include "op/chunk_gradients.h"
#include "op/chunk_passes.h"
#include "op/chunk_prepare.h"
#include "op/gradients.h"
#include "op/order.h"
#include "op/recurrent.h"
#include "op/recurrent_backward.h"
#include "op/statistic.h"
