/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_COMMON_HOST_CALL_H
#define FWA_COMMON_HOST_CALL_H

/* How a forward call in host memory is shared out: units of work over lanes, carries after them,
 * and the order that crossing slots need. */

#include "host.h"

/* Runs count tasks on the executor's lanes, each once; lanes take the next few, which are neighbours,
 * as they become free. */
void fwa_host_tasks(const fwa_executor *executor, int64_t count,
                    void (*task)(void *data, int64_t index, int64_t lane), void *data);

/* One unit of a sequence, e.g. a head's block of value columns. It reads the carry from row
 * sequence->slot_in of `in` and writes outputs, state and norm (row sequence->slot_out of
 * carry_out). */
typedef void (*fwa_host_unit)(void *data, const fwa_carry *in, const fwa_sequence *sequence,
                              int64_t unit, int64_t lane);

/* Runs all units of all sequences of a forward call and then writes the other parts of the carries.
 * `kept` is room for one carry, fwa_host_kept_size(problem) bytes. */
void fwa_host_forward(const fwa_call *call, const fwa_problem *problem, int64_t units,
                      fwa_host_unit unit, void *data, void *kept);

/* The memory functions of a backend in host memory. */
fwa_status fwa_host_allocate(void *device, size_t size, void **memory, fwa_message *message);
void fwa_host_release(void *device, void *memory);
fwa_status fwa_host_copy(void *device, void *to, const void *from, size_t size,
                         fwa_message *message);

/* Bytes of one row of all carry parts, a multiple of 64. */
size_t fwa_host_kept_size(const fwa_problem *problem);

#endif
