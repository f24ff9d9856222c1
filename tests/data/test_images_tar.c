/* Tar archives: the reader on memory, ImageNet's official archives, shards, and reading samples from all of them. */
#include "data/images_testing.h"
#include "data/images/tar.h"

/* ---- the reader
 * --------------------------------------------------------------------------------------------------------------- */

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

/* ---- what it refuses
 * -------------------------------------------------------------------------------------------------------------- */

static void tar_compressed_and_sparse_archives_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *magic, *name;
    } kinds[] = {{"\x1f\x8b\x08", "gzip"}, {"BZh9", "bzip2"}, {"\xfd\x37zXZ", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}};
    tar_text t = {0};
    char block[600];
    for (int i = 0; i < 4; i++) {
        memset(block, 'q', sizeof block);
        memcpy(block, kinds[i].magic, strlen(kinds[i].magic));
        tar_raw(&t, block, sizeof block);
        char reason[64];
        snprintf(reason, sizeof reason, "is compressed (%s), unpack it first", kinds[i].name);
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

/* ---- shards
 * ---------------------------------------------------------------------------------------------------------------------------
 */

static set *shard_set(void)
{
    set *s = set_make();
    tar_text t = {0};
    tar_image(&t, "b.jpg", 3, 'b');
    tar_number(&t, "b.cls", "1");
    tar_number(&t, "a.cls", " 0\n");
    tar_number(&t, "a.json", "{}");
    tar_image(&t, "a.JPEG", 4, 'a');
    put_tar(s, "train-01.tar", &t);
    tar_image(&t, "dir.1/c.png", 5, 'c');
    tar_number(&t, "dir.1/c.cls", "1");
    tar_image(&t, "dir.1/c.mask.png", 9, 'm'); /* is not the image */
    tar_image(&t, ".x.jpg", 9, 'm');
    put_tar(s, "train-00.tar", &t);
    tar_image(&t, "v.jpg", 600, 'v');
    tar_number(&t, "v.cls", "0");
    put_tar(s, "val.tar", &t);
    return s;
}

#define SHARD_TRAIN "1 5 train-00.tar/dir.1/c.png\n1 3 train-01.tar/b.jpg\n0 4 train-01.tar/a.JPEG\n"

static void check_bytes(const abar__images_index *index, int part, int64_t i, char expected)
{
    const size_t n = (size_t)abar__images_size(index, part, i);
    uint8_t buffer[4096] = {0};
    assert_int_equal(abar__images_read(index, part, i, buffer), ABAR_IMAGES_READ);
    for (size_t k = 0; k < n; k++) assert_int_equal(buffer[k], expected);
    assert_int_equal(buffer[n], 0);
}

static void shards_are_read_in_the_order_of_their_members(void **state)
{
    (void)state;
    set *s = shard_set();
    settle(s);
    for (int cached = 0; cached < 2; cached++) {
        abar__images_index *index = open_set(s);
        const abar__images_summary *sum = abar__images_summary_of(index);
        assert_int_equal(sum->from_cache, cached);
        assert_int_equal(sum->layout, ABAR_LAYOUT_SHARDS);
        assert_int_equal(sum->classes, 2);
        assert_int_equal(sum->untested, 1);
        assert_int_equal(sum->ignored, 3);
        check_samples(s, index, 0, SHARD_TRAIN);
        check_samples(s, index, 1, "0 600 val.tar/v.jpg\n");
        assert_string_equal(abar__images_class(index, 1), "1");
        check_bytes(index, 0, 0, 'c');
        check_bytes(index, 0, 1, 'b');
        check_bytes(index, 0, 2, 'a');
        check_bytes(index, 1, 0, 'v');
        assert_int_equal(abar_context_memory(s->ctx).now, abar__images_index_bytes(index));
        abar__images_close(index);
    }
    set_free(s);
}

static void shards_in_folders_take_classes_from_their_file(void **state)
{
    (void)state;
    set *s = set_make();
    tar_text t = {0};
    char path[8192];
    tar_image(&t, "1.jpg", 1, 'x');
    tar_number(&t, "1.cls", "1");
    tar_image(&t, "2.jpg", 1, 'x');
    tar_number(&t, "2.cls", "0");
    put_tar(s, "train/x.tar", &t);
    tar_image(&t, "3.jpg", 1, 'x');
    tar_number(&t, "3.cls", "0");
    put_tar(s, "validation/y.tar", &t);
    put_text(s, "classes.txt", "zebra\nape\tthe ape\n");
    put_text(s, "words.txt", "zebra the zebra\n");
    abar__images_index *index = open_set(s);
    check_samples(s, index, 0, "1 1 train/x.tar/1.jpg\n0 1 train/x.tar/2.jpg\n");
    check_samples(s, index, 1, "0 1 validation/y.tar/3.jpg\n");
    assert_string_equal(abar__images_class(index, 0), "zebra");
    assert_string_equal(abar__images_readable(index, 0), "the zebra");
    assert_string_equal(abar__images_readable(index, 1), "the ape");
    abar__images_close(index);
    put_text(s, "other.txt", "a\nb\n");
    path_of(s, "other.txt", path);
    index = open_with(s, &(abar__images_request){.classes = path});
    assert_string_equal(abar__images_class(index, 0), "a");
    abar__images_close(index);
    put_text(s, "classes.txt", "zebra\nape\ncat\n");
    open_fails(s, ABAR_E_NOT_FOUND, "", "class 2 has no images in train");
    put_text(s, "classes.txt", "zebra\n");
    open_fails(s, ABAR_E_FORMAT, "train/x.tar/1.jpg", "has the class 1, which is not below the number of classes");
    set_free(s);
}

static void shard_faults_name_the_member(void **state)
{
    (void)state;
    static const struct {
        const char *names[4];
        const char *number;
        abar_status status;
        const char *path, *reason;
    } cases[] = {
        {{"x.jpg"}, "0", ABAR_E_FORMAT, "train.tar/x.jpg", "has no .cls"},
        {{"x.cls"}, "0", ABAR_E_FORMAT, "train.tar/x", "has a .cls but no image"},
        {{"x.jpg", "y.jpg", "x.cls"}, "0", ABAR_E_FORMAT, "train.tar/x.jpg", "has no .cls"},
        {{"x.jpg", "x.png", "x.cls"}, "0", ABAR_E_FORMAT, "train.tar/x.png", "is a second image with the same key"},
        {{"x.cls", "x.cls", "x.jpg"}, "0", ABAR_E_FORMAT, "train.tar/x.cls", "is in the shard twice"},
        {{"x.webp", "x.cls"}, "0", ABAR_E_UNSUPPORTED, "train.tar/x.webp", "does not read"},
        {{"x.jpg", "x.cls"}, "", ABAR_E_FORMAT, "train.tar/x.cls", "is no class number"},
        {{"x.jpg", "x.cls"}, "cat", ABAR_E_FORMAT, "train.tar/x.cls", "is no class number"},
        {{"x.jpg", "x.cls"}, "-1", ABAR_E_FORMAT, "train.tar/x.cls", "is no class number"},
        {{"x.jpg", "x.cls"}, "1 2", ABAR_E_FORMAT, "train.tar/x.cls", "is no class number"},
        {{"x.jpg", "x.cls"}, "0x1", ABAR_E_FORMAT, "train.tar/x.cls", "is no class number"},
        {{"x.jpg", "x.cls"}, "99999999999999999999", ABAR_E_FORMAT, "train.tar/x.cls", "is no class number"},
        {{"x.jpg", "x.cls"},
         "0                                                      ",
         ABAR_E_FORMAT,
         "train.tar/x.cls",
         "is no class number"},
        {{"x.jpg", "x.cls"}, "1", ABAR_E_FORMAT, "train.tar/x.jpg", "has the class 1 but there are fewer images"},
        {{"x.jpg", "x.cls", "y.jpg", "y.cls"}, "1", ABAR_E_NOT_FOUND, "", "class 0 has no images in train"},
        {{"x.txt"}, "1", ABAR_E_NOT_FOUND, "", "its training shards have no images"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set *s = set_make();
        tar_text t = {0};
        tar_image(&t, "v.jpg", 1, 'v');
        tar_number(&t, "v.cls", "0");
        put_tar(s, "val.tar", &t);
        for (int k = 0; k < 4 && cases[i].names[k]; k++) {
            if (strstr(cases[i].names[k], ".cls"))
                tar_number(&t, cases[i].names[k], cases[i].number);
            else
                tar_image(&t, cases[i].names[k], 1, 'x');
        }
        put_tar(s, "train.tar", &t);
        open_fails(s, cases[i].status, cases[i].path, cases[i].reason);
        set_free(s);
    }
    set *s = shard_set();
    tar_text t = {0};
    tar_image(&t, "v.jpg", 1, 'v');
    tar_number(&t, "v.cls", "2");
    put_tar(s, "val.tar", &t);
    open_fails(s, ABAR_E_FORMAT, "val.tar/v.jpg", "has the class 2, which is not below the number of classes");
    put_bytes(s, "val.tar", "nothing much", 12);
    open_fails(s, ABAR_E_FORMAT, "val.tar", "is cut short");
    set_free(s);
}

static void shard_replaced_is_indexed_again(void **state)
{
    (void)state;
    set *s = shard_set();
    tar_text t = {0};
    uint8_t buffer[1024];
    settle(s);
    abar__images_close(open_set(s));
    abar__images_index *index = open_set(s);
    assert_true(abar__images_summary_of(index)->from_cache);
    tar_image(&t, "w.jpg", 700, 'w');
    tar_image(&t, "w.txt", 700, 'w');
    tar_number(&t, "w.cls", "1");
    put_tar(s, "val.tar", &t); /* in place: the directory is as it was */
    assert_int_equal(abar__images_read(index, 1, 0, buffer), ABAR_IMAGES_CHANGED);
    abar__images_close(index);
    index = open_set(s);
    assert_false(abar__images_summary_of(index)->from_cache);
    check_samples(s, index, 1, "1 700 val.tar/w.jpg\n");
    check_bytes(index, 1, 0, 'w');
    abar__images_close(index);
    set_free(s);
}

/* ---- the official archives
 * ---------------------------------------------------------------------------------------------------------------- */

static set *official_set(void)
{
    set *s = set_make();
    tar_text outer = {0}, inner = {0};
    tar_image(&inner, "n02_2.JPEG", 5, 'p');
    tar_image(&inner, "n02_1.JPEG", 600, 'q');
    tar_end(&inner);
    tar_member(&outer, "n02.tar", inner.bytes, inner.n);
    free(inner.bytes);
    inner = (tar_text){0};
    tar_image(&inner, "n01_7.JPEG", 7, 'r');
    tar_end(&inner);
    tar_member(&outer, "./n01.tar", inner.bytes, inner.n);
    free(inner.bytes);
    put_tar(s, "ILSVRC2012_img_train.tar", &outer);
    tar_image(&outer, "ILSVRC2012_val_00000001.JPEG", 8, 's');
    tar_image(&outer, "ILSVRC2012_val_00000002.JPEG", 9, 't');
    tar_image(&outer, "ILSVRC2012_val_00000003.JPEG", 10, 'u');
    put_tar(s, "ILSVRC2012_img_val.tar", &outer);
    put_text(s, "imagenet_2012_validation_synset_labels.txt", "n02\nn01\nn02\n");
    return s;
}

static void official_archives_are_read_as_they_are(void **state)
{
    (void)state;
    set *s = official_set();
    settle(s);
    for (int cached = 0; cached < 2; cached++) {
        abar__images_index *index = open_set(s);
        assert_int_equal(abar__images_summary_of(index)->from_cache, cached);
        assert_int_equal(abar__images_summary_of(index)->layout, ABAR_LAYOUT_ARCHIVES);
        check_samples(s, index, 0,
                      "0 7 ILSVRC2012_img_train.tar/n01.tar/n01_7.JPEG\n1 600 ILSVRC2012_img_train.tar/n02.tar/n02_1.JPEG\n"
                      "1 5 ILSVRC2012_img_train.tar/n02.tar/n02_2.JPEG\n");
        check_samples(s, index, 1,
                      "0 9 ILSVRC2012_img_val.tar/ILSVRC2012_val_00000002.JPEG\n"
                      "1 8 ILSVRC2012_img_val.tar/ILSVRC2012_val_00000001.JPEG\n"
                      "1 10 ILSVRC2012_img_val.tar/ILSVRC2012_val_00000003.JPEG\n");
        for (int64_t i = 0; i < 3; i++) check_bytes(index, 0, i, "rqp"[i]);
        for (int64_t i = 0; i < 3; i++) check_bytes(index, 1, i, "tsu"[i]);
        abar__images_close(index);
    }
    set_free(s);
}

static void official_archives_follow_a_classes_file(void **state)
{
    (void)state;
    set *s = official_set();
    char path[8192];
    put_text(s, "order.txt", "n02\nn01\n");
    path_of(s, "order.txt", path);
    abar__images_index *index = open_with(s, &(abar__images_request){.classes = path});
    assert_int_equal(abar__images_label(index, 0, 0), 0);
    check_bytes(index, 0, 0, 'q');
    check_bytes(index, 0, 2, 'r');
    abar__images_close(index);
    set_free(s);
}

static void official_archive_faults_are_named(void **state)
{
    (void)state;
    set *s = official_set();
    tar_text outer = {0}, inner = {0};
    remove_file(s, "imagenet_2012_validation_synset_labels.txt");
    open_fails(s, ABAR_E_NOT_FOUND, "ILSVRC2012_img_val.tar", "needs a label file");
    put_text(s, "val/LOC_val_solution.csv", "ILSVRC2012_val_00000001,n01\nILSVRC2012_val_00000002,n01\n");
    open_fails(s, ABAR_E_FORMAT, "val/LOC_val_solution.csv", "has no line for the image ILSVRC2012_val_00000003.JPEG");
    put_text(s, "val/LOC_val_solution.csv", "n01\nn01\nn02\n");
    abar__images_close(open_set(s));
    tar_image(&inner, "n01_7.JPEG", 700, 'r');
    tar_member(&outer, "n01.tar", inner.bytes, inner.n - 512); /* the inner one is cut; bytes follow it in the outer one */
    put_tar(s, "ILSVRC2012_img_train.tar", &outer);
    open_fails(s, ABAR_E_FORMAT, "ILSVRC2012_img_train.tar/n01.tar", "is cut short, it ends after 1024 bytes");
    tar_end(&inner);
    tar_member(&outer, "n01.tar", inner.bytes, inner.n);
    tar_member(&outer, "other/n01.tar", inner.bytes, inner.n);
    put_tar(s, "ILSVRC2012_img_train.tar", &outer);
    open_fails(s, ABAR_E_FORMAT, "ILSVRC2012_img_train.tar/n01", "is in the archive twice");
    tar_text empty = {0};
    tar_end(&empty);
    tar_member(&outer, "n01.tar", empty.bytes, empty.n);
    put_tar(s, "ILSVRC2012_img_train.tar", &outer);
    open_fails(s, ABAR_E_NOT_FOUND, "ILSVRC2012_img_train.tar/n01.tar", "has no images");
    tar_image(&outer, "n01_1.JPEG", 1, 'x');
    put_tar(s, "ILSVRC2012_img_train.tar", &outer);
    open_fails(s, ABAR_E_FORMAT, "ILSVRC2012_img_train.tar", "has no tar of a class in it");
    free(inner.bytes);
    free(empty.bytes);
    set_free(s);
}

/* What tar(1) writes, in its formats. */
static void tar_archives_of_the_system_are_read(void **state)
{
    (void)state;
    if (system("tar --version > /dev/null 2>&1") != 0) skip();
    static const char *const formats[] = {"ustar", "pax", "gnu", "v7", "oldgnu"};
    for (size_t f = 0; f < 5; f++) {
        set *s = set_make();
        char command[8192], name[300] = "", expected[1024];
        const bool longer = f == 1 || f == 2 || f == 4; /* names that need an extended header */
        for (int i = 0; i < (longer ? 30 : 3); i++) strcat(name, "abcdefgh/");
        snprintf(command, sizeof command, "../src/%s1.jpg", name);
        put(s, command, 1000);
        snprintf(command, sizeof command, "../src/%s1.cls", name);
        put_text(s, command, "0\n");
        snprintf(command, sizeof command,
                 "cd '%s/../src' && tar --format=%s -cf ../data/train.tar * && cp ../data/train.tar ../data/val.tar", s->data,
                 formats[f]);
        if (system(command) != 0) skip();
        abar__images_index *index = open_set(s);
        snprintf(expected, sizeof expected, "0 1000 train.tar/%s1.jpg\n", name);
        check_samples(s, index, 0, expected);
        check_bytes(index, 0, 0, 'x');
        abar__images_close(index);
        set_free(s);
    }
}

static void tar_failing_allocations_are_reported_and_leak_nothing(void **state)
{
    (void)state;
    set *sets[] = {official_set(), shard_set()};
    for (int i = 0; i < 2; i++) {
        set *s = sets[i];
        const abar__images_request request = {.folder = s->data};
        abar__images_index *index = NULL;
        abar_status status;
        long k = 0;
        setenv("ABAR_CACHE", s->cache, 1);
        do {
            s->memory = (failing){.fail_at = ++k};
            status = abar__images_open(s->ctx, &request, &index);
            if (status == ABAR_OK) break;
            assert_int_equal(status, ABAR_E_MEMORY);
            assert_int_equal(abar_context_memory(s->ctx).now, 0);
        } while (k < 1000);
        assert_int_equal(status, ABAR_OK);
        assert_true(k > 15);
        s->memory = (failing){0};
        abar__images_close(index);
        set_free(s);
    }
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
        cmocka_unit_test(shards_are_read_in_the_order_of_their_members),
        cmocka_unit_test(shards_in_folders_take_classes_from_their_file),
        cmocka_unit_test(shard_faults_name_the_member),
        cmocka_unit_test(shard_replaced_is_indexed_again),
        cmocka_unit_test(official_archives_are_read_as_they_are),
        cmocka_unit_test(official_archives_follow_a_classes_file),
        cmocka_unit_test(official_archive_faults_are_named),
        cmocka_unit_test(tar_archives_of_the_system_are_read),
        cmocka_unit_test(tar_failing_allocations_are_reported_and_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
