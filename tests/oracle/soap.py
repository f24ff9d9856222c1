"""SOAP and KL-SOAP in float64: soap_steps.safetensors. See README.md.

Written from docs/optimizers.md section 2: blocks are numpy arrays of any order, bases come from numpy.linalg.eigh and
numpy.linalg.qr.

The first gradient of a matrix that is not square leaves the longer side's factor singular: its null basis is arbitrary, and
Adam is not invariant to it. Rotated sides of golden cases are therefore at most as long as the rest of their tensor, and
"matrix" and "wide" have one long side, which max-dim leaves alone.
"""

from pathlib import Path

import numpy as np

import store

STEPS = 20
SHAPES = {"matrix": (24, 10), "wide": (9, 30), "square": (12, 12), "conv": (9, 3, 3, 3), "bias": (13,), "scalar": (1,)}
DEFAULTS = {
    "lr": 0.02,
    "weight_decay": 0.0,
    "beta1": 0.95,
    "beta2": 0.95,
    "shampoo-beta": -1.0,
    "eps": 1e-3,
    "soap-freq": 10,
    "max-dim": 12,
    "soap-factors": "shampoo",
    "soap-conv": "matrix",
    "normalize": "false",
    "correct-bias": "true",
    "cautious": "false",
    "hyperball": "false",
}
CASES = {
    "defaults": {},
    "every_step": {"soap-freq": 1},
    "every_third": {"soap-freq": 3, "weight_decay": 0.1},
    "modes": {"soap-freq": 2, "soap-conv": "modes"},
    "normalize": {"soap-freq": 2, "normalize": "true", "weight_decay": 0.1},
    "no_correction": {"soap-freq": 3, "correct-bias": "false"},
    "own_beta": {"soap-freq": 2, "shampoo-beta": 0.8, "beta1": 0.9, "beta2": 0.99},
    "no_rotation": {"max-dim": 0, "weight_decay": 0.1},
    "no_momentum": {"soap-freq": 2, "beta1": 0.0},
    "tiny_eps": {"soap-freq": 3, "eps": 1e-8},
    "kl": {"soap-factors": "kl", "soap-freq": 2},
    "kl_every_step": {"soap-factors": "kl", "soap-freq": 1, "weight_decay": 0.1, "shampoo-beta": 0.9},
    "kl_no_correction": {"soap-factors": "kl", "soap-freq": 3, "correct-bias": "false", "beta2": 0.9},
    "cautious": {"soap-freq": 3, "weight_decay": 0.5, "cautious": "true"},
    "hyperball": {"soap-freq": 2, "hyperball": "true"},
    "hyperball_normalize": {"soap-freq": 3, "hyperball": "true", "normalize": "true", "correct-bias": "false"},
    "record": {
        "soap-factors": "kl",
        "hyperball": "true",
        "correct-bias": "false",
        "soap-freq": 1,
        "beta1": 0.95,
        "beta2": 0.9,
        "shampoo-beta": 0.9,
        "lr": 0.018,
    },
}
EXACT = ()  # cases for double precision alone


def unfolded(x, mode):
    return np.moveaxis(x, mode, 0).reshape(x.shape[mode], -1)


def times(x, matrix, mode):
    """x multiplied along a mode: row k of the matrix makes entry k."""
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, mode)), 0, mode)


class Soap:
    """One parameter that is one block: w has the shape of the block."""

    def __init__(self, w, settings):
        self.settings, self.t, self.calls, self.shape = settings, 0, 0, w.shape
        flat = w.reshape(w.shape[0], -1) if w.ndim > 1 and (w.ndim != 4 or settings["soap-conv"] == "matrix") else w
        self.w = np.squeeze(flat).copy() if flat.size > 1 else flat.reshape(1).copy()
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.rotated = [i for i, n in enumerate(self.w.shape) if self.w.ndim > 1 and n <= settings["max-dim"]]

    def rot(self, x):
        for i in self.rotated:
            x = times(x, self.q[i].T, i)
        return x

    def unrot(self, x):
        for i in self.rotated:
            x = times(x, self.q[i], i)
        return x

    def first(self, g):
        s = self.settings
        beta = s["beta2"] if s["shampoo-beta"] < 0 else s["shampoo-beta"]
        self.beta_s, self.kl = beta, s["soap-factors"] == "kl"
        products = {i: unfolded(g, i) @ unfolded(g, i).T for i in self.rotated}
        if self.kl:
            self.s = {i: p * g.shape[i] / g.size for i, p in products.items()}
            self.scales = {i: np.full(g.shape[i], 0.1**-0.5) for i in self.rotated}
        else:
            self.s = {i: (1 - beta) * p for i, p in products.items()}
        self.q = {i: np.linalg.eigh(x)[1][:, ::-1] for i, x in self.s.items()}

    def scaled(self, x, mode):
        if mode not in self.rotated:
            return x
        shape = [1, 1]
        shape[mode] = -1
        return x * self.scales[mode].reshape(shape)

    def add_kl(self, g, rotated):
        targets, squares = {}, {}
        for i in self.rotated:
            j = 1 - i
            y = self.scaled(times(g, self.q[j].T, j), j) if j in self.rotated else g
            targets[i] = unfolded(y, i) @ unfolded(y, i).T / g.shape[j]
            squares[i] = (self.scaled(rotated, j) ** 2).mean(axis=j)
        for i in self.rotated:
            self.s[i] = self.s[i] + (1 - self.beta_s) * (targets[i] - self.s[i])
            value = self.beta_s / self.scales[i] ** 2 + (1 - self.beta_s) * squares[i]
            self.scales[i] = np.minimum(np.maximum(value, 1e-30) ** -0.5, 4000.0)

    def moved(self, step):
        s, w = self.settings, self.w
        if s["hyperball"] == "true" and w.ndim > 1:
            radius = np.linalg.norm(w)
            w = w - s["lr"] * step * radius / max(np.linalg.norm(step), 1e-10)
            return w * radius / max(np.linalg.norm(w), 1e-10)
        if s["cautious"] == "true":
            return w - s["lr"] * (step + s["weight_decay"] * w * (step * w >= 0))
        return (1 - s["lr"] * s["weight_decay"]) * (w - s["lr"] * step)

    def step(self, grad):
        g, s = np.asarray(grad, dtype=np.float64).reshape(self.w.shape), self.settings
        self.calls += 1
        if self.calls == 1:
            self.first(g)
            return
        self.t += 1
        beta1, beta2 = s["beta1"], s["beta2"]
        rotated = self.rot(g)
        self.m = beta1 * self.m + (1 - beta1) * rotated
        self.v = beta2 * self.v + (1 - beta2) * rotated * rotated
        n = self.unrot(self.m / (np.sqrt(self.v) + s["eps"]))
        if s["normalize"] == "true":
            n = n / (1e-30 + np.sqrt(np.mean(n * n)))
        factor = np.sqrt(1 - beta2**self.t) / (1 - beta1**self.t) if s["correct-bias"] == "true" else 1.0
        self.w = self.moved(factor * n)
        straight = self.unrot(self.m)
        if self.kl:
            self.add_kl(g, rotated)
        else:
            for i in self.rotated:
                self.s[i] = self.s[i] + (1 - self.beta_s) * (unfolded(g, i) @ unfolded(g, i).T - self.s[i])
        if self.t % s["soap-freq"] == 0:
            for i in self.rotated:
                if not self.kl:
                    order = np.argsort(-np.diag(self.q[i].T @ self.s[i] @ self.q[i]), kind="stable")
                    self.q[i] = self.q[i][:, order]
                    self.v = np.take(self.v, order, axis=i)
                self.q[i] = np.linalg.qr(self.s[i] @ self.q[i])[0]
        self.m = self.rot(straight)


# ---- the file --------------------------------------------------------------------------------------


def make_problem():
    """Gradients with a mean and with factors that are far from round, so that bases mean something."""
    rng = np.random.default_rng(22)
    initial, grads = {}, {}
    for name, shape in SHAPES.items():
        initial[name] = rng.standard_normal(shape).astype(np.float32)
        constant = rng.standard_normal(shape)
        noise = rng.standard_normal((STEPS, *shape))
        if len(shape) > 1:
            scale = np.linspace(0.5, 1.5, shape[0]).reshape(-1, *[1] * (len(shape) - 1))
            noise, constant = noise * scale, constant * scale
        grads[name] = (0.3 * constant + noise).astype(np.float32)
    return initial, grads


def run(initial, grads, settings):
    ends = {}
    for name, w in initial.items():
        rule = Soap(w.astype(np.float64), settings)
        for grad in grads[name]:
            rule.step(grad)
        ends[name] = rule.w.reshape(w.shape)
    return ends


def adamw(w, grads, settings):
    """Decay before the step, eps beside the corrected root."""
    m = v = 0.0
    beta1, beta2 = settings["beta1"], settings["beta2"]
    for t, g in enumerate(grads, 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        eps = settings["eps"] / np.sqrt(1 - beta2**t)
        w = w - settings["lr"] * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return w


def check_identities():
    rng = np.random.default_rng(5)
    w, grads = rng.standard_normal((6, 6)), rng.standard_normal((9, 6, 6))
    plain = {**DEFAULTS, "max-dim": 0}
    rule = Soap(w, plain)
    rule.step(grads[0])
    assert (rule.w == w).all()
    for g in grads[1:]:
        rule.step(g)
    assert np.allclose(rule.w, adamw(w, grads[1:], plain))
    p, q = (np.linalg.qr(rng.standard_normal((6, 6)))[0] for _ in range(2))
    for factors in ("shampoo", "kl"):
        settings = {**DEFAULTS, "soap-freq": 2, "soap-factors": factors}
        a, b = Soap(w, settings), Soap(p @ w @ q, settings)
        for g in grads:
            a.step(g)
            b.step(p @ g @ q)
        assert np.allclose(p @ a.w @ q, b.w)


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
    store.save(out / "soap_steps.safetensors", tensors, {"cases": list(CASES), **metadata})


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
