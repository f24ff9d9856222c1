/* Which gradients are complete while a backward pass goes on (net/blocks.h): they stay as they are, also of a weight that is
 * used at both ends of the network. */
#include "train_engine.h"

static struct {
    const char *grads;
    char *seen;
    size_t from;
    int calls;
} watched;

static abar_status keep_complete(void *user, size_t from)
{
    (void)user;
    if (from >= watched.from) return ABAR_E_STATE;
    memcpy(watched.seen + from, watched.grads + from, watched.from - from);
    watched.from = from;
    watched.calls++;
    return ABAR_OK;
}

/* least: calls. */
static void check_watched(fixture *f, abar_setup *setup, int least)
{
    engine *e = make_engine(f, setup);
    const abar__net_blocks b = abar__net_blocks_of(e->net);
    const abar__grad_watcher watcher = {keep_complete, NULL};
    const abar_run_config run = {.size = sizeof run, .training = true};
    watched.grads = b.grads;
    watched.from = b.value_bytes;
    watched.seen = malloc(b.value_bytes);
    watched.calls = 0;
    need(f, abar_net_forward(e->net, &run, NULL));
    need(f, abar__net_backward_watched(e->net, false, NULL, &watcher));
    assert_int_equal(watched.from, 0);
    assert_true(watched.calls >= least);
    assert_memory_equal(watched.seen, b.grads, b.value_bytes);
    free(watched.seen);
    drop_engine(e);
}

/* Its first weight, that of the tokens, is the last layer's, too. */
static void gradients_of_a_tied_weight_are_complete_at_the_end(void **state)
{
    fixture *f = *state;
    char data[PATH_MAX_TEST], path[PATH_MAX_TEST];
    abar_setup *setup;
    path_in(f, "text", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 60; i++) fputs("abcdefg hij. ", file);
    fclose(file);
    snprintf(data, sizeof data, "text:%.500s", path);
    need(f, abar_setup_create(f->ctx, "gpt-char", data, "sgd", &setup));
    set_all(f, setup, "device=cpu threads=1 layers=2 heads=2 width=16 context=8 batch=4 epochs=1");
    check_watched(f, setup, 10);
}

static void gradients_that_are_complete_stay(void **state)
{
    fixture *f = *state;
    check_watched(f, make_setup(f, "resnet20", "sgd", "device=cpu threads=1 limit-train=8 batch=4"), 20);
    check_watched(f, make_setup(f, "densenet121", "sgd", "device=cpu threads=1 limit-train=4 batch=2"), 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gradients_of_a_tied_weight_are_complete_at_the_end, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(gradients_that_are_complete_stay, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
