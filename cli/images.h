/* abar data for folders of image files: checking them, and making a smaller copy. */
#ifndef ABAR_CLI_IMAGES_H
#define ABAR_CLI_IMAGES_H

#include "cli.h"

typedef struct image_request {
    const char *name, *folder;        /* of the data set */
    const char *classes, *val_labels; /* files; "": none */
    int64_t workers;
    bool fast, json;
    int64_t published[2]; /* images of the published set; 0: of any number */
} image_request;

/* Whether NAME or NAME:DIR is a set of image files. published: NULL, or what is known of it without its files. */
bool images_named(const cli *c, const char *spec, abar_dataset_probe *published);
/* Both return an exit code. */
int images_check(cli *c, const image_request *request);
int images_shrink(cli *c, const image_request *request, int64_t side, const char *to);

#endif
