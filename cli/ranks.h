/* Commands that several ranks carry out together: --ranks forks them, or a launcher has started them. Rank 0 prints; the others
 * keep their failures for it to tell. */
#ifndef ABAR_CLI_RANKS_H
#define ABAR_CLI_RANKS_H

#include "cli.h"

/* The flags, rows of a command's own table. */
#define RANKS_ROWS(at_ranks, at_timeout)                                                                              \
    {"ranks",                                                                                                         \
     ABAR_OPTION_INT,                                                                                                 \
     at_ranks,                                                                                                        \
     "1",                                                                                                             \
     1,                                                                                                               \
     256,                                                                                                             \
     NULL,                                                                                                            \
     "processes of this machine that do it together, each its share of every batch; mpirun, srun and torchrun start " \
     "them elsewhere"},                                                                                               \
    {                                                                                                                 \
        "timeout", ABAR_OPTION_REAL, at_timeout, "30", 0.001, 1e6, NULL, "seconds that a rank waits for the others"   \
    }

/* Opens so many ranks (0: as --ranks or a launcher says), runs the command on each, and closes them. Returns an exit code. */
int ranks_run(cli *c, int ranks, int (*run)(cli *c, abar_comm *comm));
/* All ranks: they go on, or none does; rank 0 tells why. Returns code, or that of another rank's failure. */
int ranks_agree(cli *c, abar_comm *comm, int code);
/* As cli_fail_status; where another rank is lost, it also says how the run goes on from `file` in its folder, if that is there.
 */
int ranks_fail(const cli *c, abar_status status, const char *folder, const char *file);
/* After ABAR_E_PEER, on the other ranks. */
void ranks_tell_for_first(cli *c, const abar_comm *comm);
/* "4 ranks (local), micro-batches of 6, 1.2 MiB of the optimizer's state on rank 0"; state 0: not told. One rank: nothing. */
void ranks_announce(const abar_comm *comm, const abar_train_config *t, size_t state, FILE *out, int width);

#endif
