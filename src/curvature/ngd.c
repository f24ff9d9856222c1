/* Exact natural gradient for small networks (optimizers.md section 9): Ĝ = (F + ρI)⁻¹ g, F the Fisher matrix of all maps
 * together, or of each.
 *
 *     empirical   a row per example: its own gradient, w = 1/B
 *     mc:S        a row per example and draw: its gradient with a label drawn from the model, w = 1/(BS)
 *     exact       a row per example and class c: its gradient with that label, w = π_c/B
 *
 * F = Σ w j jᵀ is never formed: M x M algebra is enough (device/natural.h). */
#include "base/number.h"
#include "curvature/curvature_impl.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS_FULL, BLOCKS_LAYER };

typedef struct ngd_config {
    double damping, kl_clip;
    char fisher[ABAR_OPTION_TEXT_MAX];
    int64_t blocks;
} ngd_config;

static const abar_option options[] = {
    {.name = "damping",
     .type = ABAR_OPTION_REAL,
     .offset = offsetof(ngd_config, damping),
     .fallback = "0.01",
     .min = 1e-30,
     .max = 1e30,
     .help = "rho, added to the diagonal of the Fisher matrix"},
    {.name = "fisher",
     .type = ABAR_OPTION_TEXT,
     .offset = offsetof(ngd_config, fisher),
     .fallback = "empirical",
     .help = "labels of the Fisher matrix: empirical (the data's), mc:S (S draws from the model), exact (all classes)"},
    {.name = "fisher-blocks",
     .type = ABAR_OPTION_CHOICE,
     .offset = offsetof(ngd_config, blocks),
     .fallback = "full",
     .choices = "full|layer",
     .help = "one Fisher matrix of all layers, or one for each"},
    ABAR_KL_CLIP_OPTION(ngd_config, "0"),
    {.name = NULL},
};

/* ---- --fisher --------------------------------------------------------------------------------------------------------- */

typedef enum fisher_kind { FISHER_EMPIRICAL, FISHER_DRAWN, FISHER_EXACT } fisher_kind;

/* draws: of mc:S. False: it is none of the three. */
static bool read_fisher(const char *text, fisher_kind *kind, int64_t *draws)
{
    double value = 1.0;
    *kind = FISHER_EMPIRICAL;
    if (strncmp(text, "mc:", 3) == 0) {
        *kind = FISHER_DRAWN;
        if (!abar__real_parse(text + 3, &value)) return false;
    } else if (strcmp(text, "exact") == 0) {
        *kind = FISHER_EXACT;
    } else if (strcmp(text, "empirical") != 0) {
        return false;
    }
    if (!(value >= 1.0 && value <= ABAR_NATURAL_ROWS) || value != (double)(int64_t)value) return false;
    *draws = (int64_t)value;
    return true;
}

static abar_status check(abar_context *ctx, const char *method, const void *config)
{
    const ngd_config *c = config;
    fisher_kind kind;
    int64_t draws;
    if (read_fisher(c->fisher, &kind, &draws)) return ABAR_OK;
    return abar__fail(ctx, ABAR_E_ARGUMENT, "--fisher %.40s: %s takes empirical, exact, or mc:S with S from 1 to %d", c->fisher,
                      method, ABAR_NATURAL_ROWS);
}

static bool labels(const void *config)
{
    const ngd_config *c = config;
    return strcmp(c->fisher, "empirical") != 0;
}

/* Backward passes whose rows make F; weight: w times B. */
static int64_t passes_of(const abar__curvature *cv, double *weight)
{
    const ngd_config *c = cv->method_config;
    fisher_kind kind;
    int64_t draws = 1;
    (void)read_fisher(c->fisher, &kind, &draws);
    *weight = 1.0 / (double)draws;
    return kind == FISHER_EXACT ? cv->classes : draws;
}

static abar_status check_batch(const abar__curvature *cv)
{
    const ngd_config *c = cv->method_config;
    double weight;
    if (cv->examples < 1)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                          "optimizer ngd: config.examples is %lld, set it to the examples of a step's batch",
                          (long long)cv->examples);
    const int64_t passes = passes_of(cv, &weight);
    if (passes < 1)
        return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                          "--fisher exact: needs one label per example and the number of classes, choose mc:S or empirical");
    if (passes <= ABAR_NATURAL_ROWS / cv->examples) return ABAR_OK;
    return abar__fail(cv->dev->ctx, ABAR_E_ARGUMENT,
                      "optimizer ngd: --fisher %s makes %lld rows of a batch of %lld, at most %d are solved for, lower --batch",
                      c->fisher, (long long)(passes * cv->examples), (long long)cv->examples, ABAR_NATURAL_ROWS);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static double memory_of(const abar__curvature *cv)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (cv->dev->ops->stream) return (double)cv->dev->ops->stream->memory_free(cv->dev);
    return pages > 0 && page > 0 ? (double)pages * (double)page : HUGE_VAL;
}

static abar_status check_maps(const abar__curvature *cv)
{
    const ngd_config *c = cv->method_config;
    double weight, bytes = 0.0;
    for (int i = 0; i < cv->n_maps; i++) {
        const abar__example_rows *r = &cv->maps[i].plan.rows;
        bytes += ((double)abar__natural_a_count(r) + (double)abar__natural_p_count(r)) * (double)abar__row_element(cv);
    }
    const double rows = (double)(passes_of(cv, &weight) * cv->examples), most = memory_of(cv);
    /* K and its factor: the host works on one block after the other, a queued device on all of them together */
    const double blocks = cv->dev->ops->stream && c->blocks == BLOCKS_LAYER ? (double)cv->n_maps : 1.0;
    bytes += 2.0 * blocks * rows * rows * sizeof(double);
    if (bytes <= 0.8 * most) return ABAR_OK;
    return abar__fail(cv->dev->ctx, ABAR_E_MEMORY,
                      "optimizer ngd: %.0f rows of --fisher %s need %.1f GiB and this machine has %.1f, lower --batch, leave "
                      "layers out by --skip-layers, or choose another optimizer",
                      rows, c->fisher, bytes / 0x1p30, most / 0x1p30);
}

/* ---- plan ------------------------------------------------------------------------------------------------------------- */

static void plan(const abar__curvature *cv, const abar__map *map, abar__plan *p)
{
    const ngd_config *c = map->config;
    abar__example_rows rows = {.examples = cv->examples,
                               .inputs = map->one_row ? map->d : map->out * map->d,
                               .outputs = map->one_row ? map->out : 0,
                               .own = !labels(c),
                               .block = c->blocks == BLOCKS_LAYER ? (int32_t)(map - cv->maps) : 0,
                               .damping = c->damping};
    rows.passes = passes_of(cv, &rows.weight);
    rows.drawn = !rows.own && strcmp(c->fisher, "exact") != 0;
    abar__plan_natural(p, &rows); /* (F + ρI)⁻¹ g */
}

const abar__curvature_ops abar__method_ngd = {
    .method = {.name = "ngd",
               .summary = "exact natural gradient, for small networks and batches",
               .keeps = "nothing; holds the rows of one batch while it works",
               .options = options,
               .config_size = sizeof(ngd_config)},
    .reads_output_grad = true,
    .every_commit = true,
    .by_example = true,
    .check = check,
    .labels = labels,
    .check_batch = check_batch,
    .check_maps = check_maps,
    .plan = plan,
};
