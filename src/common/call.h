/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_CALL_H
#define FWA_COMMON_CALL_H

#include "common.h"

/* Greatest extent of an axis and of batch * tokens, and greatest span of a tensor in bytes: sums
 * and products of a few of them stay within 64 bits. */
#define FWA_AXIS_LIMIT ((int64_t)1 << 40)
#define FWA_SPAN_LIMIT ((int64_t)1 << 60)

#define FWA_FRONT_ALIGNMENT 64

/* The front end's own part at the start of a workspace: what a team's first member found out for
 * the others, then room for fwa_check_sequences. A multiple of 64. */
size_t fwa_front_size(int64_t sequences);
fwa_status fwa_total_workspace(const fwa_plan *plan, fwa_pass pass, const fwa_extent *extent,
                               size_t *size);

#endif
