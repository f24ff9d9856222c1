"""K-BFGS by its authors' code on the network and batches of train_mlp.safetensors: kbfgs_authors.safetensors.

python3 kbfgs_authors.py FOLDER [--out DIR]: FOLDER holds kbfgs_utils.py and functions_utils.py of
github.com/renyiryry/kbfgs_neurips2020_public, which is not part of this repository. Runs in double precision; prints how far
kbfgs.py is from it.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open

import kbfgs
import store
from curvature_rows import Layer

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
LAYERS = [Layer("fc1", "linear", bias=True), Layer("fc2", "linear", bias=True)]
STEPS = 20
CASES = {
    "bfgs": {"lr": 0.1, "damping": 0.3},
    "bfgs_small_damping": {"lr": 0.03, "damping": 0.01},
    "pairs_100": {"lr": 0.1, "damping": 0.3, "kbfgs-pairs": 100},
    "pairs_4": {"lr": 0.1, "damping": 0.1, "kbfgs-pairs": 4},
    "decay": {"lr": 0.1, "damping": 0.3, "weight_decay": 0.05},
    "no_momentum": {"lr": 0.05, "damping": 0.3, "momentum": 0.0},
}
COMMON = {"momentum": 0.9, "weight_decay": 1e-5, "stat-decay": 0.9, "kbfgs-pairs": 0}


class Network(torch.nn.Module):
    """What their code asks of a model."""

    name_loss, numlayers = "multi-class classification", 2

    def __init__(self, weights):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(w.shape[1], w.shape[0]) for w in weights[::2])
        with torch.no_grad():
            for p, w in zip(self.parameters(), weights):
                p.copy_(torch.tensor(w))

    @property
    def layers_weight(self):
        return [{"W": layer.weight, "b": layer.bias} for layer in self.layers]

    def forward(self, x):
        h, a = [x], [self.layers[0](x)]
        h.append(F.relu(a[0]))
        a.append(self.layers[1](h[1]))
        for z in a:
            z.retain_grad()
        return a[1], a, h


def read():
    """Weights, batches (x, labels)."""
    with safe_open(GOLDEN / "train_mlp.safetensors", "np") as file:
        data = json.loads(file.metadata()["data"])
        weights = [file.get_tensor(f"w.{name}").astype(np.float64) for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")]
        images, labels = file.get_tensor("images").astype(np.float64), file.get_tensor("labels")
    x = ((images / 255 - data["mean"][0]) / data["std"][0]).reshape(*images.shape[:2], -1)
    return weights, [(torch.tensor(a), torch.tensor(b, dtype=torch.int64)) for a, b in zip(x, labels)]


def homogeneous(h):
    return torch.cat((h, torch.ones(h.shape[0], 1)), dim=1).detach()


def first_pass(model, batches):
    """The mean of a aT over the training set, by layer."""
    means = [0.0, 0.0]
    for x, _ in batches:
        _, _, h = model(x)
        means = [m + homogeneous(a).T @ homogeneous(a) / (len(x) * len(batches)) for m, a in zip(means, h)]
    return means


def run_authors(utils, case, weights, batches):
    model = Network(weights)
    pairs, root = case["kbfgs-pairs"], case["damping"] ** 0.5
    params = {
        "numlayers": 2, "algorithm": "K-BFGS", "device": torch.device("cpu"), "alpha": case["lr"], "N1": len(batches[0][0]),
        "num_train_data": len(batches[0][0]) * len(batches), "Kron_BFGS_action_h": "Hessian-action-BFGS",
        "Kron_BFGS_action_a": "LBFGS" if pairs else "BFGS", "Kron_LBFGS_Hg_initial": 1, "Kron_BFGS_number_s_y": pairs,
        "Kron_BFGS_A_decay": case["stat-decay"], "Kron_BFGS_A_LM_epsilon": root, "Kron_BFGS_H_epsilon": root,
    }  # fmt: skip
    empty = ("s", "y", "R_inv", "yTy", "D_diag", "left_matrix", "right_matrix", "gamma")
    sizes = [layer.out_features for layer in model.layers]
    data = {
        "model": model,
        "Kron_LBFGS_s_y_pairs": {"a": [{key: [] for key in empty} for _ in sizes]},
        "Kron_BFGS_momentum_s_y": [{"s": torch.zeros(n), "y": torch.zeros(n)} for n in sizes],
        "Kron_BFGS_matrices": [{"A": a} for a in first_pass(model, batches)],
    }
    average = [{key: torch.zeros_like(w) for key, w in layer.items()} for layer in model.layers_weight]
    for i in range(STEPS):
        x, labels = batches[i % len(batches)]
        out, a, h = model(x)
        model.zero_grad()
        F.cross_entropy(out, labels).backward()
        for mine, layer in zip(average, model.layers_weight):
            for key, w in layer.items():
                mine[key] = case["momentum"] * mine[key] + (1 - case["momentum"]) * (w.grad + case["weight_decay"] * w.detach())
        params["i"] = i
        data.update(X_mb=x, t_mb=labels, model_grad_used_torch=average, h_N2=[v.detach() for v in h])
        data.update(a_N2=[z.detach() for z in a], a_grad_N2=[len(x) * z.grad for z in a])
        data, params = utils.Kron_BFGS_update(data, params)
        with torch.no_grad():
            for step, layer in zip(data["p_torch"], model.layers_weight):
                for key, w in layer.items():
                    w += case["lr"] * step[key]
    return [p.detach().numpy() for p in model.parameters()]


def run_ours(case, weights, batches, started=True):
    names = [(layer.name, key) for layer in LAYERS for key in "wb"]
    model = Network(weights)
    options = {key: str(case[key]) for key in ("damping", "stat-decay", "kbfgs-pairs")}
    settings = {key: case[key] for key in ("lr", "momentum", "weight_decay")}
    method = kbfgs.Kbfgs(LAYERS, options, dict(zip(names, [w.copy() for w in weights])), **settings)
    if started:
        for m, a in zip(method.maps, first_pass(model, batches)):
            m.start(a.numpy())

    def look(k):
        with torch.no_grad():
            for p, at in zip(model.parameters(), names):
                p.copy_(torch.tensor(method.weights[at]))
        x, labels = batches[k % len(batches)]
        out, a, h = model(x)
        model.zero_grad()
        F.cross_entropy(out, labels).backward()
        return {layer.name: (v.detach().numpy(), z.grad.numpy()) for layer, v, z in zip(LAYERS, h, a)}

    for k in range(STEPS):
        first = look(k)
        grads = {at: p.grad.numpy().copy() for p, at in zip(model.parameters(), names)}
        assert method.step(grads, first, lambda k=k: look(k))
    return [method.weights[at] for at in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with the authors' kbfgs_utils.py")
    parser.add_argument("--out", type=Path, default=GOLDEN, help="folder to write to")
    given = parser.parse_args()
    sys.path.append(str(given.folder))
    import functions_utils
    import kbfgs_utils

    kbfgs_utils.np = functions_utils.np
    torch.set_default_dtype(torch.float64)
    weights, batches = read()
    tensors, metadata = {}, {"cases": [*CASES, "own", "own_pairs"]}
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    for name, changes in CASES.items():
        case = {**COMMON, **changes}
        found, ours = run_authors(kbfgs_utils, case, weights, batches), run_ours(case, weights, batches)
        print(f"{max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(ours, found)):.1e} {name}")
        metadata[name] = {**case, "first-pass": True}
        tensors.update({f"{name}.{key}": value for key, value in zip(names, found)})
    for name, pairs in (("own", 0), ("own_pairs", 5)):  # with abar's corrected average, which their code does not have
        case = {**COMMON, **CASES["bfgs"], "kbfgs-pairs": pairs}
        metadata[name] = {**case, "first-pass": False}
        found = run_ours(case, weights, batches, started=False)
        tensors.update({f"{name}.{key}": value for key, value in zip(names, found)})
    store.save(given.out / "kbfgs_authors.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
