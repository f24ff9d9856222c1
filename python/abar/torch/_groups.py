"""What parameter groups say: settings of the rule, which schedulers change and which are one for all groups, and settings of the
method, such as damping, that hold for the layers whose weights the group has."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _library
from ._engine import Engine, Settings
from ._layers import Layer

#: Settings of a method that concern all layers together, or how the model is looked at.
SHARED = {"kl_clip", "first_layer", "value_stat", "fisher", "fisher_blocks", "mfac_scope"}
#: Methods whose statistics are rows of examples, which cannot move to another engine within a step.
KEEP_ROWS = ("skfac", "kpsvd", "kbfgs")


# ---- the method's ----------------------------------------------------------------------------------------------------


def check_group(settings: Settings, group: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """ValueError where a group has something of its own that it cannot have. known: what every group has."""
    method, curvature = settings.method_options, settings.curvature_options
    mine = set(method.keywords())
    for key in group.keys() - known.keys():
        if f"{settings.method}_{key}" in mine:
            raise ValueError(f"abar: in a group {key} is called {settings.method}_{key}")
    for key in group.keys() - known.keys() - mine - {"params"}:
        close = difflib.get_close_matches(key, [*known, *mine], n=1, cutoff=0.8)
        if close:
            warnings.warn(f"abar: a group has {key!r}, which nothing here reads; did you mean {close[0]}?", stacklevel=4)
    for key in sorted((set(curvature.keywords()) | (mine & SHARED)) & group.keys()):
        own = ", ".join(["lr", "weight_decay", *sorted(mine - SHARED)])
        raise ValueError(f"abar: {key} is one for all parameters; a group may have its own {own}")


def chosen_options(method: _library.Options, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each group has in place of the settings of all."""
    return [{name: group[name] for name in method.keywords() if name in group} for group in groups]


def options_of_layers(
    method: _library.Options, groups: Sequence[Mapping[str, Any]], chosen: Sequence[Mapping[str, Any]], layers: Sequence[Layer]
) -> list[_library.Options | None]:
    """The settings of each layer: those of the group that has its weight; None: those of all."""
    of_weight: dict[int, _library.Options] = {}
    weights = {id(layer.weight) for layer in layers}
    for number, (group, values) in enumerate(zip(groups, chosen)):
        if not values:
            continue
        mine = [id(p) for p in group["params"] if id(p) in weights]
        if not mine:
            raise ValueError(
                f"abar: {', '.join(values)} of group {number} would do nothing: none of its parameters is a weight that is "
                f"preconditioned; leave it out"
            )
        own = method.copy()
        for name, value in values.items():
            own.set(name, value)
        of_weight.update(dict.fromkeys(mine, own))
    return [of_weight.get(id(layer.weight)) for layer in layers]


def check_change(method: str, before: Engine, after: Engine, observed: bool) -> None:
    """ValueError where one engine cannot go on with what the other has. observed: there are statistics of this step."""
    if observed and method in KEEP_ROWS:
        raise ValueError(f"abar: settings of a group cannot change on a step on which {method} takes statistics")
    if [t.shape for t in before.state_tensors] != [t.shape for t in after.state_tensors]:
        raise ValueError("abar: the new settings of a group keep other statistics than there are; make a new optimizer")


def rates_of(group: Mapping[str, Any]) -> tuple[float, float]:
    """Learning rate and weight decay, whatever a scheduler has made of them."""
    lr, weight_decay = float(group["lr"]), float(group["weight_decay"])
    if not (0.0 <= lr < math.inf and 0.0 <= weight_decay < math.inf):
        raise ValueError(f"abar: lr {lr} and weight_decay {weight_decay} of a group must be finite and not negative")
    return lr, weight_decay


# ---- the rule's ------------------------------------------------------------------------------------------------------


def rule_settings(options: _library.Options) -> dict[str, Any]:
    """A rule's settings as torch's schedulers expect to find them: beta1 and beta2, where it has both, are betas."""
    values = options.values()
    if "beta1" in values and "beta2" in values:
        values = {"betas": (values.pop("beta1"), values.pop("beta2")), **values}
    return values


def set_rule_settings(options: _library.Options, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if name == "betas":
            options.set("beta1", float(value[0]))
            options.set("beta2", float(value[1]))
        else:
            options.set(name, value if isinstance(value, (bool, int, str)) else float(value))
