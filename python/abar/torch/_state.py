"""The library's state in torch's form, {"state": {parameter: {...}}, "param_groups": [...]}, and back."""

from __future__ import annotations

from typing import Any

import torch

from ._engine import Engine

#: What the groups of a state dict say about the optimizer as a whole; the same in all of them.
SHARED = ("method", "rule", "options", "base_lr", "steps", "updates")
#: ... of rules that treat parameters in blocks.
BLOCKS = ("blocks_dropped", "blocks_small", "blocks_kept")
#: ... of rules that average.
AVERAGES = ("rate_max", "weight_sum")


def save_state(engine: Engine, state: dict[Any, dict[str, Any]]) -> dict[str, float]:
    """Fills state with copies of every tensor, by parameter; returns the counters of the whole."""
    counters: dict[str, float] = {}
    for tensor, value in zip(engine.state_tensors, engine.read_state()):
        if tensor.param is None:
            counters[tensor.key] = value.item()
        else:
            state[engine.params[tensor.param]][tensor.key] = value
    counters.setdefault("steps", engine.counters()["steps"])
    return counters


def read_shared(state_dict: dict[str, Any], groups: list[dict[str, Any]], method: str, rule: str) -> dict[str, Any]:
    """What the state dict says of its optimizer; ValueError where it is another kind or for other parameters."""
    try:
        saved = state_dict["param_groups"]
        shared = {key: saved[0][key] for key in SHARED}
        shared.update({key: saved[0].get(key, 0) for key in (*BLOCKS, *AVERAGES)})
    except (KeyError, IndexError, TypeError):
        raise ValueError("abar: this is not the state dict of an abar optimizer") from None
    for what, ours in (("method", method), ("rule", rule)):
        if shared[what] != ours:
            raise ValueError(f"abar: the state dict is of {what} {shared[what]!r}, this optimizer has {ours!r}")
    theirs, mine = ([len(g["params"]) for g in all_groups] for all_groups in (saved, groups))
    if theirs != mine:
        raise ValueError(f"abar: the state dict is of another model: groups of {theirs} parameters, here are {mine}")
    return shared


def _saved_states(state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of each parameter, in the order of the groups."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    return [state_dict["state"].get(key, {}) for key in keys]


def check_state(engine: Engine, state_dict: dict[str, Any]) -> None:
    """ValueError where the tensors are not those that the engine keeps."""
    expected: list[dict[str, tuple[int, ...]]] = [{} for _ in engine.params]
    for tensor in engine.state_tensors:
        if tensor.param is not None:
            expected[tensor.param][tensor.key] = tensor.shape
    for index, (state, shapes) in enumerate(zip(_saved_states(state_dict), expected)):
        found = {key: tuple(value.shape) for key, value in state.items() if isinstance(value, torch.Tensor)}
        wrong = sorted(key for key in found.keys() | shapes.keys() if found.get(key) != shapes.get(key))
        if wrong:
            key = wrong[0]
            raise ValueError(
                f"abar: the state dict is of another model: {key} of parameter {index} is "
                f"{found.get(key, 'missing')}, not {shapes.get(key, 'expected')}"
            )


def load_state(engine: Engine, state_dict: dict[str, Any], counters: dict[str, Any]) -> None:
    """Copies every tensor into the library."""
    states = _saved_states(state_dict)
    engine.write_state(
        [
            torch.tensor(counters[tensor.key], dtype=tensor.dtype) if tensor.param is None else states[tensor.param][tensor.key]
            for tensor in engine.state_tensors
        ]
    )
    if not any(tensor.key == "steps" for tensor in engine.state_tensors):
        engine.steps_before = int(counters["steps"])
