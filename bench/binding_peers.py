"""Time and memory of abar.torch's optimizers beside those of other packages, in one run:

    python3 bench/binding_peers.py [--model resnet18|vit-s] [--rounds 3] [--batch N]

Needs torchvision for resnet18; pytorch_optimizer (pip install pytorch_optimizer) for its SOAP and Shampoo, whose rows are left out
where it is missing. float32 on the CPU, one thread, images of 32 x 32 pixels for resnet18 and 64 x 64 in patches of 16 for ViT-S.

A round is 10 steps of every optimizer, in turns: MAC's statistics every 5 steps, whatever is inverted, decomposed or rotated once
in a round. Soap's convolutions have a factor for each mode, as in pytorch_optimizer. Times are CPU time: those of the update (step()), and of the whole step over the same of torch's SGD in this round; median and
range of the rounds. Memory is that of the optimizer's state, in bytes per parameter of the model."""

import argparse
import importlib.util
import statistics
import sys
import time

import binding_begin  # noqa: F401  first: it finds the others

import torch
import abar.torch
import networks_vit
import torch.nn.functional as F

STEPS, LR = 10, 1e-5
OFTEN = {"tcov": 5, "tinv": STEPS}


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=100)


MODELS = {
    "resnet18": (resnet18, 32, 16, "ResNet-18 (torchvision), 32 x 32, 100 classes"),
    "vit-s": (lambda: networks_vit.DeiT(64, 16, 384, 12, 6, 100), 64, 8, "ViT-S, 64 x 64 in patches of 16, 100 classes"),
}


def torch_muon(model):
    """As its documentation says: matrices of hidden layers, and AdamW for the rest."""
    inside = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.startswith("head")]
    rest = [p for p in model.parameters() if all(p is not one for one in inside)]
    return torch.optim.Muon(inside, lr=LR), torch.optim.AdamW(rest, lr=LR)


def peer(name, model, **settings):
    import pytorch_optimizer

    return (getattr(pytorch_optimizer, name)(model.parameters(), lr=LR, **settings),)


def optimizers(model_name):
    """Name: what makes it of a model, as a tuple of optimizers."""
    found = {
        "torch SGD, momentum": lambda m: (torch.optim.SGD(m.parameters(), LR, 0.9),),
        "torch AdamW": lambda m: (torch.optim.AdamW(m.parameters(), LR),),
    }
    if model_name == "vit-s" and hasattr(torch.optim, "Muon"):  # refuses convolutions
        found["torch Muon, AdamW"] = torch_muon
    if importlib.util.find_spec("pytorch_optimizer"):
        found["pytorch_optimizer SOAP"] = lambda m: peer("SOAP", m, precondition_frequency=STEPS)
        found["pytorch_optimizer Shampoo"] = lambda m: peer("Shampoo", m, preconditioning_compute_steps=STEPS)
    else:
        print("pytorch_optimizer is not installed: its rows are left out")
    found.update(
        {
            "abar MAC": lambda m: (abar.torch.MAC(m, LR, momentum=0.9, **OFTEN),),
            "abar AdamW": lambda m: (abar.torch.AdamW(m, LR),),
            "abar Muon": lambda m: (abar.torch.Muon(m, LR),),
            "abar Soap": lambda m: (abar.torch.Soap(m, LR, freq=STEPS, soap_conv="modes"),),
            "abar Shampoo": lambda m: (abar.torch.Shampoo(m, LR, freq=STEPS),),
        }
    )
    return found


def state_bytes(optimizer):
    if isinstance(optimizer, abar.torch.CurvatureOptimizer):
        return optimizer._engine.state_bytes()
    seen = {}

    def look(value):
        if torch.is_tensor(value):
            seen[value.data_ptr()] = value.numel() * value.element_size()
        elif isinstance(value, dict):
            for one in value.values():
                look(one)
        elif isinstance(value, (list, tuple)):
            for one in value:
                look(one)
        elif hasattr(value, "__dict__"):  # Shampoo of pytorch_optimizer keeps objects
            look(vars(value))

    look(dict(optimizer.state))
    return sum(seen.values())


class Run:
    def __init__(self, model_name, make, batch):
        torch.manual_seed(0)
        build, side, usual, _ = MODELS[model_name]
        self.model = build().train()
        self.optimizers = make(self.model)
        draw = torch.Generator().manual_seed(1)
        self.x = torch.randn(batch or usual, 3, side, side, generator=draw)
        self.y = torch.randint(100, (len(self.x),), generator=draw)
        self.whole, self.updates = [], []  # ms of a step, one entry per round

    def round(self):
        start, updates = time.process_time(), 0.0
        for _ in range(STEPS):
            self.model.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            before = time.process_time()
            for optimizer in self.optimizers:
                optimizer.step()
            updates += time.process_time() - before
        self.whole.append(1e3 * (time.process_time() - start) / STEPS)
        self.updates.append(1e3 * updates / STEPS)


def show(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(name, batch, rounds):
    runs = {}
    for label, make in optimizers(name).items():
        try:
            runs[label] = Run(name, make, batch)
            runs[label].round()  # warms up; not counted
            print(f"{label}: {runs[label].updates[0]:.1f} ms", file=sys.stderr, flush=True)
        except Exception as error:  # a peer that cannot train this model is a row with its reason
            if label.startswith(("abar", "torch")):
                raise
            runs.pop(label, None)
            print(f"{label}: {type(error).__name__}: {error}")
    for run in runs.values():
        run.whole.clear(), run.updates.clear()
    for _ in range(rounds):
        for run in runs.values():
            run.round()
    base = runs["torch SGD, momentum"]
    count = sum(p.numel() for p in base.model.parameters())
    print(f"\n{MODELS[name][3]}, {count / 1e6:.1f} million parameters, batch {len(base.x)}\n")
    print("| | update, ms (range) | whole step over SGD's (range) | state, bytes per parameter |\n|---|---|---|---|")
    for label, run in runs.items():
        ratios = [mine / other for mine, other in zip(run.whole, base.whole)]
        size = sum(map(state_bytes, run.optimizers)) / count
        print(f"| {label} | {show(run.updates, 1)} | {show(ratios, 2)} | {size:.1f} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    version = ""
    if importlib.util.find_spec("pytorch_optimizer"):
        from importlib.metadata import version as of

        version = f", pytorch_optimizer {of('pytorch_optimizer')}"
    print(f"PyTorch {torch.__version__}{version}; CPU time of one thread, {args.rounds} rounds of {STEPS} steps")
    for name in args.model or MODELS:
        table(name, args.batch, args.rounds)


if __name__ == "__main__":
    main()
