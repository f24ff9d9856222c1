/* For the tests of statistics on every back end: the convolutions that they are tried on. Some tests take the first few. */
#ifndef GEOMETRIES_H
#define GEOMETRIES_H

#include "abar/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct geometry {
    const char *name;
    int64_t channels, out, height, width;
    abar_window window;
} geometry;

static const geometry geometries[] = {
    {"same 3x3, 16 channels", 16, 16, 8, 7, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"same 3x3, 3 channels", 3, 17, 6, 6, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"same 3x3, 40 channels", 40, 3, 4, 3, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"same 5x5, 1 channel", 1, 6, 9, 8, {{5, 5}, {1, 1}, {2, 2}, {1, 1}, 1}},
    {"valid 5x5, 6 channels", 6, 16, 7, 8, {{5, 5}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"3x3 stride 2, 20 channels", 20, 5, 9, 8, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}},
    {"3x3 stride 2, 32 channels", 32, 33, 6, 6, {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1}},
    {"3x3 dilation 2, 4 channels", 4, 2, 8, 9, {{3, 3}, {1, 1}, {2, 2}, {2, 2}, 1}},
    {"3x3 dilation 3 stride 2, 13 channels", 13, 2, 10, 9, {{3, 3}, {2, 2}, {3, 3}, {3, 3}, 1}},
    {"3x3 dilation 2 stride 2, 18 channels", 18, 2, 8, 9, {{3, 3}, {2, 2}, {2, 2}, {2, 2}, 1}},
    {"3x2, everything uneven", 5, 7, 11, 10, {{3, 2}, {1, 2}, {1, 0}, {2, 1}, 1}},
    {"2x4 stride 3x1", 17, 1, 9, 6, {{2, 4}, {3, 1}, {0, 3}, {1, 1}, 1}},
    {"1x1, 24 channels", 24, 8, 4, 5, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"1x1, 130 channels", 130, 16, 2, 3, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"1x1 stride 2, 7 channels", 7, 8, 5, 5, {{1, 1}, {2, 2}, {0, 0}, {1, 1}, 1}},
    {"patches 4x4", 3, 8, 12, 8, {{4, 4}, {4, 4}, {0, 0}, {1, 1}, 1}},
    {"one position 5x5", 6, 8, 5, 5, {{5, 5}, {1, 1}, {0, 0}, {1, 1}, 1}},
    {"one pixel, 16 channels", 16, 2, 1, 1, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"two pixels", 2, 2, 2, 1, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"one row", 16, 2, 1, 9, {{1, 3}, {1, 1}, {0, 1}, {1, 1}, 1}},
    {"7x7 stride 2", 2, 4, 12, 11, {{7, 7}, {2, 2}, {3, 3}, {1, 1}, 1}},
    {"more padding than kernel", 3, 4, 4, 5, {{2, 2}, {1, 1}, {3, 3}, {1, 1}, 1}},
    {"4 groups of 2", 8, 8, 6, 5, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 4}},
    {"depthwise", 5, 5, 6, 7, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 5}},
    {"2 groups of 16", 32, 8, 5, 4, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 2}},
    {"2 groups of 20", 40, 40, 4, 4, {{2, 2}, {1, 1}, {1, 1}, {1, 1}, 2}},
    {"2 groups of 24, 1x1", 48, 48, 3, 4, {{1, 1}, {1, 1}, {0, 0}, {1, 1}, 2}},
    {"same 3x3, 16 channels, 4 out", 16, 4, 8, 7, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"ResNet's first", 3, 16, 32, 32, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
    {"ResNet's last", 64, 64, 8, 8, {{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}},
};

static inline const geometry *geometry_named(const char *name)
{
    const geometry *g = geometries;
    const geometry *end = geometries + sizeof geometries / sizeof *geometries;
    while (g < end && strcmp(g->name, name) != 0) g++;
    if (g == end) fail_msg("there is no geometry \"%s\"", name);
    return g;
}

#endif
