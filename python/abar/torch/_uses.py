"""Sees where parameters are used in linear maps: every call of torch.nn.functional.linear, conv2d and their like, whoever
makes it, while a step takes statistics.

One torch function mode stands for all optimizers. It is on the stack only while one of them takes statistics; torch.compile
guards on the stack, so a compiled model has one graph with taps, for the steps with statistics, and one without.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from ._columns import columns_of

Sides = tuple[tuple[int, int], tuple[int, int]]  # zeros before and after, vertically and horizontally


class Conv(NamedTuple):
    """How a convolution was called."""

    stride: tuple[int, int]
    sides: Sides
    dilation: tuple[int, int]
    groups: int


class Call(NamedTuple):
    """One call of a linear map: what it read."""

    x: Tensor
    weight: Tensor
    flipped: bool = False  # the weight is (in, out), not (out, in)
    conv: Conv | None = None


class Watcher(Protocol):
    """Who wants to know: one optimizer's observer."""

    def used(self, call: Call, out: Tensor, tokens: Tokens) -> Tensor: ...

    def attended(self, value: Tensor | None, columns: Callable[[], Tensor]) -> None: ...

    def used_in_graph(self, token: int, x: Tensor, grad: Tensor, numbers: Sequence[int]) -> None: ...

    def attended_in_graph(self, token: int, columns: Callable[[], Tensor]) -> None: ...


@dataclass(frozen=True)
class Tokens:
    """Inside nn.MultiheadAttention rows are ordered by position, then by sequence."""

    length: int = 0  # 0: not inside
    sequences: int = 0


# ---- calls that are linear maps --------------------------------------------------------------------------------------


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, (tuple, list, torch.Size)):
        return (value[0], value[-1])
    return (value, value)


def _linear(input: Tensor, weight: Tensor, bias: Any = None) -> Call:
    return Call(input, weight)


def _conv2d(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Call:
    dilation = _pair(dilation)
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        before = [total // 2 for total in totals]
        sides: Any = tuple((b, total - b) for b, total in zip(before, totals))
    else:
        pad = (0, 0) if padding == "valid" else _pair(padding)
        sides = ((pad[0], pad[0]), (pad[1], pad[1]))
    return Call(input, weight, False, Conv(_pair(stride), sides, dilation, groups))


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Call | None:
    return Call(mat1, mat2, True) if beta == 1 and alpha == 1 else None


def _matmul(input: Tensor, other: Tensor, *, out: Any = None) -> Call | None:
    return Call(input, other, True) if other.dim() == 2 else None


_READERS: dict[Any, Callable[..., Call | None]] = {
    F.linear: _linear,
    F.conv2d: _conv2d,
    torch.conv2d: _conv2d,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
}


class Attended(NamedTuple):
    """What scaled_dot_product_attention is given."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None


def _sdpa_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Attended:
    return Attended(query, key, value, attn_mask, is_causal, scale)


_sdpa = getattr(F, "scaled_dot_product_attention", None)  # not in 1.13
_SOFTMAXES = (F.softmax, torch.softmax, torch.Tensor.softmax)


def _probabilities(fused: bool, args: Any, kwargs: Any, out: Tensor) -> tuple[Any, Callable[[], Tensor]]:
    """The values, where they are known, and how to find the column means of the probabilities."""
    if not fused:
        return None, lambda: out.detach().mean(-2)
    a = _sdpa_arguments(*args, **kwargs)
    return a.value, lambda: columns_of(a.query, a.key, a.mask, a.causal, a.scale)


def _without_dispatch(function: Any) -> Any:
    """A function of torch in Python that does not hand itself over to the mode: its inner calls are seen one by one."""
    names = {name: _never for name in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")}
    copy = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _never(*_: Any) -> bool:
    return False


_multi_head = _without_dispatch(F.multi_head_attention_forward)
#: With forward passes inside: those of checkpoints.
_backward = {function: _without_dispatch(function) for function in (torch.Tensor.backward, torch.autograd.backward)}


# ---- which parameter ---------------------------------------------------------------------------------------------------

_numbers = itertools.count(1 << 40)


def token_of(weight: Tensor) -> int:
    """A number that a graph of torch.compile can hold in place of the parameter."""
    token = getattr(weight, "_abar_token", 0)
    if not token:
        token = next(_numbers)
        weight._abar_token = token  # type: ignore[attr-defined]
    return token


#: Whether a tensor is one that torch.vmap or torch.func works with: only inside are its numbers to be seen.
is_wrapped: Callable[[Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda _tensor: False
)


def owner_of(weight: Tensor) -> tuple[Tensor, bool]:
    """The parameter that a weight is, or is the transpose of."""
    base = weight._base
    if base is None or base.dim() != 2 or weight.dim() != 2 or weight.data_ptr() != base.data_ptr():
        return weight, False
    if weight.shape == base.shape and weight.stride() == base.stride():
        return base, False
    if weight.shape == base.shape[::-1] and weight.stride() == base.stride()[::-1]:
        return base, True
    return weight, False


# ---- torch.compile -----------------------------------------------------------------------------------------------------


def _no_compiler() -> bool:
    return False


_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", _no_compiler)


def _as_numbers(call: Call, tokens: Tokens) -> list[int]:
    """How the map was called, for a graph."""
    if call.conv is None:
        return [int(call.flipped), tokens.length, tokens.sequences]
    conv = call.conv
    return [*conv.stride, *conv.sides[0], *conv.sides[1], *conv.dilation, conv.groups]


def call_of(x: Tensor, weight: Tensor, numbers: Sequence[int]) -> tuple[Call, Tokens]:
    """The call again."""
    if len(numbers) == 3:
        return Call(x, weight, bool(numbers[0])), Tokens(numbers[1], numbers[2])
    n = list(numbers)
    return Call(x, weight, False, Conv((n[0], n[1]), ((n[2], n[3]), (n[4], n[5])), (n[6], n[7]), n[8])), Tokens()


def _define_operators() -> tuple[Any, ...]:
    """abar::tap is the identity on a map's output. Its backward, abar::arrived, tells the observers of the gradient.
    abar::attended and abar::softmaxed are the identity on what attention makes, and tell them of the probabilities."""
    library = getattr(torch, "library", None)
    if not hasattr(library, "custom_op"):
        return ()

    @torch.library.custom_op("abar::tap", mutates_args=())
    def tap(out: Tensor, x: Tensor, token: int, numbers: Sequence[int]) -> Tensor:
        return out.clone()

    @torch.library.custom_op("abar::arrived", mutates_args=())
    def arrived(grad: Tensor, x: Tensor, token: int, numbers: Sequence[int]) -> Tensor:
        for watcher in _watchers():
            watcher.used_in_graph(token, x, grad, numbers)
        return grad.clone()

    @torch.library.custom_op("abar::attended", mutates_args=())
    def attended(
        out: Tensor, q: Tensor, k: Tensor, mask: Optional[Tensor], causal: bool, scale: Optional[float], token: int
    ) -> Tensor:
        for watcher in _watchers():
            watcher.attended_in_graph(token, lambda: columns_of(q, k, mask, causal, scale))
        return out.clone()

    @torch.library.custom_op("abar::softmaxed", mutates_args=())
    def softmaxed(out: Tensor, token: int) -> Tensor:
        for watcher in _watchers():
            watcher.attended_in_graph(token, lambda: out.mean(-2))
        return out.clone()

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.token, ctx.numbers = inputs[2], inputs[3]

    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return torch.ops.abar.arrived(grad, x, ctx.token, ctx.numbers), None, None, None

    for operator in (tap, arrived, attended, softmaxed):
        operator.register_fake(lambda out, *_: torch.empty_like(out))
    tap.register_autograd(backward, setup_context=keep)
    attended.register_autograd(lambda _, grad: (grad, *[None] * 6))
    softmaxed.register_autograd(lambda _, grad: (grad, None))
    return torch.ops.abar.tap, torch.ops.abar.attended, torch.ops.abar.softmaxed


_operators = _define_operators()


# ---- the mode ------------------------------------------------------------------------------------------------------------


class _Mode(TorchFunctionMode):
    tokens = Tokens()
    waiting = 0  # in a graph: the number of the weight whose values come next to attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._attention(*args, **kwargs)
        if func in _backward:
            with self:
                return _backward[func](*args, **kwargs)
        if func in _operators and not _compiling():
            return args[0]  # a graph that is run call by call: what is tapped was seen
        out = func(*args, **kwargs)
        if func in _READERS:
            counts = out.requires_grad or (not _compiling() and is_wrapped(out))
            call = _READERS[func](*args, **kwargs) if counts else None
            return out if call is None else self._used(call, out)
        if func is _sdpa or (func in _SOFTMAXES and out.dim() in (3, 4)):
            return self._attended(func is _sdpa, args, kwargs, out) if out.requires_grad else out
        return out

    def _used(self, call: Call, out: Tensor) -> Tensor:
        if not _compiling():
            for watcher in _watchers():
                out = watcher.used(call, out, self.tokens)
            return out
        token = getattr(call.weight, "_abar_token", 0)
        if not token or not _operators:
            return out
        if getattr(call.weight, "_abar_values", False):
            self.waiting = token
        return torch.ops.abar.tap(out, call.x.detach(), token, _as_numbers(call, self.tokens))

    def _attended(self, fused: bool, args: Any, kwargs: Any, out: Tensor) -> Tensor:
        if not _compiling():
            for watcher in _watchers():
                watcher.attended(*_probabilities(fused, args, kwargs, out))
            return out
        token, self.waiting = self.waiting, 0
        if not token:
            return out
        if not fused:
            return torch.ops.abar.softmaxed(out, token)
        a = _sdpa_arguments(*args, **kwargs)
        return torch.ops.abar.attended(out, a.query.detach(), a.key.detach(), a.mask, a.causal, a.scale, token)

    def _attention(self, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        before = self.tokens
        self.tokens = Tokens(query.shape[0], query.shape[1] if query.dim() == 3 else 1)
        try:
            with self:
                return _multi_head(query, *args, **kwargs)
        finally:
            self.tokens = before


_mode = _Mode()
_active: weakref.WeakSet[Any] = weakref.WeakSet()


def _watchers() -> list[Watcher]:
    return list(_active)


def watch(watcher: Watcher) -> None:
    """From now on watcher is told of every use."""
    _active.add(watcher)
    _set_mode(True)


def unwatch(watcher: Watcher) -> None:
    _active.discard(watcher)
    if not len(_active):
        _set_mode(False)


def _set_mode(on: bool) -> None:
    """Puts the mode on this thread's stack, under those that came by a with statement and leave with it."""
    stack = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]
    stack = [mode for mode in stack if mode is not _mode]
    if on:
        devices = itertools.takewhile(lambda mode: type(mode).__name__ == "DeviceContext", stack)  # torch's own place
        stack.insert(len(list(devices)), _mode)
    for mode in stack:
        _push_mode(mode)
