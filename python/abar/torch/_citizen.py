"""What torch and its users expect of any optimizer: copies, pickles, a repr with all settings, a state that can be looked at."""

from __future__ import annotations

import copy
from typing import Any

import torch


class Citizen(torch.optim.Optimizer):
    """Needs of the optimizer: _model, _settings, _engine, and _read_state()."""

    _given: tuple[tuple[Any, ...], dict[str, Any]]
    _looked: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = super().__new__(cls)
        self._given = args, kwargs
        return self

    # ---- the state -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[Any, dict[str, Any]]:
        """Copies of the library's state by parameter, as of the last step. To change it, load a state dict."""
        if self._looked is None:
            self._looked = self._read_state()
        return self._looked

    @state.setter
    def state(self, _value: Any) -> None:
        self._looked = None  # torch's own is always empty

    def _read_state(self) -> dict[Any, dict[str, Any]]:
        raise NotImplementedError

    # ---- copies ----------------------------------------------------------------------------------------------------

    def _recipe(self) -> tuple[Any, ...]:
        """Everything of which the same optimizer can be made; parameters are the model's, so both travel together."""
        args, kwargs = self._given
        kwargs = {k: v for k, v in kwargs.items() if k not in ("model", "params")}
        groups = [{k: v for k, v in group.items()} for group in self.param_groups]
        return type(self), self._model, args[1:], kwargs, groups, self.state_dict()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        process_group = self._given[1].get("process_group")
        if process_group is not None and process_group is not False:
            raise TypeError(f"abar: {type(self).__name__} has a process_group, which cannot be pickled; save its state_dict()")
        return rebuild, self._recipe()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        kind, model, args, kwargs, groups, state = self._recipe()
        kept = {"process_group", "grad_scaler"}
        shared = {k: v for k, v in kwargs.items() if k in kept}
        model, groups = copy.deepcopy((model, groups), memo)
        return rebuild(kind, model, args, {**copy.deepcopy({k: kwargs[k] for k in kwargs.keys() - kept}, memo), **shared}, groups, state)

    # ---- words -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """All settings: those of the method and the rule, then the groups'."""
        lines = [f"{type(self).__name__} ("]
        if getattr(self, "_ready", False):
            lines += [f"    {name}: {value!r}" for name, value in self._all_settings().items()]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {k}: {v!r}" for k, v in sorted(group.items()) if k != "params"]
            lines.append(f"    params: {sum(p.numel() for p in group['params'])} in {len(group['params'])} tensors")
        return "\n".join([*lines, ")"])

    def _all_settings(self) -> dict[str, Any]:
        raise NotImplementedError


def rebuild(kind: Any, model: Any, args: Any, kwargs: Any, groups: Any, state: Any) -> Any:
    """The inverse of _recipe."""
    optimizer = kind(model, *args, params=groups, **kwargs)
    optimizer.load_state_dict(state)
    return optimizer
