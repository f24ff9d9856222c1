"""Newton-Muon in float64: newton_muon.safetensors. See README.md.

Its line (docs/methods.md section 11), with other periods: FOOF whose statistic is that of every fifth batch alone, damped by the
trace of each diagonal block, in front of Muon. Every matrix is formed, every inverse is numpy's.
"""

from pathlib import Path

import numpy as np

import muon
import store

STEPS, BATCH = 23, 6
LAYERS = {"qkv": (24, 12), "down": (8, 24), "fc": (9, 10)}  # rows, columns
BLOCK_ROWS = {"qkv": 8, "down": 8, "fc": 9}
TOKENS = {"qkv": 5}
GAMMA, BETA, INIT, EVERY, OFFSET, WIDTH = 0.2, 0.95, 0.001, 5, 4, 6
LR, DECAY, AUX_LR, AUX_DECAY = 0.025, 0.05, 0.01, 0.01


class NewtonMuon:
    """One weight: q, k and v of a fused projection share its activations and are blocks of their own."""

    def __init__(self, w, block_rows):
        settings = {**muon.DEFAULTS, "ns": "exact", "ns_steps": 12, "lr": LR, "weight_decay": DECAY}
        parts = w.astype(np.float64).reshape(-1, block_rows, w.shape[1])
        self.blocks = [muon.Muon(part, settings) for part in parts]
        self.a, self.inverse = INIT * np.eye(w.shape[1]), None

    def observe(self, x):
        rows = x.astype(np.float64).reshape(-1, x.shape[-1])
        self.a = BETA * self.a + (1 - BETA) * rows.T @ rows / len(rows)
        self.inverse = np.zeros_like(self.a)
        for first in range(0, len(self.a), WIDTH):
            part = slice(first, first + WIDTH)
            block = self.a[part, part]
            damping = GAMMA * np.trace(block) / len(block) + 1e-8
            self.inverse[part, part] = np.linalg.inv(block + damping * np.eye(len(block)))

    def step(self, grad):
        g = grad.astype(np.float64)
        g = g if self.inverse is None else g @ self.inverse
        for block, part in zip(self.blocks, g.reshape(len(self.blocks), -1, g.shape[1])):
            block.step(part)

    def weight(self):
        return np.concatenate([block.w for block in self.blocks])


def adamw(w, grads):
    w, m, v = w.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(grads.astype(np.float64), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = (1 - AUX_LR * AUX_DECAY) * w - AUX_LR * step
    return w


def make_problem():
    rng = np.random.default_rng(31)
    tensors = {}
    for name, (rows, columns) in LAYERS.items():
        tokens = (TOKENS[name],) if name in TOKENS else ()
        sizes = np.geomspace(0.3, 3.0, columns)
        tensors[f"{name}.w"] = rng.standard_normal((rows, columns)).astype(np.float32)
        tensors[f"{name}.x"] = (sizes * (0.5 + rng.standard_normal((STEPS, BATCH, *tokens, columns)))).astype(np.float32)
        tensors[f"{name}.gw"] = rng.standard_normal((STEPS, rows, columns)).astype(np.float32)
    tensors["fc.b"] = rng.standard_normal(9).astype(np.float32)
    tensors["fc.gb"] = rng.standard_normal((STEPS, 9)).astype(np.float32)
    return tensors


def write(out):
    tensors = make_problem()
    for name in LAYERS:
        rule = NewtonMuon(tensors[f"{name}.w"], BLOCK_ROWS[name])
        for k in range(STEPS):
            if k >= OFFSET and (k - OFFSET) % EVERY == 0:
                rule.observe(tensors[f"{name}.x"][k])
            rule.step(tensors[f"{name}.gw"][k])
        tensors[f"{name}.w_end"] = rule.weight()
    tensors["fc.b_end"] = adamw(tensors["fc.b"], tensors["fc.gb"])
    store.save(out / "newton_muon.safetensors", tensors, {"layers": list(LAYERS)})


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden")
