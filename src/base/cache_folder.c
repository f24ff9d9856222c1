/* The folder of cache files, from the environment. */
#include "base/cache_folder.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool abar__cache_folder(char *out, size_t size)
{
    const char *own = getenv("ABAR_CACHE"), *all = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (own && *own)
        length = strcmp(own, "off") == 0 ? -1 : snprintf(out, size, "%s", own);
    else if (all && *all == '/') /* the XDG standard says that relative paths are to be ignored */
        length = snprintf(out, size, "%s/abar", all);
    else
        length = home && *home == '/' ? snprintf(out, size, "%s/.cache/abar", home) : -1;
    return length > 0 && (size_t)length < size;
}

void abar__cache_make_folder(const char *path)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(part, 0777); /* it exists already, or writing the file fails */
        *slash = '/';
    }
}
