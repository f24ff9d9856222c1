/* Products of columns in double precision. A tile of sums stays in registers over all rows. */
#include "device/cpu/isa/stats_gram_kernels.h"

#include "device/cpu/isa/lanes.h"

#if defined(__AVX512F__)
enum { WIDTH = 8, TILE_ROWS = 8, TILE_VECTORS = 2 };
#elif defined(__AVX2__)
enum { WIDTH = 4, TILE_ROWS = 4, TILE_VECTORS = 2 };
#else
enum { WIDTH = 2, TILE_ROWS = 2, TILE_VECTORS = 4 };
#endif
enum { PANEL = ABAR_GRAM_WIDTH };

typedef double vec __attribute__((vector_size(WIDTH * 8)));
typedef double loose __attribute__((vector_size(WIDTH * 8), aligned(8), may_alias)); /* in memory, anywhere */

ABAR_SPECIALIZED vec load(const double *p) { return *(const loose *)p; }

/* TILE_ROWS columns of a, from column `from` on, times `vectors` vectors of columns of b. */
ABAR_SPECIALIZED void add_tile(const abar__gram_strip *s, const double *b, int from, double *sums, const int vectors)
{
    vec acc[TILE_ROWS * TILE_VECTORS];
    const double *a = s->a + from;
    ABAR_UNROLL for (int n = 0; n < TILE_ROWS * vectors; n++) acc[n] = (vec){0};
    for (int64_t r = 0; r < s->rows; r++, a += PANEL, b += PANEL) {
        vec v[TILE_VECTORS];
        ABAR_UNROLL for (int k = 0; k < vectors; k++) v[k] = load(b + k * WIDTH / PANEL * s->step + k * WIDTH % PANEL);
        ABAR_UNROLL for (int n = 0; n < TILE_ROWS * vectors; n++) acc[n] += v[n % vectors] * a[n / vectors];
    }
    ABAR_UNROLL for (int n = 0; n < TILE_ROWS * vectors; n++)
    {
        loose *to = (loose *)(sums + (from + n / vectors) * s->pitch + n % vectors * WIDTH);
        *to += acc[n];
    }
}

static void add(const abar__gram_strip *s)
{
    enum { LANES = TILE_VECTORS * WIDTH };
    const int64_t columns = s->panels * PANEL;
    for (int64_t j = 0; j < columns; j += LANES) {
        const double *b = s->b + j / PANEL * s->step;
        for (int from = 0; from < PANEL; from += TILE_ROWS)
            if (j + LANES <= columns)
                add_tile(s, b, from, s->sums + j, TILE_VECTORS);
            else
                add_tile(s, b, from, s->sums + j, PANEL / WIDTH < TILE_VECTORS ? PANEL / WIDTH : TILE_VECTORS);
    }
}

const abar__gram_kernels ABAR_ISA_NAME(abar__gram) = {add};
