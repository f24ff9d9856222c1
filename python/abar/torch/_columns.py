"""How much each token is attended to: column means of attention's probabilities (methods.md section 2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

CHUNK = 1 << 22  # probabilities in memory at a time, at most


def columns_of(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """(N, heads, S): means over the queries of the probabilities that scaled_dot_product_attention has, from its
    arguments, a part of the probabilities at a time."""
    q, k = (t.detach() if t.dtype == torch.float64 else t.detach().float() for t in (query, key))
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    shape, length, tokens = q.shape[:-2], q.shape[-2], k.shape[-2]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if causal:
        mask = torch.ones(length, tokens, dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dim() > 2:
        mask = mask.detach().expand(*shape, length, tokens)
        mask = mask if mask.dim() == 4 else mask.reshape(-1, *mask.shape[-3:])
    q, k = q.reshape(-1, *q.shape[-3:]), k.reshape(-1, *k.shape[-3:])
    sums = q.new_zeros(q.shape[0], q.shape[1], tokens)
    sequences = max(1, CHUNK // max(1, length * tokens))
    queries = max(1, min(length, CHUNK // max(1, tokens)))
    for n in range(0, q.shape[0], sequences):
        for head in range(q.shape[1]):
            for first in range(0, length, queries):
                part = slice(first, first + queries)
                scores = q[n : n + sequences, head, part] @ k[n : n + sequences, head].transpose(-1, -2) * scale
                if mask is not None:
                    seen = mask[part] if mask.dim() == 2 else mask[n : n + sequences, head, part]
                    scores = scores.masked_fill(~seen, -math.inf) if seen.dtype == torch.bool else scores + seen
                nothing = scores.amax(-1, keepdim=True) == -math.inf  # is seen: then there is no attention either
                sums[n : n + sequences, head] += scores.softmax(-1).masked_fill(nothing, 0.0).sum(-2)
    return sums / length


def fit_columns(columns: Tensor, heads: int, numbers: int) -> Tensor | None:
    """(N, heads, S) of an input with so many rows; None: they do not belong together. Grouped queries are averaged."""
    tokens = columns.shape[-1]
    if tokens == 0 or numbers % tokens:
        return None
    sequences = numbers // tokens
    if columns.numel() % (sequences * heads * tokens):
        return None
    return columns.reshape(sequences, heads, -1, tokens).mean(2)
