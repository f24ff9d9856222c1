/* `abar analyze`: settings, one pass over the data for every snapshot, and the figures that were asked for. */
#include "abar/analyze.h"
#include "analysis/analyze_impl.h"
#include "analysis/figures.h"
#include "analysis/sheet.h"
#include "base/json.h"
#include "base/number.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which analyses there are ------------------------------------------------------------------------------------------ */

typedef struct kind {
    const char *name, *about;
    unsigned wanted; /* ABAR_COLLECT_ of the pass; 0: no network */
    abar_status (*figure)(const abar__figures *f);
} kind;

#define EVERYTHING (ABAR_COLLECT_INPUTS | ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER | ABAR_COLLECT_ATTENTION)

static const kind kinds[] = {
    {"spectra", "eigenvalues of A, P, their products and the layer's Fisher matrix",
     ABAR_COLLECT_INPUTS | ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER, abar__figure_spectra},
    {"alignment", "does the mean activation point along A's top eigenvector?", ABAR_COLLECT_INPUTS, abar__figure_alignment},
    {"covariance", "how much of A is its mean?", ABAR_COLLECT_INPUTS, abar__figure_covariance},
    {"attention", "spectra and rank-1 forms of attention's probabilities", ABAR_COLLECT_ATTENTION, abar__figure_attention},
    {"convergence", "convergence factors and condition numbers", ABAR_COLLECT_INPUTS, abar__figure_convergence},
    {"heatmap", "is the second moment of the output gradients diagonal?", ABAR_COLLECT_GRADS, abar__figure_heatmap},
    {"theory", "the convergence theorem, as printed and as corrected", 0, NULL},
    {"complexity", "time and memory of every method over the width of a layer", 0, NULL},
    {"all", "all of the above for a checkpoint, and what they mean", EVERYTHING, NULL},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

enum { MODE_AUTO, MODE_EVAL, MODE_TRAIN }; /* as --mode lists them */

static const kind *find_kind(const char *name)
{
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

const char *const *abar_analysis_names(void)
{
    static const char *const names[] = {"spectra", "alignment", "covariance", "attention", "convergence",
                                        "heatmap", "theory",    "complexity", "all",       NULL};
    return names;
}

const char *abar_analysis_about(const char *name)
{
    const kind *k = find_kind(name);
    return k ? k->about : NULL;
}

bool abar_analysis_needs_network(const char *name)
{
    const kind *k = find_kind(name);
    return k && k->wanted != 0;
}

/* ---- settings ------------------------------------------------------------------------------------------------------------ */

typedef struct network_options {
    char layers[ABAR_OPTION_TEXT_MAX], out[ABAR_OPTION_TEXT_MAX];
    int64_t samples, batch, split, mode, pgrad, fisher, fisher_samples;
    bool homogeneous, dump;
    double damping;
} network_options;

#define AT(field) offsetof(network_options, field)

static const abar_option network_table[] = {
    {"layers", ABAR_OPTION_TEXT, AT(layers), "", 0, 0, NULL, "layers to look at: a name with * and ?; all without"},
    {"samples", ABAR_OPTION_INT, AT(samples), "0", 0, 1e12, NULL,
     "samples to look at, the first so many; 0: 2048, or all where there are fewer"},
    {"batch", ABAR_OPTION_INT, AT(batch), "256", 1, 1e6, NULL, "samples per pass; a partial last one is left out"},
    {"split", ABAR_OPTION_CHOICE, AT(split), "train", 0, 0, "train|test", "part of the data set"},
    {"mode", ABAR_OPTION_CHOICE, AT(mode), "auto", 0, 0, "auto|eval|train",
     "of the pass that looks at inputs; auto: eval, but train where batch norm's running statistics are at their start"},
    {"pgrad", ABAR_OPTION_CHOICE, AT(pgrad), "per-example", 0, 0, "per-example|batch-mean", "scale of the output gradients"},
    {"fisher", ABAR_OPTION_CHOICE, AT(fisher), "empirical", 0, 0, "empirical|exact",
     "labels of the data, or drawn from the softmax"},
    {"fisher-samples", ABAR_OPTION_INT, AT(fisher_samples), "0", 0, 4096, NULL,
     "samples whose gradients make the layer's Fisher matrix, at most --batch; 0: 256, or a batch where it is less"},
    {"homogeneous", ABAR_OPTION_BOOL, AT(homogeneous), "true", 0, 0, NULL,
     "rows end in 1 where a layer has a bias, as the optimizers see them"},
    {"damping", ABAR_OPTION_REAL, AT(damping), "0", 0, 1e30, NULL, "rho of the condition numbers; 0: the run's own, or 1"},
    {"dump", ABAR_OPTION_BOOL, AT(dump), "false", 0, 0, NULL,
     "write the first batch's inputs, output gradients, queries and keys, too: dump-N.safetensors for each checkpoint"},
    {"out", ABAR_OPTION_TEXT, AT(out), "analysis", 0, 0, NULL, "folder for the files"},
    {0},
};

const abar_option *abar_analysis_options(const char *name)
{
    if (!find_kind(name)) return NULL;
    if (strcmp(name, "theory") == 0) return abar__theory_options;
    if (strcmp(name, "complexity") == 0) return abar__complexity_options;
    return network_table;
}

size_t abar_analysis_config_size(const char *name)
{
    if (!find_kind(name)) return 0;
    if (strcmp(name, "theory") == 0) return sizeof(abar__theory_settings);
    if (strcmp(name, "complexity") == 0) return sizeof(abar__complexity_settings);
    return sizeof(network_options);
}

/* ---- an analysis --------------------------------------------------------------------------------------------------------- */

abar_status abar_analysis_create(abar_context *ctx, const char *name, const abar_setup *setup, const char *const *weights,
                                 int n_weights, const void *options, const abar_analysis_events *events, abar_analysis **out)
{
    const kind *k = find_kind(name);
    *out = NULL;
    if (!k) {
        const char *near = abar_nearest_name(name, abar_analysis_names());
        return abar__fail(ctx, ABAR_E_NOT_FOUND, "analyze %s: no such analysis%s%s", name, near ? ", did you mean " : "",
                          near ? near : "");
    }
    if (k->wanted && (!setup || n_weights < 1))
        return abar__fail(ctx, ABAR_E_ARGUMENT, "analyze %s: needs the checkpoint of a run, give --checkpoint", name);
    if (!options) return abar__fail(ctx, ABAR_E_ARGUMENT, "analyze %s: no options, give those of abar_analysis_options", name);
    ABAR_TRY(abar__options_check(ctx, name, abar_analysis_options(name), options));
    if (setup) ABAR_TRY(abar_setup_check(ctx, setup));
    abar_analysis_events known = {0};
    if (events) ABAR_TRY(abar__struct_read(ctx, "abar_analysis_events", events, &known, sizeof known));
    abar_analysis *a;
    ABAR_TRY(abar__alloc(ctx, sizeof *a, (void **)&a));
    *a = (abar_analysis){.ctx = ctx,
                         .name = k->name,
                         .setup = setup,
                         .weights = weights,
                         .n_weights = n_weights,
                         .options = options,
                         .events = known};
    *out = a;
    return ABAR_OK;
}

void abar_analysis_destroy(abar_analysis *a)
{
    if (!a) return;
    abar_context *ctx = a->ctx;
    abar__text_free(ctx, &a->text);
    abar__text_free(ctx, &a->json);
    abar__free(ctx, a, sizeof *a);
}

void abar_analysis_stop(abar_analysis *a) { atomic_store(&a->stop, true); }
const char *abar_analysis_text(const abar_analysis *a) { return a->text.data ? a->text.data : ""; }
const char *abar_analysis_json(const abar_analysis *a) { return a->json.data ? a->json.data : "{}"; }

abar_status abar__analysis_tell(abar_analysis *a, const char *phase, int64_t done, int64_t all)
{
    const abar_analysis_progress p = {.phase = phase, .done = done, .all = all, .seconds = abar__seconds() - a->started};
    if (a->events.progress) a->events.progress(a->events.user, &p);
    return atomic_load(&a->stop) ? ABAR_STOPPED : ABAR_OK;
}

/* ---- a network ---------------------------------------------------------------------------------------------------------- */

/* Where a run stood when it wrote a checkpoint; at the end where the file does not tell. */
static abar__run_state checkpoint_state(const abar_analysis *a, const char *path)
{
    const abar__run_state end = {.epoch = a->setup->train.epochs};
    abar__run_state state;
    abar__safetensors *file;
    abar__epoch *history;
    if (abar__safetensors_open(a->ctx, path, &file) < 0) return end;
    const char *progress = abar__safetensors_metadata(file, "progress");
    const bool known = progress && abar__run_state_parse(a->ctx, path, progress, strlen(progress), &state, &history) >= 0;
    if (known) abar__free(a->ctx, history, history ? (size_t)state.epoch * sizeof *history : 0);
    abar__safetensors_close(file);
    return known ? state : end;
}

static bool is_checkpoint(const char *path)
{
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    return strcmp(base, "state.safetensors") == 0 || strcmp(base, "model.safetensors") == 0;
}

/* A checkpoint that holds the weights of the snapshot before it. */
static void drop_repeated(abar_analysis *a)
{
    char name[64];
    if (a->n_weights < 2 || !is_checkpoint(a->weights[a->n_weights - 1])) return;
    const abar__run_state state = checkpoint_state(a, a->weights[a->n_weights - 1]);
    const char *before = strrchr(a->weights[a->n_weights - 2], '/');
    snprintf(name, sizeof name, "/epoch-%04lld.safetensors", (long long)state.epoch);
    if (state.step == 0 && before && strcmp(before, name) == 0) a->n_weights--;
}

/* "snapshots/epoch-0012.safetensors" is epoch 12, "" the initial weights. */
static void name_snapshot(const abar_analysis *a, int i, abar__snapshot *s)
{
    const char *path = a->weights[i], *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    s->epoch = NAN;
    if (!path[0]) {
        s->epoch = 0.0;
        snprintf(s->name, sizeof s->name, "initial");
    } else if (strncmp(base, "epoch-", 6) == 0) {
        s->epoch = (double)strtol(base + 6, NULL, 10);
        snprintf(s->name, sizeof s->name, s->epoch > 0.0 ? "epoch %.0f" : "initial", s->epoch);
    } else if (is_checkpoint(path)) {
        s->epoch = (double)checkpoint_state(a, path).epoch;
        snprintf(s->name, sizeof s->name, a->n_weights > 1 ? "end" : "final weights");
    } else {
        snprintf(s->name, sizeof s->name, "%.48s", base);
    }
}

/* The damping of the run's method, as far as it is a number. */
static double damping_of(const abar_analysis *a, const network_options *o)
{
    char text[ABAR_OPTION_TEXT_MAX];
    const abar_setup *s = a->setup;
    if (o->damping > 0.0) return o->damping;
    if (!s->method || !abar_options_find(s->method->options, "damping")) return 1.0;
    if (abar_options_get(a->ctx, s->method->options, s->method_config, "damping", text, sizeof text) < 0) return 1.0;
    double rho;
    return abar__real_parse(text, &rho) && rho > 0.0 ? rho : 1.0; /* adaptive: no number */
}

/* Adds batch 0 and writes what was read of it to DIR/dump-N.safetensors. */
static abar_status add_dumped(abar_analysis *a, abar__collection *c, int index, const abar__snapshot *s)
{
    const network_options *o = a->options;
    char path[ABAR_OPTION_TEXT_MAX + 64];
    snprintf(path, sizeof path, "%s/dump-%d.safetensors", o->out, index + 1);
    ABAR_TRY(abar__dump_create(a->ctx, &c->dump));
    abar_status status = abar__dump_note(c->dump, "snapshot", s->name);
    if (status >= 0) status = abar__collection_add(c, 0);
    if (status >= 0) status = abar__dump_write(c->dump, path);
    abar__dump_destroy(c->dump);
    c->dump = NULL;
    return status;
}

static bool is_drawn(const abar__collection *c, int map)
{
    int chosen[ABAR_FIGURE_LAYERS];
    const int n = abar__pick(c->n, ABAR_FIGURE_LAYERS, chosen);
    for (int i = 0; i < n; i++)
        if (chosen[i] == map) return true;
    return false;
}

static abar_status measure_snapshot(abar_analysis *a, abar__collection *c, const abar__results_config *config, int index,
                                    abar__snapshot *s)
{
    const network_options *o = a->options;
    if (o->mode == MODE_AUTO && (c->config.wanted & (ABAR_COLLECT_INPUTS | ABAR_COLLECT_ATTENTION)))
        ABAR_TRY(abar__pass_statistics_at_start(c->pass, &s->at_start));
    s->training = c->config.training = o->mode == MODE_TRAIN || s->at_start;
    for (int64_t b = 0; b < c->pass->batches; b++) {
        const abar_status status = abar__analysis_tell(a, s->name, b, c->pass->batches);
        if (status != ABAR_OK) return status;
        ABAR_TRY(b == 0 && o->dump ? add_dumped(a, c, index, s) : abar__collection_add(c, b));
    }
    for (int m = 0; m < c->n; m++) {
        const abar_status status = abar__analysis_tell(a, "eigenvalues", m, c->n);
        if (status != ABAR_OK) return status;
        ABAR_TRY(abar__result_make(c, m, config, index == a->n_weights - 1 && is_drawn(c, m), &s->map[m]));
    }
    return ABAR_OK;
}

static abar_status measure_snapshots(abar_analysis *a, abar__collection *c, const abar__results_config *config,
                                     abar__snapshot *snapshots)
{
    for (int i = 0; i < a->n_weights; i++) {
        void *memory;
        ABAR_TRY(abar__alloc(a->ctx, (size_t)c->n * sizeof *snapshots[i].map, &memory));
        snapshots[i].map = memory;
        name_snapshot(a, i, &snapshots[i]);
        if (i > 0) {
            ABAR_TRY(abar__pass_load(c->pass, a->weights[i]));
            ABAR_TRY(abar__collection_reset(c));
        }
        const abar_status status = measure_snapshot(a, c, config, i, &snapshots[i]);
        if (status != ABAR_OK) return status;
    }
    return ABAR_OK;
}

static bool has_attention(const abar__collection *c)
{
    for (int m = 0; m < c->n; m++)
        if (c->maps[m].attention.sum) return true;
    return false;
}

static abar_status check_attention(const abar_analysis *a, const abar__collection *c)
{
    if (has_attention(c)) return ABAR_OK;
    return abar__fail(a->ctx, ABAR_E_ARGUMENT,
                      "analyze attention: %s has no attention among these layers, choose a transformer or other --layers",
                      a->setup->train.model);
}

static abar_status draw(abar_analysis *a, const abar__figures *f)
{
    const bool all = strcmp(a->name, "all") == 0;
    for (int i = 0; i < KINDS; i++) {
        if (!kinds[i].figure || !(all || strcmp(kinds[i].name, a->name) == 0)) continue;
        if (all && strcmp(kinds[i].name, "attention") == 0 && !has_attention(f->collection)) continue;
        ABAR_TRY(kinds[i].figure(f));
    }
    return ABAR_OK;
}

static abar_status report(abar_analysis *a, const abar__figures *f)
{
    ABAR_TRY(abar__describe_network(f, &a->text));
    ABAR_TRY(abar__save_text(a->ctx, f->dir, "summary.md", &a->text));
    ABAR_TRY(abar__text_printf(a->ctx, &a->json, "{\"analysis\": \"%s\", \"layers\": %d, \"samples\": %lld, \"dir\": ", a->name,
                               f->collection->n,
                               (long long)(f->collection->pass->batches * f->collection->pass->config.batch)));
    ABAR_TRY(abar__json_string(a->ctx, &a->json, f->dir));
    ABAR_TRY(abar__text_printf(a->ctx, &a->json, ", \"summary\": "));
    ABAR_TRY(abar__json_string(a->ctx, &a->json, a->text.data));
    return abar__text_printf(a->ctx, &a->json, "}");
}

static abar_status analyze_collected(abar_analysis *a, abar__collection *c)
{
    const network_options *o = a->options;
    const double damping = damping_of(a, o);
    const abar__results_config config = {.damping = damping, .batch_mean = o->pgrad == 1};
    const size_t bytes = (size_t)a->n_weights * sizeof(abar__snapshot);
    void *memory;
    ABAR_TRY(abar__alloc(a->ctx, bytes, &memory));
    abar__snapshot *snapshots = memory;
    abar_status status = measure_snapshots(a, c, &config, snapshots);
    const abar__figures f = {.ctx = a->ctx,
                             .setup = a->setup,
                             .collection = c,
                             .snapshots = snapshots,
                             .n_snapshots = a->n_weights,
                             .dir = o->out,
                             .damping = damping};
    if (status == ABAR_OK) status = draw(a, &f);
    if (status == ABAR_OK) status = report(a, &f);
    for (int i = 0; i < a->n_weights; i++) {
        for (int m = 0; snapshots[i].map && m < c->n; m++) abar__result_free(a->ctx, &snapshots[i].map[m]);
        abar__free(a->ctx, snapshots[i].map, snapshots[i].map ? (size_t)c->n * sizeof *snapshots[i].map : 0);
    }
    abar__free(a->ctx, memory, bytes);
    return status;
}

static abar_status analyze_network(abar_analysis *a, const kind *k)
{
    const network_options *o = a->options;
    const unsigned wanted = k->wanted;
    const abar__pass_config pass_config = {.samples = o->samples,
                                           .batch = o->batch,
                                           .test = o->split == 1,
                                           .gradients = wanted & (ABAR_COLLECT_GRADS | ABAR_COLLECT_FISHER)};
    const abar__collect_config config = {.wanted = wanted,
                                         .layers = o->layers,
                                         .homogeneous = o->homogeneous,
                                         .drawn = o->fisher == 1,
                                         .fisher_samples = o->fisher_samples,
                                         .announce = a->events.announce,
                                         .user = a->events.user};
    abar__pass pass;
    abar__collection collection;
    for (int i = 1; i < a->n_weights; i++)
        if (!a->weights[i][0])
            return abar__fail(a->ctx, ABAR_E_ARGUMENT, "--checkpoint: the initial weights come first, write initial,FILE,...");
    ABAR_TRY(abar__pass_open(a->ctx, a->setup, a->weights[0], &pass_config, &pass));
    abar_status status = abar__collection_create(&pass, &config, &collection);
    if (status >= 0) {
        if (k->figure == abar__figure_attention) status = check_attention(a, &collection);
        if (status >= 0) status = abar__folder_make(a->ctx, o->out); /* after all that can be refused: no litter */
        if (status >= 0) status = analyze_collected(a, &collection);
        abar__collection_free(&collection);
    }
    abar__pass_close(&pass);
    return status;
}

abar_status abar_analysis_run(abar_analysis *a)
{
    const kind *k = find_kind(a->name);
    a->started = abar__seconds();
    if (k->wanted) {
        const int threads = omp_get_max_threads();
        drop_repeated(a);
        if (a->setup->train.threads > 0) omp_set_num_threads((int)a->setup->train.threads);
        const abar_status status = analyze_network(a, k);
        omp_set_num_threads(threads);
        return status;
    }
    return strcmp(a->name, "theory") == 0 ? abar__analyze_theory(a) : abar__analyze_complexity(a);
}
