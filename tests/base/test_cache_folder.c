/* How files of the cache folder are replaced, and what is removed of killed processes. */
#include "base/cache_folder.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct rig {
    char folder[64], path[128];
} rig;

static int set_up(void **state)
{
    static rig r;
    strcpy(r.folder, "/tmp/abar-cache-XXXXXX");
    if (!mkdtemp(r.folder)) return -1;
    snprintf(r.path, sizeof r.path, "%s/file.index", r.folder);
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    const rig *r = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", r->folder);
    return system(command);
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static void put(const char *path)
{
    const int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    close(fd);
}

static void file_is_replaced_or_left_as_it_was(void **state)
{
    const rig *r = *state;
    char temporary[256], text[8] = "";
    int fd = abar__cache_begin(r->path, r, temporary, sizeof temporary);
    assert_true(fd >= 0 && write(fd, "first", 5) == 5);
    assert_false(exists(r->path));
    assert_true(abar__cache_end(fd, true, temporary, r->path));
    assert_true(exists(r->path) && !exists(temporary));
    fd = abar__cache_begin(r->path, r, temporary, sizeof temporary);
    assert_true(fd >= 0 && write(fd, "half", 4) == 4);
    assert_false(abar__cache_end(fd, false, temporary, r->path));
    assert_false(exists(temporary));
    fd = open(r->path, O_RDONLY);
    assert_int_equal(read(fd, text, sizeof text), 5);
    assert_string_equal(text, "first");
    close(fd);
    assert_int_equal(abar__cache_begin(r->path, r, temporary, 10), -1); /* no space for its name */
}

/* A child writes, another file is only called so. */
static void temporary_file_is_removed_when_its_writer_is_dead(void **state)
{
    const rig *r = *state;
    static const char *const foreign[] = {"", ".bak", ".4711-beef.txt", ".-1", ".12-", "x.1-2"};
    char temporary[256], byte;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const int fd = abar__cache_begin(r->path, r, temporary, sizeof temporary);
        if (fd >= 0 && write(fd, "half", 4) == 4 && write(ready[1], "", 1) == 1) pause();
        _exit(1);
    }
    snprintf(temporary, sizeof temporary, "%s.%ld-%lx", r->path, (long)child, (unsigned long)(uintptr_t)r);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", r->path, foreign[i]);
        put(name);
    }
    abar__cache_sweep(r->path);
    assert_true(exists(temporary));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    abar__cache_sweep(r->path);
    assert_false(exists(temporary));
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s%s", r->path, foreign[i]);
        assert_true(exists(name));
    }
    close(ready[0]);
    close(ready[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(file_is_replaced_or_left_as_it_was, set_up, tear_down),
        cmocka_unit_test_setup_teardown(temporary_file_is_removed_when_its_writer_is_dead, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
