"""What the programs that time the binding begin with: that of this checkout, and PyTorch, without which they end."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "oracle")]
os.environ.setdefault("ABAR_LIBRARY", str(ROOT / "build" / "libabar_optim.so"))

try:
    import torch  # noqa: F401
except ImportError:
    print(f"bench: PyTorch is not installed for {sys.executable}: the binding is not timed")
    sys.exit(0)
