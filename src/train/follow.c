/* Several trainings in a row by the same ranks: rank 0 decides what is trained next, the others follow. For each training rank
 * 0 sends an order and the settings as JSON; then all create a trainer and run it together. */
#include "train/train_impl.h"

#include <string.h>

/* What rank 0 sends first. */
typedef struct next_run {
    uint64_t length; /* of the settings; 0: there is nothing more to do */
    uint64_t resume;
} next_run;

abar_status abar__ranks_lead(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume)
{
    abar__text text = {0};
    if (abar_comm_size(comm) == 1) return ABAR_OK;
    abar_status status = abar__setup_write(ctx, setup, &text);
    next_run first = {.length = text.length, .resume = resume};
    if (status == ABAR_OK) status = abar__comm_broadcast(comm, 0, &first, sizeof first);
    if (status == ABAR_OK) status = abar__comm_broadcast(comm, 0, text.data, text.length);
    abar__text_free(ctx, &text);
    return status;
}

abar_status abar_ranks_dismiss(abar_comm *comm)
{
    next_run last = {0};
    return abar_comm_size(comm) == 1 ? ABAR_OK : abar__comm_broadcast(comm, 0, &last, sizeof last);
}

static abar_status receive_setup(abar_context *ctx, abar_comm *comm, size_t length, abar_setup **out)
{
    void *json;
    ABAR_TRY(abar__alloc(ctx, length, &json));
    abar_status status = abar__comm_broadcast(comm, 0, json, length);
    if (status == ABAR_OK) status = abar__setup_parse(ctx, "rank 0's settings", json, length, out);
    abar__free(ctx, json, length);
    return status;
}

/* A failure is rank 0's to tell: what fails on one rank fails on all. */
static abar_status train_with_others(abar_context *ctx, abar_comm *comm, const abar_setup *setup, bool resume)
{
    abar_trainer *t = NULL;
    abar_status status = abar_trainer_create_on(ctx, comm, setup, resume, NULL, &t);
    if (status >= 0) status = abar_ranks_agree(ctx, comm, ABAR_OK, NULL); /* rank 0 may be unable to begin */
    if (status >= 0) status = abar_trainer_run(t);
    abar_trainer_destroy(t);
    return status == ABAR_E_PEER ? status : ABAR_OK;
}

abar_status abar_ranks_follow(abar_context *ctx, abar_comm *comm)
{
    for (;;) {
        next_run next;
        abar_setup *setup;
        ABAR_TRY(abar__comm_broadcast(comm, 0, &next, sizeof next));
        if (next.length == 0) return ABAR_OK;
        ABAR_TRY(receive_setup(ctx, comm, (size_t)next.length, &setup));
        const abar_status status = train_with_others(ctx, comm, setup, next.resume != 0);
        abar_setup_destroy(ctx, setup);
        ABAR_TRY(status);
    }
}
