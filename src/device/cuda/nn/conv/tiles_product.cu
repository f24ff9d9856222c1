/* The list of conv_tiles' kernels for y and dx. */
#include "device/cuda/nn/conv/tiles_product.h"

template <int WAY, int K, int S, int NT, bool FEW> static conv_product_choice choose(void)
{
    const int positions = conv_sums<WAY, K, S, NT>::positions;
    if constexpr (WAY == CONV_FORWARD)
        return {conv_product_tiles<WAY, K, S, NT, FEW, false>, NULL, positions, (int)sizeof(conv_lot<NT>), 0};
    else
        return {conv_product_tiles<WAY, K, S, NT, FEW, false>, conv_product_tiles<WAY, K, S, NT, FEW, true>, positions,
                (int)sizeof(conv_norm_lot<NT>), (int)sizeof(conv_norm_channels<NT>)};
}

template <int NT> static conv_product_choice choose(enum conv_way way, int k, int s, bool few)
{
    const bool forward = way == CONV_FORWARD;
    if (few) {
        if (!forward || s != 1) return {};
        return k == 3 ? choose<CONV_FORWARD, 3, 1, NT, true>() : choose<CONV_FORWARD, 5, 1, NT, true>();
    }
    if (k == 3 && s == 1) return forward ? choose<CONV_FORWARD, 3, 1, NT, false>() : choose<CONV_DX, 3, 1, NT, false>();
    if (k == 3 && s == 2) return forward ? choose<CONV_FORWARD, 3, 2, NT, false>() : choose<CONV_DX, 3, 2, NT, false>();
    if (k == 1 && s == 1) return forward ? choose<CONV_FORWARD, 1, 1, NT, false>() : choose<CONV_DX, 1, 1, NT, false>();
    if (k == 1 && s == 2) return forward ? choose<CONV_FORWARD, 1, 2, NT, false>() : choose<CONV_DX, 1, 2, NT, false>();
    return {};
}

conv_product_choice abar__conv_product_pick(enum conv_way way, int k, int s, int channel_tiles, bool few)
{
    return channel_tiles == 4 ? choose<4>(way, k, s, few) : choose<2>(way, k, s, few);
}
