"""Times PyTorch's eager training step on the CPU, the peer that abar is measured against.

    python3 peer_torch.py --model lenet5 --batch 128 --threads 2 --steps 20 --rounds 5

A step is forward, cross-entropy, backward and SGD with momentum 0.9 on one fixed float batch.
Each round runs a block of steps in NCHW, then one in channels-last, so that noise on the
machine meets both. Prints one JSON object, times in milliseconds.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "oracle"))
import networks  # noqa: E402

SHAPES = {"lenet5": (1, 28, 28), "resnet20": (3, 32, 32)}
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
OPTIMIZERS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
WARM_UP = 3


class Run:
    """One network in one memory format, with its optimizer, batch and step times."""

    def __init__(self, model, batch, memory_format, optimizer):
        torch.manual_seed(0)
        self.module = networks.build(model).to(memory_format=memory_format).train()
        x = torch.randn(batch, *SHAPES[model])
        self.x = x.contiguous(memory_format=memory_format)
        self.labels = torch.randint(10, (batch,))
        self.optimizer = torch.optim.SGD(
            self.module.parameters(), lr=0.01, momentum=0.9, **OPTIMIZERS[optimizer]
        )
        self.times = []

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.module(self.x), self.labels).backward()
        self.optimizer.step()

    def block(self, steps):
        self.step()  # refills the caches after the other format's block; not timed
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            self.times.append(1e3 * (time.perf_counter() - start))


def fastest_optimizer(model, steps=30):
    """The quickest of torch's SGD implementations for this network's parameters."""
    medians = {}
    for name in OPTIMIZERS:
        run = Run(model, 2, torch.contiguous_format, name)
        run.step()
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            run.optimizer.step()
            times.append(time.perf_counter() - start)
        medians[name] = statistics.median(times)
    return min(medians, key=medians.get)


def summary(times):
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return {
        "median_ms": round(statistics.median(times), 3),
        "p10_ms": round(cuts[0], 3),
        "p90_ms": round(cuts[-1], 3),
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="lenet5")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="timed steps in a block")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each format")
    args = parser.parse_args()
    if min(args.batch, args.threads, args.steps, args.rounds) < 1 or args.steps * args.rounds < 2:
        parser.error("numbers must be positive, and two steps at least")
    return args


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    optimizer = fastest_optimizer(args.model)
    runs = {
        name: Run(args.model, args.batch, memory_format, optimizer)
        for name, memory_format in FORMATS.items()
    }
    for run in runs.values():
        for _ in range(WARM_UP):
            run.step()
    for _ in range(args.rounds):
        for run in runs.values():
            run.block(args.steps)
    result = {**vars(args), "torch": torch.__version__, "optimizer": optimizer}
    result.update({name: summary(run.times) for name, run in runs.items()})
    result["best_ms"] = min(result[name]["median_ms"] for name in runs)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
