"""What can be seen of the layers: one row each, as data and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _abi
from ._layers import Layer, Left


@dataclass(frozen=True)
class LayerReport:
    """One module with parameters. Counters are summed over the groups of a convolution, numbers averaged."""

    name: str
    kind: str
    shape: tuple[int, ...]
    groups: int
    preconditioned: bool
    reason: str  # "" or why it is left to the rule
    state_bytes: int = 0
    commits: int = 0  # statistics taken
    dropped: int = 0  # statistics that were not finite
    raised: int = 0  # dampings raised to factorise
    doubled: int = 0  # factorisations in double precision
    kept: int = 0  # refreshes that kept the previous factor
    damping: float = math.nan
    mean_square: float = math.nan  # |a|^2
    condition: float = math.nan
    cosine: float = math.nan  # between the gradient and its preconditioned form, when measured
    ratio: float = math.nan  # of their lengths


@dataclass(frozen=True)
class ParamReport:
    """One parameter: the rule that updates it, and why."""

    name: str
    shape: tuple[int, ...]
    rule: str
    why: str  # "": the rule takes every parameter
    lr: float
    weight_decay: float
    blocks: int = 0  # that are orthogonalised one by one
    block_shape: tuple[int, ...] = ()


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _of_layer(layer: Layer, maps: Sequence[_abi.MapInfo], unseen: bool) -> LayerReport:
    sums: dict[str, Any] = {
        k: int(sum(getattr(m, k) for m in maps)) for k in ("state_bytes", "dropped", "raised", "doubled", "kept")
    }
    means: dict[str, Any] = {
        k: _mean(getattr(m, k) for m in maps) for k in ("damping", "mean_square", "condition", "cosine", "ratio")
    }
    commits = int(min(m.commits for m in maps))
    shape = tuple(layer.weight.shape)
    reason = "" if layer.weight.requires_grad else "frozen"
    if unseen and not commits:
        reason = "never seen"
    trained = not reason
    return LayerReport(layer.name, layer.kind, shape, layer.groups, trained, reason, commits=commits, **sums, **means)


def _of_left(left: Left) -> LayerReport:
    weight: Any = left.module._parameters.get("weight")
    shape = tuple(weight.shape) if weight is not None else ()
    groups = int(getattr(left.module, "groups", 1))
    return LayerReport(left.name, type(left.module).__name__.lower(), shape, groups, False, left.reason)


def report_layers(
    layers: Sequence[Layer], left: Sequence[Left], maps: Sequence[tuple[str, _abi.MapInfo]], unseen: set[str] | None
) -> list[LayerReport]:
    """Preconditioned layers first, in the model's order; then the others. unseen: names of layers that have gradients,
    but no use was seen."""
    rows, others = [], []
    for layer in layers:
        mine = [m for name, m in maps if name == layer.name]
        if mine:
            rows.append(_of_layer(layer, mine, layer.name in (unseen or ())))
        else:
            others.append(_of_left(Left(layer.name, layer.module, "left to the rule")))
    return rows + others + [_of_left(module) for module in left]


def report_params(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], infos: Sequence[_abi.ParamInfo]
) -> list[ParamReport]:
    return [
        ParamReport(
            name,
            shape,
            info.rule.decode(),
            info.why.decode(),
            info.lr_scale,
            info.weight_decay,
            info.blocks,
            (info.block_rows, info.block_columns) if info.blocks else (),
        )
        for name, shape, info in zip(names, shapes, infos)
    ]


def _number(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.3g}"


def _cells(row: LayerReport) -> list[str]:
    shape = "x".join(map(str, row.shape)) or "-"
    if not row.preconditioned:
        return [row.name, row.kind, shape, str(row.groups), f"as it is: {row.reason}"] + [""] * 7
    events = ", ".join(f"{getattr(row, k)} {k}" for k in ("dropped", "raised", "doubled", "kept") if getattr(row, k))
    numbers = [_number(x) for x in (row.damping, row.mean_square, row.cosine, row.ratio)]
    counts = [str(row.state_bytes), str(row.commits)]
    return [row.name, row.kind, shape, str(row.groups), "preconditioned", *counts, *numbers, events]


HEADER = "layer kind weight groups gradient bytes statistics damping |a|^2 cosine ratio events".split()


def _format(table: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = []
    for line in table:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths))]
        lines.append("  ".join(cells).rstrip())
    return lines


def format_report(title: str, rows: Sequence[LayerReport]) -> str:
    return "\n".join([title, *_format([HEADER] + [_cells(row) for row in rows], {3, 5, 6, 7, 8, 9, 10})])


PARAM_HEADER = "parameter shape rule why lr decay blocks".split()


def _param_cells(row: ParamReport) -> list[str]:
    blocks = f"{row.blocks} of {'x'.join(map(str, row.block_shape))}" if row.blocks else ""
    shape = "x".join(map(str, row.shape)) or "-"
    return [row.name, shape, row.rule, row.why, f"{row.lr:.3g}", f"{row.weight_decay:.3g}", blocks]


def format_params(rows: Sequence[ParamReport]) -> str:
    return "\n".join(_format([PARAM_HEADER] + [_param_cells(row) for row in rows], {4, 5}))
