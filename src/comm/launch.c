/* Launchers by their environment variables. */
#include "comm/launch.h"

#include "base/base_impl.h"
#include "comm/comm_impl.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SLURM_PORT 21000 /* of job 0: below the ports that systems give to clients */
#define SLURM_PORTS 9000

typedef struct reader {
    abar_context *ctx;
    const char *(*get)(void *user, const char *name);
    void *user;
} reader;

static const char *text_of(const reader *r, const char *name)
{
    const char *text = r->get(r->user, name);
    return text && *text ? text : NULL;
}

/* The one of two names that is set; NULL: none. */
static const char *first_of(const reader *r, const char *name, const char *other)
{
    return text_of(r, name) ? name : text_of(r, other) ? other : NULL;
}

static abar_status number_of(const reader *r, const char *name, long least, long most, int *out)
{
    const char *text = text_of(r, name);
    char *end = NULL;
    errno = 0;
    const long value = text ? strtol(text, &end, 10) : 0;
    if (!text || errno || *end || value < least || value > most)
        return abar__fail(r->ctx, ABAR_E_ARGUMENT, "%s=%s: is no number from %ld to %ld, correct or unset it", name,
                          text ? text : "", least, most);
    *out = (int)value;
    return ABAR_OK;
}

static abar_status rank_and_size(const reader *r, const char *rank, const char *size, abar__launch *out)
{
    ABAR_TRY(number_of(r, size, 1, ABAR_COMM_RANKS, &out->size));
    return number_of(r, rank, 0, out->size - 1, &out->rank);
}

bool abar__launch_first_host(const char *list, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = list; *at && *at != ','; at++) {
        if (*at == '[') { /* the first of its numbers; what follows the bracket is part of the name */
            for (at++; isdigit((unsigned char)*at) && n + 1 < size; at++) out[n++] = *at;
            if (*at != '-' && *at != ',' && *at != ']') return false;
            at = strchr(at, ']');
            if (!at) return false;
            continue;
        }
        if (n + 1 >= size || !(isalnum((unsigned char)*at) || strchr("-._:", *at))) return false;
        out[n++] = *at;
    }
    out[n] = 0;
    return n > 0;
}

/* srun sets the variables of a step. The script that sbatch starts has those of the job alone: it is one process. */
static bool is_slurm_step(const reader *r)
{
    return text_of(r, "SLURM_PROCID") && first_of(r, "SLURM_STEP_ID", "SLURM_STEPID") &&
           first_of(r, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
}

/* Two jobs that share a node need two ports. */
static int slurm_port(const reader *r)
{
    const char *job = text_of(r, "SLURM_JOB_ID"), *step = first_of(r, "SLURM_STEP_ID", "SLURM_STEPID");
    const unsigned long number = (job ? strtoul(job, NULL, 10) : 0) * 31 + (step ? strtoul(text_of(r, step), NULL, 10) : 0);
    return SLURM_PORT + (int)(number % SLURM_PORTS);
}

/* What the launcher says of machines; nothing in it is needed. */
static void read_machines(const reader *r, abar__launch *out)
{
    const char *locals[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID"};
    const char *here = text_of(r, "LOCAL_WORLD_SIZE"), *nodes = text_of(r, "SLURM_STEP_NUM_NODES");
    for (size_t i = 0; i < sizeof locals / sizeof *locals && out->local < 0; i++)
        if (text_of(r, locals[i])) out->local = atoi(text_of(r, locals[i]));
    out->apart = (out->by == ABAR_LAUNCH_TORCHRUN && here && atoi(here) < out->size) ||
                 (out->by == ABAR_LAUNCH_SLURM && nodes && atoi(nodes) > 1);
}

static abar_status read_place(const reader *r, abar__launch *out)
{
    const char *host = text_of(r, "MASTER_ADDR"), *nodes = first_of(r, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    if (host && strlen(host) >= sizeof out->host)
        return abar__fail(r->ctx, ABAR_E_ARGUMENT, "MASTER_ADDR: is longer than %zu characters", sizeof out->host - 1);
    if (host) snprintf(out->host, sizeof out->host, "%s", host);
    if (!host && out->by == ABAR_LAUNCH_SLURM && nodes &&
        !abar__launch_first_host(text_of(r, nodes), out->host, sizeof out->host))
        return abar__fail(r->ctx, ABAR_E_ARGUMENT, "%s=%s: is no list of nodes, set MASTER_ADDR to rank 0's host", nodes,
                          text_of(r, nodes));
    if (text_of(r, "ABAR_PORT")) return number_of(r, "ABAR_PORT", 1, 65535, &out->port);
    if (text_of(r, "MASTER_PORT")) {
        ABAR_TRY(number_of(r, "MASTER_PORT", 1, 65534, &out->port));
        const char *own = text_of(r, "TORCHELASTIC_USE_AGENT_STORE"); /* torchrun itself listens there */
        out->port += own && !strcasecmp(own, "true");
    } else if (out->by == ABAR_LAUNCH_SLURM) {
        out->port = slurm_port(r);
    }
    return ABAR_OK;
}

abar_status abar__launch_read(abar_context *ctx, const char *(*get)(void *user, const char *name), void *user,
                              abar__launch *out)
{
    const reader r = {ctx, get, user};
    *out = (abar__launch){.name = "", .size = 1, .local = -1};
    if (text_of(&r, "OMPI_COMM_WORLD_RANK") && text_of(&r, "OMPI_COMM_WORLD_SIZE")) {
        out->by = ABAR_LAUNCH_OPENMPI, out->name = "mpirun", out->mpi = true;
        ABAR_TRY(rank_and_size(&r, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", out));
    } else if (text_of(&r, "PMI_RANK") && text_of(&r, "PMI_SIZE")) {
        out->by = ABAR_LAUNCH_PMI, out->name = "mpirun", out->mpi = true;
        ABAR_TRY(rank_and_size(&r, "PMI_RANK", "PMI_SIZE", out));
    } else if (text_of(&r, "RANK") && text_of(&r, "WORLD_SIZE") && text_of(&r, "MASTER_ADDR") && text_of(&r, "MASTER_PORT")) {
        out->by = ABAR_LAUNCH_TORCHRUN, out->name = "torchrun";
        ABAR_TRY(rank_and_size(&r, "RANK", "WORLD_SIZE", out));
    } else if (is_slurm_step(&r)) {
        out->by = ABAR_LAUNCH_SLURM, out->name = "srun", out->mpi = text_of(&r, "PMIX_RANK") != NULL;
        ABAR_TRY(rank_and_size(&r, "SLURM_PROCID", first_of(&r, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), out));
    }
    if (out->by == ABAR_LAUNCH_NONE) return ABAR_OK;
    read_machines(&r, out);
    return read_place(&r, out);
}
