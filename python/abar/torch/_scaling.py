"""Loss scaling: what torch's GradScaler says about a step, in the form of 1.13 and of 2.x."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_UNSCALED = 1  # OptState.UNSCALED


@dataclass(frozen=True)
class Scaling:
    """How gradients and output gradients were scaled, and whether an infinity was found."""

    grads: float = 1.0  # the gradients in .grad
    outputs: float | None = 1.0  # what backward saw; None: unknown
    found_inf: bool = False


def _found(found_inf: Any) -> bool:
    return bool(found_inf is not None and float(found_inf) > 0.0)


def _asked(optimizer: Any, scaler: Any) -> Scaling:
    """1.13: the scaler comes itself, and the optimizer asks it."""
    state = scaler._per_optimizer_states[id(optimizer)]
    unscaled = state["stage"].value == _UNSCALED
    found = state["found_inf_per_device"] if unscaled else scaler._check_inf_per_device(optimizer)
    scale = float(scaler.get_scale())
    return Scaling(1.0 if unscaled else scale, scale, any(_found(f) for f in found.values()))


def _told(optimizer: Any) -> Scaling:
    """2.x: the scaler leaves grad_scale (None after unscale_) and found_inf on the optimizer."""
    scale = optimizer.grad_scale
    found = _found(optimizer.found_inf)
    return Scaling(1.0, None, found) if scale is None else Scaling(float(scale), float(scale), found)


def find_scaling(optimizer: Any, scaler: Any, passed: Any) -> Scaling:
    """scaler: what the optimizer was made with; passed: step's grad_scaler=. Either may be None."""
    if passed is not None and passed.is_enabled():
        return _asked(optimizer, passed)
    known = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else None
    if hasattr(optimizer, "grad_scale"):
        told = _told(optimizer)
        return Scaling(told.grads, told.outputs if known is None else known, told.found_inf)
    return Scaling(1.0, 1.0 if known is None else known, False)
