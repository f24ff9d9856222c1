/* Random nets of convolutions, batch norms and concatenations on the cpu against ref: dense blocks that grow in place, with
 * readers of all kinds in between, moments that convolutions and concatenations leave to batch norms, on random numbers of
 * threads. The arena is poisoned before a pass. ABAR_TEST_SEED draws others, NETS=N more. */
#include "decisions.h"
#include "net/net_impl.h"

#include <stdio.h>

#define NETS 12
#define VALUES_MAX 40
#define CLASSES 10
#define TOLERANCE 2e-4

typedef struct source {
    uint64_t seed, at;
} source;

static int64_t below(source *s, int64_t n)
{
    return (int64_t)abar__below(abar__random(s->seed, ABAR_DRAW_SYNTHETIC, 3, s->at++).u[0], (uint32_t)n);
}

/* A value of the net that is being drawn. */
typedef struct drawn {
    abar_value value;
    int64_t channels;
    int readers;
} drawn;

typedef struct artist {
    source s;
    abar_net *net;
    drawn v[VALUES_MAX];
    int n, names;
    int64_t block; /* channels are multiples of it */
} artist;

static const char *name_of(artist *a, const char *what)
{
    static char text[40];
    snprintf(text, sizeof text, "%s%d", what, a->names++);
    return text;
}

static drawn *put(artist *a, abar_value value, int64_t channels)
{
    assert_in_range(a->n, 0, VALUES_MAX - 1);
    a->v[a->n] = (drawn){value, channels, 0};
    return &a->v[a->n++];
}

static abar_value read_value(drawn *d)
{
    d->readers++;
    return d->value;
}

static int64_t width(artist *a) { return a->block == 1 ? 6 + below(&a->s, 35) : a->block * (1 + below(&a->s, 3)); }

static abar_value conv(artist *a, abar_value x, int64_t out, int64_t kernel)
{
    return abar_conv2d(
        a->net, x, name_of(a, "conv"),
        &ABAR_CONFIG(abar_conv2d_config, .out = out, .kernel = kernel, .pad = kernel / 2, .bias = below(&a->s, 3) == 0));
}

static abar_value norm(artist *a, abar_value x)
{
    const abar_value y = abar_batch_norm(a->net, x, name_of(a, "norm"));
    return below(&a->s, 3) ? abar_relu(a->net, y) : y;
}

/* One more value, made of earlier ones; of the last one more often. */
static void grow(artist *a)
{
    drawn *x = &a->v[below(&a->s, 3) ? a->n - 1 : below(&a->s, a->n)], *other = &a->v[below(&a->s, a->n)];
    const int64_t out = width(a), kernel = below(&a->s, 3) ? 3 : 1;
    switch (below(&a->s, 8)) {
    case 0: put(a, conv(a, read_value(x), out, kernel), out); break;
    case 1: put(a, conv(a, norm(a, read_value(x)), out, kernel), out); break;
    case 2: put(a, norm(a, conv(a, read_value(x), out, kernel)), out); break;
    case 3: { /* a value that a convolution makes, with two readers */
        const abar_value y = conv(a, read_value(x), out, kernel);
        drawn *d = put(a, y, out);
        put(a, norm(a, read_value(d)), out);
        break;
    }
    case 4: { /* a residual */
        const abar_value y = conv(a, norm(a, read_value(x)), x->channels, kernel);
        const abar_value z = abar_add(a->net, abar_batch_norm(a->net, y, name_of(a, "norm")), read_value(x));
        put(a, below(&a->s, 2) ? abar_relu(a->net, z) : z, x->channels);
        break;
    }
    case 5: { /* two in front or behind */
        const abar_value y = conv(a, norm(a, read_value(x)), out, 3);
        abar_value all[3] = {y, read_value(x), read_value(other)};
        if (below(&a->s, 2)) all[0] = all[1], all[1] = y;
        put(a, abar_concat(a->net, 3, all), out + x->channels + other->channels);
        break;
    }
    default: { /* a dense layer */
        abar_value y = conv(a, norm(a, read_value(x)), 2 * out, 1);
        y = conv(a, norm(a, y), out, 3);
        abar_value all[2] = {y, read_value(x)};
        if (below(&a->s, 5) == 0) all[0] = all[1], all[1] = y;
        put(a, abar_concat(a->net, 2, all), out + x->channels);
    }
    }
}

/* What nothing has read yet, in concatenations. */
static abar_value join_unread(artist *a)
{
    abar_value unread[VALUES_MAX];
    int n = 0;
    for (int i = 0; i < a->n; i++)
        if (a->v[i].readers == 0) unread[n++] = a->v[i].value;
    while (n > 1) {
        const int most = n < 8 ? n : 8;
        const abar_value all = abar_concat(a->net, most, unread);
        n -= most;
        for (int i = 0; i < n; i++) unread[i] = unread[i + most];
        unread[n++] = all;
    }
    return unread[0];
}

static void build(abar_net *net, uint64_t seed)
{
    static const int64_t blocks[] = {16, 16, 8, 1};
    artist a = {.s = {.seed = seed}, .net = net};
    a.block = blocks[below(&a.s, 4)];
    const int64_t height = 1 + below(&a.s, 11), across = 1 + below(&a.s, 11);
    const abar_value x = abar_input(net, 3, (int64_t[]){3, height, across});
    const int64_t first = width(&a), steps = 2 + below(&a.s, 7);
    put(&a, conv(&a, x, first, 3), first);
    for (int64_t i = 0; i < steps && a.v[a.n - 1].channels < 200; i++) grow(&a);
    const abar_value all = join_unread(&a);
    abar_value y = below(&a.s, 3) ? norm(&a, all) : all;
    y = abar_flatten(net, abar_global_average_pool(net, y));
    abar_softmax_cross_entropy(net, abar_linear(net, y, "fc", &ABAR_CONFIG(abar_linear_config, .out = CLASSES, .bias = true)),
                               0.0);
}

static void copy_parameters(const abar_net *to, const abar_net *from)
{
    for (int p = 0; p < abar_net_param_count(to); p++) {
        const abar_tensor *x = &abar_net_param(from, p)->value, *y = &abar_net_param(to, p)->value;
        for (int64_t i = 0; i < abar_tensor_count(x); i++) store(y, i, load(x, i));
    }
}

static double size_of(const abar_tensor *t)
{
    double size = 0.0;
    for (int64_t i = 0; i < abar_tensor_count(t); i++) size = fmax(size, fabs(load(t, i)));
    return size;
}

/* In front of a norm some gradients are 0 but for rounding: differences are relative to a third of the largest at least. */
static void compare_gradients(const fixture *cpu, const fixture *ref, const char *label)
{
    double largest = 0.0;
    for (int pass = 0; pass < 2; pass++)
        for (int p = 0; p < abar_net_param_count(ref->net); p++) {
            const abar_param *x = abar_net_param(cpu->net, p), *y = abar_net_param(ref->net, p);
            const double size = size_of(&y->grad);
            if (pass == 0) largest = fmax(largest, size);
            const double d = distance(&x->grad, &y->grad) * (size > 0.0 ? size : 1.0);
            if (pass == 1 && !(d <= TOLERANCE * fmax(size, 0.3 * largest)))
                fail_msg("%s: the gradient of %s, at most %g, differs by %.2e", label, x->name, size, d);
        }
}

static void compare_state(const fixture *cpu, const fixture *ref, const char *label)
{
    for (int i = 0; i < abar_net_tensor_count(ref->net); i++) {
        abar_tensor x, y;
        const char *name;
        abar_net_tensor(cpu->net, i, &name, &x);
        abar_net_tensor(ref->net, i, &name, &y);
        const double size = size_of(&y), d = distance(&x, &y) * (size > 0.0 ? size : 1.0);
        if (!(d <= TOLERANCE * fmax(size, 0.1))) fail_msg("%s: %s, at most %g, differs by %.2e", label, name, size, d);
    }
}

static void compare_losses(fixture *cpu, fixture *ref, uint64_t seed, bool training, const char *label)
{
    memset(cpu->net->arena, 0xff, cpu->net->arena_bytes);
    fill_batch(ref->net, seed, CLASSES);
    fill_batch(cpu->net, seed, CLASSES);
    const double a = forward(cpu, training), b = forward(ref, training);
    if (!(fabs(a - b) <= 1e-4 * fabs(b))) fail_msg("%s: a loss of %g, not %g", label, a, b);
}

static void check_net(uint64_t seed)
{
    source s = {.seed = seed + 1000000};
    const int threads = 1 + (int)below(&s, 5);
    const int64_t batch = 2 + below(&s, 18);
    fixture ref = fixture_open("ref", 1), cpu = fixture_open("cpu", threads);
    char label[80];
    snprintf(label, sizeof label, "net %llu, batch %lld, %d threads", (unsigned long long)seed, (long long)batch, threads);
    build(ref.net, seed);
    build(cpu.net, seed);
    OK(ref.ctx, compile(&ref, batch, true));
    OK(cpu.ctx, compile(&cpu, batch, true));
    copy_parameters(ref.net, cpu.net);
    compare_losses(&cpu, &ref, seed, false, label);
    for (int round = 0; round < 2; round++) { /* the second adds to the gradients of the first */
        compare_losses(&cpu, &ref, seed, true, label);
        decide_alike(&cpu, ref.net, 1e-4);
        OK(ref.ctx, abar_net_backward(ref.net, round == 1, NULL));
        OK(cpu.ctx, abar_net_backward(cpu.net, round == 1, NULL));
        abar_net_commit(ref.net);
        abar_net_commit(cpu.net);
        compare_gradients(&cpu, &ref, label);
        compare_state(&cpu, &ref, label);
    }
    fixture_close(&ref);
    fixture_close(&cpu);
}

static uint64_t number_in(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void random_nets_on_cpu_match_ref(void **state)
{
    (void)state;
    const uint64_t first = 10000 * number_in("ABAR_TEST_SEED", 0), nets = number_in("NETS", NETS);
    for (uint64_t i = 0; i < nets; i++) check_net(first + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_nets_on_cpu_match_ref)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
