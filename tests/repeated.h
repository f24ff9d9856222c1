/* NAME@SET runs NAME again with a lesser instruction set (CMakeLists.txt). What no instruction set changes, such as ref, need
 * not run again. */
#ifndef REPEATED_H
#define REPEATED_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool is_repeated(void) { return getenv("ABAR_TEST_REPEATED") != NULL; }

/* Of a list of devices that begins with ref. */
static inline int first_device(void) { return is_repeated() ? 1 : 0; }

#endif
