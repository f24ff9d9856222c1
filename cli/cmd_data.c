/* abar data: which data sets are on this machine, where, and what to do for the others; or checks one. */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct data_flags {
    char data[ABAR_OPTION_TEXT_MAX];
    int64_t text;
} data_flags;

static const abar_option own[] = {{.name = "data",
                                   .type = ABAR_OPTION_TEXT,
                                   .offset = offsetof(data_flags, data),
                                   .fallback = "",
                                   .help = "read this one completely, and say what it holds"},
                                  {.name = "text",
                                   .type = ABAR_OPTION_CHOICE,
                                   .offset = offsetof(data_flags, text),
                                   .fallback = "characters",
                                   .choices = "characters|bytes",
                                   .help = "text: what a token is"},
                                  {0}};

static int list_data(cli *c)
{
    abar_dataset_probe probe = {.size = sizeof probe};
    for (const char *const *name = abar_dataset_names(); *name; name++) {
        abar_status status = abar_dataset_probe_name(c->ctx, *name, &probe);
        if (status < 0) return cli_fail_status(c, status);
        printf("%-14s %s\n", *name, probe.summary);
        printf("%-14s ", "");
        if (probe.found && probe.where[0])
            printf("found in %s\n", probe.where);
        else if (probe.found)
            printf("always there\n");
        else
            print_wrapped(stdout, 15, print_width(stdout), probe.remedy);
    }
    printf("\n%s data --data NAME[:DIR] reads one and says what it holds\n", c->program);
    return EXIT_SUCCESS;
}

static void print_classes(const abar_dataset *data, const abar_dataset_info *info)
{
    for (int part = 0; part < 2 && info->classes <= 20; part++) {
        printf("  %-8s per class:", part ? "test" : "training");
        for (int64_t label = 0; label < info->classes; label++) {
            int64_t n = part ? info->test : info->train, count = 0;
            for (int64_t i = 0; i < n; i++) count += abar_dataset_label(data, part, i) == label;
            printf(" %" PRId64, count);
        }
        printf("\n");
    }
}

/* Opening reads and checks everything; the counts per class show what a count of files cannot. */
static int check_data(cli *c, const data_flags *flags)
{
    abar_dataset *data = NULL;
    abar_dataset_config config = {.size = sizeof config, .bytes = flags->text == ABAR_TEXT_BYTES};
    abar_dataset_probe probe = {.size = sizeof probe};
    abar_status status = abar_dataset_probe_name(c->ctx, flags->data, &probe);
    if (status < 0) return cli_fail_usage(c, status);
    status = abar_dataset_open(c->ctx, flags->data, &config, &data);
    if (status < 0) return cli_fail_status(c, status);
    const abar_dataset_info *info = abar_dataset_info_of(data);
    char train[NUMBER_MAX], test[NUMBER_MAX], bytes[NUMBER_MAX], kinds[NUMBER_MAX], line[256];
    print_count(train, info->train);
    print_count(test, info->test);
    print_bytes(bytes, abar_dataset_bytes(data));
    printf("%s%s%s\n  ", info->name, info->where[0] ? " in " : "", info->where);
    if (info->text)
        snprintf(line, sizeof line, "%s training and %s test %s, %s different ones, %s in memory", train, test,
                 config.bytes ? "bytes" : "characters", print_count(kinds, info->classes), bytes);
    else
        snprintf(line, sizeof line,
                 "%s training and %s test images, %" PRId64 " x %" PRId64 " x %" PRId64 ", %" PRId64 " classes, %s in memory",
                 train, test, info->channels, info->height, info->width, info->classes, bytes);
    print_wrapped(stdout, 2, print_width(stdout), line);
    if (!info->text) print_classes(data, info);
    if (probe.info.train > info->train || probe.info.test > info->test)
        printf("  not complete: %s has %" PRId64 " + %" PRId64 "\n", info->name, probe.info.train, probe.info.test);
    abar_dataset_close(data);
    return EXIT_SUCCESS;
}

static int run(cli *c)
{
    data_flags flags;
    int code = flags_read(c, &flags, NULL, NULL);
    if (code) return code;
    return flags.data[0] ? check_data(c, &flags) : list_data(c);
}

const command command_data = {
    .name = "data",
    .summary = "list the data sets found; --data NAME[:DIR] checks one",
    .usage = "[--data NAME[:DIR]|text:FILE]",
    .about =
        "Lists the data sets abar reads, where each was found on this machine, and what to do for those that were not. With "
        "--data, reads one completely and says what it holds.",
    .own = own,
    .examples = "  abar data\n"
                "  abar data --data cifar10:DIR\n",
    .run = run,
};
