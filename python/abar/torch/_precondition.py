"""A curvature method in front of any torch optimizer: the gradients are preconditioned, the optimizer does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .. import _library
from ._engine import Settings as EngineSettings
from ._groups import chosen_options
from ._optimizer import CurvatureOptimizer
from ._scaling import Scaling, find_scaling
from ._settings import Settings
from ._stand import Stands

#: methods that take no part in the step but the gradient; the others need examples, rings or passes
METHODS = ("mac", "smac", "foof", "kfac", "eva", "lngd")


class Blanks(Stands):
    """Zeros in the place of the weights: a step of rate 1 by plain SGD leaves -Ĝ there."""

    def _make(self, p: nn.Parameter) -> Tensor:
        local = self._local(p)
        shape = (1, *local.shape[1:]) if local.numel() == 0 and p.numel() > 0 else local.shape
        precise = torch.float32 if local.dtype != torch.float64 else torch.float64
        return torch.zeros(shape, dtype=precise, device=local.device)

    def load(self) -> None:
        for index, (p, blank) in enumerate(zip(self.originals, self.tensors)):
            blank.zero_()
            blank.grad = None
            if p.grad is not None:
                blank.grad = torch.zeros_like(blank) if self._empty(index) else self._local(p.grad).to(blank.dtype, copy=True)

    def store(self) -> None:
        for index, (p, blank) in enumerate(zip(self.originals, self.tensors)):
            if p.grad is not None and not self._empty(index):
                self._local(p.grad).copy_(blank.neg_())
            blank.grad = None

    def masters(self) -> dict[int, Tensor]:
        return {}


class Preconditioner(CurvatureOptimizer):
    """Turns the gradients of a model into preconditioned ones."""

    _stands_type = Blanks

    def __init__(self, model: nn.Module, method: str, base_lr: float, **settings: Any) -> None:
        self.method, self._base_lr = method, base_lr
        super().__init__(model, 1.0, rule="sgd", momentum=0.0, **settings)

    def _configure(self, rule: str, _lr: float, keywords: dict[str, Any]) -> EngineSettings:
        return super()._configure(rule, self._base_lr, keywords)

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Takes over the method's settings that the groups of the optimizer behind have of their own."""
        for mine, chosen in zip(self.param_groups, chosen_options(self._settings.method_options, groups)):
            mine.update(chosen)

    @torch.no_grad()
    def precondition(self) -> bool:
        """Whether all gradients were finite; if not, they stay as they are."""
        scaling = find_scaling(self, self._grad_scaler, None)
        before = self.skipped_steps
        self._looked = None
        if self._skips(scaling):
            self._engine.skip()
        else:
            self._update(Scaling(1.0, scaling.outputs, False))
        self._watch()
        return self.skipped_steps == before

    def _store(self) -> None:
        if self.skipped_steps == self._before:
            self._stands.store()

    def _update(self, scaling: Scaling) -> None:
        self._before = self.skipped_steps
        super()._update(scaling)


class Preconditioned(torch.optim.Optimizer):
    """A torch optimizer behind a curvature method; made by :func:`precondition`. Groups, defaults and state are its own."""

    def __init__(self, optimizer: torch.optim.Optimizer, preconditioner: Preconditioner) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self.preconditioner = optimizer, preconditioner
        self._follow()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: the two of which all the rest is."""
        return {"optimizer": self.optimizer, "preconditioner": self.preconditioner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["optimizer"], state["preconditioner"])  # type: ignore[misc]

    def _follow(self) -> None:
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; a gradient that is not finite skips it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.preconditioner.follow(self.param_groups)
        if self.preconditioner.precondition():
            self.optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)
        self.preconditioner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not hasattr(self, "optimizer"):  # called by torch while this is made
            super().add_param_group(param_group)
            return
        self.optimizer.add_param_group(param_group)
        self.preconditioner.add_param_group(_for_method(self.preconditioner.method, self.optimizer.param_groups[-1]))
        self._follow()

    def state_dict(self) -> dict[str, Any]:
        return {**self.optimizer.state_dict(), "preconditioner": self.preconditioner.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.preconditioner.load_state_dict(state_dict["preconditioner"])
        self.optimizer.load_state_dict({k: v for k, v in state_dict.items() if k != "preconditioner"})
        self._follow()

    def report(self) -> str:
        """The layers of the method as a table."""
        return self.preconditioner.report()

    def __repr__(self) -> str:
        return f"{self.preconditioner!r} before {self.optimizer!r}"


def _for_method(method: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """Of a group of another optimizer: the parameters, and settings of the method that it has."""
    known = _library.method_options(_library.Context(), method).keywords()
    return {key: group[key] for key in ("params", *known) if key in group}


def precondition(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    method: str = "mac",
    *,
    damping: float | str | None = None,
    **settings: Unpack[Settings],
) -> Preconditioned:
    """Puts a curvature method in front of a torch optimizer: ``precondition(torch.optim.Muon(...), model)``.

    Before each of its steps the gradients of its Linear and Conv2d layers become Ĝ. It costs a copy of the parameters and a
    pass over them more than the library's own rules do.

    Args:
        optimizer: any, of any parameters of the model. Its groups may have settings of the method, such as damping.
        model: whose layers are observed.
        method: "mac", "smac", "foof", "kfac", "eva" or "lngd".
        damping: of the method.
        settings: of the method: stat_decay, tcov, tinv, refresh, pgrad, kl_clip, skip, process_group; grad_scaler where the
            method reads output gradients and a GradScaler is used.
    """
    if method not in METHODS:
        raise ValueError(f"abar: method {method!r} cannot stand before another optimizer{_library.nearest(method, list(METHODS))}")
    params = [_for_method(method, group) for group in optimizer.param_groups]
    base_lr = max(float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups)
    return Preconditioned(optimizer, Preconditioner(model, method, base_lr, params=params, damping=damping, **settings))
