/* The cache of an image index: when it is used, when the folder is scanned again, and that nothing in the file is believed. */
#include "data/images_testing.h"
#include "data/images/index_impl.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* The only file in the cache folder; false: there is none. */
static bool cache_file(const set *s, char out[1024])
{
    DIR *dir = opendir(s->cache);
    int files = 0;
    if (!dir) return false;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(out, 1024, "%s/%s", s->cache, entry->d_name);
        assert_int_equal(strncmp(entry->d_name, "images-", 7), 0);
        assert_int_equal(strlen(entry->d_name), strlen("images-0123456789abcdef.index"));
        files++;
    }
    closedir(dir);
    assert_true(files <= 1);
    return files == 1;
}

static bytes read_file(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    bytes b = bytes_make((size_t)info.st_size);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(b.data, 1, b.n, file), b.n);
    fclose(file);
    return b;
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* Opens and closes; whether the cache was used. */
static bool opens_from_cache(set *s, const abar__images_request *request, const char *train)
{
    abar__images_index *index = open_with(s, request);
    const bool cached = abar__images_summary_of(index)->from_cache;
    if (train) check_samples(s, index, 0, train);
    assert_int_equal(abar_context_memory(s->ctx).now, abar__images_index_bytes(index));
    abar__images_close(index);
    return cached;
}

/* A set whose index is in the cache. */
static set *cached_set(void)
{
    set *s = small_set();
    settle(s);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    return s;
}

/* ---- when it is used ----------------------------------------------------------------------------------------- */

static void cache_second_open_gives_the_same_index(void **state)
{
    (void)state;
    set *s = small_set();
    put(s, "train/ant/deep/9.jpg", 9);
    put(s, "train/ant/note", 9);
    put_text(s, "words.txt", "ant the ant\n");
    put_text(s, "README", ABAR_IMAGES_SHRUNK "32\n");
    settle(s);
    abar__images_index *first = open_set(s), *second = open_set(s);
    abar__images_summary a = *abar__images_summary_of(first), b = *abar__images_summary_of(second);
    assert_false(a.from_cache);
    assert_true(b.from_cache);
    b.from_cache = false;
    assert_int_equal(a.layout, b.layout);
    assert_int_equal(a.classes, b.classes);
    assert_int_equal(a.ignored, b.ignored);
    assert_int_equal(a.untested, b.untested);
    assert_int_equal(a.fingerprint, b.fingerprint);
    assert_int_equal(b.shrunk, 32);
    for (int part = 0; part < 2; part++) {
        assert_int_equal(a.count[part], b.count[part]);
        assert_int_equal(a.bytes[part], b.bytes[part]);
    }
    check_samples(s, second, 0, "0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n0 9 train/ant/deep/9.jpg\n1 3 train/bee/3.PNG\n");
    check_samples(s, second, 1, SMALL_VAL);
    assert_string_equal(abar__images_readable(second, 0), "the ant");
    assert_null(abar__images_readable(second, 1));
    abar__images_close(first);
    abar__images_close(second);
    set_free(s);
}

static void cache_holds_the_whole_set_whatever_the_limits(void **state)
{
    (void)state;
    set *s = small_set();
    settle(s);
    const abar__images_request limited = {.limit = {2, 1}};
    assert_false(opens_from_cache(s, &limited, "0 1 train/ant/1.jpg\n1 3 train/bee/3.PNG\n"));
    assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    abar__images_index *scanned = open_with(s, &(abar__images_request){.limit = {2, 1}, .rescan = true});
    abar__images_index *cached = open_with(s, &limited);
    assert_true(abar__images_summary_of(cached)->from_cache);
    assert_int_equal(abar__images_summary_of(cached)->fingerprint, abar__images_summary_of(scanned)->fingerprint);
    abar__images_close(scanned);
    abar__images_close(cached);
    set_free(s);
}

static void cache_can_be_switched_off(void **state)
{
    (void)state;
    set *s = cached_set();
    assert_false(opens_from_cache(s, &(abar__images_request){.rescan = true}, SMALL_TRAIN));
    setenv("ABAR_CACHE", "off", 1);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_string_equal(s->log, "");
    set_free(s);
}

/* ---- when the files change ----------------------------------------------------------------------------------- */

static void cache_file_added_is_found(void **state)
{
    (void)state;
    set *s = cached_set();
    put(s, "train/bee/9.jpg", 9);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN "1 9 train/bee/9.jpg\n"));
    set_free(s);
}

static void cache_file_removed_is_found(void **state)
{
    (void)state;
    set *s = cached_set();
    remove_file(s, "train/ant/1.jpg");
    assert_false(opens_from_cache(s, NULL, "0 2 train/ant/2.jpg\n1 3 train/bee/3.PNG\n"));
    set_free(s);
}

static void cache_file_renamed_is_found(void **state)
{
    (void)state;
    set *s = cached_set();
    char from[8192], to[8192];
    path_of(s, "train/ant/1.jpg", from);
    path_of(s, "train/ant/9.jpg", to);
    assert_int_equal(rename(from, to), 0);
    assert_false(opens_from_cache(s, NULL, "0 2 train/ant/2.jpg\n0 1 train/ant/9.jpg\n1 3 train/bee/3.PNG\n"));
    set_free(s);
}

static void cache_class_added_and_directory_exchanged_are_found(void **state)
{
    (void)state;
    set *s = cached_set();
    put(s, "train/cow/1.jpg", 1);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN "2 1 train/cow/1.jpg\n"));
    set_free(s);
    s = cached_set(); /* another directory with the same times: the inode differs */
    put(s, "other/7.jpg", 7);
    char from[8192], to[8192];
    path_of(s, "other", from);
    path_of(s, "train/bee", to);
    remove_file(s, "train/bee/3.PNG");
    assert_int_equal(rename(from, to), 0);
    settle(s);
    assert_false(opens_from_cache(s, NULL, "0 1 train/ant/1.jpg\n0 2 train/ant/2.jpg\n1 7 train/bee/7.jpg\n"));
    set_free(s);
}

/* It does not touch its directory, so the cache is used; reading notices. */
static void cache_file_replaced_by_another_size_is_noticed_when_read(void **state)
{
    (void)state;
    set *s = cached_set();
    uint8_t buffer[16];
    char path[8192];
    path_of(s, "train/ant/2.jpg", path);
    write_file(path, "xxx", 3);
    abar__images_index *index = open_set(s);
    assert_true(abar__images_summary_of(index)->from_cache);
    assert_int_equal(abar__images_read(index, 0, 0, buffer), ABAR_IMAGES_READ);
    assert_int_equal(abar__images_read(index, 0, 1, buffer), ABAR_IMAGES_CHANGED);
    write_file(path, "x", 1);
    assert_int_equal(abar__images_read(index, 0, 1, buffer), ABAR_IMAGES_CHANGED);
    write_file(path, "ab", 2);
    assert_int_equal(abar__images_read(index, 0, 1, buffer), ABAR_IMAGES_READ);
    assert_memory_equal(buffer, "ab", 2);
    abar__images_close(index);
    set_free(s);
}

static void cache_of_directories_just_changed_is_not_used(void **state)
{
    (void)state;
    set *s = small_set();
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    settle(s);
    put(s, "val/bee/late.txt", 1); /* one young directory is enough */
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    set_free(s);
}

/* The clock was set back: the directory was changed in what is the future now. */
static void cache_of_directories_from_the_future_is_not_used(void **state)
{
    (void)state;
    set *s = small_set();
    char path[8192];
    settle(s);
    path_of(s, "train/bee", path);
    const struct utimbuf times = {time(NULL) + 3600, time(NULL) + 3600};
    assert_int_equal(utime(path, &times), 0);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    set_free(s);
}

/* A time that went back is as different as one that went on. */
static void cache_of_a_directory_with_an_earlier_time_is_not_used(void **state)
{
    (void)state;
    set *s = cached_set();
    char path[8192];
    put(s, "train/bee/9.jpg", 9);
    path_of(s, "train/bee", path);
    const struct utimbuf times = {time(NULL) - 90000, time(NULL) - 90000};
    assert_int_equal(utime(path, &times), 0);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN "1 9 train/bee/9.jpg\n"));
    set_free(s);
}

static void cache_belongs_to_its_classes_and_label_files(void **state)
{
    (void)state;
    set *s = small_set();
    char order[8192], labels[8192];
    put_text(s, "order.txt", "bee\nant\n");
    put_text(s, "labels.txt", "4 ant\n5 bee\n");
    path_of(s, "order.txt", order);
    path_of(s, "labels.txt", labels);
    const abar__images_request with_order = {.classes = order}, with_labels = {.val_labels = labels};
    const char *turned = "0 3 train/bee/3.PNG\n1 1 train/ant/1.jpg\n1 2 train/ant/2.jpg\n";
    settle(s);
    assert_false(opens_from_cache(s, &with_order, turned));
    assert_true(opens_from_cache(s, &with_order, turned));
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_false(opens_from_cache(s, &with_labels, SMALL_TRAIN));
    assert_true(opens_from_cache(s, &with_labels, SMALL_TRAIN));
    assert_false(opens_from_cache(s, &with_order, turned));
    write_file(order, "ant\nbee\n", 8); /* in place: its directory is the same */
    assert_false(opens_from_cache(s, &with_order, SMALL_TRAIN));
    set_free(s);
}

/* ---- the file itself ----------------------------------------------------------------------------------------- */

static void cache_that_cannot_be_written_is_a_log_line(void **state)
{
    (void)state;
    set *s = small_set();
    settle(s);
    write_file(s->cache, "a file", 6); /* where the folder should be: this stops root too */
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    check_contains(s->log, "cannot be written");
    check_contains(s->log, s->cache);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    s->log[0] = '\0';
    abar__images_index *index = open_set(s); /* what a check does: it writes once more, with what it has found */
    assert_int_equal(abar__images_keep(index, NULL), ABAR_OK);
    const char *first = strstr(s->log, "cannot be written");
    assert_non_null(first);
    assert_null(strstr(first + 1, "cannot be written")); /* it is said once */
    abar__images_close(index);
    set_free(s);
}

static void cache_in_a_read_only_folder_is_a_log_line(void **state)
{
    (void)state;
    set *s = small_set();
    settle(s);
    assert_int_equal(mkdir(s->cache, 0555), 0);
    assert_int_equal(chmod(s->f.path, 0755), 0);
    const bool root = geteuid() == 0;
    if (root) assert_int_equal(seteuid(65534), 0);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    if (root) assert_int_equal(seteuid(0), 0);
    check_contains(s->log, "cannot be written (Permission denied)");
    set_free(s);
}

static void cache_cut_short_or_foreign_is_replaced(void **state)
{
    (void)state;
    set *s = cached_set();
    char path[1024];
    assert_true(cache_file(s, path));
    const bytes good = read_file(path);
    static const char foreign[4096] = "something else";
    const size_t lengths[] = {0, 1, sizeof(abar__images_head), good.n / 2, good.n - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_file(path, good.data, lengths[i]);
        assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
        assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    }
    write_file(path, foreign, sizeof foreign);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0); /* not even a file */
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_true(cache_file(s, path)); /* nothing temporary stays beside it */
    assert_int_equal(rmdir(path), 0);
    set *other = set_make();
    put(other, "train/z/1.jpg", 1);
    put(other, "val/z/1.jpg", 1);
    settle(other);
    assert_false(opens_from_cache(other, NULL, NULL));
    char others[1024];
    assert_true(cache_file(other, others));
    const bytes theirs = read_file(others);
    write_file(path, theirs.data, theirs.n); /* whole, but of another folder */
    setenv("ABAR_CACHE", s->cache, 1);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    const bytes again = read_file(path);
    assert_int_equal(again.n, good.n);
    free(good.data);
    free(theirs.data);
    free(again.data);
    set_free(s);
    set_free(other);
}

/* The hashes of two paths may be equal. */
static void cache_of_a_folder_with_another_name_is_not_used(void **state)
{
    (void)state;
    set *s = cached_set();
    char path[1024], data[300];
    assert_true(cache_file(s, path));
    const bytes good = read_file(path);
    assert_int_equal(unlink(path), 0);
    snprintf(data, sizeof data, "%.290s-moved", s->data);
    assert_int_equal(rename(s->data, data), 0);
    snprintf(s->data, sizeof s->data, "%s", data);
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_true(cache_file(s, path));
    write_file(path, good.data, good.n); /* the same directories, but it has the old paths */
    assert_false(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    free(good.data);
    set_free(s);
}

/* Every truncation and every changed byte is noticed. */
static void cache_damage_anywhere_is_noticed(void **state)
{
    (void)state;
    set *s = cached_set();
    char path[1024];
    assert_true(cache_file(s, path));
    const bytes good = read_file(path);
    bytes copy = bytes_make(good.n);
    abar__images_index index = {.ctx = s->ctx};
    for (size_t i = 0; i < 2 * good.n; i++) {
        memcpy(copy.data, good.data, good.n);
        if (i < good.n) copy.data[i] ^= (uint8_t)(1 << i % 8);
        const size_t n = i < good.n ? good.n : i - good.n;
        assert_int_equal(abar__images_cache_parse(&index, copy.data, n), ABAR_E_FORMAT);
        assert_null(index.block);
        assert_null(index.section[0]);
    }
    assert_int_equal(abar__images_cache_parse(&index, good.data, good.n), ABAR_OK);
    free(good.data);
    free(copy.data);
    set_free(s);
}

static void cache_failing_allocation_is_reported(void **state)
{
    (void)state;
    set *s = cached_set();
    const abar__images_request request = {.folder = s->data, .limit = {1, 1}};
    abar__images_index *index;
    for (long k = 1; k <= 2; k++) {
        s->memory = (failing){.fail_at = k};
        assert_int_equal(abar__images_open(s->ctx, &request, &index), ABAR_E_MEMORY);
        assert_int_equal(abar_context_memory(s->ctx).now, 0);
    }
    s->memory = (failing){0};
    set_free(s);
}

/* ---- what a killed process leaves ---------------------------------------------------------------------------- */

static void cache_temporary_file_of_a_killed_process_is_removed(void **state)
{
    (void)state;
    set *s = cached_set();
    char path[1024], temporary[1100];
    assert_true(cache_file(s, path));
    snprintf(temporary, sizeof temporary, "%s.4711-55d0c0ffee", path);
    write_file(temporary, "half", 4);
    assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_int_equal(access(temporary, F_OK), -1);
    set_free(s);
}

/* ---- several at once ----------------------------------------------------------------------------------------- */

static void *scan_often(void *user)
{
    const set *s = user;
    abar_context *ctx = plain_context();
    for (int i = 0; i < 10; i++) {
        const abar__images_request request = {.folder = s->data, .rescan = i % 2 == 0};
        abar__images_index *index;
        if (abar__images_open(ctx, &request, &index) != ABAR_OK) return "failed";
        const bool right = abar__images_summary_of(index)->count[0] == 3 && abar__images_size(index, 0, 2) == 3;
        abar__images_close(index);
        if (!right) return "wrong";
    }
    abar_context_destroy(ctx);
    return NULL;
}

static void cache_scans_at_once_are_harmless(void **state)
{
    (void)state;
    set *s = small_set();
    char path[1024];
    pid_t children[2];
    pthread_t threads[3];
    settle(s);
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(scan_often(s) ? 1 : 0);
        assert_true(children[i] > 0);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, scan_often, s), 0);
    for (int i = 0; i < 3; i++) {
        void *fault;
        assert_int_equal(pthread_join(threads[i], &fault), 0);
        assert_null(fault);
    }
    for (int i = 0; i < 2; i++) {
        int result;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_int_equal(result, 0);
    }
    assert_true(cache_file(s, path)); /* one file, nothing temporary */
    assert_true(opens_from_cache(s, NULL, SMALL_TRAIN));
    assert_string_equal(s->log, "");
    set_free(s);
}

/* ---- what a check found -------------------------------------------------------------------------------------- */

static const abar__images_known photo = {.checked = true, .header = {ABAR_IMAGE_JPEG, 500, 375, 3, true}, .crc = 0x12345678};
static const abar__images_known drawing = {
    .checked = true, .damaged = true, .header = {ABAR_IMAGE_PNG, 65500, 1, 4, false}, .crc = UINT32_MAX};

static void check_known(const abar__images_index *index, int part, int64_t i, const abar__images_known *expected)
{
    const abar__images_known found = abar__images_known_of(index, part, i);
    assert_int_equal(found.checked, expected->checked);
    assert_int_equal(found.damaged, expected->damaged);
    assert_int_equal(found.crc, expected->crc);
    assert_int_equal(found.header.format, expected->header.format);
    assert_int_equal(found.header.width, expected->header.width);
    assert_int_equal(found.header.height, expected->header.height);
    assert_int_equal(found.header.components, expected->header.components);
    assert_int_equal(found.header.progressive, expected->header.progressive);
}

static void cache_keeps_what_a_check_found(void **state)
{
    (void)state;
    set *s = cached_set();
    const abar__images_known nothing = {0};
    int64_t largest;
    int32_t width, height;
    abar__images_index *index = open_with(s, &(abar__images_request){.limit = {2, 0}});
    abar__images_know(index, 0, 1, &photo); /* the third of all */
    abar__images_know(index, 1, 0, &drawing);
    assert_int_equal(abar__images_keep(index, NULL), ABAR_OK);
    abar__images_close(index);
    index = open_set(s);
    assert_true(abar__images_summary_of(index)->from_cache);
    check_known(index, 0, 0, &nothing);
    check_known(index, 0, 2, &photo);
    check_known(index, 1, 0, &drawing);
    abar__images_largest(index, &largest, &width, &height);
    assert_int_equal(largest, 5);
    assert_int_equal(width, 0); /* not all were checked */
    assert_int_equal(height, 0);
    abar__images_know(index, 0, 0, &photo);
    abar__images_know(index, 0, 1, &photo);
    abar__images_know(index, 1, 1, &photo);
    abar__images_largest(index, &largest, &width, &height);
    assert_int_equal(width, 500); /* the damaged one does not count */
    assert_int_equal(height, 375);
    abar__images_close(index);
    set_free(s);
}

/* The scan was too early to be trusted; by the time the check ends a new one is. */
static void cache_keeps_what_a_check_found_after_an_early_scan(void **state)
{
    (void)state;
    set *s = small_set();
    abar__images_index *index = open_set(s);
    abar__images_know(index, 0, 2, &photo);
    settle(s);
    assert_int_equal(abar__images_keep(index, NULL), ABAR_OK);
    abar__images_close(index);
    index = open_set(s);
    assert_true(abar__images_summary_of(index)->from_cache);
    check_known(index, 0, 2, &photo);
    abar__images_close(index);
    put(s, "train/bee/9.jpg", 9);
    index = open_set(s);
    abar__images_know(index, 0, 3, &photo);
    put(s, "train/bee/0.jpg", 9); /* other files by now: nothing is kept */
    settle(s);
    assert_int_equal(abar__images_keep(index, NULL), ABAR_OK);
    abar__images_close(index);
    index = open_set(s);
    for (int64_t i = 0; i < abar__images_summary_of(index)->count[0]; i++)
        assert_false(abar__images_known_of(index, 0, i).checked);
    abar__images_close(index);
    set_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_second_open_gives_the_same_index),
        cmocka_unit_test(cache_holds_the_whole_set_whatever_the_limits),
        cmocka_unit_test(cache_can_be_switched_off),
        cmocka_unit_test(cache_file_added_is_found),
        cmocka_unit_test(cache_file_removed_is_found),
        cmocka_unit_test(cache_file_renamed_is_found),
        cmocka_unit_test(cache_class_added_and_directory_exchanged_are_found),
        cmocka_unit_test(cache_file_replaced_by_another_size_is_noticed_when_read),
        cmocka_unit_test(cache_of_directories_just_changed_is_not_used),
        cmocka_unit_test(cache_of_directories_from_the_future_is_not_used),
        cmocka_unit_test(cache_of_a_directory_with_an_earlier_time_is_not_used),
        cmocka_unit_test(cache_belongs_to_its_classes_and_label_files),
        cmocka_unit_test(cache_that_cannot_be_written_is_a_log_line),
        cmocka_unit_test(cache_in_a_read_only_folder_is_a_log_line),
        cmocka_unit_test(cache_cut_short_or_foreign_is_replaced),
        cmocka_unit_test(cache_of_a_folder_with_another_name_is_not_used),
        cmocka_unit_test(cache_damage_anywhere_is_noticed),
        cmocka_unit_test(cache_failing_allocation_is_reported),
        cmocka_unit_test(cache_temporary_file_of_a_killed_process_is_removed),
        cmocka_unit_test(cache_scans_at_once_are_harmless),
        cmocka_unit_test(cache_keeps_what_a_check_found),
        cmocka_unit_test(cache_keeps_what_a_check_found_after_an_early_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
