/* Times the image reader on one core: bench_images FOLDER [SECONDS]. Images a second of CPU time over every .jpg, .jpeg and
 * .png below FOLDER, read into memory before: all pixels, only those of random resized crops (area .08 to 1, aspect 3/4 to
 * 4/3), the crops resized, and test views. */
#define _XOPEN_SOURCE 700 /* nftw */
#include "base/rng.h"
#include "image/image.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

typedef struct photo {
    uint8_t *bytes;
    size_t n;
    abar__image_header header;
} photo;

static photo *photos;
static size_t photo_count, photo_capacity;

static void stop(const char *subject, const char *reason)
{
    fprintf(stderr, "bench_images: %s %s\n", subject, reason);
    exit(1);
}

static void load(const char *path, size_t n)
{
    abar__image_fault fault;
    photo p = {.bytes = malloc(n + 1), .n = n};
    FILE *file = fopen(path, "rb");
    if (!file || !p.bytes || fread(p.bytes, 1, n, file) != n) stop(path, "cannot be read");
    fclose(file);
    if (!abar__image_look(p.bytes, n, &p.header, &fault)) stop(path, fault.text);
    if (photo_count == photo_capacity) {
        photo_capacity = 2 * photo_capacity + 64;
        photos = realloc(photos, photo_capacity * sizeof *photos);
        if (!photos) stop(path, "needs more memory than there is");
    }
    photos[photo_count++] = p;
}

static int visit(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    const char *dot = strrchr(path, '.');
    (void)where;
    if (kind == FTW_F && dot && (!strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg") || !strcasecmp(dot, ".png")))
        load(path, (size_t)info->st_size);
    return 0;
}

/* A random resized crop; the whole image where its aspect allows none. */
static abar__image_box draw_box(const abar__image_header *header, uint64_t index)
{
    for (uint64_t attempt = 0; attempt < 10; attempt++) {
        abar__draw d = abar__random(1, ABAR_DRAW_CROP, 0, index | attempt << 40);
        double area = (double)header->width * header->height * (0.08 + 0.92 * abar__uniform(d.u[0]));
        double aspect = exp(log(0.75) + 2 * log(4.0 / 3) * abar__uniform(d.u[1]));
        int32_t width = (int32_t)rint(sqrt(area * aspect)), height = (int32_t)rint(sqrt(area / aspect));
        if (width < 1 || width > header->width || height < 1 || height > header->height) continue;
        return (abar__image_box){.top = (int32_t)abar__below(d.u[2], (uint32_t)(header->height - height + 1)),
                                 .left = (int32_t)abar__below(d.u[3], (uint32_t)(header->width - width + 1)),
                                 .height = height,
                                 .width = width};
    }
    return (abar__image_box){0, 0, header->height, header->width};
}

/* What is timed. */
typedef struct task {
    const char *name;
    bool crop;      /* a random one; else the whole image */
    int32_t side;   /* to which it is resized; 0: not at all */
    int32_t resize; /* the short side of a test view, whose centre has `side`; 0: no test view */
    abar__image_filter filter;
} task;

static const task tasks[] = {
    {"decode, whole", false, 0, 0, ABAR_IMAGE_BILINEAR},
    {"decode, crop", true, 0, 0, ABAR_IMAGE_BILINEAR},
    {"decode, crop, resize to 64 bilinear", true, 64, 0, ABAR_IMAGE_BILINEAR},
    {"decode, crop, resize to 176 bilinear", true, 176, 0, ABAR_IMAGE_BILINEAR},
    {"decode, crop, resize to 224 bilinear", true, 224, 0, ABAR_IMAGE_BILINEAR},
    {"decode, crop, resize to 224 bicubic", true, 224, 0, ABAR_IMAGE_BICUBIC},
    {"test view 232 / 224 bilinear", false, 224, 232, ABAR_IMAGE_BILINEAR},
    {"test view 248 / 224 bicubic", false, 224, 248, ABAR_IMAGE_BICUBIC},
};

static abar__image_view view_for(const task *t, const abar__image_header *header, uint64_t index)
{
    if (t->resize) return abar__image_centre(header->width, header->height, t->resize, t->side, t->filter);
    abar__image_view view = {.crop = {0, 0, header->height, header->width}, .filter = t->filter, .mirror = t->side && index % 2};
    if (t->crop) view.crop = draw_box(header, index);
    view.height = t->side ? t->side : view.crop.height;
    view.width = t->side ? t->side : view.crop.width;
    view.window = (abar__image_box){0, 0, view.height, view.width};
    return view;
}

static void run(abar__image_reader *reader, const task *t, double seconds, uint8_t *out)
{
    abar__image_fault fault;
    uint64_t done = 0;
    clock_t start = clock(), end;
    do { /* at least once over all */
        const photo *p = &photos[done % photo_count];
        abar__image_header header;
        if (!abar__image_look(p->bytes, p->n, &header, &fault)) stop(t->name, fault.text);
        abar__image_view view = view_for(t, &header, done);
        if (!abar__image_read(reader, p->bytes, p->n, &view, out, &fault)) stop(t->name, fault.text);
        done++;
        end = clock();
    } while (done < photo_count || end - start < seconds * CLOCKS_PER_SEC);
    printf("%-40s %9.0f\n", t->name, (double)done * CLOCKS_PER_SEC / (double)(end - start));
}

int main(int argc, char **argv)
{
    abar_context *ctx;
    abar__image_reader *reader;
    if (argc < 2) stop("FOLDER", "is missing");
    if (nftw(argv[1], visit, 32, FTW_PHYS) != 0 || photo_count == 0) stop(argv[1], "has no images");
    if (abar_context_create(NULL, &ctx) != ABAR_OK || abar__image_reader_create(ctx, &reader) != ABAR_OK) return 1;
    size_t largest = 224 * 224, bytes = 0;
    double pixels = 0;
    for (size_t i = 0; i < photo_count; i++) {
        size_t n = (size_t)photos[i].header.width * (size_t)photos[i].header.height;
        largest = n > largest ? n : largest;
        pixels += (double)n;
        bytes += photos[i].n;
    }
    uint8_t *out = malloc(3 * largest);
    if (!out) return 1;
    printf("%zu images, mean %.0f pixels, %zu bytes; images/s of CPU time\n", photo_count, pixels / (double)photo_count,
           bytes / photo_count);
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) run(reader, &tasks[i], argc > 2 ? atof(argv[2]) : 2, out);
    abar__image_reader_destroy(reader);
    abar_context_destroy(ctx);
    return 0;
}
