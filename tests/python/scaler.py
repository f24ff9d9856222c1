"""A GradScaler for the CPU. PyTorch has one from 2.3 on; older ones scale on CUDA alone, so that what theirs leaves to
CUDA kernels is written out here. How it talks to the optimizer is PyTorch's own code in either case."""

from unittest import mock

import torch


class OldScaler(torch.cuda.amp.GradScaler):
    def __init__(self, **options):
        with mock.patch("torch.cuda.amp.grad_scaler.amp_definitely_not_available", lambda: False):
            super().__init__(**options)

    def scale(self, loss):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(loss.device)
        return loss * self._scale

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    found_inf.add_((~torch.isfinite(p.grad)).any().float()).clamp_(max=1)
                    p.grad.mul_(inv_scale)
        return {found_inf.device: found_inf}

    def update(self):
        states = self._per_optimizer_states.values()
        bad = sum(float(found) for state in states for found in state["found_inf_per_device"].values())
        self._growth_tracker += 1
        if bad:
            self._scale *= self._backoff_factor
        elif self._growth_tracker >= self._growth_interval:
            self._scale *= self._growth_factor
        if bad or self._growth_tracker >= self._growth_interval:
            self._growth_tracker.zero_()
        self._per_optimizer_states.clear()


def make_scaler(**options):
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", **options)
    return OldScaler(**options)
