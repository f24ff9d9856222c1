"""Curvature-aware optimizers for PyTorch: ``optimizer = abar.torch.MAC(model, lr=0.1)``."""

from __future__ import annotations

from .analyze import Analysis, AttentionAnalysis, LayerAnalysis, analyze
from ._attention import Attention
from ._optimizer import CurvatureOptimizer
from ._precondition import Preconditioned, precondition
from ._report import LayerReport, ParamReport
from .extra import AdaHessian, Sophia, draw_labels
from .methods import FOOF, KBFGS, KFAC, KPSVD, LNGD, MAC, MFAC, NGD, SKFAC, SMAC, Eva
from .rules import SGD, AdamW, Muon, NAdamW, SFAdamW, Shampoo, Soap

__all__ = [
    "FOOF",
    "KBFGS",
    "KFAC",
    "KPSVD",
    "LNGD",
    "MAC",
    "MFAC",
    "NGD",
    "SGD",
    "SKFAC",
    "SMAC",
    "AdaHessian",
    "AdamW",
    "Analysis",
    "Attention",
    "AttentionAnalysis",
    "CurvatureOptimizer",
    "Eva",
    "LayerAnalysis",
    "LayerReport",
    "Muon",
    "NAdamW",
    "ParamReport",
    "Preconditioned",
    "SFAdamW",
    "Shampoo",
    "Soap",
    "Sophia",
    "analyze",
    "draw_labels",
    "precondition",
]
