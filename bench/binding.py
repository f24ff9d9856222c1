"""Times a PyTorch training step with abar.torch.MAC, with torch.optim.SGD and with a MAC written in plain PyTorch.

    python3 binding.py [--model resnet20] [--batch 128] [--threads 2] [--rounds 5]

A step is forward, cross-entropy, backward and update on one fixed batch; MAC takes statistics every 5th step and
refreshes every 50th, as published. The optimizers alternate every five steps, so that other load affects all alike. A
round is 50 steps of each; its time per step is their mean. Ratios are to the SGD of the same round. Without PyTorch it
says so and exits with 0.
"""

import argparse
import os
import statistics
import time

import binding_begin  # noqa: F401  first: it finds the others

import torch
import abar.torch
import networks
import torch.nn.functional as F
from torch import nn

SHAPES = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32)}
LR, MOMENTUM, DAMPING, DECAY = 1e-3, 0.9, 1.0, 0.95
TCOV, TINV = 5, 50


class PlainMac(torch.optim.SGD):
    """MAC written directly from the paper: it unfolds patches, forms the damped matrix, inverts it and multiplies."""

    def __init__(self, model, lr, momentum):
        super().__init__(model.parameters(), lr, momentum, foreach=True)
        self.k, self.mean, self.commits, self.inverse = 0, {}, {}, {}
        self.layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        for module in self.layers:
            module.register_forward_hook(self.observe)

    @torch.no_grad()
    def observe(self, module, inputs, output):
        if self.k % TCOV or not module.training:
            return
        x = inputs[0]
        if isinstance(module, nn.Conv2d):
            x = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
            x = x.transpose(1, 2).flatten(0, 1)  # (N * positions, C * kh * kw)
        if module.bias is not None:
            x = torch.cat([x, x.new_ones(len(x), 1)], 1)
        a = x.mean(0)
        self.mean[module] = DECAY * self.mean.get(module, torch.zeros_like(a)) + (1 - DECAY) * a
        self.commits[module] = self.commits.get(module, 0) + 1

    @torch.no_grad()
    def step(self, closure=None):
        for module in self.layers:
            if self.k % TINV == 0:
                a = self.mean[module] / (1 - DECAY ** self.commits[module])
                damped = torch.outer(a, a) + DAMPING * torch.eye(len(a))
                self.inverse[module] = DAMPING * torch.linalg.inv(damped)
            g = module.weight.grad.flatten(1)
            if module.bias is not None:
                g = torch.cat([g, module.bias.grad[:, None]], 1)
            g = g @ self.inverse[module]
            if module.bias is not None:
                module.bias.grad.copy_(g[:, -1])
                g = g[:, :-1]
            module.weight.grad.copy_(g.reshape(module.weight.shape))
        self.k += 1
        return super().step(closure)


def make_optimizer(name, model):
    if name == "torch SGD":
        return torch.optim.SGD(model.parameters(), LR, MOMENTUM, foreach=True)
    if name == "plain MAC":
        return PlainMac(model, LR, MOMENTUM)
    published = {"damping": DAMPING, "stat_decay": DECAY, "tcov": TCOV, "tinv": TINV}
    return abar.torch.MAC(model, LR, momentum=MOMENTUM, **published)


class Run:
    """One network with one optimizer."""

    def __init__(self, name, args):
        torch.manual_seed(0)
        self.model = networks.build(args.model).train()
        self.x = torch.randn(args.batch, *SHAPES[args.model])
        self.labels = torch.randint(10, (args.batch,))
        self.optimizer = make_optimizer(name, self.model)
        self.times, self.updates = [0.0], [0.0]  # ms per step, one entry per round

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(self.x), self.labels)
        loss.backward()
        start = time.perf_counter()
        self.optimizer.step()
        self.updates[-1] += 1e3 * (time.perf_counter() - start) / TINV
        self.loss = loss.detach()

    def turn(self):
        start = time.perf_counter()
        for _ in range(TCOV):
            self.step()
        self.times[-1] += 1e3 * (time.perf_counter() - start) / TINV


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5, help="cycles of 50 steps with each optimizer")
    args = parser.parse_args()
    if min(args.batch, args.threads, args.rounds) < 1:
        parser.error("numbers must be positive")
    return args


def show(values, form):
    return form.format(statistics.median(values), min(values), max(values))


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    runs = {name: Run(name, args) for name in ("torch SGD", "abar.torch.MAC", "plain MAC")}
    for run in runs.values():
        run.turn()  # warms up; not counted
    for _ in range(args.rounds):
        for run in runs.values():
            run.times.append(0.0)
            run.updates.append(0.0)
        for turn in range(TINV // TCOV):
            names = list(runs)
            for name in names[turn % 3 :] + names[: turn % 3]:  # the order rotates
                runs[name].turn()
    mac, plain = (float(runs[name].loss) for name in ("abar.torch.MAC", "plain MAC"))
    assert abs(mac - plain) <= 0.02 * abs(plain) + 0.01, f"the two MACs do not agree: loss {mac} and {plain}"
    print(
        f"one training step of {args.model} in PyTorch {torch.__version__}, batch {args.batch}, {args.threads} threads, "
        f"tcov {TCOV}, tinv {TINV}; {args.rounds} rounds of {TINV} steps; median (range)"
    )
    print(f"{'optimizer':<16} {'ms a step':>26} {'of it the update':>24} {'time / torch SGD':>24}")
    base = runs["torch SGD"].times[1:]
    for name, run in runs.items():
        times, updates = run.times[1:], run.updates[1:]
        ratios = [mine / other for mine, other in zip(times, base)]
        print(
            f"{name:<16} {show(times, '{:9.2f} ({:6.2f}-{:6.2f})'):>26} "
            f"{show(updates, '{:8.3f} ({:5.2f}-{:5.2f})'):>24} {show(ratios, '{:.3f} ({:.3f}-{:.3f})'):>24}"
        )


if __name__ == "__main__":
    main()
