/* When statistics are taken and joined: micro-batches, scales, steps that are counted, layers left out, refreshes and their
 * schedule (methods.md section 0). */
#include "curvature_lab.h"

static const lab_shape shapes[] = {
    {.name = "fc1", .in = 5, .out = 4, .bias = true, .first = true},
    {.name = "block.0.fc", .in = 4, .out = 3, .tokens = 3},
    {.name = "block.1.conv", .in = 4, .out = 4, .bias = true, .image = {4, 5}, .window = {{3, 2}, {1, 2}, {1, 0}, {1, 1}, 2}},
    {.name = "head", .in = 3, .out = 2, .bias = true},
};
enum { LAYERS = sizeof shapes / sizeof *shapes, MAPS = LAYERS + 1, EXAMPLES = 9 };

static void open_pair(lab *a, lab *b, const char *device, const char *method, const char *options)
{
    lab_open(a, device, NULL, shapes, LAYERS, EXAMPLES, 3);
    lab_open(b, device, NULL, shapes, LAYERS, EXAMPLES, 3);
    lab_optimizer(a, method, options);
    lab_optimizer(b, method, options);
}

static void close_pair(lab *a, lab *b)
{
    lab_close(a);
    lab_close(b);
}

/* The same new batch for both; the seeds are. */
static void draw_pair(lab *a, lab *b)
{
    lab_draw_batch(a);
    lab_draw_batch(b);
    lab_clear_weights(a);
    lab_clear_weights(b);
}

static void assert_same_bits(lab *a, lab *b, const char *what)
{
    lab_state x, y;
    lab_state_take(a, &x);
    lab_state_take(b, &y);
    const char *changed = lab_state_changed(&x, &y);
    if (changed) fail_msg("%s: %s differs", what, changed);
    lab_state_drop(&x);
    lab_state_drop(&y);
}

/* ---- micro-batches -------------------------------------------------------------------------------------------------- */

typedef struct split {
    int parts;
    int64_t count[4];
    double scale[4]; /* each part's output gradients are offered larger by as much */
} split;

static const split splits[] = {
    {2, {4, 5}, {1.0, 1.0}},
    {2, {0, 9}, {1.0, 8.0}},
    {3, {2, 3, 4}, {2.0, 0.25, 1.0}},
    {4, {1, 3, 2, 3}, {1024.0, 1.0, 0.5, 4.0}},
};

static void observe_parts(lab *l, const split *s)
{
    int64_t first = 0;
    for (int i = 0; i < s->parts; first += s->count[i++])
        for (int k = 0; k < l->n; k++) lab_observe_layer(l, k, first, s->count[i], s->scale[i], 1.0 / s->scale[i]);
}

static void calibrate_parts(lab *l, const split *s)
{
    int64_t first = 0;
    for (int i = 0; i < s->parts; first += s->count[i++]) lab_calibrate_part(l, first, s->count[i]);
    NEED(l, abar_optim_end_calibration(l->optim));
}

static void check_split(const char *device, const char *method, const char *options, const split *s)
{
    lab whole, parts;
    char what[200];
    open_pair(&whole, &parts, device, method, options);
    draw_pair(&whole, &parts);
    lab_calibrate(&whole);
    calibrate_parts(&parts, s);
    for (int k = 0; k < 3; k++) {
        draw_pair(&whole, &parts);
        lab_observe(&whole);
        observe_parts(&parts, s);
        lab_step(&whole, 1.0);
        lab_step(&parts, 1.0);
        snprintf(what, sizeof what, "%s %.80s in %d parts, step %d", method, options, s->parts, k);
        lab_check_same(&parts, &whole, what, 1e-11, 1e-3);
    }
    close_pair(&whole, &parts);
}

static void micro_batches_join_to_the_whole_batch(void **state)
{
    static const char *const calibrated[][2] = {{"mac", "damping=0.2 first-layer=dataset-mean"},
                                                {"mac", "damping=adaptive first-layer=dataset-mean"},
                                                {"smac", "damping=0.2 first-layer=dataset-cov"}};
    char all[256];
    for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
        for (int i = 0; lab_cases[i][0]; i++)
            check_split(*state, lab_cases[i][0], lab_with(all, lab_cases[i][1], "tcov=1 tinv=1 stat-decay=0.5"), &splits[s]);
        for (size_t i = 0; i < sizeof calibrated / sizeof *calibrated; i++)
            check_split(*state, calibrated[i][0], lab_with(all, calibrated[i][1], "tcov=1 tinv=1"), &splits[s]);
    }
}

/* More examples than any method looks at in one go. */
static void large_batches_are_seen_to_their_end(void **state)
{
    char all[256];
    for (int i = 0; lab_cases[i][0]; i++) {
        lab whole, parts;
        lab_with(all, lab_cases[i][1], "tcov=1 tinv=1");
        lab_open(&whole, *state, NULL, shapes, LAYERS, 150, 3);
        lab_open(&parts, *state, NULL, shapes, LAYERS, 150, 3);
        lab_optimizer(&whole, lab_cases[i][0], all);
        lab_optimizer(&parts, lab_cases[i][0], all);
        draw_pair(&whole, &parts);
        lab_observe(&whole);
        for (int64_t first = 0; first < 150; first += 15)
            for (int k = 0; k < LAYERS; k++) lab_observe_layer(&parts, k, first, 15, 1.0, 1.0);
        lab_step(&whole, 1.0);
        lab_step(&parts, 1.0);
        lab_check_same(&parts, &whole, lab_cases[i][0], 1e-11, 1e-3);
        close_pair(&whole, &parts);
    }
}

/* ---- the step's own scales ------------------------------------------------------------------------------------------ */

static double norm_of(const lab *l)
{
    double sum = 0.0;
    for (int i = 0; i < l->n; i++)
        for (int64_t g = 0; g < l->layer[i].groups; g++) {
            double *m = lab_gradient(l, i, g);
            for (int64_t k = 0; k < l->layer[i].outputs * l->layer[i].columns; k++) sum += m[k] * m[k];
            free(m);
        }
    return sqrt(sum);
}

static void scale_gradients(lab *l, double factor)
{
    for (int i = 0; i < l->n; i++) {
        lab_layer *y = &l->layer[i];
        for (int64_t k = 0; k < abar_tensor_count(&y->gw); k++) lab_set(&y->gw, k, factor * lab_get(&y->gw, k));
        for (int64_t k = 0; k < (y->shape.bias ? y->shape.out : 0); k++) lab_set(&y->gb, k, factor * lab_get(&y->gb, k));
    }
}

static void gradients_scaled_or_clipped_by_the_step_are_as_if_given_so(void **state)
{
    char all[256];
    for (int i = 0; lab_cases[i][0]; i++) {
        lab given, stepped;
        open_pair(&given, &stepped, *state, lab_cases[i][0], lab_with(all, lab_cases[i][1], "tcov=1 tinv=1"));
        for (int k = 0; k < 2; k++) {
            abar_step_config step = {.size = sizeof step, .lr = 1.0};
            draw_pair(&given, &stepped);
            lab_observe(&given);
            lab_observe(&stepped);
            if (k == 0) { /* a mean over four micro-batches */
                scale_gradients(&stepped, 4.0);
                step.grad_scale = 0.25;
            } else {
                step.clip = 0.3 * norm_of(&given);
                scale_gradients(&given, step.clip / (norm_of(&given) + 1e-6));
            }
            lab_step(&given, 1.0);
            lab_load_gradients(&stepped);
            abar_step_report report = {.size = sizeof report};
            NEED(&stepped, abar_optim_step(stepped.optim, &step, &report));
            assert_true(fabs(report.grad_norm - norm_of(&stepped) * (k == 0 ? 0.25 : 1.0)) <= 1e-5 * report.grad_norm);
            lab_check_same(&stepped, &given, lab_cases[i][0], 1e-11, 1e-3);
        }
        close_pair(&given, &stepped);
    }
}

/* ---- counting ------------------------------------------------------------------------------------------------------- */

static void statistics_are_taken_every_tcov_steps_skipped_ones_counted(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        lab l;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 3);
        lab_optimizer(&l, lab_methods[m], "tcov=3 tinv=6");
        int64_t commits = 0;
        for (int k = 0; k < 13; k++) {
            assert_int_equal(abar_optim_observes(l.optim), k % 3 == 0);
            lab_draw_batch(&l);
            lab_observe(&l);
            if (k == 3) lab_set(&l.layer[1].gw, 2, NAN);
            if (k == 5 || k == 6)
                abar_optim_skip(l.optim);
            else
                assert_int_equal(lab_step(&l, 0.1).skipped, k == 3);
            commits += k % 3 == 0 && k != 3 && k != 6;
            for (int i = 0; i < MAPS; i++) {
                abar_map_info info = *abar_optim_map(l.optim, i);
                assert_int_equal(info.commits, commits);
                assert_int_equal(info.dropped, 0);
            }
        }
        lab_close(&l);
    }
}

static void batches_between_statistics_are_not_looked_at(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        lab quiet, noisy;
        open_pair(&quiet, &noisy, *state, lab_methods[m], "tcov=3 tinv=3");
        for (int k = 0; k < 7; k++) {
            draw_pair(&quiet, &noisy);
            if (k % 3 == 0) {
                lab_observe(&quiet);
            } else {
                lab_set(&noisy.layer[0].x, 0, NAN);
                lab_set(&noisy.layer[2].p, 1, INFINITY);
            }
            lab_observe(&noisy);
            lab_step(&quiet, 1.0);
            lab_step(&noisy, 1.0);
            assert_same_bits(&quiet, &noisy, lab_methods[m]);
        }
        close_pair(&quiet, &noisy);
    }
}

/* The first read-out is the first batch's, whatever the decay; with none, it is always the last batch's. */
static void averages_are_unbiased_from_the_first_commit_on(void **state)
{
    char fast[256], slow[256];
    for (int i = 0; lab_cases[i][0]; i++) {
        lab a, b;
        open_pair(&a, &b, *state, lab_cases[i][0], lab_with(fast, lab_cases[i][1], "stat-decay=0 tcov=1 tinv=1"));
        lab_optimizer(&b, lab_cases[i][0], lab_with(slow, lab_cases[i][1], "stat-decay=0.99 tcov=1 tinv=1"));
        const int batches = strcmp(lab_cases[i][0], "kpsvd") == 0 ? 1 : 2; /* kpsvd's iteration begins from the last batch's */
        for (int k = 0; k < batches; k++) {
            draw_pair(&a, &b);
            if (k == 1) lab_optimizer(&b, lab_cases[i][0], slow); /* as if this batch were the first */
            lab_observe(&a);
            lab_observe(&b);
            lab_step(&a, 1.0);
            lab_step(&b, 1.0);
            lab_check_same(&b, &a, lab_cases[i][0], 1e-10, 1e-3);
        }
        close_pair(&a, &b);
    }
}

/* ---- layers left out ------------------------------------------------------------------------------------------------- */

static void check_pattern(const char *device, const char *method, const char *pattern, unsigned left_out)
{
    lab l;
    char options[256];
    lab_open(&l, device, NULL, shapes, LAYERS, EXAMPLES, 3);
    snprintf(options, sizeof options, "tcov=1 skip-layers=%s", pattern);
    lab_optimizer(&l, method, options);
    lab_draw_batch(&l);
    lab_clear_weights(&l);
    lab_observe(&l);
    lab_step(&l, 1.0);
    int maps = 0;
    for (int i = 0; i < LAYERS; i++) {
        const bool out = left_out >> i & 1;
        double *taken = lab_taken(&l, i, 0), *g = lab_gradient(&l, i, 0);
        const double off = lab_difference(taken, g, l.layer[i].outputs * l.layer[i].columns);
        if (out ? off > 1e-7 : off < 1e-4) fail_msg("%s, %s: %s is off by %g", method, pattern, shapes[i].name, off);
        assert_int_equal(lab_map_index(&l, shapes[i].name, 0) < 0, out);
        maps += out ? 0 : (int)l.layer[i].groups;
        free(taken);
        free(g);
    }
    assert_int_equal(abar_optim_map_count(l.optim), maps);
    lab_close(&l);
}

static void layers_that_a_pattern_names_are_left_alone(void **state)
{
    static const struct {
        const char *pattern;
        unsigned left_out; /* a bit per layer */
    } cases[] = {
        {"", 0},          {"fc1", 1},  {"fc", 0},       {"fc?", 1},           {"*", 15},        {"block.*", 6},
        {"*.fc", 2},      {"*fc*", 3}, {"head,fc1", 9}, {"nothing,*conv", 4}, {"block.?.*", 6}, {"*.0.*,h*d", 10},
        {"block.*.f", 0}, {"?", 0},    {"fc1,", 1},     {",head", 8},         {"FC1", 0},       {"b*c*v", 4},
    };
    size_t methods = 0;
    while (lab_methods[methods]) methods++;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_pattern(*state, lab_methods[i % methods], cases[i].pattern, cases[i].left_out);
}

/* The parameters of layers left out still are the rule's. */
static void all_layers_left_out_is_the_rule_alone(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        lab with, without;
        open_pair(&with, &without, *state, lab_methods[m], "skip-layers=* tcov=1 momentum=0.9 weight-decay=0.1");
        lab_optimizer(&without, NULL, "momentum=0.9 weight-decay=0.1");
        assert_false(abar_optim_observes(without.optim));
        for (int k = 0; k < 3; k++) {
            lab_draw_batch(&with);
            lab_draw_batch(&without);
            lab_observe(&with);
            lab_step(&with, 0.1);
            lab_step(&without, 0.1);
            lab_check_same(&with, &without, lab_methods[m], 0.0, 0.0);
        }
        close_pair(&with, &without);
    }
}

/* ---- groups ---------------------------------------------------------------------------------------------------------- */

static void groups_are_maps_of_their_own(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        lab l;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 3);
        lab_optimizer(&l, lab_methods[m], "tcov=1");
        assert_int_equal(abar_optim_map_count(l.optim), MAPS);
        for (int64_t g = 0; g < 2; g++) {
            abar_map_info info = lab_map(&l, "block.1.conv", g);
            assert_int_equal(info.rows, 2);
            assert_int_equal(info.columns, 2 * 3 * 2 + 1);
            assert_true(info.state_bytes > 0);
        }
        assert_int_equal(lab_map(&l, "fc1", 0).columns, 6);
        assert_int_equal(lab_map(&l, "block.0.fc", 0).columns, 4);
        /* channels of group 0 change nothing for group 1 */
        lab_draw_batch(&l);
        lab_clear_weights(&l);
        lab_observe(&l);
        lab_step(&l, 1.0);
        double *before = lab_taken(&l, 2, 1);
        lab_optimizer(&l, lab_methods[m], "tcov=1");
        const int64_t pixels = l.layer[2].x.dim[2] * l.layer[2].x.dim[3], size = 4 * pixels;
        for (int64_t i = 0; i < abar_tensor_count(&l.layer[2].x); i++)
            if (i % size < 2 * pixels) lab_set(&l.layer[2].x, i, 0.5);
        lab_clear_weights(&l);
        lab_observe(&l);
        lab_step(&l, 1.0);
        double *after = lab_taken(&l, 2, 1);
        const bool clips =
            strcmp(lab_methods[m], "kfac") == 0 || strcmp(lab_methods[m], "eva") == 0 || strcmp(lab_methods[m], "kpsvd") == 0;
        if (!clips) /* the KL clip joins all maps */
            lab_check(&l, lab_methods[m], after, before, l.layer[2].outputs * l.layer[2].columns, 0.0, 1e-6);
        free(before);
        free(after);
        lab_close(&l);
    }
}

/* ---- refreshing -------------------------------------------------------------------------------------------------------- */

/* Which maps' derived tensors changed from one state to the other: a bit per map. Eva's coefficients are the gradient's,
 * kpsvd's start is the last batch's. */
static unsigned refreshed(const lab *l, const lab_state *a, const lab_state *b)
{
    unsigned bits = 0;
    for (int i = 0; i < MAPS; i++) {
        abar_map_info info = *abar_optim_map(l->optim, i);
        char prefix[64];
        if (strcmp(info.layer, "block.1.conv") == 0)
            snprintf(prefix, sizeof prefix, "curvature.%s#%d.", info.layer, (int)info.group);
        else
            snprintf(prefix, sizeof prefix, "curvature.%s.", info.layer);
        for (int k = 0; k < a->n; k++) {
            const char *rest = a->name[k] + strlen(prefix);
            if (strncmp(a->name[k], prefix, strlen(prefix)) != 0 || strncmp(rest, "average.", 8) == 0) continue;
            if (strcmp(rest, "counts") == 0 || strcmp(rest, "numbers") == 0 || strcmp(rest, "coefficient") == 0) continue;
            if (strcmp(rest, "S_start") == 0) continue;
            if (memcmp(a->tensor[k].data, b->tensor[k].data, abar_tensor_bytes(&a->tensor[k])) != 0) bits |= 1u << i;
        }
    }
    return bits;
}

enum { TINV = 7, ALL_MAPS = (1 << MAPS) - 1 };

/* methods.md section 0: map l of L when (k - floor(l tinv / L)) mod tinv = 0, and all of them at 0; skipped: as soon as
 * possible */
static unsigned expected_refresh(const char *method, bool spread, int64_t k, bool skipped, unsigned *due)
{
    unsigned bits = k == 0 ? ALL_MAPS : 0;
    if (strcmp(method, "eva") == 0) return skipped ? 0 : ALL_MAPS;
    for (int64_t l = 0; l < MAPS; l++)
        if (((k - (spread ? l * TINV / MAPS : 0)) % TINV + TINV) % TINV == 0) bits |= 1u << l;
    bits |= *due;
    *due = skipped ? bits : 0;
    return skipped ? 0 : bits;
}

static void check_refresh(const char *device, const char *method, bool spread, const int64_t *skips)
{
    lab l;
    unsigned due = 0;
    char options[64];
    lab_state before, after;
    snprintf(options, sizeof options, "tcov=1 tinv=%d refresh=%s", TINV, spread ? "spread" : "together");
    lab_open(&l, device, NULL, shapes, LAYERS, EXAMPLES, 3);
    lab_optimizer(&l, method, options);
    for (int64_t k = 0; k < 3 * TINV; k++) {
        bool skip = false;
        for (int i = 0; skips[i] >= 0; i++) skip = skip || skips[i] == k;
        lab_draw_batch(&l);
        lab_state_take(&l, &before);
        lab_observe(&l);
        if (skip) lab_set(&l.layer[0].gw, 0, INFINITY);
        assert_int_equal(lab_step(&l, 0.1).skipped, skip);
        lab_state_take(&l, &after);
        unsigned found = refreshed(&l, &before, &after), expected = expected_refresh(method, spread, k, skip, &due);
        if (found != expected) fail_msg("%s %s: step %d refreshed %x, not %x", method, options, (int)k, found, expected);
        lab_state_drop(&before);
        lab_state_drop(&after);
    }
    lab_close(&l);
}

static void refreshes_come_every_tinv_steps_together_or_spread(void **state)
{
    static const int64_t none[] = {-1}, some[] = {0, 1, 7, 10, 12, 13, 14, -1};
    for (int m = 0; lab_methods[m]; m++)
        for (int spread = 0; spread < 2; spread++) {
            check_refresh(*state, lab_methods[m], spread, none);
            check_refresh(*state, lab_methods[m], spread, some);
        }
}

/* Nothing was observed yet: the refresh waits for the first commit, and until then gradients pass as they are. */
static void refresh_without_a_commit_waits_for_one(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        lab l;
        lab_open(&l, *state, NULL, shapes, LAYERS, EXAMPLES, 3);
        lab_optimizer(&l, lab_methods[m], "tcov=2 tinv=50");
        for (int k = 0; k < 4; k++) {
            lab_draw_batch(&l);
            lab_clear_weights(&l);
            if (k >= 2) lab_observe(&l);
            lab_step(&l, 1.0);
            for (int i = 0; i < LAYERS; i++) {
                double *taken = lab_taken(&l, i, 0), *g = lab_gradient(&l, i, 0);
                const double off = lab_difference(taken, g, l.layer[i].outputs * l.layer[i].columns);
                assert_true(k < 2 ? off < 1e-7 : off > 1e-4);
                free(taken);
                free(g);
            }
        }
        lab_close(&l);
    }
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(micro_batches_join_to_the_whole_batch),
        ON_BOTH(large_batches_are_seen_to_their_end),
        ON_BOTH(gradients_scaled_or_clipped_by_the_step_are_as_if_given_so),
        ON_BOTH(statistics_are_taken_every_tcov_steps_skipped_ones_counted),
        ON_BOTH(batches_between_statistics_are_not_looked_at),
        ON_BOTH(averages_are_unbiased_from_the_first_commit_on),
        ON_BOTH(layers_that_a_pattern_names_are_left_alone),
        ON_BOTH(all_layers_left_out_is_the_rule_alone),
        ON_BOTH(groups_are_maps_of_their_own),
        ON_BOTH(refreshes_come_every_tinv_steps_together_or_spread),
        ON_BOTH(refresh_without_a_commit_waits_for_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
