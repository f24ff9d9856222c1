"""Curvature-aware optimizers: the abar library in Python. ``abar.torch`` has them as ``torch.optim.Optimizer``s."""

from __future__ import annotations

from ._library import library_path
from ._version import __version__

__all__ = ["__version__", "library_path"]
