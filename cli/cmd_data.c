/* abar data: lists the data sets and where they are; or reads one and describes it; or makes a smaller copy of its images. */
#include "images.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct data_flags {
    char data[ABAR_OPTION_TEXT_MAX];
    int64_t text;
    int64_t workers, shrink;
    char to[ABAR_OPTION_TEXT_MAX], classes[ABAR_OPTION_TEXT_MAX], val_labels[ABAR_OPTION_TEXT_MAX];
    bool fast, json;
} data_flags;

#define AT(member) offsetof(data_flags, member)

static const abar_option own[] = {
    {"data", ABAR_OPTION_TEXT, AT(data), "", 0, 0, NULL, "read this one completely and describe it"},
    {"text", ABAR_OPTION_CHOICE, AT(text), "characters", 0, 0, "characters|bytes", "of texts: what a token is"},
    {"workers", ABAR_OPTION_INT, AT(workers), "0", 0, 256, NULL, "of image folders: threads that decode; 0: one per core"},
    {"fast", ABAR_OPTION_BOOL, AT(fast), "false", 0, 0, NULL, "of image folders: look at headers alone, not at pixels"},
    {"shrink", ABAR_OPTION_INT, AT(shrink), "0", 0, 8192, NULL,
     "of image folders: make a copy with this short side in pixels, as tar shards; 0: none"},
    {"to", ABAR_OPTION_TEXT, AT(to), "", 0, 0, NULL, "folder of that copy"},
    {"classes", ABAR_OPTION_TEXT, AT(classes), "", 0, 0, NULL,
     "of image folders: file with the order of the classes, one name a line"},
    {"val-labels", ABAR_OPTION_TEXT, AT(val_labels), "", 0, 0, NULL,
     "of image folders: file with the labels of the test images"},
    {"json", ABAR_OPTION_BOOL, AT(json), "false", 0, 0, NULL, JSON_HELP},
    {0}};

/* ---- the list ------------------------------------------------------------------------------------------------- */

static void print_probe(const char *name, const abar_dataset_probe *probe)
{
    const int column = print_entry(stdout, 15, name, probe->summary);
    const bool fits = column + (int)strlen("found in ") + (int)strlen(probe->where) <= print_width(stdout);
    printf("%*s", column, "");
    if (!probe->found)
        print_wrapped(stdout, column, print_width(stdout), probe->remedy);
    else if (probe->where[0])
        printf("found in%s%*s%s\n", fits ? " " : "\n", fits ? 0 : column, "", probe->where);
    else
        printf("always there\n");
}

static void print_probe_json(json_writer *j, const char *name, const abar_dataset_probe *probe)
{
    json_begin(j, NULL, '{');
    json_text(j, "name", name);
    json_text(j, "summary", probe->summary);
    json_bool(j, "found", probe->found);
    json_text(j, "where", probe->found && probe->where[0] ? probe->where : NULL);
    json_text(j, "remedy", probe->found ? NULL : probe->remedy);
    json_end(j);
}

static void list_data(cli *c, bool json)
{
    json_writer j = {0};
    if (json) json_begin(&j, NULL, '{');
    if (json) json_begin(&j, "data", '[');
    for (const char *const *name = abar_dataset_names(); *name; name++) {
        abar_dataset_probe probe = {.size = sizeof probe};
        (void)abar_dataset_probe_name(c->ctx, *name, &probe); /* never fails for a known name */
        if (json)
            print_probe_json(&j, *name, &probe);
        else
            print_probe(*name, &probe);
    }
    if (json)
        json_finish(&j);
    else
        printf("\nTo read and describe one:\n  %s data --data NAME[:DIR]\n", c->program);
}

/* ---- one data set --------------------------------------------------------------------------------------------- */

/* Images per class. out: info->classes numbers. */
static void count_classes(const abar_dataset *data, const abar_dataset_info *info, bool test, int64_t *out)
{
    const int64_t n = test ? info->test : info->train;
    for (int64_t i = 0; i < n; i++) out[abar_dataset_label(data, test, i)]++;
}

static void print_set(const abar_dataset *data, const data_flags *flags, const int64_t *counts[2])
{
    const abar_dataset_info *info = abar_dataset_info_of(data);
    char train[NUMBER_MAX], test[NUMBER_MAX], bytes[NUMBER_MAX], kinds[NUMBER_MAX], line[256];
    print_count(train, info->train);
    print_count(test, info->test);
    print_bytes(bytes, abar_dataset_bytes(data));
    printf("%s%s%s\n  ", info->name, info->where[0] ? " in " : "", info->where);
    if (info->text)
        snprintf(line, sizeof line, "%s training and %s test %s, %s different ones, %s in memory", train, test,
                 flags->text == ABAR_TEXT_BYTES ? "bytes" : "characters", print_count(kinds, info->classes), bytes);
    else
        snprintf(line, sizeof line,
                 "%s training and %s test images, %" PRId64 " x %" PRId64 " x %" PRId64 ", %" PRId64 " classes, %s in memory",
                 train, test, info->channels, info->height, info->width, info->classes, bytes);
    print_wrapped(stdout, 2, print_width(stdout), line);
    for (int part = 0; part < 2 && !info->text && info->classes <= 20; part++) {
        char list[20 * 22] = "";
        int n = printf("  %-8s per class: ", part ? "test" : "training");
        for (int64_t label = 0, at = 0; label < info->classes; label++)
            at += snprintf(list + at, sizeof list - (size_t)at, "%s%" PRId64, label ? " " : "", counts[part][label]);
        print_wrapped_from(stdout, n, 4, print_width(stdout), list);
    }
}

static void print_set_json(const abar_dataset *data, const abar_dataset_info *published, const data_flags *flags,
                           const int64_t *counts[2])
{
    static const char *const parts[] = {"train_per_class", "test_per_class"};
    const abar_dataset_info *info = abar_dataset_info_of(data);
    json_writer j = {0};
    json_begin(&j, NULL, '{');
    json_text(&j, "name", info->name);
    json_text(&j, "where", info->where[0] ? info->where : NULL);
    json_text(&j, "samples", !info->text ? "images" : flags->text == ABAR_TEXT_BYTES ? "bytes" : "characters");
    json_int(&j, "train", info->train);
    json_int(&j, "test", info->test);
    json_int(&j, "classes", info->classes);
    json_int(&j, "bytes", (int64_t)abar_dataset_bytes(data));
    if (!info->text) {
        json_int(&j, "channels", info->channels);
        json_int(&j, "height", info->height);
        json_int(&j, "width", info->width);
        json_int(&j, "published_train", published->train);
        json_int(&j, "published_test", published->test);
    }
    for (int part = 0; part < 2 && !info->text; part++) {
        json_begin(&j, parts[part], '[');
        for (int64_t label = 0; label < info->classes; label++) json_int(&j, NULL, counts[part][label]);
        json_end(&j);
    }
    json_finish(&j);
}

static int describe(cli *c, const abar_dataset *data, const abar_dataset_info *published, const data_flags *flags)
{
    const abar_dataset_info *info = abar_dataset_info_of(data);
    int64_t *counts = info->text ? NULL : calloc(2 * (size_t)info->classes, sizeof *counts);
    if (!info->text && !counts) return cli_fail(c, EXIT_FAILURE, "memory: none left to count the classes");
    const int64_t *parts[2] = {counts, counts ? counts + info->classes : NULL};
    for (int i = 0; i < 2 && counts; i++) count_classes(data, info, i, counts + i * info->classes);
    if (flags->json)
        print_set_json(data, published, flags, parts);
    else
        print_set(data, flags, parts);
    const bool part = !info->text && (published->train > info->train || published->test > info->test);
    if (part && !flags->json)
        printf("  not complete: %s has %" PRId64 " + %" PRId64 "\n", info->name, published->train, published->test);
    free(counts);
    return EXIT_SUCCESS;
}

/* ---- image folders ---------------------------------------------------------------------------------------------- */

static int work_on_images(cli *c, const data_flags *flags, const abar_dataset_probe *probe)
{
    const char *colon = strchr(flags->data, ':');
    if (!colon || !colon[1]) return cli_fail(c, EXIT_USAGE, "--data %s: %s", flags->data, probe->remedy);
    const image_request request = {.name = probe->info.name,
                                   .folder = colon + 1,
                                   .classes = flags->classes,
                                   .val_labels = flags->val_labels,
                                   .workers = flags->workers,
                                   .fast = flags->fast,
                                   .json = flags->json,
                                   .published = {probe->info.train, probe->info.test}};
    if (flags->shrink > 0) return images_shrink(c, &request, flags->shrink, flags->to);
    return images_check(c, &request);
}

/* Flags that have a meaning for other data only. */
static int refuse_flags(cli *c, const data_flags *flags, bool images)
{
    const struct {
        const char *name;
        bool given;
    } flag[] = {{"workers", flags->workers > 0},        {"fast", flags->fast},
                {"shrink", flags->shrink > 0},          {"to", flags->to[0] != '\0'},
                {"classes", flags->classes[0] != '\0'}, {"val-labels", flags->val_labels[0] != '\0'}};
    for (size_t i = 0; i < sizeof flag / sizeof *flag && !images; i++)
        if (flag[i].given)
            return cli_fail(c, EXIT_USAGE, "--%s: is for folders of images, give --data imagefolder:DIR or leave it out",
                            flag[i].name);
    if (flags->shrink > 0 && !flags->to[0])
        return cli_fail(c, EXIT_USAGE, "--shrink: where the copy goes is missing, give --to DIR");
    if (flags->to[0] && flags->shrink == 0)
        return cli_fail(c, EXIT_USAGE, "--to: is the folder of a smaller copy, give --shrink SIDE, too");
    if (flags->shrink > 0 && flags->fast) return cli_fail(c, EXIT_USAGE, "--fast: a copy reads all pixels, leave it out");
    return EXIT_SUCCESS;
}

/* Opening reads and checks everything. */
static int check_data(cli *c, const data_flags *flags)
{
    abar_dataset *data = NULL;
    abar_dataset_config config = {.size = sizeof config, .bytes = flags->text == ABAR_TEXT_BYTES};
    abar_dataset_probe probe = {.size = sizeof probe};
    const bool images = images_named(c, flags->data, &probe);
    const int code = refuse_flags(c, flags, images);
    if (code) return code;
    if (images) return work_on_images(c, flags, &probe);
    abar_status status = abar_dataset_probe_name(c->ctx, flags->data, &probe);
    if (status == ABAR_E_NOT_FOUND && path_exists(flags->data))
        return cli_fail(c, EXIT_USAGE,
                        "--data %s: a path alone does not say what it holds, give text:FILE or NAME:DIR, as in "
                        "imagefolder:DIR, `abar data` lists the names",
                        flags->data);
    if (status < 0) return cli_fail_usage(c, status);
    status = abar_dataset_open(c->ctx, flags->data, &config, &data);
    if (status < 0) return cli_fail_status(c, status);
    const int described = describe(c, data, &probe.info, flags);
    abar_dataset_close(data);
    return described;
}

static int run(cli *c)
{
    data_flags flags;
    int code = flags_read(c, &flags, NULL, NULL);
    if (code) return code;
    if (flags.data[0]) return check_data(c, &flags);
    code = refuse_flags(c, &flags, false);
    if (code) return code;
    list_data(c, flags.json);
    return EXIT_SUCCESS;
}

const command command_data = {
    .name = "data",
    .summary = "list the data sets found; --data NAME[:DIR] checks one",
    .usage = "[--data NAME[:DIR]|text:FILE] [--shrink SIDE --to DIR] [--json]",
    .about =
        "Lists the data sets abar reads, where each was found on this machine, and how to provide the others. With --data, "
        "reads one completely and describes it; of a folder of images it decodes every file and names the damaged ones, and "
        "exits with 1 if there are any. Ctrl-C keeps what was checked. --shrink makes a copy of smaller images, which are "
        "read faster.",
    .own = own,
    .examples = "  abar data\n"
                "  abar data --data cifar10:DIR\n"
                "  abar data --data imagefolder:DIR\n"
                "  abar data --data imagefolder:DIR --shrink 256 --to DIR-256\n",
    .run = run,
};
