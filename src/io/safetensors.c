/* Reading safetensors: 8 bytes of header length (little-endian), a JSON header, the data. Every byte of the data belongs to
 * exactly one tensor, and nothing of the header is trusted before it is checked. Files that carry checksums (checksum.h) must
 * match all of them; files of other programs, which have none, are read without. */
#include "io/io.h"
#include "base/json.h"
#include "io/checksum.h"
#include "io/files_impl.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX 8             /* bytes of the header's length */
#define HEADER_MAX 100000000 /* as the reference implementation has it */
#define EXACT 0x1p53         /* integers up to here are exact in JSON's doubles */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "tensors are read in place: the format's byte order must be the host's");

typedef struct entry {
    const char *name;
    abar_tensor tensor;
    uint64_t begin, end;  /* in the data */
    const char *checksum; /* its digits; NULL: none */
} entry;

struct abar__safetensors {
    abar_context *ctx;
    const char *label;     /* valid during open only */
    const uint8_t *bytes;  /* the whole file */
    size_t n, owned_bytes; /* owned_bytes: to free, 0 for a caller's memory */
    size_t header_bytes;
    cJSON *header; /* owns the names and the metadata */
    const cJSON *metadata;
    int count;
    entry *entries;  /* by offset */
    entry **by_name; /* sorted, for find */
};

static abar_status damaged(abar__safetensors *file, const char *format, ...) ABAR_PRINTF(2, 3);

static abar_status damaged(abar__safetensors *file, const char *format, ...)
{
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return abar__fail(file->ctx, ABAR_E_FORMAT, "%s: %s, the file is damaged or no safetensors file: get or write it anew",
                      file->label, reason);
}

/* ---- the header as JSON ------------------------------------------------------------------------------------------ */

/* Checks the header's length against the file's. */
static abar_status check_length(abar__safetensors *file, const uint8_t prefix[PREFIX])
{
    uint64_t length = 0;
    for (int i = PREFIX - 1; i >= 0; i--) length = length << 8 | prefix[i];
    if (length > HEADER_MAX) return damaged(file, "its header of %" PRIu64 " bytes exceeds %d", length, HEADER_MAX);
    if (length > file->n - PREFIX)
        return damaged(file, "its header of %" PRIu64 " bytes does not fit into a file of %zu", length, file->n);
    file->header_bytes = (size_t)length;
    return ABAR_OK;
}

/* cJSON ends a string at \u0000 and at \u without four digits, so such names would be cut. */
static bool escapes_are_sound(const char *text, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        if (text[i] != '\\') continue;
        i++;
        if (text[i] != 'u') continue;
        if (n - i < 5 || memcmp(text + i + 1, "0000", 4) == 0) return false;
        for (size_t k = 1; k <= 4; k++)
            if (!isxdigit((unsigned char)text[i + k])) return false;
    }
    return true;
}

static abar_status parse_header(abar__safetensors *file)
{
    const char *text = (const char *)file->bytes + PREFIX, *end = NULL;
    size_t n = file->header_bytes;
    if (n == 0 || text[0] != '{') return damaged(file, "its header does not begin with {");
    if (!abar__utf8_valid(text, n)) return damaged(file, "its header is not UTF-8");
    if (!escapes_are_sound(text, n)) return damaged(file, "its header has a bad \\u escape");
    file->header = cJSON_ParseWithLengthOpts(text, n, &end, false);
    if (!file->header && abar__json_valid(text, n))
        return abar__fail(file->ctx, ABAR_E_MEMORY, "%s: not enough memory to read its header, free some and try again",
                          file->label);
    if (!file->header) return damaged(file, "its header is not JSON");
    for (; end < text + n; end++)
        if (*end != ' ' && *end != '\n' && *end != '\t' && *end != '\r')
            return damaged(file, "its header goes on after the JSON object");
    return ABAR_OK;
}

static bool to_integer(const cJSON *item, uint64_t *out)
{
    if (!cJSON_IsNumber(item)) return false;
    double value = item->valuedouble;
    if (!(value >= 0 && value <= EXACT) || value != floor(value)) return false;
    *out = (uint64_t)value;
    return true;
}

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static abar_status read_dtype(abar__safetensors *file, const cJSON *item, entry *e)
{
    if (!cJSON_IsString(item)) return damaged(file, "tensor %s has no dtype", e->name);
    for (abar_dtype dtype = ABAR_F64; dtype <= ABAR_U8; dtype++) {
        if (strcmp(item->valuestring, abar_dtype_name(dtype)) != 0) continue;
        e->tensor.dtype = dtype;
        return ABAR_OK;
    }
    return abar__fail(file->ctx, ABAR_E_UNSUPPORTED,
                      "%s: tensor %s has dtype %.20s, convert it to one of F64, F32, BF16, F16, I64, I32, U8", file->label,
                      e->name, item->valuestring);
}

/* Shape and strides, such that neither the product of the dimensions nor the bytes overflow, zeros or not. */
static abar_status read_shape(abar__safetensors *file, const cJSON *item, entry *e)
{
    if (!cJSON_IsArray(item)) return damaged(file, "tensor %s has no shape", e->name);
    int ndim = 0;
    int64_t dim[ABAR_MAX_DIM] = {0}, room = INT64_MAX / (int64_t)abar_dtype_size(e->tensor.dtype);
    const cJSON *d;
    cJSON_ArrayForEach(d, item)
    {
        uint64_t extent;
        if (!to_integer(d, &extent)) return damaged(file, "the shape of tensor %s is not made of whole numbers", e->name);
        if (ndim == ABAR_MAX_DIM)
            return abar__fail(file->ctx, ABAR_E_UNSUPPORTED, "%s: tensor %s has more than %d dimensions, reshape it first",
                              file->label, e->name, ABAR_MAX_DIM);
        dim[ndim++] = (int64_t)extent;
        if (extent > 0) room /= (int64_t)extent;
        if (room == 0) return damaged(file, "the shape of tensor %s overflows", e->name);
    }
    e->tensor = abar_tensor_wrap(NULL, NULL, e->tensor.dtype, ndim, dim);
    return ABAR_OK;
}

static abar_status read_offsets(abar__safetensors *file, const cJSON *item, entry *e)
{
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !to_integer(item->child, &e->begin) ||
        !to_integer(item->child->next, &e->end))
        return damaged(file, "tensor %s has no data_offsets", e->name);
    size_t data = file->n - PREFIX - file->header_bytes, need = abar_tensor_bytes(&e->tensor);
    if (e->begin > e->end || e->end > data)
        return damaged(file, "tensor %s is at %" PRIu64 " to %" PRIu64 " of %zu bytes of data", e->name, e->begin, e->end,
                       data);
    if (e->end - e->begin != need)
        return damaged(file, "tensor %s has %" PRIu64 " bytes, where its shape needs %zu", e->name, e->end - e->begin, need);
    /* views are not const, but this one is never written through */
    e->tensor.data = (void *)(uintptr_t)(file->bytes + PREFIX + file->header_bytes + e->begin);
    return ABAR_OK;
}

static abar_status read_entry(abar__safetensors *file, const cJSON *item, entry *e)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    const cJSON *found[3] = {NULL}, *child;
    e->name = item->string;
    if (!cJSON_IsObject(item)) return damaged(file, "tensor %s is not described by an object", e->name);
    cJSON_ArrayForEach(child, item)
    {
        for (int f = 0; f < 3; f++) {
            if (strcmp(child->string, fields[f]) != 0) continue; /* unknown fields are ignored, as the reference does */
            if (found[f]) return damaged(file, "tensor %s has two fields %s", e->name, fields[f]);
            found[f] = child;
        }
    }
    ABAR_TRY(read_dtype(file, found[0], e));
    ABAR_TRY(read_shape(file, found[1], e));
    return read_offsets(file, found[2], e);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* cJSON keeps duplicate keys; the format forbids them. */
static abar_status check_unique(abar__safetensors *file, const cJSON *object)
{
    size_t n = 0, i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) n++;
    if (n < 2) return ABAR_OK;
    const char **keys;
    ABAR_TRY(abar__alloc(file->ctx, n * sizeof *keys, (void **)&keys));
    cJSON_ArrayForEach(item, object) keys[i++] = item->string;
    qsort(keys, n, sizeof *keys, by_text);
    abar_status status = ABAR_OK;
    for (i = 1; i < n && status == ABAR_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0) status = damaged(file, "its header names %s twice", keys[i]);
    abar__free(file->ctx, keys, n * sizeof *keys);
    return status;
}

static bool is_metadata(const cJSON *item) { return strcmp(item->string, "__metadata__") == 0; }

static abar_status read_metadata(abar__safetensors *file, const cJSON *item)
{
    if (!cJSON_IsObject(item)) return damaged(file, "its __metadata__ is not an object");
    const cJSON *value;
    cJSON_ArrayForEach(value, item)
    {
        if (!cJSON_IsString(value)) return damaged(file, "its metadata %s is not a string", value->string);
    }
    file->metadata = item;
    return check_unique(file, item);
}

static int by_offset(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name); /* empty tensors share an offset */
}

static int by_name(const void *a, const void *b)
{
    const entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Sorted by offset, every tensor begins where the one before ends, and the last ends with the data. */
static abar_status check_cover(abar__safetensors *file)
{
    uint64_t at = 0, data = file->n - PREFIX - file->header_bytes;
    for (int i = 0; i < file->count; i++) {
        const entry *e = &file->entries[i];
        if (e->begin != at)
            return damaged(file, "tensor %s begins at byte %" PRIu64 " of the data instead of %" PRIu64, e->name, e->begin, at);
        at = e->end;
    }
    if (at != data) return damaged(file, "its tensors end at byte %" PRIu64 " of %" PRIu64 " bytes of data", at, data);
    return ABAR_OK;
}

static abar_status read_entries(abar__safetensors *file)
{
    ABAR_TRY(check_unique(file, file->header));
    const cJSON *item;
    int count = 0;
    cJSON_ArrayForEach(item, file->header) count += !is_metadata(item);
    ABAR_TRY(abar__alloc(file->ctx, (size_t)count * sizeof *file->entries, (void **)&file->entries));
    file->count = count;
    ABAR_TRY(abar__alloc(file->ctx, (size_t)count * sizeof *file->by_name, (void **)&file->by_name));
    entry *e = file->entries;
    cJSON_ArrayForEach(item, file->header)
        ABAR_TRY(is_metadata(item) ? read_metadata(file, item) : read_entry(file, item, e++));
    if (count > 0) qsort(file->entries, (size_t)count, sizeof *file->entries, by_offset);
    for (int i = 0; i < count; i++) file->by_name[i] = &file->entries[i];
    if (count > 0) qsort(file->by_name, (size_t)count, sizeof *file->by_name, by_name);
    return check_cover(file);
}

/* ---- checksums --------------------------------------------------------------------------------------------------- */

static abar_status changed(abar__safetensors *file, const char *what, const char *name, const char *reason)
{
    return abar__fail(file->ctx, ABAR_E_FORMAT,
                      "%s: %s %.160s %s, the file is not as it was written: restore a copy of it or write it anew", file->label,
                      what, name, reason);
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static bool matches(uint32_t crc, const char *checksum)
{
    char digits[ABAR_CRC_DIGITS + 1];
    abar__crc_format(crc, digits);
    return strcmp(digits, checksum) == 0;
}

static entry *find_entry(const abar__safetensors *file, const char *name)
{
    if (file->count == 0) return NULL;
    const entry key = {.name = name}, *wanted = &key;
    entry **found = bsearch(&wanted, file->by_name, (size_t)file->count, sizeof *file->by_name, by_name);
    return found ? *found : NULL;
}

/* One checksum of the metadata: that of a tensor is kept for later, that of a value is compared. */
static abar_status take_checksum(abar__safetensors *file, const cJSON *item)
{
    if (begins(item->string, ABAR_CRC_TENSOR)) {
        const char *name = item->string + strlen(ABAR_CRC_TENSOR);
        entry *e = find_entry(file, name);
        if (!e) return changed(file, "tensor", name, "has a checksum but is missing");
        e->checksum = item->valuestring;
        return ABAR_OK;
    }
    const char *key = item->string + strlen(ABAR_CRC_METADATA), *value = abar__safetensors_metadata(file, key);
    if (!value) return changed(file, "metadata", key, "has a checksum but is missing");
    return matches(abar__crc_text(value), item->valuestring) ? ABAR_OK
                                                             : changed(file, "metadata", key, "does not match its checksum");
}

static abar_status check_checksums(abar__safetensors *file)
{
    const char *count = abar__safetensors_metadata(file, ABAR_CRC_COUNT);
    const cJSON *item;
    int taken = 0;
    cJSON_ArrayForEach(item, file->metadata)
    {
        if (!begins(item->string, ABAR_CRC_TENSOR) && !begins(item->string, ABAR_CRC_METADATA)) continue;
        ABAR_TRY(take_checksum(file, item));
        taken++;
    }
    if (!count && taken == 0) return ABAR_OK;
    for (int i = 0; i < file->count; i++) {
        const entry *e = &file->entries[i];
        if (!e->checksum) return changed(file, "tensor", e->name, "has no checksum where others have one");
        if (!matches(abar__crc_tensor(&e->tensor, e->tensor.data), e->checksum))
            return changed(file, "tensor", e->name, "does not match its checksum");
    }
    char wanted[16];
    snprintf(wanted, sizeof wanted, "%d", taken);
    if (count && strcmp(count, wanted) == 0) return ABAR_OK;
    return changed(file, "metadata", ABAR_CRC_COUNT, "does not count the file's checksums");
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool read_exactly(int fd, void *bytes, size_t n)
{
    char *p = bytes;
    while (n > 0) {
        ssize_t done = read(fd, p, n < SSIZE_MAX ? n : SSIZE_MAX);
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = EIO; /* the file was truncated meanwhile */
        if (done <= 0) return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

static abar_status too_short(abar__safetensors *file) { return damaged(file, "it has only %zu bytes", file->n); }

/* Reading, not mapping: a disk that fails or a file that shrinks is then an error and not a signal. */
static abar_status load(abar__safetensors *file, int fd)
{
    struct stat info;
    uint8_t prefix[PREFIX];
    if (fstat(fd, &info) != 0) return abar__fail_errno(file->ctx, file->label, errno);
    if (S_ISDIR(info.st_mode)) return abar__fail_errno(file->ctx, file->label, EISDIR);
    if (!S_ISREG(info.st_mode)) return damaged(file, "it is not a regular file");
    file->n = (size_t)info.st_size;
    if (file->n < PREFIX) return too_short(file);
    if (!read_exactly(fd, prefix, PREFIX)) return abar__fail_errno(file->ctx, file->label, errno);
    ABAR_TRY(check_length(file, prefix)); /* before memory is allocated for a file of another format */
    void *bytes;
    ABAR_TRY(abar__alloc(file->ctx, file->n, &bytes));
    file->bytes = bytes;
    file->owned_bytes = file->n;
    memcpy(bytes, prefix, PREFIX);
    if (!read_exactly(fd, (char *)bytes + PREFIX, file->n - PREFIX)) return abar__fail_errno(file->ctx, file->label, errno);
    return ABAR_OK;
}

static abar_status finish(abar__safetensors *file, abar_status status, abar__safetensors **out)
{
    if (status == ABAR_OK) status = parse_header(file);
    if (status == ABAR_OK) status = read_entries(file);
    if (status == ABAR_OK) status = check_checksums(file);
    file->label = NULL;
    if (status < 0)
        abar__safetensors_close(file);
    else
        *out = file;
    return status;
}

abar_status abar__safetensors_open(abar_context *ctx, const char *path, abar__safetensors **out)
{
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block */
    if (fd < 0) return abar__fail_errno(ctx, path, errno);
    abar__safetensors *file;
    abar_status status = abar__alloc(ctx, sizeof *file, (void **)&file);
    if (status == ABAR_OK) {
        *file = (abar__safetensors){.ctx = ctx, .label = path};
        status = finish(file, load(file, fd), out);
    }
    close(fd);
    return status;
}

abar_status abar__safetensors_open_memory(abar_context *ctx, const char *label, const void *bytes, size_t n,
                                          abar__safetensors **out)
{
    *out = NULL;
    abar__safetensors *file;
    ABAR_TRY(abar__alloc(ctx, sizeof *file, (void **)&file));
    *file = (abar__safetensors){.ctx = ctx, .label = label, .bytes = bytes, .n = n};
    return finish(file, n < PREFIX ? too_short(file) : check_length(file, bytes), out);
}

void abar__safetensors_close(abar__safetensors *file)
{
    if (!file) return;
    abar_context *ctx = file->ctx;
    cJSON_Delete(file->header);
    abar__free(ctx, file->by_name, (size_t)file->count * sizeof *file->by_name);
    abar__free(ctx, file->entries, (size_t)file->count * sizeof *file->entries);
    if (file->owned_bytes > 0) abar__free(ctx, (void *)(uintptr_t)file->bytes, file->owned_bytes);
    abar__free(ctx, file, sizeof *file);
}

/* ---- serving ----------------------------------------------------------------------------------------------------- */

int abar__safetensors_count(const abar__safetensors *file) { return file->count; }

const char *abar__safetensors_get(const abar__safetensors *file, int i, abar_tensor *out)
{
    *out = file->entries[i].tensor;
    return file->entries[i].name;
}

bool abar__safetensors_find(const abar__safetensors *file, const char *name, abar_tensor *out)
{
    const entry *e = find_entry(file, name);
    if (e) *out = e->tensor;
    return e != NULL;
}

const char *abar__safetensors_metadata(const abar__safetensors *file, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file->metadata, key));
}
