/* abar serve: the page over HTTP, by libmicrohttpd. One thread answers, with a context of its own. What is served is made once
 * for a state of the folder and shared by all connections; of logs a piece at a time is sent, from the byte on that the page
 * names. */
#include "abar/serve.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/beneath.h"
#include "train/report/report_impl.h"
#include "train/report/request.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONNECTIONS_MAX 128u /* further ones wait until one of these ends */
#define BACKLOG 512
#define IDLE_SECONDS 10u
#define FRESH_SECONDS 2.0
#define REQUEST_MAX ((size_t)16 << 10) /* bytes of a request with its headers */
#define PIECE_MAX ((size_t)256 << 10)  /* of a log in one answer */

struct abar_server {
    abar_context *ctx; /* of the caller */
    abar_context *own; /* of the thread that answers */
    struct MHD_Daemon *daemon;
    int root, stop[2]; /* stop: a pipe */
    abar__serve_rules rules;
    char address[64], token[256], url[512];
    uint64_t stamp, sizes; /* of the folder and its logs when page and data were made */
    double made;           /* when that was */
    struct MHD_Response *page, *data;
};

/* ---- the state of the folder
 * ------------------------------------------------------------------------------------------------- */

typedef struct look {
    abar_context *ctx;
    uint64_t stamp, sizes; /* sizes: of the logs */
    abar__text logs;       /* JSON, items separated by commas */
    bool list;
    abar_status status;
} look;

static void mix(look *l, const void *bytes, size_t n) { l->stamp = abar__hash(l->stamp, bytes, n); }

static uint64_t mix_file(uint64_t hash, int folder, const char *name)
{
    struct stat info;
    const bool there = fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    const int64_t parts[] = {there, there ? (int64_t)info.st_size : 0, there ? (int64_t)info.st_mtim.tv_sec : 0,
                             there ? (int64_t)info.st_mtim.tv_nsec : 0, there ? (int64_t)info.st_ino : 0};
    return abar__hash(hash, parts, sizeof parts);
}

static abar_status list_log(look *l, int folder, const char *path)
{
    struct stat info;
    if (fstatat(folder, "log.jsonl", &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) return ABAR_OK;
    ABAR_TRY(abar__report_put(l->ctx, &l->logs, l->logs.length > 0 ? ",\n{" : "{"));
    ABAR_TRY(abar__report_string(l->ctx, &l->logs, "path", path));
    ABAR_TRY(abar__report_put(l->ctx, &l->logs, ",\"id\":\""));
    ABAR_TRY(abar__request_escape(l->ctx, &l->logs, path));
    return abar__text_printf(l->ctx, &l->logs, "\",\"bytes\":%" PRId64 "}", (int64_t)info.st_size);
}

static bool see(void *user, int folder, const abar_run_info *info)
{
    static const char *const files[] = {"config.json", "report.json", "compare.json", "sweep.json", "tune.json"};
    look *l = user;
    const int parts[] = {(int)info->kind, (int)info->condition, info->inside};
    mix(l, info->path, strlen(info->path) + 1);
    mix(l, parts, sizeof parts);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) l->stamp = mix_file(l->stamp, folder, files[i]);
    l->sizes = mix_file(l->sizes, folder, "log.jsonl");
    if (l->list && info->kind == ABAR_KIND_RUN) l->status = list_log(l, folder, info->path);
    return l->status >= 0;
}

static bool see_other(void *user, int folder, const char *path)
{
    look *l = user;
    mix(l, path, strlen(path) + 1);
    l->stamp = mix_file(l->stamp, folder, ".");
    return true;
}

static abar_status look_around(abar_server *s, bool list, look *out)
{
    *out = (look){.ctx = s->own, .stamp = ABAR_HASH_START, .sizes = ABAR_HASH_START, .list = list};
    abar_status status =
        abar__runs_visit(s->own, s->root, "", (abar__runs_what){.all = true, .brief = true, .other = see_other}, see, out);
    if (status >= 0) status = out->status;
    if (status < 0) abar__text_free(s->own, &out->logs);
    return status;
}

/* ---- answers
 * ----------------------------------------------------------------------------------------------------------------- */

static struct MHD_Response *with_headers(struct MHD_Response *response, const char *type)
{
    static const char *const headers[][2] = {{"Cache-Control", "no-store"},
                                             {"X-Content-Type-Options", "nosniff"},
                                             {"Referrer-Policy", "no-referrer"},
                                             {"X-Frame-Options", "DENY"},
                                             {"Cross-Origin-Resource-Policy", "same-origin"}};
    if (!response) return NULL;
    MHD_add_response_header(response, "Content-Type", type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    return response;
}

static struct MHD_Response *text_response(const abar__text *text, const char *type)
{
    return with_headers(MHD_create_response_from_buffer(text->length, text->data, MHD_RESPMEM_MUST_COPY), type);
}

static void forget(abar_server *s)
{
    if (s->page) MHD_destroy_response(s->page); /* connections that still send it have their own share */
    if (s->data) MHD_destroy_response(s->data);
    s->page = s->data = NULL;
}

static abar_status make_page(abar_server *s, const look *l)
{
    abar__report r = {.ctx = s->own};
    abar__text data = {0}, page = {0};
    char name[32];
    snprintf(name, sizeof name, "%016" PRIx64, l->stamp);
    abar_status status = abar__report_gather(&r, s->root, "");
    if (status >= 0) status = abar__report_data(&r, name, &data);
    abar__report_free(&r);
    if (status >= 0) status = abar__report_page(s->own, true, &data, &page);
    if (status >= 0) {
        forget(s);
        s->data = text_response(&data, "application/json");
        s->page = text_response(&page, "text/html; charset=utf-8");
        s->stamp = l->stamp;
        s->sizes = l->sizes;
        s->made = abar__wall_time();
    }
    abar__text_free(s->own, &data);
    abar__text_free(s->own, &page);
    return status;
}

/* A page that lacks the newest lines asks for them: logs that grow do not make it old at once. */
static bool is_current(const abar_server *s, const look *l)
{
    const double age = abar__wall_time() - s->made;
    return s->page && s->data && s->stamp == l->stamp && (s->sizes == l->sizes || (age >= 0.0 && age < FRESH_SECONDS));
}

/* The stamp is taken first: what changes in between changes it again. */
static struct MHD_Response *answer_page(abar_server *s, bool data)
{
    look l;
    if (look_around(s, false, &l) < 0) return NULL;
    if (!is_current(s, &l) && make_page(s, &l) < 0) return NULL;
    return data ? s->data : s->page;
}

static struct MHD_Response *answer_poll(abar_server *s)
{
    look l;
    abar__text text = {0};
    struct MHD_Response *response = NULL;
    if (look_around(s, true, &l) < 0) return NULL;
    abar_status status = abar__text_printf(s->own, &text, "{\"stamp\":\"%016" PRIx64 "\",\"logs\":[", l.stamp);
    if (status >= 0 && l.logs.length > 0) status = abar__report_harmless(s->own, &text, &l.logs);
    if (status >= 0) status = abar__report_put(s->own, &text, "]}");
    if (status >= 0) response = text_response(&text, "application/json");
    abar__text_free(s->own, &text);
    abar__text_free(s->own, &l.logs);
    return response;
}

static struct MHD_Response *answer_log(abar_server *s, const abar__route *route, int *status)
{
    int64_t bytes = 0;
    struct MHD_Response *response = NULL;
    const int fd = abar__request_open_log(s->root, route->folder, &bytes);
    *status = fd < 0 ? 404 : route->from > bytes ? 416 : 200;
    const size_t left = *status == 200 ? (size_t)(bytes - route->from) : 0, n = left < PIECE_MAX ? left : PIECE_MAX;
    char *piece = *status == 200 ? malloc(n + 1) : NULL;
    const ssize_t have = piece ? pread(fd, piece, n, (off_t)route->from) : -1;
    if (fd >= 0) close(fd);
    if (have >= 0) response = MHD_create_response_from_buffer((size_t)have, piece, MHD_RESPMEM_MUST_FREE);
    if (!response) free(piece);
    return with_headers(response, "text/plain; charset=utf-8");
}

/* The response for a status other than 200 is the refusal. *kept: it belongs to the server. */
static struct MHD_Response *answer(abar_server *s, const abar__route *route, int *status, bool *kept)
{
    struct MHD_Response *response = NULL;
    *kept = false;
    if (*status == 200 && route->answer == ABAR_ANSWER_LOG)
        response = answer_log(s, route, status);
    else if (*status == 200 && route->answer == ABAR_ANSWER_POLL)
        response = answer_poll(s);
    else if (*status == 200) {
        response = answer_page(s, route->answer == ABAR_ANSWER_DATA);
        *kept = true;
    }
    if (response) return response;
    if (*status == 200) *status = 500;
    *kept = false;
    const char *text = abar__request_refusal(*status);
    return with_headers(MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT),
                        "text/plain; charset=utf-8");
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    abar_server *s = user;
    abar__route route;
    bool kept;
    const char *length = header(connection, "Content-Length");
    (void)version;
    (void)upload;
    (void)state;
    const abar__request request = {.method = method,
                                   .path = url,
                                   .from = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "from"),
                                   .token = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "token"),
                                   .host = header(connection, "Host"),
                                   .origin = header(connection, "Origin"),
                                   .authorization = header(connection, "Authorization"),
                                   .body = *upload_size > 0 || header(connection, "Transfer-Encoding") ||
                                           (length && strcmp(length, "0") != 0)};
    int status = abar__request_route(&s->rules, &request, &route);
    struct MHD_Response *response = answer(s, &route, &status, &kept);
    if (!response) return MHD_NO;
    if (status == 405) MHD_add_response_header(response, "Allow", "GET, HEAD");
    if (status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status != 200) MHD_add_response_header(response, "Connection", "close"); /* a body is not waited for */
    const enum MHD_Result result = MHD_queue_response(connection, (unsigned)status, response);
    if (!kept) MHD_destroy_response(response);
    return result;
}

/* Paths and arguments are left as they came: request.c undoes escapes, and strictly. */
static size_t leave(void *user, struct MHD_Connection *connection, char *text)
{
    (void)user;
    (void)connection;
    return strlen(text);
}

/* ---- start and end
 * ----------------------------------------------------------------------------------------------------------- */

typedef union socket_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} socket_address;

static abar_status read_address(abar_server *s, int port, socket_address *out, socklen_t *length)
{
    *out = (socket_address){0};
    if (inet_pton(AF_INET, s->address, &out->v4.sin_addr) == 1) {
        out->v4.sin_family = AF_INET;
        out->v4.sin_port = htons((uint16_t)port);
        *length = sizeof out->v4;
        s->rules.local = ntohl(out->v4.sin_addr.s_addr) >> 24 == 127;
    } else if (inet_pton(AF_INET6, s->address, &out->v6.sin6_addr) == 1) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)port);
        *length = sizeof out->v6;
        s->rules.local = IN6_IS_ADDR_LOOPBACK(&out->v6.sin6_addr);
    } else
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "address %.60s: is no address in numbers, give one as 127.0.0.1 or ::1",
                          s->address);
    return ABAR_OK;
}

static abar_status listen_on(abar_server *s, int port, int *out)
{
    socket_address at;
    socklen_t length;
    const int yes = 1;
    ABAR_TRY(read_address(s, port, &at, &length));
    if (!s->rules.local && !s->rules.token)
        return abar__fail(s->ctx, ABAR_E_ARGUMENT,
                          "address %s: other machines can reach it, which needs a token (--token) of 16 letters and digits",
                          s->address);
    const int fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool bound = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                       bind(fd, &at.any, length) == 0 && listen(fd, BACKLOG) == 0 && getsockname(fd, &at.any, &length) == 0;
    if (!bound) {
        const int error = errno;
        if (fd >= 0) close(fd);
        return abar__fail(s->ctx, error == EADDRINUSE ? ABAR_E_BUSY : ABAR_E_IO,
                          "%s, port %d: %s, choose another (--port, --bind)", s->address, port, strerror(error));
    }
    s->rules.port = ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
    *out = fd;
    return ABAR_OK;
}

static abar_status start(abar_server *s, int port)
{
    int fd = -1;
    ABAR_TRY(listen_on(s, port, &fd));
    s->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, 0, NULL, NULL, handle, s,
                                 MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
                                 MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, REQUEST_MAX,
                                 MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, leave, NULL, MHD_OPTION_END);
    if (!s->daemon) {
        close(fd);
        return abar__fail(s->ctx, ABAR_E_BACKEND, "libmicrohttpd: could not be started on %s, port %d", s->address,
                          s->rules.port);
    }
    const bool six = strchr(s->address, ':') != NULL;
    snprintf(s->url, sizeof s->url, "http://%s%s%s:%d/%s%s", six ? "[" : "", s->address, six ? "]" : "", s->rules.port,
             s->rules.token ? "?token=" : "", s->rules.token ? s->rules.token : "");
    return ABAR_OK;
}

static abar_status open_server(abar_server *s, const abar_serve_config *c)
{
    const char *address = c->address ? c->address : "127.0.0.1";
    if (c->token && !abar__token_valid(c->token))
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "token: is not made of 16 to 128 letters, digits, - and _, choose another");
    if (c->port < 0 || c->port > 65535)
        return abar__fail(s->ctx, ABAR_E_ARGUMENT, "port %d: is not between 0 and 65535, choose another", c->port);
    if (!c->folder) return abar__fail(s->ctx, ABAR_E_ARGUMENT, "folder: is not given, name the one that has the runs");
    snprintf(s->address, sizeof s->address, "%s", address);
    if (c->token) snprintf(s->token, sizeof s->token, "%s", c->token);
    s->rules.address = s->address;
    s->rules.token = c->token ? s->token : NULL;
    ABAR_TRY(abar__runs_open(s->ctx, c->folder, &s->root));
    ABAR_TRY(abar__context_beside(s->ctx, NULL, NULL, &s->own));
    if (pipe(s->stop) != 0) return abar__fail(s->ctx, ABAR_E_IO, "pipe: %s, close other programs", strerror(errno));
    return start(s, c->port);
}

abar_status abar_server_create(abar_context *ctx, const abar_serve_config *config, abar_server **out)
{
    abar_serve_config c;
    void *memory;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_serve_config", config, &c, sizeof c));
    ABAR_TRY(abar__alloc(ctx, sizeof **out, &memory));
    abar_server *s = memory;
    *s = (abar_server){.ctx = ctx, .root = -1, .stop = {-1, -1}};
    const abar_status status = open_server(s, &c);
    if (status < 0)
        abar_server_destroy(s);
    else
        *out = s;
    return status;
}

const char *abar_server_url(const abar_server *server) { return server->url; }

abar_status abar_server_wait(abar_server *server)
{
    struct pollfd stop = {.fd = server->stop[0], .events = POLLIN};
    while (poll(&stop, 1, -1) < 0 && errno == EINTR) continue; /* a signal's handler may have stopped it */
    return ABAR_OK;
}

void abar_server_stop(abar_server *server)
{
    const int before = errno;
    const ssize_t n = write(server->stop[1], "", 1);
    (void)n; /* a full pipe has bytes enough */
    errno = before;
}

void abar_server_destroy(abar_server *server)
{
    if (!server) return;
    if (server->daemon) MHD_stop_daemon(server->daemon);
    forget(server);
    for (int i = 0; i < 2; i++)
        if (server->stop[i] >= 0) close(server->stop[i]);
    if (server->root >= 0) close(server->root);
    abar_context_destroy(server->own);
    abar__free(server->ctx, server, sizeof *server);
}
