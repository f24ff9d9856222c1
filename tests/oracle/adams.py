"""AdamW's relatives in float64: {adamw,nadamw,sfadamw}_steps.safetensors. See README.md.

Written from docs/methods.md section 8 and docs/optimizers.md section 4. Schedule-Free AdamW keeps z itself here, where abar keeps z - y.
"""

from pathlib import Path

import numpy as np

import store

STEPS = 20
SHAPES = {"matrix": (24, 10), "wide": (9, 30), "conv": (8, 3, 3, 3), "bias": (13,), "scalar": (1,)}
RULES = {
    "adamw": {
        "plain": {},
        "cautious": {"cautious": True},
        "cautious_strong": {"cautious": True, "weight_decay": 2.0, "beta2": 0.9, "eps": 1e-3},
    },
    "nadamw": {
        "defaults": {},
        "strong_decay": {"weight_decay": 1.0, "lr": 0.05},
        "short_memory": {"beta1": 0.5, "beta2": 0.9, "eps": 1e-2},
        "no_momentum": {"beta1": 0.0},
        "warmup": {"warmup": 7},
    },
    "sfadamw": {
        "defaults": {},
        "no_decay": {"weight_decay": 0.0},
        "warmup": {"warmup": 7},
        "powers": {"sf-time-power": 0.5, "sf-rate-power": 1.0, "warmup": 5},
        "half": {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.5},
        "primal": {"beta1": 1.0, "sf-rate-power": 0.0},
    },
}
DEFAULTS = {"lr": 0.02, "weight_decay": 0.1, "warmup": 0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
OWN = {
    "adamw": {"cautious": False},
    "nadamw": {},
    "sfadamw": {"sf-time-power": 0.0, "sf-rate-power": 2.0},
}


def rates(settings):
    """Linear warm-up, then constant."""
    warmup = settings["warmup"]
    return [settings["lr"] * min(1.0, (k + 1) / warmup) if warmup else settings["lr"] for k in range(STEPS)]


class Adam:
    """adamw and nadamw; decay is left out where it is cautious and opposes the step."""

    def __init__(self, w, settings, ahead):
        self.w, self.settings, self.ahead, self.t = w.copy(), settings, ahead, 0
        self.m, self.v = np.zeros_like(w), np.zeros_like(w)

    def step(self, grad, eta):
        s = self.settings
        b1, b2, self.t = s["beta1"], s["beta2"], self.t + 1
        self.m = b1 * self.m + (1 - b1) * grad
        self.v = b2 * self.v + (1 - b2) * grad * grad
        mean = b1 * self.m + (1 - b1) * grad if self.ahead else self.m
        step = mean / (1 - b1**self.t) / (np.sqrt(self.v / (1 - b2**self.t)) + s["eps"])
        decayed = step * self.w >= 0 if s.get("cautious") else 1.0
        self.w = self.w - eta * s["weight_decay"] * decayed * self.w - eta * step

    @property
    def x(self):
        return self.w


class ScheduleFree:
    """w is y."""

    def __init__(self, w, settings):
        self.w, self.z, self.settings, self.t = w.copy(), w.copy(), settings, 0
        self.v, self.largest, self.total = np.zeros_like(w), -1.0, 0.0

    def step(self, grad, eta):
        s = self.settings
        b1, b2, self.t = s["beta1"], s["beta2"], self.t + 1
        self.largest = max(self.largest, eta)
        weight = self.t ** s["sf-time-power"] * self.largest ** s["sf-rate-power"]
        self.total += weight
        c = weight / self.total if self.total else 0.0
        self.v = b2 * self.v + (1 - b2) * grad * grad
        u = grad / (np.sqrt(self.v / (1 - b2**self.t)) + s["eps"]) + s["weight_decay"] * self.w
        self.w = (1 - c) * self.w + c * self.z + eta * (b1 * (1 - c) - 1) * u
        self.z = self.z - eta * u

    @property
    def x(self):
        return self.w + (1 - 1 / self.settings["beta1"]) * (self.z - self.w)


def make(rule, w, settings):
    return ScheduleFree(w, settings) if rule == "sfadamw" else Adam(w, settings, rule == "nadamw")


# ---- the files -------------------------------------------------------------------------------------


def make_problem():
    rng = np.random.default_rng(33)
    initial, grads = {}, {}
    for name, shape in SHAPES.items():
        initial[name] = rng.standard_normal(shape).astype(np.float32)
        constant = rng.standard_normal(shape)
        grads[name] = (0.5 * constant + rng.standard_normal((STEPS, *shape))).astype(np.float32)
    return initial, grads


def all_settings(rule, case):
    return {**DEFAULTS, **OWN[rule], **RULES[rule][case]}


def run(rule, initial, grads, settings, kind=make):
    """Weights (y) and tested weights (x) after all steps."""
    ends, tested = {}, {}
    for name, w in initial.items():
        one = kind(rule, w.astype(np.float64), settings)
        for grad, eta in zip(grads[name], rates(settings)):
            one.step(grad.astype(np.float64), eta)
        ends[name], tested[name] = np.array(one.w), np.array(one.x)
    return ends, tested


def check_identities():
    rng = np.random.default_rng(3)
    w, grads = rng.standard_normal(7), rng.standard_normal((STEPS, 7))
    settings = {**DEFAULTS, "beta1": 0.0}
    plain, ahead = Adam(w, settings, False), Adam(w, settings, True)
    free = ScheduleFree(w, {**DEFAULTS, **OWN["sfadamw"]})
    zs = []
    for grad in grads:
        plain.step(grad, 0.1), ahead.step(grad, 0.1), free.step(grad, 0.1)
        zs.append(free.z)
        assert np.allclose(free.w, 0.1 * free.z + 0.9 * free.x, atol=1e-13)
        assert np.allclose(free.x, np.mean(zs, axis=0), atol=1e-13)
    assert np.array_equal(plain.w, ahead.w)


def as_option(key, value):
    text = str(value).lower() if isinstance(value, bool) else f"{value:.17g}"
    return f"{key}={text}"


def describe(rule, settings):
    named = ("beta1", "beta2", "eps", *OWN[rule])
    return {
        "lr": settings["lr"],
        "rates": rates(settings),
        "weight_decay": settings["weight_decay"],
        "exact": False,
        "options": [as_option(key, settings[key]) for key in named],
    }


def save(path, rule, ends):
    """ends: case -> (settings, weights, tested weights)."""
    initial, grads = make_problem()
    tensors = {f"initial.{name}": value for name, value in initial.items()}
    tensors.update({f"grad.{name}": value for name, value in grads.items()})
    metadata = {}
    for case, (settings, weights, tested) in ends.items():
        metadata[case] = describe(rule, settings)
        for name in SHAPES:
            tensors[f"{case}.{name}"] = weights[name]
            tensors[f"{case}.tested.{name}"] = tested[name]
    store.save(path, tensors, {"cases": list(ends), **metadata})


def write(out):
    check_identities()
    initial, grads = make_problem()
    for rule, cases in RULES.items():
        ends = {case: (all_settings(rule, case), *run(rule, initial, grads, all_settings(rule, case))) for case in cases}
        save(out / f"{rule}_steps.safetensors", rule, ends)


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
