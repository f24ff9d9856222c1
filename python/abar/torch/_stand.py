"""What stands for a parameter in the library: itself, a float32 master of one in half precision, or this rank's rows of one
that fully_shard has sharded. Input-side methods (MAC, FOOF) treat every row of a gradient alone, so shards need no gathering."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._layers import Layer, Left

HALVES = (torch.bfloat16, torch.float16)
ROW_METHODS = ("", "mac", "foof")  # Ĝ of a row needs no other row of G
ROW_RULES = ("sgd", "adamw", "nadamw", "sfadamw")  # element by element


def is_sharded(p: Tensor) -> bool:
    return hasattr(p, "placements") and hasattr(p, "device_mesh")


def check_shards(model: nn.Module) -> None:
    """TypeError where parameters are distributed in a way that the library cannot follow."""
    whole = not any(any(base.__name__ == "FSDPModule" for base in type(m).__mro__) for m in model.modules())
    for name, p in model.named_parameters():
        if not is_sharded(p):
            continue
        rows = [place for place in p.placements if not place.is_replicate()]
        if whole or len(rows) > 1 or any(type(place).__name__ != "Shard" or place.dim != 0 for place in rows):
            raise TypeError(
                f"abar: {name} is split by tensor parallelism ({p.placements}), whose layers see parts of their inputs; use "
                f"fully_shard alone, or DistributedDataParallel"
            )


def check_rows_alone(method: str, rule: str, kl_clip: float, clip: float, layers: Sequence[Layer]) -> None:
    """ValueError where a method or rule needs whole matrices, of which a rank has some rows."""
    if method not in ROW_METHODS or rule not in ROW_RULES or kl_clip:
        what = f"method {method!r}" if method not in ROW_METHODS else f"rule {rule!r}" if rule not in ROW_RULES else "kl_clip"
        raise ValueError(
            f"abar: {what} needs whole matrices, and fully_shard leaves each process some rows; take MAC or FOOF with rule "
            f"{', '.join(ROW_RULES)} and no kl_clip, or DistributedDataParallel"
        )
    values = next((layer.name for layer in layers if layer.values is not None), None)
    if values is not None:
        raise ValueError(
            f"abar: {values} makes values of attention, whose rows fully_shard spreads over the processes; give value_stat='plain'"
        )
    if clip:
        raise ValueError("abar: clip= sees this process's shards alone; call torch.nn.utils.clip_grad_norm_ before step()")


def by_rows(layers: Sequence[Layer]) -> tuple[list[Layer], list[Left]]:
    """Of sharded layers those whose shards are rows of their matrices; the others go to the rule."""
    parts = [layer for layer in layers if is_sharded(layer.weight) and (layer.groups > 1 or layer.transposed)]
    reason = "sharded, and its shards are no rows of its matrix"
    return [layer for layer in layers if layer not in parts], [Left(layer.name, layer.module, reason) for layer in parts]


class Stands:
    """One tensor of the library's precision for each parameter."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.originals = list(params)
        self.sharded = any(is_sharded(p) for p in params)
        self.tensors: list[Any] = [self._make(p) for p in self.originals]

    def _local(self, t: Tensor) -> Tensor:
        return t.to_local().detach() if is_sharded(t) else t.detach()

    def _empty(self, index: int) -> bool:
        return self._local(self.originals[index]).numel() == 0

    def _master(self, index: int) -> bool:
        return self.originals[index].dtype in HALVES

    def _make(self, p: nn.Parameter) -> Tensor:
        if not is_sharded(p) and p.dtype not in HALVES:
            return p
        local = self._local(p)
        local = local.float() if p.dtype in HALVES else local
        if local.numel() == 0 and p.numel() > 0:  # more ranks than rows: one row of zeros, so that all have the same maps
            return local.new_zeros((1, *local.shape[1:]))
        return local

    def layers(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers with what stands for their parameters."""
        stand = {id(p): t for p, t in zip(self.originals, self.tensors)}
        get = lambda p: None if p is None else stand.get(id(p), p)  # noqa: E731
        return [dataclasses.replace(layer, weight=get(layer.weight), bias=get(layer.bias)) for layer in layers]

    # ---- around a step ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Before a step: where the weights are, and their gradients."""
        for index, (p, stand) in enumerate(zip(self.originals, self.tensors)):
            if stand is p:
                continue
            grad = None if p.grad is None else self._local(p.grad)
            if self._empty(index):
                stand.grad = None if grad is None else torch.zeros_like(stand)
                continue
            if self._master(index):
                local = self._local(p)
                if not torch.equal(stand.to(local.dtype), local):
                    stand.copy_(local)  # changed by somebody else
            else:
                stand = self.tensors[index] = self._local(p)
            stand.grad = None if grad is None else grad.to(stand.dtype)

    def store(self) -> None:
        """After a step: the masters' values, rounded."""
        for index, (p, stand) in enumerate(zip(self.originals, self.tensors)):
            if stand is p:
                continue
            if self._master(index) and not self._empty(index) and stand.grad is not None:
                self._local(p).copy_(stand)
            stand.grad = None

    def publish(self, kept: Sequence[Tensor | None]) -> None:
        """Gives the model what the library left in the masters, which go back to what they were."""
        for index, (p, before) in enumerate(zip(self.originals, kept)):
            if before is not None and self._master(index):
                self._local(p).copy_(self.tensors[index])
                self.tensors[index].copy_(before)

    def finite(self) -> bool:
        grads = [self._local(p.grad) for p in self.originals if p.grad is not None]
        return all(bool(torch.isfinite(g).all()) for g in grads)

    # ---- state dicts -----------------------------------------------------------------------------------------------

    def masters(self) -> dict[int, Tensor]:
        return {i: self.spread(i, self.tensors[i].clone()) for i in range(len(self.originals)) if self._master(i)}

    def spread(self, index: int, value: Tensor) -> Tensor:
        """A tensor shaped as this rank's rows of a parameter, as the sharded tensor that it is part of."""
        p = self.originals[index]
        if not is_sharded(p):
            return value
        from torch.distributed.tensor import DTensor

        local = value[:0] if self._empty(index) else value
        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())

    def localize(self, index: int, value: Tensor) -> Tensor:
        """This rank's rows of a tensor shaped as the parameter, whoever had how many of them when it was saved."""
        p = self.originals[index]
        if not is_sharded(p):
            return value.full_tensor() if is_sharded(value) else value
        if self._empty(index):
            return torch.zeros_like(self.tensors[index])
        if is_sharded(value):
            return value.redistribute(p.device_mesh, p.placements).to_local()
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, p.device_mesh, p.placements, src_data_rank=None).to_local()

    def set_master(self, index: int, value: Tensor) -> None:
        if self._master(index):
            self.tensors[index].copy_(self.localize(index, value))
