/* What the tests of training share: a context, a folder that goes away, small setups. */
#ifndef TRAIN_SUPPORT_H
#define TRAIN_SUPPORT_H

#include "train/train_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_MAX_TEST 600

/* A new process; 0 in the child, where a check that fails ends the process instead of going on with the next test. */
static inline pid_t fork_test(void)
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) setenv("CMOCKA_TEST_ABORT", "1", 1);
    return child;
}

/* A context and a fresh folder for each test. */
typedef struct fixture {
    abar_context *ctx;
    char dir[128];
    char log[4096]; /* what the library logged */
    int runs;       /* folders made so far, for their names */
} fixture;

static inline void keep_log(void *user, abar_log_level level, const char *text)
{
    fixture *f = user;
    (void)level;
    size_t used = strlen(f->log);
    snprintf(f->log + used, sizeof f->log - used, "%s\n", text);
}

static inline int make_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    abar_context_config config = {.size = sizeof config, .log = keep_log, .log_user = f};
    const char *temporary = getenv("TMPDIR");
    snprintf(f->dir, sizeof f->dir, "%.64s/abar-train-XXXXXX", temporary ? temporary : "/tmp");
    *state = f;
    return !mkdtemp(f->dir) || abar_context_create(&config, &f->ctx) != ABAR_OK;
}

static inline void remove_tree(const char *path)
{
    DIR *open = opendir(path);
    for (struct dirent *entry; open && (entry = readdir(open));) {
        char inside[PATH_MAX_TEST + 300];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(inside, sizeof inside, "%.*s/%s", PATH_MAX_TEST, path, entry->d_name);
        remove_tree(inside);
    }
    if (open) closedir(open);
    remove(path);
}

/* Whatever a test makes, it releases: nothing may be held at its end. */
static inline int drop_fixture(void **state)
{
    fixture *f = *state;
    size_t held = abar_context_memory(f->ctx).now;
    if (held) fprintf(stderr, "%zu bytes still held\n", held);
    remove_tree(f->dir);
    abar_context_destroy(f->ctx);
    free(f);
    return held != 0;
}

#define need(f, call)                                                      \
    do {                                                                   \
        abar_status need_status = (call);                                  \
        if (need_status < 0) fail_msg("%s", abar_context_error((f)->ctx)); \
    } while (0)

static inline void set(fixture *f, abar_setup *setup, const char *name, const char *value)
{
    need(f, abar_setup_set(f->ctx, setup, name, value));
}

/* The seed of every run: ABAR_TEST_SEED, or 0. Tests must hold for any. */
static inline const char *test_seed(void)
{
    const char *seed = getenv("ABAR_TEST_SEED");
    return seed && *seed ? seed : "0";
}

/* Sets options "name=value name=value ...". */
static inline void set_all(fixture *f, abar_setup *setup, const char *options)
{
    char text[1024], *rest = text;
    snprintf(text, sizeof text, "%s", options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        set(f, setup, word, value + 1);
    }
}

/* A setup with such options. */
static inline abar_setup *make_setup(fixture *f, const char *model, const char *optim, const char *options)
{
    abar_setup *setup;
    need(f, abar_setup_create(f->ctx, model, "synthetic", optim, &setup));
    set(f, setup, "seed", test_seed());
    set_all(f, setup, options);
    return setup;
}

static inline void path_in(const fixture *f, const char *name, char path[PATH_MAX_TEST])
{
    snprintf(path, PATH_MAX_TEST, "%s/%s", f->dir, name);
}

static inline void set_out(fixture *f, abar_setup *setup, const char *name)
{
    char path[PATH_MAX_TEST];
    path_in(f, name, path);
    set(f, setup, "out", path);
}

#define assert_error(f, part)                                                              \
    do {                                                                                   \
        if (!strstr(abar_context_error((f)->ctx), part))                                   \
            fail_msg("\"%s\" says nothing of \"%s\"", abar_context_error((f)->ctx), part); \
    } while (0)

#endif
