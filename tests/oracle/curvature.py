"""The curvature methods of methods.md (sections 0, 1, 3 to 7 and 9) and of optimizers.md (sections 5, 6 and 8), dense and slow.

Written from these pages alone: every matrix is formed, every inverse is numpy's. A method holds
maps; `observe` takes a layer's batch (or part of it), `step` takes the gradients and gives what
replaces them. Choices where the page leaves one are marked CHOICE and listed in README.md.
"""

import math

import numpy as np

RAISES = 5


class Map:
    """One linear map: a layer, or one group of a grouped convolution."""

    def __init__(self, layer, group):
        self.layer, self.group = layer, group
        self.pending = []  # (a, p, ...) of the parts of this step's batch
        self.average, self.commits, self.init = {}, 0, 0.0
        self.dataset = None  # statistics of the calibration pass, where the first layer uses them
        self.derived, self.due = None, False
        self.dropped = self.raised = self.failed = 0

    def read(self, decay):
        """The averages, freed of their start from zero; those that began elsewhere as they are."""
        if self.init > 0:
            return dict(self.average)
        return {key: value / (1 - decay**self.commits) for key, value in self.average.items()}


def damped_inverse(matrix, damping):
    """(matrix + damping I)^-1, the damping raised tenfold up to five times (section 9).

    Returns the inverse (None when that was not enough), the damping it has, and the number of raises.
    CHOICE: each factorisation starts from the damping asked for, not from one raised before.
    """
    d = matrix.shape[0]
    for attempt in range(RAISES + 1):
        damped = matrix + np.asarray(damping, matrix.dtype) * np.eye(d, dtype=matrix.dtype)
        try:
            np.linalg.cholesky(damped)
            inverse = np.linalg.inv(damped)
            if np.isfinite(inverse).all():
                return inverse, damping, attempt
        except np.linalg.LinAlgError:
            pass
        damping = max(10 * damping, 1e-8 * np.trace(matrix) / d)
    return None, None, RAISES


def inverse_of_rank(matrix, damping, rank):
    """I/damping but for the eigenvectors of the largest eigenvalues."""
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = values[-rank:], vectors[:, -rank:]
    eye = np.eye(matrix.shape[0], dtype=matrix.dtype)
    return eye / damping + (vectors * (1 / (values + damping) - 1 / damping)) @ vectors.T


class Method:
    """What all methods share: when statistics are taken, committed, dropped and refreshed, and the KL clip."""

    kl_clip = 0.0  # the default of --kl-clip

    def __init__(self, layers, options, lr=None, dtype=np.float64):
        self.layers = {layer.name: layer for layer in layers}
        self.maps = [Map(layer, g) for layer in layers if layer.kind != "parameter" for g in range(layer.groups)]
        self.options, self.lr, self.dtype = options, lr, dtype
        self.decay = float(options["stat-decay"])
        self.tcov, self.tinv = int(options["tcov"]), int(options["tinv"])
        self.offset, self.homogeneous = int(options.get("toffset", 0)), str(options.get("homogeneous", True)).lower() == "true"
        for m in self.maps:
            m.init = float(options.get("stat-init", 0))
        self.k = 0

    # ---- of each method

    def statistics(self, a, p):
        """New values of this batch: name -> array, from a (N, R, d) and p (N, R, d_out)."""
        raise NotImplementedError

    def derive(self, m, averages):
        """What `precondition` needs; None when it cannot be made."""
        raise NotImplementedError

    def precondition(self, m, grad):
        raise NotImplementedError

    # ---- shared

    def damping(self):
        return float(self.options["damping"])

    def map_of(self, name, group=0):
        return next(m for m in self.maps if m.layer.name == name and m.group == group)

    def rows(self, m, x, p, scale):
        a = m.layer.input_rows(np.asarray(x, self.dtype), m.group)
        if m.layer.bias and not self.homogeneous:
            a = a[:, :, :-1]
        return a, scale * m.layer.grad_rows(np.asarray(p, self.dtype), m.group)

    def observe(self, name, x, p, scale=1.0, **more):
        """x: the layer's input, p: its output gradient, scale: what turns p into dL/dz of the global batch mean;
        more: what else `rows` of a method knows of."""
        if self.k >= self.offset and (self.k - self.offset) % self.tcov == 0:
            for m in self.maps:
                if m.layer.name == name:
                    m.pending.append(self.rows(m, x, p, scale, **more))

    def commit(self, m):
        """Adds the pending batch to the averages, or drops all of it when a statistic is not finite."""
        if not m.pending:
            return False
        a, p, *more = (np.concatenate(parts) for parts in zip(*m.pending))
        m.pending = []
        if self.options.get("pgrad") == "per-example":
            p = p * a.shape[0]
        with np.errstate(all="ignore"):
            new = self.statistics(a, p, *more)
        if not all(np.isfinite(value).all() for value in new.values()):
            m.dropped += 1
            return False
        for key, value in new.items():
            start = m.init * np.eye(len(value), dtype=value.dtype) if m.init > 0 else 0.0
            m.average[key] = self.decay * m.average.get(key, start) + (1 - self.decay) * value
        m.commits += 1
        return True

    def scheduled(self, index, k):
        k = k - self.offset
        if k < 0:
            return False
        if self.options.get("refresh") == "spread" and k > 0:
            k = k - index * self.tinv // len(self.maps)
        return k % self.tinv == 0

    def can_refresh(self, m):
        return m.commits > 0

    def refresh(self, m):
        """CHOICE: a refresh whose factorisation failed is over; the next is made when next scheduled."""
        derived = self.derive(m, m.read(self.decay))
        if derived is None:
            m.failed += 1  # the previous one, if any, stays
        else:
            m.derived = derived
        m.due = False

    def inverse(self, m, matrix, damping):
        rank = int(self.options.get("kfac-rank", 0))
        if 0 < rank < matrix.shape[0]:
            return inverse_of_rank(matrix, damping, rank)
        inverse, _, raises = damped_inverse(matrix, damping)
        m.raised += raises
        return inverse

    def step(self, grads):
        """grads: layer -> (weight gradient, bias gradient or None). What replaces them; None: the step is skipped."""
        k, self.k = self.k, self.k + 1
        for index, m in enumerate(self.maps):
            m.due = m.due or self.scheduled(index, k)
        if not all(np.isfinite(g).all() for pair in grads.values() for g in pair if g is not None):
            for m in self.maps:
                m.pending = []
            return None
        for m in self.maps:
            committed = self.commit(m)
            if self.must_refresh(m, committed):
                self.refresh(m)
        return self.apply(grads)

    def must_refresh(self, m, committed):
        return m.due and self.can_refresh(m)

    def apply(self, grads):
        before, after, passed = {}, {}, {}
        for m in self.maps:
            weight, bias = grads[m.layer.name]
            before[m] = m.layer.matrix(np.asarray(weight, self.dtype), bias, m.group)
            if m.layer.bias and not self.homogeneous:
                before[m], passed[m] = before[m][:, :-1], before[m][:, -1:]
            after[m] = before[m] if m.derived is None else self.precondition(m, before[m])
        self.finish(before, after)
        for m, bias in passed.items():
            after[m] = np.concatenate([after[m], bias], axis=1)
        out = {}
        for name, (weight, bias) in grads.items():
            parts = [after[m] for m in self.maps if m.layer.name == name]
            out[name] = self.layers[name].unmatrix(parts, weight.shape) if parts else (weight, bias)
        return out

    def finish(self, before, after):
        """Section 7: one scale for all maps that have had a valid refresh, from the gradients before and after."""
        kappa = float(self.options.get("kl-clip", self.kl_clip))
        if kappa == 0:
            return
        maps = [m for m in self.maps if m.derived is not None]
        total = sum(float((after[m] * before[m]).sum()) for m in maps)
        self.nu = min(1.0, math.sqrt(kappa / (self.lr**2 * total))) if total > 0 else 1.0
        for m in maps:
            after[m] = self.nu * after[m]


class Mac(Method):
    """Section 1."""

    least_share = 1e-8  # of E|a|^2 / d: the least adaptive damping, in double precision

    def statistics(self, a, p):
        return {"mean": a.mean(axis=(0, 1)), "square": (a.astype(np.float64) ** 2).sum(axis=2).mean()}

    def calibrate(self, batches):
        """batches: of the network's input, one pass over the training set before step 0."""
        for m in self.maps:
            if m.layer.first and self.options["first-layer"] != "running":
                a = np.concatenate([m.layer.input_rows(np.asarray(x, self.dtype), m.group) for x in batches])
                flat = a.reshape(-1, a.shape[2])
                # CHOICE: adaptive damping of such a map takes E|a|^2 of the same pass.
                m.dataset = {**Mac.statistics(self, a, None), "square_matrix": flat.T @ flat / flat.shape[0]}
                m.derived = self.derive(m, {})  # ready from step 0, whatever is committed

    def activation_side(self, m, averages):
        """The d x d matrix that G is multiplied with from the right, and its damping."""
        source = m.dataset or averages
        mean, square = source["mean"], float(source["square"])
        d = mean.shape[0]
        eye = np.eye(d, dtype=self.dtype)
        if self.options["damping"] == "adaptive":
            if square == 0:
                return eye, None
            rho = max((square - float(mean @ mean)) / d, self.least_share * square / d)
        else:
            rho = self.damping()
        outer = 1 / rho if self.options.get("damping-form") == "coupled" else 1.0
        if m.dataset and self.options["first-layer"] == "dataset-cov":
            inverse = self.inverse(m, m.dataset["square_matrix"], rho)
            return (None if inverse is None else outer * rho * inverse), rho
        return outer * (eye - np.outer(mean, mean) / (rho + mean @ mean)), rho

    def derive(self, m, averages):
        return self.activation_side(m, averages)[0]

    def precondition(self, m, grad):
        return grad @ m.derived


class Smac(Mac):
    """Section 3."""

    fixed_damping = 1.0  # under the diagonal when --damping is `adaptive`. CHOICE: the default of --damping

    def statistics(self, a, p):
        return {**super().statistics(a, p), "grad_square": (p * p).mean(axis=(0, 1))}

    def derive(self, m, averages):
        right, _ = self.activation_side(m, averages)
        rho = self.fixed_damping if self.options["damping"] == "adaptive" else self.damping()
        # CHOICE: of a calibrated map E[p p] is 0 until the first commit.
        rows = np.reshape(1 / (averages.get("grad_square", 0.0) + rho), (-1, 1))
        return None if right is None else (rows, right)

    def precondition(self, m, grad):
        rows, right = m.derived
        return rows * (grad @ right)


class Foof(Method):
    """Section 4."""

    def statistics(self, a, p):
        return {"A": second_moment(a)}

    def derive(self, m, averages):
        A = averages["A"]
        width = int(self.options.get("foof-width", 0)) or len(A)
        out = np.zeros_like(A)
        for first in range(0, len(A), width):
            part = slice(first, first + width)
            block = self.inverse(m, A[part, part], self.rho(A[part, part]))
            if block is None:
                return None
            out[part, part] = block
        return out

    def rho(self, matrix):
        if str(self.options["damping"]).startswith("trace:"):
            return float(self.options["damping"][6:]) * np.trace(matrix) / len(matrix) + 1e-8
        return self.damping()

    def precondition(self, m, grad):
        return grad @ m.derived


def second_moment(rows):
    """E[v v^T] over all n and r of (N, R, d)."""
    flat = rows.reshape(-1, rows.shape[2])
    return flat.T @ flat / flat.shape[0]


class Kfac(Method):
    """Section 5."""

    kl_clip = 1e-3

    def statistics(self, a, p):
        rows = a.shape[1]
        if self.options["kfac"] == "expand":
            return {"A": second_moment(a), "P": rows * second_moment(p)}
        factor = rows**2 if self.options["pgrad"] == "per-example" else 1
        return {
            "A": second_moment(a.mean(axis=1, keepdims=True)),
            "P": factor * second_moment(p.mean(axis=1, keepdims=True)),
        }

    def derive(self, m, averages):
        A, P = averages["A"], averages["P"]
        if self.options["kfac-inverse"] == "eigen":
            return np.linalg.eigh(P), np.linalg.eigh(A)
        mean_a, mean_p = np.trace(A) / A.shape[0], np.trace(P) / P.shape[0]
        pi = 1.0
        if mean_a > 0 and mean_p > 0:
            pi = min(max(math.sqrt(mean_a / mean_p), 1e-10), 1e10)
        root = math.sqrt(self.damping())
        left, right = self.inverse(m, P, root / pi), self.inverse(m, A, root * pi)
        # CHOICE: both factors are renewed, or neither.
        return None if left is None or right is None else (left, right)

    def precondition(self, m, grad):
        if self.options["kfac-inverse"] == "eigen":
            (lambda_p, U_p), (lambda_a, U_a) = m.derived
            return U_p @ ((U_p.T @ grad @ U_a) / (np.outer(lambda_p, lambda_a) + self.damping())) @ U_a.T
        left, right = m.derived
        return left @ grad @ right


class Eva(Method):
    """Section 6. Refreshed at every commit, whatever --tinv says."""

    kl_clip = 1e-3

    def statistics(self, a, p):
        return {"a": a.mean(axis=(0, 1)), "p": p.mean(axis=(0, 1))}

    def must_refresh(self, m, committed):
        return committed

    def derive(self, m, averages):
        return averages["p"], averages["a"]

    def precondition(self, m, grad):
        p, a = m.derived
        rho = self.damping()
        return (grad - (p @ grad @ a) * np.outer(p, a) / (rho + (a @ a) * (p @ p))) / rho


class Lngd(Method):
    """Section 6."""

    def statistics(self, a, p):
        norm_a = (a.mean(axis=1) ** 2).sum(axis=1)  # (N): squared norms of each example's mean row
        norm_p = (p.mean(axis=1) ** 2).sum(axis=1)
        rows = a.shape[1]
        return {
            "Phi": np.mean([w * v.T @ v / rows for w, v in zip(norm_p, a)], axis=0),
            "numerator": np.mean([w * (v * v).mean(axis=0) for w, v in zip(norm_a, p)], axis=0),
            "denominator": (norm_a * norm_p).mean(),
        }

    def derive(self, m, averages):
        low, high = float(self.options["nu1"]), float(self.options["nu2"])
        phi, numerator, denominator = averages["Phi"], averages["numerator"], averages["denominator"]
        psi = numerator / denominator if denominator != 0 else np.zeros_like(numerator)
        right = self.inverse(m, phi, min(max(float(np.trace(phi)) / phi.shape[0], low), high))
        left = np.diag(1 / (psi + min(max(float(psi.sum()) / psi.shape[0], low), high)))
        return None if right is None else (left, right)

    def precondition(self, m, grad):
        left, right = m.derived
        v = left @ grad @ right
        inner = float((v * grad).sum())
        return inner / (inner**2 + float(self.options["mu"])) * v


class Skfac(Method):
    """optimizers.md section 5, by the dense inverses that it stands for. Statistics are those of the refresh's own batch."""

    def __init__(self, layers, options, lr=None, dtype=np.float64):
        super().__init__(layers, {**options, "pgrad": "per-example"}, lr, dtype)
        self.decay = 0.0

    def statistics(self, a, p):
        return {"A": second_moment(a.mean(axis=1, keepdims=True)), "P": second_moment(p.mean(axis=1, keepdims=True))}

    def must_refresh(self, m, committed):
        return m.due and committed

    def derive(self, m, averages):
        alpha = math.sqrt(self.damping())
        left, right = self.inverse(m, averages["P"], alpha), self.inverse(m, averages["A"], alpha)
        return None if left is None or right is None else (left, right)

    def precondition(self, m, grad):
        left, right = m.derived
        return left @ grad @ right


def rearranged(a, q):
    """E_n[vec(a a^T) vec(q q^T)^T]: its singular triples are the nearest Kronecker products to E_n[aa^T x qq^T]."""
    left, right = (np.einsum("ni,nj->nij", v, v).reshape(v.shape[0], -1) for v in (a, q))
    return left.T @ right / a.shape[0]


class Kpsvd(Method):
    """optimizers.md section 6, on the rearranged block written out."""

    kl_clip = 1e-3

    def __init__(self, layers, options, lr=None, dtype=np.float64):
        super().__init__(layers, {**options, "pgrad": "per-example"}, lr, dtype)
        self.rounds, self.terms = int(options.get("kpsvd-rounds", 3)), int(options.get("kpsvd-terms", 1))
        self.start = {}  # map -> the last S, and map, 2 -> the last Q

    def triple(self, block, key, first):
        """A singular triple (left, right, value) by the power iteration from the last right vector on."""
        s = first
        if key in self.start and (block @ self.start[key]).any():
            s = self.start[key]
        for _ in range(self.rounds):
            r = block @ (s / np.linalg.norm(s))
            r = r / np.linalg.norm(r)
            s = block.T @ r
        return r, s, np.linalg.norm(s)

    def commit(self, m):
        """As any method's, but for the start of the iteration, and for zero factors: they are not committed."""
        if not m.pending:
            return False
        a, p = (np.concatenate(parts).mean(axis=1) for parts in zip(*m.pending))
        m.pending = []
        q = p * a.shape[0]
        with np.errstate(all="ignore"):
            block = rearranged(a, q)
            first = (q.T @ q / q.shape[0]).reshape(-1)
            r, s, sigma = self.triple(block, m, first)
            remains = block - np.outer(r, s)
            p2, q2, sigma2 = self.triple(remains, (m, 2), first) if self.terms == 2 else (r, s, 0.0)
        if np.isfinite(block).all() and not block.any():
            return False
        if not np.isfinite(sigma):
            m.dropped += 1
            return False
        self.start[m] = s
        if not sigma2 > 1e-6 * sigma:  # rounding of the first term, or nothing
            p2, q2, sigma2 = 0 * r, 0 * s, 1.0
        elif self.terms == 2:
            self.start[m, 2] = q2
        left, right = a.shape[1], q.shape[1]
        terms = [("R", r * math.sqrt(sigma), left), ("S", s / math.sqrt(sigma), right)]
        terms += [("P", p2 * math.sqrt(sigma2), left), ("Q", q2 / math.sqrt(sigma2), right)] if self.terms == 2 else []
        for key, value, n in terms:
            new = value.reshape(n, n).astype(self.dtype)
            m.average[key] = self.decay * m.average.get(key, 0.0) + (1 - self.decay) * new
        m.commits += 1
        return True

    def derive(self, m, averages):
        R, S = averages["R"], averages["S"]
        pi = min(max(math.sqrt((np.trace(R) / R.shape[0]) / (np.trace(S) / S.shape[0])), 1e-10), 1e10)
        root = math.sqrt(self.damping())
        if self.terms == 2:
            return self.pair(R, averages["P"], root * pi), self.pair(S, averages["Q"], root / pi)
        left, right = self.inverse(m, S, root / pi), self.inverse(m, R, root * pi)
        return None if left is None or right is None else (left, right)

    @staticmethod
    def pair(first, second, shift):
        """(first + shift I)^-1/2, and the eigenvalues and vectors of second between two of them."""
        values, vectors = np.linalg.eigh(first + shift * np.eye(len(first)))
        root = (vectors / np.sqrt(values)) @ vectors.T
        return root, *np.linalg.eigh(root @ second @ root)

    def precondition(self, m, grad):
        if self.terms == 2:
            (r, l1, E1), (s, l2, E2) = m.derived
            return s @ E2 @ ((E2.T @ s @ grad @ r @ E1) / np.maximum(1 + np.outer(l2, l1), 0.1)) @ E1.T @ r
        left, right = m.derived
        return left @ grad @ right


def to_bf16(values):
    """To the nearest number of eight significant bits, ties to even."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 256), exponent - 8)


class Ring:
    """optimizers.md section 8: the newest m gradients of one vector. The matrix is formed in full."""

    def __init__(self, length, options):
        self.rows = np.zeros((int(options["mfac-gradients"]), length))
        self.narrow = options.get("mfac-precision") == "bf16"
        self.damping, self.written = float(options["damping"]), 0

    def product(self, g):
        g = to_bf16(g) if self.narrow else g
        m, length = self.rows.shape
        self.rows[self.written % m] = g
        self.written += 1
        return np.linalg.solve(self.damping * np.eye(length) + self.rows.T @ self.rows / m, g)


class Mfac(Method):
    """optimizers.md section 8. It takes no statistics."""

    def __init__(self, layers, options, lr=None, dtype=np.float64):
        super().__init__(layers, options, lr, dtype)
        self.rings = {}

    def observe(self, *_args, **_more):
        pass

    def joined(self, key, parts):
        """The parts (arrays, or None) as one vector, replaced by its product, cut up again; in double throughout."""
        vector = np.concatenate([part.reshape(-1).astype(np.float64) for part in parts if part is not None])
        ring = self.rings.setdefault(key, Ring(vector.size, self.options))
        result, out = ring.product(vector).astype(self.dtype), []
        for part in parts:
            size = 0 if part is None else part.size
            out.append(None if part is None else result[:size].reshape(part.shape))
            result = result[size:]
        return out

    def apply(self, grads):
        if self.options.get("mfac-scope", "full") == "full":
            flat = self.joined("all", [g for pair in grads.values() for g in pair])
            return {name: tuple(flat[2 * i : 2 * i + 2]) for i, name in enumerate(grads)}
        out = dict(grads)
        for name, (weight, bias) in grads.items():
            maps = [m for m in self.maps if m.layer.name == name]
            parts = []
            for m in maps:
                rows = slice(m.group * weight.shape[0] // len(maps), (m.group + 1) * weight.shape[0] // len(maps))
                parts.append(self.joined(m, [weight[rows], None if bias is None else bias[rows]]))
            if maps:
                biases = None if bias is None else np.concatenate([part[1] for part in parts])
                out[name] = np.concatenate([part[0] for part in parts]), biases
        return out


METHODS = {
    "mac": Mac,
    "smac": Smac,
    "foof": Foof,
    "kfac": Kfac,
    "eva": Eva,
    "lngd": Lngd,
    "skfac": Skfac,
    "kpsvd": Kpsvd,
    "mfac": Mfac,
}
