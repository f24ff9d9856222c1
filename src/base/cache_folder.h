/* Where the user's cache files are. */
#ifndef ABAR_CACHE_FOLDER_H
#define ABAR_CACHE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* $ABAR_CACHE, else $XDG_CACHE_HOME/abar, else ~/.cache/abar. False: there is none, or ABAR_CACHE=off. */
bool abar__cache_folder(char *out, size_t size);
/* Creates the folder of the file at path, and its parents. What cannot be created shows when the file is written. */
void abar__cache_make_folder(const char *path);

/* A file of the cache being replaced. Its bytes go to a temporary file beside path, which is locked while it is written. owner:
 * an address of the writer's own, so that threads do not meet in one file. Fills temporary. -1: errno says why. */
int abar__cache_begin(const char *path, const void *owner, char *temporary, size_t size);
/* Closes it and puts it in place of path; good false, or a failure: removes it. False: errno says why. */
bool abar__cache_end(int fd, bool good, const char *temporary, const char *path);
/* Removes the temporary files of path that killed processes left: those that nobody has locked. */
void abar__cache_sweep(const char *path);

#endif
