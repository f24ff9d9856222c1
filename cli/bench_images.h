/* abar bench for a folder of images: how fast its files become batches, and whether a model waits for them. */
#ifndef ABAR_CLI_BENCH_IMAGES_H
#define ABAR_CLI_BENCH_IMAGES_H

#include "cli.h"

typedef struct bench_images_request {
    const char *workers; /* "1,2,4"; "": one per core */
    double seconds;      /* that the loader is timed for */
    int64_t steps, warmup;
    bool model; /* time its steps, too */
    bool profile, json;
} bench_images_request;

/* Returns an exit code. */
int bench_images(cli *c, const abar_setup *setup, const bench_images_request *request);

#endif
