"""MAC on a model of timm, with timm's weight decay groups and schedule:

    python3 examples/torch_timm.py [--model vit_tiny_patch16_224] [--size 32] [--steps 50]
"""

import argparse
import sys
from pathlib import Path

import timm
import timm.optim
import timm.scheduler
import torch
import torch.nn.functional as F

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # where abar is not installed
import abar.torch  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--size", type=int, default=32, help="of the images")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps: at least 1")
    torch.manual_seed(0)
    model = timm.create_model(args.model, img_size=args.size, num_classes=4, depth=2).train()
    groups = timm.optim.param_groups_weight_decay(model, weight_decay=0.05)  # none for biases and norms
    optimizer = abar.torch.MAC(model, lr=1e-3, rule="adamw", params=groups)
    schedule = timm.scheduler.CosineLRScheduler(optimizer, t_initial=args.steps, warmup_t=5, warmup_lr_init=1e-4)
    losses = []
    for step in range(args.steps):
        y = torch.randint(4, (16,))
        x = torch.rand(16, 3, args.size, args.size) + 0.5 * y[:, None, None, None]  # four classes of brightness
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step(step + 1)
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {sum(losses[-5:]) / len(losses[-5:]):.3f}")
    print(optimizer.report())


if __name__ == "__main__":
    main()
