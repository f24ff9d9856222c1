/* The list of conv_tiles' kernels for dw. */
#include "device/cuda/nn/conv/tiles_slope.h"

template <int K, int S, int OT, int CT> static conv_slope_choice choose(void)
{
    typedef slope_sums<K, OT, CT> sums;
    return {conv_slope_tiles<K, S, OT, CT>, sums::threads, sums::slices / 2 * K * sums::count * 32 * (int)sizeof(float)};
}

template <int OT> static conv_slope_choice choose(int k, int s, bool few)
{
    if (few) return k == 3 ? choose<3, 1, OT, 1>() : choose<5, 1, OT, 1>();
    if (k == 3) return s == 1 ? choose<3, 1, OT, 2>() : choose<3, 2, OT, 2>();
    return s == 1 ? choose<1, 1, OT, 2>() : choose<1, 2, OT, 2>();
}

conv_slope_choice abar__conv_slope_pick(int k, int s, int output_tiles, bool few)
{
    return output_tiles == 2 ? choose<2>(k, s, few) : choose<1>(k, s, few);
}

const conv_join_kernel abar__conv_join = conv_slope_join;
