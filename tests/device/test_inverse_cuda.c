/* Inverses and eigenvectors that a step on the cuda device keeps (cuda/factors/dense.h): many factors of many sizes at once
 * against inverses in double precision, diagonal blocks, single ones, and recordings in which the device decides. */
#include "inverse_cuda.h"

static const int64_t sizes[] = {1, 2, 63, 64, 65, 144, 300, 130};

static void inverses_of_many_sizes_at_once_are_right(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, DEFINITE, sizes[i], 1.7, 0.05 + 0.01 * (double)i);
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    invert(&r, ~0u, TOLERANCE); /* nothing of the first is in the way */
    stop(&r);
}

/* Large ones are swept on tensor cores, in as many rows of tiles as are odd or even, and not where rows are not aligned. */
static void inverses_of_large_factors_are_right(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, DEFINITE, 708, 1.7, 0.05);
    add(&r, DEFINITE, 65, 1.0, 0.1);
    add(&r, CORRELATED, 644, 1.0, 0.005);
    add(&r, BAD_CORNER, 640, 1.0, 0.1);
    if (!cuda_only("ABAR_TEST_SMALL")) add(&r, DEFINITE, 641, 1.0, 0.1);
    start(&r);
    invert(&r, 0x13, TOLERANCE);
    invert(&r, 0x0c, 1e-4);
    stop(&r);
}

/* Condition numbers of some ten thousand, as rows of images have them: the error may not grow faster than they do. */
static void inverses_of_correlated_factors_are_right(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, CORRELATED, sizes[i], 1.0, 0.005);
    start(&r);
    invert(&r, ~0u, 1e-4);
    stop(&r);
}

/* Rounded ones are the others to the nearest with 10 bits behind the point, whatever the device would cut off. */
static void rounded_inverses_are_the_nearest(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, DEFINITE, sizes[i], 1.0, 0.1);
    start(&r);
    invert(&r, ~0u, TOLERANCE);
    float *exact[MOST];
    for (int i = 0; i < r.n; i++) {
        exact[i] = malloc(full_bytes(&r.of[i]));
        cuda_move(cuda, exact[i], r.of[i].f.inverse, full_bytes(&r.of[i]));
        r.of[i].f.rounded = true;
    }
    abar__cuda_inverter_destroy(cuda, r.inverter);
    abar_device_free(cuda, r.asked, MOST * sizeof *r.asked);
    start(&r);
    invert(&r, ~0u, 1e-3);
    for (int i = 0; i < r.n; i++) {
        const subject *s = &r.of[i];
        float *found = malloc(full_bytes(s));
        cuda_move(cuda, found, s->f.inverse, full_bytes(s));
        for (int64_t e = 0; e < s->d * s->d; e++) {
            int exponent;
            const double unit = ldexp(1.0, (frexp((double)exact[i][e], &exponent), exponent - 11));
            assert_true(fmod((double)found[e], unit) == 0.0);
            assert_true(fabs((double)found[e] - (double)exact[i][e]) <= 0.5 * unit);
        }
        free(found);
        free(exact[i]);
    }
    stop(&r);
}

static void inverses_are_touched_only_where_wanted(void **unused)
{
    (void)unused;
    rig r = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add(&r, DEFINITE, sizes[i], 1.0, 0.1);
    start(&r);
    invert(&r, 0, TOLERANCE);
    invert(&r, 0x15, TOLERANCE);
    invert(&r, 0x20, TOLERANCE);
    invert(&r, 0xca, TOLERANCE);
    stop(&r);
}

static void eigenvectors_come_with_inverses(void **unused)
{
    (void)unused;
    rig r = {0};
    add(&r, EIGEN, 1, 1.0, 0.0);
    add(&r, DEFINITE, 70, 1.0, 0.1);
    add(&r, EIGEN, 17, 0.5, 0.0);
    add(&r, BAD_EIGEN, 12, 1.0, 0.0);
    add(&r, EIGEN, 40, 2.0, 0.0);
    start(&r);
    invert(&r, 0x0e, TOLERANCE);
    invert(&r, 0x1f, TOLERANCE);
    stop(&r);
}

static void recordings_do_what_is_wanted_when_they_are_replayed(void **unused)
{
    (void)unused;
    const abar__stream_ops *stream = cuda->ops->stream;
    const uint32_t wants[] = {0x3f, 0, 0x02, 0x39, 0, 0x04, 0x3f};
    rig r = {0};
    add(&r, DEFINITE, 65, 1.0, 0.1);
    add(&r, INDEFINITE, 130, 1.0, 0.01);
    add(&r, HOPELESS, 20, 1.0, 0.5);
    add(&r, EIGEN, 9, 1.0, 0.0);
    add(&r, DEFINITE, 1, 1.0, 0.1);
    add(&r, DEFINITE, 200, 1.3, 0.1);
    pair(&r, 0, 5);
    pair(&r, 1, 2);
    start(&r);
    ask(&r, 0x3f);
    void *recorded = NULL;
    if (stream->capture_begin(cuda) != ABAR_OK || stream->side_begin(cuda, ABAR_SIDE_STATS) != ABAR_OK ||
        stream->side_end(cuda, ABAR_SIDE_STATS) != ABAR_OK || stream->side_join(cuda, ABAR_SIDE_STATS) != ABAR_OK ||
        abar__cuda_invert_wanted(cuda, r.inverter) != ABAR_OK || stream->capture_end(cuda, &recorded) != ABAR_OK)
        fail_msg("%s", abar_context_error(ctx));
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        ask(&r, wants[i]);
        if (stream->replay(cuda, recorded) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
        check(&r, wants[i], TOLERANCE);
    }
    stream->forget(cuda, recorded);
    stop(&r);
}

static void single_inverses_are_right_in_both_precisions(void **unused)
{
    (void)unused;
    const abar__stats_ops *stats = cuda->ops->stats;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const bool in_double = i % 2;
        rig r = {0};
        add(&r, DEFINITE, sizes[i / 2], 1.0, 0.1);
        add(&r, HOPELESS, sizes[i / 2], 1.0, 0.1);
        for (int k = 0; k < 2; k++) {
            subject *s = &r.of[k];
            const size_t bytes = stats->invert_scratch(cuda, s->d);
            void *scratch = cuda_alloc(cuda, bytes);
            float *found = malloc(full_bytes(s));
            const bool fine = stats->invert(cuda, s->d, s->f.average, 1.5, 0.2, in_double, s->f.inverse, scratch);
            assert_int_equal(fine, k == 0);
            cuda_move(cuda, found, s->f.inverse, full_bytes(s));
            s->scale = 1.5;
            double trace = 0.0, squares = 0.0;
            for (int64_t j = 0; j < s->d; j++) trace += element(s, j, j);
            for (int64_t j = 0; j < s->d * s->d; j++) squares += (double)found[j] * (double)found[j];
            if (k == 0)
                assert_inverse(s, found, 0.2, (1.5 * trace + 0.2 * (double)s->d) * sqrt(squares), in_double ? 2e-7 : TOLERANCE);
            if (k == 1) assert_memory_equal(found, s->inverse, full_bytes(s));
            free(found);
            abar_device_free(cuda, scratch, bytes);
        }
        stop(&r);
    }
}

/* A = I + 1e6 (1 .. 1)T (1 .. 1) with a shift that float32 cannot see. */
static void single_inverses_in_double_go_where_float_cannot(void **unused)
{
    (void)unused;
    const abar__stats_ops *stats = cuda->ops->stats;
    rig r = {0};
    add(&r, ZERO, 150, 1.0, 0.0);
    subject *s = &r.of[0];
    for (int64_t i = 0; i < s->d; i++)
        for (int64_t j = i; j < s->d; j++) *average_at(s, i, j) = 16777216.0f;
    cuda_move(cuda, s->device_square, s->square, square_bytes(s));
    const size_t bytes = stats->invert_scratch(cuda, s->d);
    void *scratch = cuda_alloc(cuda, bytes);
    float *found = malloc(full_bytes(s));
    assert_false(stats->invert(cuda, s->d, s->f.average, 1.0, 0.25, false, s->f.inverse, scratch));
    assert_true(stats->invert(cuda, s->d, s->f.average, 1.0, 0.25, true, s->f.inverse, scratch));
    cuda_move(cuda, found, s->f.inverse, full_bytes(s));
    for (int64_t i = 0; i < s->d * s->d; i++) { /* 4 (I - 11T / (d + 2^-26)) */
        const double expected = 4.0 * ((i / s->d == i % s->d) - 1.0 / ((double)s->d + 1.0 / 67108864.0));
        assert_true(fabs((double)found[i] - expected) < 1e-4);
    }
    free(found);
    abar_device_free(cuda, scratch, bytes);
    stop(&r);
}

/* The diagonal block of s that begins at `first`, as a subject of its own; its average is the caller's to free. */
static subject block_of(const subject *s, int64_t first)
{
    const int64_t d = s->d - first < s->f.width ? s->d - first : s->f.width;
    subject block = {.kind = DEFINITE, .d = d, .scale = s->scale};
    block.square = calloc(1, square_bytes(&block));
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = i; j < d; j++) *average_at(&block, i, j) = *average_at(s, first + i, first + j);
    return block;
}

/* Each by its own trace, whatever tiles and panels of 64 they lie in; zeros elsewhere. */
static void diagonal_blocks_are_inverted_by_themselves(void **unused)
{
    (void)unused;
    static const int64_t sides[] = {200, 130, 65}, widths[] = {70, 1, 64};
    rig r = {0};
    for (int i = 0; i < 3; i++) {
        add(&r, DEFINITE, sides[i], 1.7, 0.05);
        r.of[i].f.width = widths[i];
        r.of[i].f.gamma = 0.3;
    }
    start(&r);
    ask(&r, ~0u);
    if (abar__cuda_invert_wanted(cuda, r.inverter) != ABAR_OK) fail_msg("%s", abar_context_error(ctx));
    cuda_wait(cuda, "inversion");
    for (int k = 0; k < 3; k++) {
        const subject *s = &r.of[k];
        float *found = malloc(full_bytes(s));
        cuda_move(cuda, found, s->f.inverse, full_bytes(s));
        for (int64_t first = 0; first < s->d; first += s->f.width) {
            subject block = block_of(s, first);
            double mean = 0.0;
            for (int64_t i = 0; i < block.d; i++) mean += element(&block, i, i) / (double)block.d;
            double *expected = inverse_of(&block, 0.05 + 0.3 * 1.7 * mean);
            for (int64_t i = 0; i < block.d; i++)
                for (int64_t j = 0; j < s->d; j++) {
                    const bool inside = j >= first && j < first + block.d;
                    const double right = inside ? expected[i * block.d + j - first] : 0.0;
                    if (!(fabs((double)found[(first + i) * s->d + j] - right) <= TOLERANCE * expected[0] * 10.0))
                        fail_msg("side %d, width %d: element (%d, %d) is %g, not %g", (int)s->d, (int)s->f.width,
                                 (int)(first + i), (int)j, (double)found[(first + i) * s->d + j], right);
                }
            free(expected);
            free(block.square);
        }
        free(found);
    }
    stop(&r);
}

int main(int argc, char **argv)
{
    cuda_choose_tests(argc, argv);
    int missing = cuda_missing();
    if (missing) return missing;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inverses_of_many_sizes_at_once_are_right),
        cmocka_unit_test(inverses_of_large_factors_are_right),
        cmocka_unit_test(inverses_of_correlated_factors_are_right),
        cmocka_unit_test(diagonal_blocks_are_inverted_by_themselves),
        cmocka_unit_test(rounded_inverses_are_the_nearest),
        cmocka_unit_test(inverses_are_touched_only_where_wanted),
        cmocka_unit_test(eigenvectors_come_with_inverses),
        cmocka_unit_test(recordings_do_what_is_wanted_when_they_are_replayed),
        cmocka_unit_test(single_inverses_are_right_in_both_precisions),
        cmocka_unit_test(single_inverses_in_double_go_where_float_cannot),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
