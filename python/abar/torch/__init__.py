"""Curvature-aware optimizers for PyTorch: ``optimizer = abar.torch.MAC(model, lr=0.1)``."""

from __future__ import annotations

from .analyze import Analysis, AttentionAnalysis, LayerAnalysis, analyze
from ._attention import Attention
from ._optimizer import CurvatureOptimizer
from ._report import LayerReport, ParamReport
from .methods import FOOF, KBFGS, KFAC, LNGD, MAC, MFAC, NGD, SMAC, Eva, Muon, NAdamW, SFAdamW, Shampoo, Soap

__all__ = [
    "FOOF",
    "KBFGS",
    "KFAC",
    "LNGD",
    "MAC",
    "MFAC",
    "NGD",
    "SMAC",
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
    "SFAdamW",
    "Shampoo",
    "Soap",
    "analyze",
]
