"""The float64 oracle beside a PyTorch model: the same network in float64, whose layers' inputs and output gradients are
read by plain autograd and given to tests/oracle/curvature.py. Nothing of the binding is used."""

import copy
import fnmatch

import numpy as np
import torch
from torch import nn

import curvature
import support
from curvature_rows import Layer

DEFAULTS = {
    "mac": {"damping": 1, "first-layer": "running", "damping-form": "decoupled"},
    "smac": {"damping": 1, "first-layer": "running"},
    "foof": {"damping": 1},
    "kfac": {"damping": 0.03, "kl-clip": 0.001, "kfac": "reduce", "kfac-inverse": "cholesky"},
    "eva": {"damping": 0.03, "kl-clip": 0.001},
    "lngd": {"nu1": 1e-5, "nu2": 1e-2, "mu": 0.03},
}
COMMON = {"stat-decay": 0.95, "tcov": 5, "tinv": 50, "pgrad": "batch-mean", "refresh": "together"}


def pair(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def as_array(tensor):
    return tensor.double().numpy()


def describe(name, module):
    """A module as the oracle wants it."""
    bias = module.bias is not None
    if isinstance(module, nn.Linear):
        return Layer(name, "linear", bias=bias)
    kernel, dilation, pad = pair(module.kernel_size), pair(module.dilation), module.padding
    if pad == "valid":
        pad = (0, 0)
    if pad == "same":
        pad = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation))  # odd kernels
    geometry = {"kernel": kernel, "stride": pair(module.stride), "pad": pair(pad), "dilation": dilation}
    return Layer(name, "conv", bias=bias, groups=module.groups, **geometry)


class Twin:
    """method: its name; options: the binding's keywords. The network runs in dtype, the oracle in float64."""

    def __init__(self, model, method, lr, skip=(), dtype=torch.float64, **options):
        self.model = copy.deepcopy(model).to(dtype)
        modules = [(n, m) for n, m in self.model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        self.layers = {n: m for n, m in modules if not any(fnmatch.fnmatchcase(n, s) for s in skip)}
        chosen = {key.replace("_", "-"): value for key, value in options.items()}
        chosen = {**COMMON, **DEFAULTS[method], **chosen}
        self.oracle = curvature.METHODS[method]([describe(n, m) for n, m in self.layers.items()], chosen, lr)
        self.grads = {}

    def follow(self, model):
        """Takes over the model's weights and buffers."""
        with torch.no_grad():
            for mine, other in zip(self.model.state_dict().values(), model.state_dict().values()):
                mine.copy_(other)

    def backward(self, loss_of):
        """loss_of(model): a loss. Observes every layer and adds to the gradients."""
        seen, handles = {}, []

        def keep(name):
            def hook(module, inputs, output):
                seen[name] = (inputs[0].detach(), output)
                return output.clone()  # whatever happens to it in place, output stays

            return hook

        for name, module in self.layers.items():
            handles.append(module.register_forward_hook(keep(name)))
        loss = loss_of(self.model)
        for handle in handles:
            handle.remove()
        names = [n for n, p in self.model.named_parameters() if p.requires_grad]
        wanted = [dict(self.model.named_parameters())[n] for n in names] + [output for _, output in seen.values()]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        for name, grad in zip(names, found):
            if grad is not None:
                self.grads[name] = self.grads.get(name, 0) + as_array(grad)
        for (name, (x, _)), p in zip(seen.items(), found[len(names) :]):
            self.oracle.observe(name, as_array(x), as_array(p))
        return loss.item()

    def scale_grads(self, factor):
        self.grads = {name: factor * grad for name, grad in self.grads.items()}

    def grad_norm(self):
        return float(sum((g**2).sum() for g in self.grads.values())) ** 0.5

    def step(self):
        """Parameter name -> what the update rule is given; the gradients are gone afterwards."""
        pairs = {n: (self.grads[f"{n}.weight"], self.grads.get(f"{n}.bias")) for n in self.layers}
        result = self.oracle.step(pairs)
        out = dict(self.grads)
        for name, (weight, bias) in result.items():
            out[f"{name}.weight"] = weight
            if bias is not None:
                out[f"{name}.bias"] = bias
        self.grads = {}
        return {name: np.asarray(value) for name, value in out.items()}


def telling(method, **options):
    """The keywords of support.make for this method."""
    return {**support.TELLING[method], **support.OFTEN, **options}
