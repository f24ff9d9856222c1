/* Image folders made by a test: JPEG and PNG files of a formula, and damaged ones. */
#ifndef ABAR_TESTS_DATA_IMAGES_SUPPORT_H
#define ABAR_TESTS_DATA_IMAGES_SUPPORT_H

#include "data/support.h"

#include <jpeglib.h>
#include <png.h>

/* Pixels (height, width, 3) that differ from image to image and are smooth enough for JPEG. */
static inline void paint(uint8_t *rgb, int width, int height, int number)
{
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++, rgb += 3) {
            rgb[0] = (uint8_t)(3 * x + number * 11);
            rgb[1] = (uint8_t)(2 * y + number * 5);
            rgb[2] = (uint8_t)(x + y + number * 29);
        }
}

static inline bytes make_jpeg(int width, int height, int number)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    unsigned long n = 0;
    bytes rgb = bytes_make(3 * (size_t)width * (size_t)height);
    paint(rgb.data, width, height, number);
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &n);
    c.image_width = (JDIMENSION)width;
    c.image_height = (JDIMENSION)height;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 90, TRUE);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < height; y++) {
        JSAMPROW row = rgb.data + 3 * (size_t)width * (size_t)y;
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    bytes b = bytes_make(n);
    memcpy(b.data, out, n);
    free(out);
    free(rgb.data);
    return b;
}

static inline bytes make_png(int width, int height, int number)
{
    png_image image = {
        .version = PNG_IMAGE_VERSION, .width = (png_uint_32)width, .height = (png_uint_32)height, .format = PNG_FORMAT_RGB};
    bytes rgb = bytes_make(3 * (size_t)width * (size_t)height), b = bytes_make(4 * rgb.n + 4096);
    paint(rgb.data, width, height, number);
    png_alloc_size_t n = b.n;
    assert_true(png_image_write_to_memory(&image, b.data, &n, 0, rgb.data, 0, NULL));
    b.n = n;
    free(rgb.data);
    return b;
}

static inline void folder_enter(const folder *f, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    assert_true(mkdir(path, 0700) == 0);
}

/* A name in f for image number i of a part of three classes. */
static inline void image_name(bool test, int i, char name[64])
{
    snprintf(name, 64, "%s/%c/%04d.%s", test ? "val" : "train", "abc"[i % 3], i, i % 5 == 4 ? "png" : "jpg");
}

/* Image i of the training or test part, of about side pixels. */
static inline void write_image(const folder *f, bool test, int i, int side)
{
    char name[64];
    const int width = side + i * 7 % 23, height = side + i * 5 % 17, number = test ? 1000 + i : i;
    image_name(test, i, name);
    bytes b = i % 5 == 4 ? make_png(width, height, number) : make_jpeg(width, height, number);
    folder_write(f, name, b);
    free(b.data);
}

/* train/a ... val/c with so many images. Classes take turns, so sample i of the set is not image i. */
static inline folder make_images(int train, int test, int side)
{
    static const char *const folders[] = {"train", "train/a", "train/b", "train/c", "val", "val/a", "val/b", "val/c"};
    folder f = folder_make();
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) folder_enter(&f, folders[i]);
    for (int i = 0; i < train; i++) write_image(&f, false, i, side);
    for (int i = 0; i < test; i++) write_image(&f, true, i, side);
    return f;
}

static inline abar_dataset *open_images(abar_context *ctx, const folder *f, abar_dataset_config config)
{
    char spec[300];
    abar_dataset *data;
    config.size = sizeof config;
    snprintf(spec, sizeof spec, "imagefolder:%s", f->path);
    if (abar_dataset_open(ctx, spec, &config, &data) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    return data;
}

/* The cache of file lists goes to a folder that is removed. */
static folder cache;

static inline int make_cache(void **state)
{
    (void)state;
    cache = folder_make();
    return setenv("ABAR_CACHE", cache.path, 1);
}

static inline int remove_cache(void **state)
{
    (void)state;
    folder_remove(&cache);
    return 0;
}

#endif
