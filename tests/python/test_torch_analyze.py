"""abar.torch.analyze beside double-precision arithmetic on the same inputs, and what it leaves of the model."""

import inspect
import math
import unittest

import support
from support import Case, abar, torch

from torch import nn

F64 = torch.float64


def moments(rows):
    """What the library must find in rows (n, d), float64."""
    mean, a = rows.mean(0), rows.T @ rows / len(rows)
    s = a - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(a)
    return {
        "rows": len(rows),
        "side": rows.shape[1],
        "trace": a.trace().item(),
        "largest": values[-1].item(),
        "gap": ((values[-1] - values[-2]) / values[-1]).item(),
        "mean_square": (mean @ mean).item(),
        "cosine": (abs(vectors[:, -1] @ mean) / mean.norm()).item(),
        "rank1_error": (s.norm() / (mean @ mean)).item(),
        "adaptive_damping": (s.trace() / len(mean)).item(),
    }, values.flip(0)


def with_one(rows):
    return torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)


class Attention(nn.Module):
    """Written out, as timm has it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(len(x), -1, 3, 2, 6).permute(2, 0, 3, 1, 4)
        y = (q @ k.transpose(-1, -2) / math.sqrt(6)).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(x.shape))


SEES_MULTIHEAD = "with_kwargs" in inspect.signature(nn.Module.register_forward_pre_hook).parameters


class Analyze(Case):
    def check(self, found, rows):
        expected, values = moments(rows)
        for name, number in expected.items():
            self.assertAlmostEqual(getattr(found, name), number, delta=1e-6 * abs(number), msg=f"{found.name}: {name}")
        for i, value in enumerate(found.eigenvalues):
            if values[i] > 1e-6 * values[0]:
                self.assertAlmostEqual(value, values[i].item(), delta=1e-5 * values[i].item(), msg=f"{found.name}: #{i}")

    def test_linear_and_convolution(self):
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
            nn.ReLU(),
            nn.BatchNorm2d(6),
            nn.Flatten(),
            nn.Linear(6 * 4 * 4, 5),
        )
        batches = [(torch.rand(7, 4, 7, 6), None), (torch.rand(5, 4, 7, 6), None)]
        model.train()
        state = {name: t.clone() for name, t in model.state_dict().items()}
        found = abar.torch.analyze(model, batches)
        self.assertEqual([a.name for a in found], ["0#0", "0#1", "4"])
        self.assertEqual([a.kind for a in found], ["conv2d", "conv2d", "linear"])
        x = torch.cat([b[0] for b in batches])
        for group in range(2):
            part = x[:, 2 * group : 2 * group + 2]
            rows = [
                [nn.functional.pad(part, (0, 0, 1, 1))[n, c, 2 * y + i, z + 2 * j] for c in range(2) for i in range(3) for j in range(2)]
                for n in range(12)
                for y in range(4)
                for z in range(4)
            ]
            self.check(found[group], torch.tensor(rows, dtype=F64))
        with torch.no_grad():
            hidden = model.eval()[:4](x)
        self.check(found[2], with_one(hidden.to(F64)))
        for name, t in model.state_dict().items():
            self.assertTrue(torch.equal(t, state[name]), name)

    def test_leaves_the_model_as_it_was(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2))
        model.train()
        model[1].eval()
        abar.torch.analyze(model, [torch.rand(8, 3)])
        self.assertEqual([m.training for m in model.modules()], [True, True, False, True])
        self.assertEqual(sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()), 0)
        with self.assertRaises(RuntimeError):
            abar.torch.analyze(model, [torch.rand(8, 5)])  # the model's own complaint
        self.assertEqual(sum(len(m._forward_hooks) for m in model.modules()), 0)
        self.assertTrue(model.training)

    def check_attention(self, found, t):
        """t: (matrices, n, n), float64."""
        mean = t.mean(0)
        columns = mean.mean(0)
        own = t.mean(1)
        norms = t.flatten(1).norm(dim=1)
        a = found.attention
        self.assertEqual((a.tokens, a.matrices), (t.shape[-1], len(t)))
        for i, value in enumerate(columns):
            self.assertAlmostEqual(a.column_means[i], value.item(), delta=1e-6)
        rank1 = ((t - own[:, None, :]).flatten(1).norm(dim=1) / norms).mean().item()
        printed = ((t - own[:, :, None] * own[:, None, :]).flatten(1).norm(dim=1) / norms).mean().item()
        share = ((torch.linalg.svdvals(t)[:, 0] / norms) ** 2).mean().item()
        right = torch.linalg.svd(mean)[2][0]
        values, left = torch.linalg.eig(mean.T)
        top = left[:, values.abs().argmax()].real
        cosine = lambda x: (abs(x @ columns) / (x.norm() * columns.norm())).item()
        for name, expected in (
            ("rank1_error", rank1),
            ("printed_error", printed),
            ("top_share", share),
            ("cosine_singular", cosine(right)),
            ("cosine_stationary", cosine(top)),
        ):
            self.assertAlmostEqual(getattr(a, name), expected, delta=1e-5, msg=name)
        self.assertAlmostEqual(a.eigenvalues[0], 1.0, delta=1e-5)
        for x, y in zip(a.singular_values, torch.linalg.svdvals(mean)):
            self.assertAlmostEqual(x, y.item(), delta=1e-5)

    def test_attention_that_is_written_out(self):
        torch.manual_seed(2)
        model, x = Attention(), 3 * torch.randn(4, 5, 12)
        found = abar.torch.analyze(model, [x], qkv={"qkv": 2})
        self.assertEqual([(a.name, a.kind) for a in found], [("qkv", "attention"), ("proj", "linear")])
        self.check(found[0], with_one(x.reshape(-1, 12).to(F64)))
        with torch.no_grad():
            q, k, _ = model.qkv(x).to(F64).reshape(4, 5, 3, 2, 6).permute(2, 0, 3, 1, 4)
        t = (q @ k.transpose(-1, -2) / math.sqrt(6)).softmax(-1).reshape(-1, 5, 5)
        self.check_attention(found[0], t)

    @unittest.skipUnless(SEES_MULTIHEAD, "nn.MultiheadAttention needs PyTorch 2.0")
    def test_multihead_attention(self):
        torch.manual_seed(3)
        for batch_first in (False, True):
            module, x = nn.MultiheadAttention(12, 3, batch_first=batch_first), 3 * torch.randn(5, 5, 12)

            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.attention = module

                def forward(self, x):
                    y, self.weights = self.attention(x, x, x, need_weights=False)
                    return y

            model = Model()
            found = abar.torch.analyze(model, [x])
            self.assertIsNone(model.weights)  # as the caller asked
            self.assertEqual([(a.name, a.kind) for a in found], [("attention", "attention")])
            with torch.no_grad():
                t = module.eval()(x, x, x, average_attn_weights=False)[1].to(F64).reshape(-1, 5, 5)
            self.check_attention(found[0], t)
            self.check(found[0], with_one(x.reshape(-1, 12).to(F64)))

    @unittest.skipUnless(SEES_MULTIHEAD, "nn.MultiheadAttention needs PyTorch 2.0")
    def test_transformer_encoder(self):
        torch.manual_seed(4)
        layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True)
        found = abar.torch.analyze(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), [torch.randn(3, 6, 12)])
        self.assertEqual([a.kind for a in found], ["attention", "linear", "linear"] * 2)
        self.assertTrue(all(a.attention.matrices == 6 for a in found if a.kind == "attention"))

    def test_table(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        text = str(abar.torch.analyze(model, [torch.rand(8, 3)], layers="1")).splitlines()
        self.assertEqual(len(text), 2)
        self.assertTrue(text[0].startswith("layer") and "cosine" in text[0])
        self.assertTrue(text[1].startswith("1"))

    def test_mistakes(self):
        model = nn.Sequential(nn.Linear(3, 4))
        with self.assertRaisesRegex(ValueError, "fits no Linear"):
            abar.torch.analyze(model, [torch.rand(8, 3)], layers="conv*")
        with self.assertRaisesRegex(ValueError, "at least one batch"):
            abar.torch.analyze(model, [])
        with self.assertRaisesRegex(RuntimeError, "not finite"):
            abar.torch.analyze(model, [torch.full((2, 3), math.nan)])


if __name__ == "__main__":
    support.main()
