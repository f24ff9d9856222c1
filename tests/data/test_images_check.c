/* Checking the files of an image set and shrinking them: what is found, what an interruption keeps, and what failing
 * allocations leave behind. */
#include "data/images_testing.h"

#include "data/images/check.h"
#include "data/images/crew.h"
#include "data/images/shard.h"
#include "tiny_jpeg.h"

#include <dirent.h>

static int set_up(void **state)
{
    *state = set_make();
    return 0;
}

static int tear_down(void **state)
{
    set_free(*state);
    return 0;
}

/* n images in each part, of classes a and b in turn. */
static void put_images(set *s, int n)
{
    for (int i = 0; i < 2 * n; i++) {
        char name[64];
        uint8_t file[TINY_JPEG_NUMBERED];
        snprintf(name, sizeof name, "%s/%c/%03d.jpg", i < n ? "train" : "val", 'a' + i % 2, i);
        tiny_jpeg_number(i, file);
        put_bytes(s, name, file, sizeof file);
    }
}

static abar_image_source source_of(const set *s) { return ABAR_CONFIG(abar_image_source, .folder = s->data, .threads = 2); }

static abar_image_check *check_run(set *s, bool headers)
{
    const abar_image_source source = source_of(s);
    abar_image_check *c;
    assert_int_equal(abar_image_check_create(s->ctx, &source, headers, &c), ABAR_OK);
    assert_int_equal(abar_image_check_run(c), ABAR_OK);
    return c;
}

/* ---- threads ------------------------------------------------------------------------------------------------------ */

typedef struct tally {
    atomic_int times[1000];
    atomic_bool stop;
    int64_t stop_at; /* -1: never */
    bool refuse;
} tally;

static bool count_item(void *user, int worker, int64_t i)
{
    tally *t = user;
    assert_true(worker >= 0 && worker < 7);
    atomic_fetch_add(&t->times[i], 1);
    if (i != t->stop_at) return true;
    if (!t->refuse) atomic_store(&t->stop, true);
    return !t->refuse;
}

static int64_t run_crew(tally *t)
{
    int64_t done = 0;
    const abar__crew_job job = {.threads = 7, .count = 1000, .work = count_item, .user = t, .stop = &t->stop};
    abar__crew_run(&job);
    for (int i = 0; i < 1000; i++) {
        assert_in_range(atomic_load(&t->times[i]), 0, 1);
        done += atomic_load(&t->times[i]);
    }
    return done;
}

static void crew_does_every_item_once(void **state)
{
    (void)state;
    static tally t = {.stop_at = -1};
    assert_int_equal(run_crew(&t), 1000);
}

/* Those in progress are finished: one for each other thread. */
static void crew_begins_no_item_after_a_stop(void **state)
{
    (void)state;
    static tally stopped = {.stop_at = 0}, refused = {.stop_at = 0, .refuse = true};
    atomic_store(&stopped.stop, true);
    assert_int_equal(run_crew(&stopped), 0);
    assert_true(run_crew(&refused) >= 1);
    assert_int_equal(atomic_load(&refused.times[0]), 1);
}

/* ---- checking ------------------------------------------------------------------------------------------------------- */

static void check_counts_and_names_what_it_finds(void **state)
{
    set *s = *state;
    uint8_t file[TINY_JPEG_NUMBERED];
    put_images(s, 4);
    put(s, "train/a/broken.jpg", 0);
    put_text(s, "val/b/page.jpg", "<html>");
    tiny_jpeg_number(0, file);
    put_bytes(s, "train/b/twin.jpg", file, sizeof file);
    put_bytes(s, "val/b/leak.jpg", file, sizeof file);
    abar_image_check *c = check_run(s, false);
    const abar_image_report *r = abar_image_check_report(c);
    assert_int_equal(r->part[0].images, 6);
    assert_int_equal(r->part[1].images, 6);
    assert_int_equal(r->part[1].fewest, 2);
    assert_int_equal(r->part[1].most, 4);
    assert_int_equal(r->checked, 12);
    assert_int_equal(r->jpeg, 10);
    assert_int_equal(r->gray, 10);
    assert_int_equal(r->damaged, 2);
    assert_int_equal(r->repeated, 1);
    assert_int_equal(r->leaked, 1);
    assert_int_equal(r->largest.width, 20);
    assert_int_equal(r->largest.height, 16);
    check_contains(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, 0), "train/a/broken.jpg: is empty");
    check_contains(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, 1), "val/b/page.jpg: is not an image");
    assert_null(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, 2));
    assert_null(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, -1));
    check_contains(abar_image_check_line(c, ABAR_IMAGE_REPEATED, 0), "train/b/twin.jpg = ");
    check_contains(abar_image_check_line(c, ABAR_IMAGE_REPEATED, 0), "train/a/000.jpg");
    check_contains(abar_image_check_line(c, ABAR_IMAGE_LEAKED, 0), "val/b/leak.jpg = ");
    abar_image_check_destroy(c);
}

/* The first ones in order, whichever thread found them first. */
static void check_lists_the_first_fifty(void **state)
{
    set *s = *state;
    char name[64];
    put_images(s, 2);
    for (int i = 0; i < 130; i++) {
        snprintf(name, sizeof name, "train/a/x%03d.jpg", i);
        put(s, name, 0);
    }
    abar_image_check *c = check_run(s, false);
    assert_int_equal(abar_image_check_report(c)->damaged, 130);
    for (int i = 0; i < ABAR_IMAGE_LINES_MAX; i++) {
        snprintf(name, sizeof name, "train/a/x%03d.jpg: is empty", i);
        check_contains(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, i), name);
    }
    assert_null(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, ABAR_IMAGE_LINES_MAX));
    abar_image_check_destroy(c);
}

static void check_that_was_stopped_continues(void **state)
{
    set *s = *state;
    const abar_image_source source = source_of(s);
    abar_image_check *c;
    put_images(s, 20);
    settle(s);
    assert_int_equal(abar_image_check_create(s->ctx, &source, false, &c), ABAR_OK);
    abar_image_check_stop(c);
    assert_int_equal(abar_image_check_run(c), ABAR_STOPPED);
    assert_int_equal(abar_image_check_report(c)->checked, 0);
    abar_image_check_destroy(c);
    c = check_run(s, false);
    assert_int_equal(abar_image_check_report(c)->now, 40);
    abar_image_check_destroy(c);
    c = check_run(s, false);
    assert_int_equal(abar_image_check_report(c)->now, 0);
    assert_int_equal(abar_image_check_report(c)->checked, 40);
    abar_image_check_destroy(c);
}

/* Its folder does not show it: the next check finds out when it reads the file. */
static void check_decodes_the_file_that_was_replaced_and_no_other(void **state)
{
    set *s = *state;
    uint8_t file[sizeof tiny_jpeg + 2];
    put_images(s, 10);
    settle(s);
    abar_image_check_destroy(check_run(s, false));
    memcpy(file, tiny_jpeg, sizeof tiny_jpeg);
    memset(file + sizeof tiny_jpeg, 0, 2);
    put_bytes(s, "train/b/005.jpg", file, sizeof file);
    for (int64_t time = 0; time < 2; time++) {
        abar_image_check *c = check_run(s, false);
        assert_int_equal(abar_image_check_report(c)->now, time == 0 ? 1 : 0);
        assert_int_equal(abar_image_check_report(c)->checked, 20);
        assert_int_equal(abar_image_check_report(c)->part[0].bytes + abar_image_check_report(c)->part[1].bytes,
                         19 * TINY_JPEG_NUMBERED + (int64_t)sizeof file);
        abar_image_check_destroy(c);
    }
}

typedef struct witness {
    const set *s;
    int64_t known; /* images that a new index has facts of, when all are done and the check has not returned */
} witness;

static void look_into_cache(void *user, int64_t done, int64_t all)
{
    witness *w = user;
    abar__images_index *index;
    const abar__images_request request = {.folder = w->s->data};
    if (done < all) return;
    assert_int_equal(abar__images_open(w->s->ctx, &request, &index), ABAR_OK);
    w->known = 0;
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < abar__images_summary_of(index)->count[part]; i++)
            w->known += abar__images_known_of(index, part, i).checked;
    abar__images_close(index);
}

static void check_that_is_killed_loses_what_came_after_the_last_save(void **state)
{
    set *s = *state;
    witness w = {.s = s, .known = -1};
    abar_image_source source = source_of(s);
    abar_image_check *c;
    source.progress = look_into_cache;
    source.user = &w;
    put_images(s, 20);
    settle(s);
    assert_int_equal(abar_image_check_create(s->ctx, &source, false, &c), ABAR_OK);
    abar__image_check_save_every(c, 0.0);
    assert_int_equal(abar_image_check_run(c), ABAR_OK);
    assert_int_equal(w.known, 40);
    assert_int_equal(abar_image_check_run(c), ABAR_E_STATE);
    assert_int_equal(abar_image_check_report(c)->checked, 40);
    abar_image_check_destroy(c);
}

/* Bytes too many before the end: libjpeg warns, and so does Pillow's. */
static void warnings_are_counted_and_kept(void **state)
{
    set *s = *state;
    uint8_t file[sizeof tiny_jpeg + 16];
    put_images(s, 2);
    memset(file, 0x11, sizeof file);
    memcpy(file, tiny_jpeg, sizeof tiny_jpeg - 2);
    memcpy(file + sizeof file - 2, tiny_jpeg + sizeof tiny_jpeg - 2, 2);
    put_bytes(s, "train/a/odd.jpg", file, sizeof file);
    settle(s);
    for (int64_t time = 0; time < 2; time++) {
        abar_image_check *c = check_run(s, false);
        assert_int_equal(abar_image_check_report(c)->now, time == 0 ? 5 : 0);
        assert_int_equal(abar_image_check_report(c)->warned, 1);
        assert_int_equal(abar_image_check_report(c)->damaged, 0);
        abar_image_check_destroy(c);
    }
}

/* Damage that no header shows; and a header that is longer than what is read of a file first. */
static void headers_are_all_that_a_fast_check_reads(void **state)
{
    set *s = *state;
    put_images(s, 3);
    put_bytes(s, "train/a/cut.jpg", tiny_jpeg, sizeof tiny_jpeg - 4);
    uint8_t *large = calloc(1, 3 * 65535 + sizeof tiny_jpeg);
    size_t at = 2;
    memcpy(large, tiny_jpeg, 2);
    for (int i = 0; i < 3; i++, at += 65537) memcpy(large + at, (uint8_t[]){0xff, 0xfe, 0xff, 0xff}, 4);
    large = realloc(large, at + sizeof tiny_jpeg);
    memcpy(large + at, tiny_jpeg + 2, sizeof tiny_jpeg - 2);
    put_bytes(s, "train/a/comments.jpg", large, at + sizeof tiny_jpeg - 2);
    put_bytes(s, "val/a/comments.jpg", large, 65536); /* as long as what is read first */
    free(large);
    abar_image_check *c = check_run(s, true);
    assert_int_equal(abar_image_check_report(c)->damaged, 1);
    check_contains(abar_image_check_line(c, ABAR_IMAGE_DAMAGED, 0), "val/a/comments.jpg");
    assert_int_equal(abar_image_check_report(c)->jpeg, 8);
    abar_image_check_destroy(c);
    c = check_run(s, false);
    assert_int_equal(abar_image_check_report(c)->damaged, 2);
    abar_image_check_destroy(c);
}

static void check_survives_every_failing_allocation(void **state)
{
    set *s = *state;
    abar_image_source source = source_of(s);
    source.threads = 1; /* so that the same allocations come in the same order */
    put_images(s, 3);
    for (long k = 1;; k++) {
        abar_image_check *c;
        s->memory = (failing){.fail_at = k};
        abar_status status = abar_image_check_create(s->ctx, &source, false, &c);
        if (status == ABAR_OK) status = abar_image_check_run(c);
        abar_image_check_destroy(c);
        assert_int_equal(abar_context_memory(s->ctx).now, 0);
        if (status < 0) assert_int_equal(status, ABAR_E_MEMORY);
        if (s->memory.calls < k) break;
        assert_true(k < 1000);
    }
    s->memory.fail_at = 0;
}

/* ---- shrinking ------------------------------------------------------------------------------------------------------ */

static void path_beside(const set *s, const char *name, char out[600]) { snprintf(out, 600, "%s/%s", s->f.path, name); }

static int64_t count_files(const char *path, const char *end)
{
    int64_t n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        const size_t length = strlen(entry->d_name);
        n += length >= strlen(end) && strcmp(entry->d_name + length - strlen(end), end) == 0;
    }
    closedir(dir);
    return n;
}

static void shards_are_cut_at_their_limit_and_continue_after_the_last(void **state)
{
    set *s = *state;
    abar__shards shards;
    char to[600];
    path_beside(s, "shards", to);
    assert_int_equal(mkdir(to, 0755), 0);
    assert_int_equal(abar__shards_open(s->ctx, to, "train", &shards), ABAR_OK);
    assert_int_equal(shards.limit, ABAR_SHARD_BYTES);
    shards.limit = 5 * 2048; /* four samples and the end */
    for (int i = 0; i < 10; i++) assert_int_equal(abar__shards_add(&shards, i, tiny_jpeg, sizeof tiny_jpeg), ABAR_OK);
    assert_int_equal(shards.count, 2);
    abar__shards_abandon(&shards); /* as a kill would, but for the temporary file */
    assert_int_equal(count_files(to, ".tar"), 2);
    assert_int_equal(abar__shards_open(s->ctx, to, "train", &shards), ABAR_OK);
    assert_int_equal(shards.next, 8);
    assert_int_equal(shards.count, 2);
    assert_int_equal(abar__shards_add(&shards, 8, tiny_jpeg, sizeof tiny_jpeg), ABAR_OK);
    assert_int_equal(abar__shards_finish(&shards), ABAR_OK);
    assert_int_equal(abar__shards_open(s->ctx, to, "val", &shards), ABAR_OK);
    assert_int_equal(shards.next, 0);
    assert_int_equal(abar__shards_open(s->ctx, to, "train", &shards), ABAR_OK);
    assert_int_equal(shards.next, 9);
    assert_int_equal(count_files(to, "-000000008-000000009.tar"), 1);
}

static void shrink_that_was_stopped_continues_to_the_same_images(void **state)
{
    set *s = *state;
    const abar_image_source source = source_of(s);
    abar_image_shrink *shrink;
    char to[600], partial[620];
    path_beside(s, "small", to);
    snprintf(partial, sizeof partial, "%s.partial", to);
    put_images(s, 40);
    assert_int_equal(abar_image_shrink_create(s->ctx, &source, 8, to, &shrink), ABAR_OK);
    abar_image_shrink_stop(shrink);
    assert_int_equal(abar_image_shrink_run(shrink), ABAR_STOPPED);
    assert_int_not_equal(access(to, F_OK), 0);
    assert_int_equal(access(partial, F_OK), 0);
    abar_image_shrink *second;
    assert_int_equal(abar_image_shrink_create(s->ctx, &source, 8, to, &second), ABAR_E_BUSY);
    abar_image_shrink_destroy(shrink);
    assert_int_equal(abar_image_shrink_create(s->ctx, &source, 8, to, &shrink), ABAR_OK);
    assert_int_equal(abar_image_shrink_run(shrink), ABAR_OK);
    assert_int_equal(abar_image_shrink_report_of(shrink)->images, 80);
    abar_image_shrink_destroy(shrink);
    assert_int_not_equal(access(partial, F_OK), 0);
    assert_int_equal(count_files(to, ".tar"), 2);
    abar_image_check *c;
    assert_int_equal(abar_image_check_create(s->ctx, &ABAR_CONFIG(abar_image_source, .folder = to), false, &c), ABAR_OK);
    assert_int_equal(abar_image_check_run(c), ABAR_OK);
    assert_int_equal(abar_image_check_report(c)->shrunk, 8);
    assert_int_equal(abar_image_check_report(c)->part[0].fewest, 20);
    assert_int_equal(abar_image_check_report(c)->largest.height, 8);
    assert_int_equal(abar_image_check_report(c)->gray, 80);
    abar_image_check_destroy(c);
}

static void shrink_survives_every_failing_allocation(void **state)
{
    set *s = *state;
    abar_image_source source = source_of(s);
    char to[600];
    source.threads = 1;
    path_beside(s, "small", to);
    put_images(s, 3);
    for (long k = 1;; k++) {
        abar_image_shrink *shrink;
        s->memory = (failing){.fail_at = k};
        abar_status status = abar_image_shrink_create(s->ctx, &source, 8, to, &shrink);
        if (status == ABAR_OK) status = abar_image_shrink_run(shrink);
        abar_image_shrink_destroy(shrink);
        assert_int_equal(abar_context_memory(s->ctx).now, 0);
        if (status < 0) {
            assert_int_equal(status, ABAR_E_MEMORY);
            assert_int_not_equal(access(to, F_OK), 0);
        } else {
            assert_int_equal(count_files(to, ".tar"), 2);
            assert_int_equal(count_files(to, ".lock"), 0);
            break;
        }
        assert_true(k < 1000);
    }
    s->memory.fail_at = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crew_does_every_item_once),
        cmocka_unit_test(crew_begins_no_item_after_a_stop),
        cmocka_unit_test_setup_teardown(check_counts_and_names_what_it_finds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(check_lists_the_first_fifty, set_up, tear_down),
        cmocka_unit_test_setup_teardown(check_that_was_stopped_continues, set_up, tear_down),
        cmocka_unit_test_setup_teardown(check_decodes_the_file_that_was_replaced_and_no_other, set_up, tear_down),
        cmocka_unit_test_setup_teardown(check_that_is_killed_loses_what_came_after_the_last_save, set_up, tear_down),
        cmocka_unit_test_setup_teardown(warnings_are_counted_and_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(headers_are_all_that_a_fast_check_reads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(check_survives_every_failing_allocation, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shards_are_cut_at_their_limit_and_continue_after_the_last, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shrink_that_was_stopped_continues_to_the_same_images, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shrink_survives_every_failing_allocation, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
