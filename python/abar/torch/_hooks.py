"""From the uses of the maps to their statistics, on the steps that take any.

A use keeps its input by reference and hangs a hook on its output's node in the autograd graph, which backward hands the
gradient of the output. It counts when that backward pass has added to the weight's .grad, and not before: passes of
autograd.grad leave no trace. Then all uses of the map in that pass are observed together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _uses
from ._columns import fit_columns
from ._layers import Layer, fit_image, fit_rows
from ._uses import Call, Tokens


class Rows(NamedTuple):
    """What a map read in one use, or several."""

    x: Tensor
    grad: Tensor | None  # of the output, where the method reads it
    columns: Tensor | None  # where attention reads the output as values
    scale: float = 1.0  # of the gradients


Observe = Callable[[Layer, Rows], None]

_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)  # 1.13 has no number for a pass


class _Use:
    """One use of a map, from forward to backward."""

    def __init__(self, observer: weakref.ref[Observer], layer: Layer, call: Call, tokens: Tokens, output_nr: int) -> None:
        self.observer, self.layer, self.output_nr = observer, layer, output_nr
        self.conv, self.tokens = call.conv, tokens
        self.shape = _shape_before(call.x)
        self.columns: Tensor | None = None
        self.x: Tensor | None = call.x.detach()
        self.version = call.x._version

    def backward(self, _grad_inputs: Any, grad_outputs: Any) -> None:
        observer, grad = self.observer(), grad_outputs[self.output_nr]
        if observer is not None and grad is not None:
            observer.arrived(self, grad.detach())

    def take(self) -> Tensor:
        """The input, once."""
        x, self.x = self.x, None
        assert x is not None
        if x._version != self.version:
            raise RuntimeError(
                f"abar: the input of {self.layer.name} was changed in place after the layer had read it; "
                f"change a copy, or leave the layer out with skip=({self.layer.name!r},)"
            )
        return x

    def examples(self) -> int:
        if self.tokens.length:
            return self.tokens.sequences
        batched = len(self.shape) >= (1 if self.conv is None else 3)  # (N, ...), (N, C, H)
        return self.shape[0] if batched else 1

    def arrange(self, t: Tensor, is_input: bool) -> Tensor:
        """Input or output gradient as the library reads it."""
        if self.conv is not None:
            return fit_image(self.layer, t, self.conv) if is_input else (t.unsqueeze(0) if t.dim() == 3 else t)
        if self.tokens.length:
            return t.reshape(-1, self.tokens.sequences, t.shape[-1]).transpose(0, 1)
        return fit_rows(t, self.shape)


def _shape_before(x: Tensor) -> tuple[int, ...]:
    """The dimensions of the rows, also where they were flattened for the call: HF's Conv1D does."""
    base = x._base
    flat = x.dim() == 2 and base is not None and base.dim() > 2 and base.shape[-1] == x.shape[-1]
    return tuple(base.shape[:-1] if flat and base.numel() == x.numel() else x.shape[:-1])  # type: ignore[union-attr]


class Observer:
    """What one optimizer sees. Graphs and tensors refer to it weakly, and so does it to the optimizer."""

    def __init__(
        self,
        layers: Sequence[Layer],
        observe: Observe,
        forget: Callable[[Layer], None],
        reads_output_grad: bool,
        by_example: bool,
        heads: Mapping[int, int],
    ) -> None:
        """by_example: the method looks at whole examples, so that their rows must be observed together. heads: of the layers
        that make values, by their index."""
        self.layers = list(layers)
        self._observe, self._forget = weakref.WeakMethod(observe), weakref.WeakMethod(forget)
        self._reads_output_grad, self._by_example = reads_output_grad, by_example
        self._by_id = {id(layer.weight): layer for layer in layers}
        self._by_token = {_uses.token_of(layer.weight): layer for layer in layers}
        self._heads = dict(heads)
        for layer in layers:
            layer.weight._abar_values = layer.index in self._heads  # type: ignore[attr-defined]
        self._waiting: _Use | None = None  # for the attention that reads its values
        self._values: weakref.ref[Tensor] | None = None  # that attention read last
        self._columns: dict[int, list[Tensor]] = {}  # of compiled models, by token
        self._guards: dict[int, tuple[Any, ...]] = {}
        self._passes: dict[int, dict[int, list[tuple[_Use, Tensor | None]]]] = {}
        self._images: dict[int, int] = {}  # examples of a pass, as layers say that do not read windows
        self._grads: dict[int, tuple[Tensor, int]] = {}  # of what was observed: the gradient then, and its version
        self.hidden: dict[int, str] = {}  # layers with a use that cannot be observed, and why
        self.parts: set[int] = set()  # layers whose weight was used in parts
        self.wrapped: set[int] = set()  # layers that ran inside torch.vmap or torch.func
        self.observed: set[int] = set()  # since the last step
        self.active = self.closed = False

    # ---- when it looks ---------------------------------------------------------------------------------------------

    def set_active(self, active: bool) -> None:
        """Begins to look for a step with statistics, or stops."""
        self.reset()
        self._forget_passes()
        self._release()
        self.active = active and not self.closed
        if self.active:
            _uses.watch(self)
            for layer in self.layers:
                if layer.weight.requires_grad:
                    self._guard(layer, layer.weight)
        else:
            _uses.unwatch(self)

    def reset(self) -> None:
        """Nothing was observed. Forward passes may have been made: zero_grad() often comes before backward alone."""
        self._passes.clear()
        self._images.clear()
        self._grads.clear()
        self.observed.clear()

    def _forget_passes(self) -> None:
        self._waiting = None
        self._columns.clear()
        self.hidden.clear()
        self.parts.clear()
        self.wrapped.clear()

    def _release(self) -> None:
        for _weight, _node, handles in self._guards.values():
            for handle in handles:
                handle.remove()
        self._guards.clear()

    def close(self) -> None:
        """For good."""
        self.closed = True
        self.set_active(False)

    def __del__(self) -> None:
        self._release()
        _uses.unwatch(self)

    def _guard(self, layer: Layer, weight: Tensor) -> None:
        """Hooks before and after a backward pass adds to the gradient."""
        if id(weight) in self._guards:
            return
        me = weakref.ref(self)

        def before(_grad: Tensor) -> None:
            observer = me()
            if observer is not None:
                observer.forget_dropped(layer, True)

        def after(_inputs: Any, _outputs: Any) -> None:
            observer = me()
            if observer is not None:
                observer.accumulated(layer)

        with torch.enable_grad():
            node = weight.expand_as(weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        handles = [node.register_hook(after)]
        if weight is layer.weight:
            handles.append(weight.register_hook(before))
        self._guards[id(weight)] = (weight, node, handles)

    # ---- what is used ----------------------------------------------------------------------------------------------

    def _layer_of(self, weight: Tensor) -> Layer | None:
        layer = self._by_id.get(id(weight))
        if layer is None and isinstance(weight, nn.Parameter):  # FSDP puts whole parameters in the place of its parts
            layer = next((one for one in self.layers if one.module._parameters.get(one.key) is weight), None)
        return layer

    def used(self, call: Call, out: Tensor, tokens: Tokens) -> Tensor:
        weight, turned = _uses.owner_of(call.weight)
        layer = self._layer_of(weight)
        if layer is None:
            part = self._by_id.get(id(weight._base))
            if part is not None:
                self.parts.add(part.index)
            return out
        if not weight.requires_grad:
            return out
        if _uses.is_wrapped(out):
            self.wrapped.add(layer.index)
            return out
        reason = layer.why_not(call, turned)
        if reason:
            self.hidden[layer.index] = reason
            return out
        if out._is_view():  # an operation in place would give a view another node
            out = out.clone()
        use = _Use(weakref.ref(self), layer, call, tokens, out.output_nr)
        out.grad_fn.register_hook(use.backward)  # type: ignore[union-attr]
        self._guard(layer, weight)
        if layer.index in self._heads:
            self._waiting = use
        return out

    def attended(self, value: Tensor | None, columns: Callable[[], Tensor]) -> None:
        """Attention comes after the layer that makes its values. columns: of its probabilities."""
        use = self._waiting
        if use is None:
            if value is not None and self._values is not None and value is self._values():
                self._twice()
            return
        with torch.no_grad():
            use.columns = self._fit(use.layer, columns(), use.x)
        if use.columns is not None:
            self._last, self._waiting = use.layer, None
            self._values = None if value is None else weakref.ref(value)

    def _twice(self) -> None:
        self.hidden[self._last.index] = "makes values that are attended to twice"

    def _fit(self, layer: Layer, columns: Tensor, x: Tensor | None) -> Tensor | None:
        return None if x is None else fit_columns(columns, self._heads[layer.index], x.numel() // x.shape[-1])

    def attended_in_graph(self, token: int, columns: Callable[[], Tensor]) -> None:
        layer = self._by_token.get(token)
        if layer is not None and layer.index in self._heads and self.active:
            self._columns.setdefault(token, []).append(columns())

    def used_in_graph(self, token: int, x: Tensor, grad: Tensor, numbers: Sequence[int]) -> None:
        """In the backward pass of a compiled model, whose buffers are overwritten when this returns."""
        layer = self._by_token.get(token)
        if layer is None or not self.active:
            return
        call, tokens = _uses.call_of(x.clone(), layer.weight, numbers)
        reason = layer.why_not(call, False)
        if self._by_example and layer.transposed:
            reason = "was compiled, which hides the examples that its rows belong to"
        if reason:
            self.hidden[layer.index] = reason
            return
        use = _Use(weakref.ref(self), layer, call, tokens, 0)
        columns = self._columns.get(token)
        if columns:
            use.columns = self._fit(layer, columns.pop(), x)
        self.arrived(use, grad.clone() if self._reads_output_grad else grad)

    # ---- what counts -----------------------------------------------------------------------------------------------

    def arrived(self, use: _Use, grad: Tensor) -> None:
        """A backward pass came to a use."""
        if not self.active:  # the step came between forward and backward
            return
        task = _task()
        if task not in self._passes:
            self._passes[task] = {}
            parts = self._passes, self._images
            torch.autograd.Variable._execution_engine.queue_callback(lambda: [part.pop(task, None) for part in parts] and None)
        if self._by_example and not use.layer.windowed:
            self._images.setdefault(task, use.examples())
        uses = self._passes[task].setdefault(use.layer.index, [])
        uses.append((use, grad if self._reads_output_grad else None))

    def accumulated(self, layer: Layer) -> None:
        """A backward pass has added to the gradient of a layer's weight."""
        uses = self._passes.get(_task(), {}).pop(layer.index, [])
        fresh = [(use, grad) for use, grad in uses if use.x is not None]
        if len(fresh) < len(uses) and self._reads_output_grad:
            raise RuntimeError(
                f"abar: backward went through {layer.name} twice for one forward pass; add the losses up and "
                f"call backward once, or leave the layer out with skip=({layer.name!r},)"
            )
        observe = self._observe()
        if observe is None or not fresh:
            return
        for rows in self._join(layer, [self._read(use, grad) for use, grad in fresh]):
            observe(layer, self._by_image(layer, rows) if self._by_example and layer.windowed else rows)
        self.observed.add(layer.index)
        if layer.weight.grad is not None:
            self._grads[layer.index] = (layer.weight.grad, layer.weight.grad._version)

    def _read(self, use: _Use, grad: Tensor | None) -> Rows:
        x, grad = use.arrange(use.take(), True), None if grad is None else use.arrange(grad, False)
        if use.layer.index not in self._heads:
            return Rows(x, grad, None)
        if use.columns is None:
            raise RuntimeError(
                f"abar: {use.layer.name} makes values of attention, but no probabilities of softmax or of "
                f"scaled_dot_product_attention came after it; take value_stat='plain', or attention={{...: None}} for its "
                f"module"
            )
        shape = (use.columns.shape[0], use.columns.shape[2], -1)
        return Rows(x.reshape(shape), None if grad is None else grad.reshape(shape), use.columns)

    def _join(self, layer: Layer, parts: list[Rows]) -> list[Rows]:
        """Uses in one pass are further rows of the same examples (methods.md section 0)."""
        if len(parts) == 1 or not self._by_example:
            return parts
        if layer.kind == "conv2d" or layer.index in self._heads or len({rows.x.shape[0] for rows in parts}) > 1:
            raise RuntimeError(
                f"abar: {layer.name} is used {len(parts)} times in one pass, and which rows belong to one example cannot be "
                f"told; leave it to the rule with skip=({layer.name!r},)"
            )
        x = torch.cat([_sequence(rows.x) for rows in parts], 1)
        grads = [_sequence(rows.grad) for rows in parts if rows.grad is not None]
        return [Rows(x, torch.cat(grads, 1) if grads else None, None)]

    def _by_image(self, layer: Layer, rows: Rows) -> Rows:
        """The windows of an image are one example (methods.md section 0). Where attention weighs the rows of each window, what
        is left that depends on the number of examples is the scale of output gradients."""
        windows, images = rows.x.shape[0], self._images.get(_task(), 0)
        if images == 0 or windows % images:
            raise RuntimeError(
                f"abar: {layer.name} reads {windows} windows, and of how many images they are cannot be told; leave it to the "
                f"rule with skip=({layer.name!r},)"
            )
        if rows.columns is not None:
            return rows._replace(scale=images / windows)
        join = lambda t: t.reshape(images, -1, t.shape[-1])  # noqa: E731
        return Rows(join(rows.x), None if rows.grad is None else join(rows.grad), None)

    def forget_dropped(self, layer: Layer, passing: bool) -> None:
        """Statistics go with their gradient, where someone has set it to None or, before a further pass, to zero."""
        kept = self._grads.get(layer.index)
        if kept is None:
            return
        grad = layer.weight.grad
        changed = grad is None or grad is not kept[0] or grad._version != kept[1]
        if grad is None or (passing and changed and not bool(grad.any())):
            del self._grads[layer.index]
            self.observed.discard(layer.index)
            forget = self._forget()
            if forget is not None:
                forget(layer)

    def why_hidden(self, layer: Layer) -> str | None:
        """Why the statistics of a layer that has a gradient are not complete; None: they are, or nothing was seen."""
        if layer.index in self.wrapped and layer.index not in self.observed:
            return "ran inside torch.vmap or torch.func"
        if layer.index in self.parts and layer.index in self.observed:
            return "has a weight that is also used in parts"
        return self.hidden.get(layer.index)

    def forget_all_dropped(self) -> None:
        for layer in self.layers:
            self.forget_dropped(layer, False)


def _sequence(t: Tensor) -> Tensor:
    return t.unsqueeze(1) if t.dim() == 2 else t
