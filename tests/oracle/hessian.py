"""AdaHessian and Sophia-G on given gradients and given diagonals (optimizers.md section 3), in float64; numpy alone."""

from pathlib import Path

import numpy as np

import store

STEPS = 20
SHAPES = {"matrix": (24, 10), "conv": (8, 3, 3, 3), "bias": (13,), "scalar": (1,)}
MAPS = ("matrix", "conv")
TERMS = 7  # of the mean that the loss is

ADAHESSIAN = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-4, "hessian-power": 1.0, "hessian-every": 1, "fd-step": 0.01}
SOPHIA = {"beta1": 0.965, "beta2": 0.99, "sophia-rho": 0.04, "hessian-every": 10}

CASES = {
    "adahessian": {"rule": "adahessian", "lr": 0.15},
    "adahessian_decay": {"rule": "adahessian", "lr": 0.1, "weight_decay": 0.05, "clip": 4.0},
    "adahessian_power": {"rule": "adahessian", "lr": 0.1, "hessian-power": 0.5, "eps": 1e-3},
    "adahessian_every": {"rule": "adahessian", "lr": 0.1, "hessian-every": 3, "beta2": 0.9},
    "adahessian_momentum": {"rule": "adahessian", "lr": 0.05, "hessian-power": 0.0, "eps": 0.0, "beta1": 0.5},
    "sophia": {"rule": "sophia", "lr": 0.01, "weight_decay": 0.1},
    "sophia_often": {"rule": "sophia", "lr": 0.01, "weight_decay": 0.1, "hessian-every": 2, "beta2": 0.5, "sophia-rho": 2.0},
    "sophia_clip": {"rule": "sophia", "lr": 0.02, "hessian-every": 1, "clip": 3.0, "beta1": 0.8, "sophia-rho": 1.0},
}


def clipped(grads, bound):
    norm = np.sqrt(sum(np.sum(g * g) for g in grads.values()))
    scale = min(1.0, bound / (norm + 1e-6)) if bound else 1.0
    return {name: scale * g for name, g in grads.items()}


def averaged(hz):
    """|Hz|, of a convolution the mean over its taps."""
    d = np.abs(hz)
    return np.broadcast_to(d.mean(axis=(2, 3), keepdims=True), d.shape) if d.ndim == 4 else d


def adahessian(initial, grads, hz, s):
    w = {name: value.copy() for name, value in initial.items()}
    m, v, d = ({name: np.zeros_like(value) for name, value in w.items()} for _ in range(3))
    for k in range(STEPS):
        t = k + 1
        g = clipped({name: grads[name][k] for name in w}, s["clip"])
        for name in w:
            if k % s["hessian-every"] == 0:
                d[name] = averaged(hz[name][k])
            m[name] = s["beta1"] * m[name] + (1 - s["beta1"]) * g[name]
            v[name] = s["beta2"] * v[name] + (1 - s["beta2"]) * d[name] ** 2
            root = np.sqrt(v[name]) / np.sqrt(1 - s["beta2"] ** t)
            step = m[name] / (1 - s["beta1"] ** t) / (root ** s["hessian-power"] + s["eps"])
            w[name] = w[name] - s["lr"] * (step + s["weight_decay"] * w[name])
    return w


def sophia(initial, grads, drawn, s):
    w = {name: value.copy() for name, value in initial.items()}
    m, h = ({name: np.zeros_like(value) for name, value in w.items()} for _ in range(2))
    for k in range(STEPS):
        g = clipped({name: grads[name][k] for name in w}, s["clip"])
        for name in w:
            w[name] = (1 - s["lr"] * s["weight_decay"]) * w[name]
            m[name] = s["beta1"] * m[name] + (1 - s["beta1"]) * g[name]
            ratio = np.abs(m[name]) / (s["sophia-rho"] * TERMS * h[name] + 1e-15)
            w[name] = w[name] - s["lr"] * np.sign(m[name]) * np.minimum(ratio, 1.0)
        if k % s["hessian-every"] == s["hessian-every"] - 1:
            e = clipped({name: drawn[name][k] for name in w}, s["clip"])
            for name in w:
                h[name] = s["beta2"] * h[name] + (1 - s["beta2"]) * e[name] ** 2
    return w


def settings_of(changes):
    defaults = ADAHESSIAN if changes["rule"] == "adahessian" else SOPHIA
    return {"weight_decay": 0.0, "clip": 0.0, **defaults, **changes}


def make_problem():
    rng = np.random.default_rng(13)
    initial = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    draw = lambda shape: (0.3 * rng.standard_normal(shape) + rng.standard_normal((STEPS, *shape))).astype(np.float32)
    return initial, {n: draw(s) for n, s in SHAPES.items()}, {n: draw(s) for n, s in SHAPES.items()}


def check_identities(initial, grads, extra):
    """kappa = 0 and eps = 0: gradient descent with Adam's momentum; h = 0: sign descent."""
    s = {**settings_of({"rule": "adahessian", "lr": 0.1}), "hessian-power": 0.0, "eps": 0.0, "beta1": 0.0}
    w = adahessian(initial, grads, extra, s)
    assert all(np.allclose(w[n], initial[n] - 0.1 * grads[n].sum(axis=0)) for n in w)
    s = {**settings_of({"rule": "sophia", "lr": 0.1}), "hessian-every": 1000, "beta1": 0.0}
    w = sophia(initial, grads, extra, s)
    assert all(np.allclose(w[n], initial[n] - 0.1 * np.sign(grads[n]).sum(axis=0)) for n in w)


def write(out):
    initial, grads, extra = make_problem()
    tensors = {f"initial.{name}": value for name, value in initial.items()}
    tensors.update({f"grad.{name}": value for name, value in grads.items()})
    tensors.update({f"extra.{name}": value for name, value in extra.items()})
    wide = [{name: value.astype(np.float64) for name, value in x.items()} for x in (initial, grads, extra)]
    check_identities(*wide)
    metadata = {}
    for case, changes in CASES.items():
        s = settings_of(changes)
        other = ("rule", "lr", "weight_decay", "clip")
        options = [f"{key}={value:.17g}" for key, value in s.items() if key not in other]
        metadata[case] = {**{key: s[key] for key in other}, "options": options}
        for name, end in (adahessian if s["rule"] == "adahessian" else sophia)(*wide, s).items():
            tensors[f"{case}.{name}"] = end
    store.save(out / "hessian_steps.safetensors", tensors, {"cases": list(CASES), **metadata})


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
