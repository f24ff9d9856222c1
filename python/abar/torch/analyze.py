"""How much of a layer's activation second moment is its mean: what MAC builds on, looked at in your own model."""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from .. import _abi, _library


@dataclass
class AttentionAnalysis:
    """Attention's probabilities: T is their mean over samples and heads, t the mean of T's rows (docs/analysis.md)."""

    tokens: int
    matrices: int
    cosine_stationary: float  #: of t and T's stationary distribution
    cosine_singular: float  #: of t and T's top right singular vector
    top_share: float  #: largest singular value squared over |T|^2, mean over the matrices
    rank1_error: float  #: of T ~ 1 t^T, relative, mean over the matrices
    printed_error: float  #: of T ~ t t^T
    eigenvalues: list[float] = field(repr=False)  #: absolute, descending
    singular_values: list[float] = field(repr=False)
    column_means: list[float] = field(repr=False)


@dataclass
class LayerAnalysis:
    """One linear map: A = E[a a^T] of its input rows a, x = E[a], S = A - x x^T (docs/analysis.md)."""

    name: str
    kind: str  #: "linear", "conv2d" or "attention"
    rows: int
    side: int  #: numbers of a row, the homogeneous 1 included
    trace: float
    largest: float  #: eigenvalue of A
    gap: float  #: (first - second eigenvalue) / first
    effective_rank: float  #: trace / largest
    mean_square: float  #: |x|^2
    mean_share: float  #: |x|^2 / tr A
    cosine: float  #: of x and A's top eigenvector; NaN where x is 0
    rank1_error: float  #: |S| / |x|^2: of A ~ x x^T
    davis_kahan: float  #: bound on the distance of x/|x| and the top eigenvector; says nothing above sqrt(2)
    adaptive_damping: float  #: tr S / side
    condition_sgd: float  #: condition numbers of the preconditioned A
    condition_mac: float
    condition_foof: float
    eigenvalues: list[float] = field(repr=False)  #: the largest, descending
    attention: AttentionAnalysis | None = None


class Analysis(list[LayerAnalysis]):
    """A list of layers; ``str()`` is a table."""

    HEADER = "layer kind rows side mean/trace cosine error top/trace damping T~1t".split()

    def __str__(self) -> str:
        table = [self.HEADER]
        for a in self:
            numbers = (a.mean_share, a.cosine, a.rank1_error, 1.0 / a.effective_rank, a.adaptive_damping)
            error = a.attention.rank1_error if a.attention else math.nan
            cells = [_number(x) for x in (*numbers, error)]
            table.append([a.name, a.kind, str(a.rows), str(a.side), *cells])
        widths = [max(len(line[i]) for line in table) for i in range(len(self.HEADER))]
        return "\n".join(
            "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip()
            for line in table
        )


def _number(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.3g}"


def _host(x: Tensor) -> Tensor:
    """In a precision the library sums from; it sums in double."""
    return x.detach().to("cpu", torch.float64 if x.dtype == torch.float64 else torch.float32)


def _view(x: Tensor) -> _abi.Tensor:
    view = _abi.Tensor(None, x.data_ptr(), _abi.F64 if x.dtype == torch.float64 else _abi.F32, 0, x.dim())
    view.dim[: x.dim()] = x.shape
    view.stride[: x.dim()] = x.stride()
    return view


class _Moments:
    """Sums over the rows of one map."""

    def __init__(self, context: _library.Context, name: str, kind: str) -> None:
        self.context, self.name, self.kind = context, name, kind
        self.handle = ctypes.c_void_p()
        self.probabilities: _Probabilities | None = None

    def add(self, rows: Tensor) -> None:
        library = self.context.library
        if not self.handle:
            self.context.check(library.abar_moments_create(self.context.handle, rows.shape[1], ctypes.byref(self.handle)))
        self.context.check(library.abar_moments_add(self.handle, _view(rows)))

    def result(self, damping: float, eigenvalues: int) -> LayerAnalysis:
        library = self.context.library
        side = library.abar_moments_side(self.handle)
        s = _abi.MomentsSummary(size=ctypes.sizeof(_abi.MomentsSummary))
        values = (ctypes.c_double * min(eigenvalues, side))()
        self.context.check(library.abar_moments_summarise(self.handle, damping, s, values, len(values)))
        return LayerAnalysis(
            self.name,
            self.kind,
            int(s.rows),
            side,
            s.trace,
            s.largest,
            s.gap,
            s.effective_rank,
            s.mean_square,
            s.rank1_share,
            s.cosine,
            s.rank1_error,
            s.davis_kahan,
            s.adaptive_damping,
            s.condition_sgd,
            s.condition_mac,
            s.condition_foof,
            list(values),
            self.probabilities.result() if self.probabilities else None,
        )

    def close(self) -> None:
        if self.handle:
            self.context.library.abar_moments_destroy(self.handle)
            self.handle = ctypes.c_void_p()
        if self.probabilities:
            self.probabilities.close()


class _Probabilities:
    def __init__(self, context: _library.Context, tokens: int) -> None:
        self.context, self.tokens, self.handle = context, tokens, ctypes.c_void_p()
        context.check(context.library.abar_probabilities_create(context.handle, tokens, ctypes.byref(self.handle)))

    def add(self, t: Tensor) -> None:
        t = _host(t).reshape(-1, self.tokens, self.tokens)
        self.context.check(self.context.library.abar_probabilities_add(self.handle, _view(t)))

    def result(self) -> AttentionAnalysis:
        n, s = self.tokens, _abi.ProbabilitiesSummary(size=ctypes.sizeof(_abi.ProbabilitiesSummary))
        lists = [(ctypes.c_double * n)() for _ in range(3)]
        self.context.check(self.context.library.abar_probabilities_summarise(self.handle, s, *lists))
        numbers = (s.cosine_stationary, s.cosine_singular, s.top_share, s.rank1_error, s.printed_error)
        return AttentionAnalysis(n, int(s.matrices), *numbers, *(list(values) for values in lists))

    def close(self) -> None:
        self.context.library.abar_probabilities_destroy(self.handle)


# ---- rows ------------------------------------------------------------------------------------------------------------


def _with_one(rows: Tensor, homogeneous: bool) -> Tensor:
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1) if homogeneous else rows


def _patches(module: nn.Conv2d, x: Tensor, group: int) -> Tensor:
    """Rows of a convolution's group: channels, then kernel positions."""
    x = x.unsqueeze(0) if x.dim() == 3 else x
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x, padding = nn.functional.pad(x, module._reversed_padding_repeated_twice, mode=mode), (0, 0)
    else:
        padding = module.padding
    channels = module.in_channels // module.groups
    part = x[:, group * channels : (group + 1) * channels]
    unfolded = nn.functional.unfold(part, module.kernel_size, module.dilation, padding, module.stride)
    return unfolded.transpose(1, 2).reshape(-1, unfolded.shape[1])


def _probabilities(qkv: Tensor, heads: int, causal: bool) -> Tensor:
    """Softmax of q k^T from (N, T, 3 D): queries, keys and values side by side."""
    n, tokens, width = qkv.shape
    q, k, _ = _host(qkv).double().reshape(n, tokens, 3, heads, width // (3 * heads)).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool).tril(), -math.inf)
    return scores.softmax(-1)


# ---- hooks -----------------------------------------------------------------------------------------------------------


# Hooks see keyword arguments, and keep the encoder from its fused path, from PyTorch 2.0 on.
_SEES_MULTIHEAD = "with_kwargs" in inspect.signature(nn.Module.register_forward_pre_hook).parameters


class _Watch:
    """Hooks on a model, and the sums they feed."""

    def __init__(self, homogeneous: bool, qkv: Mapping[str, int], causal: bool) -> None:
        self.context = _library.Context()
        self.homogeneous, self.qkv, self.causal = homogeneous, dict(qkv), causal
        self.maps: dict[str, _Moments] = {}
        self.hooks: list[Any] = []
        self.wanted: dict[nn.Module, tuple[bool, bool]] = {}

    def map_of(self, name: str, kind: str) -> _Moments:
        return self.maps.setdefault(name, _Moments(self.context, name, kind))

    def attach(self, model: nn.Module, layers: str) -> None:
        for name, module in model.named_modules():
            if not fnmatchcase(name, layers):
                continue
            if isinstance(module, nn.MultiheadAttention):
                if not _SEES_MULTIHEAD:
                    raise RuntimeError(f"analyze: {name or 'the model'} is nn.MultiheadAttention, which needs PyTorch 2.0; use layers=")
                self.hooks.append(module.register_forward_pre_hook(self._ask_weights, with_kwargs=True))
                self.hooks.append(module.register_forward_hook(self._attention(name), with_kwargs=True))
            elif isinstance(module, (nn.Linear, nn.Conv2d)):
                self.hooks.append(module.register_forward_hook(self._linear(name)))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        for m in self.maps.values():
            m.close()

    def _linear(self, name: str) -> Callable[..., None]:
        heads = next((n for pattern, n in self.qkv.items() if fnmatchcase(name, pattern)), 0)

        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            x, one = _host(inputs[0]), self.homogeneous and module.bias is not None
            if isinstance(module, nn.Conv2d):
                for group in range(module.groups):
                    own = f"{name}#{group}" if module.groups > 1 else name
                    self.map_of(own, "conv2d").add(_with_one(_patches(module, x, group), one))
                return
            m = self.map_of(name, "attention" if heads else "linear")
            m.add(_with_one(x.reshape(-1, x.shape[-1]), one))
            if heads:
                self._add(m, _probabilities(output, heads, self.causal))

        return hook

    def _ask_weights(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Probabilities of every head; what the caller asked for is given back by the hook after."""
        names = "query key value key_padding_mask need_weights attn_mask average_attn_weights".split()
        given = {**dict(zip(names, args)), **kwargs}
        self.wanted[module] = given.get("need_weights", True), given.get("average_attn_weights", True)
        return (), {**given, "need_weights": True, "average_attn_weights": False}

    def _attention(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, _args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            x, (result, t) = _host(kwargs["query"]), output
            m = self.map_of(name, "attention")
            m.add(_with_one(x.reshape(-1, x.shape[-1]), self.homogeneous and module.in_proj_bias is not None))
            if t.shape[-1] == t.shape[-2]:
                self._add(m, t)
            need, average = self.wanted.pop(module)
            return result, (t.mean(-3) if average else t) if need else None

        return hook

    def _add(self, m: _Moments, t: Tensor) -> None:
        if m.probabilities is None:
            m.probabilities = _Probabilities(self.context, t.shape[-1])
        if m.probabilities.tokens == t.shape[-1]:
            m.probabilities.add(t)


def _call(model: nn.Module, batch: Any, device: torch.device) -> None:
    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, Tensor) else x

    if isinstance(batch, Mapping):
        model(**{name: move(x) for name, x in batch.items()})
    else:
        model(move(batch[0] if isinstance(batch, (tuple, list)) else batch))


def analyze(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    layers: str = "*",
    homogeneous: bool = True,
    damping: float = 1.0,
    eigenvalues: int = 50,
    qkv: Mapping[str, int] | None = None,
    causal: bool = False,
) -> Analysis:
    """Looks at the inputs of every ``Linear``, ``Conv2d`` and ``MultiheadAttention`` of ``model`` while it runs over
    ``batches``, in evaluation mode and without gradients; the model is left as it was.

    A batch is a tensor, a tuple whose first item is the input (as ``DataLoader`` gives them), or a mapping of keyword
    arguments. ``layers``: names to look at, a pattern. ``homogeneous``: rows end in 1 where the layer has a bias, as the
    optimizers see them. ``damping``: rho of the condition numbers. ``qkv``: for attention that is written out, the Linear
    layers that make queries, keys and values side by side, by pattern, with their number of heads (``{"*.attn.qkv": 3}``);
    ``causal``: whether that attention is. Attention over sequences of several lengths counts those of the first batch's.

    Each group of a grouped convolution is a map of its own, ``NAME#GROUP``."""
    watch = _Watch(homogeneous, qkv or {}, causal)
    modes = {module: module.training for module in model.modules()}
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        watch.attach(model, layers)
        if not watch.hooks:
            raise ValueError(f"abar: layers={layers!r} fits no Linear, Conv2d or MultiheadAttention of the model")
        model.eval()
        with torch.no_grad():
            for batch in batches:
                _call(model, batch, device)
        if not watch.maps:
            raise ValueError("abar: no layer has run, give at least one batch")
        return Analysis(m.result(damping, eigenvalues) for m in watch.maps.values())
    finally:
        for module, training in modes.items():
            module.training = training
        watch.close()
