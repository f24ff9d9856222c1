/* `abar analyze theory`: settings, points of a data set where asked for, table and files. */
#include "abar/data.h"
#include "analysis/analyze_impl.h"
#include "analysis/figures.h"
#include "analysis/sheet.h"
#include "base/json.h"

#include <string.h>

#define AT(field) offsetof(abar__theory_settings, field)

const abar_option abar__theory_options[] = {
    {"data", ABAR_OPTION_TEXT, AT(data), "orthonormal", 0, 0, NULL,
     "points: orthonormal, sphere, positive, circle, or a data set"},
    {"points", ABAR_OPTION_INT, AT(points), "16", 2, 512, NULL, "how many"},
    {"dim", ABAR_OPTION_INT, AT(dim), "0", 0, 4096, NULL, "dimensions; 0: as many as points, 2 on the circle"},
    {"width", ABAR_OPTION_INT, AT(width), "4096", 0, 1e6, NULL, "hidden units; 0: infinitely many"},
    {"damping", ABAR_OPTION_REAL, AT(damping), "1", 1e-12, 1e12, NULL, "rho"},
    {"rate", ABAR_OPTION_REAL, AT(rate), "0", 0, 1e12, NULL, "eta; 0: 0.9 of the stable one, all of it for infinite width"},
    {"steps", ABAR_OPTION_INT, AT(steps), "60", 1, 1e6, NULL, "gradient steps"},
    {"seed", ABAR_OPTION_INT, AT(seed), "0", 0, 0x1p62, NULL, "of points, weights and targets"},
    {"delta", ABAR_OPTION_REAL, AT(delta), "0.1", 1e-12, 0.999, NULL,
     "probability that statements about random weights may fail with"},
    {"one-point", ABAR_OPTION_BOOL, AT(one_point), "false", 0, 0, NULL,
     "start with the residual on one point (infinite width)"},
    {"uniform-signs", ABAR_OPTION_BOOL, AT(uniform_signs), "false", 0, 0, NULL,
     "output weights uniform on (-1, 1), as the paper prints them"},
    {"out", ABAR_OPTION_TEXT, AT(out), "analysis", 0, 0, NULL, "folder for the files"},
    {0},
};

/* The first images of a data set as points, (n, d), values from 0 to 1. */
static abar_status read_points(abar_analysis *a, const abar__theory_settings *o, abar__theory_config *config, double **points)
{
    abar_dataset *data;
    const abar_dataset_config limits = {.size = sizeof limits, .limit_train = config->n, .limit_test = 1};
    ABAR_TRY(abar_dataset_open(a->ctx, o->data, &limits, &data));
    const abar_dataset_info *info = abar_dataset_info_of(data);
    const int64_t d = info->channels * info->height * info->width;
    abar_status status = ABAR_OK;
    void *memory = NULL;
    if (info->text || info->streamed || info->train < config->n || d > 4096)
        status =
            abar__fail(a->ctx, ABAR_E_ARGUMENT,
                       "--data %s: theory takes images in memory of up to 4096 numbers, at least --points of them", o->data);
    if (status >= 0) status = abar__alloc(a->ctx, (size_t)(config->n * d) * sizeof(double), &memory);
    if (status >= 0) {
        *points = memory;
        for (int64_t i = 0; i < config->n; i++)
            for (int64_t j = 0; j < d; j++) (*points)[i * d + j] = abar_dataset_image(data, false, i)[j] / 255.0;
        config->points = ABAR_POINTS_GIVEN;
        config->given = *points;
        config->d = d;
    }
    abar_dataset_close(data);
    return status;
}

static abar_status choose_points(abar_analysis *a, const abar__theory_settings *o, abar__theory_config *config, double **points)
{
    static const char *const names[] = {"orthonormal", "sphere", "positive", "circle"};
    static const abar__theory_points kinds[] = {ABAR_POINTS_ORTHONORMAL, ABAR_POINTS_SPHERE, ABAR_POINTS_POSITIVE,
                                                ABAR_POINTS_CIRCLE};
    for (int i = 0; i < 4; i++)
        if (strcmp(o->data, names[i]) == 0) {
            config->points = kinds[i];
            if (config->d == 0) config->d = kinds[i] == ABAR_POINTS_CIRCLE ? 2 : config->n;
            return ABAR_OK;
        }
    return read_points(a, o, config, points);
}

static abar_status report(abar_analysis *a, const abar__theory *t, const char *dir)
{
    ABAR_TRY(abar__describe_theory(t, &a->text));
    ABAR_TRY(abar__save_text(a->ctx, dir, "theory.txt", &a->text));
    ABAR_TRY(abar__text_printf(a->ctx, &a->json, "{\"analysis\": \"theory\", \"dir\": "));
    ABAR_TRY(abar__json_string(a->ctx, &a->json, dir));
    ABAR_TRY(abar__text_printf(a->ctx, &a->json, ", \"statements\": ["));
    for (int i = 0; i < t->statements; i++) {
        static const char *const verdicts[] = {"holds", "violated", "condition not met", "says nothing"};
        const abar__theory_statement *s = &t->statement[i];
        ABAR_TRY(abar__text_printf(a->ctx, &a->json, "%s{\"name\": \"%s\", \"verdict\": \"%s\", \"at\": ", i ? ", " : "",
                                   s->name, verdicts[s->verdict]));
        if (s->at >= 0)
            ABAR_TRY(abar__text_printf(a->ctx, &a->json, "%lld}", (long long)s->at));
        else
            ABAR_TRY(abar__text_printf(a->ctx, &a->json, "null}"));
    }
    return abar__text_printf(a->ctx, &a->json, "]}");
}

static abar_status tell_step(void *user, const char *method, int64_t k)
{
    abar_analysis *a = user;
    return abar__analysis_tell(a, method, k, ((const abar__theory_settings *)a->options)->steps);
}

abar_status abar__analyze_theory(abar_analysis *a)
{
    const abar__theory_settings *o = a->options;
    abar__theory_config config = {.n = o->points,
                                  .d = o->dim,
                                  .m = o->width,
                                  .rho = o->damping,
                                  .rate = o->rate,
                                  .delta = o->delta,
                                  .steps = o->steps,
                                  .seed = (uint64_t)o->seed,
                                  .one_point = o->one_point,
                                  .uniform_q = o->uniform_signs,
                                  .tell = tell_step,
                                  .user = a};
    abar__theory t;
    double *points = NULL;
    abar_status status = choose_points(a, o, &config, &points);
    if (status == ABAR_OK) status = abar__theory_run(a->ctx, &config, &t);
    if (status == ABAR_OK) {
        status = abar__folder_make(a->ctx, o->out);
        if (status >= 0) status = abar__figure_theory(&t, o->out);
        if (status >= 0) status = report(a, &t, o->out);
        abar__theory_free(&t);
    }
    abar__free(a->ctx, points, points ? (size_t)(config.n * config.d) * sizeof *points : 0);
    return status;
}
