/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_BENCH_MACHINE_H
#define FWA_BENCH_MACHINE_H

#include <stdint.h>

/* The processor's name as the system tells it, cut to `size`; its architecture where it tells none.
 */
void bench_machine_cpu(char *name, int size);
/* Bytes of the last cache; 32 MiB where the system does not say. */
int64_t bench_machine_cache(void);
/* Bytes of memory that are free now; INT64_MAX where the system does not say. */
int64_t bench_machine_free(void);
/* Bytes of an array that the last cache cannot hold. */
int64_t bench_machine_beyond_cache(void);
/* Seconds of a clock that never goes back. */
double bench_machine_now(void);
/* Seconds that all threads of this process have had a processor. */
double bench_machine_processor(void);

#endif
