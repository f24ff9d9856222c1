"""Ratios of the PyTorch binding that should be 1, measured as CPU time of one thread, or wall time of several, in many short turns:

    python3 bench/binding_steps.py [--rounds 60] [--threads 1] [--only step|compiled]

- the passes of a vision transformer that torch.compile has compiled, on steps without statistics, with abar.torch.MAC over the same
  without it (no optimizer looks at the model then, but the compiler's guards must choose one of two graphs);
- MAC's step() over that of torch.optim.SGD(fused=True), both with momentum and decay, on ResNet-18 and a ViT-S: every step counts,
  those with statistics and refreshes too.

Both sides of a ratio take turns within a round. It prints the ratio of the fastest turns, and of a round the median with the
quartiles. Without PyTorch it says so and exits with 0."""

import argparse
import statistics
import time

import binding_begin  # noqa: F401  first: it finds the others

import torch
import abar.torch
import networks_vit
import torch.nn.functional as F

TCOV = 5


def spent_ms(work):
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return 1e3 * (clock() - start)


class Compiled:
    """A small DeiT; optimizer None: plain SGD."""

    def __init__(self, mine):
        torch.manual_seed(0)
        self.model = networks_vit.DeiT(32, 8, 192, 6, 3, 10).train()
        draw = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(8, 3, 32, 32, generator=draw), torch.randint(10, (8,), generator=draw)
        kind = abar.torch.MAC if mine else torch.optim.SGD
        self.optimizer = kind(self.model, 1e-3, tcov=TCOV) if mine else kind(self.model.parameters(), 1e-3)
        self.net = torch.compile(self.model)

    def passes(self):
        F.cross_entropy(self.net(self.x), self.y).backward()

    def turn(self):
        """The times of the steps without statistics; the first of TCOV has some."""
        times = []
        for k in range(TCOV):
            self.optimizer.zero_grad()
            spent = spent_ms(self.passes)
            self.optimizer.step()
            if k > 0:
                times.append(spent)
        return times


class Update:
    """step() alone, after the passes of one small image."""

    def __init__(self, mine, build):
        torch.manual_seed(0)
        self.model = build().eval()
        self.x, self.y = torch.randn(1, 3, 32, 32), torch.tensor([3])
        settings = {"momentum": 0.9, "weight_decay": 5e-4}
        if mine:
            self.optimizer = abar.torch.MAC(self.model, 1e-6, tcov=TCOV, **settings)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6, fused=True, **settings)

    def turn(self):
        times = []
        for _ in range(TCOV):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            times.append(spent_ms(self.optimizer.step))
        return [sum(times) / TCOV]


def resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=10)


def vit_s():
    return networks_vit.DeiT(32, 4, 384, 12, 6, 10)


def compare(title, mine, other, rounds, wanted):
    for _ in range(3):
        mine.turn(), other.turn()
    found = []
    for number in range(rounds):
        pair = (mine, other) if number % 2 else (other, mine)
        spent = {one: one.turn() for one in pair}
        found.append((spent[mine], spent[other]))
    least = [min(t for turn in found for t in turn[side]) for side in (0, 1)]
    ratios = sorted(sum(a) / sum(b) for a, b in found)
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{title}: {least[0]:.2f} and {least[1]:.2f} ms at best, ratio {least[0] / least[1]:.3f}; of a round {middle:.3f} "
        f"({low:.3f}-{high:.3f}); wanted: at most {wanted}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=("step", "compiled"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    threads = "one thread; CPU time" if args.threads == 1 else f"{args.threads} threads; wall time"
    print(f"PyTorch {torch.__version__}, {args.rounds} rounds, {threads}")
    for name, build in (("ResNet-18", resnet18), ("ViT-S", vit_s)) if args.only != "compiled" else ():
        compare(f"step() of MAC over fused SGD, {name}", Update(True, build), Update(False, build), args.rounds, "1.00")
    if args.only != "step" and hasattr(torch, "compile") and hasattr(torch.library, "custom_op"):
        compare("compiled passes of plain steps with MAC over without, ViT", Compiled(True), Compiled(False), args.rounds, "1.01")


if __name__ == "__main__":
    main()
