"""MAC under Lightning:

    python3 examples/torch_lightning.py [--steps 50] [--devices 2]

configure_optimizers() returns the optimizer, and that is all.
"""

import argparse
import sys
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))  # where abar is not installed
import abar.torch  # noqa: E402


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 4))
        self.losses = []

    def training_step(self, batch, _index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = abar.torch.MAC(self.net, lr=0.05, momentum=0.9, weight_decay=5e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--devices", type=int, default=1)
    args = parser.parse_args()
    if args.steps < 1 or args.devices < 1:
        parser.error("--steps and --devices: at least 1")
    torch.manual_seed(0)
    y = torch.randint(4, (32 * args.steps,))
    x = torch.rand(len(y), 1, 8, 8) + 0.5 * y[:, None, None, None]  # four classes of brightness
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = lightning.Trainer(max_epochs=1, accelerator="auto", devices=args.devices, **quiet)
    module = Classifier()
    trainer.fit(module, loader)
    print(f"loss {module.losses[0]:.3f} -> {sum(module.losses[-5:]) / len(module.losses[-5:]):.3f}")
    print(trainer.optimizers[0].report())


if __name__ == "__main__":
    main()
