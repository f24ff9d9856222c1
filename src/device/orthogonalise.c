/* The coefficient sets of Newton-Schulz. In double precision, singular values from 0.01 to 1 become
 *     original        0.682 to 1.134
 *     quintic         0.978 to 1.032
 *     polar-express   0.859 to 1.141 (from 0.001 on)
 *     exact           1 within 1e-6 (from 0.00104 on)
 *     cubic           0.893 to 1 */
#include "device/orthogonalise.h"

#include <string.h>

typedef struct coefficient_set {
    const char *name;
    int triples, steps;
    double safety;
    double c[5][3];
} coefficient_set;

static const coefficient_set sets[] = {
    {.name = "original", .triples = 1, .steps = 5, .safety = 1.0, .c = {{3.4445, -4.7750, 2.0315}}},
    {.name = "quintic",
     .triples = 5,
     .steps = 5,
     .safety = 1.0,
     .c = {{4.0848, -6.8946, 2.9270},
           {3.9505, -6.3029, 2.6377},
           {3.7418, -5.5913, 2.3037},
           {2.8769, -3.1427, 1.2046},
           {2.8366, -3.0525, 1.2012}}},
    {.name = "polar-express",
     .triples = 5,
     .steps = 5,
     .safety = 1.02,
     .c = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
           {4.042929935166739, -2.808917465908714, 0.5000178451051316},
           {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
           {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
           {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}},
    {.name = "exact", .triples = 1, .steps = 12, .safety = 1.0, .c = {{2.0, -1.5, 0.5}}},
    {.name = "cubic", .triples = 1, .steps = 12, .safety = 1.0, .c = {{1.5, -0.5, 0.0}}},
};

bool abar__ns_find(const char *name, int steps, abar__ns *out)
{
    if (steps < 0 || steps > ABAR_NS_STEPS_MAX) return false;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const coefficient_set *set = &sets[i];
        if (strcmp(set->name, name) != 0) continue;
        *out = (abar__ns){.steps = steps > 0 ? steps : set->steps, .safety = set->safety, .eps = 1e-7};
        for (int k = 0; k < out->steps; k++)
            memcpy(out->c[k], set->c[k < set->triples ? k : set->triples - 1], sizeof out->c[k]);
        return true;
    }
    return false;
}
