"""The MAC paper's Shampoo in float64: shampoo_paper.safetensors, shampoo_intended.safetensors. See README.md.

Written from docs/optimizers.md section 1 (presets): a parameter is one numpy array of any order, cut into pieces of 128; roots come
from numpy.linalg.eigh.
"""

from pathlib import Path

import numpy as np

import store
from shampoo import pieces, unfolded

EPS = 1e-12
MOST = 128
FILES = {
    "shampoo_paper": {
        "steps": 20,
        "shapes": {"matrix": (12, 12), "long": (129, 3), "conv": (4, 4, 3, 3), "tensor": (2, 65, 2), "merged": (5, 5), "bias": (7,)},
        "cases": {"paper": {}, "light": {"beta1": 0.5, "weight_decay": 0.1}},
    },
    "shampoo_intended": {
        "steps": 55,
        "shapes": {"matrix": (12, 11), "rows": (11, 12, 2), "bias": (7,)},
        "cases": {"intended": {"weight_decay": 0.05}, "light": {"beta1": 0.5}},
    },
}
EXACT = ("paper", "light")  # singular sums, whose zero eigenvalues float32 does not have: for double precision alone


def merged(shape):
    """Dimensions joined from the first on, while their product is at most 128."""
    dims, product = [], 1
    for d in shape:
        if product * d <= MOST:
            product *= d
        else:
            if product > 1:
                dims.append(product)
            product = d
    return tuple(dims + [product]) if product > 1 or not dims else tuple(dims)


class Parameter:
    def __init__(self, w, settings, intended):
        self.settings, self.intended, self.t = settings, intended, 0
        self.w = w.reshape(merged(w.shape)).copy()
        self.cuts = pieces(self.w.shape, MOST)
        self.sums = [[EPS * np.eye(n) for n in self.w[cut].shape] for cut in self.cuts]
        self.roots = [[np.eye(n) for n in self.w[cut].shape] for cut in self.cuts]
        self.m = np.zeros_like(self.w)

    def take_root(self, cut, mode):
        s = self.sums[cut][mode]
        s += EPS * np.linalg.eigvalsh(s)[-1] * np.eye(len(s))
        values, vectors = np.linalg.eigh(s)
        self.roots[cut][mode] = np.eye(1) if len(s) == 1 else (vectors * values ** (-1 / (2 * self.w.ndim))) @ vectors.T

    def direction(self, g):
        p = g.copy()
        if self.w.ndim == 1:
            return p
        for c, cut in enumerate(self.cuts):
            for mode in range(self.w.ndim):
                if self.t % (5 if self.intended else 1) == 0:
                    self.sums[c][mode] += unfolded(g[cut], mode) @ unfolded(g[cut], mode).T
                if self.t % (50 if self.intended else 1) == 0:
                    self.take_root(c, mode)
                p[cut] = np.moveaxis(np.tensordot(self.roots[c][mode], p[cut], axes=(1, mode)), 0, mode)
        return p

    def step(self, grad):
        lr, mu, decay = self.settings["lr"], self.settings["beta1"], self.settings["weight_decay"]
        self.t += 1
        g = grad.reshape(self.w.shape)
        p = self.direction(g)
        p = p * np.linalg.norm(g) / (np.linalg.norm(p) + 1e-16)
        if self.intended:
            p = p + decay * self.w
            self.m = mu * self.m + p
            self.w = self.w - lr * (mu * self.m + p)
            return
        self.m = mu * self.m + p
        self.m = mu * self.m + p
        self.w = self.w - lr * self.m


def make_problem(shapes, steps):
    rng = np.random.default_rng(34)
    initial = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    grads = {name: rng.standard_normal((steps, *shape)).astype(np.float32) for name, shape in shapes.items()}
    return initial, grads


def check_identities():
    assert merged((16, 16, 3, 3)) == (16, 48, 3) and merged((16, 3, 3, 3)) == (48, 9) and merged((5, 5)) == (25,)
    assert merged((256, 10)) == (256, 10) and merged((1, 1)) == (1,) and merged((10, 64)) == (10, 64)
    rng = np.random.default_rng(5)
    g = rng.standard_normal((12, 12)) + 6 * np.eye(12)
    rule = Parameter(np.zeros((12, 12)), {"lr": 1.0, "beta1": 0.0, "weight_decay": 0.0}, False)
    rule.step(g)
    left, _, right = np.linalg.svd(g)
    assert np.allclose(rule.w, -left @ right * np.linalg.norm(g) / np.sqrt(12))


def write(out):
    check_identities()
    for file, problem in FILES.items():
        intended = file == "shampoo_intended"
        initial, grads = make_problem(problem["shapes"], problem["steps"])
        tensors = {f"initial.{name}": value for name, value in initial.items()}
        tensors.update({f"grad.{name}": value for name, value in grads.items()})
        metadata = {}
        for case, changes in problem["cases"].items():
            settings = {"lr": 0.02, "beta1": 0.9, "weight_decay": 0.0, **changes}
            preset = "mac-paper-intended" if intended else "mac-paper"
            metadata[case] = {
                "lr": settings["lr"],
                "weight_decay": settings["weight_decay"],
                "exact": not intended and case in EXACT,
                "options": [f"beta1={settings['beta1']}", f"shampoo-preset={preset}"],
            }
            for name, w in initial.items():
                rule = Parameter(w.astype(np.float64), settings, intended)
                for grad in grads[name]:
                    rule.step(grad.astype(np.float64))
                tensors[f"{case}.{name}"] = rule.w.reshape(w.shape)
        store.save(out / f"{file}.safetensors", tensors, {"cases": list(problem["cases"]), **metadata})


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
