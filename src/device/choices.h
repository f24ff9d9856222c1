/* Choices made by measurement (which of a library's kernels a problem gets), remembered from one process to the next in a file
 * of lines "problem<TAB>choice", one file for every title: what the measurements hold for (GPU, driver, library, version).
 *
 * The file lies in $ABAR_CACHE, else $XDG_CACHE_HOME/abar, else ~/.cache/abar; ABAR_CACHE=off keeps none. It is replaced whole,
 * by renaming, and what other processes put there meanwhile is kept. One that was damaged is told of once and begun anew. A
 * cache that cannot be written is none: nothing fails because of it. */
#ifndef ABAR_CHOICES_H
#define ABAR_CHOICES_H

#include "base/base_impl.h"

#define ABAR_CHOICE_MAX 256 /* characters of a problem or a choice, the end included; longer ones are not remembered */

typedef struct abar__choices abar__choices;

/* title: a line of text; its letters and digits make the file's name. *out is NULL where there is no cache. */
abar_status abar__choices_open(abar_context *ctx, const char *title, abar__choices **out);
/* The same from the text of a file, with no file behind it: for tests and fuzzing. ABAR_E_FORMAT: it is not whole. */
abar_status abar__choices_parse(abar_context *ctx, const char *title, const char *text, size_t n, abar__choices **out);
void abar__choices_close(abar__choices *c);
/* What was chosen for this problem; NULL: nothing, or there is no cache. Valid until the next put. */
const char *abar__choices_find(const abar__choices *c, const char *problem);
/* Remembers it, here and in the file. c may be NULL. */
abar_status abar__choices_put(abar__choices *c, const char *problem, const char *choice);
const char *abar__choices_path(const abar__choices *c); /* of the file */
/* Appends what the file holds. */
abar_status abar__choices_write(const abar__choices *c, abar__text *out);

#endif
