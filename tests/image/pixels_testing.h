/* What the tests of the image reader share: the golden files, a reader, PNGs made in memory. */
#ifndef PIXELS_TESTING_H
#define PIXELS_TESTING_H

#include "image/image_impl.h"
#include "io/io.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

typedef struct pixels_rig {
    abar_context *ctx;
    abar__image_reader *reader;
    abar__safetensors *golden; /* tests/oracle/images_pixels.py */
} pixels_rig;

void rig_open(pixels_rig *rig);
void rig_close(pixels_rig *rig);

/* A file's bytes in memory that ends with them, so that a sanitizer sees reads past the end. */
typedef struct image_file {
    char name[64];
    uint8_t *bytes;
    size_t n;
    abar__image_header header;
} image_file;

/* Golden file i, or false after the last. Free it with file_free. */
bool golden_file(const pixels_rig *rig, int i, image_file *out);
image_file golden_named(const pixels_rig *rig, const char *name);
void file_free(image_file *file);
/* The first n bytes. */
image_file file_prefix(const image_file *file, size_t n);

abar__image_view view_of(abar__image_box crop, int32_t height, int32_t width, abar__image_filter filter);
/* All pixels, as they are. */
abar__image_view view_whole(const abar__image_header *header);
size_t view_bytes(const abar__image_view *view);
/* The view's planes; a fault fails the test. Free them. */
uint8_t *read_view(pixels_rig *rig, const image_file *file, const abar__image_view *view);

/* A PNG: `rows` are stored rows with their filter bytes. */
image_file png_make(uint32_t width, uint32_t height, int depth, int colour, const uint8_t *rows, size_t n);

#endif
