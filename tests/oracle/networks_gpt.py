"""GPT as a PyTorch module, with nanoGPT's names: gpt2 of any size, and the small one for characters."""

import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm(nn.Module):
    """With a bias or without."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalAttention(nn.Module):
    """Token i attends to tokens 0 .. i; scores, softmax and all are written out."""

    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(self, x):  # (N, T, D)
        n, t, d = x.shape
        q, k, v = (part.reshape(n, t, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(d, dim=2))
        scores = q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5
        future = torch.ones(t, t).triu(1).bool()
        y = scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(n, t, d))


class Mlp(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.ln_1 = LayerNorm(width, bias)
        self.attn = CausalAttention(width, heads, bias)
        self.ln_2 = LayerNorm(width, bias)
        self.mlp = Mlp(width, bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Tokens (N, T) int64 -> logits (N, T, vocabulary). The head's weight is the embedding's table."""

    def __init__(self, layers, heads, width, context, vocabulary, bias):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(context, width),
                "h": nn.ModuleList(Block(width, heads, bias) for _ in range(layers)),
                "ln_f": LayerNorm(width, bias),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1]))
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))


def gpt2(layers=12, heads=12, width=768, context=1024, vocabulary=50257):
    return Gpt(layers, heads, width, context, vocabulary, bias=True)


def gpt_char(layers=6, heads=6, width=384, context=256, vocabulary=65):
    return Gpt(layers, heads, width, context, vocabulary, bias=False)
