/* SPDX-License-Identifier: Apache-2.0 */
/* Exits with the number of threads that a context has by default; started by threads.c. */

#include <fwa/fwa.h>
#include <unistd.h>

int main(void)
{
    fwa_context *context;
    int threads;
    if (fwa_context_create(NULL, &context) != FWA_OK)
        return 100;
    threads = fwa_context_threads(context);
    fwa_context_destroy(context);
    _exit(threads); /* at once: what OpenMP leaves behind is not the question */
}
