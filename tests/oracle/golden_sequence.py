"""Cases of the operations of transformers: attention as Swin, timm and nanoGPT write it, with the
probabilities explicit; embeddings, tokens, patch merging, stochastic depth.

Windows are cut out of the rolled image and masked by painting its regions, as Swin's code does
it, and the column means are taken from the explicit matrix of probabilities.
"""

import itertools

import torch
import torch.nn.functional as F

import philox

DROPOUT = 4  # the purpose of these draws, part of the generator's counter
KEY = {"seed": 0x1234567, "step": 7, "sample0": 3}  # of every case that drops


def random(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


# ---- dropout ---------------------------------------------------------------------------------------


def kept(number, drop, index, word):
    """1 / (1 - drop) or 0: word of draw index of the net's dropout with this number."""
    counter = [index & philox.MASK, index >> 32, 256 * KEY["step"] + number, DROPOUT]
    uniform = philox.philox4x32(counter, [KEY["seed"], 0])[word] / 2**32
    return 1 / (1 - drop) if uniform >= drop else 0.0


def attention_factors(samples, heads, tokens, number, drop):
    """(N, heads, T, T): what each probability is multiplied by."""
    factors = torch.empty(samples, heads, tokens, tokens, dtype=torch.float64)
    for n, h, query, key in itertools.product(*map(range, factors.shape)):
        row = ((KEY["sample0"] + n) * heads + h) * tokens + query
        factors[n, h, query, key] = kept(number, drop, row * -(-tokens // 4) + key // 4, key % 4)
    return factors


def add_dropout(cases):
    for name, shape, drop, number, per_sample in [
        ("dropout", (2, 3, 5), 0.3, 6, False),
        ("drop_path", (9, 2, 3), 0.4, 2, True),
    ]:
        factor = torch.empty(shape, dtype=torch.float64)
        sample = factor[0].numel()
        for i in range(factor.numel()):
            place = KEY["sample0"] + i // sample if per_sample else KEY["sample0"] * sample + i
            factor.view(-1)[i] = kept(number, drop, place // 4, place % 4)
        settings = {"op": "dropout", "drop": drop, "number": number, "per_sample": per_sample, **KEY}
        cases.add(name, settings, lambda x: x * factor, {"x": random(cases.rng(), *shape)})


# ---- attention -------------------------------------------------------------------------------------


def attend(qkv, heads, bias=None, factors=None):
    """qkv (B, T, 3D), bias (..., heads, T, T) -> y (B, T, D), probabilities (B, heads, T, T)."""
    batch, tokens, width = qkv.shape
    q, k, v = qkv.reshape(batch, tokens, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    probabilities = scores.softmax(-1)
    weights = probabilities if factors is None else probabilities * factors
    return (weights @ v).transpose(1, 2).reshape(batch, tokens, width // 3), probabilities


def partition(x, side):
    """(N, H, W, C) -> (N, windows, side * side, C)."""
    n, h, w, c = x.shape
    x = x.reshape(n, h // side, side, w // side, side, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(n, -1, side * side, c)


def reverse(windows, side, grid):
    """The other way round."""
    n, c = windows.shape[0], windows.shape[-1]
    x = windows.reshape(n, grid[0] // side, grid[1] // side, side, side, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(n, *grid, c)


def shift_mask(grid, side, shift):
    """(windows, 1, side^2, side^2): -infinity between tokens of different regions."""
    image = torch.zeros(1, *grid, 1, dtype=torch.float64)
    parts = (slice(0, -side), slice(-side, -shift), slice(-shift, None))
    for region, (rows, columns) in enumerate(itertools.product(parts, parts)):
        image[:, rows, columns] = region
    regions = partition(image, side).squeeze(0).squeeze(-1)
    differ = regions[:, :, None] != regions[:, None, :]
    return torch.zeros(differ.shape, dtype=torch.float64).masked_fill(differ, -torch.inf)[:, None]


def relative_index(side):
    """(side^2, side^2): the row of the bias table for each query and key of a window."""
    at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    delta = at[:, :, None] - at[:, None, :] + side - 1
    return delta[0] * (2 * side - 1) + delta[1]


def window_attend(qkv, table, heads, grid, side, shift, factors=None):
    """-> y (N, T, D), columns (N, heads, T), in the tokens' own order."""
    n, tokens, width = qkv.shape
    windows = partition(torch.roll(qkv.reshape(n, *grid, width), (-shift, -shift), (1, 2)), side)
    bias = table[relative_index(side)].permute(2, 0, 1)  # (heads, side^2, side^2)
    if shift:
        bias = (bias + shift_mask(grid, side, shift)).repeat(n, 1, 1, 1)
    if factors is not None:
        number = torch.arange(tokens).reshape(1, *grid, 1)
        ids = partition(torch.roll(number, (-shift, -shift), (1, 2)), side)[0, ..., 0]
        factors = factors[:, :, ids[:, :, None], ids[:, None, :]].transpose(1, 2).flatten(0, 1)
    y, probabilities = attend(windows.flatten(0, 1), heads, bias, factors)
    columns = probabilities.mean(-2).transpose(1, 2)  # (N * windows, side^2, heads)

    def back(x):
        image = reverse(x.reshape(n, -1, side * side, x.shape[-1]), side, grid)
        return torch.roll(image, (shift, shift), (1, 2)).reshape(n, tokens, -1)

    return back(y), back(columns).transpose(1, 2)


PLAIN = [
    # name, samples, tokens, heads, width of a head, causal, drop
    ("attention", 2, 13, 2, 8, False, 0.0),
    ("attention_t1", 2, 1, 1, 4, False, 0.0),
    ("attention_t50", 1, 50, 3, 16, False, 0.0),
    ("attention_causal", 2, 17, 2, 8, True, 0.0),
    ("attention_causal_t64", 1, 64, 1, 32, True, 0.0),
    ("attention_drop", 2, 10, 2, 4, False, 0.25),
    ("attention_causal_drop", 2, 13, 2, 4, True, 0.2),
]

WINDOWS = [
    # name, samples, grid, side, shift, heads, width of a head, drop
    ("window", 2, (4, 6), 2, 0, 2, 4, 0.0),
    ("window_shift", 2, (6, 9), 3, 1, 2, 4, 0.0),
    ("window_shift_even", 1, (8, 8), 4, 2, 1, 8, 0.0),
    ("window_7_shift", 1, (14, 7), 7, 3, 1, 8, 0.0),
    ("window_whole", 2, (5, 5), 5, 0, 3, 4, 0.0),
    ("window_shift_drop", 2, (4, 4), 2, 1, 2, 4, 0.3),
]


def settings_of(heads, drop, number, **more):
    settings = {"op": "attention", "heads": heads, **more}
    return {**settings, "drop": drop, "number": number, **KEY} if drop else settings


def add_attention(cases):
    for number, (name, samples, tokens, heads, width, causal, drop) in enumerate(PLAIN):
        rng = cases.rng()
        qkv = 1.5 * random(rng, samples, tokens, 3 * heads * width)
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        bias = torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(future, -torch.inf) if causal else None
        factors = attention_factors(samples, heads, tokens, number, drop) if drop else None
        columns = attend(qkv, heads, bias)[1].mean(-2)
        settings = settings_of(heads, drop, number, causal=causal)
        cases.add(name, settings, lambda x: attend(x, heads, bias, factors)[0], {"x": qkv}, {"columns": columns})


def add_windows(cases):
    for number, (name, samples, grid, side, shift, heads, width, drop) in enumerate(WINDOWS):
        rng, tokens = cases.rng(), grid[0] * grid[1]
        inputs = {
            "x": 1.5 * random(rng, samples, tokens, 3 * heads * width),
            "w": random(rng, (2 * side - 1) ** 2, heads),
        }
        factors = attention_factors(samples, heads, tokens, number, drop) if drop else None
        columns = window_attend(inputs["x"], inputs["w"], heads, grid, side, shift)[1]
        settings = settings_of(heads, drop, number, grid=list(grid), side=side, shift=shift)
        cases.add(
            name,
            settings,
            lambda x, w: window_attend(x, w, heads, grid, side, shift, factors)[0],
            inputs,
            {"columns": columns},
        )


# ---- the rest --------------------------------------------------------------------------------------


def add_embedding(cases):
    rng = cases.rng()
    tokens = torch.randint(5, (3, 4), generator=rng)
    cases.add(
        "embedding",
        {"op": "embedding"},
        lambda w, b: F.embedding(tokens, w) + F.embedding(torch.arange(4), b),
        {"w": random(rng, 6, 7), "b": random(rng, 5, 7)},  # token 5 and position 4 do not occur
        {"x": tokens.int()},
    )


def merge(x, grid):
    """timm's PatchMerging up to its norm."""
    n, _, c = x.shape
    x = x.reshape(n, grid[0] // 2, 2, grid[1] // 2, 2, c)
    return x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)


def add_sequence(cases):
    x = random(cases.rng(), 2, 3, 4, 5)
    cases.add("tokens", {"op": "tokens"}, lambda x: x.flatten(2).transpose(1, 2), {"x": x})
    rng = cases.rng()
    inputs = {"x": random(rng, 3, 4, 5), "w": random(rng, 1, 1, 5), "b": random(rng, 1, 5, 5)}
    cases.add(
        "class_token",
        {"op": "class_token"},
        lambda x, w, b: torch.cat([w.expand(x.shape[0], -1, -1), x], 1) + b,
        inputs,
    )
    x = random(cases.rng(), 2, 24, 3)
    cases.add("patch_merge", {"op": "patch_merge", "grid": [4, 6]}, lambda x: merge(x, (4, 6)), {"x": x})
    x = random(cases.rng(), 2, 5, 3)
    cases.add("token_mean", {"op": "token_mean"}, lambda x: x.mean(1), {"x": x})
    x = random(cases.rng(), 2, 5, 3)
    cases.add("token_first", {"op": "token_first"}, lambda x: x[:, 0], {"x": x})


def add_rows(cases):
    """Cross entropy of texts: the mean over all tokens of all samples."""
    for name, smoothing, soft in [("softmax_ce_rows", 0.1, False), ("softmax_ce_rows_soft", 0.0, True)]:
        rng, n, tokens, classes = cases.rng(), 2, 3, 7
        x = random(rng, n, tokens, classes)
        labels = torch.randint(classes, (n, tokens), generator=rng)
        target = random(rng, n, tokens, classes).softmax(-1) if soft else labels
        flat = target.flatten(0, 1)
        settings = {
            "op": "softmax_cross_entropy",
            "target": "soft" if soft else "labels",
            "label_smoothing": smoothing,
            "reduction": "mean",
        }
        cases.add(
            name,
            settings,
            lambda x: F.cross_entropy(x.flatten(0, 1), flat, label_smoothing=smoothing),
            {"x": x},
            {"target": target if soft else target.int()},
        )


ALL = (add_dropout, add_attention, add_windows, add_embedding, add_sequence, add_rows)
