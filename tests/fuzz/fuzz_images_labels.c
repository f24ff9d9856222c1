/* Any bytes as a file of classes, of readable names, and of labels for a few images. */
#include "data/images/scan.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void check_status(abar_context *ctx, abar_status status)
{
    require(status == ABAR_OK || (status == ABAR_E_FORMAT && abar_context_error(ctx)[0] != '\0'));
}

typedef struct lab {
    abar__images_index index;
    abar__scan scan;
} lab;

static void begin(lab *l, abar_context *ctx)
{
    *l = (lab){.index = {.ctx = ctx, .folder = -1}};
    l->scan = (abar__scan){.ctx = ctx,
                           .index = &l->index,
                           .folder = "folder",
                           .classes_file = "",
                           .labels_file = "",
                           .names = &l->index.text[ABAR_SECTION_NAMES]};
    require(abar__text_append(ctx, l->scan.names, "", 1) == ABAR_OK);
}

static void end(lab *l)
{
    for (int k = 0; k < ABAR_SECTIONS; k++) abar__text_free(l->scan.ctx, &l->index.text[k]);
    abar__text_free(l->scan.ctx, &l->scan.found);
    abar__text_free(l->scan.ctx, &l->scan.order);
}

static void parse_classes(abar_context *ctx, const char *bytes, size_t n)
{
    lab l;
    begin(&l, ctx);
    const abar_status status = abar__scan_parse_classes(&l.scan, "input", bytes, n);
    check_status(ctx, status);
    for (int64_t c = 0; status == ABAR_OK && c < abar__scan_classes(&l.scan); c++) {
        const char *name = abar__scan_class(&l.scan, c);
        require(*name && abar__scan_label(&l.scan, name, strlen(name)) == c);
    }
    end(&l);
}

static void parse_others(abar_context *ctx, const char *bytes, size_t n)
{
    static const char *const classes[] = {"a", "n01", "red fox"};
    static const char *const images[] = {"1.jpg", "1.png", "2.jpg", "deep/3.x.JPEG", "4.jpg"};
    lab l;
    begin(&l, ctx);
    require(abar__scan_set_classes(&l.scan, classes, 3) == ABAR_OK);
    require(abar__scan_parse_words(&l.scan, bytes, n) == ABAR_OK);
    for (int i = 0; i < 5; i++) {
        abar__found found = {0};
        require(abar__scan_string(&l.scan, images[i], strlen(images[i]), &found.name) == ABAR_OK);
        require(abar__scan_add_found(&l.scan, &found) == ABAR_OK);
    }
    const abar_status status = abar__scan_parse_labels(&l.scan, "input", bytes, n);
    check_status(ctx, status);
    for (int64_t i = 0; status == ABAR_OK && i < 5; i++) {
        const int32_t label = abar__scan_found_at(&l.scan, i)->label;
        require(label >= 0 && label < 3);
    }
    end(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_context *ctx;
    if (abar_context_create(NULL, &ctx) != ABAR_OK) return 0;
    parse_classes(ctx, (const char *)data, size);
    parse_others(ctx, (const char *)data, size);
    require(abar_context_memory(ctx).now == 0);
    abar_context_destroy(ctx);
    return 0;
}
