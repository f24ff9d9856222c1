"""An abar_optim behind torch tensors: addresses and numbers go in, exceptions come out."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import _abi, _library
from ._layers import Layer

DTYPES = {
    torch.float64: _abi.F64,
    torch.float32: _abi.F32,
    torch.bfloat16: _abi.BF16,
    torch.float16: _abi.F16,
    torch.int64: _abi.I64,
}
LEGACY_STREAM = 1  # cudaStreamLegacy: torch calls the default stream 0, which means "none" to the library
TORCH_DTYPES = {number: dtype for dtype, number in DTYPES.items()}


def describe(t: Tensor, device: Any) -> _abi.Tensor:
    """A view of t for the library; t must live as long."""
    view = _abi.Tensor(device, t.data_ptr(), DTYPES[t.dtype], 0, t.dim())
    view.dim[: t.dim()] = t.shape
    view.stride[: t.dim()] = t.stride()
    return view


@dataclass
class Settings:
    """What the library's optimizer is made from, beside parameters and layers."""

    method: str
    rule: str
    base_lr: float  # of the KL clip
    method_options: _library.Options
    curvature_options: _library.Options
    rule_options: _library.Options
    examples: int = 0  # of a step's batch at most, for methods that must know
    loss_terms: int = 0  # of the mean that the loss is, for rules that must know
    seed: int = 0

    def tables(self) -> tuple[_library.Options, ...]:
        return self.method_options, self.curvature_options, self.rule_options


def make_settings(context: _library.Context, method: str, rule: str, base_lr: float) -> Settings:
    """The library's defaults."""
    return Settings(
        method,
        rule,
        base_lr,
        _library.method_options(context, method),
        _library.curvature_options(context),
        _library.rule_options(context, rule),
    )


@dataclass
class StateTensor:
    """A tensor of the library's state, by the parameter it belongs to (None: the optimizer) and its name there."""

    param: int | None
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    elementwise: bool = False  # the rule's, an element for each of the parameter's


#: Where a parameter is and how it learns, as the library was last told: value, gradient, learning rate, weight decay.
Place = tuple[int, "int | None", float, float]


def _release(library: Any, optim: Any, device: Any, context: _library.Context) -> None:
    library.abar_optim_destroy(optim)
    library.abar_device_close(device)
    del context  # kept until now: both hang on it


def _pick_device(context: _library.Context, params: Sequence[Tensor]) -> tuple[str, torch.device]:
    """The library's device for these parameters: float32 on "cpu" or "cuda", float64 on "ref"."""
    kinds = {(p.device, p.dtype) for p in params}
    if len(kinds) > 1:
        found = ", ".join(sorted(f"{dtype} on {device}" for device, dtype in kinds))
        raise ValueError(f"abar: all parameters must be of one dtype on one device, here are {found}")
    device, dtype = next(iter(kinds))
    name = {torch.float32: device.type, torch.float64: "ref"}.get(dtype)
    if name is None:
        raise ValueError(f"abar: parameters are {dtype}; keep them in float32 and use torch.autocast for {dtype}")
    if device.type not in ("cpu", "cuda") or (name == "ref" and device.type != "cpu"):
        raise ValueError(f"abar: {dtype} parameters on {device} are not supported, move the model to the CPU")
    if name not in _library.device_names(context):
        raise RuntimeError(
            f"abar: the parameters are on {device}, but {_library.library_path()} was built without CUDA; "
            f"move the model to the CPU, or build the library with -DABAR_CUDA=ON"
        )
    return name, device


class Engine:
    """One abar_optim with its context and device."""

    def __init__(
        self,
        context: _library.Context,
        params: Sequence[nn.Parameter],
        names: Sequence[str],
        factors: Sequence[tuple[float, float]],
        layers: Sequence[Layer],
        settings: Settings,
        own: Sequence[_library.Options | None] = (),
    ) -> None:
        """names, and factors (learning rate and weight decay), are the parameters'. own: the method's settings for each layer,
        where they are not those of all."""
        self.context, self.library = context, context.library
        self.params, self.names, self.layers = list(params), list(names), list(layers)
        name, self.torch_device = _pick_device(context, self.params)
        self.dtype = self.params[0].dtype
        self.device = self._open_device(name)
        self._shadows: dict[int, Tensor] = {}  # row-major copies of parameters that are not (channels_last)
        self.extra_grads: list[Tensor] = []  # of rules that need further ones
        turned = {id(layer.weight) for layer in self.layers if layer.transposed}
        self._turned = {i for i, p in enumerate(self.params) if id(p) in turned}  # (in, out): their transpose is given
        self._kept: dict[int, Tensor] = {}  # gradients made row-major for this step
        self._step = _abi.StepConfig(size=ctypes.sizeof(_abi.StepConfig), lr=1.0)
        self.steps_before = 0  # of a rule alone: those of the optimizer whose state was loaded
        self.optim = self._create(factors, settings, own)
        self.close = weakref.finalize(self, _release, self.library, self.optim, self.device, context)
        self.averages = bool(self.library.abar_rule_find(settings.rule.encode()).contents.averages)
        self.reads_output_grad = bool(self.library.abar_method_reads_output_grad(settings.method.encode()))
        rows_alone = settings.method in ("mac", "smac", "foof", "eva")  # statistics of rows, whichever example has them
        pgrad = settings.curvature_options.get("pgrad") if settings.method else ""
        self.reads_examples = not rows_alone or pgrad == "per-example"
        self._layer_names = {layer.name for layer in self.layers}
        self.state_tensors = self._list_state()

    def _open_device(self, name: str) -> ctypes.c_void_p:
        config, device = _abi.DeviceConfig(), ctypes.c_void_p()
        config.size = ctypes.sizeof(config)
        config.threads = torch.get_num_threads()
        if name == "cuda":
            name = f"cuda:{self.torch_device.index or 0}"
            config.stream = self._stream()
        status = self.library.abar_device_open(
            self.context.handle, name.encode(), ctypes.byref(config), ctypes.byref(device)
        )
        self.context.check(status)
        return device

    def _stream(self) -> int:
        return torch.cuda.current_stream(self.torch_device).cuda_stream or LEGACY_STREAM

    def _follow_stream(self) -> None:
        """The library works where torch works now: what either does next comes after what the other did."""
        if self.torch_device.type == "cuda":
            self.context.check(self.library.abar_device_set_stream(self.device, self._stream()))

    def _create(
        self, factors: Sequence[tuple[float, float]], settings: Settings, own: Sequence[_library.Options | None]
    ) -> ctypes.c_void_p:
        params, layers = self._describe_params(factors), self._describe_layers()
        outputs = (ctypes.c_bool * len(self.layers))(*(layer.makes_output for layer in self.layers))
        config = _abi.OptimConfig(
            size=ctypes.sizeof(_abi.OptimConfig),
            rule=settings.rule.encode(),
            rule_config=settings.rule_options.pointer,
            method=settings.method.encode() or None,
            method_config=settings.method_options.pointer,
            curvature=settings.curvature_options.pointer,
            params=params,
            n_params=len(params),
            layers=layers,
            n_layers=len(layers),
            base_lr=settings.base_lr,
            yields_output=outputs,
            examples=settings.examples,
            loss_terms=settings.loss_terms,
            seed=settings.seed,
        )
        if self.library.abar_rule_extra(self.library.abar_rule_find(settings.rule.encode())) != _abi.EXTRA_NONE:
            self.extra_grads = [torch.zeros_like(self._dense(i, p)) for i, p in enumerate(self.params)]
            config.extra_grads = (ctypes.c_void_p * len(params))(*(g.data_ptr() for g in self.extra_grads))
        if any(own):
            config.method_configs = (ctypes.c_void_p * len(own))(*(one and one.pointer.value for one in own))
        optim = ctypes.c_void_p()
        status = self.library.abar_optim_create(self.device, ctypes.byref(config), ctypes.byref(optim))
        if status < 0:
            self.library.abar_device_close(self.device)
            self.context.check(status)
        return optim

    def _describe_params(self, factors: Sequence[tuple[float, float]]) -> Any:
        array = (_abi.Param * len(self.params))()
        self.places: list[Place | None] = [None] * len(self.params)
        for i, (name, p) in enumerate(zip(self.names, self.params)):
            array[i].name = name.encode()
            array[i].value = describe(self._dense(i, p), self.device)
            array[i].lr_scale, array[i].weight_decay = factors[i]
        return array

    def _oriented(self, index: int, t: Tensor) -> Tensor:
        """A parameter or its gradient, (out, in); and back."""
        return t.t() if index in self._turned else t

    def _dense(self, index: int, p: Tensor) -> Tensor:
        """The parameter itself, or a row-major copy that stands for it until the step is done."""
        if index in self._turned or not p.is_contiguous():
            p = self._oriented(index, p.detach())
        if p.is_contiguous():
            self._shadows.pop(index, None)
            return p
        shadow = self._shadows.get(index)
        if shadow is None:
            shadow = self._shadows[index] = torch.empty_like(p, memory_format=torch.contiguous_format)
        return shadow.copy_(p)

    def _describe_layers(self) -> Any:
        index = {id(p): i for i, p in enumerate(self.params)}
        array = (_abi.Layer * len(self.layers))()
        for c, layer in zip(array, self.layers):
            c.name = layer.name.encode()
            c.weight = describe(self._dense(index[id(layer.weight)], layer.weight), self.device)
            if layer.bias is not None:
                c.bias = describe(self._dense(index[id(layer.bias)], layer.bias), self.device)
            c.window = layer.window
            c.reads_network_input = layer.reads_input
            if layer.values is not None:
                layer.values.describe(c)
        return array

    # ---- statistics ------------------------------------------------------------------------------------------------

    def observes(self) -> bool:
        return self.library.abar_optim_observes(self.optim)

    def _readable(self, t: Tensor) -> Tensor:
        """A GPU reads any dtype and strides; on the CPU torch widens and reorders faster than the library reads."""
        return t if self.torch_device.type == "cuda" else t.to(self.dtype).contiguous()

    def observe(self, layer: Layer, x: Tensor, g: Tensor | None, columns: Tensor | None, scale: float) -> None:
        """Adds one layer's rows of one micro-batch to its pending sums. g: where the method reads it; columns: of the
        attention that reads its values."""
        self._follow_stream()
        x = self._readable(x)
        view = _abi.Layer(output_grad_scale=scale)
        view.input = describe(x, self.device)
        if g is not None:
            g = self._readable(g)
            view.output_grad = describe(g, self.device)
        if columns is not None:
            columns = self._readable(columns)
            view.attention.columns = describe(columns, self.device)
        self.context.check(self.library.abar_optim_observe(self.optim, layer.index, ctypes.byref(view)))

    def forget(self) -> None:
        self.library.abar_optim_forget(self.optim)

    def forget_layer(self, layer: Layer) -> None:
        self.library.abar_optim_forget_layer(self.optim, layer.index)

    def read_pending(self) -> Tensor | None:
        """What is pending as one vector that adds up over ranks; None on a step without statistics."""
        count = self.library.abar_optim_pending_count(self.optim)
        if count == 0:
            return None
        pending = torch.empty(count, dtype=torch.float64)
        self.context.check(self.library.abar_optim_pending_read(self.optim, pending.data_ptr()))
        return pending

    def write_pending(self, pending: Tensor) -> None:
        self.context.check(self.library.abar_optim_pending_write(self.optim, pending.data_ptr()))

    # ---- stepping --------------------------------------------------------------------------------------------------

    def _check_moved(self, p: Tensor) -> None:
        if p.device != self.torch_device or p.dtype != self.dtype:
            raise RuntimeError(
                f"abar: a parameter went from {self.dtype} on {self.torch_device} to {p.dtype} on {p.device}; "
                f"make a new optimizer after moving the model"
            )

    def _dense_grad(self, index: int, g: Tensor, p: Tensor) -> Tensor:
        if g.layout != torch.strided:
            raise RuntimeError("abar: sparse gradients are not supported, use sparse=False in the embedding")
        if g.dtype == p.dtype and g.device == p.device and g.is_contiguous():
            return g
        self._kept[index] = g.to(p).contiguous()
        return self._kept[index]

    def set_rates(self, rates: Sequence[float]) -> float:
        """The rate of the next step; returns what the parameters' own are relative to. A rule that averages looks at the
        step's rate: it must be the scheduled one."""
        if not self.averages:
            return 1.0
        self._step.lr = max(rates)
        return self._step.lr or 1.0

    def place_all(self, rates: Sequence[tuple[int, float, float]]) -> None:
        """Tells the library where parameters and gradients are now, and how they learn, where anything has changed. rates: for
        runs of parameters, how many, learning rate and weight decay. It comes at every step for every parameter, so what is
        usual, the library reads both where they are, is decided here, without a call in between."""
        places, dtype, strided = self.places, self.dtype, torch.strided
        special = self._turned | self._shadows.keys()
        set_param, optim = self.library.abar_optim_set_param, self.optim
        params, index = self.params, -1
        for count, lr, weight_decay in rates:
            for p in params[index + 1 : index + 1 + count]:
                index += 1
                grad, before = p.grad, places[index]
                if before is None or index in special or not p.is_contiguous():
                    self._place(index, p, grad, lr, weight_decay)
                    continue
                if grad is None:
                    at = None
                elif grad.dtype is dtype and grad.layout is strided and grad.is_contiguous():
                    at = grad.data_ptr()
                else:
                    self._place(index, p, grad, lr, weight_decay)
                    continue
                value, at_before, lr_before, decay_before = before
                if p.data_ptr() != value:
                    self._place(index, p, grad, lr, weight_decay)
                elif at != at_before or lr != lr_before or weight_decay != decay_before:
                    status = set_param(optim, index, value, at, lr, weight_decay)
                    if status < 0:
                        self.context.check(status)
                    places[index] = (value, at, lr, weight_decay)

    def _place(self, index: int, p: Tensor, grad: Tensor | None, lr: float, weight_decay: float) -> None:
        """The same for a parameter that may have moved, or stands in another form in the library."""
        before = self.places[index]
        if grad is not None:
            grad = self._dense_grad(index, self._oriented(index, grad), p)
        value = self._dense(index, p).data_ptr()
        now = (value, None if grad is None else grad.data_ptr(), lr, weight_decay)
        if now == before:
            return
        if before is None or before[0] != value:
            self._check_moved(p)
        self.context.check(self.library.abar_optim_set_param(self.optim, index, *now))
        self.places[index] = now

    def placed_grads(self) -> list[Tensor]:
        """The gradients of the next step, where the library reads them."""
        return [self._kept.get(i, p.grad) for i, p in enumerate(self.params) if p.grad is not None]

    def set_rule(self, options: _library.Options) -> None:
        self.context.check(self.library.abar_optim_set_rule(self.optim, options.pointer))

    def step(self, clip: float, grad_scale: float, observed_scale: float) -> None:
        """One update, or none where a gradient is not finite: a GPU finds out later, so nobody waits for it here."""
        self._follow_stream()
        self._step.clip, self._step.grad_scale, self._step.observed_scale = clip, grad_scale, observed_scale
        self.context.check(self.library.abar_optim_step(self.optim, ctypes.byref(self._step), None))
        self._moved = [index for index in self._shadows if self.params[index].grad is not None]
        self._copy_shadows()
        self._kept.clear()

    def average(self) -> None:
        """Parameters become those that are tested."""
        self._follow_stream()
        self.context.check(self.library.abar_optim_average(self.optim))
        for index, shadow in self._shadows.items():
            self.params[index].detach().copy_(self._oriented(index, shadow))
        self._kept.clear()

    def _copy_shadows(self) -> None:
        for index in self._moved:
            self.params[index].detach().copy_(self._oriented(index, self._shadows[index]))

    def extra(self) -> int:
        """Which further gradients the next step needs, in extra_grads."""
        return self.library.abar_optim_extra(self.optim)

    def perturb(self, sign: int) -> None:
        """Moves all parameters that have a gradient to W + hz, W - hz, or (0) back to W."""
        self._follow_stream()
        self.context.check(self.library.abar_optim_perturb(self.optim, sign))
        for index, shadow in self._shadows.items():  # .data: a graph that has kept W may go on, W will be back
            self.params[index].data.copy_(self._oriented(index, shadow))

    def set_extra(self, index: int, grad: Tensor | None) -> None:
        """The further gradient of a parameter; None: zero."""
        buffer = self.extra_grads[index]
        buffer.zero_() if grad is None else buffer.copy_(self._oriented(index, grad))

    def take_sampled(self) -> None:
        """Takes up extra_grads, which belong to the step that was made."""
        self.context.check(self.library.abar_optim_take_sampled(self.optim, ctypes.byref(self._step)))

    def wants_pass(self) -> bool:
        """Whether the step that was made waits for a second pass over its batch."""
        return self.library.abar_optim_wants_pass(self.optim)

    def end_pass(self, finite: bool, observed_scale: float) -> None:
        """Judges the second pass: where it is not finite, the step is undone."""
        undone = ctypes.c_bool()
        status = self.library.abar_optim_end_pass(self.optim, finite, observed_scale, ctypes.byref(undone))
        self.context.check(status)
        if undone.value:
            self._copy_shadows()

    def skip(self) -> None:
        self.library.abar_optim_skip(self.optim)

    # ---- looking inside --------------------------------------------------------------------------------------------

    def param_infos(self) -> list[_abi.ParamInfo]:
        """Learning rates and decays are those of the last step."""
        find = self.library.abar_optim_param_info
        infos = [_abi.ParamInfo.from_buffer_copy(find(self.optim, i).contents) for i in range(len(self.params))]
        for info in infos:
            info.lr_scale *= self._step.lr
        return infos

    def block_counts(self) -> _abi.BlockCounts:
        return _abi.BlockCounts.from_buffer_copy(self.library.abar_optim_blocks(self.optim).contents)

    def maps(self) -> list[_abi.MapInfo]:
        count = self.library.abar_optim_map_count(self.optim)
        return [_abi.MapInfo.from_buffer_copy(self.library.abar_optim_map(self.optim, i).contents) for i in range(count)]

    def layer_of(self, info: _abi.MapInfo) -> str:
        """The name of a map's layer: rows that make values of attention are maps of their own, "LAYER@v"."""
        name = info.layer.decode()
        return name if name in self._layer_names else name.rpartition("@v")[0] or name

    def counters(self) -> dict[str, int]:
        """The steps given so far, skipped ones included, and the updates made."""
        found: dict[str, int] = {}

        def see(index: int, view: _abi.Tensor) -> None:
            if self.state_tensors[index].param is None and view.dtype == _abi.I64:
                found[self.state_tensors[index].key] = ctypes.c_int64.from_address(view.data).value

        self._visit(see)
        found.setdefault("steps", self.steps_before + int(self.library.abar_optim_steps(self.optim)))
        return found

    def measure(self) -> None:
        self.library.abar_optim_measure(self.optim)

    def state_bytes(self) -> int:
        return self.library.abar_optim_state_bytes(self.optim)

    def _visit(self, see: Callable[[int, _abi.Tensor], None]) -> list[str]:
        """Calls see with every state tensor of the library, in its order; returns their names. A view is good within
        the call only, and what is written to it there is taken up."""
        names: list[str] = []
        failures: list[BaseException] = []

        @_abi.StateVisitor
        def visit(_user: Any, name: bytes, tensor: Any) -> int:
            try:
                see(len(names), tensor.contents)
            except BaseException as failure:  # must not pass through C
                failures.append(failure)
                return _abi.E_ARGUMENT
            names.append(name.decode())
            return 0

        self._follow_stream()
        status = self.library.abar_optim_visit(self.optim, visit, None)
        if failures:
            raise failures[0]
        self.context.check(status)
        return names

    def _list_state(self) -> list[StateTensor]:
        """The library names state by layer and group; here it belongs to parameters, in the order of the visit: the
        rule's by parameter, counters, then map by map, each ending in "numbers", and the count of steps."""
        shapes: list[tuple[int, ...]] = []
        dtypes: list[torch.dtype] = []

        def see(_index: int, view: _abi.Tensor) -> None:
            shapes.append(tuple(view.dim[: view.ndim]))
            dtypes.append(TORCH_DTYPES[view.dtype])

        names = self._visit(see)
        index = {name: i for i, name in enumerate(self.names)}
        weights = {layer.name: index_of for layer, index_of in zip(self.layers, self._weight_indices())}
        maps = iter(self.maps())
        owners: list[tuple[int | None, str]] = []
        at: _abi.MapInfo | None = None
        for name in names:
            kind, _, rest = name.partition(".")
            if name == "curvature.steps":
                owners.append((None, "steps"))
            elif kind != "curvature":  # "momentum.PARAMETER", or a counter
                owners.append((index[rest], kind) if rest else (None, kind))
            else:
                at = at or next(maps)
                layer = at.layer.decode()
                mark = f"#{at.group}" if name.startswith(f"curvature.{layer}#") else ""
                part = name[len(f"curvature.{layer}{mark}.") :]
                owner = self.layer_of(at)
                mark += layer[len(owner) :]  # rows of values: "@v", or "@v0" of a head
                owners.append((weights.get(owner, 0), part + mark))  # all parameters together: with the first
                if part == "numbers":
                    at = None
        of_rule = [not name.startswith("curvature.") for name in names]
        return [
            StateTensor(*owner, shape, dtype, rule and owner[0] is not None and shape == tuple(self.params[owner[0]].shape))
            for owner, shape, dtype, rule in zip(owners, shapes, dtypes, of_rule, strict=True)
        ]

    def _weight_indices(self) -> list[int]:
        index = {id(p): i for i, p in enumerate(self.params)}
        return [index[id(layer.weight)] for layer in self.layers]

    def _beside(self, view: _abi.Tensor) -> torch.device:
        """Where torch would keep this tensor: with the parameter, counters on the host."""
        return torch.device("cpu") if view.dev is None else self.torch_device

    def _copy(self, target: _abi.Tensor, source: _abi.Tensor) -> None:
        self.context.check(
            self.library.abar_tensor_copy(self.context.handle, ctypes.byref(target), ctypes.byref(source))
        )

    def read_state(self) -> list[Tensor]:
        """Copies of all state, in the order of state_tensors."""
        copies: list[Tensor] = []

        def see(index: int, view: _abi.Tensor) -> None:
            shape, dtype = self.state_tensors[index].shape, TORCH_DTYPES[view.dtype]
            copies.append(torch.empty(shape, dtype=dtype, device=self._beside(view)))
            self._copy(describe(copies[-1], view.dev), view)

        self._visit(see)
        return copies

    def write_state(self, values: Sequence[Tensor]) -> None:
        """All state from values; what is pending is dropped."""

        def see(index: int, view: _abi.Tensor) -> None:
            value = values[index].detach().to(device=self._beside(view), dtype=TORCH_DTYPES[view.dtype]).contiguous()
            self._copy(view, describe(value, view.dev))

        self._visit(see)
        self.forget()


class Closed:
    """Stands for an engine that is gone."""

    def __getattr__(self, _name: str) -> Any:
        raise RuntimeError("abar: this optimizer was closed")
