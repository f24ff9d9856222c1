/* Data sets by name: the table of all, finding their files, opening and access. */
#include "data/data_impl.h"

#include "data/images/index.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#define FOLDER_MAX 440 /* leaves space in where[512] for a subfolder */
#define IDX_FILES                                                                                                \
    {                                                                                                            \
        "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" \
    }
#define IMAGES_READER \
    .read = abar__streamed_read, .look = abar__streamed_look, .mean = {0.485, 0.456, 0.406}, .std = {0.229, 0.224, 0.225}

static const abar__data_kind kinds[] = {
    {.name = "fashion-mnist",
     .summary = "clothes, 28 x 28 gray, 10 classes, 60000 + 10000",
     .folder = "/usr/share/datasets/fashion-mnist",
     .files = IDX_FILES,
     .gzip = true,
     .remedy = "install the package dataset-fashion-mnist or give fashion-mnist:DIR with its four idx files",
     .read = abar__idx_read,
     .look = abar__idx_look,
     .shape = {1, 28, 28},
     .count = {60000, 10000},
     .label_range = {10},
     .mean = {0.2860, 0.2860, 0.2860},
     .std = {0.3530, 0.3530, 0.3530}},
    {.name = "mnist",
     .summary = "handwritten digits, 28 x 28 gray, 10 classes, 60000 + 10000",
     .files = IDX_FILES,
     .gzip = true,
     .remedy = "give mnist:DIR, the folder of the four idx files, gzipped or plain",
     .read = abar__idx_read,
     .look = abar__idx_look,
     .shape = {1, 28, 28},
     .count = {60000, 10000},
     .label_range = {10},
     .mean = {0.1307, 0.1307, 0.1307},
     .std = {0.3081, 0.3081, 0.3081}},
    {.name = "cifar10",
     .summary = "photographs, 32 x 32 colour, 10 classes, 50000 + 10000",
     .subfolder = "cifar-10-batches-bin",
     .files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin",
               "test_batch.bin"},
     .remedy = "give cifar10:DIR, the folder where cifar-10-binary.tar.gz was unpacked",
     .read = abar__cifar_read,
     .shape = {3, 32, 32},
     .count = {50000, 10000},
     .label_range = {10},
     .mean = {0.4914, 0.4822, 0.4465},
     .std = {0.2470, 0.2435, 0.2616}},
    {.name = "cifar100",
     .summary = "photographs, 32 x 32 colour, 100 classes, 50000 + 10000",
     .subfolder = "cifar-100-binary",
     .files = {"train.bin", "test.bin"},
     .remedy = "give cifar100:DIR, the folder where cifar-100-binary.tar.gz was unpacked",
     .read = abar__cifar_read,
     .shape = {3, 32, 32},
     .count = {50000, 10000},
     .label_range = {20, 100},
     .mean = {0.5071, 0.4865, 0.4409},
     .std = {0.2673, 0.2564, 0.2762}},
    {.name = "text",
     .summary = "characters or bytes of a text file, nine tenths for training",
     .remedy = "give text:FILE, any UTF-8 text, or any file with --text bytes",
     .text = true,
     .read = abar__text_read,
     .mean = {0},
     .std = {1, 1, 1}},
    {.name = "synthetic",
     .summary = "smooth patterns made from the seed, any shape and class count",
     .read = abar__synthetic_make,
     .shape = {1, 28, 28},
     .count = {8192, 1024},
     .label_range = {10},
     .mean = {0.5, 0.5, 0.5},
     .std = {0.25, 0.25, 0.25}},
    {.name = "imagefolder",
     .summary = "photographs of any size, JPEG or PNG, in folders by class or in tar archives",
     .streamed = true,
     .remedy = "give imagefolder:DIR, a folder with train/CLASS/ and val/CLASS/, or with tar archives",
     IMAGES_READER,
     .shape = {3, 224, 224}},
    {.name = "imagenet",
     .summary = "photographs of any size, 1000 classes, 1281167 + 50000",
     .streamed = true,
     .remedy = "give imagenet:DIR, the folder of ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, or of train/ and val/",
     IMAGES_READER,
     .shape = {3, 224, 224},
     .count = {1281167, 50000},
     .label_range = {1000}},
    {.name = "tiny-imagenet",
     .summary = "photographs, 64 x 64 colour, 200 classes, 100000 + 10000",
     .streamed = true,
     .remedy = "give tiny-imagenet:DIR, the folder that tiny-imagenet-200.zip unpacks into",
     IMAGES_READER,
     .shape = {3, 64, 64},
     .count = {100000, 10000},
     .label_range = {200}},
};

static const char *const names[] = {"fashion-mnist", "mnist",       "cifar10",  "cifar100",      "text",
                                    "synthetic",     "imagefolder", "imagenet", "tiny-imagenet", NULL};

const char *const *abar_dataset_names(void) { return names; }

const abar__data_kind *abar__data_find(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strlen(kinds[i].name) == length && memcmp(kinds[i].name, name, length) == 0) return &kinds[i];
    return NULL;
}

static abar_status unknown_name(abar_context *ctx, const char *name, size_t length)
{
    char all[256] = "";
    for (int i = 0; names[i]; i++) {
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "data set %.*s: unknown, choose one of %s", length > 64 ? 64 : (int)length, name,
                      all);
}

/* Splits NAME:DIR. dir is NULL where the spec names none and the set has no default. */
static abar_status parse_spec(abar_context *ctx, const char *spec, const abar__data_kind **kind, const char **dir)
{
    size_t length = strcspn(spec, ":");
    *kind = abar__data_find(spec, length);
    if (!*kind) return unknown_name(ctx, spec, length);
    const char *name = (*kind)->name;
    *dir = (*kind)->folder;
    if (spec[length] == '\0') return ABAR_OK;
    *dir = spec + length + 1;
    if (!(*kind)->files[0] && !(*kind)->text && !(*kind)->streamed)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: is generated, not read from files, give it without a folder", name);
    const char *what = (*kind)->text ? "file" : "folder";
    if (**dir == '\0')
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: no %s after the colon, give %s:%s", name, what, name,
                          (*kind)->text ? "FILE" : "DIR");
    if (strlen(*dir) > FOLDER_MAX)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "%s: the %s's path is longer than %d characters, use a shorter one", name, what,
                          FOLDER_MAX);
    return ABAR_OK;
}

/* ---- finding files -------------------------------------------------------------------------------------------- */

static bool exists(const char *where, const char *file, const char *suffix)
{
    char path[ABAR_PATH_MAX];
    struct stat info;
    int n = snprintf(path, sizeof path, "%s/%s%s", where, file, suffix);
    return n > 0 && (size_t)n < sizeof path && stat(path, &info) == 0;
}

static bool have_file(const abar__data_kind *kind, const char *where, const char *file)
{
    return exists(where, file, "") || (kind->gzip && exists(where, file, ".gz"));
}

/* Sets where to dir, or to its subfolder when the files are there; returns the first file that is in neither, or NULL. */
static const char *find_files(const abar__data_kind *kind, const char *dir, char where[512])
{
    snprintf(where, 512, "%s", dir);
    if (kind->subfolder && !have_file(kind, dir, kind->files[0]) && exists(dir, kind->subfolder, ""))
        snprintf(where, 512, "%s/%s", dir, kind->subfolder);
    for (const char *const *file = kind->files; *file; file++)
        if (!have_file(kind, where, *file)) return *file;
    return NULL;
}

void abar__data_path(const abar_dataset *data, const char *file, char path[ABAR_PATH_MAX])
{
    const char *where = data->info.where;
    const char *suffix = data->kind->gzip && !exists(where, file, "") ? ".gz" : "";
    snprintf(path, ABAR_PATH_MAX, "%s/%s%s", where, file, suffix);
}

static abar_status need_files(abar_context *ctx, const abar__data_kind *kind, const char *dir, char where[512])
{
    struct stat info;
    if (!dir) return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: has no folder of its own, %s", kind->name, kind->remedy);
    if (stat(dir, &info) != 0)
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: there is no folder %s, %s", kind->name, dir, kind->remedy);
    if (!S_ISDIR(info.st_mode))
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: %s is not a folder, %s", kind->name, dir, kind->remedy);
    const char *file = find_files(kind, dir, where);
    if (!file) return ABAR_OK;
    if (kind->gzip)
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: there is neither %s nor %s.gz in %s, %s", kind->name, file, file, where,
                          kind->remedy);
    return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: there is no %s in %s, %s", kind->name, file, where, kind->remedy);
}

static abar_status need_text(abar_context *ctx, const abar__data_kind *kind, const char *path, char where[512])
{
    struct stat info;
    if (!path) return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: no file is named, %s", kind->name, kind->remedy);
    if (stat(path, &info) != 0)
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: there is no file %s, %s", kind->name, path, kind->remedy);
    if (S_ISDIR(info.st_mode))
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "%s: %s is a folder, %s", kind->name, path, kind->remedy);
    snprintf(where, 512, "%s", path);
    return ABAR_OK;
}

/* ---- open and close ------------------------------------------------------------------------------------------- */

static abar_dataset_info published_info(const abar__data_kind *kind)
{
    abar_dataset_info info = {.name = kind->name,
                              .channels = kind->shape[0],
                              .height = kind->shape[1],
                              .width = kind->shape[2],
                              .text = kind->text,
                              .streamed = kind->streamed,
                              .classes = kind->label_range[1] > 0 ? kind->label_range[1] : kind->label_range[0],
                              .train = kind->count[0],
                              .test = kind->count[1]};
    memcpy(info.mean, kind->mean, sizeof info.mean);
    memcpy(info.std, kind->std, sizeof info.std);
    return info;
}

abar_status abar__part_alloc(abar_dataset *data, abar__part *part, int64_t count)
{
    void *images, *labels;
    part->count = count;
    ABAR_TRY(abar__alloc(data->ctx, (size_t)(count * abar__image_bytes(&data->info)), &images));
    part->images = images;
    ABAR_TRY(abar__alloc(data->ctx, (size_t)count * sizeof *part->labels, &labels));
    part->labels = labels;
    return ABAR_OK;
}

static abar_status check_config(abar_context *ctx, const abar_dataset_config *config, abar_dataset_config *out)
{
    *out = (abar_dataset_config){.size = sizeof *out};
    if (!config) return ABAR_OK;
    ABAR_TRY(abar__struct_read(ctx, "abar_dataset_config", config, out, sizeof *out));
    if (out->limit_train < 0 || out->limit_test < 0)
        return abar__fail(ctx, ABAR_E_ARGUMENT, "data set: a limit is negative, give 0 for all samples");
    if (out->validation != 0.0) out->limit_test = 1; /* the test part is not kept */
    return ABAR_OK;
}

abar_status abar_dataset_open(abar_context *ctx, const char *spec, const abar_dataset_config *config, abar_dataset **out)
{
    const abar__data_kind *kind;
    const char *dir;
    char where[512] = "";
    abar_dataset_config c;
    *out = NULL;
    ABAR_TRY(check_config(ctx, config, &c));
    ABAR_TRY(parse_spec(ctx, spec, &kind, &dir));
    if (kind->files[0] || kind->streamed) ABAR_TRY(need_files(ctx, kind, dir, where));
    if (kind->text) ABAR_TRY(need_text(ctx, kind, dir, where));
    void *memory;
    ABAR_TRY(abar__alloc(ctx, sizeof(abar_dataset), &memory));
    abar_dataset *data = memory;
    data->ctx = ctx;
    data->kind = kind;
    data->info = published_info(kind);
    memcpy(data->info.where, where, sizeof where);
    abar_status status = kind->read(data, &c);
    data->info.train = data->part[0].count;
    data->info.test = data->part[1].count;
    if (status == ABAR_OK && c.validation != 0.0) status = abar__dataset_hold_out(data, c.validation, c.validation_seed);
    if (status != ABAR_OK) {
        abar_dataset_close(data);
        return status;
    }
    *out = data;
    return ABAR_OK;
}

/* Samples in the block of memory that a part owns. */
static int64_t owned_count(const abar_dataset *data, int i)
{
    if (data->borrowed) return 0;
    if (!data->info.validation) return data->part[i].count;
    return i == 0 ? data->part[0].count + data->part[1].count : 0;
}

static size_t images_bytes(const abar_dataset *data, int64_t n) { return (size_t)(n * abar__image_bytes(&data->info)); }
static size_t labels_bytes(int64_t n) { return (size_t)n * sizeof(int32_t); }

static size_t token_bytes(const abar_dataset *data) { return (size_t)data->tokens * sizeof(uint16_t); }

void abar_dataset_close(abar_dataset *data)
{
    if (!data) return;
    if (data->info.streamed) abar__streamed_free(data);
    for (int i = 0; i < 2 && !data->kind->text && !data->info.streamed; i++) {
        const int64_t n = owned_count(data, i);
        if (n == 0) continue;
        abar__free(data->ctx, data->part[i].images, images_bytes(data, n));
        abar__free(data->ctx, data->part[i].labels, labels_bytes(n));
    }
    abar__free(data->ctx, data->part[0].tokens, data->part[0].tokens ? token_bytes(data) : 0);
    abar__vocabulary_free(data->ctx, &data->vocabulary);
    abar__free(data->ctx, data, sizeof *data);
}

/* ---- access --------------------------------------------------------------------------------------------------- */

const abar_dataset_info *abar_dataset_info_of(const abar_dataset *data) { return &data->info; }

size_t abar_dataset_bytes(const abar_dataset *data)
{
    size_t bytes = sizeof *data;
    const abar__vocabulary *v = &data->vocabulary;
    if (data->info.streamed) return bytes + abar__streamed_bytes(data);
    if (data->kind->text)
        return bytes + token_bytes(data) + v->text_bytes + (v->codes ? (size_t)v->count * sizeof *v->codes : 0);
    for (int i = 0; i < 2; i++) bytes += images_bytes(data, owned_count(data, i)) + labels_bytes(owned_count(data, i));
    return bytes;
}

const uint8_t *abar_dataset_image(const abar_dataset *data, bool test, int64_t i)
{
    const abar__part *part = &data->part[test];
    if (i < 0 || i >= part->count || !part->images || data->info.floats) return NULL;
    return part->images + i * abar__image_bytes(&data->info);
}

const float *abar_dataset_image_floats(const abar_dataset *data, bool test, int64_t i)
{
    const abar__part *part = &data->part[test];
    if (i < 0 || i >= part->count || !data->info.floats) return NULL;
    return (const float *)(const void *)part->images + i * (abar__image_bytes(&data->info) / (int64_t)sizeof(float));
}

int32_t abar_dataset_label(const abar_dataset *data, bool test, int64_t i)
{
    const abar__part *part = &data->part[test];
    if (i < 0 || i >= part->count) return -1;
    if (data->info.streamed) return abar__streamed_label(data, part, i);
    return part->labels ? part->labels[i] : -1;
}

const char *abar_dataset_class(const abar_dataset *data, int64_t label)
{
    return data->info.streamed && label >= 0 && label < data->info.classes ? abar__images_class(data->images, label) : NULL;
}

const char *abar_dataset_class_readable(const abar_dataset *data, int64_t label)
{
    return data->info.streamed && label >= 0 && label < data->info.classes ? abar__images_readable(data->images, label) : NULL;
}

void abar_dataset_sample_name(const abar_dataset *data, bool test, int64_t i, char *out, size_t n)
{
    const abar__part *part = &data->part[test];
    if (n > 0) out[0] = '\0';
    if (n == 0 || !data->info.streamed || i < 0 || i >= part->count) return;
    abar__images_name(data->images, part->side, abar__streamed_file(part, i), out, n);
}

const uint16_t *abar_dataset_tokens(const abar_dataset *data, bool test) { return data->part[test].tokens; }
const char *abar_dataset_vocabulary(const abar_dataset *data) { return data->vocabulary.text; }

uint32_t abar__data_crc(const abar_dataset *data, bool test)
{
    const abar__part *part = &data->part[test];
    if (data->info.streamed) return abar__streamed_crc(data, part);
    if (data->kind->text) return (uint32_t)crc32_z(0, (const Bytef *)part->tokens, (size_t)part->count * sizeof *part->tokens);
    const uLong images = crc32_z(0, part->images, images_bytes(data, part->count));
    return (uint32_t)crc32_z(images, (const Bytef *)part->labels, labels_bytes(part->count));
}

/* The number of tokens is known once the text is read; it is at most the number of bytes. */
static bool probe_text(const char *path, abar_dataset_probe *out)
{
    struct stat info;
    if (!path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    snprintf(out->where, sizeof out->where, "%s", path);
    out->info.train = (int64_t)info.st_size * 9 / 10;
    out->info.test = (int64_t)info.st_size - out->info.train;
    return true;
}

static bool probe_folder(const char *dir, abar_dataset_probe *out)
{
    struct stat info;
    if (dir) snprintf(out->where, sizeof out->where, "%s", dir);
    return dir && stat(dir, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The shape in the files. Where they cannot be read it stays the published one; opening the set reports why. */
static void probe_shape(abar_context *ctx, const abar__data_kind *kind, const abar_dataset_config *config,
                        abar_dataset_info *info)
{
    abar_dataset data = {.ctx = ctx, .kind = kind, .info = *info};
    if (kind->look && kind->look(&data, config) == ABAR_OK) *info = data.info;
}

static abar_status probe_spec(abar_context *ctx, const char *spec, const abar_dataset_config *config, abar_dataset_probe *out)
{
    const abar__data_kind *kind;
    const char *dir;
    ABAR_TRY(parse_spec(ctx, spec, &kind, &dir));
    out->summary = kind->summary;
    out->info = published_info(kind);
    if (kind->text)
        out->found = probe_text(dir, out);
    else if (kind->streamed)
        out->found = probe_folder(dir, out);
    else
        out->found = !kind->files[0] || (dir && !find_files(kind, dir, out->where));
    if (!out->found) snprintf(out->remedy, sizeof out->remedy, "%s", kind->remedy);
    memcpy(out->info.where, out->where, sizeof out->where);
    if (out->found) probe_shape(ctx, kind, config, &out->info);
    return ABAR_OK;
}

abar_status abar_dataset_probe_with(abar_context *ctx, const char *spec, const abar_dataset_config *config,
                                    abar_dataset_probe *out)
{
    abar_dataset_probe probe = {0};
    abar_dataset_config c;
    ABAR_TRY(abar__struct_check(ctx, "abar_dataset_probe", out, sizeof probe));
    ABAR_TRY(check_config(ctx, config, &c));
    abar_status status = probe_spec(ctx, spec, &c, &probe);
    abar__struct_write(&probe, sizeof probe, out);
    return status;
}

abar_status abar_dataset_probe_name(abar_context *ctx, const char *spec, abar_dataset_probe *out)
{
    return abar_dataset_probe_with(ctx, spec, NULL, out);
}
