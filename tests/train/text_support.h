/* For tests of text models: a tiny GPT and a text it can learn in seconds, and what it makes. */
#ifndef TEXT_SUPPORT_H
#define TEXT_SUPPORT_H

#include "train_runs.h"

#define PATTERN "abcdefg hij. " /* after each character but the blank only one can follow */

static inline void write_file(const fixture *f, const char *name, const char *pattern, int times)
{
    char path[PATH_MAX_TEST];
    path_in(f, name, path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < times; i++) assert_true(fputs(pattern, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* One block of width 16 that reads 8 characters, dropout on, 10 steps an epoch. */
static inline abar_setup *text_setup(fixture *f, const char *optim, const char *options)
{
    char data[PATH_MAX_TEST], text[1024], *rest = text;
    abar_setup *setup;
    write_file(f, "text", PATTERN, 60);
    snprintf(data, sizeof data, "text:%s/text", f->dir);
    need(f, abar_setup_create(f->ctx, "gpt-char", data, optim, &setup));
    set(f, setup, "seed", test_seed());
    snprintf(text, sizeof text,
             "device=ref layers=1 heads=2 width=16 context=8 drop=0.1 attention-drop=0.1 batch=4 epochs=2 epoch-steps=10 "
             "lr=0.01 weight-decay=0 warmup=0.5 final-lr=0.001 %s",
             options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        set(f, setup, word, value + 1);
    }
    return setup;
}

typedef struct last_epoch {
    abar_progress p;
    int64_t epochs, steps;
} last_epoch;

static inline void keep_last(void *user, const abar_progress *p)
{
    last_epoch *last = user;
    last->steps += !p->epoch_done;
    if (!p->epoch_done) return;
    last->p = *p;
    last->epochs++;
}

typedef struct made {
    char text[256];
    size_t n, calls, stop_at;
} made;

static inline bool take(void *user, const char *text, size_t n)
{
    made *m = user;
    assert_true(m->n + n < sizeof m->text);
    memcpy(m->text + m->n, text, n);
    m->n += n;
    m->text[m->n] = '\0';
    return ++m->calls != m->stop_at;
}

static inline abar_status sample(fixture *f, const abar_setup *setup, const char *file, abar_sample_config c, made *out)
{
    char weights[PATH_MAX_TEST];
    path_in(f, file, weights);
    *out = (made){.stop_at = out->stop_at};
    c.size = sizeof c;
    c.write = take;
    c.user = out;
    return abar_sample(f->ctx, setup, weights, &c);
}

#endif
