"""Compares adams.py with other people's code over the same steps, prints the deviations, and writes what that code computes:
{nadamw,sfadamw}_peer.safetensors, in float64.

nadamw   timm.optim.nadamw.NAdamW. torch.optim.NAdam is another algorithm, with a schedule of its momentum: it is the same rule
         only where beta1 is 0, which is one more case; how far it is away otherwise is printed.
sfadamw  AdamWScheduleFree of facebookresearch/schedule_free 1.4.1: give its adamw_schedulefree.py as the argument.

    python3 tests/oracle/check_adams.py [adamw_schedulefree.py]
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from timm.optim.nadamw import NAdamW

import adams

TOLERANCE = 1e-12


class Peer:
    """One parameter under a torch optimizer."""

    def __init__(self, w, build):
        self.p = torch.nn.Parameter(torch.tensor(w))
        self.optim = build([self.p])
        if hasattr(self.optim, "train"):
            self.optim.train()

    def step(self, grad, eta):
        self.p.grad = torch.tensor(grad)
        for group in self.optim.param_groups:
            group["lr"] = eta
        self.optim.step()

    @property
    def w(self):
        return self.p.detach().numpy().copy()

    @property
    def x(self):
        if not hasattr(self.optim, "eval"):
            return self.w
        y = self.w
        self.optim.eval()
        x = self.w
        with torch.no_grad():
            self.p.copy_(torch.tensor(y))
        return x


def timm_nadamw(s):
    return lambda params: NAdamW(
        params, lr=s["lr"], betas=(s["beta1"], s["beta2"]), eps=s["eps"], weight_decay=s["weight_decay"]
    )


def torch_nadam(s):
    return lambda params: torch.optim.NAdam(
        params,
        lr=s["lr"],
        betas=(s["beta1"], s["beta2"]),
        eps=s["eps"],
        weight_decay=s["weight_decay"],
        decoupled_weight_decay=True,
    )


def schedule_free(path):
    spec = importlib.util.spec_from_file_location("adamw_schedulefree", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda s: lambda params: module.AdamWScheduleFree(
        params,
        lr=s["lr"],
        betas=(s["beta1"], s["beta2"]),
        eps=s["eps"],
        weight_decay=s["weight_decay"],
        r=s["sf-time-power"],
        weight_lr_power=s["sf-rate-power"],
    )


def deviation(ours, theirs):
    return max(np.abs(theirs[n] - ours[n]).max() / np.abs(ours[n]).max() for n in ours)


def compare(rule, case, build):
    """Prints the deviation; returns it and what the other code computes."""
    settings = adams.all_settings(rule, case)
    initial, grads = adams.make_problem()
    ours = adams.run(rule, initial, grads, settings)
    theirs = adams.run(rule, initial, grads, settings, lambda _, w, s: Peer(w, build(s)))
    worst = max(deviation(a, b) for a, b in zip(ours, theirs))
    print(f"{rule:8} {case:14} {worst:.1e}")
    return worst, (settings, *theirs)


def main():
    golden, worst = Path(__file__).resolve().parent.parent / "golden", 0.0
    builders = {"nadamw": timm_nadamw}
    if len(sys.argv) > 1:
        builders["sfadamw"] = schedule_free(sys.argv[1])
    for rule, build in builders.items():
        ends = {}
        for case in adams.RULES[rule]:
            error, ends[case] = compare(rule, case, build)
            worst = max(worst, error)
        if rule == "nadamw":
            error, ends["torch_nadam"] = compare(rule, "no_momentum", torch_nadam)
            worst = max(worst, error)
            print("torch.optim.NAdam with momentum, not the same rule:")
            compare(rule, "defaults", torch_nadam)
        adams.save(golden / f"{rule}_peer.safetensors", rule, ends)
    sys.exit(1 if worst > TOLERANCE else 0)


if __name__ == "__main__":
    main()
