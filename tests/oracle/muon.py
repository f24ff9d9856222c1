"""Muon in float64: muon_orthogonalise.safetensors and muon_steps.safetensors. See README.md.

A block's O comes from its singular values: O = U p(s / max(safety |u|, eps)) V^T, p the polynomials
of all steps, one after the other. The iteration on matrices, which abar and torch.optim.Muon do,
must give the same; check_muon.py compares with torch.optim.Muon itself.
"""

import math
from pathlib import Path

import numpy as np

import store

EPS = 1e-7
NORMUON_EPS = 1e-10
ORIGINAL = (3.4445, -4.7750, 2.0315)
SETS = {  # name: triples, steps, safety
    "original": ([ORIGINAL], 5, 1.0),
    "quintic": (
        [
            (4.0848, -6.8946, 2.9270),
            (3.9505, -6.3029, 2.6377),
            (3.7418, -5.5913, 2.3037),
            (2.8769, -3.1427, 1.2046),
            (2.8366, -3.0525, 1.2012),
        ],
        5,
        1.0,
    ),
    "polar-express": (
        [
            (8.156554524902461, -22.48329292557795, 15.878769915207462),
            (4.042929935166739, -2.808917465908714, 0.5000178451051316),
            (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
            (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
            (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
        ],
        5,
        1.02,
    ),
    "exact": ([(2, -1.5, 0.5)], 12, 1.0),
    "cubic": ([(1.5, -0.5, 0)], 12, 1.0),
}


def triples(name, steps=0):
    """The triple of every step; fewer steps cut the set's list, more repeat its last one."""
    listed, own, _ = SETS[name]
    return [listed[min(k, len(listed) - 1)] for k in range(steps or own)]


def orthogonalise(u, name="original", steps=0):
    """O of a matrix, by its singular values."""
    left, values, right = np.linalg.svd(u, full_matrices=False)
    values = polynomial(values / max(SETS[name][2] * np.linalg.norm(u), EPS), name, steps)
    return (left * values) @ right


def polynomial(x, name, steps=0):
    for c1, c3, c5 in triples(name, steps):
        x = c1 * x + c3 * x**3 + c5 * x**5
    return x


def condition(u, name):
    """How much larger the relative change of O is than that of the singular values that caused it."""
    x, h = np.linalg.svd(u, compute_uv=False) / (SETS[name][2] * np.linalg.norm(u)), 1e-6
    change = (polynomial(x * (1 + h), name) - polynomial(x * (1 - h), name)) / (2 * h)
    return np.linalg.norm(change) / np.linalg.norm(polynomial(x, name))


def iterate(u, name="original", steps=0):
    """O of a matrix, by products of matrices."""
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / max(SETS[name][2] * np.linalg.norm(x), EPS)
    for c1, c3, c5 in triples(name, steps):
        s = x @ x.T
        x = c1 * x + (c3 * s + c5 * s @ s) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def normalise_rows(o, v, beta):
    """NorMuon: the rows of O divided by the root of their running mean square v, |O| kept."""
    size = np.linalg.norm(o)
    v = v + (1 - beta) * (np.mean(o * o, axis=1) - v)
    o = o / (np.sqrt(v) + NORMUON_EPS)[:, None]
    return o * size / (np.linalg.norm(o) + NORMUON_EPS), v


def adjustment(form, rows, columns):
    return {
        "original": math.sqrt(max(1, rows / columns)),
        "match-rms": 0.2 * math.sqrt(max(rows, columns)),
        "unclamped": math.sqrt(rows / columns),
        "none": 1.0,
    }[form]


class Muon:
    """One parameter; a convolution's weight is the matrix (out, the rest)."""

    def __init__(self, w, settings):
        self.shape, self.settings = w.shape, settings
        self.w = w.reshape(w.shape[0], -1).copy()
        self.m, self.v = np.zeros_like(self.w), np.zeros(w.shape[0])

    def step(self, grad):
        s, g = self.settings, grad.reshape(self.w.shape)
        mu = s["momentum"]
        self.m = self.m + (1 - mu) * (g - self.m)
        u = (1 - mu) * g + mu * self.m if s["nesterov"] else self.m
        o = orthogonalise(u, s["ns"], s["ns_steps"])
        if s["normuon"]:
            o, self.v = normalise_rows(o, self.v, s["beta2"])
        o = adjustment(s["adjust"], *self.w.shape) * o
        if s["hyperball"]:
            radius = np.linalg.norm(self.w)
            moved = self.w - s["lr"] * o * radius / max(np.linalg.norm(o), 1e-10)
            self.w = moved * radius / max(np.linalg.norm(moved), 1e-10)
            return
        decayed = (o * self.w >= 0) if s["cautious"] else 1.0
        self.w = (1 - s["lr"] * s["weight_decay"] * decayed) * self.w - s["lr"] * o


# ---- the files -------------------------------------------------------------------------------------


def spread(rng, rows, columns, ratio=8.0):
    """A float32 matrix whose singular values go down from 1 to 1/ratio: rounding is not magnified."""
    small = min(rows, columns)
    left, _, right = np.linalg.svd(rng.standard_normal((rows, columns)), full_matrices=False)
    values = np.geomspace(1.0, 1.0 / ratio, small) if small > 1 else np.ones(1)
    return ((left * values) @ right).astype(np.float32)


BLOCKS = {  # name: shape; a convolution's is (out, in, kh, kw)
    "wide": (12, 40),
    "tall": (36, 10),
    "square": (16, 16),
    "conv": (8, 3, 3, 3),
    "odd": (5, 7),
    "row": (1, 9),
    "large": (68, 96),
    "large_tall": (90, 66),
    "large_square": (65, 65),
}
FORMS = ("original", "match-rms", "unclamped", "none")
ROUNDS, BETA2 = 3, 0.9


def write_orthogonalise(path):
    rng = np.random.default_rng(15)
    tensors = {}
    for block, shape in BLOCKS.items():
        rows, columns = shape[0], math.prod(shape[1:])
        u = spread(rng, rows, columns) * np.float32(0.37)
        tensors[f"{block}.in"] = u
        for name in SETS:
            o = orthogonalise(u.astype(np.float64), name)
            assert np.linalg.norm(o - iterate(u.astype(np.float64), name)) < 1e-11 * np.linalg.norm(o)
            tensors[f"{block}.{name}"] = o
        if not block.startswith("large"):
            tensors[f"{block}.original.3"] = orthogonalise(u.astype(np.float64), "original", 3)
            tensors[f"{block}.quintic.7"] = orthogonalise(u.astype(np.float64), "quintic", 7)
        tensors[f"{block}.condition"] = np.array([condition(u.astype(np.float64), name) for name in SETS])
        tensors[f"{block}.adjust"] = np.array([adjustment(form, rows, columns) for form in FORMS])
        # NorMuon: other inputs in every round, rows of very different sizes
        sizes = np.geomspace(1, 0.3, rows).astype(np.float32)[:, None]
        inputs = np.stack([spread(rng, rows, columns, 2.0) * sizes for _ in range(ROUNDS)])
        v, outputs, moments = np.zeros(rows), [], []
        for u in inputs:
            o, v = normalise_rows(orthogonalise(u.astype(np.float64)), v, BETA2)
            outputs.append(o)
            moments.append(v)
        tensors[f"{block}.normuon.in"] = inputs
        tensors[f"{block}.normuon.out"] = np.stack(outputs)
        tensors[f"{block}.normuon.v"] = np.stack(moments)
    metadata = {"blocks": list(BLOCKS), "sets": list(SETS), "forms": list(FORMS), "rounds": ROUNDS, "beta2": BETA2}
    store.save(path, tensors, metadata)


STEPS = 20
SHAPES = {"tall": (24, 10), "wide": (9, 30), "square": (14, 14), "conv": (8, 3, 3, 3)}
DEFAULTS = {
    "lr": 0.02,
    "momentum": 0.95,
    "nesterov": True,
    "weight_decay": 0.1,
    "ns": "original",
    "ns_steps": 5,
    "adjust": "original",
    "normuon": False,
    "beta2": 0.95,
    "cautious": False,
    "hyperball": False,
}
CASES = {
    "defaults": {},
    "plain_momentum": {"nesterov": False},
    "match_rms": {"adjust": "match-rms", "lr": 0.004},
    "unclamped": {"adjust": "unclamped", "ns_steps": 3, "momentum": 0.6},
    "exact": {"ns": "exact", "ns_steps": 12, "lr": 0.025, "weight_decay": 0.05},
    "cubic": {"ns": "cubic", "ns_steps": 12, "adjust": "none"},
    "quintic": {"ns": "quintic"},
    "polar_express": {"ns": "polar-express"},
    "no_momentum": {"momentum": 0.0, "weight_decay": 0.0},
    "normuon": {"normuon": True},
    "cautious": {"cautious": True, "weight_decay": 1.0},
    "hyperball": {"hyperball": True, "weight_decay": 0.0},
    "hyperball_exact": {"hyperball": True, "weight_decay": 0.0, "ns": "exact", "ns_steps": 12, "adjust": "match-rms"},
}


def make_problem():
    """Weights, and gradients (STEPS, ...): a constant part and noise, both without tiny singular values."""
    rng = np.random.default_rng(8)
    initial, grads = {}, {}
    for name, shape in SHAPES.items():
        rows, columns = shape[0], math.prod(shape[1:])
        initial[name] = rng.standard_normal(shape).astype(np.float32)
        noise = np.stack([spread(rng, rows, columns, 3.0) for _ in range(STEPS)])
        grads[name] = (spread(rng, rows, columns, 3.0) + np.float32(0.15) * noise).reshape(STEPS, *shape)
    return initial, grads


def run(initial, grads, settings, kind=Muon):
    """Weights after all steps; kind makes the rule of one parameter."""
    ends = {}
    for name, w in initial.items():
        rule = kind(w.astype(np.float64), settings)
        for grad in grads[name]:
            rule.step(grad.astype(np.float64))
        ends[name] = rule.w.reshape(w.shape)
    return ends


OPTIONS = {  # of the command line
    "momentum": "momentum",
    "nesterov": "nesterov",
    "ns": "ns",
    "ns_steps": "ns-steps",
    "adjust": "muon-adjust",
    "normuon": "normuon",
    "beta2": "normuon-beta2",
    "cautious": "cautious",
    "hyperball": "hyperball",
}


def as_option(value):
    return str(value).lower() if isinstance(value, bool) else f"{value:.17g}" if isinstance(value, float) else value


def write_steps(path):
    initial, grads = make_problem()
    tensors = {f"initial.{name}": value for name, value in initial.items()}
    tensors.update({f"grad.{name}": value for name, value in grads.items()})
    metadata = {}
    for case, changes in CASES.items():
        settings = {**DEFAULTS, **changes}
        metadata[case] = {
            "lr": settings["lr"],
            "weight_decay": settings["weight_decay"],
            "options": [f"{option}={as_option(settings[key])}" for key, option in OPTIONS.items()] + ["ns-precision=fp32"],
        }
        for name, end in run(initial, grads, settings).items():
            tensors[f"{case}.{name}"] = end
    store.save(path, tensors, {"cases": list(CASES), **metadata})


def write(out):
    write_orthogonalise(out / "muon_orthogonalise.safetensors")
    write_steps(out / "muon_steps.safetensors")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
