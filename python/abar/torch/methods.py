"""One class per curvature method, and for rules that stand alone; methods.md says what each computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ._optimizer import CurvatureOptimizer
from ._scaling import Scaling


class MAC(CurvatureOptimizer):
    """Mean activation: damps each gradient along the mean input of its layer. Costs about as much as SGD.

    Args:
        damping: rho, "trace:G" (G times the mean of the diagonal of E[a aT]), or "adaptive" (1).
        damping_form: "decoupled" or "coupled", which divides by rho.
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
        **settings: Any,
    ) -> None:
        super().__init__(model, lr, damping=damping, damping_form=damping_form, **settings)


class SMAC(CurvatureOptimizer):
    """MAC, and the diagonal second moment of the output gradients on the other side.

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
        **settings: Any,
    ) -> None:
        super().__init__(model, lr, damping=damping, diagonal_damping=diagonal_damping, **settings)


class FOOF(CurvatureOptimizer):
    """The full second moment of the inputs, inverted.

    Args:
        damping: rho, or "trace:G" (G times the mean of the diagonal) (1).
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "foof"

    def __init__(
        self, model: nn.Module, lr: float = 0.1, *, damping: float | str | None = None, **settings: Any
    ) -> None:
        super().__init__(model, lr, damping=damping, **settings)


class KFAC(CurvatureOptimizer):
    """Both Kronecker factors of the Fisher matrix, with the KL clip.

    Args:
        damping: rho (0.03).
        kl_clip: bound on the step's length in the metric (0.001); 0: off.
        kfac: "reduce" or "expand", for weights that are shared over positions.
        kfac_inverse: "cholesky" or "eigen".
        settings: those of :class:`CurvatureOptimizer`.
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
        **settings: Any,
    ) -> None:
        super().__init__(model, lr, damping=damping, kl_clip=kl_clip, kfac=kfac, kfac_inverse=kfac_inverse, **settings)


class Eva(CurvatureOptimizer):
    """Rank one on both sides: mean input and mean output gradient, with the KL clip.

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
        **settings: Any,
    ) -> None:
        super().__init__(model, lr, damping=damping, kl_clip=kl_clip, **settings)


class LNGD(CurvatureOptimizer):
    """Layer-wise natural gradient: inputs weighted by their gradients, a diagonal for the outputs, its own step length.

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
        **settings: Any,
    ) -> None:
        super().__init__(model, lr, nu1=nu1, nu2=nu2, mu=mu, **settings)


class NGD(CurvatureOptimizer):
    """Exact natural gradient for small models: F is made of the gradients of the batch's examples (the empirical Fisher
    matrix), and the step solves a system with a row for each of them. A step's batch must be one backward pass.

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
        **settings: Any,
    ) -> None:
        if fisher != "empirical":
            raise ValueError(
                f"abar: fisher {fisher!r} needs further backward passes on labels of the model's own, which an optimizer "
                f"that only sees gradients cannot make; take 'empirical', or train with abar train --optim ngd"
            )
        self._examples = int(batch)
        super().__init__(model, lr, damping=damping, fisher_blocks=fisher_blocks, kl_clip=kl_clip, **settings)
        if self._world() > 1:
            raise ValueError("abar: NGD does not join the gradients of single examples over ranks, train in one process")


class MFAC(CurvatureOptimizer):
    """The inverse Fisher matrix of the last gradients, of all parameters together. On the CPU; it keeps as many copies of
    the parameters as gradients.

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
        **settings: Any,
    ) -> None:
        own = {"mfac_gradients": gradients, "mfac_scope": scope, "mfac_precision": precision}
        super().__init__(model, lr, damping=damping, momentum=momentum, decay=decay, **own, **settings)


class KBFGS(CurvatureOptimizer):
    """Inverse Kronecker factors learnt by BFGS from a second pass over each batch. On the CPU.

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
        **settings: Any,
    ) -> None:
        if settings.get("first_pass"):
            raise ValueError("abar: first_pass is of abar train; in PyTorch nobody knows the training set")
        own = {"kbfgs_pairs": pairs, "kbfgs_decay": difference_decay}
        super().__init__(model, lr, damping=damping, stat_decay=stat_decay, **own, **settings)

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One step, with two calls of closure. If a gradient, or a number of the second call, is not finite, nothing changes
        and ``skipped_steps`` counts."""
        if closure is None:
            raise TypeError("abar: KBFGS makes a second pass over each batch, call step(closure)")
        self._random = torch.get_rng_state()
        return super().step(closure, **kwargs)

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


#: torch.optim.Muon's names for what the step length takes from a block's shape
ADJUSTMENTS = {
    None: "original",
    "original": "original",
    "match_rms_adamw": "match-rms",
    "spectral_unclamped": "unclamped",
    "none": "none",
}


class Muon(CurvatureOptimizer):
    """Orthogonalised momentum for the weights of hidden layers, AdamW for everything else. No curvature method; for one
    in front, ``MAC(model, lr=0.02, rule="muon")``.

    The arguments up to adjust_lr_fn are those of torch.optim.Muon, which is given parameters; this one is given the
    model and says in ``report()`` which parameter it takes, and why.

    Args:
        ns: coefficients of the Newton-Schulz iteration: "original", "quintic", "polar-express", "exact" or "cubic".
        adjust_lr_fn: "original", "match_rms_adamw", "spectral_unclamped" or "none".
        aux_lr, aux_weight_decay, betas: of AdamW (3e-4, 0.01 where weight_decay is not 0, (0.9, 0.999)).
        normuon: NorMuon's normalisation of rows.
        cautious: weight decay only where it agrees with the step.
        hyperball: every block keeps its norm; needs weight_decay=0.
        muon_take, muon_skip: patterns of parameters that Muon takes, or leaves to AdamW, whatever they are.
        settings: those of :class:`CurvatureOptimizer`, such as head, first, params and clip.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns: str = "original",
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        aux_lr: float | None = None,
        aux_weight_decay: float | None = None,
        normuon: bool = False,
        cautious: bool = False,
        hyperball: bool = False,
        muon_take: str | Sequence[str] = (),
        muon_skip: str | Sequence[str] = (),
        **settings: Any,
    ) -> None:
        if adjust_lr_fn not in ADJUSTMENTS:
            raise ValueError(f"abar: adjust_lr_fn {adjust_lr_fn!r} is unknown, take one of {list(ADJUSTMENTS)[1:]}")
        super().__init__(
            model,
            lr,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            rule="muon",
            ns=ns,
            muon_eps=eps,
            ns_steps=ns_steps,
            muon_adjust=ADJUSTMENTS[adjust_lr_fn],
            aux_lr=aux_lr,
            aux_weight_decay=aux_weight_decay,
            normuon=normuon,
            cautious=cautious,
            hyperball=hyperball,
            muon_take=_join(muon_take),
            muon_skip=_join(muon_skip),
            **settings,
        )


class Shampoo(CurvatureOptimizer):
    """Kronecker-factored AdaGrad: every parameter is preconditioned by the second moments of its own gradients. No curvature
    method; for one in front, ``MAC(model, lr=1e-3, rule="shampoo")``.

    Args:
        betas: of the average of gradients, and of the factors; 1: they are sums.
        eps: added to the eigenvalues of the factors.
        block: the largest side of a block.
        freq, start: updates from root to root (1); the first update with roots (freq).
        graft: the rule whose step length each block gets: "none", "sgd", "adagrad", "rmsprop" or "adam".
        settings: those of :class:`CurvatureOptimizer`, such as params and clip, and of the rule, such as graft_eps.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 1.0),
        eps: float = 1e-12,
        weight_decay: float = 0.0,
        *,
        block: int = 1024,
        freq: int = 1,
        start: int = 0,
        graft: str = "none",
        **settings: Any,
    ) -> None:
        super().__init__(
            model,
            lr,
            weight_decay=weight_decay,
            rule="shampoo",
            beta1=betas[0],
            shampoo_beta=betas[1],
            shampoo_eps=eps,
            shampoo_block=block,
            shampoo_freq=freq,
            shampoo_start=start,
            graft=graft,
            **settings,
        )


class Soap(CurvatureOptimizer):
    """SOAP: Adam in the eigenbasis of Shampoo's factors. The first step only takes statistics. No curvature method; for one in
    front, ``MAC(model, lr=3e-3, rule="soap")``.

    Args:
        betas: of the average of rotated gradients, and of their squares.
        shampoo_beta: of the factors (the second of betas).
        eps: added to the root of the squares.
        freq: updates from basis to basis.
        max_dim: the longest side that is rotated; 0: none.
        normalize: every step of a parameter gets the root mean square lr.
        correct_bias: Adam's bias correction.
        factors: "shampoo", or "kl" for KL-SOAP's.
        settings: those of :class:`CurvatureOptimizer`, such as params and clip, and of the rule, such as soap_conv.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        shampoo_beta: float = -1.0,
        freq: int = 10,
        max_dim: int = 10000,
        normalize: bool = False,
        correct_bias: bool = True,
        factors: str = "shampoo",
        **settings: Any,
    ) -> None:
        super().__init__(
            model,
            lr,
            weight_decay=weight_decay,
            rule="soap",
            betas=betas,
            eps=eps,
            shampoo_beta=shampoo_beta,
            soap_freq=freq,
            max_dim=max_dim,
            normalize=normalize,
            correct_bias=correct_bias,
            soap_factors=factors,
            **settings,
        )


class NAdamW(CurvatureOptimizer):
    """AdamW with Nesterov's momentum, as timm's; not torch.optim.NAdam, whose momentum follows a schedule. No curvature method;
    for one in front, ``MAC(model, lr=1e-3, rule="nadamw")``.

    Args:
        settings: those of :class:`CurvatureOptimizer`, such as params and clip.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        **settings: Any,
    ) -> None:
        super().__init__(model, lr, betas=betas, eps=eps, weight_decay=weight_decay, rule="nadamw", **settings)


class SFAdamW(CurvatureOptimizer):
    """Schedule-Free AdamW: an average of the weights in place of a falling rate. Call ``optimizer.eval()`` before the model is
    tested or exported, ``optimizer.train()`` before training goes on. No curvature method; for one in front,
    ``MAC(model, lr=0.0025, rule="sfadamw")``.

    Args:
        lr: warm it up linearly, then leave it constant.
        r, weight_lr_power: of the weights of the average.
        settings: those of :class:`CurvatureOptimizer`, such as params and clip.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        **settings: Any,
    ) -> None:
        super().__init__(
            model,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            rule="sfadamw",
            sf_time_power=r,
            sf_rate_power=weight_lr_power,
            **settings,
        )


def _join(patterns: str | Sequence[str]) -> str:
    return patterns if isinstance(patterns, str) else ",".join(patterns)
