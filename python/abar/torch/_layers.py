"""Which modules of a model are linear maps, and how their tensors become rows (methods.md section 0)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from .. import _abi

#: Modules with weights of their own that a person might expect to be preconditioned, but are not.
UNSUPPORTED = (
    nn.Conv1d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)


@dataclass
class Layer:
    """One Linear or Conv2d that is preconditioned."""

    name: str
    module: nn.Module
    weight: Tensor
    bias: Tensor | None
    index: int = 0  # among the layers that the library knows
    pads: tuple[int, ...] | None = None  # what F.pad does to the input before the window sees it
    pad_mode: str = "constant"
    reads_input: bool = False  # of the network
    makes_output: bool = False
    window: _abi.Window = field(default_factory=_abi.Window)

    @property
    def kind(self) -> str:
        return "conv2d" if isinstance(self.module, nn.Conv2d) else "linear"

    @property
    def groups(self) -> int:
        return int(self.window.groups)


@dataclass
class Left:
    """A module whose parameters go to the rule as they are, and why."""

    name: str
    module: nn.Module
    reason: str


def _pair(values: Sequence[int]) -> ctypes.Array:
    return (ctypes.c_int64 * 2)(*values)


def _set_geometry(layer: Layer) -> None:
    """The window of the library has equal, zero padding on both sides; any other is done to the input beforehand."""
    m, w = layer.module, layer.window
    if not isinstance(m, nn.Conv2d):
        w.kernel, w.stride, w.pad, w.dilation, w.groups = _pair((1, 1)), _pair((1, 1)), _pair((0, 0)), _pair((1, 1)), 1
        return
    w.kernel, w.stride, w.dilation, w.groups = _pair(m.kernel_size), _pair(m.stride), _pair(m.dilation), m.groups
    sides = [(0, 0), (0, 0)]  # before and after, vertically and horizontally
    if m.padding == "same":
        for axis, (kernel, dilation) in enumerate(zip(m.kernel_size, m.dilation)):
            total = dilation * (kernel - 1)
            sides[axis] = (total // 2, total - total // 2)
    elif not isinstance(m.padding, str):
        sides = [(p, p) for p in m.padding]
    w.pad = _pair([before for before, _ in sides])
    if m.padding_mode != "zeros" or any(before != after for before, after in sides):
        layer.pads = (*sides[1], *sides[0])  # F.pad begins with the last dimension
        layer.pad_mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
        w.pad = _pair((0, 0))


def prepare_input(layer: Layer, x: Tensor) -> Tensor:
    """The input as (N, C, H, W), (N, T, I) or (N, I), padded where the window cannot say how."""
    if layer.kind == "linear":
        return _rows(x)
    if x.dim() == 3:
        x = x.unsqueeze(0)
    return x if layer.pads is None else nn.functional.pad(x, layer.pads, mode=layer.pad_mode)


def prepare_grad(layer: Layer, g: Tensor) -> Tensor:
    """The output gradient in the form of its input."""
    if layer.kind == "linear":
        return _rows(g)
    return g.unsqueeze(0) if g.dim() == 3 else g


def _rows(x: Tensor) -> Tensor:
    if x.dim() == 1:
        return x.unsqueeze(0)
    return x if x.dim() <= 3 else x.reshape(x.shape[0], -1, x.shape[-1])


# ---- finding them ----------------------------------------------------------------------------------------------------


def _own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module._parameters.items() if p is not None}


def _matches(pattern: str, name: str, module: nn.Module) -> bool:
    """A pattern names a module, something that contains it, or one of its parameters."""
    parts = name.split(".")
    names = [".".join(parts[: i + 1]) for i in range(len(parts))]
    names += [f"{name}.{own}" for own in _own_parameters(module)]
    return any(fnmatchcase(n, pattern) for n in names)


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """Who uses a parameter: id of the parameter, names of modules."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for p in _own_parameters(module).values():
            owners.setdefault(id(p), []).append(name or "model")
    return owners


def _why_not(module: nn.Module, name: str, skip: Sequence[str], known: set[int]) -> str | None:
    """Why a Linear or Conv2d is left to the rule; None: it is not."""
    weight = module._parameters.get("weight")
    if any(_matches(pattern, name, module) for pattern in skip):
        return "skipped"
    if weight is None:
        return "its weight is computed, not a parameter"
    if id(weight) not in known:
        return "its weight is not among the optimizer's parameters"
    return None


def _check_patterns(model: nn.Module, skip: Sequence[str]) -> None:
    for pattern in skip:
        if not any(_matches(pattern, name or "model", module) for name, module in model.named_modules()):
            raise ValueError(f"abar: skip={pattern!r} fits no module of the model; see model.named_modules()")


def _check_ties(layers: Iterable[Layer], owners: dict[int, list[str]], maps: set[str]) -> dict[str, str]:
    """Weights that two maps share are refused; those tied to something else (an embedding) go to the rule."""
    tied: dict[str, str] = {}
    for layer in layers:
        for p in (layer.weight, layer.bias):
            others = [name for name in owners.get(id(p), []) if name != layer.name] if p is not None else []
            shared = [name for name in others if name in maps]
            if shared:
                raise ValueError(
                    f"abar: {layer.name} and {shared[0]} share a parameter, and one map has one place in the model; "
                    f"leave both to the rule with skip=({layer.name!r}, {shared[0]!r})"
                )
            if others:
                tied[layer.name] = f"tied to {others[0]}"
    return tied


def find_layers(
    model: nn.Module, params: Iterable[nn.Parameter], skip: Sequence[str]
) -> tuple[list[Layer], list[Left]]:
    """The maps of the model, and the other modules with parameters."""
    _check_patterns(model, skip)
    known, owners = {id(p) for p in params}, _owners(model)
    layers: list[Layer] = []
    left: list[Left] = []
    supported: set[str] = set()
    for path, module in model.named_modules():
        name = path or "model"
        if not isinstance(module, (nn.Linear, nn.Conv2d)):
            if _own_parameters(module):
                unsupported = isinstance(module, UNSUPPORTED)
                left.append(Left(name, module, "not supported" if unsupported else "not a linear map"))
            continue
        supported.add(name)
        reason = _why_not(module, name, skip, known)
        if reason is not None:
            left.append(Left(name, module, reason))
            continue
        weight, bias = module.weight, module._parameters.get("bias")
        layer = Layer(name, module, weight, bias if bias is not None and id(bias) in known else None)
        layers.append(layer)
    tied = _check_ties(layers, owners, supported)
    left += [Left(layer.name, layer.module, tied[layer.name]) for layer in layers if layer.name in tied]
    layers = [layer for layer in layers if layer.name not in tied]
    for index, layer in enumerate(layers):
        layer.index = index
        _set_geometry(layer)
    return layers, left


def _is_map(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Conv2d))


def _mark(layers: Sequence[Layer], patterns: Sequence[str], keyword: str) -> list[Layer]:
    for pattern in patterns:
        if not any(_matches(pattern, layer.name, layer.module) for layer in layers):
            names = ", ".join(layer.name for layer in layers)
            raise ValueError(f"abar: {keyword}={pattern!r} fits none of the layers {names}")
    return [layer for layer in layers if any(_matches(p, layer.name, layer.module) for p in patterns)]


def mark_ends(
    model: nn.Module, layers: Sequence[Layer], first: Sequence[str] | None, head: Sequence[str] | None
) -> None:
    """Which layers read the network's input and make its output. None: the first map of the model, unless an embedding
    comes before it; its last Linear."""
    modules = list(model.modules())
    if first is None:
        start = next((m for m in modules if _is_map(m) or isinstance(m, nn.Embedding)), None)
        begins = [layer for layer in layers if layer.module is start]
    else:
        begins = _mark(layers, first, "first")
    if head is None:
        end = next((m for m in reversed(modules) if isinstance(m, nn.Linear)), None)
        ends = [layer for layer in layers if layer.module is end]
    else:
        ends = _mark(layers, head, "head")
    for layer in begins:
        layer.reads_input = True
    for layer in ends:
        layer.makes_output = True


def check_model(model: Any) -> tuple[nn.Module, Any]:
    """The module inside its wrappers and, for DistributedDataParallel, the process group."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"abar: pass the model, an nn.Module, not {type(model).__name__}: layers are found in it. "
            f"Parameter groups go to params=."
        )
    group = None
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model, group = model.module, model.process_group
        elif isinstance(model, nn.DataParallel):
            if len(model.device_ids or []) > 1:
                raise TypeError(
                    "abar: DataParallel copies the layers at every forward pass; use DistributedDataParallel"
                )
            model = model.module
        elif (
            type(model).__name__ == "OptimizedModule"
        ):  # torch.compile: hooks interrupt its graphs where they are needed
            model = model._orig_mod
        else:
            break
    for name, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise TypeError(f"abar: {name or 'the model'} is sharded by FullyShardedDataParallel; use fully_shard")
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f"abar: {name} has no shape yet; run one forward pass before making the optimizer")
    return model, group
