"""DeiT, Swin and GPT-2 as PyTorch runs them fastest: the oracle's networks with fused attention, and constants made once.

peer_torch.py times them. Run as a script, this file checks small ones in double precision against the oracle's logits and gradients.
"""

import contextlib
import os
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "oracle"))
import networks_gpt  # noqa: E402
import networks_vit  # noqa: E402

# ABAR_PEER_TINY=1 runs small networks on the CPU, without graphs, to test these files without a GPU.
TINY = bool(os.environ.get("ABAR_PEER_TINY"))
DEVICE = "cpu" if TINY else "cuda"
BATCH = {"deit-small": 4, "swin-tiny": 4, "gpt2": 2} if TINY else {"deit-small": 256, "swin-tiny": 256, "gpt2": 8}
MODELS = tuple(BATCH)

# Precision (autocast, or weights in bfloat16 with masters) and attention; the fastest counts.
RECIPES = {
    "deit-small": ["autocast", "masters", "masters cudnn"],
    "swin-tiny": ["autocast", "masters", "masters written"],
    "gpt2": ["autocast"],
}


def sizes(model, tiny):
    """The shape of a sample, and the arguments of the network's constructor."""
    if model == "deit-small":
        image, patch, width, depth, heads, classes = (32, 8, 64, 2, 2, 10) if tiny else (224, 16, 384, 12, 6, 1000)
        return (3, image, image), (image, patch, width, depth, heads, classes)
    if model == "swin-tiny":
        depths, heads = ((2, 2), (1, 2)) if tiny else ((2, 2, 6, 2), (3, 6, 12, 24))
        image, patch, width, window, classes = (32, 2, 32, 4, 10) if tiny else (224, 4, 96, 7, 1000)
        return (3, image, image), (image, patch, width, depths, heads, window, classes)
    layers, heads, width, context, vocabulary = (2, 2, 32, 16, 50) if tiny else (12, 12, 768, 1024, 50257)
    return (context,), (layers, heads, width, context, vocabulary, True)


# ---- the networks ------------------------------------------------------------------------------


def joined(y):
    """(B, heads, T, d) -> (B, T, heads d)"""
    return y.transpose(1, 2).flatten(2)


class Attention(networks_vit.Attention):
    def forward(self, x):
        q, k, v = networks_vit.split_heads(self.qkv(x), self.heads)
        return self.proj(joined(F.scaled_dot_product_attention(q, k, v)))


class DeiT(networks_vit.DeiT):
    """The last norm is computed for the class token alone: the head reads no other."""

    def forward(self, x):
        x = self.patch_embed(x).flatten(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x)[:, 0]))


class WindowAttention(networks_vit.WindowAttention):
    """Fused attention gets bias and mask as one sum; with `written`, attention is plain matrix products that keep the scores."""

    written = False

    def __init__(self, width, heads, side):
        super().__init__(width, heads, side)
        self.register_buffer("index", networks_vit.relative_index(side), persistent=False)

    def bias(self, mask, dtype):
        """(1 or windows, heads, T, T)"""
        table = F.embedding(self.index, self.relative_position_bias_table)  # its gradient needs no sorting
        bias = table.permute(2, 0, 1)[None].to(dtype)
        return bias if mask is None else bias + mask[:, None]

    def forward(self, x, mask):
        q, k, v = networks_vit.split_heads(self.qkv(x), self.heads)
        bias = self.bias(mask, q.dtype)
        if self.written:
            return self.proj(self.attend_written(q, k, v, bias))
        images, t = len(x) // len(bias), bias.shape[-1]
        bias = F.pad(bias, (0, -t % 16))  # the kernel wants aligned rows: padded here once, not per image
        if mask is not None:
            bias = bias.expand(images, *bias.shape).flatten(0, 1)
        return self.proj(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=bias[..., :t])))

    def attend_written(self, q, k, v, bias):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        scores = (scores.unflatten(0, (-1, len(bias))) + bias).flatten(0, 1)
        return joined(scores.softmax(dim=-1).to(v.dtype) @ v)


class SwinBlock(networks_vit.SwinBlock):
    """The mask is made once, in the first step."""

    mask = None

    def attention(self, x):  # (N, H, W, D)
        h, w = x.shape[1:3]
        if not self.shift:
            return networks_vit.from_windows(self.attn(networks_vit.to_windows(x, self.side), None), self.side, h, w)
        if self.mask is None:
            dtype = torch.get_autocast_dtype(DEVICE) if torch.is_autocast_enabled(DEVICE) else x.dtype
            self.mask = networks_vit.shift_mask(h, w, self.side, self.shift).to(x.device, dtype)
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = networks_vit.from_windows(self.attn(networks_vit.to_windows(x, self.side), self.mask), self.side, h, w)
        return torch.roll(x, (self.shift, self.shift), (1, 2))


class CausalAttention(networks_gpt.CausalAttention):
    def forward(self, x):  # (N, T, D)
        n, t, d = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(d, dim=2))
        return self.c_proj(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Gpt(networks_gpt.Gpt):
    def __init__(self, layers, heads, width, context, vocabulary, bias):
        super().__init__(layers, heads, width, context, vocabulary, bias)
        self.register_buffer("positions", torch.arange(context), persistent=False)

    def forward(self, tokens):
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"](self.positions)
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))


@contextlib.contextmanager
def replaced(module, *classes):
    """Replaces the module's classes of the same names inside the with block."""
    before = {c.__name__: getattr(module, c.__name__) for c in classes}
    for c in classes:
        setattr(module, c.__name__, c)
    try:
        yield
    finally:
        for name, c in before.items():
            setattr(module, name, c)


def deit_tiny(image, patch, classes):
    with replaced(networks_vit, Attention):
        return DeiT(image, patch, 192, 12, 3, classes)


def build(model, tiny=TINY):
    _, arguments = sizes(model, tiny)
    if model == "gpt2":
        with replaced(networks_gpt, CausalAttention):
            return Gpt(*arguments)
    with replaced(networks_vit, Attention, WindowAttention, SwinBlock):
        return (DeiT if model == "deit-small" else networks_vit.Swin)(*arguments)


# ---- measurements ------------------------------------------------------------------------------


def rate_of(model):
    """How many units a sample has, and their name: one image, or the tokens of a sequence."""
    return (sizes(model, TINY)[0][0], "tokens") if model == "gpt2" else (1, "images")


def case(model, batch, attention):
    """The network, its input and its labels, on the device."""
    shape, arguments = sizes(model, TINY)
    with torch.device(DEVICE):
        module = build(model).train()
        if model == "gpt2":
            x, labels = torch.randint(arguments[-2], (2, batch, *shape))
        else:
            x, labels = torch.randn(batch, *shape), torch.randint(arguments[-1], (batch,))
    for layer in module.modules():
        if isinstance(layer, WindowAttention):
            layer.written = attention == "written"
    return module, x, labels


def backend(attention):
    """A context in which fused attention is of this kind: PyTorch's own choice, or cuDNN's."""
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if attention == "cudnn" and not TINY else contextlib.nullcontext()


def optimizer(model, weights):
    if model == "gpt2":
        return torch.optim.AdamW(
            weights, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True, capturable=not TINY
        )
    return torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=2e-5, fused=True)


# ---- check -------------------------------------------------------------------------------------


def oracle(model):
    _, arguments = sizes(model, True)
    build_oracle = {"deit-small": networks_vit.DeiT, "swin-tiny": networks_vit.Swin, "gpt2": networks_gpt.Gpt}
    return build_oracle[model](*arguments)


def check(model, written):
    torch.manual_seed(0)
    theirs, ours = oracle(model).double(), build(model, tiny=True).double()
    ours.load_state_dict(theirs.state_dict())
    for layer in ours.modules():
        if isinstance(layer, WindowAttention):
            layer.written = written
    shape, arguments = sizes(model, True)
    x = torch.randint(arguments[-2], (2, *shape)) if model == "gpt2" else torch.randn(2, *shape).double()
    results = []
    for module in (theirs, ours):
        logits = module(x)
        logits.square().mean().backward()
        results.append([logits.detach()] + [p.grad for p in module.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def main():
    for model in MODELS:
        for written in (False, True):
            check(model, written)
    print("ok logits and gradients:", " ".join(MODELS))


if __name__ == "__main__":
    main()
