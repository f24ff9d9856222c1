/* What ranks must have in common: every setting and all data, before the first step, and the weights of an evaluation. The
 * first difference is named. */
#include "data/images_support.h"
#include "ranks_support.h"
#include "text_support.h"

#include "comm/comm.h"

#define RUN "device=cpu threads=1 workers=0 limit-train=72 limit-test=30 batch=24 micro=6 epochs=1 "

/* Runs it in a process of its own, which forks ranks. */
static void in_child(int (*run)(fixture *f, abar_setup *setup), fixture *f, abar_setup *setup)
{
    int status;
    const pid_t child = fork_test();
    if (child == 0) _exit(run(f, setup));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- settings ----------------------------------------------------------------------------------------------------------- */

/* Paths, and what a rank does on its own. */
static bool may_differ(const char *name)
{
    static const char *const own[] = {"out", "workers", "init", "snapshot", "classes", "val-labels", "accept-data", NULL};
    for (const char *const *n = own; *n; n++)
        if (strcmp(*n, name) == 0) return true;
    return false;
}

/* Sets another value that the option takes. */
static bool change(fixture *f, const abar_setup_table *table, const char *name)
{
    static const char *const values[] = {"false", "true", "1", "2", "0.5", "0.25", "0", "16", "another", NULL};
    const abar_option *row = abar_options_find(table->options, name);
    char before[ABAR_OPTION_TEXT_MAX], after[ABAR_OPTION_TEXT_MAX], choices[ABAR_OPTION_TEXT_MAX], *rest = choices;
    need(f, abar_options_get(f->ctx, table->options, table->config, name, before, sizeof before));
    snprintf(choices, sizeof choices, "%s", row->choices ? row->choices : "");
    for (const char *const *v = values;;) {
        const char *value = row->choices ? strtok_r(rest, "|", &rest) : *v++;
        if (!value) return false;
        if (abar_options_set(f->ctx, table->options, table->config, name, value) < 0) continue;
        need(f, abar_options_get(f->ctx, table->options, table->config, name, after, sizeof after));
        if (strcmp(before, after) != 0) return true;
    }
}

/* Compares a setup of which rank 1 has another value of the option. Returns what is wrong; NULL: nothing. */
static const char *compare_changed(fixture *f, abar_comm *comm, abar_setup *setup, int table, const char *name)
{
    abar_setup *own;
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    char expected[128];
    need(f, abar__setup_copy(f->ctx, setup, &own));
    abar_setup_tables(own, tables);
    if (abar_comm_rank(comm) == 1 && !change(f, &tables[table], name)) return "has no other value";
    const abar_status status = abar__ranks_compare_settings(f->ctx, comm, own, false);
    abar_setup_destroy(f->ctx, own);
    if (may_differ(name)) return status == ABAR_OK ? NULL : "may differ, and is refused";
    if (status != ABAR_E_ARGUMENT) return "differs, and is not refused";
    snprintf(expected, sizeof expected, "--%s is ", name);
    return strstr(abar_context_error(f->ctx), expected) ? NULL : "is not named";
}

static int compare_settings(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    abar_setup_table tables[ABAR_SETUP_TABLES_MAX];
    abar_comm *comm;
    int wrong = 0, seen = 0;
    if (abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    const int n = abar_setup_tables(setup, tables);
    for (int i = 0; i < n; i++)
        for (const abar_option *row = tables[i].options; row->name; row++, seen++) {
            const char *what = compare_changed(f, comm, setup, i, row->name);
            wrong += what != NULL;
            if (what)
                fprintf(stderr, "rank %d: --%s %s (%s)\n", abar_comm_rank(comm), row->name, what, abar_context_error(f->ctx));
        }
    abar_comm_close(comm);
    return wrong || seen < 30 ? 3 : 0;
}

static void ranks_compare_every_setting(void **state)
{
    static const char *const optimizers[] = {"kfac+muon", "mac", "soap", "kpsvd", NULL};
    fixture *f = *state;
    for (int i = 0; optimizers[i]; i++) {
        abar_setup *setup = make_setup(f, "resnet50", optimizers[i], "device=cpu");
        in_child(compare_settings, f, setup);
        abar_setup_destroy(f->ctx, setup);
    }
}

/* ---- data --------------------------------------------------------------------------------------------------------------- */

static void refuse(fixture *f, abar_setup *setup, const rank_plan *plan, const char *what)
{
    need_ranks(f, setup, 2, false, NULL);
    assert_int_equal(run_ranks(f, setup, 2, false, plan), ABAR_E_ARGUMENT);
    assert_error(f, "rank 1 on ");
    assert_error(f, what);
    abar_setup_destroy(f->ctx, setup);
}

/* Samples in memory that each process has for itself. */
enum { SAMPLES = 48, TESTS = 10, PIXELS = 16 };
static uint8_t images[SAMPLES * PIXELS], tests[TESTS * PIXELS];
static int32_t labels[SAMPLES];

static void change_tests(fixture *f, abar_setup *setup, int rank)
{
    (void)f, (void)setup;
    if (rank == 1) tests[3 * PIXELS + 5] ^= 1;
}

static void ranks_with_other_test_data_are_refused(void **state)
{
    fixture *f = *state;
    abar_dataset *data;
    abar_setup *setup;
    need(f, wrap_tiny_images(f, SAMPLES, TESTS, images, tests, labels, false, &data));
    need(f, abar_setup_create(f->ctx, "mlp", "memory", "sgd", &setup));
    set_all(f, setup, "widths=16-8-3 threads=1 batch=12 micro=3 epochs=1 device=cpu");
    need(f, abar_setup_set_data(f->ctx, setup, data));
    refuse(f, setup, &(rank_plan){.change = change_tests}, "the test data is 10 samples with CRC-32");
    abar_dataset_close(data);
}

static char other_data[300]; /* of rank 1 */

static void change_path(fixture *f, abar_setup *setup, int rank)
{
    if (rank == 1) set(f, setup, "data", other_data);
}

/* Each character has the place of another one: the tokens are the same numbers. */
static void ranks_with_another_vocabulary_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = text_setup(f, "sgd", "device=cpu threads=1 batch=8 micro=2 epochs=1");
    char other[] = PATTERN;
    for (char *c = other; *c; c++)
        if (*c >= 'a') *c = (char)(*c + 1);
    write_file(f, "other", other, 60);
    snprintf(other_data, sizeof other_data, "text:%s/other", f->dir);
    refuse(f, setup, &(rank_plan){.change = change_path}, "the vocabulary is ");
}

/* One file has another name, at the same place in the order. */
static void ranks_with_other_files_are_refused(void **state)
{
    fixture *f = *state;
    folder data = make_images(48, 20, 30), other = make_images(48, 20, 30);
    char spec[300], from[600], to[600], name[64];
    abar_setup *setup;
    snprintf(spec, sizeof spec, "imagefolder:%s", data.path);
    snprintf(other_data, sizeof other_data, "imagefolder:%s", other.path);
    image_name(false, 7, name);
    snprintf(from, sizeof from, "%s/%s", other.path, name);
    snprintf(to, sizeof to, "%s/%.*s.jpeg", other.path, (int)(strrchr(name, '.') - name), name);
    assert_int_equal(rename(from, to), 0);
    need(f, abar_setup_create(f->ctx, "resnet50", spec, "sgd", &setup));
    set_all(f, setup,
            "size=16 test-resize=28 test-size=24 batch=16 micro=4 mix-group=2 epochs=1 threads=1 device=cpu warmup=0 "
            "blocks=1-1 width=4 stem=small repeat=1");
    refuse(f, setup, &(rank_plan){.change = change_path}, "the fingerprint of the images is ");
    folder_remove(&data);
    folder_remove(&other);
}

/* ---- an evaluation ------------------------------------------------------------------------------------------------------- */

/* Rank 1 has other weights. */
static int evaluate_others(fixture *f, abar_setup *setup)
{
    const abar_comm_config config = {.size = sizeof config, .ranks = 2};
    char path[2][PATH_MAX_TEST];
    abar_comm *comm;
    if (abar_comm_open(f->ctx, &config, &comm) < 0) return 2;
    path_in(f, "one/model.safetensors", path[0]);
    path_in(f, "two/model.safetensors", path[1]);
    for (int apart = 0; apart < 2; apart++) {
        abar_evaluation found = {.size = sizeof found};
        const abar_status status = abar_evaluate_on(f->ctx, comm, setup, path[apart && abar_comm_rank(comm) == 1], &found);
        const bool refused = status == ABAR_E_ARGUMENT && strstr(abar_context_error(f->ctx), "the checkpoint is ");
        const abar_status right = (apart ? refused : status == ABAR_OK) ? ABAR_OK : ABAR_E_STATE;
        if (abar_ranks_agree(f->ctx, comm, right, "") < 0) return 3 + apart;
    }
    abar_comm_close(comm);
    return 0;
}

static void ranks_with_other_weights_evaluate_nothing(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "lenet5", "sgd", RUN);
    set_out(f, setup, "one");
    need_ranks(f, setup, 1, false, NULL);
    set(f, setup, "lr", "0.01");
    set_out(f, setup, "two");
    need_ranks(f, setup, 1, false, NULL);
    in_child(evaluate_others, f, setup);
    abar_setup_destroy(f->ctx, setup);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test_setup_teardown(ranks_compare_every_setting, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_with_other_test_data_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_with_another_vocabulary_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_with_other_files_are_refused, make_fixture, drop_fixture),
        cmocka_unit_test_setup_teardown(ranks_with_other_weights_evaluate_nothing, make_fixture, drop_fixture),
    };
    return cmocka_run_group_tests(all, make_cache, remove_cache);
}
