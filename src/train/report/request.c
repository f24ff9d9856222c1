/* What of a request may be answered. A page of a stranger that is open in the same browser can send requests to this server: by
 * a name of its own that leads to 127.0.0.1 (the Host header tells) or from its own origin (the Origin header tells). */
#include "train/report/request.h"
#include "io/beneath.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOKEN_LENGTH_MIN 16
#define TOKEN_LENGTH_MAX 128

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

bool abar__token_valid(const char *token)
{
    const size_t n = strlen(token);
    return n >= TOKEN_LENGTH_MIN && n <= TOKEN_LENGTH_MAX && strspn(token, letters) == n;
}

/* ---- who asks
 * ---------------------------------------------------------------------------------------------------------------- */

/* Whether host is name, or name and the server's port. */
static bool is_host(const abar__serve_rules *rules, const char *host, const char *name)
{
    char whole[256];
    if (rules->port == 80 && strcmp(host, name) == 0) return true;
    return snprintf(whole, sizeof whole, "%s:%d", name, rules->port) < (int)sizeof whole && strcmp(host, whole) == 0;
}

/* With a token the name does not matter: a stranger's page does not know it. */
static bool host_is_good(const abar__serve_rules *rules, const char *host)
{
    static const char *const own[] = {"127.0.0.1", "localhost", "[::1]"};
    char address[128];
    const size_t n = strlen(host);
    if (n == 0 || n > 255 || strspn(host, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:[]") != n)
        return false;
    if (!rules->local) return true;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (is_host(rules, host, own[i])) return true;
    snprintf(address, sizeof address, strchr(rules->address, ':') ? "[%s]" : "%s", rules->address);
    return is_host(rules, host, address);
}

static bool origin_is_good(const char *origin, const char *host)
{
    static const char scheme[] = "http://";
    return strncmp(origin, scheme, strlen(scheme)) == 0 && strcmp(origin + strlen(scheme), host) == 0;
}

/* In a time that depends on the given text alone. */
static bool is_token(const char *token, const char *given)
{
    const size_t n = strlen(token), m = strlen(given);
    unsigned char differ = n != m;
    for (size_t i = 0; i < m; i++) differ |= (unsigned char)(given[i] ^ token[n > 0 ? i % n : 0]);
    return !differ;
}

static bool token_is_good(const abar__serve_rules *rules, const abar__request *r)
{
    static const char bearer[] = "Bearer ";
    if (!rules->token) return true;
    if (r->authorization && strncmp(r->authorization, bearer, strlen(bearer)) == 0)
        return is_token(rules->token, r->authorization + strlen(bearer));
    return r->token && is_token(rules->token, r->token);
}

/* ---- what for
 * ---------------------------------------------------------------------------------------------------------------- */

static int hexadecimal(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* %41 becomes A. False: an escape is not whole, stands for a zero byte or a slash, or the text is too long. */
static bool unescape(const char *from, char to[ABAR_REQUEST_PATH_MAX])
{
    size_t n = 0;
    for (; *from; from++, n++) {
        if (n + 1 == ABAR_REQUEST_PATH_MAX) return false;
        to[n] = *from;
        if (*from != '%') continue;
        const int high = hexadecimal(from[1]), low = high < 0 ? -1 : hexadecimal(from[2]);
        if (low < 0 || high * 16 + low == 0 || high * 16 + low == '/') return false;
        to[n] = (char)(unsigned char)(high * 16 + low);
        from += 2;
    }
    to[n] = '\0';
    return true;
}

/* Names between single slashes; none begins with a point, so neither "." nor ".." nor hidden files. */
static bool folder_is_plain(const char *path)
{
    for (const char *name = path; *name;) {
        const size_t n = strcspn(name, "/");
        if (n == 0 || name[0] == '.' || (name[n] == '/' && !name[n + 1])) return false;
        name += n + (name[n] == '/');
    }
    return true;
}

/* Digits alone, below 2^53, as JavaScript counts. */
static bool read_from(const char *text, int64_t *out)
{
    const size_t n = text ? strlen(text) : 0;
    *out = 0;
    if (n == 0 || n > 16 || strspn(text, "0123456789") != n) return false;
    for (size_t i = 0; i < n; i++) *out = 10 * *out + (text[i] - '0');
    return *out < (int64_t)1 << 53;
}

static int route_log(const abar__request *r, const char *path, abar__route *out)
{
    out->answer = ABAR_ANSWER_LOG;
    if (!read_from(r->from, &out->from)) return 400;
    return unescape(path, out->folder) && folder_is_plain(out->folder) ? 200 : 404;
}

int abar__request_route(const abar__serve_rules *rules, const abar__request *r, abar__route *out)
{
    static const struct {
        const char *path;
        abar__answer answer;
    } known[] = {{"/", ABAR_ANSWER_PAGE}, {"/data", ABAR_ANSWER_DATA}, {"/poll", ABAR_ANSWER_POLL}};
    static const char log[] = "/log/";
    *out = (abar__route){0};
    if (!r->host || !host_is_good(rules, r->host)) return 403;
    if (r->origin && !origin_is_good(r->origin, r->host)) return 403;
    if (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0) return 405;
    if (r->body) return 413;
    if (!token_is_good(rules, r)) return 401;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        out->answer = known[i].answer;
        if (strcmp(r->path, known[i].path) == 0) return 200;
    }
    return strncmp(r->path, log, strlen(log)) == 0 ? route_log(r, r->path + strlen(log), out) : 404;
}

const char *abar__request_refusal(int status)
{
    switch (status) {
    case 400: return "abar serve: the request is not understood\n";
    case 401: return "abar serve: the token is missing or wrong, open the address that abar serve printed\n";
    case 403: return "abar serve: the request comes from elsewhere, open the address that abar serve printed\n";
    case 405: return "abar serve: it only reads: GET and HEAD\n";
    case 413: return "abar serve: a request has no body\n";
    case 416: return "abar serve: the log is shorter\n";
    case 500: return "abar serve: the folder could not be read\n";
    }
    return "abar serve: there is no such thing\n";
}

/* ---- files
 * ------------------------------------------------------------------------------------------------------------------- */

int abar__request_open_log(int root, const char *folder, int64_t *bytes)
{
    char name[ABAR_REQUEST_PATH_MAX];
    struct stat info;
    int at = root;
    for (const char *from = folder; *from && at >= 0;) {
        const size_t n = strcspn(from, "/");
        snprintf(name, sizeof name, "%.*s", (int)n, from);
        const int next = abar__beneath_folder(at, name);
        if (at != root) close(at);
        at = next;
        from += n + (from[n] == '/');
    }
    if (at < 0) return -1;
    const int fd = abar__beneath_file(at, "log.jsonl", &info);
    if (at != root) close(at);
    if (fd >= 0) *bytes = (int64_t)info.st_size;
    return fd;
}

abar_status abar__request_escape(abar_context *ctx, abar__text *out, const char *path)
{
    for (; *path; path++) {
        const bool plain = strchr(letters, *path) || *path == '/' || *path == '.';
        ABAR_TRY(plain ? abar__text_append(ctx, out, path, 1)
                       : abar__text_printf(ctx, out, "%%%02x", (unsigned)(unsigned char)*path));
    }
    return ABAR_OK;
}
