"""Which layers make the values of attention (methods.md section 2).

Rows that make v use m = E_b[X_b^T t_b], t_b[j] the mean over heads and queries of the probability of token j.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn

from ._layers import Layer, Values


@dataclass(frozen=True)
class Attention:
    """How a module attends, for ``attention={"blocks.*.attn": Attention(qkv="qkv", heads=3)}``.

    Args:
        qkv: the layer that makes queries, keys and values side by side, in this order; its name inside the module.
        value: in place of qkv, the layer that makes the values alone.
        heads: of the values; grouped queries have fewer than the queries.
        tokens: of a sequence, or of a window; needed for ``value_stat="factored"`` where the model does not tell.
    """

    qkv: str = ""
    value: str = ""
    heads: int = 1
    tokens: int = 0


# ---- which layers ------------------------------------------------------------------------------------------------------

FUSED = ("qkv", "c_attn", "Wqkv", "in_proj")
SEPARATE = tuple(
    names.split() for names in ("q_proj k_proj v_proj", "query key value", "q k v", "to_q to_k to_v", "q_lin k_lin v_lin")
)
HEADS = ("num_key_value_heads", "num_kv_heads", "num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def _number(module: nn.Module, names: Iterable[str]) -> int:
    """The first attribute of these names that is a number, of the module or of its configuration; 0: none."""
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return 0


def _heads(module: nn.Module, rows: int) -> int:
    """Heads of the values: 0 where nothing says."""
    config = getattr(module, "config", None)
    grouped = _number(module, HEADS[:2])
    if not grouped and config is not None:
        grouped = next((getattr(config, name) for name in HEADS[:2] if isinstance(getattr(config, name, None), int)), 0)
    heads = grouped or _number(module, HEADS)
    return heads if heads and rows % heads == 0 else 0


def _tokens(module: nn.Module, model: nn.Module) -> int:
    """Tokens of a window, or of the sequence that the model has one embedding of positions for."""
    window = getattr(module, "window_size", None)
    if isinstance(window, (tuple, list)) and len(window) == 2:
        return int(window[0]) * int(window[1])
    places = [p for name, p in model.named_parameters() if "pos_embed" in name and p.dim() == 3 and p.shape[0] == 1]
    return int(places[0].shape[1]) if len(places) == 1 else 0


def recognise(module: nn.Module) -> Attention | None:
    """What timm's, torchvision's, transformers' and torch's own modules of attention have in common."""
    children = dict(module.named_children())
    if isinstance(module, nn.MultiheadAttention):
        return Attention(qkv="in_proj", heads=module.num_heads)
    for name in FUSED:
        if name in children and hasattr(children[name], "weight"):
            heads = _number(module, HEADS[2:])
            return Attention(qkv=name, heads=heads) if heads else None
    for names in SEPARATE:
        weights = [getattr(children.get(name), "weight", None) for name in names]
        if all(isinstance(w, Tensor) and w.dim() == 2 for w in weights):
            heads = _heads(module, weights[2].shape[0])
            return Attention(value=names[2], heads=heads) if heads else None
    return None


def mark_windows(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Layers of attention in windows, as Swin's: an example is an image there (methods.md section 0)."""
    modules = dict(model.named_modules())
    for path, module in modules.items():
        parent = path.rpartition(".")[0]
        near = (module, modules[parent], *module.children())
        if not any(getattr(one, "window_size", None) for one in near) or recognise(module) is None:
            continue
        around = parent if type(modules[parent]).__name__.endswith("Attention") else path  # Swinv2's output layer is beside it
        for layer in layers:
            layer.windowed = layer.windowed or layer.name.startswith(f"{around}.")


def _rows_of(layer: Layer, attention: Attention) -> Values | None:
    """Fused layers make q, k and v, or k and v where the queries have a layer of their own."""
    out, into = layer.weight.shape[::-1] if layer.transposed else layer.weight.shape[:2]
    if attention.value:
        return Values(attention.heads, 0, out) if out % attention.heads == 0 else None
    parts = 2 if out == 2 * into else 3
    if out % (parts * attention.heads):
        return None
    return Values(attention.heads, out - out // parts, out // parts)


def find_values(
    model: nn.Module, layers: Sequence[Layer], told: Mapping[str, Attention | None] | None
) -> dict[int, Values]:
    """By the index of a layer, its rows that make values. told: modules by pattern; None: not attention."""
    told, fits = dict(told or {}), dict.fromkeys(told or {}, False)
    by_name = {layer.name: layer for layer in layers}
    found: dict[int, Values] = {}
    for path, module in model.named_modules():
        pattern = next((p for p in told if fnmatchcase(path, p)), None)
        attention = recognise(module) if pattern is None else told[pattern]
        if pattern is not None:
            fits[pattern] = True
        if attention is None:
            continue
        name = f"{path}.{attention.qkv or attention.value}".lstrip(".")
        layer = by_name.get(name)
        values = None if layer is None or layer.kind != "linear" else _rows_of(layer, attention)
        if values is None and pattern is not None:
            raise ValueError(
                f"abar: attention[{pattern!r}]: {name} is no layer that is preconditioned, or {attention.heads} heads do "
                f"not divide its rows"
            )
        if layer is not None and values is not None:
            values.tokens = attention.tokens or _tokens(module, model)
            found[layer.index] = values
    missed = [pattern for pattern, fit in fits.items() if not fit]
    if missed:
        raise ValueError(f"abar: attention={missed[0]!r} fits no module of the model; see model.named_modules()")
    return found
