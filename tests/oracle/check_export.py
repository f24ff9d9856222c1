"""Loads an abar export into the matching PyTorch module, strictly, and compares its logits.

    python3 check_export.py FILE.safetensors --model NAME [--logits FILE]

Prints `ok NAME: N tensors, P parameters`; exit 1 on any mismatch.
"""

import argparse
import sys

import torch
from safetensors.torch import load_file

import networks
import networks_gpt
import networks_vit
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


def count(state, prefix):
    """How many modules PREFIX.0, PREFIX.1, ... there are."""
    found = {key[len(prefix) :].split(".")[1] for key in state if key.startswith(f"{prefix}.")}
    return len(found)


def deit(state, heads):
    width, patch = state["cls_token"].shape[2], state["patch_embed.proj.weight"].shape[2]
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
    classes = state["head.bias"].shape[0]
    return networks_vit.DeiT(side * patch, patch, width, count(state, "blocks"), heads or width // 64, classes)


def swin(state, image):
    width, _, patch, _ = state["patch_embed.proj.weight"].shape
    stages = range(count(state, "layers"))
    table = [state[f"layers.{s}.blocks.0.attn.relative_position_bias_table"].shape for s in stages]
    depths = [count(state, f"layers.{s}.blocks") for s in stages]
    window = (round(table[0][0] ** 0.5) + 1) // 2
    return networks_vit.Swin(
        image, patch, width, depths, [shape[1] for shape in table], window, state["head.fc.bias"].shape[0]
    )


def gpt(state, heads):
    vocabulary, width = state["transformer.wte.weight"].shape
    context, layers = state["transformer.wpe.weight"].shape[0], count(state, "transformer.h")
    bias = "transformer.ln_f.bias" in state
    return networks_gpt.Gpt(layers, heads or width // 64, width, context, vocabulary, bias)


def build(state, name, args):
    if name == "mlp":
        return networks.mlp(mlp_widths(state))
    if name.startswith("deit"):
        return deit(state, args.heads)
    if name.startswith("swin"):
        return swin(state, args.image)
    if name.startswith("gpt"):
        return gpt(state, args.heads)
    return networks.build(name, classes=class_count(state, name), activation=args.activation)


def check_tensors(module, state):
    """What load_state_dict forgives: other types, and a missing num_batches_tracked."""
    for key, value in module.state_dict().items():
        if key not in state:
            raise ValueError(f"no tensor {key}")
        if state[key].dtype != value.dtype:
            raise ValueError(f"{key}: {state[key].dtype}, expected {value.dtype}")


def load(path, name, args):
    state = load_file(path)
    module = build(state, name, args)
    module.load_state_dict(state, strict=True)
    check_tensors(module, state)
    print(f"ok {name}: {len(state)} tensors, {networks.count_parameters(module)} parameters")
    return module


def logit_error(module, path, data):
    """Largest difference from the logits stored beside the images or tokens; NaN counts as infinite."""
    stored = load_file(path)
    inputs = stored["tokens"].long() if "tokens" in stored else normalise(stored["images"], data)
    with torch.no_grad():
        logits = module.double().eval()(inputs)
    if logits.shape != stored["logits"].shape:
        raise ValueError(f"logits {list(stored['logits'].shape)}, expected {list(logits.shape)}")
    error = (logits - stored["logits"].double()).abs()
    return error.nan_to_num(nan=float("inf")).max().item()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="safetensors file to check")
    parser.add_argument("--model", required=True, choices=networks.COUNTS)
    parser.add_argument("--activation", default="relu", choices=["relu", "tanh"], help="lenet5's")
    parser.add_argument("--heads", type=int, default=0, help="deit's and gpt's, where they are not 64 wide each")
    parser.add_argument("--image", type=int, default=224, help="swin's, pixels a side")
    parser.add_argument("--logits", help="safetensors file with images (u8) or tokens, and logits")
    parser.add_argument("--data", choices=NORMALISE, help="whose normalisation the images need")
    return parser.parse_args()


def main():
    args = parse_arguments()
    data = args.data or ("fashion-mnist" if args.model in ("mlp", "lenet5") else "cifar10")
    try:
        module = load(args.file, args.model, args)
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
