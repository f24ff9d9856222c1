/* Products of finite numbers that no double holds (methods.md section 9): what is dropped, what is left alone, and that each is
 * counted once. In double precision, where a test can choose which of two numbers overflows. */
#include "curvature_lab.h"

#include "curvature/curvature_impl.h"

static const lab_shape shapes[] = {{.name = "fc", .in = 5, .out = 4, .bias = true}, {.name = "spared", .in = 4, .out = 3}};
enum { EXAMPLES = 6 };

static void fill(const abar_tensor *t, double value)
{
    for (int64_t i = 0; i < abar_tensor_count(t); i++) lab_set(t, i, value);
}

/* The sum of activations of 1e200 is finite, that of their squares is not. */
static void mean_square_that_overflows_drops_the_statistics_of_its_map(void **state)
{
    static const char *const cases[][2] = {{"mac", "damping=adaptive"},
                                           {"mac", "damping=trace:0.1"},
                                           {"smac", "damping=adaptive"},
                                           {"smac", "damping=trace:0.1 damping-form=coupled"}};
    (void)state;
    for (int i = 0; i < 8; i++) {
        lab l;
        char all[256];
        const int before = i / 4; /* commits before it */
        lab_open(&l, "ref", NULL, shapes, 2, EXAMPLES, 5);
        lab_optimizer(&l, cases[i % 4][0], lab_with(all, cases[i % 4][1], "tcov=1 tinv=1"));
        for (int k = 0; k < before; k++) {
            lab_new_batch(&l);
            lab_observed_step(&l);
        }
        const double damping = lab_map(&l, "fc", 0).damping;
        lab_new_batch(&l);
        fill(&l.layer[0].x, 1e200);
        lab_observed_step(&l);
        const abar_map_info hit = lab_map(&l, "fc", 0), spared = lab_map(&l, "spared", 0);
        assert_int_equal(hit.dropped, 1);
        assert_int_equal(hit.commits, before);
        assert_true(before == 0 || hit.damping == damping);
        assert_int_equal(spared.dropped, 0);
        assert_int_equal(spared.commits, before + 1);
        lab_close(&l);
    }
}

/* <G^, G> of gradients of 1e160 cannot be summed: such a map keeps its gradient, does not count in the KL clip, and says so. */
static void product_that_overflows_leaves_the_gradient_of_its_map(void **state)
{
    static const char *const cases[][2] = {
        {"mac", "damping=0.3 kl-clip=1e-3"},   {"smac", "damping=0.3 kl-clip=1e-3"},
        {"eva", "damping=0.3 kl-clip=1e-3"},   {"foof", "damping=0.3 kl-clip=1e-3"},
        {"kfac", "damping=0.3 kl-clip=1e-3"},  {"kfac", "damping=0.3 kl-clip=1e-3 kfac-inverse=eigen"},
        {"kpsvd", "damping=0.3 kl-clip=1e-3"}, {"lngd", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lab l;
        char all[256];
        lab_open(&l, "ref", NULL, shapes, 2, EXAMPLES, 5);
        lab_optimizer(&l, cases[i][0], lab_with(all, cases[i][1], "tcov=1 tinv=1"));
        lab_new_batch(&l);
        fill(&l.layer[0].gw, 1e160);
        fill(&l.layer[1].gw, 1e-9); /* too short to be clipped */
        lab_observed_step(&l);
        double *taken = lab_taken(&l, 0, 0), *gradient = lab_gradient(&l, 0, 0);
        if (memcmp(taken, gradient, (size_t)(4 * 6) * sizeof *taken) != 0)
            fail_msg("%s %s: %g is taken off, not %g", cases[i][0], cases[i][1], taken[0], gradient[0]);
        assert_int_equal(lab_map(&l, "fc", 0).kept, 1);
        assert_int_equal(lab_map(&l, "spared", 0).kept, 0);
        assert_true(abar_optim_times(l.optim)->kl_scale == 1.0);
        free(taken);
        free(gradient);
        lab_close(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_square_that_overflows_drops_the_statistics_of_its_map),
        cmocka_unit_test(product_that_overflows_leaves_the_gradient_of_its_map),
    };
    const int done = lab_begin();
    return done ? done : cmocka_run_group_tests(tests, NULL, NULL);
}
