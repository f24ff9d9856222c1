/* Any request to `abar serve`: the first byte chooses the server's rules, the lines after it are method, path, from, token,
 * Host, Origin and Authorization; an empty line is a header that is not given. What is answered comes from the served folder
 * alone. */
#include "train/report/request.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKEN "0123456789abcdef"
#define INSIDE "{\"epoch\": 1}\n"
#define OUTSIDE "outside of the folder\n"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) abort();
}

static void write_file(int folder, const char *name, const char *text)
{
    const int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

/* served/ has runs and links to what lies beside it. It is made once and removed at the end. */
static char tree[] = "/tmp/abar-fuzz-serve-XXXXXX";

static void remove_tree(void)
{
    static const char *const files[] = {
        "served/run/log.jsonl", "served/a b/log.jsonl",    "served/log.jsonl", "served/.hidden/log.jsonl",
        "beside/log.jsonl",     "served/linked/log.jsonl", "log.jsonl",        "served/link"};
    static const char *const folders[] = {"served/run", "served/a b", "served/.hidden", "served/linked", "served", "beside"};
    const int all = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlinkat(all, files[i], 0);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) unlinkat(all, folders[i], AT_REMOVEDIR);
    close(all);
    rmdir(tree);
}

static int served_folder(void)
{
    static int served = -1;
    if (served >= 0) return served;
    require(mkdtemp(tree) != NULL && atexit(remove_tree) == 0);
    const int all = open(tree, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(all >= 0 && mkdirat(all, "served", 0700) == 0 && mkdirat(all, "beside", 0700) == 0);
    require(mkdirat(all, "served/run", 0700) == 0 && mkdirat(all, "served/a b", 0700) == 0 &&
            mkdirat(all, "served/.hidden", 0700) == 0);
    write_file(all, "served/run/log.jsonl", INSIDE);
    write_file(all, "served/a b/log.jsonl", INSIDE);
    write_file(all, "served/log.jsonl", INSIDE);
    write_file(all, "served/.hidden/log.jsonl", OUTSIDE);
    write_file(all, "beside/log.jsonl", OUTSIDE);
    write_file(all, "log.jsonl", OUTSIDE);
    require(mkdirat(all, "served/linked", 0700) == 0 &&
            symlinkat("../../beside/log.jsonl", all, "served/linked/log.jsonl") == 0);
    require(symlinkat("../beside", all, "served/link") == 0);
    served = openat(all, "served", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    close(all);
    return served;
}

/* What an answered request has in any case. */
static void check_answered(const abar__serve_rules *rules, const abar__request *r)
{
    require(strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0);
    require(r->host && !r->body);
    if (rules->local)
        require(strcmp(r->host, "127.0.0.1:8420") == 0 || strcmp(r->host, "localhost:8420") == 0 ||
                strcmp(r->host, "[::1]:8420") == 0);
    require(!r->origin || (strlen(r->origin) == strlen(r->host) + 7 && strcmp(r->origin + 7, r->host) == 0));
    if (rules->token)
        require((r->token && strcmp(r->token, TOKEN) == 0) ||
                (r->authorization && strcmp(r->authorization, "Bearer " TOKEN) == 0));
}

static void check_log(const abar__route *route)
{
    char text[64] = "";
    int64_t bytes = -1;
    require(route->from >= 0 && route->folder[0] != '.' && route->folder[0] != '/');
    require(!strstr(route->folder, "/.") && !strstr(route->folder, "//"));
    const int fd = abar__request_open_log(served_folder(), route->folder, &bytes);
    if (fd < 0) return;
    require(read(fd, text, sizeof text - 1) == (ssize_t)strlen(INSIDE) && strcmp(text, INSIDE) == 0);
    require(bytes == (int64_t)strlen(INSIDE));
    close(fd);
}

/* A path that is escaped is the same path after it was read. */
static void check_escape(const char *path)
{
    abar_context *ctx;
    abar__text text = {0};
    abar__route route;
    const abar__serve_rules rules = {.address = "127.0.0.1", .port = 8420, .local = true};
    require(abar_context_create(NULL, &ctx) == ABAR_OK);
    require(abar__text_printf(ctx, &text, "/log/") == ABAR_OK && abar__request_escape(ctx, &text, path) == ABAR_OK);
    const abar__request request = {.method = "GET", .path = text.data, .from = "0", .host = "localhost:8420"};
    if (abar__request_route(&rules, &request, &route) == 200) require(strcmp(route.folder, path) == 0);
    abar__text_free(ctx, &text);
    abar_context_destroy(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { LINES = 7 };
    static const int refusals[] = {400, 401, 403, 404, 405, 413};
    const char *line[LINES] = {NULL};
    abar__route route;
    if (size < 1) return 0;
    char *text = malloc(size);
    require(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    char *at = text;
    for (int i = 0; i < LINES && at; i++) {
        char *end = strchr(at, '\n');
        if (end) *end = '\0';
        line[i] = at[0] || i < 2 ? at : NULL;
        at = end ? end + 1 : NULL;
    }
    const abar__serve_rules rules = {
        .address = "127.0.0.1", .port = 8420, .local = !(data[0] & 1), .token = data[0] & 3 ? TOKEN : NULL};
    const abar__request request = {.method = line[0],
                                   .path = line[1] ? line[1] : "",
                                   .from = line[2],
                                   .token = line[3],
                                   .host = line[4],
                                   .origin = line[5],
                                   .authorization = line[6],
                                   .body = data[0] & 4};
    const int status = abar__request_route(&rules, &request, &route);
    bool known = status == 200;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) known = known || status == refusals[i];
    require(known && abar__request_refusal(status)[0]);
    if (status == 200) check_answered(&rules, &request);
    if (status == 200 && route.answer == ABAR_ANSWER_LOG) check_log(&route);
    if (strlen(request.path) < 1000) check_escape(request.path);
    free(text);
    return 0;
}
