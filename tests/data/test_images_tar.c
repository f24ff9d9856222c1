/* The tar reader on memory: what it finds, and what it refuses. */
#include "data/images_testing.h"
#include "data/images/tar.h"

/* ---- the reader ---------------------------------------------------------------------------------------------- */

/* All members as lines "NAME OFFSET SIZE", a directory or link with "-" after it; or the failure's text. */
static abar_status list(const tar_text *t, char out[4096])
{
    abar_context *ctx = plain_context();
    abar__tar tar;
    abar_status status;
    bool more = true;
    *out = '\0';
    abar__tar_open_memory(&tar, ctx, "it.tar", t->bytes, t->n);
    for (;;) {
        abar__tar_member m;
        status = abar__tar_next(&tar, &m, &more);
        if (status < 0 || !more) break;
        const size_t used = strlen(out);
        assert_true(m.offset <= t->n && m.size <= t->n - m.offset);
        snprintf(out + used, 4096 - used, "%s %d %d%s\n", m.name, (int)m.offset, (int)m.size, m.regular ? "" : " -");
    }
    if (status < 0) snprintf(out, 4096, "%s", abar_context_error(ctx));
    abar__tar_close(&tar);
    assert_int_equal(abar_context_memory(ctx).now, 0);
    abar_context_destroy(ctx);
    return status;
}

static void check_list(tar_text *t, const char *expected)
{
    char text[4096];
    tar_end(t);
    const abar_status status = list(t, text);
    if (status != ABAR_OK) fail_msg("status %d: %s", status, text);
    assert_string_equal(text, expected);
    free(t->bytes);
    *t = (tar_text){0};
}

/* As it is, without an end. */
static void check_refused(tar_text *t, abar_status expected, const char *reason)
{
    char text[4096];
    const abar_status status = list(t, text);
    if (status != expected) fail_msg("status %d, not %d: %s", status, expected, text);
    check_contains(text, "it.tar: ");
    check_contains(text, reason);
    free(t->bytes);
    *t = (tar_text){0};
}

static uint8_t *last_header(const tar_text *t, size_t blocks) { return t->bytes + t->n - 512 * blocks; }

static void tar_members_are_found(void **state)
{
    (void)state;
    tar_text t = {0};
    tar_header(&t, "a/", '5', 0);
    tar_image(&t, "a/1.jpg", 1, 'x');
    tar_image(&t, "a/0.jpg", 0, 'x');
    tar_image(&t, "a/512.jpg", 512, 'x');
    tar_image(&t, "../../etc/513.jpg", 513, 'x'); /* nothing is ever written */
    tar_header(&t, "link.jpg", '2', 0);
    tar_header(&t, "hard.jpg", '1', 77); /* a hard link has no data, whatever its size */
    tar_header(&t, "old/", '0', 0);
    tar_header(&t, "pipe", '6', 0);
    tar_image(&t, "/z.jpg", 2, 'x');
    last_header(&t, 2)[156] = '\0'; /* as before ustar */
    tar_sum(last_header(&t, 2));
    check_list(&t, "a/ 512 0 -\na/1.jpg 1024 1\na/0.jpg 2048 0\na/512.jpg 2560 512\n../../etc/513.jpg 3584 513\n"
                   "link.jpg 5120 0 -\nhard.jpg 5632 0 -\nold/ 6144 0 -\npipe 6656 0 -\n/z.jpg 7168 2\n");
    check_list(&t, "");
}

static void tar_names_have_prefixes_and_long_forms(void **state)
{
    (void)state;
    tar_text t = {0};
    char name[301];
    memset(name, 'n', 300);
    name[300] = '\0';
    char expected[1024];
    tar_header(&t, "1.jpg", '0', 0);
    memcpy(last_header(&t, 1) + 345, "some/prefix", 11);
    tar_sum(last_header(&t, 1));
    tar_header(&t, "2.jpg", '0', 0); /* GNU has other things there */
    memcpy(last_header(&t, 1) + 345, "12345670123", 11);
    memcpy(last_header(&t, 1) + 257, "ustar  ", 8);
    tar_sum(last_header(&t, 1));
    tar_header(&t, "././@LongLink", 'L', 301);
    tar_raw(&t, name, 301);
    tar_header(&t, "cut", '0', 3);
    tar_raw(&t, "abc", 3);
    tar_header(&t, "././@LongLink", 'K', 5); /* the target of a link */
    tar_raw(&t, "here", 5);
    tar_header(&t, "3.jpg", '2', 0);
    char whole[101]; /* fills its field */
    memset(whole, 'w', 100);
    whole[100] = '\0';
    tar_header(&t, whole, '0', 0);
    snprintf(expected, sizeof expected, "some/prefix/1.jpg 512 0\n2.jpg 1024 0\n%s 2560 3\n3.jpg 4608 0 -\n%s 5120 0\n", name,
             whole);
    check_list(&t, expected);
}

static void tar_pax_headers_give_path_and_size(void **state)
{
    (void)state;
    tar_text t = {0};
    const char records[] = "30 mtime=1700000000.123456789\n17 path=\xc3\xa4/1.jpg\n12 size=600\n";
    tar_header(&t, "global", 'g', 16);
    tar_raw(&t, "16 path=ignored\n", 16);
    tar_header(&t, "pax", 'x', sizeof records - 1);
    tar_raw(&t, records, sizeof records - 1);
    tar_header(&t, "short", '0', 0);
    char data[600] = "";
    tar_raw(&t, data, sizeof data);
    tar_image(&t, "next.jpg", 1, 'x'); /* what pax says is for one member */
    check_list(&t, "\xc3\xa4/1.jpg 2560 600\nnext.jpg 4096 1\n");
}

static void tar_sizes_may_be_binary(void **state)
{
    (void)state;
    tar_text t = {0};
    tar_image(&t, "a.jpg", 700, 'x');
    uint8_t *h = t.bytes;
    memset(h + 124, 0, 12);
    h[124] = 0x80;
    h[134] = 700 >> 8;
    h[135] = 700 & 255;
    tar_sum(h);
    check_list(&t, "a.jpg 512 700\n");
}

/* ---- what it refuses ----------------------------------------------------------------------------------------- */

static void tar_compressed_and_sparse_archives_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *magic, *name;
    } kinds[] = {{"\x1f\x8b\x08", "gzip"}, {"BZh9", "bzip2"}, {"\xfd\x37zXZ", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}};
    tar_text t = {0};
    char block[600];
    for (int i = 0; i < 8; i++) {
        const char *magic = kinds[i % 4].magic;
        memset(block, 'q', sizeof block);
        memcpy(block, magic, strlen(magic));
        char reason[64];
        tar_raw(&t, block, sizeof block);
        if (i >= 4) t.n = 300; /* shorter than a header */
        snprintf(reason, sizeof reason, "is compressed (%s), unpack it first", kinds[i % 4].name);
        check_refused(&t, ABAR_E_UNSUPPORTED, reason);
    }
    tar_header(&t, "hole.jpg", 'S', 0);
    check_refused(&t, ABAR_E_UNSUPPORTED, "has sparse files, unpack it first");
    tar_header(&t, "pax", 'x', 22);
    tar_raw(&t, "22 GNU.sparse.major=1\n", 22);
    check_refused(&t, ABAR_E_UNSUPPORTED, "has sparse files");
    tar_header(&t, "part.jpg", 'M', 0);
    check_refused(&t, ABAR_E_FORMAT, "is continued from another volume");
}

static void tar_foreign_files_and_bad_sums_are_refused(void **state)
{
    (void)state;
    tar_text t = {0};
    char block[1024];
    memset(block, 'q', sizeof block);
    tar_raw(&t, block, sizeof block);
    check_refused(&t, ABAR_E_FORMAT, "is not a tar archive");
    tar_image(&t, "a.jpg", 1, 'x');
    tar_image(&t, "b.jpg", 1, 'x');
    last_header(&t, 2)[0] ^= 1;
    check_refused(&t, ABAR_E_FORMAT, "the checksum of a header is wrong at byte 1024");
}

static void tar_truncation_anywhere_is_noticed(void **state)
{
    (void)state;
    tar_text t = {0};
    char text[4096];
    tar_image(&t, "a.jpg", 700, 'x');
    tar_header(&t, "././@LongLink", 'L', 6);
    tar_raw(&t, "b.jpg", 6);
    tar_image(&t, "c", 1, 'x');
    const size_t whole = t.n;
    tar_end(&t);
    for (size_t n = 0; n < whole + 512; n++) {
        const tar_text cut = {t.bytes, n};
        if (list(&cut, text) != ABAR_E_FORMAT) fail_msg("%zu of %zu bytes are accepted", n, t.n);
        check_contains(text, "is cut short");
    }
    const tar_text one_block = {t.bytes, whole + 512}; /* of the two zero blocks at the end one is enough */
    assert_int_equal(list(&one_block, text), ABAR_OK);
    free(t.bytes);
}

static void tar_archives_joined_by_cat_are_refused(void **state)
{
    (void)state;
    tar_text t = {0};
    tar_image(&t, "a.jpg", 1, 'x');
    tar_end(&t);
    tar_image(&t, "b.jpg", 1, 'x');
    tar_end(&t);
    check_refused(&t, ABAR_E_FORMAT, "goes on after its end at byte 1024, join archives with tar -A");
}

static void tar_sizes_past_the_end_are_refused(void **state)
{
    (void)state;
    tar_text t = {0};
    static const char *const sizes[] = {"77777777777", "00000002001"};
    for (int i = 0; i < 2; i++) {
        tar_image(&t, "a.jpg", 512, 'x');
        memcpy(t.bytes + 124, sizes[i], 12);
        tar_sum(t.bytes);
        tar_raw(&t, "", 0);
        check_refused(&t, ABAR_E_FORMAT, "is cut short");
    }
    static const uint8_t binary[][2] = {{0x80, 0x3f}, {0x80, 0x7f}, {0xff, 0xff}, {0x81, 0}};
    for (int i = 0; i < 4; i++) {
        tar_image(&t, "a.jpg", 512, 'x');
        memset(t.bytes + 124, 0xff, 12);
        t.bytes[124] = binary[i][0];
        memset(t.bytes + 125, 0, 3);
        t.bytes[128] = binary[i][1];
        tar_sum(t.bytes);
        check_refused(&t, ABAR_E_FORMAT, i == 0 ? "is cut short" : "a size is no number");
    }
    tar_image(&t, "a.jpg", 512, 'x');
    memcpy(t.bytes + 124, "12ab", 4);
    tar_sum(t.bytes);
    check_refused(&t, ABAR_E_FORMAT, "a size is no number");
}

static void tar_damaged_extended_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *records, *reason;
    } cases[] = {
        {"12 path=abc\n", "is cut short"}, /* right, but nothing follows */
        {"99 path=abc\n", "a pax header is damaged"},
        {"11 path=abc\n", "a pax header is damaged"},
        {"path=abc\n", "a pax header is damaged"},
        {"7 path\n", "a pax header is damaged"},
        {"0 path=abc\n", "a pax header is damaged"},
        {"99999999999999999999999 path=abc\n", "a pax header is damaged"},
        {"8 path=\n", "a name is empty or too long"},
        {"8 size=\n", "a size is no number"},
        {"10 size=4x\n", "a pax header is damaged"},
        {"11 size=4x\n", "a size is no number"},
        {"30 size=999999999999999999999\n", "a size is no number"},
    };
    tar_text t = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tar_header(&t, "pax", 'x', strlen(cases[i].records));
        tar_raw(&t, cases[i].records, strlen(cases[i].records));
        check_refused(&t, ABAR_E_FORMAT, cases[i].reason);
    }
    tar_header(&t, "pax", 'x', 12);
    tar_raw(&t, "12 path=abc\n", 12);
    tar_end(&t);
    check_refused(&t, ABAR_E_FORMAT, "a file is missing after its extended header");
    tar_header(&t, "long", 'L', 2 << 20);
    uint8_t *zeros = calloc(1, 2 << 20);
    tar_raw(&t, zeros, 2 << 20);
    free(zeros);
    check_refused(&t, ABAR_E_FORMAT, "an extended header is too long");
    char name[5000];
    memset(name, 'n', sizeof name);
    tar_header(&t, "long", 'L', sizeof name);
    tar_raw(&t, name, sizeof name);
    check_refused(&t, ABAR_E_FORMAT, "a name is empty or too long");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tar_members_are_found),
        cmocka_unit_test(tar_names_have_prefixes_and_long_forms),
        cmocka_unit_test(tar_pax_headers_give_path_and_size),
        cmocka_unit_test(tar_sizes_may_be_binary),
        cmocka_unit_test(tar_compressed_and_sparse_archives_are_refused),
        cmocka_unit_test(tar_foreign_files_and_bad_sums_are_refused),
        cmocka_unit_test(tar_truncation_anywhere_is_noticed),
        cmocka_unit_test(tar_archives_joined_by_cat_are_refused),
        cmocka_unit_test(tar_sizes_past_the_end_are_refused),
        cmocka_unit_test(tar_damaged_extended_headers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
