"""K-BFGS (optimizers.md section 7) in numpy: curvature_kbfgs.safetensors.

python3 kbfgs.py [--out DIR]. Every matrix is formed; README.md describes the files.
"""

import argparse
from pathlib import Path

import numpy as np

import curvature_rules
import golden_curvature
import store

POWELL = 0.2


def bfgs(h, s, y, guard):
    """H after the pair, as it is where the pair says nothing."""
    sy = s @ y
    if not sy > 0 or not sy > 1e-4 * (s @ s) * np.linalg.norm(guard):
        return h
    hy = h @ y
    new = h + ((y @ hy) / sy**2 + 1 / sy) * np.outer(s, s) - (np.outer(s, hy) + np.outer(hy, s)) / sy
    return new if np.isfinite(new).all() else h


def damp(h, s, y, root):
    """Both dampings: s against H, then y against the identity."""
    hy = h @ y
    with np.errstate(all="ignore"):
        if s @ y <= POWELL * (y @ hy):
            theta = (1 - POWELL) * (y @ hy) / (y @ hy - s @ y)
            s = theta * s + (1 - theta) * hy
        if s @ y <= root * (s @ s):
            theta = (1 - root) * (s @ s) / (s @ s - s @ y)
            y = theta * y + (1 - theta) * s
    return s, y


class Side:
    """What is kept of one map."""

    def __init__(self, layer, group, options):
        self.layer, self.group, self.options = layer, group, options
        self.root = float(options["damping"]) ** 0.5
        self.beta, self.delta = float(options["stat-decay"]), float(options.get("kbfgs-decay", 0.9))
        self.count = int(options.get("kbfgs-pairs", 0))
        self.average, self.commits, self.h_a, self.h_p = 0.0, 0, None, None
        self.s = self.y = 0.0
        self.started = False  # with the mean over a pass of the training set
        self.pairs = []
        self.dropped = self.raised = 0

    def damped(self):
        a = self.average if self.started else self.average / (1 - self.beta**self.commits)
        return a + self.root * np.eye(a.shape[0])

    def start(self, matrix):
        self.average, self.started = matrix, True

    def rows(self, x, p):
        """Rows of activations, and of each example's own output gradients, (N R, ...) each."""
        a, q = self.layer.input_rows(x, self.group), self.layer.grad_rows(p, self.group) * x.shape[0]
        return a.reshape(-1, a.shape[2]), q.reshape(-1, q.shape[2])

    def begin(self, weight, x, p):
        a, q = self.rows(x, p)
        if self.commits > 0 or not self.started:
            self.average = self.beta * self.average + (1 - self.beta) * (a.T @ a / a.shape[0])
        self.commits += 1
        if self.h_a is None:
            self.h_a, self.h_p = np.linalg.inv(self.damped()), np.eye(q.shape[1])
        self.first = a.mean(axis=0), (a @ weight.T).mean(axis=0), q.mean(axis=0)

    def learn(self, weight, x, p):
        a, q = self.rows(x, p)
        mean, z, guard = self.first
        self.s = self.delta * self.s + (1 - self.delta) * (z - (a @ weight.T).mean(axis=0))
        self.y = self.delta * self.y + (1 - self.delta) * (guard - q.mean(axis=0))
        s, y = damp(self.h_p, self.s, self.y, self.root)
        if self.count == 0:
            self.h_p = bfgs(self.h_p, s, y, guard)
        elif bfgs(self.h_p, s, y, guard) is not self.h_p:
            self.pairs = (self.pairs + [(s, y)])[-self.count :]
            self.h_p = np.eye(s.size)
            for pair in self.pairs:
                self.h_p = bfgs(self.h_p, *pair, np.zeros(1))
        s_a = self.h_a @ mean
        self.h_a = bfgs(self.h_a, s_a, self.damped() @ s_a, mean)


class Kbfgs:
    """layers: of curvature_rows; weights: (layer, "w" or "b") -> array, which steps change."""

    def __init__(self, layers, options, weights, lr, momentum=0.0, weight_decay=0.0):
        self.layers, self.weights, self.lr = layers, weights, lr
        self.momentum, self.decay = momentum, weight_decay
        self.average = {at: np.zeros_like(w) for at, w in weights.items()}
        self.maps = [Side(layer, g, options) for layer in layers if layer.kind != "parameter" for g in range(layer.groups)]

    def calibrate(self, batches):
        """batches: layer -> its inputs, one pass over the training set before step 0."""
        for m in self.maps:
            a = np.concatenate([m.layer.input_rows(x, m.group) for x in batches[m.layer.name]])
            flat = a.reshape(-1, a.shape[2])
            m.start(flat.T @ flat / flat.shape[0])

    def matrix(self, m, tensors):
        return m.layer.matrix(tensors[m.layer.name, "w"], tensors.get((m.layer.name, "b")), m.group)

    def step(self, grads, batch, second):
        """grads: as the weights; batch: layer -> (x, p); second: makes the same at the weights as they then are.
        False: the step is skipped."""
        if not all(np.isfinite(g).all() for g in grads.values()):
            return False
        for at, w in self.weights.items():
            self.average[at] = self.momentum * self.average[at] + (1 - self.momentum) * (grads[at] + self.decay * w)
        steps = dict(self.average)
        for m in self.maps:
            m.begin(self.matrix(m, self.weights), *batch[m.layer.name])
        for layer in self.layers:
            mine = [m for m in self.maps if m.layer is layer]
            if mine:
                parts = [m.h_p @ self.matrix(m, self.average) @ m.h_a for m in mine]
                weight, bias = layer.unmatrix(parts, steps[layer.name, "w"].shape)
                steps[layer.name, "w"] = weight
                if layer.bias:
                    steps[layer.name, "b"] = bias
        for at in self.weights:
            self.weights[at] = self.weights[at] - self.lr * steps[at]
        again = second()
        for m in self.maps:
            m.learn(self.matrix(m, self.weights), *again[m.layer.name])
        return True


# ---- on given batches: the second pass sees the next one


def cases():
    made = golden_curvature.Cases("kbfgs")

    def add(name, layers=None, changes=None, lr=0.05, momentum=0.9, weight_decay=0.0, steps=20, **more):
        update = {"rule": "sgd", "lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        options = {"stat-decay": "0.9", **(changes or {})}
        made.add(name, layers, options, steps=steps, update=update, **more)

    small = golden_curvature.SMALL
    add("all", golden_curvature.ALL)
    add("decay", small + ["gain"], weight_decay=0.05)
    add("no_momentum", small, momentum=0.0)
    add("one_step", small, momentum=0.0, steps=1)
    for damping in ("0.01", "0.9"):
        add(f"damping_{damping}", small, {"damping": damping}, lr=0.01)
    for pairs in ("1", "4", "100"):
        add(f"pairs_{pairs}", small, {"kbfgs-pairs": pairs})
    add("pairs_all", golden_curvature.ALL, {"kbfgs-pairs": "3"}, weight_decay=0.01)
    add("stat_half", small, {"stat-decay": "0.5"})
    add("whole", small, {"kbfgs-decay": "0"})
    add("whole_pairs", small, {"kbfgs-decay": "0", "kbfgs-pairs": "5"})
    add("clip", small + ["gain"], weight_decay=0.05, clip=0.5)
    add("parts", small, momentum=0.5, parts=[1, 2], scales=[1.0, 1.0])
    add("zero_grad", golden_curvature.PAIR, momentum=0.0, steps=7, zero_grad=[0, 5])
    first = {"first-pass": "true"}
    add("first_pass", golden_curvature.ALL, first, calibrate=[5, 2], steps=7)
    add("first_pass_one_step", small, first, calibrate=[5, 2], momentum=0.0, steps=1)
    add("first_pass_decay", small, {**first, "stat-decay": "0.5"}, calibrate=[3, 4, 6], weight_decay=0.05)
    add("first_pass_pairs", small, {**first, "kbfgs-pairs": "4"}, calibrate=[1], momentum=0.5)
    add("first_pass_bad_grad", small, first, calibrate=[5], steps=7, poison=[golden_curvature.poison("gw", 0, "fc", 3)])
    add("bad_grad", small, steps=7, poison=[golden_curvature.poison("gw", 2, "grouped", 7)])
    add("bad_first_grad", small, steps=7, poison=[golden_curvature.poison("gw", 0, "fc", 3, "inf")])
    return made.cases


def run(case, data):
    names, steps = case["layers"], golden_curvature.STEPS
    data = golden_curvature.spoil(data, case)
    layers = [golden_curvature.LAYERS[name] for name in names]
    tensors = [(name, key) for name in names for key in ("w", "b") if key in data[name]]
    weights = {at: data[at[0]][at[1]].astype(np.float64) for at in tensors}
    update = {key: value for key, value in case["update"].items() if key != "rule"}
    method, skipped = Kbfgs(layers, case["options"], weights, **update), []

    maps = [name for name in names if "x" in data[name]]
    if "calibrate" in case:
        method.calibrate({name: [data[name]["x"][k].astype(np.float64) for k in case["calibrate"]] for name in maps})

    def batch(k):
        return {name: tuple(data[name][key][k % steps].astype(np.float64) for key in "xp") for name in maps}

    for k in range(case["steps"]):
        grads = {(name, key): data[name]["g" + key][k % steps].astype(np.float64) for name, key in tensors}
        if "clip" in case:
            pairs = curvature_rules.clip({at: (g,) for at, g in grads.items()}, case["clip"])
            grads = {at: pair[0] for at, pair in pairs.items()}
        if not method.step(grads, batch(k), lambda k=k: batch(k + 1)):
            skipped.append(k)
    return {f"{name}.{key}_end": value for (name, key), value in method.weights.items()}, skipped, method


def write_cases(path, data):
    tensors, metadata = {}, {"cases": list(cases())}
    found = {}
    for name, case in cases().items():
        found[name], skipped, _ = run(case, data)
        assert all(np.isfinite(value).all() for value in found[name].values()), name
        metadata[f"cases.{name}"] = {**case, "skipped": skipped, "dropped": 0, "raised": 0, "float32": 1e-6}
        tensors.update({f"{name}.{key}": value for key, value in found[name].items()})
    golden_curvature.check_telling("kbfgs", found, cases(), data)
    store.save(path, tensors, metadata)


def check_identities():
    """Those of section 7 that a pair alone decides."""
    rng = np.random.RandomState(5)
    for _ in range(200):
        n, root = 6, rng.uniform(0.05, 0.95)
        half = rng.randn(n, n)
        h, s, y = half @ half.T + 0.1 * np.eye(n), rng.randn(n), rng.randn(n)
        once, _ = damp(h, s, y, 0.0)
        if once is not s:
            assert abs(once @ y - POWELL * (y @ h @ y)) <= 1e-10 * (y @ h @ y)
        damped, against = damp(h, s, y, root)
        if against is not y:
            assert abs(damped @ against - root * (damped @ damped)) <= 1e-10 * (damped @ damped)
        new = bfgs(h, damped, against, np.zeros(1))
        assert np.allclose(new @ against, damped, rtol=1e-8, atol=1e-8) and np.array_equal(new, new.T)
        assert np.linalg.eigvalsh(new)[0] > 0
        a = half @ half.T / n + root * np.eye(n)
        mean, inverse = rng.randn(n), np.linalg.inv(a)
        assert np.allclose(bfgs(inverse, inverse @ mean, a @ inverse @ mean, mean), inverse, rtol=1e-8, atol=1e-8)


def write(out):
    check_identities()
    write_cases(out / "curvature_kbfgs.safetensors", golden_curvature.make_data())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
