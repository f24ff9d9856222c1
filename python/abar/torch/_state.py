"""The library's state in torch's form, {"state": {parameter: {...}}, "param_groups": [...]}, and back."""

from __future__ import annotations

from typing import Any

import torch

from ._engine import Engine
from ._stand import Stands

#: What the groups of a state dict say about the optimizer as a whole; the same in all of them.
SHARED = ("method", "rule", "options", "base_lr", "steps", "updates")
#: ... of rules that treat parameters in blocks.
BLOCKS = ("blocks_dropped", "blocks_small", "blocks_kept")
#: ... of rules that average.
AVERAGES = ("rate_max", "weight_sum")
#: ... of rules that keep the diagonal of a curvature matrix.
DIAGONALS = ("diagonals", "diagonals_dropped")


#: A float32 master of a parameter in half precision.
MASTER = "master"


def save_state(engine: Engine, stands: Stands) -> tuple[dict[Any, dict[str, Any]], dict[str, float]]:
    """Copies of every tensor by parameter, and the counters of the whole."""
    counters: dict[str, float] = {}
    state: dict[Any, dict[str, Any]] = {}
    for tensor, value in zip(engine.state_tensors, engine.read_state()):
        if tensor.param is None:
            counters[tensor.key] = value.item()
            continue
        mine = state.setdefault(stands.originals[tensor.param], {})
        mine[tensor.key] = stands.spread(tensor.param, value) if tensor.elementwise else value
    for index, master in stands.masters().items():
        state.setdefault(stands.originals[index], {})[MASTER] = master
    counters.setdefault("steps", engine.counters()["steps"])
    return state, counters


def read_shared(state_dict: dict[str, Any], groups: list[dict[str, Any]], method: str, rule: str) -> dict[str, Any]:
    """What the state dict says of its optimizer; ValueError where it is another kind or for other parameters."""
    try:
        saved = state_dict["param_groups"]
        shared = {key: saved[0][key] for key in SHARED}
        shared.update({key: saved[0].get(key, 0) for key in (*BLOCKS, *AVERAGES, *DIAGONALS)})
    except (KeyError, IndexError, TypeError):
        raise ValueError("abar: this is not the state dict of an abar optimizer") from None
    for what, ours in (("method", method), ("rule", rule)):
        if shared[what] != ours:
            raise ValueError(f"abar: the state dict is of {what} {shared[what]!r}, this optimizer has {ours!r}")
    theirs, mine = ([len(g["params"]) for g in all_groups] for all_groups in (saved, groups))
    if theirs != mine:
        raise ValueError(f"abar: the state dict is of another model: groups of {theirs} parameters, here are {mine}")
    return shared


def saved_states(engine: Engine, stands: Stands, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of each parameter, in the order of the groups: of a sharded one this rank's part."""
    keys = [key for group in state_dict["param_groups"] for key in group["params"]]
    states = [dict(state_dict["state"].get(key, {})) for key in keys]
    for tensor in engine.state_tensors:
        if tensor.param is None or not torch.is_tensor(states[tensor.param].get(tensor.key)):
            continue
        value, p = states[tensor.param][tensor.key], stands.originals[tensor.param]
        if tensor.elementwise and value.shape == p.shape:
            states[tensor.param][tensor.key] = stands.localize(tensor.param, value)
    return states


def check_state(engine: Engine, states: list[dict[str, Any]]) -> None:
    """ValueError where the tensors are not those that the engine keeps."""
    expected: list[dict[str, tuple[int, ...]]] = [{} for _ in engine.params]
    for tensor in engine.state_tensors:
        if tensor.param is not None:
            expected[tensor.param][tensor.key] = tensor.shape
    for index, (state, shapes) in enumerate(zip(states, expected)):
        found = {k: tuple(v.shape) for k, v in state.items() if isinstance(v, torch.Tensor) and k != MASTER}
        wrong = sorted(key for key in found.keys() | shapes.keys() if found.get(key) != shapes.get(key))
        if wrong:
            key = wrong[0]
            raise ValueError(
                f"abar: the state dict is of another model: {key} of parameter {index} is "
                f"{found.get(key, 'missing')}, not {shapes.get(key, 'expected')}"
            )


def load_state(engine: Engine, stands: Stands, states: list[dict[str, Any]], counters: dict[str, Any]) -> None:
    """Copies every tensor into the library."""
    engine.write_state(
        [
            torch.tensor(counters[tensor.key], dtype=tensor.dtype) if tensor.param is None else states[tensor.param][tensor.key]
            for tensor in engine.state_tensors
        ]
    )
    for index, state in enumerate(states):
        if MASTER in state:
            stands.set_master(index, state[MASTER])
    if not any(tensor.key == "steps" for tensor in engine.state_tensors):
        engine.steps_before = int(counters["steps"])


def carry_over(old: Engine, new: Engine, old_params: list[Any], new_params: list[Any]) -> None:
    """What old kept of the parameters that new has too, and the counters; the others begin."""
    kept = {}
    for tensor, value in zip(old.state_tensors, old.read_state()):
        owner = None if tensor.param is None else id(old_params[tensor.param])
        kept[owner, tensor.key, tensor.shape] = value
    fresh = new.read_state()
    owners = [None if t.param is None else id(new_params[t.param]) for t in new.state_tensors]
    new.write_state([kept.get((o, t.key, t.shape), value) for o, t, value in zip(owners, new.state_tensors, fresh)])
    new.steps_before = old.counters()["steps"] if not any(t.key == "steps" for t in new.state_tensors) else 0
