/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FWA_FILES_ATOMIC_FILE_H
#define FWA_FILES_ATOMIC_FILE_H

/* Writing a file so that nobody ever sees half of it: the bytes go to a new file in the same
 * folder, which takes the name only when all of them are on the disk. */

#include "safetensors.h"

#include <stdio.h>

typedef struct atomic_file {
    FILE *stream;
    char *target;
    char *temporary;
} atomic_file;

/* Opens; an existing `path` must be a regular file, and a link keeps pointing where it does.
 * 0, or -1 with *message filled. */
int atomic_file_open(atomic_file *file, const char *path, safetensors_message *message);
/* Flushes and renames. 0, or -1 with *message filled and the temporary file removed. */
int atomic_file_commit(atomic_file *file, safetensors_message *message);
/* Closes and removes the temporary file; after a commit it does nothing. */
void atomic_file_discard(atomic_file *file);

#endif
