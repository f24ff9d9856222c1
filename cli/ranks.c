/* Commands that several ranks carry out together: opening, agreeing, and failing in one line. */
#include "ranks.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct ranks_flags {
    int64_t ranks;
    double timeout;
} ranks_flags;

static const abar_option rows[] = {RANKS_ROWS(offsetof(ranks_flags, ranks), offsetof(ranks_flags, timeout)), {0}};

/* These flags must be known before the others are read. */
static int open_ranks(cli *c, int ranks, abar_comm **comm)
{
    ranks_flags flags = {0};
    abar_options_default(rows, &flags);
    for (const abar_option *row = rows; row->name; row++) {
        const char *value = flags_peek(c, row->name);
        const abar_status status = value ? abar_options_set(c->ctx, rows, &flags, row->name, value) : ABAR_OK;
        if (status < 0) return cli_fail_usage(c, status);
    }
    if (ranks == 0) ranks = (int)flags.ranks;
    bool told = false;
    const abar_comm_config config = {
        .size = sizeof config, .ranks = ranks > 1 ? ranks : 0, .timeout = flags.timeout, .told = &told};
    const abar_status status = abar_comm_open(c->ctx, &config, comm);
    if (status < 0 && told) return EXIT_FAILURE;
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

int ranks_agree(cli *c, abar_comm *comm, int code)
{
    const abar_status came = code == EXIT_USAGE ? ABAR_E_ARGUMENT : code ? ABAR_E_STATE : ABAR_OK;
    const abar_status status = abar_ranks_agree(c->ctx, comm, came, c->failure ? c->failure : "");
    return code || status >= 0 ? code : cli_fail_status(c, status);
}

int ranks_fail(const cli *c, abar_status status, const char *folder, const char *file)
{
    char path[ABAR_OPTION_TEXT_MAX + 32], word[SHELL_WORD_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (status != ABAR_E_PEER || !folder[0] || !path_exists(path)) return cli_fail_status(c, status);
    return cli_fail(c, EXIT_FAILURE, "%s; go on from the last checkpoint with: %s %s --resume %s", abar_context_error(c->ctx),
                    c->program, c->command->name, print_shell_word(word, folder));
}

/* Rank 0 tells of failures. Where it is the one that is gone, the next one does; a rank 0 that has left has told why. */
void ranks_tell_for_first(cli *c, const abar_comm *comm)
{
    const char *name = abar_comm_name(comm, 0);
    if (abar_comm_rank(comm) == 1 && c->failure && strncmp(c->failure, name, strlen(name)) == 0 &&
        !strstr(c->failure, "has left the run"))
        cli_fail_reported(0, "%s", c->failure);
}

void ranks_announce(const abar_comm *comm, const abar_train_config *t, size_t state, FILE *out, int width)
{
    char line[192], bytes[NUMBER_MAX], kept[96] = "";
    const int ranks = abar_comm_size(comm);
    const int64_t passes = t->accumulate > 1 ? t->accumulate : ranks;
    if (ranks == 1) return;
    if (state > 0) snprintf(kept, sizeof kept, ", %s of the optimizer's state on rank 0", print_bytes(bytes, state));
    snprintf(line, sizeof line, "%d ranks (%s), micro-batches of %" PRId64 "%s", ranks, abar_comm_transport(comm),
             t->micro > 0 ? t->micro : t->batch / passes, kept);
    print_wrapped(out, 0, width, line);
}

int ranks_run(cli *c, int ranks, int (*run)(cli *c, abar_comm *comm))
{
    char failure[CLI_ERROR_MAX] = "";
    abar_comm *comm = NULL;
    int code = open_ranks(c, ranks, &comm);
    if (code) return code;
    if (abar_comm_rank(comm) > 0) c->failure = failure;
    code = run(c, comm);
    c->failure = NULL;
    c->rank_name = NULL;
    abar_comm_close(comm);
    return code;
}
