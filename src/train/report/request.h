/* Requests to `abar serve`: whether one is answered, and with what. Nothing here reads from a connection. */
#ifndef ABAR_REQUEST_H
#define ABAR_REQUEST_H

#include "base/base_impl.h"

#define ABAR_REQUEST_PATH_MAX 4096

typedef struct abar__serve_rules {
    const char *address; /* the server listens on, without brackets */
    int port;
    bool local;        /* only this machine can reach it */
    const char *token; /* NULL: none is asked for */
} abar__serve_rules;

/* As it was received; NULL: not given. */
typedef struct abar__request {
    const char *method, *path;                 /* path: before the question mark, still escaped */
    const char *from, *token;                  /* of the query */
    const char *host, *origin, *authorization; /* headers */
    bool body;                                 /* it says that a body follows */
} abar__request;

typedef enum abar__answer { ABAR_ANSWER_PAGE, ABAR_ANSWER_DATA, ABAR_ANSWER_POLL, ABAR_ANSWER_LOG } abar__answer;

typedef struct abar__route {
    abar__answer answer;
    char folder[ABAR_REQUEST_PATH_MAX]; /* of a log: relative, names separated by single slashes; "": the served one */
    int64_t from;                       /* of a log: the first byte */
} abar__route;

/* The HTTP status: 200, and then *out is set, or that of a refusal. */
int abar__request_route(const abar__serve_rules *rules, const abar__request *request, abar__route *out);
/* What a refusal says. */
const char *abar__request_refusal(int status);

/* A handle of the log in a folder below root, reached name by name without links; -1: there is none. */
int abar__request_open_log(int root, const char *folder, int64_t *bytes);

/* Appends a path as a request has it: escaped but for slashes. */
abar_status abar__request_escape(abar_context *ctx, abar__text *out, const char *path);
bool abar__token_valid(const char *token);

#endif
