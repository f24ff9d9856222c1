"""One class per update rule, for those who want it without a curvature method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn

from ._optimizer import CurvatureOptimizer
from ._settings import Settings, signed


#: torch.optim.Muon's names for what the step length takes from a block's shape
ADJUSTMENTS = {
    None: "original",
    "original": "original",
    "match_rms_adamw": "match-rms",
    "spectral_unclamped": "unclamped",
    "none": "none",
}


@signed
class Muon(CurvatureOptimizer):
    """Orthogonalised momentum for the weights of hidden layers, AdamW for everything else. No curvature method; for one
    in front, ``MAC(model, lr=0.02, rule="muon")``.

    M ← μM + (1−μ)G;  W ← (1 − ηλ)W − ηO, O the matrix nearest to M with orthonormal rows or columns, times a length.

    Cost of an o × d weight: ns_steps times 4·o·d·min(o, d) flops a step; one copy of it.

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
        **settings: Unpack[Settings],
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


@signed
class Shampoo(CurvatureOptimizer):
    """Kronecker-factored AdaGrad: every parameter is preconditioned by the second moments of its own gradients. No curvature
    method; for one in front, ``MAC(model, lr=1e-3, rule="shampoo")``.

    W ← W − η L^(−1/4) G R^(−1/4), L and R sums or averages of G Gᵀ and Gᵀ G of blocks.

    Cost of a block of b rows and columns: 8·b³ flops a step, and roots every freq updates; 4·b² numbers.

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
        **settings: Unpack[Settings],
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


@signed
class Soap(CurvatureOptimizer):
    """SOAP: Adam in the eigenbasis of Shampoo's factors. The first step only takes statistics. No curvature method; for one in
    front, ``MAC(model, lr=3e-3, rule="soap")``.

    W ← W − η Q_L Adam(Q_Lᵀ G Q_R) Q_Rᵀ, Q the eigenvectors of averages of G Gᵀ and Gᵀ G.

    Cost of an o × d weight: 8·o·d·(o + d) flops a step, and a QR decomposition of both sides every freq updates.

    Args:
        betas: of the average of rotated gradients, and of their squares.
        shampoo_beta: of the factors (the second of betas).
        eps: added to the root of the squares.
        freq: updates from basis to basis.
        max_dim: the longest side that is rotated; 0: none.
        normalize: every step of a parameter gets the root mean square lr.
        correct_bias: Adam's bias correction.
        factors: "shampoo", or "kl" for KL-SOAP's.
        settings: those of :class:`CurvatureOptimizer`, such as params and clip, and of the rule, such as soap_conv, cautious or
            hyperball, which needs weight_decay=0.
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
        **settings: Unpack[Settings],
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


@signed
class SGD(CurvatureOptimizer):
    """Stochastic gradient descent, as torch.optim.SGD without dampening. No curvature method: the start of a comparison.

    v ← μv + G + λW;  W ← W − ηv; with decay="decoupled" W ← (1 − ηλ)W − ηv. One copy of the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        decay: str = "coupled",
        **settings: Unpack[Settings],
    ) -> None:
        own = {"momentum": momentum, "nesterov": nesterov, "decay": decay}
        super().__init__(model, lr, weight_decay=weight_decay, rule="sgd", **own, **settings)


@signed
class AdamW(CurvatureOptimizer):
    """AdamW, as torch.optim.AdamW. No curvature method: the start of a comparison.

    m ← β₁m + (1−β₁)G;  v ← β₂v + (1−β₂)G²;  W ← (1 − ηλ)W − η m/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε). Two copies of the parameters.

    Args:
        cautious: weight decay only where it agrees with the step.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        cautious: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(
            model, lr, betas=betas, eps=eps, weight_decay=weight_decay, rule="adamw", cautious=cautious, **settings
        )


@signed
class NAdamW(CurvatureOptimizer):
    """AdamW with Nesterov's momentum, as timm's; not torch.optim.NAdam, whose momentum follows a schedule. No curvature method;
    for one in front, ``MAC(model, lr=1e-3, rule="nadamw")``.

    m ← β₁m + (1−β₁)G;  v ← β₂v + (1−β₂)G²;  W ← (1 − ηλ)W − η (β₁m + (1−β₁)G)/(1−β₁ᵗ) / (√(v/(1−β₂ᵗ)) + ε). Costs what AdamW does.

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
        **settings: Unpack[Settings],
    ) -> None:
        super().__init__(model, lr, betas=betas, eps=eps, weight_decay=weight_decay, rule="nadamw", **settings)


@signed
class SFAdamW(CurvatureOptimizer):
    """Schedule-Free AdamW: an average of the weights in place of a falling rate. Call ``optimizer.eval()`` before the model is
    tested or exported, ``optimizer.train()`` before training goes on. No curvature method; for one in front,
    ``MAC(model, lr=0.0025, rule="sfadamw")``.

    y = (1−β₁)z + β₁x;  z ← z − η(G(y)/(√v̂ + ε) + λy);  x ← (1−c)x + cz. Costs what AdamW does.

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
        **settings: Unpack[Settings],
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
