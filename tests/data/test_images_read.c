/* Reading samples: what the file system may do in the meantime, and I/O errors that go away. pread and nanosleep are this
 * program's own, so that errors can be made and waiting takes no time. */
#include "data/images_testing.h"

#include <pthread.h>
#include <sys/syscall.h>

static int failures, failure;  /* the next so many calls of pread fail with this error */
static int64_t slept;          /* ns */
static size_t most = SIZE_MAX; /* bytes that one pread yields */

ssize_t pread(int fd, void *out, size_t n, off_t at)
{
    if (failures > 0) {
        failures--;
        errno = failure;
        return -1;
    }
    return syscall(SYS_pread64, fd, out, n < most ? n : most, at);
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    slept += (int64_t)wanted->tv_sec * 1000000000 + wanted->tv_nsec;
    return 0;
}

static set *shards(void)
{
    set *s = set_make();
    tar_text t = {0};
    tar_image(&t, "a.jpg", 3, 'a');
    tar_number(&t, "a.cls", "0");
    put_tar(s, "train.tar", &t);
    tar_image(&t, "b.jpg", 4, 'b');
    tar_number(&t, "b.cls", "0");
    put_tar(s, "val.tar", &t);
    return s;
}

/* Reads training sample 0 while pread fails so often. */
static void check_read(set *s, int times, int error, abar__images_found expected, int64_t waited)
{
    uint8_t buffer[16];
    abar__images_index *index = open_set(s);
    slept = 0;
    failures = times;
    failure = error;
    assert_int_equal(abar__images_read(index, 0, 0, buffer), expected);
    if (expected == ABAR_IMAGES_FAILED) assert_int_equal(errno, error);
    assert_int_equal(slept, waited);
    failures = 0;
    abar__images_close(index);
}

static void read_io_errors_are_tried_again(void **state)
{
    (void)state;
    set *sets[] = {small_set(), shards()};
    const int64_t ms = 1000000;
    static const int errors[] = {EIO, ESTALE, ETIMEDOUT};
    for (int i = 0; i < 2; i++) {
        for (int e = 0; e < 3; e++) {
            check_read(sets[i], 0, errors[e], ABAR_IMAGES_READ, 0);
            check_read(sets[i], 1, errors[e], ABAR_IMAGES_READ, 100 * ms);
            check_read(sets[i], 2, errors[e], ABAR_IMAGES_READ, 1100 * ms);
            check_read(sets[i], 3, errors[e], ABAR_IMAGES_READ, 6100 * ms);
            check_read(sets[i], 4, errors[e], ABAR_IMAGES_FAILED, 6100 * ms);
        }
        check_read(sets[i], 5, EINTR, ABAR_IMAGES_READ, 0);
        check_read(sets[i], 1, EISDIR, ABAR_IMAGES_FAILED, 0);
        set_free(sets[i]);
    }
}

static void read_indexing_an_archive_tries_again(void **state)
{
    (void)state;
    set *s = shards();
    slept = 0;
    failures = 2;
    failure = EIO;
    abar__images_close(open_set(s));
    assert_true(slept == 1100 * (int64_t)1000000);
    failures = 1000;
    open_fails(s, ABAR_E_IO, "train.tar", "input/output error");
    failures = 0;
    set_free(s);
}

static void read_takes_all_of_short_reads(void **state)
{
    (void)state;
    set *s = small_set();
    uint8_t buffer[16] = {0};
    put_text(s, "train/ant/1.jpg", "hello");
    abar__images_index *index = open_set(s);
    most = 2;
    assert_int_equal(abar__images_read(index, 0, 0, buffer), ABAR_IMAGES_READ);
    most = SIZE_MAX;
    assert_string_equal((char *)buffer, "hello");
    abar__images_close(index);
    set_free(s);
}

static void read_files_that_are_gone_or_no_files_any_more_are_told_apart(void **state)
{
    (void)state;
    set *s = small_set();
    uint8_t buffer[16];
    char path[8192];
    abar__images_index *index = open_set(s);
    remove_file(s, "train/ant/1.jpg");
    assert_int_equal(abar__images_read(index, 0, 0, buffer), ABAR_IMAGES_FAILED);
    assert_int_equal(errno, ENOENT);
    path_of(s, "train/ant/1.jpg", path);
    assert_int_equal(mkfifo(path, 0644), 0); /* must not block */
    assert_int_equal(abar__images_read(index, 0, 0, buffer), ABAR_IMAGES_CHANGED);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(abar__images_read(index, 0, 0, buffer), ABAR_IMAGES_CHANGED);
    abar__images_close(index);
    set_free(s);
}

static void read_empty_files_are_read(void **state)
{
    (void)state;
    set *s = small_set();
    uint8_t byte = 7;
    put(s, "train/ant/1.jpg", 0);
    abar__images_index *index = open_set(s);
    assert_int_equal(abar__images_size(index, 0, 0), 0);
    assert_int_equal(abar__images_read(index, 0, 0, &byte), ABAR_IMAGES_READ);
    assert_int_equal(byte, 7);
    abar__images_close(index);
    set_free(s);
}

/* More shards than are kept open. */
static void read_many_shards_are_read(void **state)
{
    (void)state;
    enum { SHARDS = 530 };
    set *s = set_make();
    tar_text t = {0};
    uint8_t buffer[16];
    for (int i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "train/%04d.tar", i);
        tar_image(&t, "a.jpg", 3, (char)('a' + i % 26));
        tar_number(&t, "a.cls", "0");
        put_tar(s, name, &t);
    }
    tar_image(&t, "b.jpg", 4, 'b');
    tar_number(&t, "b.cls", "0");
    put_tar(s, "val/0.tar", &t);
    abar__images_index *index = open_set(s);
    assert_int_equal(abar__images_summary_of(index)->count[0], SHARDS);
    for (int i = 0; i < SHARDS; i++) {
        assert_int_equal(abar__images_read(index, 0, i, buffer), ABAR_IMAGES_READ);
        for (int k = 0; k < 3; k++) assert_int_equal(buffer[k], 'a' + i % 26);
    }
    assert_int_equal(abar__images_read(index, 1, 0, buffer), ABAR_IMAGES_READ);
    abar__images_close(index);
    set_free(s);
}

typedef struct reading {
    const abar__images_index *index;
    int wrong;
} reading;

static void *read_all(void *user)
{
    reading *r = user;
    uint8_t buffer[16];
    for (int round = 0; round < 200; round++)
        for (int part = 0; part < 2; part++)
            for (int64_t i = 0; i < abar__images_summary_of(r->index)->count[part]; i++)
                if (abar__images_read(r->index, part, i, buffer) != ABAR_IMAGES_READ || buffer[0] != (part == 0 ? 'a' : 'b'))
                    r->wrong++;
    return NULL;
}

static void read_from_several_threads_gives_each_its_bytes(void **state)
{
    (void)state;
    set *s = shards();
    abar__images_index *index = open_set(s);
    reading r[3] = {{index, 0}, {index, 0}, {index, 0}};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, read_all, &r[i]), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(r[i].wrong, 0);
    }
    abar__images_close(index);
    set_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_io_errors_are_tried_again),
        cmocka_unit_test(read_indexing_an_archive_tries_again),
        cmocka_unit_test(read_takes_all_of_short_reads),
        cmocka_unit_test(read_files_that_are_gone_or_no_files_any_more_are_told_apart),
        cmocka_unit_test(read_empty_files_are_read),
        cmocka_unit_test(read_many_shards_are_read),
        cmocka_unit_test(read_from_several_threads_gives_each_its_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
