/* The index of image files in folders: the layouts, the order of samples, files and links, limits, the fingerprint. */
#include "data/images_testing.h"

/* ---- layouts and order --------------------------------------------------------------------------------------- */

static void index_folders_are_read_in_order(void **state)
{
    (void)state;
    set *s = small_set();
    put_text(s, "train/notes.txt", "n");
    put(s, "train/loose.jpg", 7); /* in no class */
    put(s, "train/ant/.hidden.jpg", 7);
    put(s, "train/ant/boxes.txt", 7);
    put(s, "val/ant/.git/a.jpg", 7);
    abar__images_index *index = open_set(s);
    const abar__images_summary *sum = abar__images_summary_of(index);
    check_samples(s, index, 0, SMALL_TRAIN);
    check_samples(s, index, 1, SMALL_VAL);
    assert_int_equal(sum->layout, ABAR_LAYOUT_FOLDERS);
    assert_int_equal(sum->classes, 2);
    assert_int_equal(sum->ignored, 5);
    assert_int_equal(sum->untested, 0);
    assert_int_equal(sum->bytes[0], 6);
    assert_int_equal(sum->bytes[1], 9);
    assert_int_equal(sum->shrunk, 0);
    assert_string_equal(abar__images_class(index, 1), "bee");
    assert_null(abar__images_readable(index, 1));
    assert_int_equal(abar_context_memory(s->ctx).now, abar__images_index_bytes(index));
    abar__images_close(index);
    set_free(s);
}

/* As torchvision orders them: directories as whole strings, where '-' is less than '/'. */
static void index_deeper_files_follow_by_directory_then_name(void **state)
{
    (void)state;
    set *s = small_set();
    put(s, "train/ant/a/b/1.jpg", 1);
    put(s, "train/ant/a-b/1.jpg", 1);
    put(s, "train/ant/a/9.jpg", 1);
    put(s, "train/ant/Z.jpg", 1);
    abar__images_index *index = open_set(s);
    check_samples(s, index, 0,
                  "0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n0 1 train/ant/Z.jpg\n0 1 train/ant/a/9.jpg\n"
                  "0 1 train/ant/a-b/1.jpg\n0 1 train/ant/a/b/1.jpg\n1 3 train/bee/3.PNG\n");
    abar__images_close(index);
    set_free(s);
}

static void index_classes_are_in_the_order_of_bytes(void **state)
{
    (void)state;
    set *s = set_make();
    static const char *const names[] = {"B", "a", "a b", "a-b", "b", "\xc3\xa4", "\xff"};
    for (int i = 6; i >= 0; i--) {
        char path[64];
        snprintf(path, sizeof path, "train/%s/1.jpg", names[i]);
        put(s, path, 1);
        snprintf(path, sizeof path, "val/%s/1.jpg", names[i]);
        if (i != 3) put(s, path, 1);
    }
    abar__images_index *index = open_set(s);
    for (int i = 0; i < 7; i++) assert_string_equal(abar__images_class(index, i), names[i]);
    assert_int_equal(abar__images_summary_of(index)->untested, 1);
    check_contains(s->log, "classes without images in the test part: 1\n");
    abar__images_close(index);
    set_free(s);
}

static void index_validation_and_test_stand_in_for_val(void **state)
{
    (void)state;
    set *s = set_make();
    put(s, "train/a/1.jpg", 1);
    put(s, "test/a/2.jpg", 2);
    abar__images_index *index = open_set(s);
    check_samples(s, index, 1, "0 2 test/a/2.jpg\n");
    abar__images_close(index);
    put(s, "validation/a/3.jpg", 3);
    index = open_set(s);
    check_samples(s, index, 1, "0 3 validation/a/3.jpg\n");
    abar__images_close(index);
    put(s, "val/a/4.jpg", 4);
    index = open_set(s);
    check_samples(s, index, 1, "0 4 val/a/4.jpg\n");
    abar__images_close(index);
    set_free(s);
}

static void index_tiny_imagenet_takes_labels_from_its_file(void **state)
{
    (void)state;
    set *s = tiny_set();
    abar__images_index *index = open_set(s);
    check_samples(s, index, 0,
                  "0 3 train/n01/images/n01_0.JPEG\n0 2 train/n01/images/n01_1.JPEG\n1 1 train/n02/images/n02_0.JPEG\n");
    check_samples(s, index, 1, "0 5 val/images/val_1.JPEG\n1 4 val/images/val_0.JPEG\n1 6 val/images/val_10.JPEG\n");
    assert_int_equal(abar__images_summary_of(index)->layout, ABAR_LAYOUT_TINY);
    assert_string_equal(abar__images_readable(index, 1), "bee, honey bee");
    assert_null(abar__images_readable(index, 0));
    abar__images_close(index);
    set_free(s);
}

/* Kaggle's: val/ without directories, the labels beside it. */
static void index_loose_test_images_take_labels_from_a_file(void **state)
{
    (void)state;
    set *s = set_make();
    put(s, "train/n01/1.JPEG", 1);
    put(s, "train/n02/1.JPEG", 1);
    put(s, "val/ILSVRC2012_val_00000001.JPEG", 2);
    put(s, "val/ILSVRC2012_val_00000002.JPEG", 3);
    open_fails(s, ABAR_E_NOT_FOUND, "val", "no label file, see --val-labels");
    put_text(
        s, "LOC_val_solution.csv",
        "ImageId,PredictionString\r\nILSVRC2012_val_00000002,n01 85 1 499 272 \r\nILSVRC2012_val_00000001,n02 1 2 3 4\r\n");
    put_text(s, "LOC_synset_mapping.txt", "n01 tench, Tinca tinca\nn02 goldfish\n");
    abar__images_index *index = open_set(s);
    check_samples(s, index, 1, "0 3 val/ILSVRC2012_val_00000002.JPEG\n1 2 val/ILSVRC2012_val_00000001.JPEG\n");
    assert_string_equal(abar__images_readable(index, 0), "tench, Tinca tinca");
    abar__images_close(index);
    remove_file(s, "LOC_val_solution.csv");
    put_text(s, "val/imagenet_2012_validation_synset_labels.txt", "n02\nn02\n\n");
    index = open_set(s);
    check_samples(s, index, 1, "1 2 val/ILSVRC2012_val_00000001.JPEG\n1 3 val/ILSVRC2012_val_00000002.JPEG\n");
    abar__images_close(index);
    set_free(s);
}

/* Tiny ImageNet whose test images were moved into classes: the file that stayed behind does not matter. */
static void index_classes_of_the_test_part_come_before_label_files(void **state)
{
    (void)state;
    set *s = small_set();
    put_text(s, "val/val_annotations.txt", "4.jpeg\tbee\n");
    put(s, "val/stray.jpg", 6);
    abar__images_index *index = open_set(s);
    check_samples(s, index, 1, SMALL_VAL);
    assert_int_equal(abar__images_summary_of(index)->layout, ABAR_LAYOUT_FOLDERS);
    assert_int_equal(abar__images_summary_of(index)->ignored, 2);
    abar__images_close(index);
    set_free(s);
}

static void index_requested_label_file_comes_first(void **state)
{
    (void)state;
    set *s = tiny_set();
    char path[8192];
    put_text(s, "own.txt", "images/val_0 n01\nimages/val_1 n01\nval_10.JPEG n01\n");
    path_of(s, "own.txt", path);
    abar__images_index *index = open_with(s, &(abar__images_request){.val_labels = path});
    check_samples(s, index, 1, "0 4 val/images/val_0.JPEG\n0 5 val/images/val_1.JPEG\n0 6 val/images/val_10.JPEG\n");
    abar__images_close(index);
    set_free(s);
}

static void index_unknown_layouts_say_what_was_expected(void **state)
{
    (void)state;
    set *s = set_make();
    open_fails(s, ABAR_E_NOT_FOUND, "", "expected train/CLASS/ and val/CLASS/ with images");
    open_fails(s, ABAR_E_NOT_FOUND, "", "found nothing");
    put(s, "pictures/a/1.jpg", 1);
    put(s, "readme", 1);
    open_fails(s, ABAR_E_NOT_FOUND, "", "found pictures/, readme");
    put(s, "train/a/1.jpg", 1);
    open_fails(s, ABAR_E_NOT_FOUND, "", "has train/ but no val/");
    set_free(s);
}

static void index_missing_folder_is_named(void **state)
{
    (void)state;
    set *s = set_make();
    assert_int_equal(rmdir(s->data), 0);
    open_fails(s, ABAR_E_NOT_FOUND, "", "no such file or folder");
    set_free(s);
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static void index_formats_that_are_not_read_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"a.bmp", "a.GIF", "a.ppm", "a.pgm", "a.tif", "a.TIFF", "a.webp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        set *s = small_set();
        char path[64];
        snprintf(path, sizeof path, "%s/deep/%s", i % 2 ? "val/ant" : "train/bee", names[i]);
        put(s, path, 1);
        open_fails(s, ABAR_E_UNSUPPORTED, path, "is of a format that abar does not read");
        set_free(s);
    }
}

static void index_names_like_images_that_are_no_files_are_refused(void **state)
{
    (void)state;
    set *s = small_set();
    char path[8192];
    path_of(s, "train/ant/pipe.jpg", path);
    assert_int_equal(mkfifo(path, 0644), 0);
    open_fails(s, ABAR_E_FORMAT, "train/ant/pipe.jpg", "is no file");
    remove_file(s, "train/ant/pipe.jpg");
    make_link(s, "nowhere", "train/ant/gone.jpg");
    open_fails(s, ABAR_E_NOT_FOUND, "train/ant/gone.jpg", "no such file");
    remove_file(s, "train/ant/gone.jpg");
    make_link(s, "nowhere", "train/ant/gone.txt");
    put(s, "train/ant/folder.jpg/6.jpg", 6);
    abar__images_index *index = open_set(s);
    assert_int_equal(abar__images_summary_of(index)->ignored, 1);
    check_samples(s, index, 0,
                  "0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n0 6 train/ant/folder.jpg/6.jpg\n1 3 train/bee/3.PNG\n");
    abar__images_close(index);
    set_free(s);
}

static void index_links_are_followed(void **state)
{
    (void)state;
    set *s = small_set();
    put(s, "../elsewhere/8.jpg", 8);
    make_link(s, "../../elsewhere", "train/cow");
    make_link(s, "../../../elsewhere/8.jpg", "train/ant/link.jpg");
    make_link(s, "../ant", "train/bee/ants"); /* reachable twice counts twice */
    abar__images_index *index = open_set(s);
    check_samples(s, index, 0,
                  "0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n0 8 train/ant/link.jpg\n1 3 train/bee/3.PNG\n"
                  "1 1 train/bee/ants/1.jpg\n1 2 train/bee/ants/2.jpg\n1 8 train/bee/ants/link.jpg\n2 8 train/cow/8.jpg\n");
    abar__images_close(index);
    set_free(s);
}

static void index_directory_that_contains_itself_is_refused(void **state)
{
    (void)state;
    static const char *const targets[] = {".", "..", "../..", "../../.."};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        set *s = small_set();
        make_link(s, targets[i], "train/ant/again");
        open_fails(s, ABAR_E_FORMAT, "train/ant/again", "is a link to a directory that contains it");
        set_free(s);
    }
    set *s = small_set();
    make_link(s, "loop", "train/ant/loop");
    abar__images_close(open_set(s)); /* a link to itself is nothing */
    make_link(s, "loop.jpg", "train/ant/loop.jpg");
    open_fails(s, ABAR_E_IO, "train/ant/loop.jpg", "is a link that leads back to itself");
    set_free(s);
}

/* Root may read everything: it becomes somebody else for the test. */
static void check_denied(set *s, const char *name)
{
    char path[8192];
    path_of(s, name, path);
    assert_int_equal(chmod(s->f.path, 0755), 0);
    assert_int_equal(chmod(path, 0), 0);
    setenv("ABAR_CACHE", "off", 1);
    const bool root = geteuid() == 0;
    if (root) assert_int_equal(seteuid(65534), 0);
    open_fails(s, ABAR_E_IO, name, "permission denied");
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

static void index_unreadable_files_and_directories_are_named(void **state)
{
    (void)state;
    set *s = small_set();
    put(s, "train/ant/deep/7.jpg", 7);
    check_denied(s, "train/ant/2.jpg");
    check_denied(s, "train/ant/deep");
    check_denied(s, "val");
    check_denied(s, "");
    abar__images_close(open_set(s));
    set_free(s);
}

static void index_long_paths_are_read_or_refused(void **state)
{
    (void)state;
    set *s = small_set();
    char name[256], path[8192], command[9300];
    memset(name, 'd', 255);
    name[255] = '\0';
    path_of(s, "train/ant", path);
    /* made from inside, because no path of the system may have more than 4095 bytes */
    snprintf(
        command, sizeof command,
        "cd '%s' && for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do mkdir %s && cd -P %s || exit 1; done && echo x > 1.jpg",
        path, name, name);
    assert_int_equal(system(command), 0);
    abar__images_index *index = open_set(s);
    char shown[64];
    uint8_t buffer[2];
    assert_int_equal(abar__images_size(index, 0, 2), 2);
    abar__images_name(index, 0, 2, shown, sizeof shown);
    assert_int_equal(strlen(shown), 63);
    assert_memory_equal(shown, s->data, 21); /* a third, for the beginning */
    assert_memory_equal(shown + 21, "...ddd", 6);
    assert_string_equal(shown + 57, "/1.jpg");
    assert_int_equal(abar__images_read(index, 0, 2, buffer), ABAR_IMAGES_READ);
    abar__images_close(index);
    snprintf(command, sizeof command,
             "cd '%s' && for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do cd -P %s || exit 1; done && mkdir %s && cd -P %s && "
             "echo x > 1.jpg",
             path, name, name, name);
    assert_int_equal(system(command), 0);
    abar__images_request request = {.folder = s->data};
    index = NULL;
    assert_int_equal(abar__images_open(s->ctx, &request, &index), ABAR_E_UNSUPPORTED);
    check_contains(abar_context_error(s->ctx), "the path has more than 4095 bytes");
    set_free(s);
}

static void index_names_of_any_bytes_are_read_and_printed_escaped(void **state)
{
    (void)state;
    set *s = small_set();
    put(s, "train/ant/\x01\n\xff\xc3\xa4\xc2\x80.jpg", 6);
    put(s, "train/a\xfe\nz/1.jpg", 7);
    abar__images_index *index = open_set(s);
    uint8_t buffer[7];
    check_samples(s, index, 0,
                  "0 6 train/ant/\\x01\\x0a\\xff\xc3\xa4\\xc2\\x80.jpg\n0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n"
                  "1 7 train/a\\xfe\\x0az/1.jpg\n2 3 train/bee/3.PNG\n");
    assert_int_equal(abar__images_read(index, 0, 0, buffer), ABAR_IMAGES_READ);
    abar__images_close(index);
    put(s, "train/a\xfe\nz/x.gif", 1);
    open_fails(s, ABAR_E_UNSUPPORTED, "train/a\\xfe\\x0az/x.gif", "does not read");
    set_free(s);
}

/* ---- limits -------------------------------------------------------------------------------------------------- */

static void index_limits_take_the_first_of_every_class_in_turn(void **state)
{
    (void)state;
    set *s = set_make();
    static const char *const files[] = {"a/1", "a/2", "a/3", "a/4", "b/1", "c/1", "c/2", "c/3", "d/1", "d/2"};
    char path[64];
    for (size_t i = 0; i < 10; i++) {
        snprintf(path, sizeof path, "train/%s.jpg", files[i]);
        put(s, path, i + 1);
        snprintf(path, sizeof path, "val/%s.jpg", files[i]);
        put(s, path, i + 1);
    }
    static const char *const expected[] = {"abcdefghij", "a",       "ae",       "aef",       "aefi",       "abefi",
                                           "abefgi",     "abefgij", "abcefgij", "abcefghij", "abcdefghij", "abcdefghij"};
    uint64_t before = 0;
    for (int n = 0; n < 12; n++) {
        abar__images_index *index = open_with(s, &(abar__images_request){.limit = {n, n == 11 ? 2 : 0}});
        const abar__images_summary *sum = abar__images_summary_of(index);
        char found[16] = "";
        int64_t total = 0;
        assert_int_equal(sum->count[0], strlen(expected[n]));
        assert_int_equal(sum->count[1], n == 11 ? 2 : 10);
        for (int64_t i = 0; i < sum->count[0]; i++) {
            found[i] = (char)('a' + abar__images_size(index, 0, i) - 1);
            total += abar__images_size(index, 0, i);
        }
        assert_string_equal(found, expected[n]);
        assert_int_equal(sum->bytes[0], total);
        assert_int_not_equal(sum->fingerprint, before);
        before = sum->fingerprint;
        abar__images_close(index);
    }
    set_free(s);
}

/* ---- the fingerprint ----------------------------------------------------------------------------------------- */

static uint64_t fingerprint(set *s)
{
    abar__images_index *index = open_set(s);
    const uint64_t value = abar__images_summary_of(index)->fingerprint;
    abar__images_close(index);
    return value;
}

static void index_fingerprint_follows_names_sizes_labels_and_classes(void **state)
{
    (void)state;
    set *s = small_set(), *same = small_set();
    const uint64_t first = fingerprint(s);
    assert_int_equal(fingerprint(s), first);
    setenv("ABAR_CACHE", same->cache, 1);
    assert_int_equal(fingerprint(same), first); /* where it is does not matter */
    put(s, "train/ant/2.jpg", 9);
    const uint64_t resized = fingerprint(s);
    assert_int_not_equal(resized, first);
    put(s, "train/ant/2.jpg", 2);
    assert_int_equal(fingerprint(s), first);
    remove_file(s, "train/ant/2.jpg");
    put(s, "train/ant/2.jpeg", 2);
    assert_int_not_equal(fingerprint(s), first);
    set_free(s);
    set_free(same);
}

/* ---- shrunk copies ------------------------------------------------------------------------------------------- */

static void index_readme_of_a_shrunk_copy_is_understood(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t side;
    } cases[] = {
        {ABAR_IMAGES_SHRUNK "256, made from /data/imagenet\nmore\n", 256},
        {ABAR_IMAGES_SHRUNK "64", 64},
        {"These are photographs.\n" ABAR_IMAGES_SHRUNK "64\n", 0},
        {"", 0},
        {ABAR_IMAGES_SHRUNK "small\n", -1},
        {ABAR_IMAGES_SHRUNK "-5\n", -1},
        {ABAR_IMAGES_SHRUNK "99999999999999999999\n", -1},
    };
    set *s = small_set();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(s, ABAR_IMAGES_README, cases[i].text);
        if (cases[i].side < 0) {
            open_fails(s, ABAR_E_FORMAT, ABAR_IMAGES_README, "has no short side");
            continue;
        }
        abar__images_index *index = open_set(s);
        assert_int_equal(abar__images_summary_of(index)->shrunk, cases[i].side);
        abar__images_close(index);
    }
    set_free(s);
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static void index_failing_allocations_are_reported_and_leak_nothing(void **state)
{
    (void)state;
    set *s = tiny_set();
    put_text(s, "order.txt", "n02\nn01\n");
    char path[8192];
    path_of(s, "order.txt", path);
    const abar__images_request request = {.folder = s->data, .classes = path, .limit = {2, 2}};
    abar__images_index *index = NULL;
    abar_status status;
    long k = 0;
    do {
        s->memory = (failing){.fail_at = ++k};
        status = abar__images_open(s->ctx, &request, &index);
        if (status == ABAR_OK) break;
        assert_int_equal(status, ABAR_E_MEMORY);
        assert_int_equal(abar_context_memory(s->ctx).now, 0);
    } while (k < 1000);
    assert_int_equal(status, ABAR_OK);
    assert_true(k > 20);
    s->memory = (failing){0};
    abar__images_close(index);
    set_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(index_folders_are_read_in_order),
        cmocka_unit_test(index_deeper_files_follow_by_directory_then_name),
        cmocka_unit_test(index_classes_are_in_the_order_of_bytes),
        cmocka_unit_test(index_validation_and_test_stand_in_for_val),
        cmocka_unit_test(index_tiny_imagenet_takes_labels_from_its_file),
        cmocka_unit_test(index_loose_test_images_take_labels_from_a_file),
        cmocka_unit_test(index_classes_of_the_test_part_come_before_label_files),
        cmocka_unit_test(index_requested_label_file_comes_first),
        cmocka_unit_test(index_unknown_layouts_say_what_was_expected),
        cmocka_unit_test(index_missing_folder_is_named),
        cmocka_unit_test(index_formats_that_are_not_read_are_refused),
        cmocka_unit_test(index_names_like_images_that_are_no_files_are_refused),
        cmocka_unit_test(index_links_are_followed),
        cmocka_unit_test(index_directory_that_contains_itself_is_refused),
        cmocka_unit_test(index_unreadable_files_and_directories_are_named),
        cmocka_unit_test(index_long_paths_are_read_or_refused),
        cmocka_unit_test(index_names_of_any_bytes_are_read_and_printed_escaped),
        cmocka_unit_test(index_limits_take_the_first_of_every_class_in_turn),
        cmocka_unit_test(index_fingerprint_follows_names_sizes_labels_and_classes),
        cmocka_unit_test(index_readme_of_a_shrunk_copy_is_understood),
        cmocka_unit_test(index_failing_allocations_are_reported_and_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
