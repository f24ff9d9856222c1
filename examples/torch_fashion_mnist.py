"""MAC against SGD in PyTorch: LeNet-5 on Fashion-MNIST, from the same weights, over the same batches.

    python3 examples/torch_fashion_mnist.py [--epochs 3] [--data FOLDER] [--out torch_fashion_mnist.svg]

Changing the optimizer is the one line in OPTIMIZERS. Prints the test accuracy of every epoch, and draws the training
loss over steps and over seconds into an SVG. The data set's four .gz files are Debian's dataset-fashion-mnist, or from
its home page.
"""

import argparse
import gzip
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # where abar is not installed
import abar.torch  # noqa: E402

OPTIMIZERS = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
    "MAC": lambda model: abar.torch.MAC(model, lr=0.05, momentum=0.9, weight_decay=5e-4),
}
COLOURS = {"SGD": "#888888", "MAC": "#c0392b"}
BATCH = 128


# ---- data


def read_idx(path):
    """The bytes of an idx file as a tensor: two zeros, a type (8: bytes), the number of dimensions, the dimensions."""
    data = gzip.open(path).read()
    if data[:3] != b"\0\0\x08":
        sys.exit(f"{path}: not an idx file of bytes")
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * data[3] :]), dtype=torch.uint8).reshape(shape)


def load(folder, part):
    """Images (N, 1, 28, 28), normalised, and labels (N)."""
    try:
        images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    except OSError as error:
        sys.exit(f"{error}\ninstall dataset-fashion-mnist, or name the folder of its files with --data")
    return (images.unsqueeze(1).float() / 255 - 0.2860) / 0.3530, labels.long()


# ---- training


class LeNet5(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):  # (N, 1, 28, 28)
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in zip(images.split(1000), labels.split(1000)))
    model.train()
    return 100 * hits / len(labels)


def train(name, data, test, epochs, seed):
    """Returns (seconds, loss) of every step; seconds are of training alone."""
    torch.manual_seed(seed)
    model = LeNet5()
    optimizer = OPTIMIZERS[name](model)
    steps = len(data[0]) // BATCH
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    history, seconds = [], 0.0
    for epoch in range(epochs):
        order = torch.randperm(len(data[0]))
        for chosen in order.split(BATCH)[:steps]:
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(data[0][chosen]), data[1][chosen])
            loss.backward()
            optimizer.step()
            scheduler.step()
            seconds += time.perf_counter() - start
            history.append((seconds, loss.item()))
        print(f"{name}  epoch {epoch + 1}/{epochs}  test accuracy {accuracy(model, *test):.2f} %  {seconds:.1f} s")
    if name == "MAC":
        print(optimizer.report())
    return history


# ---- plotting: an SVG by hand


def smooth(history, window=20):
    """Running means of the loss: (step, seconds, loss)."""
    losses = [loss for _, loss in history]
    points = []
    for i, (seconds, _) in enumerate(history):
        recent = losses[max(0, i + 1 - window) : i + 1]
        points.append((i + 1, seconds, sum(recent) / len(recent)))
    return points


def panel(curves, axis, title, left, width=380, height=260):
    """One set of axes; curves: name -> points, axis: which coordinate runs to the right."""
    points = [p for curve in curves.values() for p in curve]
    right, low, high = (max(p[axis] for p in points), min(p[2] for p in points), max(p[2] for p in points))
    x = lambda p: left + width * p[axis] / right  # noqa: E731
    y = lambda loss: 40 + height * (high - loss) / (high - low)  # noqa: E731
    out = [f'<rect x="{left}" y="40" width="{width}" height="{height}" fill="none" stroke="#ccc"/>']
    out.append(f'<text x="{left + width / 2}" y="{height + 74}" text-anchor="middle">{title}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        loss = low + share * (high - low)
        out.append(f'<text x="{left - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        out.append(
            f'<text x="{left + share * width:.1f}" y="{height + 56}" text-anchor="middle">{share * right:.3g}</text>'
        )
    for i, (name, curve) in enumerate(curves.items()):
        line = " ".join(f"{x(p):.1f},{y(p[2]):.1f}" for p in curve)
        out.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
        out.append(
            f'<text x="{left + width - 10}" y="{60 + 18 * i}" text-anchor="end" fill="{COLOURS[name]}">{name}</text>'
        )
    return out


def plot(histories, path):
    curves = {name: smooth(history) for name, history in histories.items()}
    body = [*panel(curves, 0, "steps", 60), *panel(curves, 1, "seconds", 520)]
    body.append(
        '<text x="480" y="22" text-anchor="middle" font-size="15">LeNet-5 on Fashion-MNIST: training loss</text>'
    )
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="930" height="350" font-family="sans-serif" font-size="12">'
    Path(path).write_text("\n".join([head, '<rect width="930" height="350" fill="white"/>', *body, "</svg>\n"]))
    print(f"curves: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", default="torch_fashion_mnist.svg")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs: at least 1")
    if args.limit is not None and args.limit < BATCH:
        parser.error(f"--limit: at least a batch, {BATCH}")
    if not Path(args.out).parent.is_dir():
        parser.error(f"--out: {Path(args.out).parent} is no folder")
    images, labels = load(args.data, "train")
    data, test = (images[: args.limit], labels[: args.limit]), load(args.data, "t10k")
    plot({name: train(name, data, test, args.epochs, args.seed) for name in OPTIMIZERS}, args.out)


if __name__ == "__main__":
    main()
