/* The page of abar/report.h over HTTP, live: the library behind `abar serve`. It only reads, and only below one folder. */
#ifndef ABAR_SERVE_H
#define ABAR_SERVE_H

#include "abar/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct abar_serve_config {
    size_t size; /* sizeof(abar_serve_config) */
    const char *folder;
    const char *address; /* of this machine, as numbers: "127.0.0.1", "::1"; NULL: 127.0.0.1. Others than these need a token */
    int port;            /* 0: any that is free */
    const char *token;   /* at least 16 letters, digits, - and _, which every request must have; NULL: none */
} abar_serve_config;

typedef struct abar_server abar_server;

/* Starts to answer, in a thread of its own. ABAR_E_UNSUPPORTED: this build has no libmicrohttpd. */
abar_status abar_server_create(abar_context *ctx, const abar_serve_config *config, abar_server **out);
/* What to open in a browser; it has the token in it. */
const char *abar_server_url(const abar_server *server);
/* Returns after abar_server_stop. */
abar_status abar_server_wait(abar_server *server);
void abar_server_stop(abar_server *server); /* from a signal handler or another thread */
/* Ends all connections. */
void abar_server_destroy(abar_server *server);

#ifdef __cplusplus
}
#endif
#endif
