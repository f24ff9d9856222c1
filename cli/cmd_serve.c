/* abar serve: the page of abar report, live. */
#include "cli.h"

#include "abar/serve.h"

#include <stdlib.h>
#include <string.h>

typedef struct serve_flags {
    char bind[ABAR_OPTION_TEXT_MAX], token[ABAR_OPTION_TEXT_MAX];
    int64_t port;
} serve_flags;

static const abar_option own[] = {
    {"port", ABAR_OPTION_INT, offsetof(serve_flags, port), "8420", 0, 65535, NULL, "port; 0: any that is free"},
    {"bind", ABAR_OPTION_TEXT, offsetof(serve_flags, bind), "127.0.0.1", 0, 0, NULL,
     "address of this machine, as numbers; one that other machines can reach needs --token"},
    {"token", ABAR_OPTION_TEXT, offsetof(serve_flags, token), "", 0, 0, NULL,
     "what every request must know: at least 16 letters and digits"},
    {0}};

typedef struct serving {
    abar_server *server;
    const char *dir;
    int printed; /* exit code */
} serving;

/* The address is printed when signals are handled already: who reads it may end the server at once. */
static abar_status wait(void *object)
{
    serving *s = object;
    printf("%s shows %s until Ctrl-C\n", abar_server_url(s->server), s->dir);
    s->printed = cli_finish_output();
    return s->printed ? ABAR_OK : abar_server_wait(s->server);
}

static void stop(void *object) { abar_server_stop(((serving *)object)->server); }

static int run(cli *c)
{
    serve_flags flags = {0};
    const char *dir = RUNS;
    c->folder = &dir;
    c->folders_max = 1;
    const int code = flags_read(c, &flags, NULL, NULL);
    if (code) return code;
    if (!path_exists(dir) && strcmp(dir, RUNS) == 0)
        return cli_fail(c, EXIT_FAILURE, RUNS ": no such folder here, give the one that has the runs, as in abar serve DIR");
    serving serves = {.dir = dir};
    const abar_serve_config config = {.size = sizeof config,
                                      .folder = dir,
                                      .address = flags.bind,
                                      .port = (int)flags.port,
                                      .token = flags.token[0] ? flags.token : NULL};
    abar_status status = abar_server_create(c->ctx, &config, &serves.server);
    if (status < 0) return cli_fail_usage(c, status);
    const stoppable s = {.object = &serves, .run = wait, .stop = stop};
    status = stop_on_signal(&s);
    abar_server_destroy(serves.server);
    if (serves.printed) return serves.printed;
    return status < 0 ? cli_fail_status(c, status) : EXIT_SUCCESS;
}

const command command_serve = {
    .name = "serve",
    .summary = "show runs in a browser, live",
    .usage = "[DIR] [--port N]",
    .about =
        "Shows the page of abar report for a folder (" RUNS
        "/ if none is given) in a browser, and follows the runs in it: new lines of logs within two seconds. It only reads, "
        "only below the folder, and only for this machine unless --bind says otherwise.",
    .own = own,
    .examples = "  abar serve\n"
                "  abar serve /data/experiments --port 8000\n"
                "  abar serve --bind 0.0.0.0 --token \"$(openssl rand -hex 16)\"\n",
    .run = run,
};
