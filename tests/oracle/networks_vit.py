"""Vision transformers as PyTorch modules: DeiT and Swin, with timm's names (0.9 and later).

Attention is written out, scores, softmax and all; Swin's windows are cut out of a rolled image, and which tokens of a window
may see each other is found by labelling the image's parts before it is rolled. Run as a script to check the lists of names.
"""

import torch
import torch.nn.functional as F
from torch import nn


def initialise(module):
    """timm's: linear weights normal 0.02 (cut at 2, which is never), biases 0; the patch embedding keeps PyTorch's."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def split_heads(qkv, heads):
    """(B, T, 3 D) -> q, k, v of shape (B, heads, T, D / heads)."""
    b, t, d3 = qkv.shape
    return qkv.reshape(b, t, 3, heads, d3 // (3 * heads)).permute(2, 0, 3, 1, 4)


def attend(q, k, v, bias=None):
    """softmax(q k^T / sqrt(d) + bias) v, heads joined: (B, heads, T, d) -> (B, T, heads d)."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class PatchEmbed(nn.Module):
    """(N, C, H, W) -> (N, H/patch, W/patch, D)"""

    def __init__(self, patch, width, norm, channels=3):
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)
        self.norm = nn.LayerNorm(width, eps=1e-5) if norm else nn.Identity()

    def forward(self, x):
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


# ---- DeiT --------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return self.proj(attend(*split_heads(self.qkv(x), self.heads)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class DeiT(nn.Module):
    def __init__(self, image, patch, width, depth, heads, classes):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.patch_embed = PatchEmbed(patch, width, norm=False)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self.apply(initialise)
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x):
        x = self.patch_embed(x).flatten(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


# ---- Swin --------------------------------------------------------------------------------------


def to_windows(x, side):
    """(N, H, W, D) -> (N * windows, side * side, D)"""
    n, h, w, d = x.shape
    x = x.reshape(n, h // side, side, w // side, side, d).transpose(2, 3)
    return x.reshape(-1, side * side, d)


def from_windows(x, side, h, w):
    x = x.reshape(-1, h // side, w // side, side, side, x.shape[-1]).transpose(2, 3)
    return x.reshape(-1, h, w, x.shape[-1])


def relative_index(side):
    """(T, T): which row of the table holds the bias of query i and key j; rows first, each offset from 0 to 2 side - 2."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    y, x = y.flatten(), x.flatten()
    dy, dx = y[:, None] - y[None, :], x[:, None] - x[None, :]
    return (dy + side - 1) * (2 * side - 1) + dx + side - 1


def shift_mask(h, w, side, shift):
    """(windows, T, T): -inf where a window of the rolled image joins parts that did not touch before.

    Rolling by -shift brings the first shift rows behind the last ones. A window that holds both has two parts, and
    likewise for columns: a part is told by whether it came around, vertically and horizontally.
    """
    came_around = torch.zeros(1, h, w, 2)
    came_around[:, :shift, :, 0] = 1
    came_around[:, :, :shift, 1] = 1
    part = to_windows(torch.roll(came_around, (-shift, -shift), (1, 2)), side)  # (windows, T, 2)
    strange = (part[:, :, None] != part[:, None, :]).any(dim=-1)
    return torch.zeros(strange.shape).masked_fill(strange, float("-inf"))


class WindowAttention(nn.Module):
    def __init__(self, width, heads, side):
        super().__init__()
        self.heads, self.side = heads, side
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x, mask):
        """x (N * windows, T, D); mask (windows, T, T) or None."""
        bias = self.relative_position_bias_table[relative_index(self.side)].permute(2, 0, 1)  # (heads, T, T)
        if mask is not None:
            bias = bias + mask.to(x.dtype)[:, None]  # (windows, heads, T, T)
            bias = bias.repeat(len(x) // len(mask), 1, 1, 1)
        return self.proj(attend(*split_heads(self.qkv(x), self.heads), bias))


class SwinBlock(nn.Module):
    def __init__(self, width, heads, side, shift):
        super().__init__()
        self.side, self.shift = side, shift
        self.norm1 = nn.LayerNorm(width, eps=1e-5)
        self.attn = WindowAttention(width, heads, side)
        self.norm2 = nn.LayerNorm(width, eps=1e-5)
        self.mlp = Mlp(width)

    def attention(self, x):  # (N, H, W, D)
        h, w = x.shape[1:3]
        mask = shift_mask(h, w, self.side, self.shift) if self.shift else None
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = from_windows(self.attn(to_windows(x, self.side), mask), self.side, h, w)
        return torch.roll(x, (self.shift, self.shift), (1, 2))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """(N, H, W, C) -> (N, H/2, W/2, 2 C): the four of a square side by side, down the columns first."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(4 * width, eps=1e-5)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x):
        corners = [x[:, dy::2, dx::2] for dx in (0, 1) for dy in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, dim=-1)))


class SwinStage(nn.Module):
    def __init__(self, width, depth, heads, grid, window, merge):
        super().__init__()
        side = min(grid, window)
        shifts = [side // 2 if b % 2 and grid > window else 0 for b in range(depth)]
        self.downsample = PatchMerging(width // 2) if merge else nn.Identity()
        self.blocks = nn.Sequential(*(SwinBlock(width, heads, side, shift) for shift in shifts))

    def forward(self, x):
        return self.blocks(self.downsample(x))


class Head(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.fc = nn.Linear(width, classes)

    def forward(self, x):  # (N, H, W, D)
        return self.fc(x.mean(dim=(1, 2)))


class Swin(nn.Module):
    def __init__(self, image, patch, width, depths, heads, window, classes):
        super().__init__()
        self.patch_embed = PatchEmbed(patch, width, norm=True)
        stages, grid = [], image // patch
        for s, (depth, count) in enumerate(zip(depths, heads)):
            stages.append(SwinStage(width << s, depth, count, grid >> s, window, merge=s > 0))
        self.layers = nn.Sequential(*stages)
        last = width << (len(depths) - 1)
        self.norm = nn.LayerNorm(last, eps=1e-5)
        self.head = Head(last, classes)
        self.apply(initialise)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.patch_embed(x))))


# ---- by name, and timm's lists -----------------------------------------------------------------


def deit(name, image=224, patch=16, classes=1000):
    heads = {"deit-tiny": 3, "deit-small": 6}[name]
    return DeiT(image, patch, 64 * heads, 12, heads, classes)


def swin_tiny(image=224, patch=4, window=7, classes=1000):
    return Swin(image, patch, 96, (2, 2, 6, 2), (3, 6, 12, 24), window, classes)


def affine(name, out, in_):
    return [(f"{name}.weight", (out, *in_)), (f"{name}.bias", (out,))]


def timm_deit(width, tokens):
    """timm's deit_{tiny,small}_patch16_224: names and shapes as its state dict has them."""
    rows = [("cls_token", (1, 1, width)), ("pos_embed", (1, tokens, width))]
    rows += affine("patch_embed.proj", width, (3, 16, 16))
    for b in range(12):
        rows += affine(f"blocks.{b}.norm1", width, ())
        rows += affine(f"blocks.{b}.attn.qkv", 3 * width, (width,))
        rows += affine(f"blocks.{b}.attn.proj", width, (width,))
        rows += affine(f"blocks.{b}.norm2", width, ())
        rows += affine(f"blocks.{b}.mlp.fc1", 4 * width, (width,))
        rows += affine(f"blocks.{b}.mlp.fc2", width, (4 * width,))
    return rows + affine("norm", width, ()) + affine("head", 1000, (width,))


def timm_swin_tiny():
    """timm's swin_tiny_patch4_window7_224, 0.9 and later: merging opens a stage, no index and no mask is stored."""
    rows = affine("patch_embed.proj", 96, (3, 4, 4)) + affine("patch_embed.norm", 96, ())
    for s, (depth, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
        width = 96 * 2**s
        if s > 0:
            rows += affine(f"layers.{s}.downsample.norm", 2 * width, ())
            rows += [(f"layers.{s}.downsample.reduction.weight", (width, 2 * width))]
        for b in range(depth):
            at = f"layers.{s}.blocks.{b}"
            rows += affine(f"{at}.norm1", width, ())
            rows += [(f"{at}.attn.relative_position_bias_table", (169, heads))]
            rows += affine(f"{at}.attn.qkv", 3 * width, (width,)) + affine(f"{at}.attn.proj", width, (width,))
            rows += affine(f"{at}.norm2", width, ())
            rows += affine(f"{at}.mlp.fc1", 4 * width, (width,)) + affine(f"{at}.mlp.fc2", width, (4 * width,))
    return rows + affine("norm", 768, ()) + affine("head.fc", 1000, (768,))


def check_names():
    lists = {
        "deit-tiny": (deit("deit-tiny"), timm_deit(192, 197)),
        "deit-small": (deit("deit-small"), timm_deit(384, 197)),
        "swin-tiny": (swin_tiny(), timm_swin_tiny()),
    }
    for name, (module, expected) in lists.items():
        found = [(key, tuple(value.shape)) for key, value in module.state_dict().items()]
        assert found == expected, f"{name}: names or shapes are not timm's"


if __name__ == "__main__":
    check_names()
    print("ok names and shapes: deit-tiny deit-small swin-tiny")
