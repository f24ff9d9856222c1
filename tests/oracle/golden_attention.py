"""Golden files of MAC and SMAC on attention: curvature_attention_{layers,cases}.safetensors, described in README.md.

python3 golden_attention.py [--out DIR]
"""

import argparse
import zlib
from pathlib import Path

import numpy as np

import curvature_attention
import golden_curvature
from curvature_attention import AttentionLayer
from golden_curvature import BATCH, STEPS, few_bits, linear, poison


def fused(name, inputs, heads, head, **options):
    """q, k and v of so many heads in one weight."""
    size = heads * head
    layer = AttentionLayer(name, "attention", heads=heads, value_row=2 * size, value_rows=size, **options)
    return layer, inputs, 3 * size


SHAPES = [
    fused("qkv", 6, 2, 3, tokens=5, bias=True),
    fused("qkv_nobias", 5, 3, 2, tokens=4),
    fused("causal", 4, 2, 2, tokens=6, causal=True, bias=True),
    fused("window", 5, 2, 2, tokens=16, grid=(4, 4), side=2, relative=True),
    fused("shifted", 4, 2, 2, tokens=24, grid=(4, 6), side=2, shift=1, relative=True, bias=True),
    fused("shifted3", 3, 1, 2, tokens=54, grid=(6, 9), side=3, shift=1, bias=True),
    (AttentionLayer("v_alone", "attention", bias=True, heads=2, value_rows=6, tokens=5), 6, 6),
    (linear("proj", bias=True), 4, 3),
]
LAYERS = {layer.name: layer for layer, _, _ in SHAPES}
ALL = list(LAYERS)
FEW = ["proj", "qkv", "shifted"]


def make_layer(layer, inputs, outputs):
    """As golden_curvature's, and the columns of probabilities that x makes through random weights."""
    rng = np.random.RandomState(zlib.crc32(layer.name.encode()))
    tokens = layer.tokens if layer.kind == "attention" else 4
    x = few_bits(0.4 + 0.7 * rng.randn(STEPS, BATCH, tokens, inputs))
    p = few_bits(0.3 * rng.randn(outputs) + 0.4 * rng.randn(STEPS, BATCH, tokens, outputs))
    tensors = {"x": x, "p": p, "gw": rng.randn(STEPS, outputs, inputs), "w": rng.randn(outputs, inputs)}
    if layer.bias:
        tensors.update(gb=rng.randn(STEPS, outputs), b=rng.randn(outputs))
    tensors = {key: value.astype(np.float32) for key, value in tensors.items()}
    if layer.kind == "attention":
        tensors["columns"] = np.stack([make_columns(layer, batch, rng) for batch in x.astype(np.float64)])
    return tensors


def make_columns(layer, x, rng):
    """Weights strong enough that some tokens get most of the attention."""
    head = 4
    q, k = (
        np.einsum("nti,hid->nhtd", x, 1.5 * rng.randn(layer.heads, x.shape[-1], head)) for _ in range(2)
    )
    table = 2 * rng.randn((2 * layer.side - 1) ** 2, layer.heads) if layer.relative else None
    return layer.columns(layer.probabilities(q, k, table))


# ---- cases


class Cases(golden_curvature.Cases):
    """Of both methods; names begin with theirs."""

    def __init__(self, method, cases):
        super().__init__(method)
        self.cases = cases

    def add(self, name, layers=None, changes=None, **settings):
        layers = ALL if layers is None else layers
        super().add(f"{self.method}_{name}", layers, {"value-stat": "expectation", **(changes or {})}, **settings)


def add_method(cases):
    for stat in ("expectation", "factored", "per-head", "plain"):
        name, choice = stat.replace("-", "_"), {"value-stat": stat}
        cases.add(name, None, choice)
        cases.add(f"{name}_adaptive", None, {**choice, "damping": "adaptive"})
        cases.add(f"{name}_seldom", FEW, {**choice, "tcov": "3", "tinv": "2", "stat-decay": "0.5"})
        cases.add(f"{name}_parts", FEW, {**choice, "tcov": "1", "tinv": "1"}, parts=[1, 2], scales=[1.0, 1.0])
    for stat in ("expectation", "factored", "per-head"):
        name, choice = stat.replace("-", "_"), {"value-stat": stat, "tcov": "1"}
        # what is not finite in v's statistic alone takes q's and k's with it
        cases.add(f"{name}_bad_columns", FEW, choice, poison=[poison("columns", 3, "shifted", 50)])
        cases.add(f"{name}_bad_x", FEW, choice, poison=[poison("x", 0, "qkv", 7, "inf")])
        cases.add(f"{name}_bad_grad", FEW, {**choice, "tinv": "2"}, poison=[poison("gw", 2, "qkv", 7)])
        # proj, qkv and shifted are three numbers, however many parts they have
        cases.add(f"{name}_spread", FEW, {**choice, "tinv": "6", "refresh": "spread"})
    cases.add("coupled", FEW, {"damping-form": "coupled"})
    cases.add("kl", FEW, {"value-stat": "per-head", "kl-clip": "0.001"})


def make_cases():
    cases = {}
    mac, smac = Cases("mac", cases), Cases("smac", cases)
    add_method(mac)
    add_method(smac)
    mac.add("per_head_adaptive_coupled", FEW, {"value-stat": "per-head", "damping": "adaptive", "damping-form": "coupled"})
    smac.add("rho_half", FEW, {"damping": "0.5"})
    smac.add("per_head_scales", FEW, {"value-stat": "per-head"}, parts=[2, 1], scales=[0.5, 4.0])
    smac.add("bad_p", FEW, {"tcov": "1"}, poison=[poison("p", 3, "qkv", 3)])
    sgd = {"rule": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    adamw = {"rule": "adamw", "lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.5}
    mac.add("sgd", FEW, {"value-stat": "per-head"}, update=sgd)
    mac.add("adamw", FEW, update=adamw)
    return cases


# ---- what must hold of the oracle itself


def check_probabilities(layer):
    """Rows of T are probabilities; nobody sees what is masked; t of a sequence sums to 1."""
    rng = np.random.RandomState(1)
    q, k = (rng.randn(2, layer.heads, layer.tokens, 3) for _ in range(2))
    table = rng.randn((2 * layer.side - 1) ** 2, layer.heads) if layer.relative else None
    T = layer.probabilities(q, k, table)
    assert np.allclose(T.sum(axis=-1), 1)
    assert (T[:, ~layer.visible()[:, None].repeat(layer.heads, 1)] == 0).all()
    sums = layer.columns(T)[:, :, layer.windows()].sum(axis=-1)
    assert np.allclose(sums, 1)
    assert sorted(layer.windows().reshape(-1)) == list(range(layer.tokens))
    if layer.shift:  # a window that wraps around the grid falls apart into what lies together there
        for window, seen in zip(layer.windows(), layer.visible()):
            y, x = np.divmod(window, layer.grid[1])
            near = (abs(y[:, None] - y) < layer.side) & (abs(x[:, None] - x) < layer.side)
            assert (near == seen).all()


def check_identities():
    """Uniform T: v like q. Three layers and a fused one: the same."""
    rng = np.random.RandomState(2)
    whole = AttentionLayer("all", "attention", bias=True, heads=2, value_row=4, value_rows=2, tokens=3)
    alone = AttentionLayer("v", "attention", bias=True, heads=2, value_row=0, value_rows=2, tokens=3)
    x, p = rng.randn(4, 3, 5), rng.randn(4, 3, 6)
    gw, gb = rng.randn(6, 5), rng.randn(6)
    uniform, columns = np.full((4, 2, 3), 1 / 3), rng.dirichlet(np.ones(3), (4, 2))
    options = {"stat-decay": "0.9", "tcov": "1", "tinv": "1", "damping": "adaptive", "first-layer": "running"}

    def taken(method, layers, t, stat):
        made = curvature_attention.METHODS[method](layers, {**options, "value-stat": stat})
        for layer, rows in zip(layers, np.split(np.arange(6), [4]) if len(layers) > 1 else [np.arange(6)]):
            more = {"columns": t} if layer.kind == "attention" else {}
            made.observe(layer.name, x, p[..., rows], **more)
        split = [(gw, gb)] if len(layers) == 1 else [(gw[:4], gb[:4]), (gw[4:], gb[4:])]
        out = made.step({layer.name: pair for layer, pair in zip(layers, split)})
        return np.concatenate([out[layer.name][0] for layer in layers])

    for method in ("mac", "smac"):
        plain = taken(method, [whole], columns, "plain")
        for stat in ("expectation", "factored", "per-head"):
            assert np.allclose(taken(method, [whole], uniform, stat), plain, rtol=1e-12)
            once = taken(method, [whole], columns, stat)
            assert np.allclose(taken(method, [linear("qk", bias=True), alone], columns, stat), once, rtol=1e-12)
            assert np.allclose(once[:4], plain[:4], rtol=1e-12) and not np.allclose(once[4:], plain[4:], rtol=1e-3)


# ---- writing


def write(out):
    for layer in LAYERS.values():
        if layer.kind == "attention":
            check_probabilities(layer)
    check_identities()
    data = {layer.name: make_layer(layer, inputs, outputs) for layer, inputs, outputs in SHAPES}
    golden_curvature.write_layers(out / "curvature_attention_layers.safetensors", data, LAYERS)
    known = {"layers": LAYERS, "methods": curvature_attention.METHODS}
    path = out / "curvature_attention.safetensors"
    return golden_curvature.write_cases(path, "attention", make_cases(), data, **known)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    print("float32 strays by")
    for name, value in sorted(write(parser.parse_args().out).items(), key=lambda item: -item[1]):
        print(f"  {value:.1e} {name}")


if __name__ == "__main__":
    main()
