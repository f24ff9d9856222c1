#include "images.h"
#include "progress.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COPIES_SHOWN 5 /* of images that are there twice */

bool images_named(const cli *c, const char *spec, abar_dataset_probe *published)
{
    char name[64];
    abar_dataset_probe probe = {.size = sizeof probe};
    snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":"), spec);
    if (abar_dataset_probe_name(c->ctx, name, &probe) < 0) return false;
    if (published) *published = probe;
    return probe.info.streamed;
}

/* ---- progress --------------------------------------------------------------------------------------------------- */

typedef struct watch {
    progress line;
    const char *verb;
    double began;
    int64_t first; /* images that were done at the first call; -1: not called yet */
} watch;

static void watch_begin(cli *c, watch *w, const char *verb, bool json)
{
    *w = (watch){.verb = verb, .began = clock_seconds(), .first = -1};
    progress_init(&w->line, json ? stderr : stdout);
    if (w->line.live) c->progress = &w->line;
}

static void watch_end(cli *c, watch *w)
{
    progress_clear(&w->line);
    c->progress = NULL;
}

static void watch_update(void *user, int64_t done, int64_t all)
{
    watch *w = user;
    char text[128], n[NUMBER_MAX], total[NUMBER_MAX], rate[NUMBER_MAX];
    const double passed = clock_seconds() - w->began;
    if (w->first < 0) w->first = done;
    const double each = done > w->first ? passed / (double)(done - w->first) : 0.0;
    snprintf(text, sizeof text, "%s %s of %s images, %s/s", w->verb, print_count(n, done), print_count(total, all),
             print_count(rate, each > 0.0 ? (int64_t)(1.0 / each) : 0));
    progress_redraw_text(&w->line, text, all > 0 ? (double)done / (double)all : 1.0,
                         each > 0.0 ? each * (double)(all - done) : -1.0);
}

static abar_image_source source_of(const image_request *r, watch *w)
{
    return (abar_image_source){.size = sizeof(abar_image_source),
                               .folder = r->folder,
                               .classes_file = r->classes[0] ? r->classes : NULL,
                               .labels_file = r->val_labels[0] ? r->val_labels : NULL,
                               .threads = (int)r->workers,
                               .progress = watch_update,
                               .user = w};
}

/* ---- what was found, for people ----------------------------------------------------------------------------------- */

/* A line of the report: "  formats    text". */
static void say(const char *label, const char *text)
{
    printf("  %-9s ", label);
    print_wrapped_from(stdout, 12, 12, print_width(stdout), text);
}

static const char *plural(int64_t n, const char *one, const char *many) { return n == 1 ? one : many; }

static void print_part(const char *label, const abar_image_part *p)
{
    char text[256], images[NUMBER_MAX], bytes[NUMBER_MAX], few[NUMBER_MAX], most[NUMBER_MAX];
    print_count(few, p->fewest);
    print_count(most, p->most);
    snprintf(text, sizeof text, "%s %s, %s, %s%s%s per class", print_count(images, p->images),
             plural(p->images, "image", "images"), print_bytes(bytes, (size_t)p->bytes), few,
             p->fewest == p->most ? "" : " to ", p->fewest == p->most ? "" : most);
    say(label, text);
}

/* " (3 progressive, 2 gray)" */
static void describe_jpeg(const abar_image_report *r, char *out, size_t size)
{
    const struct {
        int64_t n;
        const char *name;
    } kinds[] = {{r->progressive, "progressive"}, {r->gray, "gray"}, {r->cmyk, "CMYK"}};
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char number[NUMBER_MAX];
        if (kinds[i].n == 0) continue;
        at +=
            (size_t)snprintf(out + at, size - at, "%s%s %s", at ? ", " : " (", print_count(number, kinds[i].n), kinds[i].name);
    }
    if (at) snprintf(out + at, size - at, ")");
}

static void print_contents(const abar_image_report *r)
{
    char text[512], jpeg[NUMBER_MAX], png[NUMBER_MAX], kinds[256];
    describe_jpeg(r, kinds, sizeof kinds);
    print_count(jpeg, r->jpeg);
    print_count(png, r->png);
    const bool both = r->jpeg > 0 && r->png > 0;
    snprintf(text, sizeof text, "%s%s%s%s%s%s", r->jpeg ? jpeg : "", r->jpeg ? " JPEG" : "", kinds, both ? ", " : "",
             r->png ? png : "", r->png ? " PNG" : "");
    if (r->jpeg + r->png > 0) say("formats", text);
    snprintf(text, sizeof text, "%d x %d smallest, %d x %d median, %d x %d largest", (int)r->smallest.width,
             (int)r->smallest.height, (int)r->median.width, (int)r->median.height, (int)r->largest.width,
             (int)r->largest.height);
    if (r->jpeg + r->png > 0) say("sizes", text);
}

/* Images that are there twice: a count, and the first of them. */
static void print_copies(abar_image_check *check, abar_image_line kind, int64_t n, const char *label, const char *what)
{
    char text[128], number[NUMBER_MAX];
    if (n == 0) return;
    snprintf(text, sizeof text, "%s %s", print_count(number, n), what);
    say(label, text);
    for (int i = 0; i < COPIES_SHOWN && i < n; i++) printf("    %s\n", abar_image_check_line(check, kind, i));
    if (n > COPIES_SHOWN) printf("    and %s more\n", print_count(number, n - COPIES_SHOWN));
}

static void print_damaged(abar_image_check *check, const abar_image_report *r)
{
    char text[128], number[NUMBER_MAX];
    const char *line;
    if (r->damaged == 0) return;
    snprintf(text, sizeof text, "%s %s", print_count(number, r->damaged), plural(r->damaged, "image:", "images:"));
    say("damaged", text);
    for (int64_t i = 0; (line = abar_image_check_line(check, ABAR_IMAGE_DAMAGED, i)); i++) printf("    %s\n", line);
    if (r->damaged > ABAR_IMAGE_LINES_MAX) printf("    and %s more\n", print_count(number, r->damaged - ABAR_IMAGE_LINES_MAX));
}

static void print_checked(const image_request *request, const abar_image_report *r, bool stopped)
{
    char text[256], n[NUMBER_MAX], before[NUMBER_MAX + 64] = "", time[NUMBER_MAX], rate[NUMBER_MAX];
    const int64_t all = r->part[0].images + r->part[1].images, earlier = r->checked - r->now;
    const double each = r->seconds > 0.0 ? (double)r->now / r->seconds : 0.0;
    if (earlier > 0) {
        char number[NUMBER_MAX];
        snprintf(before, sizeof before, "; %s %s checked before", print_count(number, earlier), plural(earlier, "was", "were"));
    }
    snprintf(text, sizeof text, "%s %s in %s, %s/s%s%s", print_count(n, r->now), plural(r->now, "image", "images"),
             print_duration(time, r->seconds), each < 10.0 ? print_fixed(rate, each, 1) : print_count(rate, (int64_t)each),
             before, request->fast ? "; of these the headers alone, no pixels" : "");
    if (r->now == 0) snprintf(text, sizeof text, "nothing%s", before);
    say("checked", text);
    if (stopped) {
        snprintf(text, sizeof text, "%s images are left, the same command continues", print_count(n, all - r->checked));
        say("stopped", text);
    }
}

static void print_report(const image_request *request, abar_image_check *check, bool stopped)
{
    const abar_image_report *r = abar_image_check_report(check);
    char text[256], number[NUMBER_MAX];
    printf("%s in %s\n", request->name, request->folder);
    snprintf(text, sizeof text, "%s, %s %s", r->layout, print_count(number, r->classes),
             plural(r->classes, "class", "classes"));
    if (r->shrunk > 0)
        snprintf(text + strlen(text), sizeof text - strlen(text), "; copies with a short side of %" PRId64, r->shrunk);
    say("layout", text);
    print_part("training", &r->part[0]);
    print_part("test", &r->part[1]);
    if (request->published[0] > 0 &&
        (request->published[0] != r->part[0].images || request->published[1] != r->part[1].images)) {
        snprintf(text, sizeof text, "%s has %" PRId64 " + %" PRId64 " images", request->name, request->published[0],
                 request->published[1]);
        say("published", text);
    }
    print_contents(r);
    snprintf(text, sizeof text, "%s %s no test image", print_count(number, r->untested),
             plural(r->untested, "class has", "classes have"));
    if (r->untested > 0) say("untested", text);
    snprintf(text, sizeof text, "%s %s", print_count(number, r->ignored),
             plural(r->ignored, "name that is no image's", "names that are no images'"));
    if (r->ignored > 0) say("ignored", text);
    snprintf(text, sizeof text, "%s %s decoded in spite of errors in the file", print_count(number, r->warned),
             plural(r->warned, "image was", "images were"));
    if (r->warned > 0) say("warnings", text);
    print_copies(check, ABAR_IMAGE_REPEATED, r->repeated, "repeated",
                 plural(r->repeated, "training image has the bytes of an earlier one",
                        "training images have the bytes of an earlier one"));
    print_copies(
        check, ABAR_IMAGE_LEAKED, r->leaked, "leaked",
        plural(r->leaked, "test image has the bytes of a training image", "test images have the bytes of a training image"));
    print_damaged(check, r);
    print_checked(request, r, stopped);
}

/* ---- what was found, for programs --------------------------------------------------------------------------------- */

static void json_lines(json_writer *j, abar_image_check *check, abar_image_line kind, const char *name)
{
    const char *line;
    json_begin(j, name, '[');
    for (int64_t i = 0; (line = abar_image_check_line(check, kind, i)); i++) json_text(j, NULL, line);
    json_end(j);
}

static void json_size(json_writer *j, const char *name, abar_image_size size)
{
    json_begin(j, name, '[');
    json_int(j, NULL, size.width);
    json_int(j, NULL, size.height);
    json_end(j);
}

static void json_part(json_writer *j, const char *name, const abar_image_part *p)
{
    json_begin(j, name, '{');
    json_int(j, "images", p->images);
    json_int(j, "bytes", p->bytes);
    json_int(j, "fewest_per_class", p->fewest);
    json_int(j, "most_per_class", p->most);
    json_end(j);
}

static void print_report_json(const image_request *request, abar_image_check *check, bool complete)
{
    const abar_image_report *r = abar_image_check_report(check);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"classes", r->classes}, {"untested", r->untested},       {"ignored", r->ignored},   {"shrunk", r->shrunk},
                   {"jpeg", r->jpeg},       {"progressive", r->progressive}, {"gray", r->gray},         {"cmyk", r->cmyk},
                   {"png", r->png},         {"warned", r->warned},           {"repeated", r->repeated}, {"leaked", r->leaked},
                   {"damaged", r->damaged}, {"checked", r->checked},         {"checked_now", r->now}};
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "name", request->name);
    json_text(&j, "where", request->folder);
    json_text(&j, "samples", "images");
    json_text(&j, "layout", r->layout);
    json_part(&j, "train", &r->part[0]);
    json_part(&j, "test", &r->part[1]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) json_int(&j, numbers[i].name, numbers[i].value);
    if (request->published[0] > 0) json_int(&j, "published_train", request->published[0]);
    if (request->published[0] > 0) json_int(&j, "published_test", request->published[1]);
    json_size(&j, "smallest", r->smallest);
    json_size(&j, "median", r->median);
    json_size(&j, "largest", r->largest);
    json_lines(&j, check, ABAR_IMAGE_DAMAGED, "damaged_images");
    json_lines(&j, check, ABAR_IMAGE_REPEATED, "repeated_images");
    json_lines(&j, check, ABAR_IMAGE_LEAKED, "leaked_images");
    json_real(&j, "seconds", r->seconds);
    json_real(&j, "images_per_second", r->seconds > 0.0 ? (double)r->now / r->seconds : 0.0);
    json_bool(&j, "headers_only", request->fast);
    json_bool(&j, "complete", complete);
    json_finish(&j);
}

/* ---- checking --------------------------------------------------------------------------------------------------- */

static abar_status run_check(void *check) { return abar_image_check_run(check); }
static void stop_check(void *check) { abar_image_check_stop(check); }

static int report(const image_request *request, abar_image_check *check, bool stopped)
{
    const abar_image_report *r = abar_image_check_report(check);
    if (request->json)
        print_report_json(request, check, !stopped);
    else
        print_report(request, check, stopped);
    if (stopped) return stop_exit_code();
    if (r->damaged == 0) return EXIT_SUCCESS;
    fflush(stdout);
    return cli_fail_reported(EXIT_FAILURE, "%s: %" PRId64 " of %" PRId64 " images %s damaged, repair or remove %s",
                             request->folder, r->damaged, r->part[0].images + r->part[1].images,
                             plural(r->damaged, "is", "are"), plural(r->damaged, "it", "them"));
}

int images_check(cli *c, const image_request *request)
{
    abar_image_check *check = NULL;
    watch w;
    watch_begin(c, &w, request->fast ? "looking at" : "checking", request->json);
    progress_say(&w.line, "finding the images");
    const abar_image_source source = source_of(request, &w);
    abar_status status = abar_image_check_create(c->ctx, &source, request->fast, &check);
    if (status == ABAR_OK) status = stop_on_signal(&(stoppable){.object = check, .run = run_check, .stop = stop_check});
    watch_end(c, &w);
    const int code = status < 0 ? cli_fail_status(c, status) : report(request, check, status == ABAR_STOPPED);
    abar_image_check_destroy(check);
    return code;
}

/* ---- a smaller copy --------------------------------------------------------------------------------------------- */

static abar_status run_shrink(void *shrink) { return abar_image_shrink_run(shrink); }
static void stop_shrink(void *shrink) { abar_image_shrink_stop(shrink); }

static void print_shrunk(const abar_image_shrink_report *r, const char *to, bool stopped)
{
    char text[512], images[NUMBER_MAX], shards[NUMBER_MAX], before[NUMBER_MAX], after[NUMBER_MAX], time[NUMBER_MAX];
    print_path(stdout, "copy", to);
    if (r->existed) {
        printf("  it is there already, nothing was written\n");
        return;
    }
    snprintf(text, sizeof text, "%s images in %s tar %s; %s became %s in %s", print_count(images, r->images),
             print_count(shards, r->shards), plural(r->shards, "shard", "shards"), print_bytes(before, (size_t)r->bytes_before),
             print_bytes(after, (size_t)r->bytes), print_duration(time, r->seconds));
    printf("  ");
    print_wrapped(stdout, 2, print_width(stdout), text);
    if (stopped) printf("  stopped; the same command continues\n");
}

static void print_shrunk_json(const abar_image_shrink_report *r, const char *to, int64_t side, bool stopped)
{
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "to", to);
    json_int(&j, "shrunk", side);
    json_int(&j, "images", r->images);
    json_int(&j, "images_kept", r->kept);
    json_int(&j, "shards", r->shards);
    json_int(&j, "bytes", r->bytes);
    json_int(&j, "bytes_before", r->bytes_before);
    json_real(&j, "seconds", r->seconds);
    json_bool(&j, "existed", r->existed);
    json_bool(&j, "complete", !stopped);
    json_finish(&j);
}

int images_shrink(cli *c, const image_request *request, int64_t side, const char *to)
{
    abar_image_shrink *shrink = NULL;
    watch w;
    watch_begin(c, &w, "shrinking", request->json);
    progress_say(&w.line, "finding the images");
    const abar_image_source source = source_of(request, &w);
    abar_status status = abar_image_shrink_create(c->ctx, &source, side, to, &shrink);
    if (status == ABAR_OK) status = stop_on_signal(&(stoppable){.object = shrink, .run = run_shrink, .stop = stop_shrink});
    watch_end(c, &w);
    const bool stopped = status == ABAR_STOPPED;
    int code = status < 0 ? cli_fail_status(c, status) : stopped ? stop_exit_code() : EXIT_SUCCESS;
    if (status >= 0 && request->json) print_shrunk_json(abar_image_shrink_report_of(shrink), to, side, stopped);
    if (status >= 0 && !request->json) print_shrunk(abar_image_shrink_report_of(shrink), to, stopped);
    abar_image_shrink_destroy(shrink);
    return code;
}
