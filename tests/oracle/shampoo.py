"""Shampoo in float64: shampoo_steps.safetensors. See README.md.

Written from docs/optimizers.md section 1: blocks are numpy arrays of any order, S_i and R_i are lists by mode, and roots come from
numpy.linalg.eigh.
"""

import itertools
import math
from pathlib import Path

import numpy as np

import store

STEPS = 20
SHAPES = {"matrix": (24, 10), "wide": (9, 30), "square": (14, 14), "conv": (8, 3, 3, 3), "bias": (13,), "scalar": (1,)}
DEFAULTS = {
    "lr": 0.05,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta3": -1.0,
    "shampoo-beta": 1.0,
    "shampoo-eps": 1e-2,
    "shampoo-exponent": -1.0,
    "shampoo-block": 1024,
    "shampoo-freq": 1,
    "shampoo-start": 0,
    "graft": "none",
    "graft-beta": 0.0,
    "graft-eps": 1e-8,
    "decay": "decoupled",
}
CASES = {
    "defaults": {},
    "blocks_of_8": {"shampoo-block": 8},
    "blocks_of_16": {"shampoo-block": 16, "shampoo-beta": 0.9, "weight_decay": 0.1},
    "blocks_of_2": {"shampoo-block": 2, "shampoo-beta": 0.95},
    "blocks_of_1": {"shampoo-block": 1, "graft": "sgd"},
    "seldom": {"shampoo-block": 16, "shampoo-freq": 3, "shampoo-beta": 0.9},
    "late": {"shampoo-block": 16, "shampoo-freq": 4, "shampoo-start": 5, "shampoo-beta": 0.99, "graft": "adam"},
    "graft_sgd": {"shampoo-block": 16, "graft": "sgd", "decay": "coupled", "weight_decay": 0.1},
    "graft_adagrad": {"shampoo-block": 16, "graft": "adagrad", "shampoo-freq": 2},
    "graft_rmsprop": {"shampoo-block": 16, "graft": "rmsprop", "weight_decay": 0.1},
    "graft_adam": {"shampoo-block": 16, "graft": "adam", "graft-beta": 0.9, "shampoo-beta": 0.99, "lr": 0.01},
    "no_momentum": {"shampoo-block": 16, "beta1": 0.0, "decay": "coupled", "weight_decay": 0.2},
    "ahead": {"shampoo-block": 16, "beta3": 0.5, "shampoo-beta": 0.9},
    "exponent": {"shampoo-block": 16, "shampoo-exponent": 0.4, "shampoo-beta": 0.9},
    "exponent_zero": {"shampoo-block": 16, "shampoo-exponent": 0.0},
    "tiny_eps": {"shampoo-block": 16, "shampoo-eps": 1e-12, "graft": "adam", "lr": 0.01},
}
EXACT = ("tiny_eps",)  # where float32 has other eigenvalues than 0: for double precision alone


def merged(shape, most):
    """Dimensions of the tensor that is cut: from the last one backwards, joined while the product is at most the block."""
    dims = []
    for d in reversed([d for d in shape if d != 1] or [1]):
        if dims and dims[-1] * d <= most:
            dims[-1] *= d
        else:
            dims.append(d)
    return tuple(reversed(dims))


def pieces(shape, most):
    """Slices of every block."""
    cuts = [[slice(i, min(i + most, d)) for i in range(0, d, most)] for d in shape]
    return list(itertools.product(*cuts))


def unfolded(x, mode):
    return np.moveaxis(x, mode, 0).reshape(x.shape[mode], -1)


def inverse_root(s, eps, exponent):
    values, vectors = np.linalg.eigh(s + eps * np.eye(len(s)))
    if values[0] < eps:
        values = values + (eps - values[0])
    return (vectors * values**-exponent) @ vectors.T


class Block:
    def __init__(self, w, settings):
        self.s = settings
        self.factors = [np.zeros((n, n)) for n in w.shape]
        self.roots = [np.eye(n) for n in w.shape]
        self.m, self.v = np.zeros_like(w), np.zeros_like(w)

    def direction(self, g, w, t):
        s = self.s
        beta1, beta2 = s["beta1"], s["shampoo-beta"]
        beta3 = beta1 if s["beta3"] < 0 else s["beta3"]
        start = s["shampoo-start"] or s["shampoo-freq"]
        if s["decay"] == "coupled":
            g = g + s["weight_decay"] * w
        for i, old in enumerate(self.factors):
            product = unfolded(g, i) @ unfolded(g, i).T
            self.factors[i] = old + product if beta2 == 1 else beta2 * old + (1 - beta2) * product
        graft, beta_g = s["graft"], s["graft-beta"] or {"adam": 0.999, "rmsprop": 0.99}.get(s["graft"], 1.0)
        self.v = self.v + g * g if graft == "adagrad" else beta_g * self.v + (1 - beta_g) * g * g
        if t == start or (t > start and t % s["shampoo-freq"] == 0):
            exponent = 1 / (2 * g.ndim) if s["shampoo-exponent"] < 0 else s["shampoo-exponent"]
            correction = 1 if beta2 == 1 else 1 - beta2**t
            self.roots = [inverse_root(x / correction, s["shampoo-eps"], exponent) for x in self.factors]
        average = g
        if beta1 > 0:
            average = (beta3 * self.m + (1 - beta3) * g) / (1 - beta3 * beta1 ** (t - 1))
            self.m = beta1 * self.m + (1 - beta1) * g
        grafted = average
        if graft in ("adagrad", "rmsprop"):
            grafted = average / (np.sqrt(self.v) + s["graft-eps"])
        elif graft == "adam":
            grafted = average / (np.sqrt(self.v / (1 - beta_g**t)) + s["graft-eps"])
        if graft != "none" and t < start:
            return grafted
        p = average
        for i, root in enumerate(self.roots):
            p = np.moveaxis(np.tensordot(root, p, axes=(1, i)), 0, i)
        return p if graft == "none" else p * np.linalg.norm(grafted) / (np.linalg.norm(p) + 1e-16)


class Shampoo:
    """One parameter."""

    def __init__(self, w, settings):
        self.settings, self.t = settings, 0
        self.w = w.reshape(merged(w.shape, settings["shampoo-block"])).copy()
        self.cuts = pieces(self.w.shape, settings["shampoo-block"])
        self.blocks = [Block(self.w[cut], settings) for cut in self.cuts]

    def step(self, grad):
        s, g = self.settings, grad.reshape(self.w.shape)
        self.t += 1
        for cut, block in zip(self.cuts, self.blocks):
            p = block.direction(g[cut], self.w[cut], self.t)
            if s["decay"] == "decoupled":
                p = p + s["weight_decay"] * self.w[cut]
            self.w[cut] = self.w[cut] - s["lr"] * p


# ---- the file --------------------------------------------------------------------------------------


def make_problem():
    rng = np.random.default_rng(21)
    initial, grads = {}, {}
    for name, shape in SHAPES.items():
        initial[name] = rng.standard_normal(shape).astype(np.float32)
        constant = rng.standard_normal(shape)
        grads[name] = (0.3 * constant + rng.standard_normal((STEPS, *shape))).astype(np.float32)
    return initial, grads


def run(initial, grads, settings):
    ends = {}
    for name, w in initial.items():
        rule = Shampoo(w.astype(np.float64), settings)
        for grad in grads[name]:
            rule.step(grad.astype(np.float64))
        ends[name] = rule.w.reshape(w.shape)
    return ends


def check_identities():
    rng = np.random.default_rng(5)
    g, settings = rng.standard_normal((6, 4)), {**DEFAULTS, "beta1": 0.0, "shampoo-eps": 0.0, "shampoo-block": 6}
    left, _, right = np.linalg.svd(g[:4], full_matrices=False)
    assert np.allclose(Block(g[:4], settings).direction(g[:4], g[:4], 1), left @ right)
    assert merged((16, 3, 3, 3), 1024) == (432,) and merged((5, 5), 1024) == (25,)
    assert merged((512, 512, 3, 3), 1024) == (512, 512, 9) and merged((1, 1), 8) == (1,)
    length = np.linalg.norm(Block(g, {**settings, "shampoo-eps": 1e-8, "graft": "sgd"}).direction(g, g, 1))
    assert np.allclose(length, np.linalg.norm(g))


def write(out):
    check_identities()
    initial, grads = make_problem()
    tensors = {f"initial.{name}": value for name, value in initial.items()}
    tensors.update({f"grad.{name}": value for name, value in grads.items()})
    metadata = {}
    for case, changes in CASES.items():
        settings = {**DEFAULTS, **changes}
        options = [f"{key}={value:.17g}" if isinstance(value, float) else f"{key}={value}" for key, value in settings.items()]
        metadata[case] = {
            "lr": settings["lr"],
            "weight_decay": settings["weight_decay"],
            "exact": case in EXACT,
            "options": [o for o in options if not o.startswith(("lr=", "weight_decay="))],
        }
        for name, end in run(initial, grads, settings).items():
            tensors[f"{case}.{name}"] = end
    store.save(out / "shampoo_steps.safetensors", tensors, {"cases": list(CASES), **metadata})


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
