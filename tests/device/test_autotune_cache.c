/* Choices made by measurement and kept in a file: across processes, with concurrent writers, and after damage. Needs no GPU. */
#include "io/io_test.h"

#include "device/autotune_cache.h"

#include <sys/wait.h>

#define TITLE "NVIDIA H200, driver 13000, cudnn 91400, abar 0.1.0"
#define FILE_NAME "nvidia-h200-driver-13000-cudnn-91400-abar-0.1.0.txt"

typedef struct rig {
    char *folder;
    abar_context *ctx;
    test_memory memory;
    int warnings;
    char warning[512];
} rig;

static void heard(void *user, abar_log_level level, const char *text)
{
    rig *r = user;
    if (level != ABAR_LOG_WARNING) return;
    r->warnings++;
    snprintf(r->warning, sizeof r->warning, "%s", text);
}

static int setup(void **state)
{
    rig *r = calloc(1, sizeof *r);
    void *folder;
    if (!r || test_folder_setup(&folder) != 0) return -1;
    r->folder = folder;
    abar_context_config config = {
        .size = sizeof config, .allocator = {test_alloc, test_release, &r->memory}, .log = heard, .log_user = r};
    assert_int_equal(abar_context_create(&config, &r->ctx), ABAR_OK);
    assert_int_equal(setenv("ABAR_CACHE", r->folder, 1), 0);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    rig *r = *state;
    void *folder = r->folder;
    test_context_end(r->ctx, &r->memory);
    unsetenv("ABAR_CACHE");
    int status = test_folder_teardown(&folder);
    free(r);
    return status;
}

static abar__autotune_cache *reopen(rig *r)
{
    abar__autotune_cache *c;
    assert_int_equal(abar__autotune_cache_open(r->ctx, TITLE, &c), ABAR_OK);
    assert_non_null(c);
    return c;
}

static void put(abar__autotune_cache *c, const char *problem, const char *choice)
{
    assert_int_equal(abar__autotune_cache_put(c, problem, choice), ABAR_OK);
}

static void assert_choice(const abar__autotune_cache *c, const char *problem, const char *expected)
{
    const char *got = abar__autotune_cache_find(c, problem);
    if (expected)
        assert_string_equal(got ? got : "(none)", expected);
    else
        assert_null(got);
}

static void choices_are_there_when_opened_again(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r);
    assert_choice(c, "a", NULL);
    put(c, "a", "first");
    put(c, "b c:d", "34 4096 0:1");
    put(c, "a", "second");
    assert_choice(c, "a", "second");
    abar__autotune_cache_close(c);
    c = reopen(r);
    assert_choice(c, "a", "second");
    assert_choice(c, "b c:d", "34 4096 0:1");
    assert_choice(c, "b", NULL);
    abar__autotune_cache_close(c);
    assert_int_equal(r->warnings, 0);
    void *folder = r->folder;
    assert_int_equal(test_folder_files(folder, 0), 1); /* no temporary file stays */
}

static void table_without_a_file_keeps_choices_while_it_lasts(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c;
    assert_int_equal(abar__autotune_cache_create(r->ctx, TITLE, &c), ABAR_OK);
    put(c, "a", "first");
    put(c, "a", "second");
    assert_choice(c, "a", "second");
    abar__autotune_cache_close(c);
    void *folder = r->folder;
    assert_int_equal(test_folder_files(folder, 0), 0);
    c = reopen(r);
    assert_choice(c, "a", NULL);
    abar__autotune_cache_close(c);
}

static void more_choices_than_the_first_table_holds_are_kept(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r);
    char key[32], value[32];
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "problem %d", i);
        snprintf(value, sizeof value, "%d", i * i);
        put(c, key, value);
    }
    abar__autotune_cache_close(c);
    c = reopen(r);
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "problem %d", i);
        snprintf(value, sizeof value, "%d", i * i);
        assert_choice(c, key, value);
    }
    abar__autotune_cache_close(c);
}

static void other_titles_have_other_files(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r), *other;
    put(c, "a", "1");
    assert_int_equal(abar__autotune_cache_open(r->ctx, "NVIDIA H200, driver 13010, cudnn 91400, abar 0.1.0", &other), ABAR_OK);
    assert_choice(other, "a", NULL);
    assert_string_not_equal(abar__autotune_cache_path(c), abar__autotune_cache_path(other));
    char path[TEST_PATH];
    snprintf(path, sizeof path, "%s/%s", r->folder, FILE_NAME);
    assert_string_equal(abar__autotune_cache_path(c), path);
    abar__autotune_cache_close(other);
    abar__autotune_cache_close(c);
}

static void two_writers_keep_each_others_choices(void **state)
{
    rig *r = *state;
    abar__autotune_cache *one = reopen(r), *two = reopen(r);
    put(one, "a", "of one");
    put(two, "b", "of two");
    put(one, "c", "of one");
    put(two, "a", "of two");
    assert_choice(one, "b", "of two");
    assert_choice(one, "a", "of one"); /* the choices of a running process do not change */
    abar__autotune_cache_close(one);
    abar__autotune_cache_close(two);
    abar__autotune_cache *c = reopen(r);
    assert_choice(c, "a", "of two");
    assert_choice(c, "b", "of two");
    assert_choice(c, "c", "of one");
    abar__autotune_cache_close(c);
}

/* Processes that write as fast as they can: the file is complete at every moment. */
static void processes_writing_at_once_leave_a_whole_file(void **state)
{
    rig *r = *state;
    pid_t child[3];
    for (int i = 0; i < 3; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] > 0) continue;
        abar__autotune_cache *c;
        char key[32];
        bool good = abar__autotune_cache_open(r->ctx, TITLE, &c) == ABAR_OK && c;
        for (int k = 0; k < 50 && good; k++) {
            snprintf(key, sizeof key, "%d of %d", k, i);
            good = abar__autotune_cache_put(c, key, "x") == ABAR_OK;
        }
        _exit(good && r->warnings == 0 ? 0 : 1);
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    abar__autotune_cache *c = reopen(r);
    assert_int_equal(r->warnings, 0);
    abar__autotune_cache_close(c);
}

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 4096);
    *n = fread(text, 1, 4095, f);
    fclose(f);
    return text;
}

static void spill(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The file in this state is ignored with one warning, and replaced by the next choice. */
static void check_damage(rig *r, const char *text, size_t n)
{
    char path[TEST_PATH];
    snprintf(path, sizeof path, "%s/%s", r->folder, FILE_NAME);
    spill(path, text, n);
    r->warnings = 0;
    abar__autotune_cache *c = reopen(r);
    assert_int_equal(r->warnings, 1);
    assert_non_null(strstr(r->warning, FILE_NAME));
    assert_choice(c, "a", NULL);
    put(c, "b", "2");
    assert_int_equal(r->warnings, 1);
    abar__autotune_cache_close(c);
    c = reopen(r);
    assert_int_equal(r->warnings, 1);
    assert_choice(c, "b", "2");
    abar__autotune_cache_close(c);
}

static void damaged_file_is_ignored_told_of_once_and_replaced(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r);
    put(c, "a", "1");
    size_t n;
    char *text = slurp(abar__autotune_cache_path(c), &n);
    abar__autotune_cache_close(c);
    for (size_t cut = 0; cut < n; cut++) check_damage(r, text, cut);
    for (size_t i = 0; i < n; i++) {
        char *bad = malloc(n);
        memcpy(bad, text, n);
        bad[i] ^= 0x04;
        check_damage(r, bad, n);
        free(bad);
    }
    check_damage(r, "\n\n\n\n", 4);
    free(text);
}

static void folder_that_cannot_be_written_only_warns(void **state)
{
    rig *r = *state;
    char path[TEST_PATH];
    snprintf(path, sizeof path, "%s/file", r->folder);
    spill(path, "x", 1);
    snprintf(path, sizeof path, "%s/file/folder", r->folder);
    setenv("ABAR_CACHE", path, 1);
    abar__autotune_cache *c = reopen(r);
    put(c, "a", "1");
    put(c, "b", "2");
    assert_choice(c, "a", "1"); /* within this process */
    assert_int_equal(r->warnings, 1);
    abar__autotune_cache_close(c);
}

static void environment_says_where(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c;
    char path[TEST_PATH];
    setenv("ABAR_CACHE", "off", 1);
    assert_int_equal(abar__autotune_cache_open(r->ctx, TITLE, &c), ABAR_OK);
    assert_null(c);
    assert_null(abar__autotune_cache_find(c, "a"));
    put(c, "a", "1"); /* no cache: nothing happens */
    abar__autotune_cache_close(c);
    unsetenv("ABAR_CACHE");
    const char *home = getenv("HOME"), *all = getenv("XDG_CACHE_HOME");
    char *home_was = home ? strdup(home) : NULL, *all_was = all ? strdup(all) : NULL;
    snprintf(path, sizeof path, "%s/home", r->folder);
    setenv("HOME", path, 1);
    setenv("XDG_CACHE_HOME", "not/absolute", 1);
    c = reopen(r);
    put(c, "a", "1"); /* makes home, .cache and abar */
    snprintf(path, sizeof path, "%s/home/.cache/abar/%s", r->folder, FILE_NAME);
    assert_string_equal(abar__autotune_cache_path(c), path);
    assert_int_equal(access(path, F_OK), 0);
    abar__autotune_cache_close(c);
    setenv("XDG_CACHE_HOME", r->folder, 1);
    c = reopen(r);
    snprintf(path, sizeof path, "%s/abar/%s", r->folder, FILE_NAME);
    assert_string_equal(abar__autotune_cache_path(c), path);
    assert_choice(c, "a", NULL);
    abar__autotune_cache_close(c);
    if (home_was) setenv("HOME", home_was, 1);
    unsetenv("XDG_CACHE_HOME");
    if (all_was) setenv("XDG_CACHE_HOME", all_was, 1);
    free(home_was);
    free(all_was);
}

static void texts_that_are_no_line_are_not_remembered(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r);
    char longest[ABAR_AUTOTUNE_MAX + 1];
    memset(longest, 'x', sizeof longest);
    longest[ABAR_AUTOTUNE_MAX] = '\0';
    put(c, longest, "1");
    put(c, "a\tb", "1");
    put(c, "a", "1\n2");
    put(c, "", "1");
    longest[ABAR_AUTOTUNE_MAX - 1] = '\0';
    put(c, longest, "kept");
    abar__autotune_cache_close(c);
    c = reopen(r);
    assert_choice(c, longest, "kept");
    assert_choice(c, "a", NULL);
    assert_choice(c, "a\tb", NULL);
    abar__autotune_cache_close(c);
}

static void any_allocation_may_fail(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r);
    put(c, "a", "1");
    abar__autotune_cache_close(c);
    for (long k = 1;; k++) {
        r->memory.calls = 0;
        r->memory.fail_at = k;
        abar_status status = abar__autotune_cache_open(r->ctx, TITLE, &c);
        if (status == ABAR_OK) status = abar__autotune_cache_put(c, "b", "2");
        const bool failed = r->memory.calls >= k;
        r->memory.fail_at = 0;
        assert_int_equal(status, failed ? ABAR_E_MEMORY : ABAR_OK);
        abar__autotune_cache_close(c);
        if (!failed) break;
    }
    assert_int_equal(r->warnings, 0);
    c = reopen(r);
    assert_choice(c, "a", "1");
    abar__autotune_cache_close(c);
}

/* Reading a file looks every line up in the table: without a bound one of millions of lines would keep us for hours. */
static void full_table_takes_no_more(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c;
    abar__text text = {0};
    char line[32];
    uint64_t sum = 0xcbf29ce484222325u; /* FNV-1a */
    assert_int_equal(abar__text_printf(r->ctx, &text, "abar choices 1: " TITLE "\n"), ABAR_OK);
    for (int i = 0; i < 10000; i++) {
        snprintf(line, sizeof line, "%d\tchoice\n", i);
        assert_int_equal(abar__text_append(r->ctx, &text, line, strlen(line)), ABAR_OK);
    }
    for (size_t i = 0; i < text.length; i++) sum = (sum ^ (unsigned char)text.data[i]) * 0x100000001b3u;
    assert_int_equal(abar__text_printf(r->ctx, &text, "sum %016llx\n", (unsigned long long)sum), ABAR_OK);
    assert_int_equal(abar__autotune_cache_parse(r->ctx, TITLE, text.data, text.length, &c), ABAR_OK);
    assert_choice(c, "8191", "choice");
    assert_choice(c, "8192", NULL);
    assert_int_equal(abar__autotune_cache_put(c, "new", "choice"), ABAR_OK);
    assert_choice(c, "new", NULL);
    assert_int_equal(r->warnings, 0);
    abar__autotune_cache_close(c);
    abar__text_free(r->ctx, &text);
}

/* ---- what was compiled ---------------------------------------------------------------------------------------------- */

static const char compiled[] = "{\"kernel\": 1}\n\0bytes\tof any kind\n";

static void put_compiled(abar__autotune_cache *c, const char *problem)
{
    assert_int_equal(abar__autotune_cache_put_compiled(c, problem, compiled, sizeof compiled), ABAR_OK);
}

/* there: the bytes that put_compiled wrote; else none. */
static void assert_compiled(rig *r, abar__autotune_cache *c, const char *problem, bool there)
{
    abar__text text = {0};
    assert_int_equal(abar__autotune_cache_get_compiled(c, problem, &text), ABAR_OK);
    assert_int_equal(text.length, there ? sizeof compiled : 0);
    if (there) assert_memory_equal(text.data, compiled, sizeof compiled);
    abar__text_free(r->ctx, &text);
}

static void compiled_bytes_are_there_when_opened_again(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r), *other;
    put_compiled(c, "a");
    assert_compiled(r, c, "a", true);
    abar__autotune_cache_close(c);
    c = reopen(r);
    assert_compiled(r, c, "a", true);
    assert_compiled(r, c, "b", false);
    assert_choice(c, "a", NULL);
    assert_int_equal(abar__autotune_cache_open(r->ctx, "NVIDIA H200, driver 13010, cudnn 91400, abar 0.1.0", &other), ABAR_OK);
    assert_compiled(r, other, "a", false);
    abar__autotune_cache_close(other);
    abar__autotune_cache_close(c);
    assert_int_equal(r->warnings, 0);
    put_compiled(NULL, "a");
    assert_compiled(r, NULL, "a", false);
    void *folder = r->folder;
    assert_int_equal(test_folder_files(folder, 0), 1); /* no temporary file stays */
}

static void compiled_path_of(const rig *r, const char *problem, char path[TEST_PATH])
{
    uint64_t number = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *p = problem; *p; p++) number = (number ^ (unsigned char)*p) * 0x100000001b3u;
    snprintf(path, TEST_PATH, "%s/%.*s-%016llx.compiled", r->folder, (int)strlen(FILE_NAME) - 4, FILE_NAME,
             (unsigned long long)number);
}

static void damaged_compiled_bytes_are_not_used(void **state)
{
    rig *r = *state;
    char path[TEST_PATH], other[TEST_PATH];
    abar__autotune_cache *c = reopen(r);
    compiled_path_of(r, "a", path);
    compiled_path_of(r, "b", other);
    put_compiled(c, "a");
    size_t n;
    char *text = slurp(path, &n);
    spill(other, text, n); /* as if b had a's number */
    assert_compiled(r, c, "b", false);
    for (size_t cut = 0; cut < n; cut++) {
        spill(path, text, cut);
        assert_compiled(r, c, "a", false);
    }
    for (size_t i = 0; i < n; i++) {
        text[i] ^= 0x04;
        spill(path, text, n);
        assert_compiled(r, c, "a", false);
        text[i] ^= 0x04;
    }
    put_compiled(c, "a");
    assert_compiled(r, c, "a", true);
    abar__autotune_cache_close(c);
    free(text);
}

static void any_allocation_for_compiled_bytes_may_fail(void **state)
{
    rig *r = *state;
    abar__autotune_cache *c = reopen(r);
    for (long k = 1;; k++) {
        abar__text text = {0};
        r->memory.calls = 0;
        r->memory.fail_at = k;
        abar_status status = abar__autotune_cache_put_compiled(c, "a", compiled, sizeof compiled);
        if (status == ABAR_OK) status = abar__autotune_cache_get_compiled(c, "a", &text);
        const bool failed = r->memory.calls >= k;
        r->memory.fail_at = 0;
        assert_int_equal(status, failed ? ABAR_E_MEMORY : ABAR_OK);
        assert_int_equal(text.length, failed ? 0 : sizeof compiled);
        abar__text_free(r->ctx, &text);
        if (!failed) break;
    }
    abar__autotune_cache_close(c);
    assert_int_equal(r->warnings, 0);
}

#define with_rig(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_rig(choices_are_there_when_opened_again),
        with_rig(table_without_a_file_keeps_choices_while_it_lasts),
        with_rig(more_choices_than_the_first_table_holds_are_kept),
        with_rig(other_titles_have_other_files),
        with_rig(two_writers_keep_each_others_choices),
        with_rig(processes_writing_at_once_leave_a_whole_file),
        with_rig(damaged_file_is_ignored_told_of_once_and_replaced),
        with_rig(folder_that_cannot_be_written_only_warns),
        with_rig(environment_says_where),
        with_rig(texts_that_are_no_line_are_not_remembered),
        with_rig(any_allocation_may_fail),
        with_rig(full_table_takes_no_more),
        with_rig(compiled_bytes_are_there_when_opened_again),
        with_rig(damaged_compiled_bytes_are_not_used),
        with_rig(any_allocation_for_compiled_bytes_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
