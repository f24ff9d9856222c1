"""What the tests of the PyTorch binding share: finding things, small networks, how tests are counted.

A test file is a program: it imports this first, and ends in support.main(). It exits with 77 and a reason where the
binding cannot be tried at all: no PyTorch, no numpy for the oracle, or no shared library.
"""

import os
import subprocess
import sys
import unittest
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT / "python"), str(HERE.parent / "oracle")]


def give_up(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


try:
    import numpy as np
    import torch
except ImportError as error:
    give_up(f"{sys.executable} has no PyTorch with numpy ({error})")

LIBRARY = Path(os.environ.get("ABAR_LIBRARY") or ROOT / "build" / "libabar_optim.so")
if not LIBRARY.exists():
    give_up(f"{LIBRARY} is not built")
os.environ["ABAR_LIBRARY"] = str(LIBRARY)

import abar.torch  # noqa: E402
from abar import _library  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)  # the networks here are tiny, and other tests run beside these
warnings.filterwarnings("ignore", message=".*(lr_scheduler.step|epoch parameter in `scheduler).*")
warnings.filterwarnings("ignore", message=".*[Nn]o instance of `nvidia-smi.*|.*non-writable.*|.*CUDA.*")

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
CLASSES = {
    "mac": abar.torch.MAC,
    "smac": abar.torch.SMAC,
    "foof": abar.torch.FOOF,
    "kfac": abar.torch.KFAC,
    "eva": abar.torch.Eva,
    "lngd": abar.torch.LNGD,
}
# At the published settings tests are nearly blind (methods.md section 10): small dampings, p on the Fisher's scale, but
# no factor so badly conditioned that float32 itself strays by 1e-4.
TELLING = {
    "mac": {"damping": 0.1},
    "smac": {"damping": 0.1, "pgrad": "per-example"},
    "foof": {"damping": 0.1},
    "kfac": {"damping": 0.3, "pgrad": "per-example", "kl_clip": 0.01},
    "eva": {"damping": 0.1, "pgrad": "per-example", "kl_clip": 0.01},
    "lngd": {"nu2": 1.0},
}
OFTEN = {"tcov": 2, "tinv": 3, "stat_decay": 0.8}


def rate(method):
    """A learning rate at which a few steps move the weights without amplifying rounding. LNGD's steps are long."""
    return 0.001 if method == "lngd" else 0.05


def make(method, model, lr=None, **options):
    """The method on this model with telling settings, averages that move and refreshes every few steps."""
    return CLASSES[method](model, rate(method) if lr is None else lr, **{**TELLING[method], **OFTEN, **options})


def device_names():
    """The devices of the library: "cuda" is among them where it was built with CUDA."""
    return _library.device_names(_library.Context())


class Net(nn.Module):
    """Every kind of layer there is, in a row, without batch norm: (N, 2, 8, 8) -> (N, 4)."""

    def __init__(self, width=6, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1)
        self.grouped = nn.Conv2d(width, width, 3, stride=2, padding=1, groups=2, bias=False)
        self.depthwise = nn.Conv2d(width, width, (2, 3), padding=(0, 2), dilation=(1, 2), groups=width)
        self.gain = nn.Parameter(torch.ones(width, 1, 1))
        self.token = nn.Linear(width, width)  # on a sequence: the positions of the image
        self.head = nn.Sequential(nn.Linear(width * 12, 8, bias=False), nn.Tanh(), nn.Linear(8, classes))

    def forward(self, x):
        x = F.relu_(self.stem(x))
        x = F.relu(self.grouped(x))
        x = self.gain * self.depthwise(x)  # (N, width, 3, 4)
        x = F.relu_(self.token(x.flatten(2).transpose(1, 2)))  # (N, 12, width)
        return self.head(x.flatten(1))


def make_net(seed=0, **shape):
    torch.manual_seed(seed)
    return Net(**shape).train()


def batch(step, size=8, seed=0):
    """The batch of a step, the same wherever it is asked for. Inputs are not centred: mean activations count."""
    draw = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(size, 2, 8, 8, generator=draw) + 0.5, torch.randint(4, (size,), generator=draw)


def loss_of(model, data):
    """In the precision of the model: the oracle's twin is a float64 one."""
    return F.cross_entropy(model(data[0].to(next(model.parameters()).dtype)), data[1])


def train(model, optimizer, steps, first=0, size=8):
    """Plain steps; returns the losses."""
    losses = []
    for k in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(k, size))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def taken_step(model, optimizer):
    """What a step with rate 1 and neither momentum nor decay takes off the weights: the preconditioned gradient. The
    weights are zero while it happens, so that no digit is lost, and as they were afterwards."""
    kept = weights_of(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimizer.step()
    taken = {name: -p.detach() for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(kept[name])
    return taken


class Case(unittest.TestCase):
    def assert_close(self, found, expected, tolerance, what=""):
        """Tensors or arrays: |found - expected| <= tolerance |expected|, 2-norms; both zero is close."""
        found, expected = (np.asarray(v.detach() if torch.is_tensor(v) else v, np.float64) for v in (found, expected))
        self.assertEqual(found.shape, expected.shape, what)
        apart, size = float(np.linalg.norm(found - expected)), float(np.linalg.norm(expected))
        if not apart <= tolerance * size:  # NaN is never close
            self.fail(f"{what}: apart by {apart / size if size else apart:.2e}, allowed {tolerance:.0e}")

    def assert_all_close(self, found, expected, tolerance, what=""):
        self.assertEqual(set(found), set(expected), what)
        for name in expected:
            self.assert_close(found[name], expected[name], tolerance, f"{what} {name}")

    def assert_same(self, found, expected, what=""):
        """Bit for bit."""
        self.assertEqual(set(found), set(expected), what)
        for name in expected:
            if not torch.equal(found[name], expected[name]):
                worst = (found[name].double() - expected[name].double()).abs().max()
                self.fail(f"{what} {name}: not the same bits, worst difference {worst:.2e}")

    def assert_differ(self, found, expected, tolerance, what=""):
        """That a comparison could have failed: some tensor is further apart."""
        pairs = [(found[name].detach(), expected[name].detach()) for name in expected]
        worst = max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)
        self.assertGreater(worst, tolerance, what)


def start_python(*arguments):
    """Another process of this interpreter."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish_python(process, seconds=120):
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output = process.communicate()[0] + "\n(killed: took too long)"
    if process.returncode != 0:
        raise AssertionError(f"exit {process.returncode}:\n{output}")
    return output


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        self.passed += 1
        super().addSuccess(test)

    def counts(self):
        """A test that fails in several subtests has failed once."""
        bad = {getattr(test, "test_case", test).id() for test, _ in self.failures + self.errors}
        return self.passed, len(bad), len(self.skipped)


def main():
    """Runs the tests of the program; the last line counts them for tools/test-summary."""
    runner = unittest.TextTestRunner(stream=sys.stdout, verbosity=2, resultclass=Result)
    result = unittest.main(testRunner=runner, exit=False).result
    passed, failed, skipped = result.counts()
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed or not result.wasSuccessful() else 0)
