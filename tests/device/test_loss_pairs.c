/* Cross entropy with pairs of labels on the host's devices. */
#include "loss_pairs_cases.h"

int main(void)
{
    static const loss_pairs_place on[] = {{"ref", ABAR_PRECISION_FP32, 1e-12}, {"cpu", ABAR_PRECISION_FP32, 1e-6}};
    return loss_pairs_run(on, 2);
}
