"""Fifty optimizer steps in float64 on given gradients, and learning-rate schedules."""

import json
import math

import torch

import store

STEPS = 50
SHAPES = {"a": (3, 5), "b": (7,), "c": (2, 3, 2, 2)}


def sgd(**changes):
    settings = {"lr": 0.1, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    return {"rule": "sgd", **settings, **changes}


def adamw(**changes):
    settings = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    return {"rule": "adamw", **settings, **changes}


CASES = {
    "sgd_plain": sgd(),
    "sgd_momentum": sgd(momentum=0.9),
    "sgd_nesterov": sgd(momentum=0.9, nesterov=True),
    "sgd_decay": sgd(weight_decay=0.01),
    "sgd_momentum_decay": sgd(momentum=0.9, weight_decay=0.01),
    "sgd_nesterov_decay": sgd(momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_decoupled": sgd(momentum=0.9, weight_decay=0.01, decoupled=True),
    "sgd_momentum_clip": sgd(momentum=0.9, weight_decay=0.01, clip=0.5),
    "adamw": adamw(),
    "adamw_decay": adamw(weight_decay=0.1),
    "adamw_betas": adamw(betas=[0.9, 0.99]),
    "adamw_betas_decay": adamw(betas=[0.9, 0.99], weight_decay=0.1),
    "adamw_clip": adamw(weight_decay=0.1, clip=0.5),
}


def make_problem():
    """Initial parameters, and gradients whose norms lie on both sides of the clip at 0.5."""
    rng = torch.Generator().manual_seed(7)
    initial, grads = {}, {}
    scale = torch.logspace(-2, 0.5, STEPS, dtype=torch.float64)[torch.randperm(STEPS, generator=rng)]
    for name, shape in SHAPES.items():
        initial[name] = torch.randn(*shape, generator=rng, dtype=torch.float64)
        grad = 0.3 + torch.randn(STEPS, *shape, generator=rng, dtype=torch.float64)
        grads[name] = grad * scale.reshape(-1, *[1] * len(shape))
    norms = sum(g.flatten(1).square().sum(1) for g in grads.values()).sqrt()
    assert norms.min() < 0.4 and norms.max() > 1
    return initial, grads


class DecoupledSgd:
    """v <- momentum v + g;  W <- (1 - lr decay) W - lr v."""

    def __init__(self, params, lr, momentum, weight_decay, nesterov):
        assert not nesterov
        self.params = params
        self.lr, self.momentum, self.decay = lr, momentum, weight_decay
        self.velocity = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        for p, v in zip(self.params, self.velocity):
            v.copy_(self.momentum * v + p.grad)
            p.copy_((1 - self.lr * self.decay) * p - self.lr * v)


def make_optimizer(params, settings):
    options = {k: v for k, v in settings.items() if k not in ("rule", "clip", "decoupled")}
    if settings.get("decoupled"):
        return DecoupledSgd(params, **options)
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[settings["rule"]]
    return kind(params, **options)


def run(initial, grads, settings):
    params = {name: torch.nn.Parameter(value.clone()) for name, value in initial.items()}
    optimizer = make_optimizer(list(params.values()), settings)
    for step in range(STEPS):
        for name, parameter in params.items():
            parameter.grad = grads[name][step].clone()
        if "clip" in settings:
            torch.nn.utils.clip_grad_norm_(params.values(), settings["clip"])
        optimizer.step()
    return params


def write_optimizers(path):
    initial, grads = make_problem()
    tensors = {f"initial.{name}": value for name, value in initial.items()}
    tensors.update({f"grad.{name}": value for name, value in grads.items()})
    for case, settings in CASES.items():
        for name, value in run(initial, grads, settings).items():
            tensors[f"{case}.{name}"] = value
    metadata = {case: {**settings, "steps": STEPS} for case, settings in CASES.items()}
    store.save(path, tensors, metadata)


LR, EPOCHS, STEPS_PER_EPOCH = 0.1, 4, 10


def half_cosine(fraction):
    return LR * (1 + math.cos(math.pi * fraction)) / 2


def base_rate(kind, step, warmup_epochs):
    """The schedule after warm-up. Milestones of `step` count from the start of training."""
    epoch = step // STEPS_PER_EPOCH
    if kind == "cosine_step":
        start, total = warmup_epochs * STEPS_PER_EPOCH, EPOCHS * STEPS_PER_EPOCH
        return half_cosine((step - start) / (total - start))
    if kind == "cosine_epoch":
        return half_cosine((epoch - warmup_epochs) / (EPOCHS - warmup_epochs))
    if kind == "step":
        return LR * 0.1 ** sum(epoch >= EPOCHS * share for share in (0.5, 0.75))
    assert kind == "constant"
    return LR


def learning_rate(kind, step, warmup_epochs):
    warmup = warmup_epochs * STEPS_PER_EPOCH
    if step < warmup:
        return LR * (step + 1) / warmup
    return base_rate(kind, step, warmup_epochs)


def write_schedules(path):
    schedules = []
    for kind in ("cosine_step", "cosine_epoch", "step", "constant"):
        for warmup_epochs in (0, 1):
            rates = [learning_rate(kind, k, warmup_epochs) for k in range(EPOCHS * STEPS_PER_EPOCH)]
            schedules.append({"kind": kind, "warmup_epochs": warmup_epochs, "rates": rates})
    out = {
        "lr": LR,
        "epochs": EPOCHS,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "milestones": [0.5, 0.75],
        "factor": 0.1,
        "schedules": schedules,
    }
    path.write_text(json.dumps(out, indent=1) + "\n")
