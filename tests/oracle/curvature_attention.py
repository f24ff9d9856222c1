"""MAC and SMAC on attention (methods.md section 2), from probabilities that are built in full.

A layer that makes q, k and v is one map here: what belongs to it is committed, dropped and refreshed together by
construction, and only the matrix from the right differs between its rows.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from curvature import Mac, Smac
from curvature_rows import Layer


@dataclass(frozen=True)
class AttentionLayer(Layer):
    """Rows value_row .. of the weight make v for so many heads; those before make q and k."""

    tokens: int = 0
    heads: int = 1
    value_row: int = 0
    value_rows: int = 0
    causal: bool = False
    grid: tuple = (0, 0)
    side: int = 0  # of a window; 0: all tokens are one sequence
    shift: int = 0
    relative: bool = False  # relative position bias

    def described(self):
        return {key: getattr(self, key) for key in ("heads", "value_row", "value_rows", "grid", "side", "shift")}

    def windows(self):
        """(windows, tokens of one): the tokens of every sequence, in its order. Swin: roll, then cut."""
        if not self.side:
            return np.arange(self.tokens)[None]
        (height, width), side = self.grid, self.side
        rolled = np.roll(np.arange(height * width).reshape(height, width), (-self.shift, -self.shift), (0, 1))
        cut = rolled.reshape(height // side, side, width // side, side).transpose(0, 2, 1, 3)
        return cut.reshape(-1, side * side)

    def visible(self):
        """(windows, queries, keys): who sees whom."""
        count = self.windows().shape[1]
        if not self.side:
            return np.tril(np.ones((count, count), bool))[None] if self.causal else np.ones((1, count, count), bool)
        region = np.zeros(self.grid, int)  # of the rolled grid, as Swin numbers them
        if self.shift:
            cuts = (slice(0, -self.side), slice(-self.side, -self.shift), slice(-self.shift, None))
            for i, rows in enumerate(cuts):
                for j, columns in enumerate(cuts):
                    region[rows, columns] = 3 * i + j
        (height, width), side = self.grid, self.side
        cut = region.reshape(height // side, side, width // side, side).transpose(0, 2, 1, 3).reshape(-1, side * side)
        return cut[:, :, None] == cut[:, None, :]

    def position_bias(self, table):
        """(heads, queries, keys) of a table ((2 side - 1)^2, heads)."""
        place = np.stack(np.divmod(np.arange(self.side**2), self.side), axis=1)
        apart = place[:, None] - place[None, :] + self.side - 1
        return table[apart[..., 0] * (2 * self.side - 1) + apart[..., 1]].transpose(2, 0, 1)

    def probabilities(self, q, k, table=None):
        """T (N, windows, heads, queries, keys) of q, k (N, heads, tokens, d_head)."""
        windows = self.windows()
        q, k = (np.moveaxis(v[:, :, windows], 1, 2) for v in (q, k))  # (N, windows, heads, tokens of one, d_head)
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
        if table is not None:
            scores = scores + self.position_bias(table)
        scores = np.where(self.visible()[None, :, None], scores, -np.inf)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return scores / scores.sum(axis=-1, keepdims=True)

    def columns(self, probabilities):
        """(N, heads, tokens): the mean over the queries of its window of what they give each token."""
        n, _, heads = probabilities.shape[:3]
        out = np.empty((n, heads, self.tokens))
        means = np.moveaxis(probabilities.mean(axis=3), 1, 2)  # (N, heads, windows, keys)
        out[:, :, self.windows()] = means
        return out


class Values:
    """Section 2, in front of Mac or Smac: rows of v have their own mean and, with adaptive damping, E|a|^2."""

    def rows(self, m, x, p, scale, columns=None):
        a, p = super().rows(m, x, p, scale)
        if columns is None:
            return a, p
        windows = np.broadcast_to(m.layer.windows(), (a.shape[0], *m.layer.windows().shape))
        return a, p, np.asarray(columns, self.dtype), windows

    def statistics(self, a, p, t=None, windows=None):
        new = super().statistics(a, p)
        choice = self.options["value-stat"]
        if t is None or choice == "plain":
            return new
        # every sequence of every example: X (b, j, d), t (b, h, j)
        X = np.concatenate([a[n][windows[n]] for n in range(a.shape[0])])
        t = np.concatenate([np.moveaxis(t[n][:, windows[n]], 1, 0) for n in range(a.shape[0])])
        norms = (X.astype(np.float64) ** 2).sum(axis=2)
        weights = [t[:, h] for h in range(t.shape[1])] if choice == "per-head" else [t.mean(axis=1)]
        if choice == "factored":
            means = [X.mean(axis=0).T @ w.mean(axis=0) for w in weights]
            squares = [w.mean(axis=0) @ norms.mean(axis=0) for w in weights]
        else:
            means = [np.mean([x.T @ v for x, v in zip(X, w)], axis=0) for w in weights]
            squares = [np.mean([v @ s for v, s in zip(w, norms)]) for w in weights]
        return {**new, "value_mean": np.array(means), "value_square": np.array(squares)}

    def derive(self, m, averages):
        """(rows, what Mac or Smac derives) for q and k, and for each part of v."""
        layer = m.layer
        if "value_mean" not in averages:
            return [(slice(None), super().derive(m, averages))]
        derived = [(slice(0, layer.value_row), super().derive(m, averages))] if layer.value_row else []
        parts = len(averages["value_mean"])
        each = layer.value_rows // parts
        for i, (mean, square) in enumerate(zip(averages["value_mean"], averages["value_square"])):
            rows = slice(layer.value_row + i * each, layer.value_row + (i + 1) * each)
            derived.append((rows, super().derive(m, {**averages, "mean": mean, "square": square})))
        return derived

    def precondition(self, m, grad):
        out = np.full_like(grad, np.nan)
        for rows, derived in m.derived:
            out[rows] = super().precondition(SimpleNamespace(derived=derived), grad)[rows]
        return out


class ValueMac(Values, Mac):
    pass


class ValueSmac(Values, Smac):
    pass


METHODS = {"mac": ValueMac, "smac": ValueSmac}
