"""Rules that need gradients beside that of the batch, and so a closure: AdaHessian and Sophia."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from .. import _abi
from ._optimizer import CurvatureOptimizer
from ._scaling import Scaling
from ._settings import Settings, signed


def draw_labels(logits: Tensor) -> Tensor:
    """A label for each row of logits (..., classes), drawn from its softmax: for the sampled pass of Sophia."""
    rows = torch.softmax(logits.detach().float(), -1)
    return torch.multinomial(rows.reshape(-1, rows.shape[-1]), 1).reshape(rows.shape[:-1])


@signed
class AdaHessian(CurvatureOptimizer):
    """Adam with the diagonal of the Hessian in place of squared gradients. In one process.

    D = |Hz| with random signs z, by double backward;  m ← β₁m + (1−β₁)G;  v ← β₂v + (1−β₂)D²
    W ← W − η( m/(1−β₁ᵗ) / ((√v/√(1−β₂ᵗ))^κ + ε) + λW ).

    Cost: a second backward pass on every hessian_every-th step, and the graph that it needs; four copies of the parameters.
    Let the rate rise over the first few dozen steps: single estimates of D are near zero in places.

    ``step(closure)``: the closure zeroes the gradients, computes the loss, calls ``loss.backward(create_graph=True)`` and
    returns the loss.

    Args:
        hessian_power: κ.
        hessian_every: steps from one estimate of D to the next.
        seed: of the signs.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.15,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        weight_decay: float = 0.0,
        *,
        hessian_power: float = 1.0,
        hessian_every: int = 1,
        seed: int = 0,
        **settings: Unpack[Settings],
    ) -> None:
        self._seed = int(seed)
        own = {"hessian_power": hessian_power, "hessian_every": hessian_every}
        super().__init__(model, lr, betas=betas, eps=eps, weight_decay=weight_decay, rule="adahessian", **own, **settings)
        if self._world() > 1:
            raise ValueError("abar: AdaHessian does not join second derivatives over ranks, train in one process")

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One step. The gradients are detached from their graph."""
        if closure is None:
            raise TypeError("abar: AdaHessian needs step(closure), whose backward is loss.backward(create_graph=True)")
        return super().step(closure, **kwargs)

    def _update(self, scaling: Scaling) -> None:
        if self._engine.extra() == _abi.EXTRA_DIFFERENCE:
            self._place_params()
            self._differentiate()
        for p in self._all_params():
            if p.grad is not None:
                p.grad = p.grad.detach()
        super()._update(scaling)

    def _signs(self, params: list[nn.Parameter]) -> list[Tensor]:
        """hz, as the library draws it; the weights are exactly back afterwards."""
        ends = []
        for sign in (1, -1):
            self._engine.perturb(sign)
            ends.append([p.detach().clone() for p in params])
        self._engine.perturb(0)
        apart = [above - below for above, below in zip(*ends)]
        h = sum(float(a.double().abs().sum()) for a in apart) / max(1, sum(a.numel() for a in apart)) / 2  # without rounding
        return [torch.sign(a) * h for a in apart]

    def _differentiate(self) -> None:
        """extra_grads = 2 H hz: what a difference of gradients would be, without the kinks of ReLUs."""
        chosen = [(i, p) for i, p in enumerate(self._all_params()) if p.grad is not None]
        params, grads = [p for _, p in chosen], [p.grad for _, p in chosen]
        if not any(g.requires_grad for g in grads):
            raise RuntimeError("abar: AdaHessian needs second derivatives; call loss.backward(create_graph=True) in the closure")
        signs = self._signs(params)
        live = [k for k, g in enumerate(grads) if g.requires_grad]  # the others are constant
        products = torch.autograd.grad([grads[k] for k in live], params, [signs[k] for k in live], allow_unused=True)
        for (index, _), product in zip(chosen, products):
            self._engine.set_extra(index, None if product is None else 2.0 * product.detach())


@signed
class Sophia(CurvatureOptimizer):
    """Sophia-G: the sign of the momentum, smaller where the diagonal of the Gauss-Newton matrix is large.

    m ← β₁m + (1−β₁)G;  W ← (1 − ηλ)W − η sign(m) min(|m| / (ρTh), 1);  every hessian_every steps h ← β₂h + (1−β₂)ĝ², ĝ the
    gradient with labels drawn from the model's own softmax, T the terms of the mean that the loss is.

    Cost: a forward and backward pass more on every hessian_every-th step; three copies of the parameters.

    ``step(sampled=closure)``: the closure runs the model on the same batch, takes
    ``cross_entropy(logits, abar.torch.draw_labels(logits))`` and calls backward. It is called where it is needed, with the
    gradients and buffers kept.

    Args:
        terms: T, the examples (tokens of a text) of a step's batch.
        rho: ρ.
        hessian_every: steps from one estimate of h to the next.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.965, 0.99),
        rho: float = 0.04,
        weight_decay: float = 0.1,
        *,
        terms: int,
        hessian_every: int = 10,
        **settings: Unpack[Settings],
    ) -> None:
        self._terms = int(terms)
        own = {"sophia_rho": rho, "hessian_every": hessian_every}
        super().__init__(model, lr, betas=betas, weight_decay=weight_decay, rule="sophia", **own, **settings)

    def step(
        self, closure: Callable[[], Any] | None = None, *, sampled: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        """One step, and where it is due a sampled pass at the new weights."""
        if sampled is None:
            raise TypeError("abar: Sophia needs step(sampled=closure), a pass whose labels are drawn from the model's softmax")
        due = self._engine.extra() == _abi.EXTRA_SAMPLED
        before = self.skipped_steps if due else 0
        loss = super().step(closure, **kwargs)
        if due and self.skipped_steps == before:
            self._sample(sampled)
        return loss

    def _update(self, scaling: Scaling) -> None:
        if scaling.grads != 1.0:
            raise RuntimeError("abar: Sophia does not know the loss scale of its sampled pass; train without a GradScaler")
        super()._update(scaling)

    @torch.no_grad()
    def _sample(self, sampled: Callable[[], Any]) -> None:
        params = self._all_params()
        grads, buffers = [p.grad for p in params], [b.detach().clone() for b in self._model.buffers()]
        try:
            for p in params:
                p.grad = None
            with torch.enable_grad():
                sampled()
            self._stands.load()
            for index, stand in enumerate(self._stands.tensors):
                self._engine.set_extra(index, stand.grad)
            self._engine.take_sampled()
        finally:
            for p, grad in zip(params, grads):
                p.grad = grad
            for buffer, value in zip(self._model.buffers(), buffers):
                buffer.copy_(value)
