/* A folder of images, opened as a data set, and loaders of it. */
#ifndef ABAR_TESTS_LOADER_TESTING_H
#define ABAR_TESTS_LOADER_TESTING_H

#include "data/images_support.h"

typedef struct fixture {
    abar_context *ctx;
    folder dir;
    abar_dataset *data;
} fixture;

/* Opens a folder that the test has made, with views of side x side; fixture_end removes it. */
static inline fixture fixture_open(folder dir, int64_t side)
{
    fixture f = {.ctx = plain_context(), .dir = dir};
    f.data = open_images(f.ctx, &f.dir, (abar_dataset_config){.view = side});
    return f;
}

static inline void fixture_end(fixture *f)
{
    abar_dataset_close(f->data);
    assert_int_equal(abar_context_memory(f->ctx).now, 0);
    abar_context_destroy(f->ctx);
    folder_remove(&f->dir);
}

static inline abar_loader *make_loader(const fixture *f, abar_loader_config config)
{
    abar_loader *loader;
    config.size = sizeof config;
    if (abar_loader_create(f->ctx, f->data, &config, &loader) != ABAR_OK) fail_msg("%s", abar_context_error(f->ctx));
    return loader;
}

static inline abar_batch next(abar_loader *loader)
{
    abar_batch batch = {.size = sizeof batch};
    assert_int_equal(abar_loader_next(loader, &batch), ABAR_OK);
    return batch;
}

#endif
