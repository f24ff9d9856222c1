"""One class per curvature method, Muon and Shampoo; methods.md says what each computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ._optimizer import CurvatureOptimizer


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


def _join(patterns: str | Sequence[str]) -> str:
    return patterns if isinstance(patterns, str) else ",".join(patterns)
