/* MAC and SMAC on layers that feed attention (methods.md section 2): a fused qkv is linked maps on one input, and gives what
 * three separate layers give; uniform attention is the plain mean; what is linked stands and falls together. The numbers
 * themselves are the oracle's (golden_cases.h). */
#include "curvature_lab.h"

#include "curvature/curvature_impl.h"

enum { HEADS = 3, HEAD = 2, SIZE = HEADS * HEAD, IN = 5, TOKENS = 8, EXAMPLES = 4 };

#define FUSED                                                     \
    {                                                             \
        .heads = HEADS, .value_row = 2 * SIZE, .value_rows = SIZE \
    }
#define ALONE                                              \
    {                                                      \
        .heads = HEADS, .value_row = 0, .value_rows = SIZE \
    }

static const lab_shape fused = {.name = "qkv", .in = IN, .out = 3 * SIZE, .bias = true, .tokens = TOKENS, .attention = FUSED};
static const lab_shape plain = {.name = "proj", .in = IN, .out = 3, .bias = true, .tokens = TOKENS};

static const char *const stats[] = {"expectation", "factored", "per-head"};
static const char *const methods[] = {"mac", "smac"};
static const char *const dampings[] = {"damping=0.05", "damping=adaptive"};
enum { STATS = 3, METHODS = 2, DAMPINGS = 2 };

static lab_shape windowed(void)
{
    lab_shape s = fused;
    s.name = "window";
    s.tokens = 4 * 6;
    s.attention.grid[0] = 4;
    s.attention.grid[1] = 6;
    s.attention.side = 2;
    s.attention.shift = 1;
    return s;
}

/* "damping=... value-stat=... more" of one of all choices; false: there are no more. */
typedef struct choice {
    const char *method, *stat;
    char options[256];
} choice;

static bool choose(int i, const char *more, choice *c)
{
    if (i >= STATS * METHODS * DAMPINGS) return false;
    c->method = methods[i % METHODS];
    c->stat = stats[i / METHODS % STATS];
    snprintf(c->options, sizeof c->options, "%s value-stat=%s pgrad=per-example %s", dampings[i / METHODS / STATS], c->stat,
             more);
    return true;
}

/* ---- what it computes --------------------------------------------------------------------------------------------------- */

/* Rows from .. from + n of a (.., rows, columns) into the first of another. */
static void copy_rows(const abar_tensor *to, const abar_tensor *from, int64_t first, int64_t n, int64_t columns)
{
    memcpy(to->data, (double *)from->data + first * columns, (size_t)(n * columns) * sizeof(double));
}

/* The layers of q, k and v get what the fused layer has for their rows. */
static void split_batch(const lab *whole, lab *apart)
{
    const lab_layer *a = &whole->layer[0];
    for (int i = 0; i < 3; i++) {
        const lab_layer *b = &apart->layer[i];
        memcpy(b->x.data, a->x.data, abar_tensor_bytes(&a->x));
        copy_rows(&b->gw, &a->gw, i * SIZE, SIZE, IN);
        if (a->shape.bias) copy_rows(&b->gb, &a->gb, i * SIZE, SIZE, 1);
        for (int64_t row = 0; row < EXAMPLES * a->shape.tokens; row++)
            memcpy((double *)b->p.data + row * SIZE, (double *)a->p.data + row * 3 * SIZE + i * SIZE, SIZE * sizeof(double));
        if (b->attended.ndim) memcpy(b->attended.data, a->attended.data, abar_tensor_bytes(&a->attended));
    }
    lab_clear_weights(apart);
}

static void check_fused(const char *device, const lab_shape *shape, const choice *c)
{
    lab whole, apart;
    lab_shape three[] = {*shape, *shape, *shape};
    static const char *const names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++) {
        three[i].name = names[i];
        three[i].out = SIZE;
        three[i].attention.value_row = 0;
        if (i < 2) three[i].attention = (abar_attention){0};
    }
    lab_open(&whole, device, NULL, shape, 1, EXAMPLES, 3);
    lab_open(&apart, device, NULL, three, 3, EXAMPLES, 4);
    lab_optimizer(&whole, c->method, c->options);
    lab_optimizer(&apart, c->method, c->options);
    for (int k = 0; k < 5; k++) {
        lab_new_batch(&whole);
        split_batch(&whole, &apart);
        lab_observed_step(&whole);
        lab_observed_step(&apart);
        double *all = lab_taken(&whole, 0, 0);
        for (int i = 0; i < 3; i++) {
            const int64_t d = IN + (shape->bias ? 1 : 0);
            double *mine = lab_taken(&apart, i, 0);
            lab_check(&whole, c->options, all + i * SIZE * d, mine, SIZE * d, 1e-12, 1e-6);
            free(mine);
        }
        free(all);
    }
    lab_close(&whole);
    lab_close(&apart);
}

static void fused_layer_equals_three_separate_ones(void **state)
{
    choice c;
    for (int i = 0; choose(i, "tcov=2 tinv=3", &c); i++) {
        lab_shape window = windowed(), bare = fused;
        bare.bias = false;
        check_fused(*state, &fused, &c);
        check_fused(*state, &bare, &c);
        check_fused(*state, &window, &c);
    }
}

static void make_uniform(lab *l)
{
    for (int i = 0; i < l->n; i++) {
        const abar_attention *a = &l->layer[i].shape.attention;
        const int64_t count = a->side ? a->side * a->side : l->layer[i].shape.tokens;
        for (int64_t j = 0; j < abar_tensor_count(&l->layer[i].attended) && a->heads; j++)
            lab_set(&l->layer[i].attended, j, 1.0 / (double)count);
    }
}

/* The same with every row of v like q's and k's; before that, attention that is not uniform, which must differ. */
static void uniform_attention_is_the_plain_mean(void **state)
{
    choice c;
    char other[256];
    for (int i = 0; choose(i, "tcov=1 tinv=1 stat-decay=0.5", &c); i++) {
        lab weighed, mean;
        const lab_shape shapes[] = {fused, windowed()};
        lab_open(&weighed, *state, NULL, shapes, 2, EXAMPLES, 3);
        lab_open(&mean, *state, NULL, shapes, 2, EXAMPLES, 3);
        lab_optimizer(&weighed, c.method, c.options);
        lab_optimizer(&mean, c.method, lab_with(other, c.options, "value-stat=plain"));
        for (int k = 0; k < 3; k++) {
            lab_new_batch(&weighed);
            make_uniform(&weighed);
            lab_copy_batch(&weighed, &mean);
            lab_observed_step(&weighed);
            lab_observed_step(&mean);
            lab_check_same(&weighed, &mean, c.options, 1e-11, 1e-5);
        }
        lab_new_batch(&weighed);
        lab_copy_batch(&weighed, &mean);
        lab_observed_step(&weighed);
        lab_observed_step(&mean);
        double *a = lab_taken(&weighed, 0, 0), *b = lab_taken(&mean, 0, 0);
        const int64_t d = IN + 1;
        lab_check(&weighed, "q and k", a, b, 2 * SIZE * d, 1e-11, 1e-5);
        assert_true(lab_difference(a + 2 * SIZE * d, b + 2 * SIZE * d, SIZE * d) > 1e-3);
        free(a);
        free(b);
        lab_close(&weighed);
        lab_close(&mean);
    }
}

/* t sums to 1: the last entry of m is what the last entry of the mean activation is, to the bit. */
static void homogeneous_entry_stays_one(void **state)
{
    choice c;
    for (int i = 0; choose(i, "tcov=1 tinv=1", &c); i++) {
        lab l;
        lab_state s;
        const lab_shape shapes[] = {fused, windowed()};
        lab_open(&l, *state, NULL, shapes, 2, EXAMPLES, 7);
        lab_optimizer(&l, c.method, c.options);
        for (int k = 0; k < 9; k++) {
            lab_new_batch(&l);
            lab_observed_step(&l);
        }
        lab_state_take(&l, &s);
        const double one = 1.0 - pow(0.95, 9.0);
        for (int layer = 0; layer < 2; layer++) {
            const abar_tensor *q = lab_state_find(&s, "curvature.%s.average.a", shapes[layer].name);
            const abar_tensor *v = lab_state_find(&s, "curvature.%s@v%s.average.a", shapes[layer].name,
                                                  strcmp(c.stat, "per-head") == 0 ? "2" : "");
            assert_non_null(q);
            assert_non_null(v);
            assert_true(lab_get(v, IN) == lab_get(q, IN));
            assert_true(fabs(lab_get(v, IN) / one - 1.0) < 1e-6);
        }
        lab_state_drop(&s);
        lab_close(&l);
    }
}

/* Parts of a batch, and sums of ranks joined by hand, give what the whole batch gives. */
static void parts_and_ranks_equal_one_batch(void **state)
{
    choice c;
    for (int i = 0; choose(i, "tcov=1 tinv=1", &c); i++) {
        lab whole, parts, ranks[2];
        const lab_shape shapes[] = {windowed(), fused};
        lab *const all[] = {&whole, &parts, &ranks[0], &ranks[1]};
        for (int j = 0; j < 4; j++) {
            lab_open(all[j], *state, NULL, shapes, 2, EXAMPLES, 3);
            lab_optimizer(all[j], c.method, c.options);
        }
        for (int k = 0; k < 3; k++) {
            lab_new_batch(&whole);
            for (int j = 1; j < 4; j++) lab_copy_batch(&whole, all[j]);
            lab_observed_step(&whole);
            for (int layer = 0; layer < 2; layer++) {
                lab_observe_layer(&parts, layer, 0, 3, 1.0, 1.0);
                lab_observe_layer(&parts, layer, 3, 1, 1.0, 1.0);
                lab_observe_layer(&ranks[0], layer, 0, 1, 1.0, 1.0);
                lab_observe_layer(&ranks[1], layer, 1, 3, 1.0, 1.0);
            }
            const int64_t n = abar_optim_pending_count(ranks[0].optim);
            double *sum = calloc((size_t)n, sizeof *sum), *one = calloc((size_t)n, sizeof *one);
            NEED(&ranks[0], abar_optim_pending_read(ranks[0].optim, sum));
            NEED(&ranks[1], abar_optim_pending_read(ranks[1].optim, one));
            for (int64_t j = 0; j < n; j++) sum[j] += one[j];
            for (int j = 0; j < 2; j++) NEED(&ranks[j], abar_optim_pending_write(ranks[j].optim, sum));
            free(sum);
            free(one);
            for (int j = 1; j < 4; j++) {
                assert_false(lab_step(all[j], 1.0).skipped);
                lab_check_same(all[j], &whole, c.options, 1e-12, 1e-5);
            }
        }
        for (int j = 0; j < 4; j++) lab_close(all[j]);
    }
}

/* Any strides and types of x give the same: its numbers are exact in all of them. */
static void inputs_may_lie_anyhow(void **state)
{
    choice c;
    for (int i = 0; choose(i, "tcov=1 tinv=1", &c); i++) {
        lab one, other;
        const lab_shape shapes[] = {windowed(), fused};
        lab_open(&one, *state, NULL, shapes, 2, EXAMPLES, 3);
        lab_open(&other, *state, NULL, shapes, 2, EXAMPLES, 3);
        lab_optimizer(&one, c.method, c.options);
        lab_optimizer(&other, c.method, c.options);
        static const abar_dtype dtypes[] = {ABAR_BF16, ABAR_F32, ABAR_F16};
        static const lab_layout lies[] = {LAB_DENSE, LAB_GAPS, LAB_CHANNELS_LAST};
        for (int k = 0; k < 3; k++) {
            lab_new_batch(&one);
            lab_copy_batch(&one, &other);
            other.dtype = dtypes[k];
            other.lie = lies[k];
            lab_observed_step(&one);
            lab_observed_step(&other);
            lab_check_same(&other, &one, c.options, 1e-12, 1e-5);
        }
        lab_close(&one);
        lab_close(&other);
    }
}

/* To the other methods qkv is one linear map on tokens. */
static void other_methods_do_not_look_at_attention(void **state)
{
    for (int m = 0; lab_methods[m]; m++) {
        if (strcmp(lab_methods[m], "mac") == 0 || strcmp(lab_methods[m], "smac") == 0) continue;
        lab with, without;
        lab_shape bare = fused;
        bare.attention = (abar_attention){0};
        lab_open(&with, *state, NULL, &fused, 1, EXAMPLES, 3);
        lab_open(&without, *state, NULL, &bare, 1, EXAMPLES, 3);
        lab_optimizer(&with, lab_methods[m], "tcov=1 tinv=1");
        lab_optimizer(&without, lab_methods[m], "tcov=1 tinv=1");
        lab_new_batch(&with);
        lab_copy_batch(&with, &without);
        lab_observed_step(&with);
        lab_observed_step(&without);
        assert_int_equal(abar_optim_map_count(with.optim), 1);
        lab_check_same(&with, &without, lab_methods[m], 0.0, 0.0);
        lab_close(&with);
        lab_close(&without);
    }
}

/* ---- what is linked -------------------------------------------------------------------------------------------------------
 */

static void forget_dropped(const lab_state *s)
{
    for (int i = 0; i < s->n; i++) {
        const char *dot = strrchr(s->name[i], '.');
        if (dot && strcmp(dot, ".counts") == 0) ((int64_t *)s->tensor[i].data)[ABAR_COUNT_DROPPED] = 0;
    }
}

/* A number that is not finite in one of the statistics drops all of the layer's, and nothing else: as if it had not been
 * observed. */
static void bad_statistic_of_one_part_drops_all(void **state)
{
    choice c;
    for (int i = 0; choose(i, "tcov=1 tinv=2 momentum=0.9", &c); i++)
        for (int bad = 0; bad < 3; bad++) {
            lab struck, spared;
            lab_state a, b;
            const lab_shape shapes[] = {plain, fused, windowed()};
            lab_open(&struck, *state, NULL, shapes, 3, EXAMPLES, 9);
            lab_open(&spared, *state, NULL, shapes, 3, EXAMPLES, 9);
            lab_optimizer(&struck, c.method, c.options);
            lab_optimizer(&spared, c.method, c.options);
            for (int k = 0; k < 4; k++) {
                const bool now = k == (bad == 1 ? 0 : 2);
                lab_draw_batch(&struck);
                lab_draw_batch(&spared);
                const lab_layer *y = &struck.layer[1];
                if (now && bad == 0) lab_set(&y->attended, 1 * HEADS * TOKENS + 2 * TOKENS + 3, NAN); /* the last head */
                if (now && bad == 1) lab_set(&y->attended, 5, INFINITY);
                if (now && bad == 2) lab_set(&y->x, 7, NAN);
                lab_observe(&struck);
                for (int layer = 0; layer < 3; layer++)
                    if (!now || layer != 1) lab_observe_layer(&spared, layer, 0, EXAMPLES, 1.0, 1.0);
                assert_false(lab_step(&struck, 0.05).skipped);
                assert_false(lab_step(&spared, 0.05).skipped);
            }
            for (int m = 0; m < abar_optim_map_count(struck.optim); m++) {
                const abar_map_info info = *abar_optim_map(struck.optim, m);
                const bool hit = strncmp(info.layer, "qkv", 3) == 0;
                if (info.dropped != hit || info.commits != 4 - hit)
                    fail_msg("%s: %s dropped %d, %d commits", c.options, info.layer, (int)info.dropped, (int)info.commits);
            }
            lab_state_take(&struck, &a);
            lab_state_take(&spared, &b);
            assert_null(lab_state_not_finite(&a));
            forget_dropped(&a);
            const char *changed = lab_state_changed(&a, &b);
            if (changed) fail_msg("%s: %s differs", c.options, changed);
            lab_state_drop(&a);
            lab_state_drop(&b);
            lab_close(&struck);
            lab_close(&spared);
        }
}

/* With refresh=spread a layer's maps are refreshed at the same steps, and others' numbers do not depend on its parts. */
static void linked_maps_have_one_number(void **state)
{
    for (int s = 0; s < STATS; s++) {
        lab l;
        char options[128];
        const lab_shape shapes[] = {fused, plain};
        snprintf(options, sizeof options, "value-stat=%s tcov=1 tinv=6 refresh=spread", stats[s]);
        lab_open(&l, *state, NULL, shapes, 2, EXAMPLES, 3);
        lab_optimizer(&l, "mac", options);
        double before[1 + HEADS + 1];
        for (int k = 0; k < 10; k++) {
            lab_new_batch(&l);
            lab_observed_step(&l);
            for (int m = 0; m < abar_optim_map_count(l.optim); m++) {
                const abar_map_info info = *abar_optim_map(l.optim, m);
                const bool mine = strncmp(info.layer, "qkv", 3) == 0, due = k == 0 || (mine ? k % 6 == 0 : k % 6 == 3);
                if (k > 0 && (info.mean_square != before[m]) != due)
                    fail_msg("%s at step %d: %s refreshed?", options, k, info.layer);
                before[m] = info.mean_square;
            }
        }
        lab_close(&l);
    }
}

/* ---- state ----------------------------------------------------------------------------------------------------------------
 */

static void parts_of_v_have_names_and_rows_of_their_own(void **state)
{
    lab l;
    const lab_shape both[] = {fused, {.name = "v", .in = IN, .out = SIZE, .tokens = TOKENS, .attention = ALONE}};
    lab_open(&l, *state, NULL, both, 2, EXAMPLES, 1);
    static const struct {
        const char *options, *layer[6];
        int64_t rows[6];
    } cases[] = {
        {"value-stat=expectation", {"qkv", "qkv@v", "v@v"}, {2 * SIZE, SIZE, SIZE}},
        {"value-stat=factored", {"qkv", "qkv@v", "v@v"}, {2 * SIZE, SIZE, SIZE}},
        {"value-stat=per-head skip-layers=v", {"qkv", "qkv@v0", "qkv@v1", "qkv@v2"}, {2 * SIZE, HEAD, HEAD, HEAD}},
        {"value-stat=per-head skip-layers=qkv", {"v@v0", "v@v1", "v@v2"}, {HEAD, HEAD, HEAD}},
        {"value-stat=plain", {"qkv", "v"}, {3 * SIZE, SIZE}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab_state s;
        lab_optimizer(&l, "mac", cases[i].options);
        lab_state_take(&l, &s);
        int n = 0;
        for (; cases[i].layer[n]; n++) {
            const abar_map_info info = *abar_optim_map(l.optim, n);
            assert_string_equal(info.layer, cases[i].layer[n]);
            assert_int_equal(info.rows, cases[i].rows[n]);
            assert_int_equal(info.columns, strchr(info.layer, 'q') ? IN + 1 : IN);
            assert_non_null(lab_state_find(&s, "curvature.%s.average.a", info.layer));
            assert_non_null(lab_state_find(&s, "curvature.%s.u", info.layer));
            assert_non_null(lab_state_find(&s, "curvature.%s.counts", info.layer));
        }
        assert_int_equal(abar_optim_map_count(l.optim), n);
        lab_state_drop(&s);
    }
    lab_close(&l);
}

static void train(lab *l, int from, int to)
{
    for (int k = from; k < to; k++) {
        lab_draw_batch(l);
        if (k == 3) lab_set(&l->layer[1].attended, 2, NAN);
        if (k == 6) lab_set(&l->layer[1].gw, 0, NAN); /* a refresh of tinv=3 stays due */
        lab_observe(l);
        assert_int_equal(lab_step(l, 0.02).skipped, k == 6);
    }
}

static void state_put_back_goes_on_bit_for_bit(void **state)
{
    choice c;
    for (int i = 0; choose(i, "tcov=2 tinv=3 momentum=0.9 refresh=spread", &c); i++) {
        lab whole, fresh;
        lab_state kept, a, b;
        const lab_shape shapes[] = {plain, fused, windowed()};
        lab_open(&whole, *state, NULL, shapes, 3, EXAMPLES, 5);
        lab_open(&fresh, *state, NULL, shapes, 3, EXAMPLES, 6);
        lab_optimizer(&whole, c.method, c.options);
        lab_optimizer(&fresh, c.method, c.options);
        train(&whole, 0, 7);
        lab_state_take(&whole, &kept);
        lab_state_put(&fresh, &kept);
        fresh.noise = whole.noise;
        train(&whole, 7, 16);
        train(&fresh, 7, 16);
        lab_state_take(&whole, &a);
        lab_state_take(&fresh, &b);
        const char *changed = lab_state_changed(&a, &b);
        if (changed) fail_msg("%s: %s differs", c.options, changed);
        lab_state_drop(&kept);
        lab_state_drop(&a);
        lab_state_drop(&b);
        lab_close(&whole);
        lab_close(&fresh);
    }
}

typedef struct counter {
    size_t largest, held;
} counter;

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    counter *c = user;
    if (bytes > c->largest) c->largest = bytes;
    c->held += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counted_release(void *user, void *memory, size_t bytes)
{
    ((counter *)user)->held -= bytes;
    free(memory);
}

/* At 1024 tokens: (1 + parts) times three vectors, in two factors also X and t by position; never tokens x tokens. */
static void memory_is_vectors_and_one_sequence(void **state)
{
    enum { LONG = 1024, D = 32 };
    const lab_shape shape = {.name = "qkv", .in = D, .out = 3 * SIZE, .tokens = LONG, .attention = FUSED};
    for (int s = 0; s < STATS; s++)
        for (int adaptive = 0; adaptive < 2; adaptive++) {
            lab l;
            lab_request request;
            counter c = {0};
            const abar_allocator allocator = {counted_alloc, counted_release, &c};
            char options[128];
            snprintf(options, sizeof options, "value-stat=%s tcov=1 tinv=1 %s", stats[s], adaptive ? "damping=adaptive" : "");
            lab_open(&l, *state, &allocator, &shape, 1, 2, 1);
            lab_request_make(&l, "mac", options, &request);
            const size_t before = abar_context_memory(l.ctx).now;
            size_t plan;
            NEED(&l, abar_optim_plan_bytes(l.dev, &request.config, &plan));
            assert_int_equal(abar_context_memory(l.ctx).now, before);
            c.largest = 0;
            NEED(&l, abar_optim_create(l.dev, &request.config, &l.optim));
            const bool factored = strcmp(stats[s], "factored") == 0, per_head = strcmp(stats[s], "per-head") == 0;
            const size_t element = abar_dtype_size(abar_device_dtype(l.dev)), vector = D * element;
            const size_t positions = (size_t)LONG * ((D + 1) * element + (adaptive ? sizeof(double) : 0));
            const size_t expected = (size_t)(per_head ? 1 + HEADS : 2) * 3 * vector + (factored ? positions : 0);
            size_t maps = 0;
            for (int m = 0; m < abar_optim_map_count(l.optim); m++) maps += abar_optim_map(l.optim, m)->state_bytes;
            assert_in_range(maps, expected,
                            expected + (adaptive ? (1 + HEADS) * ABAR_ALIGN : 0)); /* numbers of a queued device */
            assert_true(abar_optim_state_bytes(l.optim) >= maps && abar_optim_state_bytes(l.optim) < maps + 64);
            assert_int_equal(abar_context_memory(l.ctx).now - before, abar_optim_bytes(l.optim));
            assert_in_range(abar_optim_bytes(l.optim) - plan, 1, 200); /* the parameter's names */
            const size_t held = c.held;
            for (int k = 0; k < 2; k++) {
                lab_new_batch(&l);
                lab_observed_step(&l);
            }
            assert_int_equal(c.held, held);
            assert_true(c.largest < (size_t)LONG * LONG * element / 8);
            lab_request_drop(&request);
            lab_close(&l);
        }
}

/* ---- what is refused ------------------------------------------------------------------------------------------------------
 */

static void refuse(lab *l, lab_request *request, const char *word)
{
    abar_optim *none = NULL;
    assert_int_equal(abar_optim_create(l->dev, &request->config, &none), ABAR_E_ARGUMENT);
    assert_null(none);
    if (!strstr(abar_context_error(l->ctx), word)) fail_msg("%s", abar_context_error(l->ctx));
}

static void attention_that_does_not_fit_is_refused(void **state)
{
    lab l;
    lab_shape shapes[] = {fused, plain};
    shapes[0].first = true;
    shapes[1].name = "qkv@v1";
    lab_open(&l, *state, NULL, shapes, 2, EXAMPLES, 1);
    lab_request request;
    lab_request_make(&l, "mac", "value-stat=per-head", &request);
    refuse(&l, &request, "qkv@v1");
    lab_request_drop(&request);
    lab_request_make(&l, "mac", "first-layer=dataset-mean", &request);
    refuse(&l, &request, "value-stat");
    lab_request_drop(&request);
    lab_request_make(&l, "mac", "value-stat=factored", &request);
    request.layers[0].input = (abar_tensor){0};
    refuse(&l, &request, "tokens");
    lab_request_drop(&request);
    static const abar_attention bad[] = {
        {.heads = HEADS, .value_row = SIZE, .value_rows = SIZE},                                /* not the last */
        {.heads = 4, .value_row = 2 * SIZE, .value_rows = SIZE},                                /* 4 does not divide 6 */
        {.heads = HEADS, .value_row = 2 * SIZE, .value_rows = SIZE, .grid = {2, 4}, .side = 3}, /* nor 3 a grid of 2 */
        {.heads = HEADS, .value_row = 2 * SIZE, .value_rows = SIZE, .grid = {2, 4}, .side = 2, .shift = 2}, /* all the way */
        {.heads = -1, .value_row = 2 * SIZE, .value_rows = SIZE},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lab_request_make(&l, "mac", "", &request);
        request.layers[0].attention = bad[i];
        refuse(&l, &request, "attention");
        lab_request_drop(&request);
    }
    lab_close(&l);
}

static void columns_that_do_not_fit_are_refused(void **state)
{
    lab l;
    const lab_shape shapes[] = {fused, windowed()};
    lab_open(&l, *state, NULL, shapes, 2, EXAMPLES, 1);
    lab_optimizer(&l, "mac", "tcov=1");
    lab_draw_batch(&l);
    abar_layer layer = {.name = "qkv", .output_grad_scale = 1.0, .window = abar_window_unit(), .attention = FUSED};
    const abar_tensor *x = &l.layer[0].x_stage, *c = &l.layer[0].attended_stage;
    const abar_dtype dtype = abar_device_dtype(l.dev);
    layer.input = abar_tensor_wrap(l.dev, x->data, dtype, 3, (int64_t[]){EXAMPLES, TOKENS, IN});
    assert_int_equal(abar_optim_observe(l.optim, 0, &layer), ABAR_E_ARGUMENT); /* none */
    assert_non_null(strstr(abar_context_error(l.ctx), "column"));
    static const int64_t wrong[][3] = {
        {EXAMPLES, HEADS, TOKENS - 1}, {EXAMPLES, HEADS - 1, TOKENS}, {EXAMPLES - 1, HEADS, TOKENS}};
    for (int i = 0; i < 3; i++) {
        layer.attention.columns = abar_tensor_wrap(l.dev, c->data, dtype, 3, wrong[i]);
        assert_int_equal(abar_optim_observe(l.optim, 0, &layer), ABAR_E_ARGUMENT);
    }
    layer.attention.columns = abar_tensor_wrap(l.dev, c->data, dtype, 3, (int64_t[]){EXAMPLES, HEADS, TOKENS});
    assert_int_equal(abar_optim_observe(l.optim, 1, &layer), ABAR_E_ARGUMENT); /* its grid has 24 tokens */
    lab_observe(&l);                                                           /* what was refused has left nothing behind */
    assert_false(lab_step(&l, 1.0).skipped);
    assert_int_equal(lab_map(&l, "qkv", 0).commits, 1);
    assert_int_equal(lab_map(&l, "window@v", 0).commits, 1);
    lab_close(&l);
}

int main(void)
{
    const int missing = lab_begin();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        ON_BOTH(fused_layer_equals_three_separate_ones),
        ON_BOTH(uniform_attention_is_the_plain_mean),
        ON_BOTH(homogeneous_entry_stays_one),
        ON_BOTH(parts_and_ranks_equal_one_batch),
        ON_BOTH(inputs_may_lie_anyhow),
        ON_BOTH(other_methods_do_not_look_at_attention),
        ON_BOTH(bad_statistic_of_one_part_drops_all),
        ON_BOTH(linked_maps_have_one_number),
        ON_BOTH(parts_of_v_have_names_and_rows_of_their_own),
        ON_BOTH(state_put_back_goes_on_bit_for_bit),
        ON_BOTH(memory_is_vectors_and_one_sequence),
        ON_BOTH(attention_that_does_not_fit_is_refused),
        ON_BOTH(columns_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
