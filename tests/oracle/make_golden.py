"""Writes every golden file: python3 make_golden.py [--out DIR]. See README.md."""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

import adams
import golden_analysis
import golden_attention
import golden_curvature
import golden_ops
import golden_optim
import golden_train
import golden_welch
import hessian
import hessian_net
import kbfgs
import muon
import networks
import networks_vit
import newton_muon
import ngd
import philox
import shampoo
import shampoo_paper
import soap
import store

DTYPES = {torch.float32: "F32", torch.int64: "I64"}


def write_state_dict(path, module):
    """One line per tensor in state_dict order: name, dtype, shape ([] for a scalar)."""
    lines = []
    for name, value in module.state_dict().items():
        shape = ",".join(str(size) for size in value.shape)
        lines.append(f"{name} {DTYPES[value.dtype]} [{shape}]\n")
    path.write_text("".join(lines))


def write_lenet5(out, module):
    """A state dict as the safetensors package writes it, and the logits it gives."""
    images, labels = golden_train.make_images(99, (1, 16, 1, 28, 28))
    path = out / "lenet5_torch.safetensors"
    save_file(module.float().state_dict(), path)
    path.chmod(0o644)  # save_file makes it private
    with torch.no_grad():
        logits = module.double().eval()(golden_train.normalise(images[0], "fashion-mnist"))
    store.save(
        out / "lenet5_torch_logits.safetensors",
        {"images": images[0], "labels": labels[0], "logits": logits.float()},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order
    torch.use_deterministic_algorithms(True)

    networks.check_counts()
    networks_vit.check_names()
    golden_ops.write(out / "ops.safetensors")
    golden_train.write(out / "train_mlp.safetensors", "mlp", seed=1)
    lenet5 = golden_train.write(out / "train_lenet5.safetensors", "lenet5", seed=2)
    golden_train.write(out / "train_densenet.safetensors", "densenet", seed=9)
    golden_train.write(out / "train_bottleneck.safetensors", "bottleneck", seed=10)
    golden_train.write(out / "train_resnet8.safetensors", "resnet8", seed=3)
    golden_train.write(out / "train_wrn16.safetensors", "wrn16", seed=4)
    golden_train.write(out / "train_deit.safetensors", "deit", seed=5)
    golden_train.write(out / "train_swin.safetensors", "swin", seed=6)
    golden_train.write(out / "train_gpt_char.safetensors", "gpt_char", seed=7)
    golden_train.write(out / "train_gpt2.safetensors", "gpt2", seed=8)
    golden_optim.write_optimizers(out / "optim.safetensors")
    golden_optim.write_schedules(out / "schedule.json")
    golden_curvature.write(out)
    kbfgs.write(out)
    golden_attention.write(out)
    golden_analysis.write(out)
    adams.write(out)
    newton_muon.write(out)
    muon.write(out)
    shampoo.write(out)
    shampoo_paper.write(out)
    soap.write(out)
    hessian.write(out)
    hessian_net.write(out)
    ngd.write(out)
    convolutional = ("mlp", "lenet5", "resnet20", "resnet110", "wrn28-10", "densenet121", *networks.BOTTLENECKS)
    for name in (*convolutional, *networks.TRANSFORMERS):
        write_state_dict(out / f"state_dict_{name}.txt", networks.build(name))
    write_lenet5(out, lenet5)
    philox.write(out / "philox.json")
    golden_welch.write(out / "welch.json")


if __name__ == "__main__":
    main()
