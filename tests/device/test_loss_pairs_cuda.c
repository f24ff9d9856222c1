/* Cross entropy with pairs of labels on a GPU. */
#include "cuda_testing.h"
#include "loss_pairs_cases.h"

int main(void)
{
    static const loss_pairs_place on[] = {
        {"cuda", ABAR_PRECISION_FP32, 1e-5}, {"cuda", ABAR_PRECISION_TF32, 1e-5}, {"cuda", ABAR_PRECISION_BF16, 2e-2}};
    int missing = cuda_missing();
    return missing ? missing : loss_pairs_run(on, 3);
}
