/* The classes of an image set, their order and names, and the label files of test parts; each rule broken once. */
#include "data/images_testing.h"

/* ---- classes ------------------------------------------------------------------------------------------------- */

static void labels_classes_file_gives_order_and_readable_names(void **state)
{
    (void)state;
    set *s = small_set();
    char path[8192];
    put_text(s, "order.txt", "bee\tthe bee\nant\n");
    put_text(s, "words.txt", "bee another\nant the ant\n");
    path_of(s, "order.txt", path);
    const abar__images_request request = {.classes = path};
    abar__images_index *index = open_with(s, &request);
    check_samples(s, index, 0, "0 3 train/bee/3.PNG\n1 1 train/ant/1.jpg\n1 2 train/ant/2.jpg\n");
    check_samples(s, index, 1, "0 5 val/bee/5.JPG\n1 4 val/ant/4.jpeg\n");
    assert_string_equal(abar__images_readable(index, 0), "the bee");
    assert_string_equal(abar__images_readable(index, 1), "the ant");
    abar__images_close(index);
    static const struct {
        const char *text, *reason;
    } faults[] = {
        {"bee\n", "lacks the class ant of train"},
        {"bee\nant\ncat\n", "names the class cat, which train lacks"},
        {"bee\nant\nbee\n", "names the class bee twice, in line 3"},
        {"bee\n\nant\n", "line 2 has no class name"},
        {"\n\n", "names no class"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        put_text(s, "order.txt", faults[i].text);
        open_fails_with(s, &request, ABAR_E_FORMAT, "order.txt", faults[i].reason);
    }
    put_bytes(s, "order.txt", "ant\nb\0e\n", 8);
    open_fails_with(s, &request, ABAR_E_FORMAT, "order.txt", "is not a text file");
    put_text(s, "order.txt", "");
    open_fails_with(s, &request, ABAR_E_FORMAT, "order.txt", "is empty");
    remove_file(s, "order.txt");
    open_fails_with(s, &request, ABAR_E_NOT_FOUND, "order.txt", "no such file");
    set_free(s);
}

static void labels_classes_of_both_parts_must_agree(void **state)
{
    (void)state;
    set *s = small_set();
    make_folder(s, "train/empty");
    put(s, "train/empty/deeper/notes.txt", 1);
    open_fails(s, ABAR_E_NOT_FOUND, "train/empty", "has no images");
    put(s, "train/empty/deeper/1.jpg", 1);
    put(s, "val/wasp/1.jpg", 1);
    open_fails(s, ABAR_E_FORMAT, "val/wasp", "is a class that train lacks");
    set_free(s);
    s = set_make();
    put(s, "train/1.jpg", 1);
    put(s, "val/a/1.jpg", 1);
    open_fails(s, ABAR_E_NOT_FOUND, "train", "has no directories, put each class into one");
    put(s, "train/a/1.jpg", 1);
    remove_file(s, "val/a/1.jpg");
    open_fails(s, ABAR_E_NOT_FOUND, "", "its test part has no images");
    set_free(s);
}

/* ---- label files --------------------------------------------------------------------------------------------- */

static void labels_files_of_every_separator_are_read(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "val_0.JPEG\tn02\nval_1.JPEG\tn01\nval_10.JPEG\tn02\n",
        "val_0 n02 1 2\nval_10 n02\nval_1 n01",
        "ImageId,Class\nval_10.JPEG,n02\nval_1,n01,extra\nval_0.JPEG,n02 5\n",
        "n02\nn01\nn02\n",
        "n02\r\nn01\r\nn02\r\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        set *s = tiny_set();
        put_text(s, "val/val_annotations.txt", texts[i]);
        abar__images_index *index = open_set(s);
        check_samples(s, index, 1, "0 5 val/images/val_1.JPEG\n1 4 val/images/val_0.JPEG\n1 6 val/images/val_10.JPEG\n");
        abar__images_close(index);
        set_free(s);
    }
}

static void labels_classes_with_spaces_are_found_in_label_files(void **state)
{
    (void)state;
    static const char *const texts[] = {"1.jpg\tred fox\n2.jpg\tfox\n", "1.jpg,red fox\n2.jpg,fox\n", "red fox\nfox\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        set *s = set_make();
        put(s, "train/red fox/1.jpg", 1);
        put(s, "train/fox/1.jpg", 1);
        put(s, "val/1.jpg", 1);
        put(s, "val/2.jpg", 1);
        put_text(s, "val_annotations.txt", texts[i]);
        abar__images_index *index = open_set(s);
        check_samples(s, index, 1, "0 1 val/2.jpg\n1 1 val/1.jpg\n");
        abar__images_close(index);
        set_free(s);
    }
}

static void labels_file_faults_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } faults[] = {
        {"val_0 n02\nval_1 n01\n", "has no line for the image val_10.JPEG"},
        {"val_0 n02\nval_2 n01\n", "line 2: val_2 is no image of the test part"},
        {"val_0 n02\nval_0.JPEG n02\n", "line 2: val_0.JPEG is labelled twice"},
        {"val_0 n02\nval_1 n07\n", "line 2: val_1 n07 has no class of train after the name"},
        {"val_0 n02\nval_1\n", "line 2: val_1 is neither NAME CLASS nor a class of train"},
        {"n01\nn02\n", "has 2 lines for 3 images"},
        {"n01\nn02\nn01\nn02\n", "has 4 lines for 3 images"},
        {"n01\nn07\nn01\n", "line 2: n07 is no class of train"},
        {"ImageId,Label\n", "has no line for the image val_0.JPEG"},
        {"val_0 n02\n n01\n", "line 2:  is no image of the test part"},
    };
    set *s = tiny_set();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        put_text(s, "val/val_annotations.txt", faults[i].text);
        open_fails(s, ABAR_E_FORMAT, "val/val_annotations.txt", faults[i].reason);
    }
    put_bytes(s, "val/val_annotations.txt", "val_0\0 n02\n", 11);
    open_fails(s, ABAR_E_FORMAT, "val/val_annotations.txt", "is not a text file");
    put(s, "val/images/val_0.png", 1);
    put_text(s, "val/val_annotations.txt", "val_0 n02\nval_1 n01\nval_10 n02\n");
    open_fails(s, ABAR_E_FORMAT, "val/val_annotations.txt", "line 1: val_0 is two images of different formats");
    put_text(s, "val/val_annotations.txt", "val_0.png n02\nval_0.JPEG n02\nval_1 n01\nval_10 n02\n");
    abar__images_close(open_set(s));
    set_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_classes_file_gives_order_and_readable_names),
        cmocka_unit_test(labels_classes_of_both_parts_must_agree),
        cmocka_unit_test(labels_files_of_every_separator_are_read),
        cmocka_unit_test(labels_classes_with_spaces_are_found_in_label_files),
        cmocka_unit_test(labels_file_faults_name_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
