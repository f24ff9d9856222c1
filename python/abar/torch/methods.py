"""One class per curvature method; docs/methods.md and docs/optimizers.md say what each computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import nn

from ._optimizer import CurvatureOptimizer
from ._scaling import Scaling
from ._settings import Settings, signed


@signed
class MAC(CurvatureOptimizer):
    """Mean activation: damps each gradient along the mean input of its layer.

    Ĝ = G (I − â âᵀ / (ρ + |â|²)), â the moving average of the layer's mean input (1 appended for the bias).

    Cost of a layer with d inputs and o outputs: 4·o·d flops a step inside the update's own pass, a sum over the inputs every
    tcov steps; 3·d numbers of state.

    Args:
        damping: rho, "trace:G" (G times the mean of the diagonal of E[a aT]), or "adaptive" (1).
        damping_form: "decoupled" or "coupled", which divides by rho.
        value_stat, attention: statistics of rows that make values of attention (methods.md section 2), and where it is not recognised.
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "mac"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        damping: float | str | None = None,
        damping_form: str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, lr, damping=damping, damping_form=damping_form, **settings)


@signed
class SMAC(CurvatureOptimizer):
    """MAC, and the diagonal second moment of the output gradients on the other side.

    Ĝ = diag(p̂ + ρ)⁻¹ G (I − â âᵀ / (ρ + |â|²)).

    Cost: MAC's, a sum over the output gradients every tcov steps, and o numbers more of state.

    Args:
        damping: rho, "trace:G" (G times the mean of the diagonal of E[a aT]), or "adaptive" (1).
        diagonal_damping: rho of the diagonal where damping is not a number (1).
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "smac"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        damping: float | str | None = None,
        diagonal_damping: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, lr, damping=damping, diagonal_damping=diagonal_damping, **settings)


@signed
class FOOF(CurvatureOptimizer):
    """The full second moment of the inputs, inverted.

    Ĝ = G (Â + ρI)⁻¹, Â the moving average of E[a aᵀ].

    Cost of a layer with d inputs and o outputs: 2·o·d² flops a step, rows·d² every tcov steps, d³ every tinv; 2·d² numbers of
    state.

    Args:
        damping: rho, or "trace:G" (G times the mean of the diagonal) (1).
        settings: those of :class:`CurvatureOptimizer`, and stat_init, toffset, homogeneous, foof_width and kfac_rank.
    """

    method = "foof"

    def __init__(
        self, model: nn.Module, lr: float = 0.1, *, damping: float | str | None = None, **settings: Unpack[Settings]
    ) -> None:
        super().__init__(model, lr, damping=damping, **settings)


@signed
class KFAC(CurvatureOptimizer):
    """Both Kronecker factors of the Fisher matrix, with the KL clip.

    Ĝ = (P̂ + (√ρ/π) I)⁻¹ G (Â + π√ρ I)⁻¹, P̂ the second moment of the output gradients.

    Cost of a layer with d inputs and o outputs: 2·o·d·(o + d) flops a step, rows·(o² + d²) every tcov steps, o³ + d³ every
    tinv; 2·(o² + d²) numbers of state.

    Args:
        damping: rho (0.03).
        kl_clip: bound on the step's length in the metric (0.001); 0: off.
        kfac: "reduce" or "expand", for weights that are shared over positions.
        kfac_inverse: "cholesky" or "eigen".
        settings: those of :class:`CurvatureOptimizer`, and stat_init, toffset, homogeneous and kfac_rank.
    """

    method = "kfac"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        damping: float | None = None,
        kl_clip: float | None = None,
        kfac: str | None = None,
        kfac_inverse: str | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, lr, damping=damping, kl_clip=kl_clip, kfac=kfac, kfac_inverse=kfac_inverse, **settings)


@signed
class Eva(CurvatureOptimizer):
    """Rank one on both sides: mean input and mean output gradient, with the KL clip.

    Ĝ = (G − (p̂ᵀ G â) p̂ âᵀ / (ρ + |â|²|p̂|²)) / ρ.

    Cost: MAC's, and the same for the outputs.

    Args:
        damping: rho (0.03).
        kl_clip: bound on the step's length in the metric (0.001); 0: off.
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "eva"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        damping: float | None = None,
        kl_clip: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, lr, damping=damping, kl_clip=kl_clip, **settings)


@signed
class LNGD(CurvatureOptimizer):
    """Layer-wise natural gradient: inputs weighted by their gradients, a diagonal for the outputs, its own step length.

    Ĝ = c V with c = ⟨V, G⟩ / (⟨V, G⟩² + μ) for each layer; docs/methods.md section 6 has V.

    Cost: FOOF's, and a pass over the output gradients.

    Args:
        nu1, nu2: least and largest damping (1e-5, 1e-2).
        mu: of the layer's own step length (0.03).
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "lngd"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        nu1: float | None = None,
        nu2: float | None = None,
        mu: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, lr, nu1=nu1, nu2=nu2, mu=mu, **settings)


@signed
class SKFAC(CurvatureOptimizer):
    """KFAC's factors of one batch, inverted through matrices as large as the batch. On the CPU, in one process.

    Ĝ = (P + √ρ I)⁻¹ G (A + √ρ I)⁻¹, A and P of the examples' means in this batch; no moving average.

    Cost of B examples: B²·(o + d) flops at a refresh, 4·B·o·d a step; 3·B·(o + d) numbers of state.

    Args:
        batch: examples of a step at most, all micro-batches together.
        damping: rho (0.03).
        settings: those of :class:`CurvatureOptimizer`. stat_decay and pgrad have no effect.
    """

    method = "skfac"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.005,
        *,
        batch: int,
        damping: float | None = None,
        kl_clip: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._examples = int(batch)
        super().__init__(model, lr, damping=damping, kl_clip=kl_clip, **settings)
        _require_one_process(self)


@signed
class KPSVD(CurvatureOptimizer):
    """The Kronecker product nearest to each layer's block of the Fisher matrix. On the CPU, in one process.

    Ĝ = (Ŝ + (√ρ/π) I)⁻¹ G (R̂ + π√ρ I)⁻¹, R ⊗ S nearest to E[ā āᵀ ⊗ q qᵀ].

    Cost: KFAC's; the examples' mean rows are kept until the step.

    Args:
        batch: examples of a step at most, all micro-batches together.
        damping: rho (0.03).
        kl_clip: bound on the step's length in the metric (0.001); 0: off.
        rounds: of the power iteration (3); at least 2 with two terms.
        terms: 1, or 2: the sum of two products.
        settings: those of :class:`CurvatureOptimizer`. pgrad has no effect.
    """

    method = "kpsvd"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        batch: int,
        damping: float | None = None,
        kl_clip: float | None = None,
        rounds: int | None = None,
        terms: int | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._examples = int(batch)
        own = {"kpsvd_rounds": rounds, "kpsvd_terms": terms}
        super().__init__(model, lr, damping=damping, kl_clip=kl_clip, **own, **settings)
        _require_one_process(self)


@signed
class NGD(CurvatureOptimizer):
    """Exact natural gradient for small models: F is made of the gradients of the batch's examples (the empirical Fisher
    matrix). A step's batch must be one backward pass.

    Ĝ = (F + ρI)⁻¹ g, by a system with a row for each example.

    Cost of B examples and P weights: B²·P flops and B·P numbers a step.

    Args:
        batch: examples of a step, at most 4096; steps of fewer are fine. Memory grows with batch times the number of
            weights.
        damping: rho (0.01).
        fisher_blocks: "full", one matrix for all layers, or "layer", one for each.
        kl_clip: bound on the step's length in the metric; 0: off.
        settings: those of :class:`CurvatureOptimizer`. tcov, tinv and stat_decay have no effect.
    """

    method = "ngd"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.003,
        *,
        batch: int,
        damping: float | None = None,
        fisher: str = "empirical",
        fisher_blocks: str | None = None,
        kl_clip: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        if fisher != "empirical":
            raise ValueError(
                f"abar: fisher {fisher!r} needs further backward passes on labels of the model's own, which an optimizer "
                f"that only sees gradients cannot make; take 'empirical', or train with abar train --optim ngd"
            )
        self._examples = int(batch)
        super().__init__(model, lr, damping=damping, fisher_blocks=fisher_blocks, kl_clip=kl_clip, **settings)
        _require_one_process(self)


@signed
class MFAC(CurvatureOptimizer):
    """The inverse Fisher matrix of the last gradients, of all parameters together. On the CPU.

    Ĝ = (λI + (1/m) Σ g gᵀ)⁻¹ g over the last m gradients g.

    Cost: 4·m flops for each parameter a step; m copies of the parameters.

    Args:
        damping: lambda (1e-5).
        gradients: how many are kept (1024).
        scope: "full", or "layer": each layer's own; other parameters go to the rule as they are.
        precision: of the gradients that are kept, "device" or "bf16".
        momentum, weight_decay, decay: of the rule; those of the authors' code are 0, 0 and "inside". Its learning rate with
            momentum is this one divided by 1 - momentum.
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "mfac"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        *,
        damping: float | None = None,
        gradients: int | None = None,
        scope: str | None = None,
        precision: str | None = None,
        momentum: float = 0.0,
        decay: str = "inside",
        **settings: Unpack[Settings],
    ) -> None:
        own = {"mfac_gradients": gradients, "mfac_scope": scope, "mfac_precision": precision}
        super().__init__(model, lr, damping=damping, momentum=momentum, decay=decay, **own, **settings)


@signed
class KBFGS(CurvatureOptimizer):
    """Inverse Kronecker factors learnt by BFGS from a second pass over each batch. On the CPU.

    Ĝ = H_g M H_a, M the average of gradients; docs/optimizers.md section 7 has the updates of both factors.

    Cost: two forward and backward passes a step, and rank-2 updates of the factors instead of inverses.

    ``step`` needs a closure that zeroes the gradients, runs the model on the batch, calls backward and returns the loss. It
    is called twice, with the same random numbers; buffers such as batch norm's running statistics are those of the first
    call, gradients those of the second.

    Args:
        damping: lambda, below 1 (0.3).
        pairs: 0, or the number of differences that stand for the inverse factor of output gradients: K-BFGS(L).
        difference_decay: weight of the old value in the averages of differences (0.9); 0 where a batch is the whole set.
        momentum, weight_decay: the average of gradients, decay included, is what is preconditioned (0.9, 0).
        settings: those of :class:`CurvatureOptimizer`. The rule is "sgd".
    """

    method = "kbfgs"

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.3,
        *,
        damping: float | None = None,
        pairs: int | None = None,
        difference_decay: float | None = None,
        stat_decay: float = 0.9,
        **settings: Unpack[Settings],
    ) -> None:
        if settings.get("first_pass"):
            raise ValueError("abar: first_pass is of abar train; in PyTorch nobody knows the training set")
        self._refuse_maximum(bool(settings.get("maximize", False)))
        own = {"kbfgs_pairs": pairs, "kbfgs_decay": difference_decay}
        super().__init__(model, lr, damping=damping, stat_decay=stat_decay, **own, **settings)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One step, with two calls of closure. If a gradient, or a number of the second call, is not finite, nothing changes
        and ``skipped_steps`` counts."""
        if closure is None:
            raise TypeError("abar: KBFGS makes a second pass over each batch, call step(closure)")
        self._refuse_maximum(self._maximizes())
        self._random = torch.get_rng_state()
        return super().step(closure, **kwargs)

    @staticmethod
    def _refuse_maximum(wanted: bool) -> None:
        if wanted:
            raise ValueError(
                "abar: KBFGS cannot maximize: both passes give it output gradients of the loss that the closure returns, whose "
                "sign it would have to change, too; return the negative loss and leave out maximize"
            )

    def _finish(self, closure: Callable[[], Any] | None, scaling: Scaling) -> None:
        if not self._engine.wants_pass() or closure is None:
            return
        random, kept = torch.get_rng_state(), [b.detach().clone() for b in self._model.buffers()]
        torch.set_rng_state(self._random)
        try:
            with torch.enable_grad():
                loss = closure()
        except BaseException:
            self._engine.skip()
            raise
        finally:
            torch.set_rng_state(random)
            for buffer, value in zip(self._model.buffers(), kept):
                buffer.copy_(value)
        self._engine.end_pass(math.isfinite(float(loss)), 1.0 / (scaling.outputs or 1.0))
        self._watch()


def _require_one_process(optimizer: CurvatureOptimizer) -> None:
    if optimizer._world() > 1:
        name = type(optimizer).__name__
        raise ValueError(f"abar: {name} does not join the gradients of single examples over ranks, train in one process")
