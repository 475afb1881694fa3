/* SPDX-License-Identifier: Apache-2.0 */
/* Where modules are looked for. */

#include "common.h"

#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#ifdef FWA_MODULE_RELATIVE
/* An object file of this process, found by an address in it. */
typedef struct {
    uintptr_t address;
    int32_t before; /* objects that were looked at before it; the first is the program */
    char *path;     /* PATH_MAX bytes */
} own_object;

static int find_object(struct dl_phdr_info *object, size_t size, void *data)
{
    own_object *own = data;
    int32_t i;
    (void)size;
    for (i = 0; i < object->dlpi_phnum; i++) {
        uintptr_t start = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        if (object->dlpi_phdr[i].p_type != PT_LOAD ||
            own->address - start >= object->dlpi_phdr[i].p_memsz)
            continue;
        /* A program's name is what its caller says. A relative name means another file after each
         * change of the current directory. */
        if (own->before > 0 && object->dlpi_name && object->dlpi_name[0] == '/' &&
            realpath(object->dlpi_name, own->path))
            return 1;
        return -1;
    }
    own->before++;
    return 0;
}

/* False also where anybody may put a file into the directory. */
static bool is_trusted(const char *directory)
{
    struct stat status;
    return stat(directory, &status) == 0 && S_ISDIR(status.st_mode) && !(status.st_mode & S_IWOTH);
}

/* The directory that has the place of the installed one beside the file that holds this code. Whoever
 * may write there may replace the library too, if not everybody may. */
static bool beside_library(char *path)
{
    static const char relative[] = "/" FWA_MODULE_RELATIVE;
    own_object own = {(uintptr_t)relative, 0, path};
    const char *step = relative;
    char *end;
    if (dl_iterate_phdr(find_object, &own) != 1)
        return false;
    end = strrchr(path, '/');
    if (end == path || (size_t)(end - path) + sizeof relative > PATH_MAX)
        return false;
    *end = '\0';
    while (is_trusted(path)) {
        size_t length;
        if (*step == '\0')
            return true;
        length = strcspn(step + 1, "/") + 1;
        memcpy(end, step, length);
        end += length;
        *end = '\0';
        step += length;
    }
    return false;
}
#endif

const char *fwa_module_directory(char *path)
{
    const char *given = secure_getenv("FWA_BACKEND_PATH");
    if (given && *given)
        return given;
#ifdef FWA_MODULE_RELATIVE
    if (beside_library(path))
        return path;
#endif
    (void)path;
    return FWA_MODULE_DIRECTORY;
}
