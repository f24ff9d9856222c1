/* Reading below a folder that others may write to. A name is that of an entry, without a slash; a symbolic link is as good as
 * missing. */
#ifndef ABAR_BENEATH_H
#define ABAR_BENEATH_H

#include "base/base_impl.h"

struct stat;

/* A handle to close, -1: there is none, and errno says why. */
int abar__beneath_folder(int folder, const char *name);
int abar__beneath_file(int folder, const char *name, struct stat *info); /* plain files only */
/* The whole file, as abar__file_read; label names it in errors. */
abar_status abar__beneath_read(abar_context *ctx, int folder, const char *name, const char *label, size_t max, abar__text *out);

/* The entries of a folder in the order of their names, but for those that begin with a point. */
typedef struct abar__names {
    char **name;
    size_t n;
    abar__text text;
} abar__names;

/* A folder that cannot be read has none. */
abar_status abar__beneath_list(abar_context *ctx, int folder, abar__names *out);
void abar__names_free(abar_context *ctx, abar__names *names);

#endif
