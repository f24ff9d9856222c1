"""MAC under Hugging Face accelerate, in one process or several:

    python3 examples/torch_accelerate.py [--steps 50]
    accelerate launch --cpu --num_processes 2 examples/torch_accelerate.py

The optimizer is made of the bare model; accelerate wraps both. Statistics are joined over all processes.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # where abar is not installed
import abar.torch  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps: at least 1")
    accelerator = Accelerator()
    torch.manual_seed(0)
    y = torch.randint(4, (32 * args.steps,))
    x = torch.rand(len(y), 1, 8, 8) + 0.5 * y[:, None, None, None]  # four classes of brightness
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = abar.torch.MAC(model, lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    accelerator.print(f"loss {losses[0]:.3f} -> {sum(losses[-5:]) / len(losses[-5:]):.3f}")
    accelerator.print(optimizer.optimizer.report())


if __name__ == "__main__":
    main()
