"""M-FAC by its authors' code, on the inputs of curvature_layers.safetensors: curvature_mfac_authors.safetensors.

python3 mfac_authors.py OPTIM.PY [--out DIR]: OPTIM.PY is optim.py of github.com/IST-DASLab/M-FAC, which is not part of
this repository. Its ring is made in double precision, and what it
takes from GPUs is replaced. Prints how far curvature.py is from it.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import torch

import golden_curvature
import store


def load(path):
    spec = importlib.util.spec_from_file_location("mfac_optim", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed_lu(matrix, pivot):
    """torch.lu(pivot=False), which torch has on GPUs alone, by plain elimination."""
    assert not pivot
    lu = matrix.clone()
    for k in range(lu.shape[0] - 1):
        lu[k + 1 :, k] /= lu[k, k]
        lu[k + 1 :, k + 1 :] -= torch.outer(lu[k + 1 :, k], lu[k, k + 1 :])
    return lu, None


def cases():
    made = golden_curvature.Cases("mfac")
    for m in (4, 8, 12, 16):
        for damping in ("0.01", "0.001"):
            update = {"rule": "sgd", "lr": 0.01, "inside": True}
            made.add(f"m{m}_{damping}", None, {"mfac-gradients": str(m), "damping": damping}, steps=20, update=update)
    for m, momentum, decay in ((8, 0.9, 0.0), (8, 0.9, 0.003), (12, 0.5, 0.05), (16, 0.9, 0.05)):
        update = {"rule": "sgd", "lr": 0.01, "momentum": momentum, "weight_decay": decay, "inside": True}
        settings = {"mfac-gradients": str(m), "damping": "0.01"}
        made.add(f"m{m}_mu{momentum}_decay{decay}", golden_curvature.SMALL + ["gain"], settings, steps=24, update=update)
    return made.cases


def run(authors, case, data):
    update, options = case["update"], case["options"]
    tensors = [(name, key) for name in case["layers"] for key in ("w", "b") if key in data[name]]
    params = {at: torch.nn.Parameter(torch.tensor(data[at[0]][at[1]], dtype=torch.float64)) for at in tensors}
    momentum, slots = update.get("momentum", 0.0), int(options["mfac-gradients"])
    optimizer = authors.MFAC(
        list(params.values()),
        lr=update["lr"] / (1 - momentum),  # its momentum is an average, ours a sum
        momentum=momentum,
        weight_decay=update.get("weight_decay", 0.0),
        ngrads=slots,
        damp=float(options["damping"]),
        moddev="cpu",
        optdev="cpu",
    )
    count = sum(p.numel() for p in params.values())
    ring = torch.zeros((slots, count), dtype=torch.float64)
    optimizer.hinv = authors.HInvFastUpMulti(ring, dev="cpu", gpus=["cpu"], damp=float(options["damping"]))
    if momentum > 0:
        optimizer.v = torch.zeros(count, dtype=torch.float64)
    for step in range(case["steps"]):
        for (name, key), p in params.items():
            p.grad = torch.tensor(data[name]["g" + key][step % golden_curvature.STEPS], dtype=torch.float64)
        optimizer.step()
    return {f"{name}.{key}_end": p.detach().numpy() for (name, key), p in params.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("optim", type=Path, help="the authors' optim.py")
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    given = parser.parse_args()
    authors, data = load(given.optim), golden_curvature.make_data()
    authors.nn.parallel.parallel_apply = lambda calls, inputs: [call(one) for call, one in zip(calls, inputs)]
    torch.lu = packed_lu
    tensors, metadata = {}, {"cases": list(cases())}
    for name, case in cases().items():
        found = run(authors, case, data)
        ours, skipped, _ = golden_curvature.run(case, data)
        print(f"{golden_curvature.distance(ours, found):.1e} {name}")
        metadata[f"cases.{name}"] = {**case, "skipped": skipped, "dropped": 0, "raised": 0, "float32": 1e-6}
        tensors.update({f"{name}.{key}": np.asarray(value) for key, value in found.items()})
    store.save(given.out / "curvature_mfac_authors.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
