/* abar serve without libmicrohttpd. */
#include "abar/serve.h"
#include "base/base_impl.h"

abar_status abar_server_create(abar_context *ctx, const abar_serve_config *config, abar_server **out)
{
    abar_serve_config c;
    *out = NULL;
    ABAR_TRY(abar__struct_read(ctx, "abar_serve_config", config, &c, sizeof c));
    return abar__fail(ctx, ABAR_E_UNSUPPORTED,
                      "serve: this build has no libmicrohttpd, install libmicrohttpd-dev and build again, or use abar report");
}

const char *abar_server_url(const abar_server *server) { return server ? "" : NULL; }
abar_status abar_server_wait(abar_server *server) { return server ? ABAR_E_STATE : ABAR_OK; }
void abar_server_stop(abar_server *server) { (void)server; }
void abar_server_destroy(abar_server *server) { (void)server; }
