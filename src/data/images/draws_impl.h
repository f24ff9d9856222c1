/* What the files of the draws share. */
#ifndef ABAR_DRAWS_IMPL_H
#define ABAR_DRAWS_IMPL_H

#include "base/rng.h"
#include "data/images/draws.h"

/* Four words of a sample. block: which of the sample's draws for this purpose. */
abar__draw abar__draw_block(const abar__draw_key *key, abar__purpose purpose, uint32_t block);

#endif
