/* SPDX-License-Identifier: Apache-2.0 */
#include "atomic_file.h"
#include "safetensors_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_ATTEMPTS 100

/* Creates the temporary file under a name that nobody has, with the mode that any new file gets. */
static int open_temporary(atomic_file *file)
{
    const size_t size = strlen(file->target) + 48;
    file->temporary = malloc(size);
    if (file->temporary == NULL)
        return -1;
    for (int attempt = 0; attempt < NAME_ATTEMPTS; attempt++) {
        snprintf(file->temporary, size, "%s.%ld.%d.tmp", file->target, (long)getpid(), attempt);
        const int descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0)
            return descriptor;
        if (errno != EEXIST)
            break;
    }
    free(file->temporary);
    file->temporary = NULL;
    return -1;
}

int atomic_file_open(atomic_file *file, const char *path, safetensors_message *message)
{
    struct stat status;
    memset(file, 0, sizeof *file);
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return safetensors_fail(message, "cannot write '%.200s': it is %s", path,
                                S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
    file->target = realpath(path, NULL);
    if (file->target == NULL)
        file->target = strdup(path);
    const int descriptor = file->target == NULL ? -1 : open_temporary(file);
    if (descriptor >= 0)
        file->stream = fdopen(descriptor, "wb");
    if (file->stream == NULL) {
        safetensors_fail(message, "cannot write '%.200s': %s", path, strerror(errno));
        if (descriptor >= 0)
            close(descriptor);
        atomic_file_discard(file);
        return -1;
    }
    return 0;
}

int atomic_file_commit(atomic_file *file, safetensors_message *message)
{
    int failed = fflush(file->stream) != 0 || ferror(file->stream) ||
                 fsync(fileno(file->stream)) != 0;
    failed = fclose(file->stream) != 0 || failed;
    file->stream = NULL;
    if (failed || rename(file->temporary, file->target) != 0) {
        safetensors_fail(message, "cannot write '%.200s': %s", file->target, strerror(errno));
        atomic_file_discard(file);
        return -1;
    }
    free(file->temporary);
    file->temporary = NULL;
    atomic_file_discard(file);
    return 0;
}

void atomic_file_discard(atomic_file *file)
{
    if (file->stream != NULL)
        fclose(file->stream);
    if (file->temporary != NULL)
        unlink(file->temporary);
    free(file->temporary);
    free(file->target);
    memset(file, 0, sizeof *file);
}
