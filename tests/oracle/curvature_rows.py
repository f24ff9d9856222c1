"""A layer as its linear maps see it (methods.md section 0): rows in, rows of output gradients, one matrix of gradients.

Patches are built explicitly, output position by output position.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layer:
    name: str
    kind: str  # "linear"; "conv"; "parameter": belongs to no map
    bias: bool = False
    first: bool = False  # reads the network's input
    kernel: tuple = (1, 1)
    stride: tuple = (1, 1)
    pad: tuple = (0, 0)
    dilation: tuple = (1, 1)
    groups: int = 1

    def input_rows(self, x, group):
        """(N, R, d), a final 1 where there is a bias."""
        if self.kind == "conv":
            rows = self.patches(x, group)
        else:
            rows = x.reshape(x.shape[0], -1, x.shape[-1])  # (N, I): R = 1
        if self.bias:
            rows = np.concatenate([rows, np.ones((*rows.shape[:2], 1), rows.dtype)], axis=2)
        return rows

    def patches(self, x, group):
        """(N, positions, C/groups * kh * kw) of x (N, C, H, W); zeros where a patch hangs over the padding."""
        n, channels, height, width = x.shape
        per_group = channels // self.groups
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = self.kernel, self.stride, self.pad, self.dilation
        padded = np.zeros((n, per_group, height + 2 * ph, width + 2 * pw), x.dtype)
        padded[:, :, ph : ph + height, pw : pw + width] = x[:, group * per_group : (group + 1) * per_group]
        span_h, span_w = dh * (kh - 1) + 1, dw * (kw - 1) + 1
        rows = []
        for top in range(0, height + 2 * ph - span_h + 1, sh):
            for left in range(0, width + 2 * pw - span_w + 1, sw):
                patch = padded[:, :, top : top + span_h : dh, left : left + span_w : dw]
                rows.append(patch.reshape(n, -1))
        return np.stack(rows, axis=1)

    def grad_rows(self, p, group):
        """(N, R, d_out) of p (N, O), (N, T, O) or (N, O, P, Q)."""
        if self.kind != "conv":
            return p.reshape(p.shape[0], -1, p.shape[-1])
        per_group = p.shape[1] // self.groups
        mine = p[:, group * per_group : (group + 1) * per_group]
        return mine.reshape(*mine.shape[:2], -1).transpose(0, 2, 1)

    def matrix(self, weight, bias, group):
        """(d_out, d): the group's part of a weight (or gradient) and bias, side by side."""
        per_group = weight.shape[0] // self.groups
        mine = slice(group * per_group, (group + 1) * per_group)
        flat = weight[mine].reshape(per_group, -1)
        return np.concatenate([flat, bias[mine, None]], axis=1) if self.bias else flat

    def unmatrix(self, matrices, weight_shape):
        """Weight and bias (None without) of the matrices of all groups."""
        whole = np.concatenate(matrices, axis=0)
        if self.bias:
            return whole[:, :-1].reshape(weight_shape), whole[:, -1]
        return whole.reshape(weight_shape), None
