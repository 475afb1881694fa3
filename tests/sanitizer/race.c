/* SPDX-License-Identifier: Apache-2.0 */
/* Holds ThreadSanitizer to what the tests rely on: with the argument "race" it must report one inside an
 * OpenMP region, and without it none between regions that follow each other. */

#include <omp.h>
#include <string.h>

#define ROUNDS 50

int main(int argc, char **argv)
{
    const int race = argc > 1 && strcmp(argv[1], "race") == 0;
    int sums[4] = {0}, total = 0;
    for (int round = 0; round < ROUNDS; round++) {
#pragma omp parallel num_threads(4)
        {
            const int thread = omp_get_thread_num();
            sums[race ? 0 : thread] += round; /* read below by the first thread alone */
        }
        for (int i = 0; i < 4; i++) {
            total += sums[i];
            sums[i] = 0;
        }
    }
    return total > 0 ? 0 : 1;
}
