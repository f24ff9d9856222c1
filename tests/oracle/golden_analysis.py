#!/usr/bin/env python3
"""Makes tests/golden/analysis.safetensors: inputs, output gradients, queries and keys of small layers, and what numpy finds in them.

    python3 tests/oracle/golden_analysis.py

Every case is a group of tensors NAME.*; its metadata says how the layer reads its input (as `abar analyze --dump` writes it)."""
from pathlib import Path

import numpy as np

import check_analysis as oracle
import store

RHO = 0.1
CONVOLUTION = {"convolution": True, "homogeneous": True, "kernel": [3, 2], "stride": [2, 1], "pad": [1, 0], "dilation": [1, 2], "groups": 2}
SEQUENCE = {"convolution": False, "homogeneous": True}
ATTENTION = {
    "plain": {"heads": 2, "side": 0, "shift": 0, "grid": [0, 0], "causal": False},
    "causal": {"heads": 2, "side": 0, "shift": 0, "grid": [0, 0], "causal": True},
    "shifted": {"heads": 2, "side": 3, "shift": 1, "grid": [6, 6], "causal": False},
}
SUMMARY = ("trace", "largest", "second", "mean square", "cosine", "davis-kahan", "|S|_F", "|S|_2", "tr S", "rank1 error", "adaptive rho",
           "kappa kfac", "kappa mac", "condition sgd", "condition mac")
ATTENTION_NUMBERS = ("cosine stationary", "cosine singular", "cosine lower triangle", "largest eigenvalue of the lower triangle", "top share",
                     "error of 1 t^T", "error of t t^T")


def layer_case(tensors, name, layer, x, grad, group):
    """x and grad as float32: what the C code reads."""
    tensors[name + ".input"], tensors[name + ".output_grad"] = x, grad
    a = oracle.input_rows(x.astype(np.float64), layer, group)
    p = oracle.output_rows(grad.astype(np.float64), layer, group)
    numbers = oracle.summary(a, RHO)
    tensors[name + ".summary"] = np.array([numbers[k] for k in SUMMARY])
    flat, p_flat = a.reshape(-1, a.shape[-1]), p.reshape(-1, p.shape[-1])
    tensors[name + ".A"] = oracle.eigenvalues(flat.T @ flat / len(flat)).copy()
    tensors[name + ".P"] = oracle.eigenvalues(p.shape[1] * p_flat.T @ p_flat / len(p_flat)).copy()
    g = np.einsum("nro,nrd->nod", p, a).reshape(len(a), -1)
    tensors[name + ".Fisher"] = oracle.eigenvalues(g @ g.T / len(g)).copy()


def write(out):
    random = np.random.default_rng(16)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)
    tensors, notes = {}, {"convolution": CONVOLUTION, "sequence": SEQUENCE, **ATTENTION}
    layer_case(tensors, "convolution", CONVOLUTION, np.maximum(draw(6, 4, 7, 6), 0) + np.float32(0.1), draw(6, 6, 4, 4) / 6, 1)
    layer_case(tensors, "sequence", SEQUENCE, draw(10, 5, 6) + np.float32(0.5), draw(10, 5, 4) / 10, 0)
    for name, layer in ATTENTION.items():
        tokens = 36 if layer["side"] else 7
        qkv = 1.5 * draw(3, tokens, 24)
        bias = draw(25, 2) if layer["side"] else None
        tensors[name + ".qkv"] = qkv
        if bias is not None:
            tensors[name + ".bias"] = bias
        t = oracle.probabilities(qkv.astype(np.float64), None if bias is None else bias.astype(np.float64), layer)
        numbers, values, singular, columns = oracle.attention(t)
        tensors[name + ".numbers"] = np.array([numbers[k] for k in ATTENTION_NUMBERS])
        tensors[name + ".eigenvalues"], tensors[name + ".singular"], tensors[name + ".columns"] = values.copy(), singular, columns
    store.save(Path(out) / "analysis.safetensors", tensors, notes)


if __name__ == "__main__":
    write(Path(__file__).parent.parent / "golden")
