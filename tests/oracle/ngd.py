"""Exact natural gradient (optimizers.md section 9), dense: F is formed as a matrix of all parameters of the maps, from the gradients
of single examples, and G^ solves (F + rho I) G^ = g. Twenty steps of sgd on a small network, in float64, per case.

python3 ngd.py [--check]: writes ngd.safetensors; --check: how far a float32 run of the same code strays.
"""

import sys
from pathlib import Path

import torch
from torch.nn import functional as F

import philox
import store

SEED, LABELS = 5, 17  # of the run, and the purpose of the draw
BATCH, CLASSES, STEPS, BATCHES = 6, 3, 20, 4
LR, MOMENTUM, DECAY = 0.05, 0.9, 1e-3

# name: fisher, blocks, damping, with batch norm
CASES = {
    "empirical": ("empirical", "full", 0.1, False),
    "empirical_layer": ("empirical", "layer", 0.1, False),
    "exact": ("exact", "full", 0.1, False),
    "exact_layer": ("exact", "layer", 0.1, False),
    "mc": ("mc:3", "full", 0.1, False),
    "norm": ("empirical", "full", 0.1, True),
    "norm_exact": ("exact", "layer", 0.2, True),
    "mc_layer": ("mc:2", "layer", 0.1, False),
    "mc_one": ("mc:1", "full", 0.1, False),
    "norm_mc": ("mc:2", "full", 0.2, True),
    "norm_exact_full": ("exact", "full", 0.2, True),
}


class Net(torch.nn.Module):
    """Every kind of map: a convolution, a grouped one, a linear layer on tokens, and on vectors."""

    def __init__(self, norm):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(2, 4, 3, padding=1)
        if norm:
            self.bn1 = torch.nn.BatchNorm2d(4)
        self.conv2 = torch.nn.Conv2d(4, 4, 3, padding=1, stride=2, groups=2, bias=False)
        self.mix = torch.nn.Linear(4, 5)
        self.fc1 = torch.nn.Linear(5, 6)
        self.fc2 = torch.nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.conv1(x)
        x = torch.tanh(self.bn1(x) if hasattr(self, "bn1") else x)
        x = torch.tanh(self.conv2(x)).flatten(2).transpose(1, 2)
        x = torch.tanh(self.mix(x)).mean(1)
        return self.fc2(torch.tanh(self.fc1(x)))


def is_map(module):
    return isinstance(module, (torch.nn.Conv2d, torch.nn.Linear))


def rows_of(module, x):
    """The inputs a of a map's rows, (groups, N, R, d), with the homogeneous 1."""
    if isinstance(module, torch.nn.Conv2d):
        a = F.unfold(x, module.kernel_size, padding=module.padding, stride=module.stride)
        a = a.reshape(len(x), module.groups, -1, a.shape[-1]).permute(1, 0, 3, 2)
    else:
        a = x.reshape(1, len(x), -1, x.shape[-1])
    return a if module.bias is None else torch.cat([a, torch.ones_like(a[..., :1])], -1)


def grads_of(module, p):
    """The output gradients of the same rows, (groups, N, R, out)."""
    if isinstance(module, torch.nn.Conv2d):
        return p.reshape(len(p), module.groups, -1, p.shape[2] * p.shape[3]).permute(1, 0, 3, 2)
    return p.reshape(1, len(p), -1, p.shape[-1])


def run(net, x, weights):
    """Backward from sum over n and classes of weights * logits: j / B = sum over rows of p aT of each map's examples, and the
    gradients of all parameters."""
    seen, handles = {}, []
    maps = {name: m for name, m in net.named_modules() if is_map(m)}
    for name, m in maps.items():
        handles.append(m.register_forward_hook(lambda m, i, o, name=name: seen.update({name: (i[0], o)})))
    logits = net(x)
    for h in handles:
        h.remove()
    params = list(net.parameters())
    outputs = [seen[name][1] for name in maps]
    found = torch.autograd.grad((logits * weights(logits.detach())).sum(), outputs + params)
    rows = {}
    for (name, m), p in zip(maps.items(), found):
        a, p = rows_of(m, seen[name][0].detach()), grads_of(m, p)
        for group, j in enumerate(torch.einsum("gnro,gnrd->gnod", p, a)):
            rows[name, group] = j.flatten(1)
    return rows, dict(zip((name for name, _ in net.named_parameters()), found[len(outputs) :]))


def error(labels):
    """dL/dlogits of the mean cross entropy."""
    return lambda logits: (logits.softmax(1) - F.one_hot(labels, CLASSES)) / len(logits)


def drawn(step, draw):
    def weights(logits):
        labels, chance = [], logits.double().softmax(1).cumsum(1)
        for row in range(len(logits)):
            u = philox.philox4x32([row, draw, step, LABELS], [SEED, 0])[0] * 2.0**-32
            labels.append(min(int((chance[row] <= u).sum()), CLASSES - 1))
        return error(torch.tensor(labels))(logits)

    return weights


def one_class(c):
    """Class c for every example, the gradient times the root of its probability."""

    def weights(logits):
        labels = torch.full((len(logits),), c)
        return error(labels)(logits) * logits.softmax(1)[:, c : c + 1].sqrt()

    return weights


def fisher_rows(net, x, labels, fisher, step):
    """sqrt(w) j of all rows, per map: F is the sum of their outer products."""
    batch = len(x)
    if fisher == "empirical":
        passes, scale = [error(labels)], batch**0.5  # B / sqrt(B)
    elif fisher == "exact":
        passes, scale = [one_class(c) for c in range(CLASSES)], batch**0.5
    else:
        draws = int(fisher[3:])
        passes, scale = [drawn(step, s) for s in range(draws)], (batch / draws) ** 0.5
    found = [run(net, x, weights)[0] for weights in passes]
    return {key: scale * torch.cat([rows[key] for rows in found]) for key in found[0]}


def joined(net, key, grads):
    """The gradient of a map's rows as one vector, [W, b]."""
    name, group = key
    m = net.get_submodule(name)
    out = m.weight.shape[0] // getattr(m, "groups", 1)
    part = slice(group * out, (group + 1) * out)
    parts = [grads[f"{name}.weight"][part].flatten(1)]
    if m.bias is not None:
        parts.append(grads[f"{name}.bias"][part, None])
    return torch.cat(parts, 1).flatten(), part


def natural(net, rows, grads, damping, layer):
    """(F + rho I)^-1 g, by a dense solve for each block of maps."""
    out = {name: g.clone() for name, g in grads.items()}
    for keys in [[key] for key in rows] if layer else [list(rows)]:
        j = torch.cat([rows[key] for key in keys], 1)
        g = torch.cat([joined(net, key, grads)[0] for key in keys])
        solved = torch.linalg.solve(j.T @ j + damping * torch.eye(len(g), dtype=j.dtype), g)
        for key, part in zip(keys, solved.split([rows[key].shape[1] for key in keys])):
            name, m, where = key[0], net.get_submodule(key[0]), joined(net, key, grads)[1]
            part = part.reshape(m.weight[where].shape[0], -1)
            columns = m.weight[where][0].numel()
            out[f"{name}.weight"][where] = part[:, :columns].reshape(m.weight[where].shape)
            if m.bias is not None:
                out[f"{name}.bias"][where] = part[:, columns]
    return out


def check_rows(net, x, labels):
    """The rows are the gradients of single examples, by autograd alone."""
    rows = fisher_rows(net, x, labels, "empirical", 0)
    for n in range(len(x)):
        loss = F.cross_entropy(net(x[n : n + 1]), labels[n : n + 1])
        grads = dict(zip((k for k, _ in net.named_parameters()), torch.autograd.grad(loss, list(net.parameters()))))
        for key, j in rows.items():
            assert torch.allclose(joined(net, key, grads)[0], j[n] * len(x) ** 0.5, rtol=1e-10, atol=1e-12)


def start(norm, dtype):
    torch.manual_seed(8)
    net = Net(norm).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_((p + 0.2 * torch.randn_like(p)).float())
    return net.to(dtype)


def train(case, x, labels, dtype=torch.float64):
    """Weights after the first and the last step."""
    fisher, blocks, damping, norm = CASES[case]
    net, kept = start(norm, dtype), {}
    speed = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    if not norm:
        check_rows(net.double(), x[0].double(), labels[0])
        net = net.to(dtype)
    for step in range(STEPS):
        batch, y = x[step % BATCHES].to(dtype), labels[step % BATCHES]
        rows = fisher_rows(net, batch, y, fisher, step)
        grads = run(net, batch, error(y))[1]
        hat = natural(net, rows, grads, damping, blocks == "layer")
        with torch.no_grad():
            for name, p in net.named_parameters():
                speed[name] = MOMENTUM * speed[name] + hat[name] + DECAY * p
                p -= LR * speed[name]
        if step in (0, STEPS - 1):
            kept[step + 1] = {name: p.detach().clone() for name, p in net.named_parameters()}
    return kept


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(BATCHES, BATCH, 2, 6, 6, generator=generator)
    return x, torch.randint(0, CLASSES, (BATCHES, BATCH), generator=generator)


def write(out):
    x, labels = data()
    tensors = {"input": x, "labels": labels.int()}
    for norm in (False, True):
        for name, p in start(norm, torch.float64).named_parameters():
            tensors[f"start.{int(norm)}.{name}"] = p.detach()
    for case in CASES:
        for step, weights in train(case, x, labels).items():
            tensors.update({f"{case}.{step}.{name}": w for name, w in weights.items()})
    about = {case: {"fisher": c[0], "blocks": c[1], "damping": str(c[2]), "norm": c[3]} for case, c in CASES.items()}
    store.save(out / "ngd.safetensors", tensors, {"seed": str(SEED), **about})


def check():
    x, labels = data()
    for case in CASES:
        exact, rounded = train(case, x, labels), train(case, x, labels, torch.float32)
        for step in exact:
            worst = max(
                float((exact[step][k] - rounded[step][k]).norm() / exact[step][k].norm()) for k in exact[step]
            )
            print(f"{case:16} {step:3} {worst:.1e}")


if __name__ == "__main__":
    if "--check" in sys.argv:
        check()
    else:
        write(Path(__file__).resolve().parent.parent / "golden")
