/* Newton-Schulz (optimizers.md sections 1.2 and 1.3). */
#ifndef ABAR_ORTHOGONALISE_H
#define ABAR_ORTHOGONALISE_H

#include <stdbool.h>
#include <stdint.h>

#define ABAR_NS_STEPS_MAX 16

typedef struct abar__ns {           /* the polynomial */
    int steps;
    double c[ABAR_NS_STEPS_MAX][3]; /* c1, c3, c5 of each step */
    double safety, eps;             /* s, epsilon: X / max(s |X|, eps) */
} abar__ns;

/* One block: a dense row-major matrix, rows x columns, from in to out (may be the same memory). */
typedef struct abar__ns_block {
    int64_t rows, columns;
    const void *in;
    void *out;
    double scale;     /* adj: out = scale * O */
    void *row_moment; /* NorMuon: (rows), v; NULL: plain Muon */
} abar__ns_block;

bool abar__ns_find(const char *name, int steps, abar__ns *out);

#endif
