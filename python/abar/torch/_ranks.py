"""Processes that train one model together: over which group statistics are joined, and whether the replicas are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

SAMPLE = 64  # elements of a tensor that are compared
CHECK_EVERY = 50  # steps from comparison to comparison where there are no statistics to join

_BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


class Ranks:
    """The group is the one given, that of DistributedDataParallel, or the default one as soon as there is one: whoever
    wraps the model, before or after the optimizer is made. False: this process trains alone."""

    def __init__(self, given: Any, wrapper: Any) -> None:
        self._given = given if given is not None else wrapper

    @property
    def group(self) -> Any:
        """None: there is only this process."""
        if self._given is False or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        return torch.distributed.group.WORLD if self._given is None else self._given

    def world(self) -> int:
        group = self.group
        return 1 if group is None else torch.distributed.get_world_size(group)

    def _carrier(self, t: Tensor, device: torch.device) -> Tensor:
        return t.to(device) if torch.distributed.get_backend(self.group) == "nccl" else t

    def add_up(self, pending: Tensor, device: torch.device) -> Tensor:
        """The sum of a vector over all ranks."""
        joined = self._carrier(pending, device)
        torch.distributed.all_reduce(joined, group=self.group)
        return joined.cpu()

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is so on some rank."""
        if self.world() == 1:
            return flag
        raised = self._carrier(torch.tensor(float(flag)), device)
        torch.distributed.all_reduce(raised, torch.distributed.ReduceOp.MAX, group=self.group)
        return float(raised) > 0.0

    def check_equal(self, params: Sequence[nn.Parameter], device: torch.device) -> None:
        """RuntimeError on all ranks where weights or gradients differ: replicas that drift apart train nothing."""
        marks = torch.stack([_mark(params), _mark([p.grad for p in params])])
        mine = self._carrier(marks, device)
        everyone = [torch.empty_like(mine) for _ in range(self.world())]
        torch.distributed.all_gather(everyone, mine, group=self.group)
        for index, what in enumerate(("weights", "gradients")):
            if any(int(theirs[index]) != int(everyone[0][index]) for theirs in everyone):
                raise RuntimeError(
                    f"abar: the {what} of the {self.world()} processes differ, so they do not train one model. Wrap it in "
                    f"DistributedDataParallel or average the gradients; where each process trains its own model, make the "
                    f"optimizer with process_group=False"
                )


def _mark(tensors: Sequence[Tensor | None]) -> Tensor:
    """A number that equal tensors share: the bits of a sample of each, weighted by their place."""
    total = torch.zeros((), dtype=torch.int64)
    for place, t in enumerate(tensors):
        if t is None or t.numel() == 0 or t.layout != torch.strided:
            continue
        flat = t.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLE)].contiguous().view(_BITS[t.dtype]).to(torch.int64)
        weights = torch.arange(1, sample.numel() + 1, dtype=torch.int64, device=sample.device)
        total = total + (place + 1) * (sample * weights).sum().cpu()
    return total
