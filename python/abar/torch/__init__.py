"""Curvature-aware optimizers for PyTorch: ``optimizer = abar.torch.MAC(model, lr=0.1)``."""

from __future__ import annotations

from .analyze import Analysis, AttentionAnalysis, LayerAnalysis, analyze
from ._optimizer import CurvatureOptimizer
from ._report import LayerReport, ParamReport
from .methods import FOOF, KFAC, LNGD, MAC, SMAC, Eva, Muon, Shampoo

__all__ = [
    "FOOF",
    "KFAC",
    "LNGD",
    "MAC",
    "SMAC",
    "Analysis",
    "AttentionAnalysis",
    "CurvatureOptimizer",
    "Eva",
    "LayerAnalysis",
    "LayerReport",
    "Muon",
    "ParamReport",
    "Shampoo",
    "analyze",
]
