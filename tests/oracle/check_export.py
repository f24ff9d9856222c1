"""Loads an abar export into the matching PyTorch module, strictly, and compares its logits.

    python3 check_export.py FILE.safetensors --model NAME [--logits FILE]

Prints `ok NAME: N tensors, P parameters`; exit 1 on any mismatch.
"""

import argparse
import sys

import torch
from safetensors.torch import load_file

import networks
from golden_train import NORMALISE, normalise

TOLERANCE = 1e-4
LAST = {"lenet5": "fc3.bias", "wrn28-10": "fc.bias", "resnet50": "fc.bias", "resnet101": "fc.bias"}


def mlp_widths(state):
    """Layer widths from the shapes of fc1, fc2, ..."""
    weights = []
    while f"fc{len(weights) + 1}.weight" in state:
        weights.append(state[f"fc{len(weights) + 1}.weight"])
    if not weights:
        raise ValueError("no tensor fc1.weight")
    return [weights[0].shape[1]] + [w.shape[0] for w in weights]


def class_count(state, name):
    last = LAST.get(name, "linear.bias")
    if last not in state:
        raise ValueError(f"no tensor {last}")
    return state[last].shape[0]


def build(state, name, activation):
    if name == "mlp":
        return networks.mlp(mlp_widths(state))
    return networks.build(name, classes=class_count(state, name), activation=activation)


def check_tensors(module, state):
    """What load_state_dict forgives: other types, and a missing num_batches_tracked."""
    for key, value in module.state_dict().items():
        if key not in state:
            raise ValueError(f"no tensor {key}")
        if state[key].dtype != value.dtype:
            raise ValueError(f"{key}: {state[key].dtype}, expected {value.dtype}")


def load(path, name, activation):
    state = load_file(path)
    module = build(state, name, activation)
    module.load_state_dict(state, strict=True)
    check_tensors(module, state)
    print(f"ok {name}: {len(state)} tensors, {networks.count_parameters(module)} parameters")
    return module


def logit_error(module, path, data):
    """Largest difference from the logits stored beside the images; NaN counts as infinite."""
    stored = load_file(path)
    with torch.no_grad():
        logits = module.double().eval()(normalise(stored["images"], data))
    if logits.shape != stored["logits"].shape:
        raise ValueError(f"logits {list(stored['logits'].shape)}, expected {list(logits.shape)}")
    error = (logits - stored["logits"].double()).abs()
    return error.nan_to_num(nan=float("inf")).max().item()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="safetensors file to check")
    parser.add_argument("--model", required=True, choices=networks.COUNTS)
    parser.add_argument("--activation", default="relu", choices=["relu", "tanh"], help="lenet5's")
    parser.add_argument("--logits", help="safetensors file with images (u8) and logits")
    parser.add_argument("--data", choices=NORMALISE, help="whose normalisation the images need")
    return parser.parse_args()


def main():
    args = parse_arguments()
    data = args.data or ("fashion-mnist" if args.model in ("mlp", "lenet5") else "cifar10")
    try:
        module = load(args.file, args.model, args.activation)
        if args.logits:
            error = logit_error(module, args.logits, data)
            print(f"logits: max error {error:.3g}")
            return 0 if error <= TOLERANCE else 1
    except Exception as error:  # a file can be wrong in many ways; all of them are a mismatch
        print(f"mismatch {args.model}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
