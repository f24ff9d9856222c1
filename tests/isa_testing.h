/* For tests that go through every instruction set of this machine. ABAR_ISA, which chooses one, may be set for the whole
 * program: it comes back when they are done. */
#ifndef ISA_TESTING_H
#define ISA_TESTING_H

#include "device/cpu/isa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The value of ABAR_ISA, for isa_restore; NULL: it is not set. */
static inline char *isa_save(void)
{
    const char *value = getenv("ABAR_ISA");
    char *copy = value ? strdup(value) : NULL;
    assert_true(!value || copy);
    return copy;
}

/* For the contexts that are created from now on. */
static inline void isa_force(const char *value) { assert_int_equal(setenv("ABAR_ISA", value, 1), 0); }

static inline void isa_restore(char *saved)
{
    assert_int_equal(saved ? setenv("ABAR_ISA", saved, 1) : unsetenv("ABAR_ISA"), 0);
    free(saved);
}

#endif
