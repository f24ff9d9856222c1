"""Sees the layers' inputs and output gradients on the steps that take statistics; on the others there is no hook.

A forward hook keeps the input by reference and hangs a hook on the output's node in the autograd graph. Backward hands
that one the gradient of the output as the layer left it, whatever happened to the output in place afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ._layers import Layer

#: Called with a layer, its input and its output's gradient.
Observe = Callable[[Layer, Tensor, Tensor], None]


#: Keeps a hook out of what torch.compile makes of a model; torch 1.13 has no such thing.
_eager: Callable[[Any], Any] = getattr(torch, "_disable_dynamo", lambda function: function)


def _in_backward() -> bool:
    """Whether this runs inside a backward pass: then it recomputes a forward one (checkpointing)."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


class _Call:
    """One call of one layer, from forward to backward."""

    def __init__(self, observer: weakref.ref[Observer], layer: Layer, x: Tensor, output_nr: int) -> None:
        self.observer, self.layer, self.output_nr = observer, layer, output_nr
        self.x: Tensor | None = x.detach()
        self.version = x._version

    def backward(self, _grad_inputs: Any, grad_outputs: Any) -> None:
        observer, grad = self.observer(), grad_outputs[self.output_nr]
        if observer is None or grad is None:
            return
        x, self.x = self.x, None
        if x is None:
            observer.seen_again(self.layer)
            return
        if x._version != self.version:
            raise RuntimeError(
                f"abar: the input of {self.layer.name} was changed in place after the layer had read it; "
                f"change a copy, or leave the layer out with skip=({self.layer.name!r},)"
            )
        observer.seen(self.layer, x, grad.detach())


class Observer:
    """The hooks of one optimizer. Modules and graphs refer to it weakly, and so does it to the optimizer: whoever drops
    the optimizer drops the hooks."""

    def __init__(self, model: nn.Module, layers: list[Layer], observe: Observe, reads_output_grad: bool) -> None:
        self._model, self._layers, self._observe = model, layers, weakref.WeakMethod(observe)
        self._reads_output_grad = reads_output_grad
        self._handles: list[Any] = []
        self._forward = 0  # counts the model's forward passes
        self._open: dict[int, int] = {}  # layers called but not yet seen in backward: in which forward pass
        self.count = 0  # observations since the last step
        self.closed = False

    # ---- registering -----------------------------------------------------------------------------------------------

    def set_active(self, active: bool) -> None:
        """Puts the hooks in place for a step with statistics, or takes them away."""
        self._open.clear()
        self.count = 0
        if active and not self._handles and not self.closed:
            me = weakref.ref(self)
            self._handles.append(self._model.register_forward_pre_hook(_Begin(me)))
            for layer in self._layers:
                self._handles.append(layer.module.register_forward_hook(_Forward(me, layer)))
        elif not active:
            self.remove()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def close(self) -> None:
        """For good."""
        self.closed = True
        self.remove()

    def __del__(self) -> None:
        self.remove()

    # ---- what the hooks do -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._forward += 1

    def called(self, me: weakref.ref[Observer], layer: Layer, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        if not (layer.module.training and torch.is_grad_enabled() and layer.weight.requires_grad):
            return None
        if not isinstance(output, Tensor) or not output.requires_grad or output.grad_fn is None:
            return None
        if not inputs or not isinstance(inputs[0], Tensor):
            raise RuntimeError(f"abar: {layer.name} was called without its input as first positional argument")
        if self._open.get(layer.index) == self._forward:
            if _in_backward():
                return None  # recomputed for a call that is already known
            raise RuntimeError(
                f"abar: {layer.name} is used twice in one forward pass, and one map has one place in the model; "
                f"leave it to the rule with skip=({layer.name!r},)"
            )
        self._open[layer.index] = self._forward
        replaced = None
        if output._is_view():  # an operation in place would give a view another node
            replaced = output = output.clone()
        call = _Call(me, layer, inputs[0], output.output_nr)
        output.grad_fn.register_hook(call.backward)
        return replaced

    def seen(self, layer: Layer, x: Tensor, grad: Tensor) -> None:
        self._open.pop(layer.index, None)
        if not self._handles:  # the step came between forward and backward
            return
        observe = self._observe()
        if observe is not None:
            self.count += 1
            observe(layer, x, grad)

    def seen_again(self, layer: Layer) -> None:
        if self._handles and self._reads_output_grad:
            raise RuntimeError(
                f"abar: backward went through {layer.name} twice for one forward pass; add the losses up and "
                f"call backward once, or leave the layer out with skip=({layer.name!r},)"
            )


def _nothing(*_: Any) -> None:
    """What a copied or pickled hook becomes: a copy of the model is not the model that is optimized."""


def _dead_hook() -> Callable[..., None]:
    return _nothing


class _Hook:
    def __init__(self, observer: weakref.ref[Observer]) -> None:
        self.observer = observer

    def __reduce__(self) -> Any:
        return _dead_hook, ()


class _Begin(_Hook):
    """The hook before the model's forward pass."""

    @_eager
    def __call__(self, _module: nn.Module, _inputs: Any) -> None:
        observer = self.observer()
        if observer is not None:
            observer.begin()


class _Forward(_Hook):
    """The hook after a layer's forward pass."""

    def __init__(self, observer: weakref.ref[Observer], layer: Layer) -> None:
        super().__init__(observer)
        self.layer = layer

    @_eager
    def __call__(self, _module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Tensor | None:
        observer = self.observer()
        return None if observer is None else observer.called(self.observer, self.layer, inputs, output)
