"""The diagonal that AdaHessian estimates (optimizers.md section 3), exactly: Hz by double backward in float64, which knows no
kinks, of a small network with batch norm, ReLU and maximum pooling; z from the generator of philox.py."""

from pathlib import Path

import torch

import philox
import store

SEED, SIGNS = 11, 16  # of the run, and the purpose of the draw
BATCH = 6


def signs(step, count):
    """Bit e % 128 of draw e / 128 of the step."""
    out = []
    for index in range(-(-count // 128)):
        words = philox.philox4x32([index, 0, step, SIGNS], [SEED, 0])
        out += [1.0 if words[b // 32] >> (b % 32) & 1 else -1.0 for b in range(128)]
    return torch.tensor(out[:count], dtype=torch.float64)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(2, 5, 3, padding=1)
        self.bn1 = torch.nn.BatchNorm2d(5)
        self.fc1 = torch.nn.Linear(5 * 4 * 4, 9)
        self.fc2 = torch.nn.Linear(9, 4)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def averaged(d):
    return d.mean(dim=(2, 3), keepdim=True).expand_as(d) if d.ndim == 4 else d


def write(out):
    torch.manual_seed(4)
    net = Net().double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_((p + 0.1 * torch.randn_like(p)).float().double())
    x = torch.randn(BATCH, 2, 8, 8).float().double()
    labels = torch.randint(0, 4, (BATCH,))
    params = dict(net.named_parameters())
    z = signs(0, sum(p.numel() for p in params.values()))
    grads = torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), labels), params.values(), create_graph=True)
    pieces = z.split([p.numel() for p in params.values()])
    product = sum((g * piece.reshape(g.shape)).sum() for g, piece in zip(grads, pieces))
    tensors = {"input": x.float(), "labels": labels.int()}
    for (name, p), g, hz in zip(params.items(), grads, torch.autograd.grad(product, params.values())):
        tensors.update({f"value.{name}": p, f"grad.{name}": g, f"hessian.{name}": averaged(hz.abs()).contiguous()})
    store.save(out / "hessian_net.safetensors", tensors, {"seed": str(SEED)})


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
