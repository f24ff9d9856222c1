"""Twenty training steps of small networks in float64: losses, first gradients, final state.

Weights start as float32 values, images are u8, so that abar can start from the same numbers. The small runs are compared in float32:
their rates are such that noise of 2e-7 on every weight and step moves no loss by more than 3e-5 of itself. Every parameter is decayed. Losses are those of the training batch, before its update.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F

import networks
import networks_gpt
import networks_vit
import store

STEPS = 20
FULL_GRADIENT = 512  # parameters with at most this many elements keep their whole gradient

NORMALISE = {
    "fashion-mnist": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}

TASKS = {
    "mlp": {
        "build": lambda: networks.mlp((20, 16, 10)),
        "model": {"name": "mlp", "widths": [20, 16, 10]},
        "data": "fashion-mnist",
        "shape": (5, 32, 1, 4, 5),  # (K, N, C, H, W)
        "lr": 0.05,
        "adamw_decay": 0.05,
    },
    "lenet5": {
        "build": lambda: networks.lenet5(),
        "model": {"name": "lenet5", "activation": "relu"},
        "data": "fashion-mnist",
        "shape": (5, 16, 1, 28, 28),
        "lr": 0.05,
        "adamw_decay": 0.05,
    },
    "densenet": {  # odd channel counts, one of them halved
        "build": lambda: networks.densenet((2, 3, 2, 2), 3, images=16),
        "model": {"name": "densenet", "layers": [2, 3, 2, 2], "growth": 3},
        "data": "cifar10",
        "shape": (3, 16, 3, 16, 16),
        "lr": 0.05,
        "small_lr": 1e-5,
        "adamw_decay": 0.5,
        "whole_gradients": True,
    },
    "bottleneck": {  # 48 x 48 pixels become 12, 6, 3 and 2
        "build": lambda: networks.resnet_imagenet((1, 2, 1, 1), width=4, classes=10),
        "model": {"name": "resnet_imagenet", "blocks": [1, 2, 1, 1], "width": 4},
        "data": "cifar10",
        "shape": (3, 8, 3, 48, 48),
        "lr": 0.05,
        "small_lr": 1e-5,
        "adamw_decay": 0.5,
        "whole_gradients": True,
    },
    "resnet8": {
        "build": lambda: networks.resnet_cifar(1),
        "model": {"name": "resnet_cifar", "n": 1, "width": 16},
        "data": "cifar10",
        "shape": (4, 16, 3, 32, 32),
        "lr": 0.1,
        "adamw_decay": 0.5,
    },
    "wrn16": {
        "build": lambda: networks.wide_resnet(2, 2, stem=4),
        "model": {"name": "wide_resnet", "n": 2, "widen": 2, "stem": 4},
        "data": "cifar10",
        "shape": (4, 16, 3, 16, 16),
        "lr": 0.1,
        "adamw_decay": 0.5,
    },
    "deit": {
        "build": lambda: lively(networks_vit.DeiT(32, 4, 24, 2, 3, 10)),
        "model": {"name": "deit", "patch": 4, "width": 24, "depth": 2, "heads": 3},
        "data": "cifar10",
        "shape": (3, 4, 3, 32, 32),
        "lr": 0.02,
        "adamw_decay": 0.05,
        "whole_gradients": True,
    },
    # a grid of 12 x 12, then of 6 x 6 tokens: the second block of both stages is shifted, by half of an odd window
    "swin": {
        "build": lambda: lively(networks_vit.Swin(24, 2, 8, (2, 2), (2, 4), 3, 10)),
        "model": {"name": "swin", "patch": 2, "width": 8, "depths": [2, 2], "heads": [2, 4], "window": 3},
        "data": "cifar10",
        "shape": (3, 4, 3, 24, 24),
        "lr": 0.02,
        "adamw_decay": 0.05,
        "whole_gradients": True,
    },
    # fewer tokens than positions
    "gpt_char": {
        "build": lambda: lively(networks_gpt.gpt_char(2, 2, 16, 20, 13)),
        "model": {"name": "gpt-char", "layers": 2, "heads": 2, "width": 16, "context": 20, "vocabulary": 13},
        "text": (4, 4, 16, 13),  # (K, N, T), vocabulary
        "lr": 0.05,
        "adamw_decay": 0.1,
        "whole_gradients": True,
    },
    "gpt2": {
        "build": lambda: lively(networks_gpt.gpt2(1, 3, 12, 9, 11)),
        "model": {"name": "gpt2", "layers": 1, "heads": 3, "width": 12, "context": 9, "vocabulary": 11},
        "text": (4, 4, 9, 11),
        "lr": 0.05,
        "adamw_decay": 0.1,
        "whole_gradients": True,
    },
}


def lively(module):
    """Weights that make attention choose, norms that scale and biases that shift: the usual first ones hide mistakes."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif parameter.ndim == 1:
                parameter.normal_(std=0.2)
            elif any(word in name for word in ("token", "pos_embed", "table", "wpe")):
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=1.5 / parameter[0].numel() ** 0.5)
    return module



def make_images(seed, shape, classes=10):
    """u8 images: a coarse pattern per class plus noise. Returns images and int32 labels."""
    rng = np.random.default_rng(seed)
    k, n, c, h, w = shape
    coarse = rng.normal(size=(classes, c, (h + 3) // 4, (w + 3) // 4))
    patterns = coarse.repeat(4, axis=2).repeat(4, axis=3)[:, :, :h, :w]
    if h < 8:  # too small for coarse patterns
        patterns = rng.normal(size=(classes, c, h, w))
    labels = rng.integers(classes, size=(k, n))
    values = 100 + 40 * patterns[labels] + 40 * rng.normal(size=shape)
    return values.round().clip(0, 255).astype(np.uint8), labels.astype(np.int32)


def make_text(seed, shape):
    """Tokens and the tokens that follow them: a rule that mostly holds. Both (K, N, T) int32."""
    rng = np.random.default_rng(seed)
    k, n, t, vocabulary = shape
    text = np.zeros((k, n, t + 1), dtype=np.int32)
    text[:, :, 0] = rng.integers(vocabulary, size=(k, n))
    for i in range(t):
        chance = rng.integers(vocabulary, size=(k, n))
        follows = (3 * text[:, :, i] + 1) % vocabulary
        text[:, :, i + 1] = np.where(rng.random((k, n)) < 0.8, follows, chance)
    return text[:, :, :-1].copy(), text[:, :, 1:].copy()


def normalise(images, data):
    """(u8 / 255 - mean) / std per channel, in float64."""
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in NORMALISE[data])
    return (torch.as_tensor(images).double() / 255 - mean) / std


def runs_of(task):
    sgd = {"rule": "sgd", "lr": task["lr"], "momentum": 0.9, "nesterov": False, "weight_decay": 5e-4}
    adamw = {
        "rule": "adamw",
        "lr": 1e-3,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "weight_decay": task["adamw_decay"],
    }
    return {
        "sgd": sgd,
        "sgd_nesterov": {**sgd, "nesterov": True},
        "sgd_small": {**sgd, "lr": task.get("small_lr", 3e-4)},
        "adamw": adamw,
        "adamw_small": {**adamw, "lr": 3e-5},
    }


def make_optimizer(module, settings):
    options = {key: value for key, value in settings.items() if key != "rule"}
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[settings["rule"]]
    return kind(module.parameters(), **options)


def batch_loss(module, inputs, labels, step):
    k = step % len(inputs)
    return F.cross_entropy(module(inputs[k]).flatten(0, -2), labels[k].flatten())


def train(module, inputs, labels, settings):
    """STEPS steps from module's weights. Returns the trained copy and the losses."""
    module = copy.deepcopy(module).train()
    optimizer = make_optimizer(module, settings)
    losses = []
    for step in range(STEPS):
        loss = batch_loss(module, inputs, labels, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return module, torch.tensor(losses, dtype=torch.float64)


def first_gradients(module, inputs, labels, whole):
    module = copy.deepcopy(module).train()
    batch_loss(module, inputs, labels, 0).backward()
    out = {}
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        out[f"grad_sum.{name}"] = grad.sum().reshape(1)
        out[f"grad_sumsq.{name}"] = grad.square().sum().reshape(1)
        if whole or grad.numel() <= FULL_GRADIENT:
            out[f"grad.{name}"] = grad
    return out


def final_state(module, inputs, suffix=""):
    """Evaluation logits on batch 0 and the running statistics of every batch norm."""
    with torch.no_grad():
        out = {f"logits0{suffix}": module.eval()(inputs[0])}
    for name, buffer in module.named_buffers():
        if "running_" in name:
            out[f"running{suffix}.{name}"] = buffer
    return out


def make_data(task, seed):
    """What the file holds of it, the batches as the module reads them, and metadata."""
    if "text" in task:
        tokens, labels = make_text(seed, task["text"])
        data = {"batches": len(tokens), "steps": STEPS}
        return {"tokens": tokens, "labels": labels}, torch.as_tensor(tokens).long(), data
    images, labels = make_images(seed, task["shape"])
    mean, std = NORMALISE[task["data"]]
    data = {"mean": mean, "std": std, "batches": len(images), "steps": STEPS}
    return {"images": images, "labels": labels}, normalise(images, task["data"]), data


def write(path, name, seed):
    """Writes one training file; returns the network after the sgd run."""
    task = TASKS[name]
    held, inputs, data = make_data(task, seed)
    targets = torch.as_tensor(held["labels"]).long()
    torch.manual_seed(seed)
    start = task["build"]()
    tensors = {f"w.{key}": value.clone() for key, value in start.named_parameters()}
    tensors.update(held)
    start = start.double()
    tensors.update(first_gradients(start, inputs, targets, task.get("whole_gradients", False)))
    metadata = {"model": task["model"], "data": data}
    trained = {}
    for run, settings in runs_of(task).items():
        trained[run], tensors[f"loss.{run}"] = train(start, inputs, targets, settings)
        metadata[run] = settings
    tensors.update(final_state(trained["sgd"], inputs))
    tensors.update(final_state(trained["sgd_small"], inputs, "_small"))
    store.save(path, tensors, metadata)
    return trained["sgd"]
