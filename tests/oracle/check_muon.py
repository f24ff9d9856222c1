"""Compares muon.py with torch.optim.Muon over the steps of muon_steps.safetensors, and prints the deviations.

torch.optim.Muon computes O in bfloat16. Here its function is replaced by a copy that keeps the dtype,
for one triple, as torch has it; the last lines are torch as shipped. Needs PyTorch 2.9 or later.
"""

import numpy as np
import torch
from torch.optim import _muon

import muon

FORMS = {"original": "original", "match-rms": "match_rms_adamw", "unclamped": "spectral_unclamped"}
SHIPPED = _muon._zeropower_via_newtonschulz


def keeping_dtype(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        s = x @ x.T
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


def torch_rule(dtype):
    class Rule:
        def __init__(self, w, settings):
            self.p = torch.nn.Parameter(torch.tensor(w.reshape(w.shape[0], -1), dtype=dtype))
            self.optim = torch.optim.Muon(
                [self.p],
                lr=settings["lr"],
                weight_decay=settings["weight_decay"],
                momentum=settings["momentum"],
                nesterov=settings["nesterov"],
                ns_coefficients=muon.triples(settings["ns"])[0],
                ns_steps=settings["ns_steps"],
                adjust_lr_fn=FORMS[settings["adjust"]],
            )

        def step(self, grad):
            self.p.grad = torch.tensor(grad.reshape(self.p.shape), dtype=dtype)
            self.optim.step()

        @property
        def w(self):
            return self.p.detach().double().numpy()

    return Rule


def deviation(case, dtype, formula):
    """Worst over parameters: largest difference over largest weight, and over the distance moved (norms)."""
    settings = {**muon.DEFAULTS, **muon.CASES[case]}
    initial, grads = muon.make_problem()
    _muon._zeropower_via_newtonschulz = formula
    theirs = muon.run(initial, grads, settings, torch_rule(dtype))
    ours = muon.run(initial, grads, settings)
    largest = max(np.abs(theirs[n] - ours[n]).max() / np.abs(ours[n]).max() for n in ours)
    moved = max(np.linalg.norm(theirs[n] - ours[n]) / np.linalg.norm(ours[n] - initial[n]) for n in ours)
    return largest, moved


def comparable(case):
    settings = {**muon.DEFAULTS, **muon.CASES[case]}
    one_triple = len(muon.SETS[settings["ns"]][0]) == 1
    return one_triple and settings["adjust"] in FORMS and not settings["normuon"]


def main():
    cases = [case for case in muon.CASES if comparable(case)]
    failed = False
    for title, dtype, formula, tolerance in (
        ("float64", torch.float64, keeping_dtype, 1e-13),
        ("float32", torch.float32, keeping_dtype, 1e-5),
        ("shipped", torch.float32, SHIPPED, 2e-2),
    ):
        for case in cases:
            largest, moved = deviation(case, dtype, formula)
            bad = bool((moved if title == "shipped" else largest) > tolerance)
            failed |= bad
            print(f"{title} {case:15} {largest:.1e} of the largest weight, {moved:.1e} of the distance{'  TOO FAR' * bad}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
