/* Choices made by measurement (which of a library's kernels runs a problem), kept from process to process in a file of lines
 * "problem<TAB>choice". There is one file per title, which names what the measurements depend on (GPU, driver, library,
 * version).
 *
 * The file is in $ABAR_CACHE, else $XDG_CACHE_HOME/abar, else ~/.cache/abar; ABAR_CACHE=off disables it. It is replaced as a
 * whole, by renaming; entries that other processes added in the meantime are kept. A damaged file is logged once and written
 * anew. An unwritable cache is ignored: it never makes anything fail. */
#ifndef ABAR_CHOICES_H
#define ABAR_CHOICES_H

#include "base/base_impl.h"

#define ABAR_CHOICE_MAX 256 /* characters of a problem or a choice, terminator included; longer ones are not kept */

typedef struct abar__choices abar__choices;

/* title: a line of text, from whose letters and digits the file's name is made. *out is NULL where there is no cache. */
abar_status abar__choices_open(abar_context *ctx, const char *title, abar__choices **out);
/* The same from the text of a file, with no file behind it: for tests and fuzzing. ABAR_E_FORMAT: it is not whole. */
abar_status abar__choices_parse(abar_context *ctx, const char *title, const char *text, size_t n, abar__choices **out);
void abar__choices_close(abar__choices *c);
/* The choice for this problem; NULL: none, or there is no cache. Valid until the next put. */
const char *abar__choices_find(const abar__choices *c, const char *problem);
/* Adds the choice to the table and to the file. c may be NULL. */
abar_status abar__choices_put(abar__choices *c, const char *problem, const char *choice);
const char *abar__choices_path(const abar__choices *c); /* of the file */
/* Appends what the file holds. */
abar_status abar__choices_write(const abar__choices *c, abar__text *out);

#endif
