/* The list of conv_tiles' kernels for dw. */
#include "device/cuda/conv_tiles_slope.h"

template <int K, int S, int OT, int CT> static conv_slope_choice choose(void)
{
    typedef slope_sums<K, OT, CT> sums;
    return {conv_slope_tiles<K, S, OT, CT>, sums::threads, sums::slices / 2 * K * sums::count * 32 * (int)sizeof(float)};
}

template <int OT, int CT> static conv_slope_choice choose(int k, int s)
{
    if (k == 3) return s == 1 ? choose<3, 1, OT, CT>() : choose<3, 2, OT, CT>();
    return s == 1 ? choose<1, 1, OT, CT>() : choose<1, 2, OT, CT>();
}

conv_slope_choice abar__conv_slope_pick(int k, int s, int output_tiles, int input_tiles)
{
    if (input_tiles == 1 && k == 3) return output_tiles == 2 ? choose<3, 1, 2, 1>() : choose<3, 1, 1, 1>();
    if (input_tiles == 1) return output_tiles == 2 ? choose<5, 1, 2, 1>() : choose<5, 1, 1, 1>();
    if (input_tiles == 2) return output_tiles == 2 ? choose<2, 2>(k, s) : choose<1, 2>(k, s);
    return output_tiles == 2 ? choose<2, 4>(k, s) : choose<1, 4>(k, s);
}

const conv_join_kernel abar__conv_join = conv_slope_join;
