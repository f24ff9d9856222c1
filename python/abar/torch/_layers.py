"""Which parameters of a model are weights of linear maps, and how tensors become rows (methods.md section 0)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor, nn

from .. import _abi
from ._uses import Call, Conv

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
)


@dataclass
class Values:
    """The rows of a layer's weight that make values of attention: the last ones."""

    heads: int
    first: int
    rows: int
    tokens: int = 0  # of a sequence; 0: unknown

    def describe(self, into: _abi.Layer) -> None:
        into.attention.heads, into.attention.value_row, into.attention.value_rows = self.heads, self.first, self.rows
        if self.tokens:  # the shape of the input, for sums by position
            into.input.ndim = 3
            into.input.dim[1] = self.tokens


@dataclass
class Layer:
    """One linear map or convolution that is preconditioned: a parameter, and where the model has it."""

    name: str
    module: nn.Module
    weight: Tensor
    bias: Tensor | None
    key: str = "weight"  # of the weight among the module's parameters
    transposed: bool = False  # the weight is (in, out)
    index: int = 0  # among the layers that the library knows
    reads_input: bool = False  # of the network
    makes_output: bool = False
    windowed: bool = False  # reads windows of images, those of an image one after the other
    values: Values | None = None  # rows that make values of attention, where they have statistics of their own
    window: _abi.Window = field(default_factory=_abi.Window)

    @property
    def kind(self) -> str:
        return "conv2d" if isinstance(self.module, nn.Conv2d) else "linear"

    @property
    def groups(self) -> int:
        return int(self.window.groups)

    def why_not(self, call: Call, turned: bool) -> str | None:
        """Why a call of this map cannot be observed; None: it can. turned: the weight was transposed for it."""
        if (call.conv is not None) != (self.kind == "conv2d"):
            return "has a weight that is also used in another kind of map"
        if call.conv is None:
            same = (call.flipped != turned) == self.transposed
            return None if same else "has a weight that is also used transposed, which is another map"
        w, conv = self.window, call.conv
        same = (tuple(w.stride), tuple(w.dilation), w.groups) == (conv.stride, conv.dilation, conv.groups)
        same = same and all(side >= pad for sides, pad in zip(conv.sides, w.pad) for side in sides)
        return None if same else "is a convolution that was called with another stride, padding, dilation or groups"


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
    w.kernel, w.stride, w.pad, w.dilation, w.groups = _pair((1, 1)), _pair((1, 1)), _pair((0, 0)), _pair((1, 1)), 1
    if isinstance(m, nn.Conv2d):
        w.kernel, w.stride, w.dilation, w.groups = _pair(m.kernel_size), _pair(m.stride), _pair(m.dilation), m.groups
        if not isinstance(m.padding, str) and m.padding_mode == "zeros":
            w.pad = _pair(m.padding)


def fit_image(layer: Layer, x: Tensor, conv: Conv) -> Tensor:
    """The input as (N, C, H, W), padded where the window is not."""
    x = x.unsqueeze(0) if x.dim() == 3 else x
    (top, bottom), (left, right) = conv.sides
    high, wide = layer.window.pad
    more = (left - wide, right - wide, top - high, bottom - high)
    return nn.functional.pad(x, more) if any(more) else x


def fit_rows(x: Tensor, shape: Sequence[int]) -> Tensor:
    """(N, T, I) or (N, I) of the rows of a linear layer, whose dimensions before I were shape."""
    if len(shape) == 0:
        return x.unsqueeze(0)
    return x.reshape(shape[0], x.shape[-1]) if len(shape) == 1 else x.reshape(shape[0], -1, x.shape[-1])


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


class Slot(NamedTuple):
    """A place of a module that may hold the weight of a map."""

    name: str  # of the layer
    key: str
    bias: str | None
    transposed: bool = False


def _slots(name: str, module: nn.Module) -> list[Slot]:
    """The maps of one module, its children's apart."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        return [Slot(name, "weight", "bias")]
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # of transformers: a Linear whose weight is (in, out)
        return [Slot(name, "weight", "bias", True)]
    if isinstance(module, nn.MultiheadAttention):
        if module._parameters.get("in_proj_weight") is not None:
            return [Slot(f"{name}.in_proj", "in_proj_weight", "in_proj_bias")]
        return [Slot(f"{name}.{part}_proj", f"{part}_proj_weight", None) for part in "qkv"]  # one bias for all: the rule's
    return []


def _why_not(module: nn.Module, slot: Slot, name: str, skip: Sequence[str], known: set[int]) -> str | None:
    """Why a map is left to the rule; None: it is not."""
    weight = module._parameters.get(slot.key)
    if any(_matches(pattern, name, module) or fnmatchcase(slot.name, pattern) for pattern in skip):
        return "skipped"
    if weight is None:
        return "its weight is computed, not a parameter"
    if id(weight) not in known:
        return "its weight is not among the optimizer's parameters"
    return None


def _check_patterns(model: nn.Module, skip: Sequence[str]) -> None:
    for pattern in skip:
        modules = [(name or "model", module) for name, module in model.named_modules()]
        slots = [slot.name for name, module in modules for slot in _slots(name, module)]
        if not any(_matches(pattern, *one) for one in modules) and not any(fnmatchcase(name, pattern) for name in slots):
            raise ValueError(f"abar: skip={pattern!r} fits no module of the model; see model.named_modules()")


def _join_shared(layers: Iterable[Layer]) -> list[Layer]:
    """One layer for each weight, whoever has it. A bias that is not the same wherever the weight is, or that several
    weights have, is the rule's."""
    first: dict[int, Layer] = {}
    for layer in layers:
        one = first.setdefault(id(layer.weight), layer)
        if one.bias is not layer.bias:
            one.bias = None
    biases = [id(layer.bias) for layer in first.values()]
    for layer in first.values():
        if biases.count(id(layer.bias)) > 1:
            layer.bias = None
    return list(first.values())


def _find_tied(layers: Iterable[Layer], owners: dict[int, list[str]], maps: set[str]) -> dict[int, str]:
    """Weights that something else has too, an embedding: they go to the rule."""
    tied: dict[int, str] = {}
    for layer in layers:
        others = [name for name in owners.get(id(layer.weight), []) if name not in maps]
        if others:
            tied[id(layer.weight)] = f"tied to {others[0]}"
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
        slots = _slots(name, module)
        if slots:
            supported.add(name)
        elif _own_parameters(module):
            unsupported = isinstance(module, UNSUPPORTED)
            left.append(Left(name, module, "not supported" if unsupported else "not a linear map"))
        for slot in slots:
            reason = _why_not(module, slot, name, skip, known)
            if reason is not None:
                left.append(Left(slot.name, module, reason))
                continue
            bias = module._parameters.get(slot.bias) if slot.bias else None
            bias = bias if bias is not None and id(bias) in known else None
            layers.append(Layer(slot.name, module, module._parameters[slot.key], bias, slot.key, slot.transposed))
    tied = _find_tied(layers, owners, supported)
    left += [Left(layer.name, layer.module, tied[id(layer.weight)]) for layer in layers if id(layer.weight) in tied]
    layers = _join_shared(layer for layer in layers if id(layer.weight) not in tied)
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
        elif type(model).__name__ == "OptimizedModule":  # torch.compile
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
