/* The norm of gradients, and products of rows that are taken in the same reading (device_impl.h): ref by their definitions, cpu
 * beside ref. */
#include "stats_testing.h"

#include <math.h>

/* Of maps (rows, columns): shorter than a vector and longer, with and without a rest, and one that several pieces share. */
static const int64_t geometries[][2] = {{1, 1}, {3, 5}, {64, 27}, {7, 32}, {5, 147}, {40, 576}, {130, 1000}, {9, 70001}};
enum { GEOMETRIES = sizeof geometries / sizeof *geometries };

/* A matrix of two maps, one behind the other, between two vectors that have none. The second map has fewer rows, or none. */
typedef struct line {
    int64_t rows, columns;
    void *grad[3], *bias_grad, *right[2], *products;
    abar__row_look looks[3]; /* another map comes first */
    abar__update_item items[3];
} line;

static void *numbers(const abar_device *dev, int64_t n)
{
    void *out = malloc((size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)uniform();
        if (dev->ops->dtype == ABAR_F64)
            ((double *)out)[i] = (double)x;
        else
            ((float *)out)[i] = x;
    }
    return out;
}

static double at(const abar_device *dev, const void *x, int64_t i)
{
    return dev->ops->dtype == ABAR_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static void make(const abar_device *dev, line *l, int64_t rows, int64_t columns)
{
    const int64_t count[3] = {37, rows * columns, 19}, second = rows / 3;
    *l = (line){.rows = rows, .columns = columns};
    for (int k = 0; k < 3; k++) {
        l->grad[k] = numbers(dev, count[k]);
        l->items[k] = (abar__update_item){.grad = l->grad[k], .count = count[k], .map = k == 1 ? 1 : -1};
    }
    l->bias_grad = numbers(dev, rows);
    for (int m = 0; m < 2; m++) l->right[m] = numbers(dev, columns + 1);
    l->products = calloc((size_t)rows, sizeof(double));
    l->looks[1] = (abar__row_look){.rows = rows - second, .columns = columns, .products = l->products};
    l->looks[2] =
        (abar__row_look){.rows = second,
                         .columns = columns,
                         .products = (char *)l->products + (size_t)(rows - second) * abar_dtype_size(dev->ops->dtype)};
}

static void release(line *l)
{
    for (int k = 0; k < 3; k++) free(l->grad[k]);
    for (int m = 0; m < 2; m++) free(l->right[m]);
    free(l->bias_grad);
    free(l->products);
}

/* Of rows whose right is there; those of others are zero. */
static void check_products(const abar_device *dev, const line *l)
{
    const double eps = dev->ops->dtype == ABAR_F64 ? 1e-14 : 1e-6;
    for (int64_t o = 0; o < l->rows; o++) {
        const bool behind = o >= l->looks[1].rows;
        const abar__row_look *look = &l->looks[behind ? 2 : 1];
        double c = look->bias ? at(dev, l->bias_grad, o) * at(dev, look->right, l->columns) : 0.0, size = fabs(c);
        for (int64_t i = 0; look->right && i < l->columns; i++) {
            const double part = at(dev, l->grad[1], o * l->columns + i) * at(dev, look->right, i);
            c += part;
            size += fabs(part);
        }
        assert_true(fabs(at(dev, l->products, o) - c) <= eps * size);
    }
}

static void check_norm(abar_device *dev, line *l)
{
    double sum = 0.0, whole, rows, one, both, biased;
    const size_t before = (size_t)l->looks[1].rows * abar_dtype_size(dev->ops->dtype);
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < l->items[k].count; i++) sum += pow(at(dev, l->grad[k], i), 2.0);
    assert_true(dev->ops->norm(dev, l->items, 3, NULL, &whole));
    assert_true(dev->ops->norm(dev, l->items, 3, l->looks, &rows));
    assert_true(fabs(whole - sqrt(sum)) <= 1e-12 * sqrt(sum) && fabs(rows - sqrt(sum)) <= 1e-12 * sqrt(sum));
    check_products(dev, l); /* nobody asked for them */
    l->looks[1].right = l->right[0];
    assert_true(dev->ops->norm(dev, l->items, 3, l->looks, &one));
    check_products(dev, l);
    l->looks[2].right = l->right[1];
    assert_true(dev->ops->norm(dev, l->items, 3, l->looks, &both));
    check_products(dev, l);
    l->looks[1].bias = l->bias_grad;
    l->looks[2].bias = (const char *)l->bias_grad + before;
    assert_true(dev->ops->norm(dev, l->items, 3, l->looks, &biased));
    check_products(dev, l);
    assert_true(rows == one && rows == both && rows == biased); /* the same bits: ranks clip by them */
}

/* An element of the line that is no number, wherever it is. */
static void check_faults(abar_device *dev, line *l)
{
    static const double wrong[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) {
        const int64_t last = l->items[k].count - 1, places[] = {0, last / 2, last};
        for (int p = 0; p < 9; p++) {
            double norm;
            const int64_t i = places[p % 3];
            const double before = at(dev, l->grad[k], i), is = wrong[p / 3];
            const bool wide = dev->ops->dtype == ABAR_F64;
            wide ? (void)(((double *)l->grad[k])[i] = is) : (void)(((float *)l->grad[k])[i] = (float)is);
            assert_false(dev->ops->norm(dev, l->items, 3, l->looks, &norm));
            wide ? (void)(((double *)l->grad[k])[i] = before) : (void)(((float *)l->grad[k])[i] = (float)before);
        }
    }
}

static void check_device(abar_device *dev)
{
    for (int g = 0; g < GEOMETRIES; g++) {
        line l;
        make(dev, &l, geometries[g][0], geometries[g][1]);
        check_norm(dev, &l);
        check_faults(dev, &l);
        release(&l);
    }
}

static void norm_of_ref_takes_products_of_rows(void **unused)
{
    (void)unused;
    check_device(ref);
}

static void norm_of_cpu_takes_products_of_rows(void **unused)
{
    (void)unused;
    for (int threads = 1; threads <= MAX_THREADS; threads++) check_device(cpu[threads]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(norm_of_ref_takes_products_of_rows),
                                       cmocka_unit_test(norm_of_cpu_takes_products_of_rows)};
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
