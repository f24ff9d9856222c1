/* Any bytes as the report.json of a comparison's runs: refused with a text, or written back as it was read, and shown in every
 * file of the comparison. */
#include "train/compare/compare_impl.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static const char comparison[] =
    "{\"config\": {\"seeds\": 2, \"methods\": ["
    "{\"label\": \"a\", \"setup\": {\"train\": {\"model\": \"mlp\", \"data\": \"synthetic\", \"optim\": \"sgd\"}}}, "
    "{\"label\": \"b\", \"seeds\": 1, \"setup\": {\"train\": {\"model\": \"mlp\", \"data\": \"synthetic\", \"optim\": "
    "\"mac\"}}}"
    "]}}";

static void forget(abar_compare *c, int run)
{
    abar__compare_record *r = &c->record[run];
    abar__free(c->ctx, r->history, (size_t)r->run.epochs * sizeof *r->history);
    abar__text_free(c->ctx, &r->failure_text);
    *r =
        (abar__compare_record){.run = {.label = r->run.label, .method = r->run.method, .seed = r->run.seed, .side_by_side = 1}};
}

/* What was read is read again from what is written of it. */
static void read_again(abar_compare *c, int run)
{
    abar__text first = {0}, second = {0};
    require(abar__compare_record_write(c, run, &first) == ABAR_OK);
    forget(c, run);
    require(abar__compare_record_parse(c, "again", first.data, first.length, &c->record[run]) == ABAR_OK);
    require(abar__compare_record_write(c, run, &second) == ABAR_OK && strcmp(first.data, second.data) == 0);
    abar__text_free(c->ctx, &first);
    abar__text_free(c->ctx, &second);
}

static void show(const abar_compare *c)
{
    static abar_status (*const write[])(const abar_compare *, abar__text *) = {abar__compare_csv_write, abar__compare_svg_write,
                                                                               abar__compare_md_write, abar__compare_write};
    for (size_t i = 0; i < sizeof write / sizeof *write; i++) {
        abar__text text = {0};
        require(write[i](c, &text) == ABAR_OK && text.length > 0);
        abar__text_free(c->ctx, &text);
    }
}

/* Made once: it takes longer than all that follows. */
static abar_compare *shared_comparison(void)
{
    static abar_compare *c;
    abar_context *ctx;
    if (c) return c;
    require(abar_context_create(NULL, &ctx) == ABAR_OK);
    require(abar__compare_parse(ctx, "comparison", comparison, sizeof comparison - 1, &c) == ABAR_OK && c->runs == 3);
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    abar_compare *c = shared_comparison();
    const size_t before = abar_context_memory(c->ctx).now;
    bool read = true;
    for (int run = 0; run < c->runs && read; run++) {
        read = abar__compare_record_parse(c, "input", (const char *)data, size, &c->record[run]) == ABAR_OK;
        if (!read) require(strncmp(abar_context_error(c->ctx), "input: ", 7) == 0);
    }
    if (read) {
        read_again(c, 0);
        show(c);
    }
    for (int run = 0; run < c->runs; run++) forget(c, run);
    require(abar_context_memory(c->ctx).now == before);
    return 0;
}
