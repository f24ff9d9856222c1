/* Writing safetensors: the header is padded with spaces so that the data begins at a multiple of 8 bytes, as the format asks;
 * tensors are stored in the order in which they were added. The file appears complete or not at all. */
#include "io/io.h"
#include "base/json.h"
#include "io/checksum.h"
#include "io/files_impl.h"

#include <string.h>

#define PREFIX 8 /* bytes of the header's length */

typedef struct item {
    size_t name; /* offset in names */
    abar_tensor tensor;
    size_t checksum; /* offset of its digits in the header */
} item;

struct abar__safetensors_writer {
    abar_context *ctx;
    abar__text items;    /* of struct item */
    abar__text names;    /* zero-terminated, one after the other */
    abar__text metadata; /* key and value in turn, zero-terminated */
    abar__tensor_fetch fetch;
};

void abar__safetensors_writer_fetch(abar__safetensors_writer *w, abar__tensor_fetch fetch) { w->fetch = fetch; }

static size_t item_count(const abar__safetensors_writer *w) { return w->items.length / sizeof(item); }
static item *item_at(const abar__safetensors_writer *w, size_t i) { return (item *)(void *)w->items.data + i; }

abar_status abar__safetensors_writer_create(abar_context *ctx, abar__safetensors_writer **out)
{
    ABAR_TRY(abar__alloc(ctx, sizeof **out, (void **)out));
    (*out)->ctx = ctx;
    return ABAR_OK;
}

void abar__safetensors_writer_destroy(abar__safetensors_writer *w)
{
    if (!w) return;
    abar_context *ctx = w->ctx;
    abar__text_free(ctx, &w->items);
    abar__text_free(ctx, &w->names);
    abar__text_free(ctx, &w->metadata);
    abar__free(ctx, w, sizeof *w);
}

/* Iteration over metadata: the first key or NULL, the value of key p, the next key or NULL. */
static const char *first_pair(const abar__safetensors_writer *w) { return w->metadata.length > 0 ? w->metadata.data : NULL; }
static const char *value_of(const char *p) { return p + strlen(p) + 1; }

static const char *next_pair(const abar__safetensors_writer *w, const char *p)
{
    const char *next = value_of(value_of(p));
    return next < w->metadata.data + w->metadata.length ? next : NULL;
}

abar_status abar__safetensors_writer_metadata(abar__safetensors_writer *w, const char *key, const char *value)
{
    if (!abar__utf8_valid(key, strlen(key)))
        return abar__fail(w->ctx, ABAR_E_ARGUMENT, "metadata %s: the key is not UTF-8, rename it", key);
    if (!abar__utf8_valid(value, strlen(value)))
        return abar__fail(w->ctx, ABAR_E_ARGUMENT, "metadata %s: the value is not UTF-8, convert it", key);
    for (const char *p = first_pair(w); p; p = next_pair(w, p))
        if (strcmp(p, key) == 0) return abar__fail(w->ctx, ABAR_E_ARGUMENT, "metadata %s: given twice, give it once", key);
    size_t before = w->metadata.length;
    abar_status status = abar__text_append(w->ctx, &w->metadata, key, strlen(key) + 1);
    if (status == ABAR_OK) status = abar__text_append(w->ctx, &w->metadata, value, strlen(value) + 1);
    if (status < 0) w->metadata.length = before;
    return status;
}

static const char *what_is_wrong(const abar__safetensors_writer *w, const char *name, const abar_tensor *t)
{
    if (t->dev && !w->fetch) return "is not in host memory, copy it there first";
    if (t->ndim < 0 || t->ndim > ABAR_MAX_DIM) return "has too many dimensions, reshape it first";
    if (!abar_tensor_is_dense(t) && !w->fetch) return "is not dense and row-major, copy it into a dense one first";
    if (!t->data && abar_tensor_bytes(t) > 0) return "has no data, give it some";
    if (!abar__utf8_valid(name, strlen(name))) return "has a name that is not UTF-8, rename it";
    if (strcmp(name, "__metadata__") == 0) return "has a name that the format keeps for itself, rename it";
    for (size_t i = 0; i < item_count(w); i++)
        if (strcmp(w->names.data + item_at(w, i)->name, name) == 0) return "was added already, rename one of the two";
    return NULL;
}

abar_status abar__safetensors_writer_add(abar__safetensors_writer *w, const char *name, const abar_tensor *tensor)
{
    const char *wrong = what_is_wrong(w, name, tensor);
    if (wrong) return abar__fail(w->ctx, ABAR_E_ARGUMENT, "tensor %s: it %s", name, wrong);
    item added = {.name = w->names.length, .tensor = *tensor};
    ABAR_TRY(abar__text_append(w->ctx, &w->names, name, strlen(name) + 1));
    abar_status status = abar__text_append(w->ctx, &w->items, &added, sizeof added);
    if (status < 0) w->names.length = added.name;
    return status;
}

/* "prefix" followed by "name" as a key, and a value. */
static abar_status append_pair(abar_context *ctx, abar__text *out, const char *prefix, const char *name, const char *value)
{
    abar__text key = {0};
    abar_status status = abar__text_printf(ctx, &key, "%s%s", prefix, name);
    if (status == ABAR_OK) status = abar__json_string(ctx, out, key.data);
    if (status == ABAR_OK) status = abar__text_append(ctx, out, ":", 1);
    if (status == ABAR_OK) status = abar__json_string(ctx, out, value);
    abar__text_free(ctx, &key);
    return status;
}

/* How many there are, then those of the metadata, then those of the tensors, which are zero until the data is written. */
static abar_status append_checksums(const abar__safetensors_writer *w, abar__text *out)
{
    size_t count = item_count(w);
    for (const char *p = first_pair(w); p; p = next_pair(w, p)) count++;
    ABAR_TRY(abar__text_printf(w->ctx, out, "\"" ABAR_CRC_COUNT "\":\"%zu\"", count));
    for (const char *p = first_pair(w); p; p = next_pair(w, p)) {
        char digits[ABAR_CRC_DIGITS + 1];
        abar__crc_format(abar__crc_text(value_of(p)), digits);
        ABAR_TRY(abar__text_append(w->ctx, out, ",", 1));
        ABAR_TRY(append_pair(w->ctx, out, ABAR_CRC_METADATA, p, digits));
    }
    for (size_t i = 0; i < item_count(w); i++) {
        ABAR_TRY(abar__text_append(w->ctx, out, ",", 1));
        ABAR_TRY(append_pair(w->ctx, out, ABAR_CRC_TENSOR, w->names.data + item_at(w, i)->name, "00000000"));
        item_at(w, i)->checksum = out->length - 1 - ABAR_CRC_DIGITS;
    }
    return ABAR_OK;
}

static bool is_empty(const abar__safetensors_writer *w) { return !first_pair(w) && item_count(w) == 0; }

static abar_status append_metadata(const abar__safetensors_writer *w, abar__text *out)
{
    if (is_empty(w)) return ABAR_OK;
    ABAR_TRY(abar__text_printf(w->ctx, out, "\"__metadata__\":{"));
    for (const char *p = first_pair(w); p; p = next_pair(w, p)) {
        ABAR_TRY(append_pair(w->ctx, out, "", p, value_of(p)));
        ABAR_TRY(abar__text_append(w->ctx, out, ",", 1));
    }
    ABAR_TRY(append_checksums(w, out));
    return abar__text_append(w->ctx, out, "}", 1);
}

static size_t dense_bytes(const abar_tensor *t) { return (size_t)abar_tensor_count(t) * abar_dtype_size(t->dtype); }

static abar_status append_tensor(abar_context *ctx, abar__text *out, const char *name, const abar_tensor *t, size_t begin)
{
    ABAR_TRY(abar__json_string(ctx, out, name));
    ABAR_TRY(abar__text_printf(ctx, out, ":{\"dtype\":\"%s\",\"shape\":[", abar_dtype_name(t->dtype)));
    for (int i = 0; i < t->ndim; i++) ABAR_TRY(abar__text_printf(ctx, out, "%s%lld", i ? "," : "", (long long)t->dim[i]));
    return abar__text_printf(ctx, out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + dense_bytes(t));
}

/* Length, JSON and padding: all that comes before the data. */
static abar_status build_header(const abar__safetensors_writer *w, abar__text *out)
{
    ABAR_TRY(abar__text_append(w->ctx, out, "\0\0\0\0\0\0\0\0{", PREFIX + 1));
    ABAR_TRY(append_metadata(w, out));
    size_t begin = 0;
    for (size_t i = 0; i < item_count(w); i++) {
        const item *it = item_at(w, i);
        ABAR_TRY(abar__text_append(w->ctx, out, ",", 1));
        ABAR_TRY(append_tensor(w->ctx, out, w->names.data + it->name, &it->tensor, begin));
        begin += dense_bytes(&it->tensor);
    }
    ABAR_TRY(abar__text_append(w->ctx, out, "}", 1));
    ABAR_TRY(abar__text_append(w->ctx, out, "       ", abar__round_up(out->length, 8) - out->length));
    uint64_t length = out->length - PREFIX;
    for (int i = 0; i < PREFIX; i++) out->data[i] = (char)(length >> 8 * i & 0xFF);
    return ABAR_OK;
}

static bool is_ready(const abar_tensor *t) { return !t->dev && abar_tensor_is_dense(t); }

/* Bytes of the largest tensor that has to be fetched. */
static size_t stage_bytes(const abar__safetensors_writer *w)
{
    size_t most = 0;
    for (size_t i = 0; i < item_count(w); i++) {
        const abar_tensor *t = &item_at(w, i)->tensor;
        if (!is_ready(t) && dense_bytes(t) > most) most = dense_bytes(t);
    }
    return most;
}

/* Writes the tensor's bytes, and their checksum into the header. */
static abar_status write_tensor(const abar__safetensors_writer *w, abar__replacement *r, const item *it, void *stage,
                                abar__text *header)
{
    const abar_tensor *t = &it->tensor;
    const void *bytes = t->data;
    if (!is_ready(t)) {
        const abar_tensor here = abar_tensor_wrap(NULL, stage, t->dtype, t->ndim, t->dim);
        const abar_status status = w->fetch(w->ctx, &here, t);
        if (status < 0) {
            abar__replacement_abandon(r);
            return status;
        }
        bytes = stage;
    }
    char digits[ABAR_CRC_DIGITS + 1];
    abar__crc_format(abar__crc_tensor(t, bytes), digits);
    memcpy(header->data + it->checksum, digits, ABAR_CRC_DIGITS);
    return abar__replacement_write(r, bytes, dense_bytes(t));
}

/* A tensor may have to come from a device, so it is read once: the header is written again when the checksums are known. */
static abar_status write_file(const abar__safetensors_writer *w, const char *path, abar__text *header, void *stage)
{
    abar__replacement r;
    ABAR_TRY(abar__replacement_begin(w->ctx, path, &r));
    ABAR_TRY(abar__replacement_write(&r, header->data, header->length));
    for (size_t i = 0; i < item_count(w); i++) ABAR_TRY(write_tensor(w, &r, item_at(w, i), stage, header));
    ABAR_TRY(abar__replacement_rewrite(&r, header->data, header->length));
    return abar__replacement_commit(&r);
}

abar_status abar__safetensors_writer_write(abar__safetensors_writer *w, const char *path)
{
    abar__text header = {0};
    void *stage = NULL;
    const size_t bytes = stage_bytes(w);
    abar_status status = abar__alloc(w->ctx, bytes, &stage);
    if (status == ABAR_OK) status = build_header(w, &header);
    if (status == ABAR_OK) status = write_file(w, path, &header, stage);
    abar__text_free(w->ctx, &header);
    abar__free(w->ctx, stage, stage ? bytes : 0);
    return status;
}
