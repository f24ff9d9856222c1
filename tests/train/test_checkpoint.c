/* What is refused when a run is resumed: flipped bits, changed data, ignored settings; and what is not called damaged. */
#include "text_support.h"

#include <cjson/cJSON.h>
#include <math.h>

#define SMALL "limit-train=80 limit-test=24 batch=16 epochs=3 threads=1 device=ref widths=784-16-10" /* 5 steps an epoch */

/* Resumes the run in dir with more options; its status. */
static abar_status resume_with(fixture *f, const char *name, const char *option, const char *value)
{
    char dir[PATH_MAX_TEST];
    abar_setup *setup;
    abar_trainer *t;
    path_in(f, name, dir);
    need(f, abar_setup_load(f->ctx, dir, &setup));
    if (option) set(f, setup, option, value);
    abar_status status = abar_trainer_create(f->ctx, setup, true, NULL, &t);
    if (status == ABAR_OK) status = abar_trainer_run(t);
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
    return status;
}

/* ---- flipped bits ---------------------------------------------------------------------------------------------- */

static void flip(fixture *f, const char *name, long from_end)
{
    char path[PATH_MAX_TEST];
    path_in(f, name, path);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 0x10, file), byte ^ 0x10);
    assert_int_equal(fclose(file), 0);
}

static void checkpoint_and_export_with_a_flipped_bit_are_refused_by_tensor(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL);
    abar_evaluation result = {.size = sizeof result};
    char weights[PATH_MAX_TEST];
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 8), ABAR_STOPPED);
    flip(f, "run/state.safetensors", 1);
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_FORMAT);
    assert_error(f, "state.safetensors: tensor optim.updates does not match its checksum");
    flip(f, "run/state.safetensors", 1);
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_OK);
    flip(f, "run/model.safetensors", 1);
    path_in(f, "run/model.safetensors", weights);
    assert_int_equal(abar_evaluate(f->ctx, setup, weights, &result), ABAR_E_FORMAT);
    assert_error(f, "model.safetensors: tensor fc2.bias does not match its checksum");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- changed data ---------------------------------------------------------------------------------------------- */

static void put(fixture *f, const char *name, long at, char byte)
{
    char path[PATH_MAX_TEST];
    path_in(f, name, path);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    assert_int_equal(fputc(byte, file), byte);
    assert_int_equal(fclose(file), 0);
}

static void changed_text_of_the_same_alphabet_is_refused_unless_accepted(void **state)
{
    fixture *f = *state;
    abar_setup *setup = text_setup(f, "adamw", "");
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    put(f, "text", 7, 'a'); /* was a blank; same characters, same length */
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "its training part has changed since the checkpoint (702 tokens with CRC-32 ");
    assert_error(f, "--accept-data");
    put(f, "text", 7, ' ');
    put(f, "text", -1, 'a');
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_ARGUMENT);
    assert_error(f, "its test part has changed");
    assert_int_equal(resume_with(f, "run", "accept-data", "true"), ABAR_OK);
    assert_non_null(strstr(f->log, "as --accept-data allows"));
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_OK); /* what was accepted is what is expected now */
    put(f, "text", -1, ' ');
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_ARGUMENT); /* and was accepted once */
    abar_setup_destroy(f->ctx, setup);
}

/* Two CIFAR-10 images in every file, all bytes alike. */
static void write_cifar(fixture *f, const char *name)
{
    static const char *const files[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
    char path[PATH_MAX_TEST];
    path_in(f, name, path);
    assert_int_equal(mkdir(path, 0755), 0);
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", f->dir, name, files[i]);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        for (int k = 0; k < 2 * 3073; k++) fputc(k % 3073 == 0 ? i : 40 * i + k % 7, file);
        assert_int_equal(fclose(file), 0);
    }
}

static void changed_images_are_refused_and_moved_ones_are_not(void **state)
{
    fixture *f = *state;
    abar_setup *setup;
    char data[PATH_MAX_TEST + 16];
    write_cifar(f, "one");
    write_cifar(f, "two");
    snprintf(data, sizeof data, "cifar10:%s/one", f->dir);
    need(f, abar_setup_create(f->ctx, "mlp", data, "sgd", &setup));
    set(f, setup, "device", "ref");
    set(f, setup, "widths", "3072-4-10");
    set(f, setup, "batch", "2");
    set(f, setup, "epochs", "2");
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 2), ABAR_STOPPED);
    snprintf(data, sizeof data, "cifar10:%s/two", f->dir);
    set(f, setup, "data", data);
    abar_trainer *t;
    need(f, abar_trainer_create(f->ctx, setup, true, NULL, &t)); /* the same content elsewhere */
    abar_trainer_destroy(t);
    put(f, "two/data_batch_3.bin", 0, 9); /* a label */
    assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "its training part has changed since the checkpoint (10 samples");
    put(f, "two/data_batch_3.bin", 0, 2);
    put(f, "two/test_batch.bin", -1, 1); /* a pixel */
    assert_int_equal(abar_trainer_create(f->ctx, setup, true, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "its test part has changed since the checkpoint (2 samples");
    set(f, setup, "limit-test", "1"); /* other test samples, as asked */
    need(f, abar_trainer_create(f->ctx, setup, true, NULL, &t));
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

static void checkpoint_without_a_digest_is_resumed(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL);
    abar__safetensors_writer *writer;
    char path[PATH_MAX_TEST];
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    abar__safetensors *file = open_in(f, "run", "state.safetensors");
    assert_non_null(abar__safetensors_metadata(file, "data"));
    need(f, abar__safetensors_writer_create(f->ctx, &writer));
    static const char *const keys[] = {"config", "progress"}; /* what older checkpoints have */
    for (int i = 0; i < 2; i++)
        need(f, abar__safetensors_writer_metadata(writer, keys[i], abar__safetensors_metadata(file, keys[i])));
    for (int i = 0; i < abar__safetensors_count(file); i++) {
        abar_tensor t;
        const char *name = abar__safetensors_get(file, i, &t);
        need(f, abar__safetensors_writer_add(writer, name, &t));
    }
    path_in(f, "run/state.safetensors", path);
    need(f, abar__safetensors_writer_write(writer, path));
    abar__safetensors_writer_destroy(writer);
    abar__safetensors_close(file);
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_OK);
    abar_setup_destroy(f->ctx, setup);
}

/* ---- settings that would be ignored ----------------------------------------------------------------------------- */

static void settings_that_resume_would_ignore_are_refused(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL);
    abar_trainer *t;
    char weights[PATH_MAX_TEST], dir[PATH_MAX_TEST];
    path_in(f, "first/model.safetensors", weights);
    set_out(f, setup, "first");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    assert_int_equal(resume_with(f, "first", "init", weights), ABAR_E_ARGUMENT);
    assert_error(f, "the run to resume has its weights already");
    set(f, setup, "init", weights);
    set_out(f, setup, "second");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    assert_int_equal(resume_with(f, "second", "init", weights), ABAR_OK); /* as it was begun */
    set_out(f, setup, "third");
    set(f, setup, "accept-data", "true");
    assert_int_equal(abar_trainer_create(f->ctx, setup, false, NULL, &t), ABAR_E_ARGUMENT);
    assert_error(f, "--accept-data: is for a run that goes on");
    path_in(f, "third", dir);
    assert_false(abar__path_exists(dir));
    abar_setup_destroy(f->ctx, setup);
}

/* ---- memory that is short ---------------------------------------------------------------------------------------- */

/* cJSON's memory is malloc's, not the context's: its hooks make one allocation after the other fail. */
static long json_calls, json_fail_at;

static void *json_malloc(size_t n) { return ++json_calls == json_fail_at ? NULL : malloc(n); }

/* Loads a setup again and again while another allocation of cJSON fails each time. */
static void check_json_memory(fixture *f, abar_status (*load)(abar_context *, const char *, abar_setup **), const char *path)
{
    cJSON_Hooks hooks = {json_malloc, free};
    abar_status status = ABAR_E_MEMORY;
    for (json_fail_at = 1; status != ABAR_OK; json_fail_at++) {
        abar_setup *setup;
        json_calls = 0;
        cJSON_InitHooks(&hooks);
        status = load(f->ctx, path, &setup);
        cJSON_InitHooks(NULL);
        if (status == ABAR_OK) {
            abar_setup_destroy(f->ctx, setup);
            break;
        }
        if (status != ABAR_E_MEMORY) fail_msg("allocation %ld: %s", json_fail_at, abar_context_error(f->ctx));
        assert_error(f, "not enough memory");
    }
    assert_true(json_fail_at > 50);
}

static void good_files_are_not_called_damaged_when_memory_is_short(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL);
    char dir[PATH_MAX_TEST], checkpoint[PATH_MAX_TEST];
    path_in(f, "run", dir);
    path_in(f, "run/state.safetensors", checkpoint);
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 3), ABAR_STOPPED);
    check_json_memory(f, abar_setup_load, dir);             /* config.json */
    check_json_memory(f, abar_setup_load_file, checkpoint); /* the header, and the settings in its metadata */
    abar_setup_destroy(f->ctx, setup);
}

/* Whether a checkpoint was there is read in the log: when that fails, nothing is begun anew over it. */
static void log_that_cannot_be_read_keeps_a_run_from_starting_over(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL);
    char path[PATH_MAX_TEST];
    set_out(f, setup, "run");
    assert_int_equal(run_until(f, setup, false, 0), ABAR_OK);
    path_in(f, "run/state.safetensors", path);
    assert_int_equal(remove(path), 0);
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_NOT_FOUND);
    assert_error(f, "the checkpoint is gone");
    path_in(f, "run/log.jsonl", path);
    assert_int_equal(truncate(path, ((off_t)1 << 30) + 1), 0); /* sparse, and more than was ever read at once */
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_NOT_FOUND);
    assert_error(f, "the checkpoint is gone");
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0755), 0); /* cannot be read as a file */
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_IO);
    assert_error(f, "log.jsonl");
    abar_setup_destroy(f->ctx, setup);
}

/* ---- steps that are skipped -------------------------------------------------------------------------------------- */

typedef struct told {
    double loss;
    int64_t epochs;
} told;

static void tell(void *user, const abar_progress *p)
{
    told *last = user;
    last->loss = p->loss;
    last->epochs += p->epoch_done;
}

static void run_whose_steps_were_all_skipped_fails_and_keeps_its_checkpoint(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL " epochs=1");
    told last = {0};
    abar_trainer_events events = {sizeof events, tell, &last};
    abar_trainer *t;
    const char *report;
    set_out(f, setup, "run");
    need(f, abar_trainer_create(f->ctx, setup, false, &events, &t));
    abar_dataset_info poison = *t->stepper.info;
    poison.mean[0] = NAN; /* every image */
    t->stepper.info = &poison;
    assert_int_equal(abar_trainer_run(t), ABAR_E_NUMERIC);
    assert_error(f, "not finite in all 5 steps");
    assert_int_equal(last.epochs, 1);
    assert_true(isnan(last.loss));
    need(f, abar_trainer_report(t, &report));
    assert_non_null(strstr(report, "\"train_acc\": null, \"train_loss\": null"));
    assert_non_null(strstr(report, "\"skipped_steps\": 5"));
    abar_trainer_destroy(t);
    assert_int_equal(lines_in(f, "run", "\"train_loss\": null"), 1);
    assert_int_equal(resume_with(f, "run", NULL, NULL), ABAR_E_NUMERIC); /* nothing left to do, and nothing was done */
    assert_int_equal(resume_with(f, "run", "epochs", "2"), ABAR_OK);     /* the data are good now */
    assert_int_equal(lines_in(f, "run", "\"train_loss\": null"), 1);
    abar_setup_destroy(f->ctx, setup);
}

static void report_before_the_first_epoch_has_no_losses(void **state)
{
    fixture *f = *state;
    abar_setup *setup = make_setup(f, "mlp", "sgd", SMALL);
    abar_trainer *t;
    const char *report;
    need(f, abar_trainer_create(f->ctx, setup, false, NULL, &t));
    need(f, abar_trainer_report(t, &report));
    assert_non_null(strstr(report, "\"test_loss\": null"));
    assert_non_null(strstr(report, "\"train_loss\": null"));
    assert_null(strstr(report, "\"test_acc\": 0"));
    abar_trainer_destroy(t);
    abar_setup_destroy(f->ctx, setup);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, make_fixture, drop_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(checkpoint_and_export_with_a_flipped_bit_are_refused_by_tensor),
        with_fixture(changed_text_of_the_same_alphabet_is_refused_unless_accepted),
        with_fixture(changed_images_are_refused_and_moved_ones_are_not),
        with_fixture(checkpoint_without_a_digest_is_resumed),
        with_fixture(settings_that_resume_would_ignore_are_refused),
        with_fixture(good_files_are_not_called_damaged_when_memory_is_short),
        with_fixture(log_that_cannot_be_read_keeps_a_run_from_starting_over),
        with_fixture(run_whose_steps_were_all_skipped_fails_and_keeps_its_checkpoint),
        with_fixture(report_before_the_first_epoch_has_no_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
