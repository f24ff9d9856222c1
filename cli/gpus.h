/* Ranks on the GPUs of this machine: --gpus. */
#ifndef ABAR_CLI_GPUS_H
#define ABAR_CLI_GPUS_H

#include "cli.h"

/* How many ranks --gpus VALUE asks for: a number, or "all". Ends with a message where there are fewer GPUs. CUDA stays
 * untouched in this process, which is going to fork. */
int gpus_count(cli *c, const char *value, int *ranks);

#endif
