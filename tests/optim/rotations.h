/* Square matrices and rotations of them. */
#ifndef ROTATIONS_H
#define ROTATIONS_H

#include "optim/optim_fixture.h"

enum { SIDE = 6, SQUARE = SIDE * SIDE };

/* A rotation of all planes (i, i + 1), one after the other. */
static inline void fill_rotation(double angle, double q[SQUARE])
{
    for (int i = 0; i < SQUARE; i++) q[i] = i % (SIDE + 1) == 0 ? 1.0 : 0.0;
    for (int p = 0; p + 1 < SIDE; p++)
        for (int j = 0; j < SIDE; j++) {
            const double u = q[p * SIDE + j], v = q[(p + 1) * SIDE + j];
            q[p * SIDE + j] = cos(angle + p) * u - sin(angle + p) * v;
            q[(p + 1) * SIDE + j] = sin(angle + p) * u + cos(angle + p) * v;
        }
}

/* to = left from right. */
static inline void rotate_into(const double *left, const abar_tensor *from, const double *right, const abar_tensor *to)
{
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            double sum = 0.0;
            for (int k = 0; k < SQUARE; k++)
                sum += left[i * SIDE + k / SIDE] * fixture_get(from, k) * right[k % SIDE * SIDE + j];
            fixture_set(to, i * SIDE + j, sum);
        }
}

#endif
