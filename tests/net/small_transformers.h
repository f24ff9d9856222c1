/* Transformers small enough for differences on ref: width 8, two or three blocks, VOCABULARY classes or tokens. */
#ifndef SMALL_TRANSFORMERS_H
#define SMALL_TRANSFORMERS_H

#include "abar/net.h"

#define VOCABULARY 5
#define LENGTH 6 /* of the text */

/* Pre-norm, as DeiT, Swin and GPT have it; drop: of the path and of the last layer's outputs. */
abar_value small_block(abar_net *net, abar_value x, int64_t width, const abar_attention_config *attention, double drop);

void build_small_gpt(abar_net *net);  /* causal, with dropout and a tied head */
void build_small_deit(abar_net *net); /* class token, stochastic depth */
void build_small_swin(abar_net *net); /* 4 x 4 tokens in windows of 2, shifted by 0 and 1, then merged */

#define SMALL_TRANSFORMERS 3
extern void (*const small_transformers[SMALL_TRANSFORMERS])(abar_net *net);

#endif
