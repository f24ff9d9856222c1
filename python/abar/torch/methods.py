"""One class per curvature method; methods.md says what each computes."""

from __future__ import annotations

from typing import Any

from torch import nn

from ._optimizer import CurvatureOptimizer


class MAC(CurvatureOptimizer):
    """Mean activation: damps each gradient along the mean input of its layer. Costs about as much as SGD.

    Args:
        damping: rho, or "adaptive" (1).
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
        damping: rho, or "adaptive" (1).
        diagonal_damping: rho of the diagonal where damping is adaptive (1).
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
        damping: rho (1).
        settings: those of :class:`CurvatureOptimizer`.
    """

    method = "foof"

    def __init__(self, model: nn.Module, lr: float = 0.1, *, damping: float | None = None, **settings: Any) -> None:
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
