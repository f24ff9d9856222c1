#!/usr/bin/env python3
"""Recomputes what `abar analyze all --dump` wrote, with numpy, from the batch that it dumped.

    abar analyze all --checkpoint RUN --samples 64 --batch 64 --dump --out OUT
    python3 tests/oracle/check_analysis.py OUT

The analysis must have seen the dumped batch alone (--samples equal to --batch), with the default scale of output gradients
(--pgrad per-example). Prints the worst relative deviation of every quantity beside its tolerance; exit 1 where one is exceeded.
Definitions: docs/analysis.md. Only numpy is needed."""
import argparse
import csv
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

EIGENVALUES = 1e-5  # relative, for those above FLOOR of the largest
FLOOR = 1e-6
NUMBERS = 1e-6


def read_dump(path):
    """Metadata and tensors (float64) of a safetensors file of F32."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    notes = header.pop("__metadata__", {})
    tensors = {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        assert info["dtype"] == "F32", name
        tensors[name] = np.frombuffer(data[8 + length + begin : 8 + length + end], "<f4").reshape(info["shape"]).astype(np.float64)
    return notes, tensors


def input_rows(x, layer, group):
    """Rows (N, R, d) that a map reads: patches of a convolution's group, or vectors."""
    if not layer["convolution"]:
        rows = x.reshape(x.shape[0], -1, x.shape[-1])
    else:
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (layer[k] for k in ("kernel", "stride", "pad", "dilation"))
        channels = x.shape[1] // max(1, layer["groups"])
        x = np.pad(x[:, group * channels : (group + 1) * channels], ((0, 0), (0, 0), (ph, ph), (pw, pw)))
        oh = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
        ow = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
        rows = np.empty((x.shape[0], oh * ow, channels, kh, kw))
        for i in range(kh):
            for j in range(kw):
                part = x[:, :, i * dh : i * dh + sh * (oh - 1) + 1 : sh, j * dw : j * dw + sw * (ow - 1) + 1 : sw]
                rows[:, :, :, i, j] = part.reshape(x.shape[0], channels, -1).transpose(0, 2, 1)
        rows = rows.reshape(x.shape[0], oh * ow, -1)
    if layer["homogeneous"]:
        rows = np.concatenate([rows, np.ones(rows.shape[:2] + (1,))], axis=2)
    return rows


def output_rows(grad, layer, group):
    """Rows (N, R, out) of dL/dz, L the mean over the batch, at the scale of single examples."""
    grad = grad * grad.shape[0]
    if not layer["convolution"]:
        return grad.reshape(grad.shape[0], -1, grad.shape[-1])
    out = grad.shape[1] // max(1, layer["groups"])
    grad = grad[:, group * out : (group + 1) * out]
    return grad.reshape(grad.shape[0], out, -1).transpose(0, 2, 1)


def eigenvalues(a):
    return np.linalg.eigvalsh(a)[::-1]


def summary(rows, rho):
    """The columns of covariance.csv for rows (N, R, d)."""
    x = rows.reshape(-1, rows.shape[-1])
    mean = x.mean(0)
    centred = x - mean
    a, s = x.T @ x / len(x), centred.T @ centred / len(x)
    values, vectors = np.linalg.eigh(a)
    top, square = vectors[:, -1], mean @ mean
    cosine = abs(top @ mean) / math.sqrt(square)
    norm, spectral, trace = np.linalg.norm(s), np.linalg.eigvalsh(s)[-1], np.trace(s)
    m_values, m_vectors = np.linalg.eigh(np.outer(mean, mean) + rho * np.eye(len(mean)))
    root = m_vectors @ np.diag(m_values**-0.5) @ m_vectors.T
    mac = np.linalg.eigvalsh(root @ a @ root)
    least = max(values[0], 0.0)
    return {"rows": len(x), "side": len(mean), "trace": np.trace(a), "largest": values[-1], "second": values[-2], "mean square": square,
            "cosine": cosine, "gap": (values[-1] - values[-2]) / values[-1],
            "davis-kahan": 2 * math.sqrt(2) * norm / square, "davis-kahan sharp": 2 * math.sqrt(2) * spectral / square, "|S|_F": norm,
            "|S|_2": spectral, "tr S": trace, "rank1 error": norm / square, "rank1 share": square / np.trace(a),
            "adaptive rho": trace / len(mean), "kappa kfac": (values[-1] + rho) / (least + rho), "kappa mac": (square + rho) / (least + rho),
            "condition sgd": values[-1] / values[0] if values[0] > FLOOR * values[-1] else None,
            "condition mac": mac[-1] / mac[0] if mac[0] > FLOOR * mac[-1] else None}


def probabilities(qkv, bias, layer):
    """T (samples, windows, heads, n, n) from queries and keys, masks and relative positions included."""
    samples, tokens, width = qkv.shape
    heads, side, shift = layer["heads"], layer["side"], layer["shift"]
    width //= 3 * heads
    q, k = (qkv[:, :, i * heads * width : (i + 1) * heads * width].reshape(samples, tokens, heads, width) for i in (0, 1))
    order, region = np.arange(tokens)[None], np.zeros((1, tokens), int)
    if side:
        rows, columns = layer["grid"]
        grid = np.roll(np.arange(tokens).reshape(rows, columns), (-shift, -shift), (0, 1))
        part = np.zeros((rows, columns), int)
        if shift:  # Swin's three by three regions
            for i, vertical in enumerate((slice(0, -side), slice(-side, -shift), slice(-shift, None))):
                for j, horizontal in enumerate((slice(0, -side), slice(-side, -shift), slice(-shift, None))):
                    part[vertical, horizontal] = 3 * i + j
        cut = lambda x: x.reshape(rows // side, side, columns // side, side).transpose(0, 2, 1, 3).reshape(-1, side * side)
        order, region = cut(grid), cut(part)
    n = order.shape[1]
    scores = np.einsum("swihc,swjhc->swhij", q[:, order], k[:, order]) / math.sqrt(width)
    if bias is not None:
        y, x = np.divmod(np.arange(n), side)
        scores += bias[(y[:, None] - y + side - 1) * (2 * side - 1) + x[:, None] - x + side - 1].transpose(2, 0, 1)
    allowed = region[:, :, None] == region[:, None, :]
    if layer["causal"]:
        allowed = allowed & np.tri(n, dtype=bool)
    scores = np.where(allowed[None, :, None], scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return (scores / scores.sum(-1, keepdims=True)).reshape(-1, n, n)


def cosine(x, y):
    return abs(x @ y) / (np.linalg.norm(x) * np.linalg.norm(y))


def attention(t):
    """The columns of attention.csv, and eigenvalues, singular values, column means."""
    mean = t.mean(0)
    columns = mean.mean(0)
    values, left = np.linalg.eig(mean.T)
    first = left[:, np.argmax(abs(values))].real
    singular = np.linalg.svd(mean)
    lower = np.tril(mean) + np.tril(mean, -1).T
    lower_values, lower_vectors = np.linalg.eigh(lower)
    norms = np.linalg.norm(t, axis=(1, 2))
    own = t.mean(1)
    rank1 = np.linalg.norm(t - own[:, None, :], axis=(1, 2)) / norms
    printed = np.linalg.norm(t - own[:, :, None] * own[:, None, :], axis=(1, 2)) / norms
    share = np.linalg.svd(t, compute_uv=False)[:, 0] ** 2 / norms**2
    numbers = {"tokens": len(mean), "matrices": len(t), "cosine stationary": cosine(first, columns),
               "cosine singular": cosine(singular[2][0], columns), "cosine lower triangle": cosine(lower_vectors[:, -1], columns),
               "largest eigenvalue of the lower triangle": lower_values[-1], "top share": share.mean(), "error of 1 t^T": rank1.mean(),
               "error of t t^T": printed.mean()}
    return numbers, np.sort(abs(values))[::-1], singular[1], columns


def diagonality(p):
    """The columns of heatmap.csv."""
    n, off = len(p), ~np.eye(len(p), dtype=bool)
    scale = np.sqrt(np.outer(np.diag(p), np.diag(p)))
    live = scale > 0
    correlation = abs(p[off & live] / scale[off & live])
    alive = np.count_nonzero(np.diag(p) > 0)
    return {"outputs": n, "diagonal over off-diagonal": abs(np.diag(p)).mean() / abs(p[off]).mean() if n > 1 else None,
            "share of the diagonal": (np.diag(p) ** 2).sum() / (p**2).sum(), "mean |correlation|": correlation.mean() if n > 1 else None,
            "share of the diagonal (correlations)": alive / (alive + (correlation**2).sum())}


class Check:
    def __init__(self):
        self.worst = {}

    def compare(self, what, found, expected, tolerance, where, floor=0.0):
        scale = max(abs(expected), floor)
        error = abs(found - expected) / scale if scale > 0 else abs(found - expected)
        if not error <= self.worst.get(what, (-1.0,))[0]:
            self.worst[what] = (error, tolerance, where)

    def spectrum(self, what, found, expected, where):
        if len(found) == 0:
            return
        if any(a < b - 1e-12 * abs(b) for a, b in zip(found, found[1:])):
            self.worst[what + ": descending"] = (math.inf, 0.0, where)
        for i, value in enumerate(found):
            if expected[i] > FLOOR * expected[0]:
                self.compare(what, value, expected[i], EIGENVALUES, f"{where} #{i + 1}")

    def finish(self):
        bad = 0
        for what, (error, tolerance, where) in sorted(self.worst.items()):
            ok = error <= tolerance
            bad += not ok
            print(f"{'ok ' if ok else 'BAD'} {what:42} {error:9.2e}  of {tolerance:.0e}  {where}")
        print(f"{len(self.worst)} quantities, {bad} beyond their tolerance")
        return 1 if bad or not self.worst else 0


def read_table(folder, name):
    path = folder / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


def compare_row(check, table, layer, snapshot, numbers):
    for row in table:
        if row["layer"] == layer and row["snapshot"] == snapshot:
            for name, expected in numbers.items():
                if expected is not None:
                    tolerance = EIGENVALUES if name.startswith(("condition", "kappa", "gap")) else NUMBERS
                    check.compare(name, float(row[name]), expected, tolerance, f"{layer}, {snapshot}", floor=1e-9)
            return
    check.compare("missing rows", 1.0, 0.0, 0.0, f"{layer}, {snapshot}")


def check_map(check, tables, layer, name, group, tensors, base, snapshot, fisher_samples):
    where = f"{name}, {snapshot}"
    spectra = {}
    for row in tables["spectra"]:
        if row["layer"] == name and row["snapshot"] == snapshot:
            spectra.setdefault(row["matrix"], []).append(float(row["eigenvalue"]))
    a = input_rows(tensors[base + ".input"], layer, group)
    rho = next(float(row["rho"]) for row in tables["covariance"] if row["layer"] == name)
    for table in ("covariance", "alignment", "convergence"):
        compare_row(check, tables[table], name, snapshot, summary(a, rho))
    flat = a.reshape(-1, a.shape[-1])
    a_values = eigenvalues(flat.T @ flat / len(flat))
    check.spectrum("A", spectra["A"], a_values, where)
    p = output_rows(tensors[base + ".output_grad"], layer, group)
    flat = p.reshape(-1, p.shape[-1])
    matrix = p.shape[1] * flat.T @ flat / len(flat)
    p_values = eigenvalues(matrix)
    check.spectrum("P", spectra["P"], p_values, where)
    check.spectrum("P-reduce", spectra["P-reduce"], eigenvalues(p.mean(1).T @ p.mean(1) / len(p)), where)
    check.spectrum("AxP", spectra["AxP"], np.sort(np.outer(a_values[:64], p_values[:64]).ravel())[::-1], where)
    compare_row(check, tables["heatmap"], name, snapshot, diagonality(matrix))
    if "Fisher" in spectra:
        n = min(fisher_samples, len(p))
        g = np.einsum("nro,nrd->nod", p[:n], input_rows(tensors[base + ".training_input"][:n], layer, group), optimize=True).reshape(n, -1)
        check.spectrum("Fisher", spectra["Fisher"], eigenvalues(g @ g.T / n), where)


def check_attention(check, tables, layer, base, tensors, snapshot):
    numbers, values, singular, columns = attention(probabilities(tensors[base + ".qkv"], tensors.get(base + ".position_bias"), layer))
    compare_row(check, tables["attention"], base, snapshot, numbers)
    rows = [r for r in tables["attention-spectrum"] if r["layer"] == base and r["snapshot"] == snapshot]
    check.spectrum("|eigenvalues| of mean T", [float(r["eigenvalue"]) for r in rows], values, base)
    check.spectrum("singular values of mean T", [float(r["singular value"]) for r in rows], singular, base)
    for i, row in enumerate(rows):
        check.compare("column means of T", float(row["column mean"]), columns[i], NUMBERS, base)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the analysis")
    parser.add_argument("--fisher-samples", type=int, default=256, help="as the analysis had it")
    arguments = parser.parse_args()
    names = ("spectra", "covariance", "alignment", "convergence", "heatmap", "attention", "attention-spectrum")
    tables = {name: read_table(arguments.out, name) for name in names}
    check = Check()
    dumps = sorted(arguments.out.glob("dump-*.safetensors"))
    if not dumps:
        sys.exit(f"{arguments.out}: there is no dump-1.safetensors, analyze with --dump")
    for dump in dumps:
        notes, tensors = read_dump(dump)
        snapshot = notes.pop("snapshot")
        layers = {base: json.loads(text) for base, text in notes.items() if base + ".input" in tensors}
        for base, layer in layers.items():
            groups = layer.get("groups", 1) if layer["convolution"] else 1
            for group in range(max(1, groups)):
                check_map(check, tables, layer, base if groups < 2 else f"{base}#{group}", group, tensors, base, snapshot,
                          arguments.fisher_samples)
            if base + ".qkv" in tensors:
                check_attention(check, tables, layer, base, tensors, snapshot)
        print(f"{dump.name}: {snapshot}, {len(layers)} layers")
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
