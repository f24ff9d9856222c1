"""The identities of methods.md section 10, and the defining equations, asserted on the oracle itself.

Preconditioners are compared with dense solves of the Kronecker products they stand for, rows with
PyTorch's convolution, update rules with torch.optim.
"""

import numpy as np
import torch

import curvature
import curvature_rules
from curvature_rows import Layer

COMMON = {"stat-decay": "0.95", "tcov": "1", "tinv": "1"}
MAC = {**COMMON, "damping": "0.1", "damping-form": "decoupled", "first-layer": "running"}
SMAC = {**MAC, "pgrad": "per-example"}
FOOF = {**COMMON, "damping": "0.1"}
KFAC = {**FOOF, "pgrad": "per-example", "kfac": "expand", "kfac-inverse": "cholesky", "kl-clip": "0"}
EVA = {**FOOF, "pgrad": "per-example", "kl-clip": "0"}
LNGD = {**COMMON, "pgrad": "per-example", "nu1": "1e-5", "nu2": "1e-2", "mu": "0.03"}
LAYER = Layer("layer", "linear", bias=True)
PLAIN = Layer("layer", "linear")
INPUTS, OUTPUTS = 4, 3


def close(one, other, tolerance=1e-11):
    assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(other), (one, other)


class Problem:
    """Batches and gradients of one linear layer on sequences."""

    def __init__(self, layer=LAYER, batch=5, rows=3, steps=3, seed=0):
        rng = np.random.RandomState(seed)
        self.layer, self.steps = layer, steps
        self.x = 0.5 + rng.randn(steps, batch, rows, INPUTS)
        self.p = 0.2 + rng.randn(steps, batch, rows, OUTPUTS)
        self.gw, self.gb = rng.randn(steps, OUTPUTS, INPUTS), rng.randn(steps, OUTPUTS)

    def grads(self, k):
        return {"layer": (self.gw[k], self.gb[k] if self.layer.bias else None)}

    def run(self, kind, options, parts=1, lr=0.1):
        """The last preconditioned matrix, its gradient, and the method."""
        method = kind([self.layer], options, lr)
        for k in range(self.steps):
            for x, p in zip(np.array_split(self.x[k], parts), np.array_split(self.p[k], parts)):
                method.observe("layer", x, p)
            result = method.step(self.grads(k))
        return self.layer.matrix(*result["layer"], 0), self.layer.matrix(*self.grads(k)["layer"], 0), method

    def averages(self, method):
        return method.maps[0].read(method.decay)


def solve(left, right, damping, grad):
    """(left x right + damping I)^-1 vec(grad), the matrix written out."""
    big = np.kron(left, right) + damping * np.eye(grad.size)
    return np.linalg.solve(big, grad.reshape(-1)).reshape(grad.shape)


# ---- the defining equations


def check_mac():
    problem = Problem()
    result, grad, method = problem.run(curvature.Mac, MAC)
    mean = problem.averages(method)["mean"]
    assert abs(mean[-1] - 1) < 1e-14  # the homogeneous coordinate
    close(result, 0.1 * solve(np.eye(OUTPUTS), np.outer(mean, mean), 0.1, grad))
    coupled, _, _ = problem.run(curvature.Mac, {**MAC, "damping-form": "coupled"})
    close(coupled, solve(np.eye(OUTPUTS), np.outer(mean, mean), 0.1, grad))
    _, _, adaptive = problem.run(curvature.Mac, {**MAC, "damping": "adaptive"})
    averages = problem.averages(adaptive)
    _, rho = adaptive.activation_side(adaptive.maps[0], averages)
    close(averages["mean"] @ averages["mean"] + rho * (INPUTS + 1), averages["square"])  # the trace matches


def check_smac():
    problem = Problem()
    result, grad, method = problem.run(curvature.Smac, SMAC)
    averages = problem.averages(method)
    left = np.diag(averages["grad_square"] + 0.1)
    right = np.outer(averages["mean"], averages["mean"]) + 0.1 * np.eye(INPUTS + 1)
    close(result, 0.1 * solve(left, right, 0, grad))
    coupled, _, _ = problem.run(curvature.Smac, {**SMAC, "damping-form": "coupled"})
    close(coupled, solve(left, right, 0, grad))
    problem.p = np.sign(problem.p)  # p * p = 1: equal p-hat
    scaled, _, method = problem.run(curvature.Smac, SMAC)
    mac, _, _ = problem.run(curvature.Mac, MAC)
    close(scaled, mac / (problem.averages(method)["grad_square"][0] + 0.1))


def check_foof():
    problem = Problem()
    result, grad, method = problem.run(curvature.Foof, FOOF)
    close(result, solve(np.eye(OUTPUTS), problem.averages(method)["A"], 0.1, grad))
    problem.x[:] = problem.x[0, 0, 0]  # all rows of all batches equal
    mac, _, _ = problem.run(curvature.Mac, MAC)
    foof, _, _ = problem.run(curvature.Foof, FOOF)
    close(mac, 0.1 * foof)


def check_kfac():
    problem = Problem()
    for approximation in ("reduce", "expand"):
        options = {**KFAC, "kfac": approximation}
        result, grad, method = problem.run(curvature.Kfac, options)
        A, P = (problem.averages(method)[key] for key in "AP")
        pi = np.sqrt((np.trace(A) / A.shape[0]) / (np.trace(P) / P.shape[0]))
        left, right = P + np.sqrt(0.1) / pi * np.eye(OUTPUTS), A + np.sqrt(0.1) * pi * np.eye(INPUTS + 1)
        close(result, solve(left, right, 0, grad))
        result, grad, _ = problem.run(curvature.Kfac, {**options, "kfac-inverse": "eigen"})
        close(result, solve(P, A, 0.1, grad))
    one_row = Problem(rows=1)
    reduced, _, _ = one_row.run(curvature.Kfac, {**KFAC, "kfac": "reduce"})
    expanded, _, _ = one_row.run(curvature.Kfac, KFAC)
    close(reduced, expanded)


def check_eva():
    problem = Problem()
    result, grad, method = problem.run(curvature.Eva, EVA)
    a, p = (problem.averages(method)[key] for key in "ap")
    close(result, solve(np.outer(p, p), np.outer(a, a), 0.1, grad))


def check_kl_clip():
    problem = Problem()
    all_options = {"mac": MAC, "smac": SMAC, "foof": FOOF, "kfac": KFAC, "eva": EVA, "lngd": LNGD}
    for kind, options in ((curvature.METHODS[name], {**own, "kl-clip": "0"}) for name, own in all_options.items()):
        free, grad, _ = problem.run(kind, options)
        clipped, _, method = problem.run(kind, {**options, "kl-clip": "0.001"})
        assert method.nu < 1
        close(0.1**2 * (clipped * grad).sum() * method.nu, 0.001)  # nu^2 of the sum that was clipped
        close(clipped, method.nu * free)
        close(problem.run(kind, {**options, "kl-clip": "1e9"})[0], free)


def check_lngd():
    problem = Problem()
    _, grad, method = problem.run(curvature.Lngd, {**LNGD, "nu1": "1e-9", "nu2": "1e9", "mu": "0"})
    averages = problem.averages(method)
    phi, psi = averages["Phi"], averages["numerator"] / averages["denominator"]
    left = np.diag(psi + psi.mean())
    v = solve(left, phi + np.trace(phi) / (INPUTS + 1) * np.eye(INPUTS + 1), 0, grad)
    close(method.precondition(method.maps[0], grad), v / (v * grad).sum())
    problem.p[:] = problem.p[0, 0]  # all norms of the mean gradients equal
    _, _, lngd = problem.run(curvature.Lngd, LNGD)
    _, _, foof = problem.run(curvature.Foof, FOOF)
    norm = np.linalg.norm(problem.x.shape[1] * problem.p[0, 0].mean(axis=0)) ** 2
    close(problem.averages(lngd)["Phi"], norm * problem.averages(foof)["A"])


# ---- limits


def check_limits():
    problem = Problem()
    large = {"damping": "1e12"}
    for kind, options, factor in (
        (curvature.Mac, MAC, 1),
        (curvature.Smac, SMAC, 1e12),
        (curvature.Foof, FOOF, 1e12),
        (curvature.Eva, EVA, 1e12),
    ):
        result, grad, _ = problem.run(kind, {**options, **large})
        close(factor * result, grad, 1e-9)
    plain = Problem(PLAIN)
    plain.x[:, :, 0] = -plain.x[:, :, 1] - plain.x[:, :, 2]  # the three rows of an example cancel
    close(plain.run(curvature.Mac, MAC)[0], plain.gw[-1])
    close(0.1 * plain.run(curvature.Eva, EVA)[0], plain.gw[-1])


def check_averages():
    """Equal batches: the read-out is the batch's own value from the first commit on."""
    problem = Problem(steps=4)
    problem.x[:] = problem.x[0]
    for decay in ("0.95", "0.5", "0.05"):
        _, _, method = problem.run(curvature.Foof, {**FOOF, "stat-decay": decay})
        close(problem.averages(method)["A"], curvature.second_moment(LAYER.input_rows(problem.x[0], 0)))


def check_batches():
    """Parts of a batch, in any order, are the batch."""
    problem = Problem()
    cases = (
        (curvature.Mac, {**MAC, "damping": "adaptive"}),
        (curvature.Smac, SMAC),
        (curvature.Foof, FOOF),
        (curvature.Kfac, KFAC),
        (curvature.Kfac, {**KFAC, "kfac": "reduce"}),
        (curvature.Eva, EVA),
        (curvature.Lngd, LNGD),
    )
    for kind, options in cases:
        whole, _, _ = problem.run(kind, options)
        close(problem.run(kind, options, parts=3)[0], whole)
        turned = Problem()
        turned.x, turned.p = turned.x[:, ::-1], turned.p[:, ::-1]
        close(turned.run(kind, options)[0], whole)


# ---- Fisher


def check_fisher():
    """KFAC `expand` on a deep linear net with squared loss: A x P is the exact block of the Fisher matrix."""
    torch.manual_seed(0)
    widths = [4, 3, 5, 2]
    weights = [torch.randn(o, i, dtype=torch.float64) for i, o in zip(widths, widths[1:])]
    x = torch.randn(6, widths[0], dtype=torch.float64)
    batch = x.shape[0]

    def outputs(index, weight, sample):
        for i, w in enumerate(weights):
            sample = (weight if i == index else w) @ sample
        return sample

    inputs = x
    for index, weight in enumerate(weights):
        fisher = 0
        for sample in x:
            rows = torch.autograd.functional.jacobian(lambda w: outputs(index, w, sample), weight).flatten(1)
            fisher = fisher + rows.T @ rows / batch
        after = torch.eye(weight.shape[0], dtype=torch.float64)
        for later in weights[index + 1 :]:
            after = later @ after
        P = 0
        for row in after:  # the Jacobian of one output, the same for every example; batch-mean scale
            method = curvature.Kfac([PLAIN], KFAC)
            p = np.tile(row.numpy() / batch, (batch, 1))
            method.observe("layer", inputs.numpy(), p)
            method.step({"layer": (np.zeros(weight.shape), None)})
            averages = method.maps[0].read(method.decay)
            P = P + averages["P"]
        close(np.kron(P, averages["A"]), fisher.numpy())
        inputs = inputs @ weight.T


# ---- rows


def check_rows(layer, shape, outputs):
    """Rows times weights are the layer's output, and rows times output gradients its weight gradient (PyTorch)."""
    rng = np.random.RandomState(1)
    x = torch.from_numpy(rng.randn(3, *shape)).requires_grad_()
    size = (outputs, shape[0] // layer.groups, *layer.kernel) if layer.kind == "conv" else (outputs, shape[-1])
    weight = torch.from_numpy(rng.randn(*size)).requires_grad_()
    bias = torch.from_numpy(rng.randn(outputs)).requires_grad_() if layer.bias else None
    if layer.kind == "conv":
        y = torch.nn.functional.conv2d(x, weight, bias, layer.stride, layer.pad, layer.dilation, layer.groups)
    else:
        y = torch.nn.functional.linear(x, weight, bias)
    p = rng.randn(*y.shape)
    y.backward(torch.from_numpy(p))
    arrays = [None if t is None else t.detach().numpy() for t in (weight, bias)]
    parts = []
    for group in range(layer.groups):
        a, g = layer.input_rows(x.detach().numpy(), group), layer.grad_rows(p, group)
        close(a @ layer.matrix(*arrays, group).T, layer.grad_rows(y.detach().numpy(), group))
        parts.append(np.einsum("nro,nrd->od", g, a))
    found = layer.unmatrix(parts, size)
    close(found[0], weight.grad.numpy())
    if layer.bias:
        close(found[1], bias.grad.numpy())
    if layer.kind == "conv":
        check_mean_patch(layer, x.detach().numpy())


def check_mean_patch(layer, x):
    """The mean patch is a strided window sum of the batch-sum image (section 1)."""
    total = torch.from_numpy(x.sum(axis=0, keepdims=True))
    columns = torch.nn.functional.unfold(total, layer.kernel, layer.dilation, layer.pad, layer.stride)
    means = columns[0].sum(dim=1).reshape(layer.groups, -1).numpy() / (x.shape[0] * columns.shape[2])
    for group in range(layer.groups):
        close(layer.patches(x, group).mean(axis=(0, 1)), means[group])


def check_pointwise():
    """A 1x1 convolution is a linear layer on rows."""
    rng = np.random.RandomState(2)
    image = Layer("layer", "conv", bias=True)
    x, p = rng.randn(2, 4, 3, 2), rng.randn(2, 5, 3, 2)
    grads = {"layer": (rng.randn(5, 4), rng.randn(5))}
    tokens = [v.reshape(2, v.shape[1], 6).transpose(0, 2, 1) for v in (x, p)]
    for kind, options in ((curvature.Mac, MAC), (curvature.Kfac, KFAC), (curvature.Lngd, LNGD)):
        one, other = kind([image], options, 0.1), kind([LAYER], options, 0.1)
        one.observe("layer", x, p)
        other.observe("layer", *tokens)
        conv_grads = {"layer": (grads["layer"][0].reshape(5, 4, 1, 1), grads["layer"][1])}
        found, expected = one.step(conv_grads)["layer"], other.step(grads)["layer"]
        close(found[0].reshape(5, 4), expected[0])
        close(found[1], expected[1])


# ---- update rules


def check_rules():
    rng = np.random.RandomState(3)
    weight, grads = rng.randn(3, 4), rng.randn(7, 3, 4)
    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
    adamw = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.5}
    for ours, theirs, settings in (
        (curvature_rules.Sgd, torch.optim.SGD, sgd),
        (curvature_rules.Sgd, torch.optim.SGD, {**sgd, "nesterov": True}),
        (curvature_rules.AdamW, torch.optim.AdamW, adamw),
    ):
        rule, parameter = ours(weight, **settings), torch.nn.Parameter(torch.from_numpy(weight.copy()))
        optimizer = theirs([parameter], **settings)
        for grad in grads:
            rule.step(grad)
            parameter.grad = torch.from_numpy(grad)
            optimizer.step()
        close(rule.weight, parameter.detach().numpy())
    parameter.grad = torch.from_numpy(grads[0].copy())
    torch.nn.utils.clip_grad_norm_([parameter], 0.5)
    close(curvature_rules.clip({"w": (grads[0], None)}, 0.5)["w"][0], parameter.grad.numpy())


def check_skfac():
    """Of one batch: KFAC reduce where there is one row for each example, but for pi."""
    problem = Problem(rows=1, steps=1)
    result, grad, _ = problem.run(curvature.Skfac, FOOF)
    a = np.concatenate([problem.x[0, :, 0], np.ones((5, 1))], axis=1)
    q = 5 * problem.p[0, :, 0]
    alpha = np.sqrt(0.1)
    left, right = q.T @ q / 5 + alpha * np.eye(OUTPUTS), a.T @ a / 5 + alpha * np.eye(INPUTS + 1)
    close(result, solve(left, right, 0, grad))
    for rows, n in ((a, INPUTS + 1), (q, OUTPUTS)):  # Woodbury, and by rows L^-1 X
        x = rows / np.sqrt(5)
        gram = x @ x.T + alpha * np.eye(5)
        close((np.eye(n) - x.T @ np.linalg.solve(gram, x)) / alpha, np.linalg.inv(x.T @ x + alpha * np.eye(n)))
        z = np.linalg.solve(np.linalg.cholesky(gram), x)
        close((np.eye(n) - z.T @ z) / alpha, np.linalg.inv(x.T @ x + alpha * np.eye(n)))


def check_kpsvd():
    """Never farther than KFAC, the leading triple in the end, KFAC where all inputs are equal."""
    options = {**FOOF, "stat-decay": "0", "kl-clip": "0"}
    problem = Problem(steps=1)
    a = np.concatenate([problem.x[0], np.ones((5, 3, 1))], axis=2).mean(axis=1)
    q = 5 * problem.p[0].mean(axis=1)
    block = curvature.rearranged(a, q)
    kfac = np.outer(a.T @ a / 5, q.T @ q / 5)
    for rounds in (1, 2, 3, 1000):
        _, _, method = problem.run(curvature.Kpsvd, {**options, "kpsvd-rounds": rounds})
        R, S = (problem.averages(method)[key] for key in "RS")
        nearest = np.outer(R, S)
        assert np.linalg.norm(block - nearest) <= np.linalg.norm(block - kfac)
        assert min(np.linalg.eigvalsh(R)[0], np.linalg.eigvalsh(S)[0]) > -1e-12
    u, values, v = np.linalg.svd(block)
    close(nearest, values[0] * np.outer(u[:, 0], v[0]))
    ours, grad, method = problem.run(curvature.Kpsvd, {**options, "kpsvd-rounds": 1000, "kpsvd-terms": 2})
    R, S, P, Q = (problem.averages(method)[key] for key in "RSPQ")
    close(np.outer(R, S) + np.outer(P, Q), (u[:, :2] * values[:2]) @ v[:2])  # the two leading triples
    pi, rho = np.sqrt(np.trace(R) / len(R) / (np.trace(S) / len(S))), np.sqrt(method.damping())
    R, S = R + pi * rho * np.eye(len(R)), S + rho / pi * np.eye(len(S))
    close(S @ ours @ R + Q @ ours @ P, grad)  # where no divisor is below its least
    problem = Problem(rows=1)
    problem.x[:] = problem.x[:, :1]
    ours, _, _ = problem.run(curvature.Kpsvd, options)
    close(ours, problem.run(curvature.Kfac, {**KFAC, "stat-decay": "0", "kfac": "reduce"})[0])


def check_mfac():
    """By products of gradients alone, one gradient, a large damping."""
    rng = np.random.RandomState(7)
    for m, damping in ((1, 0.1), (4, 0.03), (6, 1e9)):
        ring = curvature.Ring(9, {"damping": damping, "mfac-gradients": m})
        for k in range(3 * m):
            g = rng.randn(9)
            found = ring.product(g)
            c = np.linalg.solve(damping * np.eye(m) + ring.rows @ ring.rows.T / m, np.eye(m)[k % m])
            close(found, ring.rows.T @ c)
            if m == 1:
                close(found, g / (damping + g @ g))
            if damping > 1e6:
                assert np.allclose(damping * found, g, rtol=1e-7, atol=1e-7)


def check_all(shapes):
    """shapes: (layer, shape of one input, outputs) of every geometry in use."""
    check_mac()
    check_smac()
    check_foof()
    check_kfac()
    check_eva()
    check_kl_clip()
    check_lngd()
    check_skfac()
    check_kpsvd()
    check_mfac()
    check_limits()
    check_averages()
    check_batches()
    check_fisher()
    check_pointwise()
    check_rules()
    for layer, shape, outputs in shapes:
        if layer.kind != "parameter":
            check_rows(layer, shape, outputs)
