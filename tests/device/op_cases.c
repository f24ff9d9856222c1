/* The table of operation cases, and how a row becomes a description. */
#include "op_cases.h"

/* The table reads better without prefixes. */
#define REORDER ABAR_OP_REORDER
#define LINEAR ABAR_OP_LINEAR
#define CONV ABAR_OP_CONV2D
#define BATCH_NORM ABAR_OP_BATCH_NORM
#define LAYER_NORM ABAR_OP_LAYER_NORM
#define ACTIVATION ABAR_OP_ACTIVATION
#define POOL ABAR_OP_POOL2D
#define ADD ABAR_OP_ADD
#define CONCAT ABAR_OP_CONCAT
#define FLATTEN ABAR_OP_FLATTEN
#define SHORTCUT ABAR_OP_SHORTCUT
#define DROPOUT ABAR_OP_DROPOUT
#define EMBEDDING ABAR_OP_EMBEDDING
#define TOKENS ABAR_OP_TOKENS
#define CLASS_TOKEN ABAR_OP_CLASS_TOKEN
#define ATTENTION ABAR_OP_ATTENTION
#define PATCH_MERGE ABAR_OP_PATCH_MERGE
#define TOKEN_MEAN ABAR_OP_TOKEN_MEAN
#define TOKEN_FIRST ABAR_OP_TOKEN_FIRST
#define ENTROPY ABAR_OP_SOFTMAX_CROSS_ENTROPY
#define SQUARED ABAR_OP_SQUARED_ERROR
#define RELU ABAR_ACT_RELU

const op_case op_cases[] = {
    {"reorder_odd", REORDER, .x = {2, 3, 5, 4}},
    {"reorder_batch5_c17", REORDER, .x = {5, 17, 3, 3}},
    {"reorder_batch17_c6", REORDER, .x = {17, 6, 3, 5}},
    {"reorder_batch32_c16", REORDER, .x = {32, 16, 8, 8}},
    {"reorder_batch1_c32", REORDER, .x = {1, 32, 1, 1}},

    {"linear_bias", LINEAR, .x = {5, 7}, .width = 3, .bias = true},
    {"linear_nobias", LINEAR, .x = {4, 3}, .width = 9},
    {"linear_one", LINEAR, .x = {1, 1}, .width = 1, .bias = true},
    {"linear_one_row", LINEAR, .x = {1, 6}, .width = 5, .bias = true},
    {"linear_one_row_relu", LINEAR, .x = {1, 33}, .width = 17, .bias = true, .activation = RELU},
    {"linear_relu", LINEAR, .x = {5, 17}, .width = 33, .bias = true, .activation = RELU},
    {"linear_relu_nobias", LINEAR, .x = {6, 8}, .width = 16, .activation = RELU},
    {"linear_accumulate", LINEAR, .x = {5, 7}, .width = 6, .bias = true, .accumulate = true},
    {"linear_relu_accumulate", LINEAR, .x = {7, 5}, .width = 6, .bias = true, .activation = RELU, .accumulate = true},
    {"linear_nodx", LINEAR, .x = {5, 7}, .width = 6, .bias = true, .skip_dx = 1},
    {"linear_relu_nodx_accumulate", LINEAR, .x = {5, 7}, .width = 6, .bias = true, .activation = RELU, .skip_dx = 1,
     .accumulate = true},
    {"linear_mlp_fc1", LINEAR, .x = {32, 784}, .width = 512, .bias = true, .activation = RELU, .skip_dx = 1},
    {"linear_lenet_fc1", LINEAR, .x = {32, 400}, .width = 120, .bias = true, .activation = RELU},
    {"linear_lenet_fc2", LINEAR, .x = {32, 120}, .width = 84, .bias = true, .activation = RELU},
    {"linear_lenet_fc3", LINEAR, .x = {32, 84}, .width = 10, .bias = true},
    {"linear_resnet", LINEAR, .x = {32, 64}, .width = 10, .bias = true, .accumulate = true},
    {"linear_padded", LINEAR, .x = {6, 16}, .width = 10, .bias = true, .padded = true},
    {"linear_padded_one", LINEAR, .x = {3, 5}, .width = 1, .padded = true, .skip_dx = 1},
    {"linear_padded_relu_accumulate", LINEAR, .x = {33, 24}, .width = 65, .bias = true, .activation = RELU, .padded = true,
     .accumulate = true},
    {"linear_padded_even", LINEAR, .x = {5, 8}, .width = 32, .bias = true, .padded = true},
    {"linear_padded_wide", LINEAR, .x = {12, 24}, .width = 1035, .padded = true},
    {"linear_padded_wide_bias_accumulate", LINEAR, .x = {40, 16}, .width = 1025, .bias = true, .padded = true,
     .accumulate = true},
    {"linear_padded_wide_relu", LINEAR, .x = {9, 40}, .width = 1031, .bias = true, .activation = RELU, .padded = true},
    {"linear_gelu", LINEAR, .x = {5, 17}, .width = 33, .bias = true, .activation = ABAR_ACT_GELU_ERF},
    {"linear_gelu_tanh", LINEAR, .x = {5, 17}, .width = 33, .bias = true, .activation = ABAR_ACT_GELU_TANH},
    {"linear_gelu_even", LINEAR, .x = {12, 24}, .width = 64, .bias = true, .activation = ABAR_ACT_GELU_ERF, .accumulate = true},
    {"linear_gelu_tanh_even", LINEAR, .x = {12, 24}, .width = 64, .bias = true, .activation = ABAR_ACT_GELU_TANH,
     .accumulate = true},
    {"linear_gelu_nobias", LINEAR, .x = {7, 16}, .width = 24, .activation = ABAR_ACT_GELU_ERF},
    {"linear_gelu_tanh_nobias", LINEAR, .x = {7, 16}, .width = 24, .activation = ABAR_ACT_GELU_TANH},
    {"linear_gelu_tanh_nodx", LINEAR, .x = {6, 8}, .width = 16, .bias = true, .activation = ABAR_ACT_GELU_TANH, .skip_dx = 1},
    {"linear_gelu_evaluate", LINEAR, .x = {9, 8}, .width = 16, .bias = true, .activation = ABAR_ACT_GELU_ERF, .evaluate = true},
    {"linear_gelu_dz_given", LINEAR, .x = {9, 16}, .width = 40, .bias = true, .activation = ABAR_ACT_GELU_ERF,
     .dz_given = true},
    {"linear_gelu_tanh_dz_given", LINEAR, .x = {9, 16}, .width = 40, .bias = true, .activation = ABAR_ACT_GELU_TANH,
     .dz_given = true},
    {"linear_gelu_many_rows", LINEAR, .x = {3003, 8}, .width = 40, .bias = true, .activation = ABAR_ACT_GELU_ERF},
    {"linear_gelu_tanh_many_rows_odd", LINEAR, .x = {3001, 5}, .width = 37, .bias = true, .activation = ABAR_ACT_GELU_TANH},
    {"linear_gelu_gpt2", LINEAR, .x = {130, 96}, .width = 384, .bias = true, .activation = ABAR_ACT_GELU_TANH},
    {"linear_gelu_deit", LINEAR, .x = {197, 96}, .width = 384, .bias = true, .activation = ABAR_ACT_GELU_ERF},
    {"linear_behind_gelu", LINEAR, .x = {9, 24}, .width = 16, .bias = true, .input_activation = ABAR_ACT_GELU_ERF},
    {"linear_behind_gelu_tanh", LINEAR, .x = {9, 24}, .width = 16, .bias = true, .input_activation = ABAR_ACT_GELU_TANH},
    {"linear_behind_gelu_tanh_odd", LINEAR, .x = {5, 33}, .width = 17, .input_activation = ABAR_ACT_GELU_TANH,
     .accumulate = true},
    {"linear_behind_gelu_tanh_gpt2", LINEAR, .x = {130, 384}, .width = 96, .bias = true,
     .input_activation = ABAR_ACT_GELU_TANH},
    {"linear_between_gelus", LINEAR, .x = {21, 32}, .width = 48, .bias = true, .activation = ABAR_ACT_GELU_TANH,
     .input_activation = ABAR_ACT_GELU_TANH},
    {"linear_many_rows", LINEAR, .x = {4099, 8}, .width = 24, .bias = true, .accumulate = true},
    {"linear_many_rows_odd", LINEAR, .x = {3001, 5}, .width = 37, .bias = true, .activation = RELU},

    {"conv_k1", CONV, .x = {2, 3, 5, 4}, .width = 4, .bias = true},
    {"conv_k1_one", CONV, .x = {1, 1, 1, 1}, .width = 1, .bias = true},
    {"conv_k1_s2", CONV, .x = {2, 4, 7, 5}, .width = 3, .stride = {2, 2}},
    {"conv_k1_c32", CONV, .x = {5, 32, 5, 5}, .width = 16, .activation = RELU},
    {"conv_k1_s2_c16", CONV, .x = {5, 16, 7, 7}, .width = 32, .stride = {2, 2}, .bias = true},
    {"conv_k1_c8_accumulate", CONV, .x = {3, 8, 5, 7}, .width = 24, .bias = true, .activation = RELU, .accumulate = true},
    {"conv_k1_c17_nodx", CONV, .x = {2, 17, 5, 3}, .width = 5, .bias = true, .skip_dx = 1, .accumulate = true},
    {"conv_k1_c64_to_40", CONV, .x = {7, 64, 9, 11}, .width = 40},
    {"conv_k1_c72_accumulate", CONV, .x = {5, 72, 13, 11}, .width = 136, .bias = true, .accumulate = true},
    {"conv_k1_many_pixels", CONV, .x = {33, 8, 31, 29}, .width = 24, .bias = true, .activation = RELU, .accumulate = true},
    {"conv_k1_groups2", CONV, .x = {2, 6, 5, 4}, .width = 4, .groups = 2, .bias = true},
    {"conv_k1_p1", CONV, .x = {2, 8, 5, 4}, .width = 8, .pad = {1, 1}, .bias = true},
    {"conv_k1_s1x2_c8", CONV, .x = {2, 8, 5, 4}, .width = 16, .stride = {1, 2}},
    {"conv_k1_s2_c64", CONV, .x = {3, 64, 9, 7}, .width = 48, .stride = {2, 2}, .accumulate = true},
    {"conv_k1_s2_c64_even", CONV, .x = {2, 64, 8, 10}, .width = 72, .stride = {2, 2}, .bias = true},
    {"conv_k3_p1", CONV, .x = {2, 3, 7, 5}, .width = 4, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_k3_p1_c1", CONV, .x = {3, 1, 6, 7}, .width = 1, .kernel = {3, 3}, .pad = {1, 1}, .bias = true},
    {"conv_k3_p1_c8", CONV, .x = {2, 8, 6, 7}, .width = 8, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_k3_p1_c16", CONV, .x = {5, 16, 6, 5}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_k3_p1_c16_bias_relu", CONV, .x = {5, 16, 6, 5}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}, .bias = true,
     .activation = RELU},
    {"conv_k3_p1_c17", CONV, .x = {2, 17, 5, 6}, .width = 17, .kernel = {3, 3}, .pad = {1, 1}, .bias = true},
    {"conv_k3_p1_c17_to_32", CONV, .x = {3, 17, 4, 5}, .width = 32, .kernel = {3, 3}, .pad = {1, 1}, .activation = RELU},
    {"conv_k3_p1_c32_to_6", CONV, .x = {1, 32, 5, 5}, .width = 6, .kernel = {3, 3}, .pad = {1, 1}, .bias = true},
    {"conv_k3_nopad", CONV, .x = {2, 2, 6, 5}, .width = 3, .kernel = {3, 3}, .bias = true},
    {"conv_k3_nopad_c16", CONV, .x = {2, 16, 6, 5}, .width = 16, .kernel = {3, 3}, .bias = true},
    {"conv_k3_p2", CONV, .x = {2, 3, 4, 3}, .width = 5, .kernel = {3, 3}, .pad = {2, 2}},
    {"conv_k3_s2_p1", CONV, .x = {2, 3, 7, 9}, .width = 4, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .bias = true},
    {"conv_k3_s2_p1_even", CONV, .x = {2, 3, 8, 6}, .width = 4, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}},
    {"conv_k3_s2_p1_c16", CONV, .x = {5, 16, 8, 8}, .width = 32, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}},
    {"conv_k3_s2_p1_c16_odd", CONV, .x = {5, 16, 7, 9}, .width = 32, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1},
     .activation = RELU},
    {"conv_k3_s3", CONV, .x = {2, 3, 10, 8}, .width = 4, .kernel = {3, 3}, .stride = {3, 3}, .bias = true},
    {"conv_k5_p2", CONV, .x = {2, 1, 7, 7}, .width = 3, .kernel = {5, 5}, .pad = {2, 2}, .bias = true},
    {"conv_k5_p2_relu", CONV, .x = {5, 1, 9, 7}, .width = 6, .kernel = {5, 5}, .pad = {2, 2}, .bias = true, .activation = RELU},
    {"conv_k5_nopad", CONV, .x = {2, 3, 7, 6}, .width = 2, .kernel = {5, 5}, .bias = true},
    {"conv_k5_nopad_c6", CONV, .x = {5, 6, 7, 6}, .width = 16, .kernel = {5, 5}, .bias = true, .activation = RELU},
    {"conv_k7_s2_p3", CONV, .x = {2, 3, 11, 13}, .width = 5, .kernel = {7, 7}, .stride = {2, 2}, .pad = {3, 3}},
    {"conv_k3x1_p1x0", CONV, .x = {2, 3, 5, 6}, .width = 2, .kernel = {3, 1}, .pad = {1, 0}, .bias = true},
    {"conv_k1x5_s2x1", CONV, .x = {2, 2, 5, 7}, .width = 3, .kernel = {1, 5}, .stride = {2, 1}, .pad = {0, 2}},
    {"conv_k2x3_s1x2", CONV, .x = {1, 3, 5, 8}, .width = 2, .kernel = {2, 3}, .stride = {1, 2}, .pad = {1, 0}, .bias = true},
    {"conv_k2x4_c16", CONV, .x = {2, 16, 5, 8}, .width = 16, .kernel = {2, 4}, .pad = {0, 1}, .bias = true, .activation = RELU},
    {"conv_k4_s4_patch", CONV, .x = {1, 3, 8, 8}, .width = 5, .kernel = {4, 4}, .stride = {4, 4}, .bias = true},
    {"conv_patch2_c1", CONV, .x = {3, 1, 6, 4}, .width = 3, .kernel = {2, 2}, .stride = {2, 2}},
    {"conv_patch2_c4_rest", CONV, .x = {2, 4, 7, 9}, .width = 8, .kernel = {2, 2}, .stride = {2, 2}, .bias = true},
    {"conv_patch2_c8_accumulate", CONV, .x = {2, 8, 6, 8}, .width = 16, .kernel = {2, 2}, .stride = {2, 2}, .bias = true,
     .accumulate = true},
    {"conv_patch2_c8_relu", CONV, .x = {3, 8, 4, 5}, .width = 6, .kernel = {2, 2}, .stride = {2, 2}, .bias = true,
     .activation = RELU},
    {"conv_patch2x3_c4", CONV, .x = {2, 4, 5, 9}, .width = 7, .kernel = {2, 3}, .stride = {2, 3}, .bias = true},
    {"conv_patch1x2_c3", CONV, .x = {2, 3, 3, 6}, .width = 4, .kernel = {1, 2}, .stride = {1, 2}},
    {"conv_patch3_c1_rest", CONV, .x = {2, 1, 8, 7}, .width = 5, .kernel = {3, 3}, .stride = {3, 3}, .bias = true,
     .accumulate = true},
    {"conv_patch3_c8_nodx", CONV, .x = {2, 8, 6, 6}, .width = 8, .kernel = {3, 3}, .stride = {3, 3}, .bias = true,
     .skip_dx = 1},
    {"conv_patch4_c3_rest", CONV, .x = {2, 3, 11, 13}, .width = 8, .kernel = {4, 4}, .stride = {4, 4}},
    {"conv_patch4_one", CONV, .x = {1, 2, 4, 4}, .width = 1, .kernel = {4, 4}, .stride = {4, 4}, .bias = true},
    {"conv_patch4_swin", CONV, .x = {2, 3, 32, 32}, .width = 96, .kernel = {4, 4}, .stride = {4, 4}, .bias = true},
    {"conv_patch16_deit", CONV, .x = {2, 3, 64, 48}, .width = 384, .kernel = {16, 16}, .stride = {16, 16}, .bias = true,
     .skip_dx = 1},
    {"conv_patch16_c1_rest", CONV, .x = {1, 1, 35, 50}, .width = 24, .kernel = {16, 16}, .stride = {16, 16}, .bias = true},
    {"conv_k3_d2_p2", CONV, .x = {2, 2, 7, 6}, .width = 3, .kernel = {3, 3}, .pad = {2, 2}, .dilation = {2, 2}, .bias = true},
    {"conv_k3_d2x1_s2", CONV, .x = {2, 2, 9, 5}, .width = 3, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1},
     .dilation = {2, 1}},
    {"conv_k3_d2_c16", CONV, .x = {2, 16, 7, 8}, .width = 16, .kernel = {3, 3}, .pad = {2, 2}, .dilation = {2, 2},
     .activation = RELU},
    {"conv_k3_d3_nopad", CONV, .x = {2, 3, 9, 8}, .width = 6, .kernel = {3, 3}, .dilation = {3, 3}, .bias = true},
    {"conv_groups2", CONV, .x = {2, 4, 5, 5}, .width = 6, .kernel = {3, 3}, .pad = {1, 1}, .groups = 2, .bias = true},
    {"conv_groups3_s2", CONV, .x = {2, 6, 5, 7}, .width = 3, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .groups = 3},
    {"conv_groups2_c32",
     CONV,
     {2, 32, 5, 5},
     32,
     .kernel = {3, 3},
     .pad = {1, 1},
     .groups = 2,
     .bias = true,
     .activation = RELU},
    {"conv_groups2_c34", CONV, .x = {2, 34, 3, 4}, .width = 6, .kernel = {3, 3}, .pad = {1, 1}, .groups = 2, .bias = true},
    {"conv_depthwise", CONV, .x = {2, 5, 5, 6}, .width = 5, .kernel = {3, 3}, .pad = {1, 1}, .groups = 5, .bias = true},
    {"conv_depthwise_c16", CONV, .x = {2, 16, 5, 6}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}, .groups = 16,
     .activation = RELU},
    {"conv_depthwise_c17_s2", CONV, .x = {3, 17, 7, 6}, .width = 17, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1},
     .groups = 17},
    {"conv_depthwise_x2", CONV, .x = {1, 3, 6, 5}, .width = 6, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .groups = 3},
    {"conv_batch1", CONV, .x = {1, 3, 5, 5}, .width = 4, .kernel = {3, 3}, .pad = {1, 1}, .bias = true},
    {"conv_batch1_c16", CONV, .x = {1, 16, 5, 5}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}, .bias = true},
    {"conv_batch17", CONV, .x = {17, 3, 4, 5}, .width = 6, .kernel = {3, 3}, .pad = {1, 1}, .bias = true, .activation = RELU},
    {"conv_batch32_k5", CONV, .x = {32, 1, 8, 9}, .width = 6, .kernel = {5, 5}, .pad = {2, 2}, .bias = true, .skip_dx = 1},
    {"conv_nodx", CONV, .x = {2, 3, 6, 5}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}, .skip_dx = 1},
    {"conv_nodx_relu_accumulate",
     CONV,
     {2, 3, 6, 5},
     8,
     .kernel = {3, 3},
     .bias = true,
     .activation = RELU,
     .skip_dx = 1,
     .accumulate = true},
    {"conv_accumulate", CONV, .x = {3, 3, 6, 5}, .width = 8, .kernel = {3, 3}, .pad = {1, 1}, .bias = true, .accumulate = true},
    {"conv_c16_accumulate", CONV, .x = {3, 16, 6, 5}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}, .bias = true,
     .accumulate = true},
    {"conv_k5_c6_accumulate", CONV, .x = {5, 6, 7, 7}, .width = 16, .kernel = {5, 5}, .bias = true, .activation = RELU,
     .accumulate = true},
    {"conv_lenet_1", CONV, .x = {32, 1, 28, 28}, .width = 6, .kernel = {5, 5}, .pad = {2, 2}, .bias = true, .activation = RELU,
     .skip_dx = 1},
    {"conv_lenet_1_linear", CONV, .x = {32, 1, 28, 28}, .width = 6, .kernel = {5, 5}, .pad = {2, 2}, .bias = true,
     .skip_dx = 1},
    {"conv_lenet_1_dx", CONV, .x = {32, 1, 28, 28}, .width = 6, .kernel = {5, 5}, .pad = {2, 2}, .bias = true},
    {"conv_lenet_2", CONV, .x = {32, 6, 14, 14}, .width = 16, .kernel = {5, 5}, .bias = true, .activation = RELU},
    {"conv_lenet_2_linear", CONV, .x = {32, 6, 14, 14}, .width = 16, .kernel = {5, 5}, .bias = true, .accumulate = true},
    {"conv_lenet_2_odd_batch", CONV, .x = {19, 6, 14, 14}, .width = 16, .kernel = {5, 5}, .bias = true, .activation = RELU},
    {"conv_k5_c20_large", CONV, .x = {16, 20, 17, 17}, .width = 7, .kernel = {5, 5}, .pad = {2, 2}, .bias = true},
    {"conv_winograd_odd", CONV, .x = {9, 30, 7, 10}, .width = 29, .kernel = {3, 3}, .pad = {1, 1}, .bias = true,
     .activation = RELU},
    {"conv_winograd_p0x2", CONV, .x = {8, 16, 14, 12}, .width = 48, .kernel = {3, 3}, .pad = {0, 2}, .bias = true,
     .accumulate = true},
    {"conv_winograd_p2_nodx", CONV, .x = {4, 32, 14, 13}, .width = 16, .kernel = {3, 3}, .pad = {2, 2}, .skip_dx = 1},
    {"conv_resnet_stem", CONV, .x = {32, 3, 32, 32}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}, .skip_dx = 1},
    {"conv_resnet_16", CONV, .x = {32, 16, 32, 32}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_resnet_16_to_32", CONV, .x = {32, 16, 32, 32}, .width = 32, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}},
    {"conv_resnet_32", CONV, .x = {32, 32, 16, 16}, .width = 32, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_resnet_32_to_64", CONV, .x = {32, 32, 16, 16}, .width = 64, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}},
    {"conv_resnet_64", CONV, .x = {32, 64, 8, 8}, .width = 64, .kernel = {3, 3}, .pad = {1, 1}, .accumulate = true},

    {"conv_resnet_16_odd", CONV, .x = {5, 16, 30, 34}, .width = 16, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_resnet_32_odd", CONV, .x = {7, 32, 16, 16}, .width = 32, .kernel = {3, 3}, .pad = {1, 1}, .accumulate = true},
    {"conv_resnet_64_odd", CONV, .x = {3, 64, 8, 8}, .width = 64, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_resnet_64_one", CONV, .x = {1, 64, 8, 8}, .width = 64, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_k3_p1_c24_to_40", CONV, .x = {3, 24, 9, 7}, .width = 40, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_wrn_16_to_160", CONV, .x = {2, 16, 8, 8}, .width = 160, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_wrn_160", CONV, .x = {2, 160, 8, 8}, .width = 160, .kernel = {3, 3}, .pad = {1, 1}},
    {"conv_wrn_shortcut", CONV, .x = {2, 160, 8, 8}, .width = 320, .stride = {2, 2}},

    {"batch_norm_c4", BATCH_NORM, .x = {3, 4, 3, 5}},
    {"batch_norm_c1", BATCH_NORM, .x = {5, 1, 4, 3}},
    {"batch_norm_c3_batch1", BATCH_NORM, .x = {1, 3, 5, 3}},
    {"batch_norm_c6", BATCH_NORM, .x = {5, 6, 3, 4}},
    {"batch_norm_c8_relu", BATCH_NORM, .x = {5, 8, 3, 5}, .activation = RELU},
    {"batch_norm_c16", BATCH_NORM, .x = {5, 16, 3, 3}},
    {"batch_norm_c16_relu", BATCH_NORM, .x = {5, 16, 3, 3}, .activation = RELU},
    {"batch_norm_c16_residual", BATCH_NORM, .x = {5, 16, 3, 3}, .residual = true},
    {"batch_norm_c16_residual_relu", BATCH_NORM, .x = {5, 16, 3, 3}, .residual = true, .activation = RELU},
    {"batch_norm_c16_dy2", BATCH_NORM, .x = {5, 16, 3, 3}, .second_dy = true},
    {"batch_norm_c16_relu_dy2", BATCH_NORM, .x = {5, 16, 3, 3}, .activation = RELU, .second_dy = true},
    {"batch_norm_c16_residual_dy2", BATCH_NORM, .x = {5, 16, 3, 3}, .residual = true, .second_dy = true},
    {"batch_norm_c16_residual_relu_dy2", BATCH_NORM, .x = {5, 16, 3, 3}, .residual = true, .activation = RELU,
     .second_dy = true},
    {"batch_norm_c17", BATCH_NORM, .x = {5, 17, 3, 3}},
    {"batch_norm_c17_residual_relu_dy2", BATCH_NORM, .x = {5, 17, 3, 3}, .residual = true, .activation = RELU,
     .second_dy = true},
    {"batch_norm_c3_residual_relu_dy2", BATCH_NORM, .x = {2, 3, 5, 4}, .residual = true, .activation = RELU, .second_dy = true},
    {"batch_norm_c32_1x1", BATCH_NORM, .x = {7, 32, 1, 1}, .activation = RELU},
    {"batch_norm_batch17", BATCH_NORM, .x = {17, 6, 3, 3}, .activation = RELU},
    {"batch_norm_nodx", BATCH_NORM, .x = {3, 4, 3, 5}, .skip_dx = 1},
    {"batch_norm_residual_nodx0", BATCH_NORM, .x = {3, 16, 3, 5}, .residual = true, .activation = RELU, .skip_dx = 1},
    {"batch_norm_residual_nodx1", BATCH_NORM, .x = {3, 16, 3, 5}, .residual = true, .activation = RELU, .skip_dx = 2},
    {"batch_norm_residual_nodx01", BATCH_NORM, .x = {3, 16, 3, 5}, .residual = true, .activation = RELU, .skip_dx = 3},
    {"batch_norm_residual_nodx1_dy2", BATCH_NORM, .x = {3, 17, 3, 5}, .residual = true, .skip_dx = 2, .second_dy = true},
    {"batch_norm_accumulate", BATCH_NORM, .x = {3, 4, 3, 5}, .accumulate = true},
    {"batch_norm_c16_residual_relu_accumulate",
     BATCH_NORM,
     {3, 16, 3, 5},
     .residual = true,
     .activation = RELU,
     .accumulate = true},
    {"batch_norm_2d", BATCH_NORM, .x = {7, 5}},
    {"batch_norm_2d_c17", BATCH_NORM, .x = {32, 17}},
    {"batch_norm_2d_relu", BATCH_NORM, .x = {9, 16}, .activation = RELU},
    {"batch_norm_2d_residual_relu_dy2", BATCH_NORM, .x = {9, 17}, .residual = true, .activation = RELU, .second_dy = true},
    {"batch_norm_2d_accumulate", BATCH_NORM, .x = {9, 6}, .accumulate = true, .second_dy = true},
    {"batch_norm_eval", BATCH_NORM, .x = {2, 4, 3, 5}, .evaluate = true},
    {"batch_norm_eval_c16_relu", BATCH_NORM, .x = {5, 16, 3, 5}, .activation = RELU, .evaluate = true},
    {"batch_norm_eval_c17_residual", BATCH_NORM, .x = {5, 17, 3, 5}, .residual = true, .evaluate = true},
    {"batch_norm_eval_c16_residual_relu", BATCH_NORM, .x = {1, 16, 3, 5}, .residual = true, .activation = RELU,
     .evaluate = true},
    {"batch_norm_eval_2d", BATCH_NORM, .x = {4, 5}, .evaluate = true},
    {"batch_norm_eval_2d_relu", BATCH_NORM, .x = {4, 17}, .activation = RELU, .evaluate = true},
    {"batch_norm_resnet_16", BATCH_NORM, .x = {32, 16, 32, 32}, .activation = RELU},
    {"batch_norm_resnet_32_residual", BATCH_NORM, .x = {32, 32, 16, 16}, .residual = true, .activation = RELU,
     .second_dy = true},
    {"batch_norm_resnet_64_residual", BATCH_NORM, .x = {32, 64, 8, 8}, .residual = true, .activation = RELU,
     .accumulate = true},
    {"batch_norm_wrn_160", BATCH_NORM, .x = {3, 160, 8, 8}, .activation = RELU, .second_dy = true},
    {"batch_norm_c24_residual_relu_dy2", BATCH_NORM, .x = {5, 24, 7, 6}, .residual = true, .activation = RELU,
     .second_dy = true},

    {"layer_norm_2d", LAYER_NORM, .x = {5, 7}},
    {"layer_norm_3d", LAYER_NORM, .x = {2, 3, 9}},
    {"layer_norm_one_row", LAYER_NORM, .x = {1, 17}},
    {"layer_norm_nodx_accumulate", LAYER_NORM, .x = {5, 8}, .skip_dx = 1, .accumulate = true},
    {"layer_norm_wide", LAYER_NORM, .x = {32, 192}},
    {"layer_norm_residual", LAYER_NORM, .x = {5, 7}, .residual = true, .stream_dy = true},
    {"layer_norm_residual_last", LAYER_NORM, .x = {2, 3, 9}, .residual = true},
    {"layer_norm_residual_one_row", LAYER_NORM, .x = {1, 40}, .residual = true, .stream_dy = true},
    {"layer_norm_residual_scale_accumulate", LAYER_NORM, .x = {6, 32}, .residual = true, .stream_dy = true, .scale_only = true,
     .accumulate = true},
    {"layer_norm_residual_nodx0", LAYER_NORM, .x = {5, 16}, .residual = true, .stream_dy = true, .skip_dx = 1},
    {"layer_norm_residual_nodx1", LAYER_NORM, .x = {5, 16}, .residual = true, .stream_dy = true, .skip_dx = 2},
    {"layer_norm_residual_nodx", LAYER_NORM, .x = {5, 11}, .residual = true, .skip_dx = 3},
    {"layer_norm_residual_evaluate", LAYER_NORM, .x = {5, 8}, .residual = true, .evaluate = true},
    {"layer_norm_residual_deit", LAYER_NORM, .x = {3, 197, 384}, .residual = true, .stream_dy = true},
    {"layer_norm_residual_gpt2", LAYER_NORM, .x = {2, 33, 768}, .residual = true, .stream_dy = true},
    {"layer_norm_residual_swin", LAYER_NORM, .x = {2, 49, 96}, .residual = true, .stream_dy = true},
    {"layer_norm_residual_wide", LAYER_NORM, .x = {3, 1608}, .residual = true, .stream_dy = true},
    {"layer_norm_residual_wide_odd", LAYER_NORM, .x = {3, 1601}, .residual = true, .stream_dy = true},

    {"relu", ACTIVATION, .x = {2, 3, 5, 3}, .activation = RELU},
    {"relu_zeros", ACTIVATION, .x = {3, 6, 5, 3}, .activation = RELU, .ties = true},
    {"relu_c16", ACTIVATION, .x = {5, 16, 3, 3}, .activation = RELU},
    {"relu_c17", ACTIVATION, .x = {5, 17, 3, 3}, .activation = RELU},
    {"relu_2d", ACTIVATION, .x = {5, 33}, .activation = RELU},
    {"relu_batch32", ACTIVATION, .x = {32, 16, 16, 16}, .activation = RELU},
    {"tanh", ACTIVATION, .x = {2, 3, 5, 3}, .activation = ABAR_ACT_TANH},
    {"tanh_c17", ACTIVATION, .x = {2, 17, 5, 3}, .activation = ABAR_ACT_TANH},
    {"tanh_2d", ACTIVATION, .x = {32, 84}, .activation = ABAR_ACT_TANH},
    {"gelu_erf", ACTIVATION, .x = {2, 3, 5, 3}, .activation = ABAR_ACT_GELU_ERF},
    {"gelu_erf_2d", ACTIVATION, .x = {5, 65}, .activation = ABAR_ACT_GELU_ERF},
    {"gelu_tanh", ACTIVATION, .x = {2, 17, 5, 3}, .activation = ABAR_ACT_GELU_TANH},
    {"gelu_tanh_2d", ACTIVATION, .x = {5, 65}, .activation = ABAR_ACT_GELU_TANH},

    {"max_pool_k2", POOL, .x = {2, 3, 6, 4}, .kernel = {2, 2}, .stride = {2, 2}},
    {"max_pool_k2_odd", POOL, .x = {2, 3, 7, 5}, .kernel = {2, 2}, .stride = {2, 2}},
    {"max_pool_k2_c16", POOL, .x = {5, 16, 6, 4}, .kernel = {2, 2}, .stride = {2, 2}},
    {"max_pool_k2_c17_odd", POOL, .x = {5, 17, 7, 5}, .kernel = {2, 2}, .stride = {2, 2}},
    {"max_pool_k3_s2_p1", POOL, .x = {2, 2, 7, 8}, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}},
    {"max_pool_k3_s2_p1_c16", POOL, .x = {3, 16, 7, 8}, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}},
    {"max_pool_k3_s1_p1", POOL, .x = {2, 6, 5, 6}, .kernel = {3, 3}, .pad = {1, 1}},
    {"max_pool_k3x2_s2x1_p1x0", POOL, .x = {1, 3, 7, 5}, .kernel = {3, 2}, .stride = {2, 1}, .pad = {1, 0}},
    {"max_pool_ties", POOL, .x = {2, 2, 7, 7}, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .ties = true},
    {"max_pool_k2_ties", POOL, .x = {17, 6, 8, 8}, .kernel = {2, 2}, .stride = {2, 2}, .ties = true},
    {"max_pool_k2_ties_c16", POOL, .x = {3, 16, 8, 8}, .kernel = {2, 2}, .stride = {2, 2}, .ties = true},
    {"max_pool_lenet_1", POOL, .x = {32, 6, 28, 28}, .kernel = {2, 2}, .stride = {2, 2}},
    {"max_pool_lenet_2", POOL, .x = {32, 16, 10, 10}, .kernel = {2, 2}, .stride = {2, 2}},
    {"avg_pool_k2", POOL, .x = {2, 3, 6, 4}, .kernel = {2, 2}, .stride = {2, 2}, .average = true},
    {"avg_pool_k2_odd", POOL, .x = {2, 17, 7, 5}, .kernel = {2, 2}, .stride = {2, 2}, .average = true},
    {"avg_pool_k3_s2_p1", POOL, .x = {2, 2, 7, 8}, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .average = true},
    {"avg_pool_k3_s2_p1_c16", POOL, .x = {5, 16, 7, 8}, .kernel = {3, 3}, .stride = {2, 2}, .pad = {1, 1}, .average = true},
    {"avg_pool_k3x2_s2x1_p1x0", POOL, .x = {1, 3, 7, 5}, .kernel = {3, 2}, .stride = {2, 1}, .pad = {1, 0}, .average = true},
    {"avg_pool_global_odd", POOL, .x = {2, 5, 3, 7}, .kernel = {3, 7}, .stride = {3, 7}, .average = true},
    {"avg_pool_global_c17", POOL, .x = {5, 17, 4, 4}, .kernel = {4, 4}, .stride = {4, 4}, .average = true},
    {"avg_pool_resnet", POOL, .x = {32, 64, 8, 8}, .kernel = {8, 8}, .stride = {8, 8}, .average = true},

    {"add", ADD, .x = {2, 3, 5, 3}},
    {"add_c16", ADD, .x = {5, 16, 3, 3}},
    {"add_c17", ADD, .x = {5, 17, 3, 3}},
    {"add_nodx0", ADD, .x = {2, 8, 3, 3}, .skip_dx = 1},
    {"add_nodx1", ADD, .x = {2, 8, 3, 3}, .skip_dx = 2},
    {"add_2d", ADD, .x = {5, 33}},
    {"add_batch32", ADD, .x = {32, 16, 16, 16}},

    {"concat_3_4", CONCAT, .x = {2, 3, 5, 3}, .more = {4}},
    {"concat_16_16", CONCAT, .x = {2, 16, 3, 3}, .more = {16}},
    {"concat_16_8", CONCAT, .x = {5, 16, 3, 3}, .more = {8}},
    {"concat_17_1_6", CONCAT, .x = {5, 17, 3, 4}, .more = {1, 6}},
    {"concat_nodx1", CONCAT, .x = {2, 3, 4, 3}, .more = {5, 2}, .skip_dx = 2},
    {"concat_eight", CONCAT, .x = {2, 1, 3, 4}, .more = {2, 3, 1, 16, 5, 1, 8}},
    {"concat_2d", CONCAT, .x = {5, 7}, .more = {3}},
    {"concat_batch32", CONCAT, .x = {32, 32, 8, 8}, .more = {64}},

    {"flatten_odd", FLATTEN, .x = {2, 3, 5, 4}},
    {"flatten_c17", FLATTEN, .x = {5, 17, 3, 2}},
    {"flatten_batch17", FLATTEN, .x = {17, 6, 3, 2}},
    {"flatten_1x1", FLATTEN, .x = {5, 64, 1, 1}},
    {"flatten_lenet", FLATTEN, .x = {32, 16, 5, 5}},

    {"shortcut_4_to_8", SHORTCUT, .x = {2, 4, 6, 8}, .width = 8, .stride = {2, 2}},
    {"shortcut_3_to_7_odd", SHORTCUT, .x = {2, 3, 7, 5}, .width = 7, .stride = {2, 2}},
    {"shortcut_stride1", SHORTCUT, .x = {1, 2, 3, 5}, .width = 4},
    {"shortcut_17_to_33", SHORTCUT, .x = {5, 17, 4, 5}, .width = 33, .stride = {2, 2}},
    {"shortcut_16_to_16", SHORTCUT, .x = {2, 16, 4, 4}, .width = 16, .stride = {2, 2}},
    {"shortcut_16_to_32", SHORTCUT, .x = {32, 16, 32, 32}, .width = 32, .stride = {2, 2}},
    {"shortcut_32_to_64", SHORTCUT, .x = {32, 32, 16, 16}, .width = 64, .stride = {2, 2}},

    {"dropout_half", DROPOUT, .x = {3, 5, 3, 3}, .drop = 0.5},
    {"dropout_tenth_2d", DROPOUT, .x = {5, 33}, .drop = 0.1, .number = 3},
    {"dropout_c16", DROPOUT, .x = {5, 16, 3, 4}, .drop = 0.3, .number = 255},
    {"dropout_c17", DROPOUT, .x = {5, 17, 3, 3}, .drop = 0.3, .number = 1},
    {"dropout_batch17", DROPOUT, .x = {17, 3, 3, 3}, .drop = 0.2},
    {"dropout_none", DROPOUT, .x = {5, 7}, .drop = 0.0},
    {"dropout_eval", DROPOUT, .x = {5, 7, 2, 3}, .drop = 0.5, .evaluate = true},
    {"dropout_wide", DROPOUT, .x = {32, 512}, .drop = 0.5},

    {"cross_entropy", ENTROPY, .x = {5, 7}},
    {"cross_entropy_one", ENTROPY, .x = {1, 10}},
    {"cross_entropy_ties", ENTROPY, .x = {17, 5}, .ties = true},
    {"cross_entropy_smooth", ENTROPY, .x = {5, 7}, .smoothing = 0.1},
    {"cross_entropy_soft", ENTROPY, .x = {5, 7}, .soft_targets = true},
    {"cross_entropy_soft_smooth", ENTROPY, .x = {5, 7}, .soft_targets = true, .smoothing = 0.2},
    {"cross_entropy_valid", ENTROPY, .x = {8, 10}, .valid = 5},
    {"cross_entropy_valid_smooth_scaled", ENTROPY, .x = {8, 17}, .smoothing = 0.1, .valid = 3, .loss_scale = 0.25},
    {"cross_entropy_valid_soft", ENTROPY, .x = {8, 6}, .soft_targets = true, .valid = 7, .loss_scale = 0.5},
    {"cross_entropy_eval", ENTROPY, .x = {8, 10}, .valid = 6, .evaluate = true},
    {"cross_entropy_batch32", ENTROPY, .x = {32, 10}},
    {"cross_entropy_1025_soft", ENTROPY, .x = {3, 1025}, .soft_targets = true, .valid = 2},
    {"cross_entropy_1031_smooth", ENTROPY, .x = {5, 1031}, .smoothing = 0.1, .loss_scale = 0.5},
    {"cross_entropy_pairs", ENTROPY, .x = {9, 7}, .label_pairs = true},
    {"cross_entropy_pairs_one", ENTROPY, .x = {1, 10}, .label_pairs = true, .smoothing = 0.1},
    {"cross_entropy_pairs_ties", ENTROPY, .x = {17, 5}, .label_pairs = true, .ties = true},
    {"cross_entropy_pairs_valid", ENTROPY, .x = {12, 10}, .label_pairs = true, .smoothing = 0.1, .valid = 7,
     .loss_scale = 0.25},
    {"cross_entropy_pairs_eval", ENTROPY, .x = {8, 10}, .label_pairs = true, .valid = 6, .evaluate = true},
    {"cross_entropy_pairs_tokens", ENTROPY, .x = {3, 4, 6}, .label_pairs = true, .smoothing = 0.2, .valid = 2},
    {"cross_entropy_pairs_1000", ENTROPY, .x = {70, 1000}, .label_pairs = true, .smoothing = 0.1},
    {"cross_entropy_pairs_1031", ENTROPY, .x = {9, 1031}, .label_pairs = true, .smoothing = 0.1, .valid = 8, .loss_scale = 0.5},
    {"cross_entropy_1200_ties", ENTROPY, .x = {4, 1200}, .ties = true},
    {"cross_entropy_1000", ENTROPY, .x = {7, 1000}, .smoothing = 0.1},

    {"squared_error", SQUARED, .x = {5, 3}},
    {"squared_error_4d", SQUARED, .x = {3, 2, 4, 5}},
    {"squared_error_valid", SQUARED, .x = {8, 3}, .valid = 5, .loss_scale = 0.5},
    {"squared_error_eval", SQUARED, .x = {8, 3}, .valid = 7, .evaluate = true},
    {"squared_error_batch32", SQUARED, .x = {32, 17}},

    {"layer_norm_tokens", LAYER_NORM, .x = {2, 50, 96}},
    {"layer_norm_scale", LAYER_NORM, .x = {5, 7}, .scale_only = true},
    {"layer_norm_scale_accumulate", LAYER_NORM, .x = {6, 32}, .scale_only = true, .accumulate = true},
    {"layer_norm_scale_gpt_char", LAYER_NORM, .x = {4, 50, 384}, .scale_only = true},
    {"layer_norm_gpt2", LAYER_NORM, .x = {2, 20, 768}},
    {"layer_norm_wide_odd", LAYER_NORM, .x = {3, 1601}},
    {"layer_norm_swin_merge", LAYER_NORM, .x = {2, 49, 1536}},
    {"layer_norm_team_8", LAYER_NORM, .x = {131, 8}, .accumulate = true},
    {"layer_norm_team_24", LAYER_NORM, .x = {67, 24}, .residual = true, .stream_dy = true},
    {"layer_norm_team_40", LAYER_NORM, .x = {61, 40}},
    {"layer_norm_team_96", LAYER_NORM, .x = {3, 67, 96}, .residual = true, .stream_dy = true},
    {"layer_norm_team_100", LAYER_NORM, .x = {33, 100}},
    {"layer_norm_team_136", LAYER_NORM, .x = {35, 136}, .residual = true, .stream_dy = true},
    {"layer_norm_team_192", LAYER_NORM, .x = {2, 51, 192}, .residual = true},
    {"layer_norm_team_200", LAYER_NORM, .x = {19, 200}},
    {"layer_norm_team_264", LAYER_NORM, .x = {37, 264}, .residual = true, .stream_dy = true, .skip_dx = 2},
    {"layer_norm_team_384", LAYER_NORM, .x = {17, 384}, .scale_only = true},
    {"layer_norm_team_392", LAYER_NORM, .x = {9, 392}, .residual = true, .stream_dy = true},
    {"layer_norm_team_many_rows", LAYER_NORM, .x = {17003, 96}, .residual = true, .stream_dy = true, .accumulate = true},
    {"layer_norm_team_many_rows_nodx", LAYER_NORM, .x = {4301, 264}, .skip_dx = 1},
    {"gelu_erf_3d", ACTIVATION, .x = {2, 5, 24}, .activation = ABAR_ACT_GELU_ERF},
    {"gelu_erf_many_odd", ACTIVATION, .x = {7, 1201}, .activation = ABAR_ACT_GELU_ERF},
    {"gelu_tanh_many_odd", ACTIVATION, .x = {11, 1193}, .activation = ABAR_ACT_GELU_TANH},
    {"gelu_tanh_3d", ACTIVATION, .x = {2, 7, 9}, .activation = ABAR_ACT_GELU_TANH},
    {"add_3d", ADD, .x = {2, 5, 24}},
    {"add_3d_odd", ADD, .x = {3, 7, 9}},
    {"dropout_3d", DROPOUT, .x = {3, 5, 7}, .drop = 0.2, .number = 2},
    {"drop_path", DROPOUT, .x = {9, 5, 8}, .drop = 0.3, .number = 4, .per_sample = true},
    {"drop_path_odd", DROPOUT, .x = {7, 3, 5}, .drop = 0.6, .per_sample = true},
    {"drop_path_4d", DROPOUT, .x = {6, 16, 3, 3}, .drop = 0.5, .number = 1, .per_sample = true},
    {"drop_path_eval", DROPOUT, .x = {6, 3, 5}, .drop = 0.6, .per_sample = true, .evaluate = true},

    {"embedding", EMBEDDING, .x = {3, 5}, .width = 7, .vocabulary = 4, .positions = 5},
    {"embedding_one", EMBEDDING, .x = {1, 1}, .width = 1, .vocabulary = 1, .positions = 1},
    {"embedding_spare_positions", EMBEDDING, .x = {2, 6}, .width = 16, .vocabulary = 11, .positions = 9},
    {"embedding_rare_tokens", EMBEDDING, .x = {2, 9}, .width = 24, .vocabulary = 300, .positions = 9},
    {"embedding_repeated", EMBEDDING, .x = {3, 700}, .width = 24, .vocabulary = 200, .positions = 700},
    {"embedding_repeated_odd", EMBEDDING, .x = {5, 300}, .width = 7, .vocabulary = 193, .positions = 301, .accumulate = true},
    {"embedding_accumulate", EMBEDDING, .x = {3, 4}, .width = 8, .vocabulary = 5, .positions = 6, .accumulate = true},
    {"embedding_tied", EMBEDDING, .x = {3, 4}, .width = 8, .vocabulary = 5, .positions = 6, .table_written = true},
    {"embedding_tied_accumulate", EMBEDDING, .x = {3, 4}, .width = 9, .vocabulary = 5, .positions = 4, .table_written = true,
     .accumulate = true},
    {"embedding_eval", EMBEDDING, .x = {3, 4}, .width = 8, .vocabulary = 5, .positions = 4, .evaluate = true},
    {"embedding_gpt_char", EMBEDDING, .x = {8, 256}, .width = 384, .vocabulary = 65, .positions = 256},

    {"tokens", TOKENS, .x = {2, 3, 4, 5}},
    {"tokens_one", TOKENS, .x = {1, 1, 1, 1}},
    {"tokens_c16", TOKENS, .x = {5, 16, 3, 3}},
    {"tokens_c17", TOKENS, .x = {3, 17, 2, 5}},
    {"tokens_nodx", TOKENS, .x = {2, 8, 3, 3}, .skip_dx = 1},
    {"tokens_deit", TOKENS, .x = {4, 192, 8, 8}},

    {"class_token", CLASS_TOKEN, .x = {3, 4, 7}},
    {"class_token_one", CLASS_TOKEN, .x = {1, 1, 1}},
    {"class_token_c16", CLASS_TOKEN, .x = {2, 9, 16}},
    {"class_token_nodx", CLASS_TOKEN, .x = {2, 4, 8}, .skip_dx = 1},
    {"class_token_accumulate", CLASS_TOKEN, .x = {5, 3, 8}, .accumulate = true},
    {"class_token_d6", CLASS_TOKEN, .x = {2, 3, 6}},
    {"class_token_many", CLASS_TOKEN, .x = {41, 4, 16}},
    {"class_token_many_nodx", CLASS_TOKEN, .x = {75, 2, 8}, .skip_dx = 1, .accumulate = true},
    {"class_token_deit", CLASS_TOKEN, .x = {4, 64, 192}},

    {"patch_merge", PATCH_MERGE, .x = {2, 24, 3}, .grid = {4, 6}},
    {"patch_merge_one", PATCH_MERGE, .x = {1, 4, 1}, .grid = {2, 2}},
    {"patch_merge_c16", PATCH_MERGE, .x = {3, 16, 16}, .grid = {2, 8}},
    {"patch_merge_nodx", PATCH_MERGE, .x = {2, 16, 8}, .grid = {4, 4}, .skip_dx = 1},
    {"patch_merge_swin", PATCH_MERGE, .x = {2, 196, 96}, .grid = {14, 14}},

    {"token_mean", TOKEN_MEAN, .x = {3, 5, 7}},
    {"token_mean_one", TOKEN_MEAN, .x = {2, 1, 3}},
    {"token_mean_swin", TOKEN_MEAN, .x = {4, 49, 96}},
    {"token_first", TOKEN_FIRST, .x = {3, 5, 7}},
    {"token_first_one", TOKEN_FIRST, .x = {2, 1, 3}},
    {"token_first_deit", TOKEN_FIRST, .x = {4, 65, 192}},

    {"attention_t1", ATTENTION, .x = {2, 1, 96}, .heads = 1},
    {"attention_t1_h3_d64", ATTENTION, .x = {1, 1, 576}, .heads = 3},
    {"attention_t5_d3", ATTENTION, .x = {3, 5, 18}, .heads = 2},
    {"attention_t49", ATTENTION, .x = {1, 49, 192}, .heads = 2},
    {"attention_t50_d64", ATTENTION, .x = {1, 50, 192}, .heads = 1},
    {"attention_t64", ATTENTION, .x = {2, 64, 192}, .heads = 2},
    {"attention_t64_d64", ATTENTION, .x = {1, 64, 384}, .heads = 2},
    {"attention_t65_deit", ATTENTION, .x = {2, 65, 576}, .heads = 3},
    {"attention_t196", ATTENTION, .x = {1, 196, 96}, .heads = 1},
    {"attention_t197", ATTENTION, .x = {2, 197, 192}, .heads = 2},
    {"attention_t197_d64", ATTENTION, .x = {1, 197, 192}, .heads = 1},
    {"attention_t208_d64", ATTENTION, .x = {1, 208, 192}, .heads = 1}, /* the longest and shortest sequences of each kernel */
    {"attention_t209_d64", ATTENTION, .x = {1, 209, 192}, .heads = 1},
    {"attention_t256_d64", ATTENTION, .x = {1, 256, 192}, .heads = 1},
    {"attention_many_t17", ATTENTION, .x = {150, 17, 576}, .heads = 3}, /* more heads than blocks that run at once */
    {"attention_many_t81", ATTENTION, .x = {70, 81, 192}, .heads = 2},
    {"attention_t33_d20", ATTENTION, .x = {2, 33, 180}, .heads = 3},
    {"attention_t19_d96", ATTENTION, .x = {1, 19, 288}, .heads = 1},
    {"attention_t17_d128", ATTENTION, .x = {1, 17, 384}, .heads = 1},
    {"attention_sharp", ATTENTION, .x = {1, 50, 96}, .heads = 1, .ties = true}, /* large scores, some of them equal */
    {"attention_nodx", ATTENTION, .x = {1, 20, 96}, .heads = 1, .skip_dx = 1},
    {"attention_unobserved", ATTENTION, .x = {2, 20, 96}, .heads = 1, .unobserved = true},
    {"attention_eval", ATTENTION, .x = {2, 20, 96}, .heads = 1, .drop = 0.5, .evaluate = true},
    {"attention_drop_t37", ATTENTION, .x = {2, 37, 96}, .heads = 1, .drop = 0.2, .number = 5},
    {"attention_drop_t64_h2", ATTENTION, .x = {2, 64, 192}, .heads = 2, .drop = 0.1, .number = 255},
    {"attention_causal_t1", ATTENTION, .x = {1, 1, 96}, .heads = 1, .causal = true},
    {"attention_causal_t50", ATTENTION, .x = {2, 50, 96}, .heads = 1, .causal = true},
    {"attention_causal_t64_h3", ATTENTION, .x = {1, 64, 288}, .heads = 3, .causal = true},
    {"attention_causal_many_t83", ATTENTION, .x = {140, 83, 96}, .heads = 1, .causal = true},
    {"attention_causal_t197", ATTENTION, .x = {1, 197, 96}, .heads = 1, .causal = true},
    {"attention_causal_t256_d64", ATTENTION, .x = {1, 256, 384}, .heads = 2, .causal = true},
    {"attention_causal_t1024_d64", ATTENTION, .x = {1, 1024, 192}, .heads = 1, .causal = true},
    {"attention_causal_drop_t50_d64", ATTENTION, .x = {2, 50, 384}, .heads = 2, .causal = true, .drop = 0.2, .number = 1},
    {"attention_causal_drop_t256_d64", ATTENTION, .x = {1, 256, 192}, .heads = 1, .causal = true, .drop = 0.2},
    /* of the wide kernels: groups of 64 rows, two in a block or one; more tiles than places; few keys in the last tile */
    {"attention_t128_d64_h3", ATTENTION, .x = {2, 128, 576}, .heads = 3},
    {"attention_t176_d64_h2", ATTENTION, .x = {2, 176, 384}, .heads = 2},
    {"attention_t300_d64_h3", ATTENTION, .x = {2, 300, 576}, .heads = 3},
    {"attention_t770_d64", ATTENTION, .x = {1, 770, 192}, .heads = 1},
    {"attention_sharp_t200_d64", ATTENTION, .x = {1, 200, 192}, .heads = 1, .ties = true},
    {"attention_nodx_t128_d64", ATTENTION, .x = {1, 128, 384}, .heads = 2, .skip_dx = 1},
    {"attention_unobserved_t192_d64", ATTENTION, .x = {1, 192, 384}, .heads = 2, .unobserved = true},
    {"attention_drop_t197_d64", ATTENTION, .x = {2, 197, 384}, .heads = 2, .drop = 0.3, .number = 4},
    {"attention_causal_t64_d64", ATTENTION, .x = {2, 64, 384}, .heads = 2, .causal = true},
    {"attention_causal_t197_d64", ATTENTION, .x = {2, 197, 384}, .heads = 2, .causal = true},
    {"attention_causal_t440_d64_h3", ATTENTION, .x = {2, 440, 576}, .heads = 3, .causal = true},
    {"attention_causal_t580_d64", ATTENTION, .x = {1, 580, 192}, .heads = 1, .causal = true},
    {"attention_causal_drop_t300_d64", ATTENTION, .x = {2, 300, 384}, .heads = 2, .causal = true, .drop = 0.2, .number = 2},
    {"window_side1", ATTENTION, .x = {2, 6, 12}, .heads = 2, .grid = {3, 2}, .side = 1},
    {"window_2", ATTENTION, .x = {2, 16, 96}, .heads = 1, .grid = {4, 4}, .side = 2},
    {"window_2_shift", ATTENTION, .x = {2, 16, 96}, .heads = 1, .grid = {4, 4}, .side = 2, .shift = 1},
    {"window_3_shift1_odd", ATTENTION, .x = {2, 54, 60}, .heads = 2, .grid = {6, 9}, .side = 3, .shift = 1},
    {"window_3_shift2_tall", ATTENTION, .x = {1, 36, 60}, .heads = 2, .grid = {12, 3}, .side = 3, .shift = 2},
    {"window_4_wide", ATTENTION, .x = {1, 32, 192}, .heads = 2, .grid = {4, 8}, .side = 4},
    {"window_4_shift", ATTENTION, .x = {1, 64, 192}, .heads = 2, .grid = {8, 8}, .side = 4, .shift = 2},
    {"window_7_whole", ATTENTION, .x = {2, 49, 288}, .heads = 3, .grid = {7, 7}, .side = 7},
    {"window_7", ATTENTION, .x = {1, 196, 96}, .heads = 1, .grid = {14, 14}, .side = 7},
    {"window_7_shift", ATTENTION, .x = {2, 196, 192}, .heads = 2, .grid = {14, 14}, .side = 7, .shift = 3},
    {"window_7_shift_d64", ATTENTION, .x = {1, 196, 192}, .heads = 1, .grid = {14, 14}, .side = 7, .shift = 3},
    {"window_8_shift", ATTENTION, .x = {1, 256, 96}, .heads = 1, .grid = {16, 16}, .side = 8, .shift = 4},
    {"window_7_large", ATTENTION, .x = {1, 784, 96}, .heads = 1, .grid = {28, 28}, .side = 7, .shift = 3},
    {"window_7_many", ATTENTION, .x = {50, 196, 576}, .heads = 6, .grid = {14, 14}, .side = 7,
     .shift = 3}, /* a block has several */
    {"window_7_shift1_tall", ATTENTION, .x = {1, 294, 192}, .heads = 2, .grid = {21, 14}, .side = 7, .shift = 1},
    {"window_7_drop", ATTENTION, .x = {2, 196, 96}, .heads = 1, .grid = {14, 14}, .side = 7, .shift = 3, .drop = 0.2,
     .number = 6},
    {"window_7_accumulate", ATTENTION, .x = {2, 49, 192}, .heads = 2, .grid = {7, 7}, .side = 7, .accumulate = true},
    {"window_7_nodx", ATTENTION, .x = {1, 196, 96}, .heads = 1, .grid = {14, 14}, .side = 7, .shift = 3, .skip_dx = 1},
    {"window_7_sharp", ATTENTION, .x = {1, 98, 96}, .heads = 1, .grid = {7, 14}, .side = 7, .ties = true, .unobserved = true},
    {"window_accumulate", ATTENTION, .x = {2, 16, 96}, .heads = 1, .grid = {4, 4}, .side = 4, .accumulate = true},
    {"window_nodx", ATTENTION, .x = {2, 16, 96}, .heads = 1, .grid = {4, 4}, .side = 2, .shift = 1, .skip_dx = 1},
    {"window_drop", ATTENTION, .x = {2, 36, 96}, .heads = 1, .grid = {6, 6}, .side = 3, .shift = 1, .drop = 0.25, .number = 3},

    {"cross_entropy_rows", ENTROPY, .x = {3, 5, 7}},
    {"cross_entropy_rows_one", ENTROPY, .x = {1, 1, 4}},
    {"cross_entropy_rows_valid", ENTROPY, .x = {4, 6, 9}, .valid = 3, .loss_scale = 0.5},
    {"cross_entropy_rows_smooth", ENTROPY, .x = {2, 5, 11}, .smoothing = 0.1},
    {"cross_entropy_rows_soft", ENTROPY, .x = {3, 4, 5}, .soft_targets = true, .valid = 2},
    {"cross_entropy_rows_eval", ENTROPY, .x = {3, 4, 5}, .valid = 2, .evaluate = true},
    {"cross_entropy_gpt_char", ENTROPY, .x = {4, 256, 65}},
    {"cross_entropy_gpt2", ENTROPY, .x = {1, 3, 50257}},

    {.name = NULL},
};

static int64_t or_one(int64_t n) { return n ? n : 1; }

static abar_window window_of(const op_case *c)
{
    abar_window w = {.groups = or_one(c->groups)};
    for (int i = 0; i < 2; i++) {
        w.kernel[i] = or_one(c->kernel[i]);
        w.stride[i] = or_one(c->stride[i]);
        w.dilation[i] = or_one(c->dilation[i]);
        w.pad[i] = c->pad[i];
    }
    return w;
}

static abar__shape output_shape(const op_case *c, const abar__op_desc *d)
{
    abar__shape out = d->in[0];
    switch (c->kind) {
    case ABAR_OP_LINEAR: out.dim[1] = c->width; break;
    case ABAR_OP_CONCAT:
        for (int i = 1; i < d->n_in; i++) out.dim[1] += d->in[i].dim[1];
        break;
    case ABAR_OP_FLATTEN: out = (abar__shape){2, {out.dim[0], abar__shape_count(&out) / out.dim[0]}}; break;
    case ABAR_OP_CONV2D:
    case ABAR_OP_SHORTCUT:
    case ABAR_OP_POOL2D:
        if (c->width) out.dim[1] = c->width;
        for (int i = 0; i < 2; i++) out.dim[2 + i] = abar_window_out(&d->window, i, out.dim[2 + i]);
        break;
    case ABAR_OP_EMBEDDING: out = (abar__shape){3, {out.dim[0], out.dim[1], c->width}}; break;
    case ABAR_OP_TOKENS: out = (abar__shape){3, {out.dim[0], out.dim[2] * out.dim[3], out.dim[1]}}; break;
    case ABAR_OP_CLASS_TOKEN: out.dim[1]++; break;
    case ABAR_OP_ATTENTION: out.dim[2] /= 3; break;
    case ABAR_OP_PATCH_MERGE: out = (abar__shape){3, {out.dim[0], out.dim[1] / 4, 4 * out.dim[2]}}; break;
    case ABAR_OP_TOKEN_MEAN:
    case ABAR_OP_TOKEN_FIRST: out = (abar__shape){2, {out.dim[0], out.dim[2]}}; break;
    case ABAR_OP_SOFTMAX_CROSS_ENTROPY:
    case ABAR_OP_SQUARED_ERROR: out = (abar__shape){1, {1}}; break;
    default: break;
    }
    return out;
}

abar__op_desc op_case_desc(const op_case *c)
{
    abar__op_desc d = {.kind = c->kind, .n_in = 1, .window = window_of(c), .bias = c->bias, .activation = c->activation};
    while (d.in[0].ndim < 4 && c->x[d.in[0].ndim]) {
        d.in[0].dim[d.in[0].ndim] = c->x[d.in[0].ndim];
        d.in[0].ndim++;
    }
    if (c->kind == ABAR_OP_ADD || c->residual) d.in[d.n_in++] = d.in[0];
    for (int i = 0; c->more[i]; i++) {
        d.in[d.n_in] = d.in[0];
        d.in[d.n_in++].dim[1] = c->more[i];
    }
    if (c->kind == ABAR_OP_LAYER_NORM) d.bias = !c->scale_only;
    for (int i = 0; i < d.n_in; i++) d.need_dx[i] = !(c->skip_dx >> i & 1u) && c->kind != ABAR_OP_EMBEDDING;
    d.out = output_shape(c, &d);
    d.pad = c->padded;
    d.input_activation = c->input_activation;
    d.residual = c->residual;
    d.average = c->average;
    d.soft_targets = c->soft_targets;
    d.label_pairs = c->label_pairs;
    d.eps = 1e-5;
    d.momentum = 0.1;
    d.smoothing = c->smoothing;
    d.drop = c->drop;
    d.number = c->number;
    d.per_sample = c->per_sample;
    d.vocabulary = c->vocabulary;
    d.positions = c->positions;
    d.heads = c->heads;
    d.causal = c->causal;
    d.grid[0] = c->grid[0];
    d.grid[1] = c->grid[1];
    d.side = c->side;
    d.shift = c->shift;
    return d;
}

abar__run op_case_run(const op_case *c)
{
    return (abar__run){.training = !c->evaluate,
                       .valid = c->valid ? c->valid : c->x[0],
                       .seed = 0x0123456789abcdefu,
                       .step = 7,
                       .sample0 = 3, /* odd: draws are shared by four elements, and samples need not begin a draw */
                       .loss_scale = c->loss_scale != 0.0 ? c->loss_scale : 1.0,
                       .observing = !c->unobserved};
}

bool op_case_is_modest(const op_case *c)
{
    abar__op_desc d = op_case_desc(c);
    const int64_t most = d.kind == ABAR_OP_ATTENTION ? 26000 : 6000; /* widths of heads make even short sequences long */
    return abar__shape_count(&d.in[0]) + abar__shape_count(&d.out) <= most;
}
