/* Files replaced and read whole, folders made and locked, logs that grow. */
#include "io/io_test.h"

#include "io/files_impl.h"
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static abar_context *ctx;
static test_memory memory;

static int setup(void **state)
{
    ctx = test_context(&memory);
    return test_folder_setup(state);
}

static int teardown(void **state)
{
    test_context_end(ctx, &memory);
    return test_folder_teardown(state);
}

/* ---- whole files ------------------------------------------------------------------------------------------------ */

static void file_replaced_reads_back(void **state)
{
    char path[TEST_PATH];
    abar__text text;
    test_path(state, "f", path);
    assert_int_equal(abar__file_replace(ctx, path, "one\0two", 7), ABAR_OK);
    assert_int_equal(abar__file_read(ctx, path, 7, &text), ABAR_OK);
    assert_int_equal(text.length, 7);
    assert_memory_equal(text.data, "one\0two", 8); /* zero-terminated */
    abar__text_free(ctx, &text);
    assert_int_equal(abar__file_replace(ctx, path, NULL, 0), ABAR_OK);
    assert_int_equal(abar__file_read(ctx, path, 0, &text), ABAR_OK);
    assert_string_equal(text.data, "");
    abar__text_free(ctx, &text);
    assert_int_equal(test_folder_files(*state, 0), 1);
}

static void file_in_the_working_folder_is_replaced(void **state)
{
    char path[TEST_PATH], before[1024];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(*state), 0);
    abar_status status = abar__file_replace(ctx, "plain", "x", 1); /* no slash: its folder is "." */
    assert_int_equal(chdir(before), 0);
    assert_int_equal(status, ABAR_OK);
    assert_file(test_path(state, "plain", path), "x", 1);
}

static void file_is_searched_across_its_chunks(void **state)
{
    char path[TEST_PATH];
    static char bytes[50000]; /* zeros, as a crash of the machine leaves them */
    bool found = true;
    test_path(state, "f", path);
    assert_int_equal(abar__file_contains(ctx, path, "needle", &found), ABAR_OK); /* there is no file */
    assert_false(found);
    for (size_t at = 16370; at < 16400; at++) {
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes + at, "needle", 6);
        test_write(path, bytes, sizeof bytes);
        assert_int_equal(abar__file_contains(ctx, path, "needle", &found), ABAR_OK);
        if (!found) fail_msg("not found at byte %zu", at);
        assert_int_equal(abar__file_contains(ctx, path, "needles", &found), ABAR_OK);
        assert_false(found);
    }
    test_write(path, bytes, 16400 + 3);
    assert_int_equal(abar__file_contains(ctx, path, "needle", &found), ABAR_OK); /* cut off */
    assert_false(found);
    assert_int_equal(abar__file_contains(ctx, *state, "needle", &found), ABAR_E_IO);
    assert_error(ctx, "is a folder");
    assert_int_equal(memory.calls, 0);
}

static void file_that_cannot_be_read_says_why(void **state)
{
    char path[TEST_PATH];
    abar__text text;
    test_write(test_path(state, "f", path), "12345678", 8);
    assert_int_equal(abar__file_read(ctx, path, 7, &text), ABAR_E_FORMAT);
    assert_error(ctx, "f: larger than the 7 bytes it may have");
    assert_null(text.data);
    assert_int_equal(abar__file_read(ctx, *state, 7, &text), ABAR_E_IO);
    assert_error(ctx, "is a folder, give a file");
    assert_int_equal(abar__file_read(ctx, test_path(state, "f/g", path), 7, &text), ABAR_E_NOT_FOUND);
    assert_error(ctx, "f/g: a part of the path is not a folder");
    memory.fail_at = memory.calls + 1;
    assert_int_equal(abar__file_read(ctx, test_path(state, "f", path), 8, &text), ABAR_E_MEMORY);
}

static void file_replacement_cut_short_keeps_the_old_one(void **state)
{
    char path[TEST_PATH], stale[TEST_PATH + 32], big[1000] = {0};
    test_write(test_path(state, "f", path), "old", 3);
    snprintf(stale, sizeof stale, "%s.tmp-%ld", path, (long)getpid());
    test_write(stale, "left by a killed process", 24); /* must not matter */
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){500, before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    abar_status status = abar__file_replace(ctx, path, big, sizeof big);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, ABAR_E_IO);
    assert_error(ctx, "f: file too large");
    assert_file(path, "old", 3);
    assert_int_equal(test_folder_files(*state, 0), 1);
    assert_int_equal(abar__file_replace(ctx, path, big, sizeof big), ABAR_OK);
}

static void write_to_a_full_device_fails(void **state)
{
    (void)state;
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) skip();
    assert_true(abar__write_all(fd, "", 0));
    assert_false(abar__write_all(fd, "x", 1));
    assert_int_equal(errno, ENOSPC);
    close(fd);
    assert_int_equal(abar__fail_errno(ctx, "out/x", ENOSPC), ABAR_E_IO);
    assert_string_equal(abar_context_error(ctx), "out/x: no space left on device, free some or use another disk");
    assert_int_equal(abar__fail_errno(ctx, "out/x", EXDEV), ABAR_E_IO); /* an errno that is not in the table */
    assert_error(ctx, ", check the path and its disk");
}

/* ---- folders ---------------------------------------------------------------------------------------------------- */

static void folder_make_makes_all_of_a_path(void **state)
{
    char path[TEST_PATH];
    struct stat info;
    test_path(state, "a//b/c/", path);
    assert_int_equal(abar__folder_make(ctx, path), ABAR_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    assert_int_equal(abar__folder_make(ctx, path), ABAR_OK); /* is there */
    assert_int_equal(abar__folder_make(ctx, "/"), ABAR_OK);
    assert_int_equal(abar__folder_make(ctx, ""), ABAR_E_ARGUMENT);
    test_write(test_path(state, "file", path), "x", 1);
    assert_int_equal(abar__folder_make(ctx, path), ABAR_E_NOT_FOUND);
    assert_error(ctx, "file: a part of the path is not a folder");
    assert_int_equal(abar__folder_make(ctx, test_path(state, "file/sub", path)), ABAR_E_NOT_FOUND);
    assert_error(ctx, "file: a part of the path is not a folder");
}

/* The status that a second process gets when it locks the folder. */
static int status_in_child(const char *folder)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        abar_context *own;
        int fd;
        if (abar_context_create(NULL, &own) != ABAR_OK) _exit(100);
        abar_status status = abar__folder_lock(own, folder, &fd);
        char text[TEST_PATH + 100];
        snprintf(text, sizeof text, "%s: another run is using this folder, choose another --out or wait", folder);
        if (status == ABAR_E_BUSY && strcmp(text, abar_context_error(own)) != 0) _exit(101);
        _exit(-status);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    return -WEXITSTATUS(how);
}

static void folder_lock_keeps_others_out(void **state)
{
    int fd, second;
    assert_int_equal(abar__folder_lock(ctx, *state, &fd), ABAR_OK);
    assert_int_equal(status_in_child(*state), ABAR_E_BUSY);
    assert_int_equal(abar__folder_lock(ctx, *state, &second), ABAR_E_BUSY); /* this process included */
    assert_int_equal(second, -1);
    abar__folder_unlock(fd);
    assert_int_equal(status_in_child(*state), ABAR_OK);
    abar__folder_unlock(-1);
}

static void folder_lock_dies_with_its_holder(void **state)
{
    int ready[2], fd;
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        abar_context *own;
        if (abar_context_create(NULL, &own) != ABAR_OK || abar__folder_lock(own, *state, &fd) != ABAR_OK) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(abar__folder_lock(ctx, *state, &fd), ABAR_E_BUSY);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(abar__folder_lock(ctx, *state, &fd), ABAR_OK);
    abar__folder_unlock(fd);
    close(ready[0]);
    close(ready[1]);
}

static void folder_lock_sweeps_what_a_killed_process_left(void **state)
{
    char half[TEST_PATH], kept[TEST_PATH];
    int fd;
    test_path(state, "state.safetensors.tmp-4711", half);
    test_path(state, "notes.tmp-later", kept);
    assert_int_equal(abar__file_replace(ctx, half, "x", 1), ABAR_OK);
    assert_int_equal(abar__file_replace(ctx, kept, "x", 1), ABAR_OK);
    assert_int_equal(abar__folder_lock(ctx, *state, &fd), ABAR_OK);
    assert_int_not_equal(access(half, F_OK), 0);
    assert_int_equal(access(kept, F_OK), 0);
    abar__folder_unlock(fd);
    unlink(kept);
}

static void folder_lock_of_no_folder_fails(void **state)
{
    char path[TEST_PATH];
    int fd;
    assert_int_equal(abar__folder_lock(ctx, test_path(state, "absent", path), &fd), ABAR_E_NOT_FOUND);
    assert_int_equal(fd, -1);
    assert_error(ctx, "absent/.lock: no such file or folder");
}

/* ---- lines of JSON ---------------------------------------------------------------------------------------------- */

static void jsonl_lines_are_there_at_once(void **state)
{
    char path[TEST_PATH];
    abar__jsonl *log;
    test_write(test_path(state, "log.jsonl", path), "old\n", 4);
    assert_int_equal(abar__jsonl_open(ctx, path, 0, &log), ABAR_OK);
    assert_file(path, "", 0);
    assert_int_equal(abar__jsonl_write(log, "{\"a\": 1}"), ABAR_OK);
    assert_file(path, "{\"a\": 1}\n", 9);
    assert_int_equal(abar__jsonl_write(log, "{}"), ABAR_OK);
    assert_int_equal(abar__jsonl_bytes(log), 12);
    assert_int_equal(abar__jsonl_flush(log), ABAR_OK);
    assert_int_equal(abar__jsonl_close(log), ABAR_OK);
    assert_file(path, "{\"a\": 1}\n{}\n", 12);
    assert_int_equal(abar__jsonl_close(NULL), ABAR_OK);
}

static void jsonl_resumed_is_cut_to_the_checkpoint(void **state)
{
    char path[TEST_PATH];
    abar__jsonl *log;
    test_write(test_path(state, "log.jsonl", path), "{}\n{}\n{\"half", 12);
    assert_int_equal(abar__jsonl_open(ctx, path, 3, &log), ABAR_OK);
    assert_int_equal(abar__jsonl_bytes(log), 3);
    assert_int_equal(abar__jsonl_write(log, "[]"), ABAR_OK);
    assert_int_equal(abar__jsonl_close(log), ABAR_OK);
    assert_file(path, "{}\n[]\n", 6);
    assert_int_equal(abar__jsonl_open(ctx, path, 6, &log), ABAR_OK); /* all of it */
    assert_int_equal(abar__jsonl_close(log), ABAR_OK);
    assert_file(path, "{}\n[]\n", 6);
}

static void jsonl_shorter_than_the_checkpoint_is_refused(void **state)
{
    char path[TEST_PATH];
    abar__jsonl *log;
    test_write(test_path(state, "log.jsonl", path), "{}\n", 3);
    assert_int_equal(abar__jsonl_open(ctx, path, 4, &log), ABAR_E_FORMAT);
    assert_null(log);
    assert_error(ctx, "log.jsonl: has 3 of the 4 bytes that the checkpoint expects");
    assert_file(path, "{}\n", 3);
    assert_int_equal(abar__jsonl_open(ctx, test_path(state, "absent", path), 4, &log), ABAR_E_NOT_FOUND);
    assert_int_equal(test_folder_files(*state, 0), 1); /* and is not made */
}

static void jsonl_line_that_does_not_fit_is_taken_back(void **state)
{
    char path[TEST_PATH], line[600];
    abar__jsonl *log;
    memset(line, ' ', sizeof line);
    line[599] = '\0';
    assert_int_equal(abar__jsonl_open(ctx, test_path(state, "log.jsonl", path), 0, &log), ABAR_OK);
    assert_int_equal(abar__jsonl_write(log, "{}"), ABAR_OK);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){500, before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    abar_status status = abar__jsonl_write(log, line);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, ABAR_E_IO);
    assert_error(ctx, "log.jsonl: file too large");
    assert_int_equal(abar__jsonl_write(log, "[]"), ABAR_OK);
    assert_int_equal(abar__jsonl_bytes(log), 6);
    assert_int_equal(abar__jsonl_close(log), ABAR_OK);
    assert_file(path, "{}\n[]\n", 6);
}

static void jsonl_on_a_full_device_reports(void **state)
{
    (void)state;
    abar__jsonl *log;
    if (access("/dev/full", W_OK) != 0) skip();
    assert_int_equal(abar__jsonl_open(ctx, "/dev/full", 0, &log), ABAR_OK);
    assert_int_equal(abar__jsonl_write(log, "{}"), ABAR_E_IO);
    assert_string_equal(abar_context_error(ctx), "/dev/full: no space left on device, free some or use another disk");
    assert_int_equal(abar__jsonl_bytes(log), 0);
    assert_int_equal(abar__jsonl_close(log), ABAR_OK);
}

static void jsonl_with_every_allocation_failing_in_turn(void **state)
{
    char path[TEST_PATH];
    test_path(state, "log.jsonl", path);
    abar_status status = ABAR_E_MEMORY;
    for (long k = 1; status != ABAR_OK; k++) {
        abar__jsonl *log;
        memory.calls = 0;
        memory.fail_at = k;
        status = abar__jsonl_open(ctx, path, 0, &log);
        if (status == ABAR_OK) {
            status = abar__jsonl_write(log, "{}");
            assert_file(path, "{}\n", status == ABAR_OK ? 3 : 0);
            assert_int_equal(abar__jsonl_close(log), ABAR_OK);
        }
        assert_true(status == ABAR_OK || status == ABAR_E_MEMORY);
        assert_int_equal(abar_context_memory(ctx).now, 0);
        assert_true(k < 20);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(file_replaced_reads_back),
        TEST(file_in_the_working_folder_is_replaced),
        TEST(file_is_searched_across_its_chunks),
        TEST(file_that_cannot_be_read_says_why),
        TEST(file_replacement_cut_short_keeps_the_old_one),
        TEST(write_to_a_full_device_fails),
        TEST(folder_make_makes_all_of_a_path),
        TEST(folder_lock_keeps_others_out),
        TEST(folder_lock_dies_with_its_holder),
        TEST(folder_lock_sweeps_what_a_killed_process_left),
        TEST(folder_lock_of_no_folder_fails),
        TEST(jsonl_lines_are_there_at_once),
        TEST(jsonl_resumed_is_cut_to_the_checkpoint),
        TEST(jsonl_shorter_than_the_checkpoint_is_refused),
        TEST(jsonl_line_that_does_not_fit_is_taken_back),
        TEST(jsonl_on_a_full_device_reports),
        TEST(jsonl_with_every_allocation_failing_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
