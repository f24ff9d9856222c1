/* The autotuning cache: choices made by measurement (which of a library's kernels runs a problem), kept from process to process
 * in a file of lines "problem<TAB>choice". There is one file per title, which names what the measurements depend on (GPU,
 * driver, library, version).
 *
 * The file is in $ABAR_CACHE, else $XDG_CACHE_HOME/abar, else ~/.cache/abar; ABAR_CACHE=off disables it. It is replaced as a
 * whole, by renaming; entries that other processes added in the meantime are kept. A damaged file is logged once and written
 * anew. An unwritable cache is ignored: it never makes anything fail. */
#ifndef ABAR_AUTOTUNE_CACHE_H
#define ABAR_AUTOTUNE_CACHE_H

#include "base/base_impl.h"

#define ABAR_AUTOTUNE_MAX 256 /* characters of a problem or a choice, terminator included; longer ones are not kept */

typedef struct abar__autotune_cache abar__autotune_cache;

/* title: a line of text, from whose letters and digits the file's name is made. *out is NULL where there is no cache. */
abar_status abar__autotune_cache_open(abar_context *ctx, const char *title, abar__autotune_cache **out);
/* One without a file: choices last as long as it does. */
abar_status abar__autotune_cache_create(abar_context *ctx, const char *title, abar__autotune_cache **out);
/* The same from the text of a file, with no file behind it: for tests and fuzzing. ABAR_E_FORMAT: it is not whole. */
abar_status abar__autotune_cache_parse(abar_context *ctx, const char *title, const char *text, size_t n,
                                       abar__autotune_cache **out);
void abar__autotune_cache_close(abar__autotune_cache *c);
/* The choice for this problem; NULL: none, or there is no cache. Valid until the next put. */
const char *abar__autotune_cache_find(const abar__autotune_cache *c, const char *problem);
/* Adds the choice to the table and to the file. c may be NULL. */
abar_status abar__autotune_cache_put(abar__autotune_cache *c, const char *problem, const char *choice);
const char *abar__autotune_cache_path(const abar__autotune_cache *c); /* of the file */
/* What a library compiled for the choice of a problem, so that a later process need not: kept in a file of its own beside the
 * table, and nowhere else. get appends it to out, which stays as it is where there is none, or it is damaged. c may be NULL. */
abar_status abar__autotune_cache_put_compiled(abar__autotune_cache *c, const char *problem, const void *bytes, size_t n);
abar_status abar__autotune_cache_get_compiled(abar__autotune_cache *c, const char *problem, abar__text *out);
/* Appends what the file holds. */
abar_status abar__autotune_cache_write(const abar__autotune_cache *c, abar__text *out);

#endif
