/* Images in tar archives: shards, ImageNet's official archives, and reading samples from all of them. */
#include "data/images_testing.h"

/* ---- shards -------------------------------------------------------------------------------------------------- */

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

static void shards_are_told_apart_by_their_names(void **state)
{
    (void)state;
    set *s = shard_set();
    put(s, "other.tar", 9);
    abar__images_index *index = open_set(s);
    check_samples(s, index, 0, SHARD_TRAIN);
    assert_int_equal(abar__images_summary_of(index)->ignored, 4);
    abar__images_close(index);
    put(s, "train-val.tar", 9);
    open_fails(s, ABAR_E_FORMAT, "train-val.tar", "is named both train and val");
    remove_file(s, "val.tar"); /* no shards any more */
    open_fails(s, ABAR_E_NOT_FOUND, "", "has no layout that abar knows");
    set_free(s);
    s = small_set(); /* archives beside an image folder do not matter */
    put(s, "train-val.tar", 9);
    put(s, "train/ant.tar", 9);
    index = open_set(s);
    check_samples(s, index, 0, SMALL_TRAIN);
    abar__images_close(index);
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
    put_tar(s, "val.tar", &t); /* in place: the directory is as it was, and now the times are too */
    settle(s);
    assert_int_equal(abar__images_read(index, 1, 0, buffer), ABAR_IMAGES_CHANGED);
    abar__images_close(index);
    index = open_set(s);
    assert_false(abar__images_summary_of(index)->from_cache);
    check_samples(s, index, 1, "1 700 val.tar/w.jpg\n");
    check_bytes(index, 1, 0, 'w');
    abar__images_close(index);
    set_free(s);
}

/* ---- the official archives ----------------------------------------------------------------------------------- */

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
        cmocka_unit_test(shards_are_read_in_the_order_of_their_members),
        cmocka_unit_test(shards_in_folders_take_classes_from_their_file),
        cmocka_unit_test(shards_are_told_apart_by_their_names),
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
