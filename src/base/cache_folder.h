/* Where the user's cache files are. */
#ifndef ABAR_CACHE_FOLDER_H
#define ABAR_CACHE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* $ABAR_CACHE, else $XDG_CACHE_HOME/abar, else ~/.cache/abar. False: there is none, or ABAR_CACHE=off. */
bool abar__cache_folder(char *out, size_t size);
/* Creates the folder of the file at path, and its parents. What cannot be created shows when the file is written. */
void abar__cache_make_folder(const char *path);

#endif
