"""Float64 forward and backward cases of every operation, from PyTorch's autograd.

A case is a name, its inputs, and a function of them. The cotangent dy is random (1 for
losses); dx, dw, ... are the gradients of sum(dy * y).
"""

import torch
import torch.nn.functional as F

import golden_sequence
import networks
import store


class Cases:
    """Collects tensors and settings; each case has its own generator, seeded by its place."""

    def __init__(self):
        self.tensors, self.metadata = {}, {}

    def rng(self):
        return torch.Generator().manual_seed(1000 + len(self.metadata))

    def add(self, name, settings, function, inputs, constants=None):
        """inputs: leaves named x, x2, w, b that get gradients; constants: stored as they are."""
        assert name not in self.metadata
        leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}
        y = function(**leaves)
        loss = y.dim() == 0
        dy = torch.ones_like(y) if loss else random(self.rng(), *y.shape, skip=10_000)
        grads = torch.autograd.grad(y, list(leaves.values()), dy)
        case = {**leaves, **(constants or {}), "y": y, "dy": dy}
        case.update({"d" + key: grad for key, grad in zip(leaves, grads)})
        for key, value in case.items():
            self.tensors[f"{name}.{key}"] = value.reshape(1) if value.dim() == 0 else value
        self.metadata[name] = settings


def random(rng, *shape, skip=0):
    """Standard normal float64 values; skip moves past values that the inputs used."""
    if skip:
        torch.randn(skip, generator=rng, dtype=torch.float64)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def add_linear(cases):
    for name, rows, d_in, d_out, bias in [
        ("linear_bias", 5, 7, 3, True),
        ("linear_nobias", 4, 3, 9, False),
        ("linear_one_row", 1, 6, 5, True),
    ]:
        rng = cases.rng()
        inputs = {"x": random(rng, rows, d_in), "w": random(rng, d_out, d_in)}
        if bias:
            inputs["b"] = random(rng, d_out)
        cases.add(name, {"op": "linear", "bias": bias}, lambda x, w, b=None: F.linear(x, w, b), inputs)


CONVS = [
    # name suffix, x shape, c_out, kernel, stride, pad, dilation, groups, bias
    ("k1", (2, 3, 5, 4), 4, (1, 1), (1, 1), (0, 0), (1, 1), 1, True),
    ("k1_s2", (2, 4, 7, 5), 3, (1, 1), (2, 2), (0, 0), (1, 1), 1, False),
    ("k3_p1", (2, 3, 7, 5), 4, (3, 3), (1, 1), (1, 1), (1, 1), 1, False),
    ("k3_nopad", (2, 2, 6, 5), 3, (3, 3), (1, 1), (0, 0), (1, 1), 1, True),
    ("k3_s2_p1", (2, 3, 7, 9), 4, (3, 3), (2, 2), (1, 1), (1, 1), 1, True),
    ("k3_s2_p1_even", (2, 3, 8, 6), 4, (3, 3), (2, 2), (1, 1), (1, 1), 1, False),
    ("k5_p2", (2, 1, 7, 7), 3, (5, 5), (1, 1), (2, 2), (1, 1), 1, True),
    ("k5_nopad", (2, 3, 7, 6), 2, (5, 5), (1, 1), (0, 0), (1, 1), 1, True),
    ("k3x1_p1x0", (2, 3, 5, 6), 2, (3, 1), (1, 1), (1, 0), (1, 1), 1, True),
    ("k1x5_s2x1", (2, 2, 5, 7), 3, (1, 5), (2, 1), (0, 2), (1, 1), 1, False),
    ("k2x3_s1x2", (1, 3, 5, 8), 2, (2, 3), (1, 2), (1, 0), (1, 1), 1, True),
    ("k3_d2_p2", (2, 2, 7, 6), 3, (3, 3), (1, 1), (2, 2), (2, 2), 1, True),
    ("k3_d2x1_s2", (2, 2, 9, 5), 3, (3, 3), (2, 2), (1, 1), (2, 1), 1, False),
    ("groups2", (2, 4, 5, 5), 6, (3, 3), (1, 1), (1, 1), (1, 1), 2, True),
    ("groups3_s2", (2, 6, 5, 7), 3, (3, 3), (2, 2), (1, 1), (1, 1), 3, False),
    ("depthwise", (2, 5, 5, 6), 5, (3, 3), (1, 1), (1, 1), (1, 1), 5, True),
    ("depthwise_x2", (1, 3, 6, 5), 6, (3, 3), (2, 2), (1, 1), (1, 1), 3, False),
    ("batch1", (1, 3, 5, 5), 4, (3, 3), (1, 1), (1, 1), (1, 1), 1, True),
    ("patch", (1, 3, 8, 8), 5, (4, 4), (4, 4), (0, 0), (1, 1), 1, True),
]


def add_conv2d(cases):
    for suffix, shape, c_out, kernel, stride, pad, dilation, groups, bias in CONVS:
        rng = cases.rng()
        inputs = {"x": random(rng, *shape), "w": random(rng, c_out, shape[1] // groups, *kernel)}
        if bias:
            inputs["b"] = random(rng, c_out)
        settings = {
            "op": "conv2d",
            "kernel": list(kernel),
            "stride": list(stride),
            "pad": list(pad),
            "dilation": list(dilation),
            "groups": groups,
            "bias": bias,
        }

        def conv(x, w, b=None):
            return F.conv2d(x, w, b, stride, pad, dilation, groups)

        cases.add(f"conv2d_{suffix}", settings, conv, inputs)


NORMS = [
    # name, x shape, training, residual and ReLU after it
    ("batch_norm_train", (3, 4, 3, 5), True, False),
    ("batch_norm_train_batch1", (1, 3, 5, 3), True, False),
    ("batch_norm_train_2d", (7, 5), True, False),
    ("batch_norm_eval", (2, 4, 3, 5), False, False),
    ("batch_norm_eval_2d", (4, 5), False, False),
    ("batch_norm_add_relu_train", (3, 4, 3, 5), True, True),
    ("batch_norm_add_relu_eval", (2, 4, 3, 5), False, True),
]


def add_batch_norm(cases):
    for name, shape, training, fused in NORMS:
        rng, channels = cases.rng(), shape[1]
        inputs = {
            "x": 2 * random(rng, *shape) + 0.5,
            "w": random(rng, channels),
            "b": random(rng, channels),
        }
        if fused:
            inputs["x2"] = random(rng, *shape)
        mean, var = random(rng, channels), 0.5 + random(rng, channels) ** 2
        constants = {"running_mean": mean.clone(), "running_var": var.clone()}
        if training:
            constants.update({"running_mean_after": mean, "running_var_after": var})

        def norm(x, w, b, x2=None):  # updates mean and var in place when training
            y = F.batch_norm(x, mean, var, w, b, training, momentum=0.1, eps=1e-5)
            return y if x2 is None else F.relu(y + x2)

        op = "batch_norm_add_relu" if fused else "batch_norm"
        settings = {"op": op, "training": training, "eps": 1e-5, "momentum": 0.1}
        cases.add(name, settings, norm, inputs, constants)


def add_layer_norm(cases):
    for name, shape in [("layer_norm_2d", (5, 7)), ("layer_norm_3d", (2, 3, 9))]:
        rng, width = cases.rng(), shape[-1]
        inputs = {
            "x": 2 * random(rng, *shape) + 0.5,
            "w": random(rng, width),
            "b": random(rng, width),
        }
        cases.add(
            name,
            {"op": "layer_norm", "eps": 1e-5},
            lambda x, w, b: F.layer_norm(x, (width,), w, b, eps=1e-5),
            inputs,
        )


def add_activations(cases):
    functions = {
        "relu": F.relu,
        "tanh": torch.tanh,
        "gelu_erf": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    }
    for name, function in functions.items():
        x = 2 * random(cases.rng(), 2, 3, 5, 3)
        x[0, 0, 0] = torch.tensor([0.0, 12.0, -12.0])  # the kink and both tails
        cases.add(name, {"op": name}, lambda x: function(x), {"x": x})


POOLS = [
    # name, x shape, kernel, stride, pad
    ("k2", (2, 3, 6, 4), (2, 2), (2, 2), (0, 0)),
    ("k2_odd", (2, 3, 7, 5), (2, 2), (2, 2), (0, 0)),
    ("k3_s2_p1", (2, 2, 7, 8), (3, 3), (2, 2), (1, 1)),
    ("k3_s2", (2, 2, 7, 9), (3, 3), (2, 2), (0, 0)),
    ("k3x2_s2x1_p1x0", (1, 3, 7, 5), (3, 2), (2, 1), (1, 0)),
]


def add_pools(cases):
    for op, function in [("max_pool", F.max_pool2d), ("avg_pool", F.avg_pool2d)]:
        for suffix, shape, kernel, stride, pad in POOLS:
            settings = {"op": op, "kernel": list(kernel), "stride": list(stride), "pad": list(pad)}
            if op == "avg_pool":
                settings["count_include_pad"] = True
            x = random(cases.rng(), *shape)
            cases.add(f"{op}_{suffix}", settings, lambda x: function(x, kernel, stride, pad), {"x": x})
    add_max_pool_ties(cases)
    cases.add(
        "global_avg_pool",
        {"op": "global_avg_pool"},
        lambda x: x.mean(dim=(2, 3)),  # (N, C)
        {"x": random(cases.rng(), 2, 5, 3, 7)},
    )


def add_max_pool_ties(cases):
    """Equal maxima in a window: the gradient goes to the first in row-major order."""
    x = torch.randint(3, (2, 2, 7, 7), generator=cases.rng()).double()
    settings = {"op": "max_pool", "kernel": [3, 3], "stride": [2, 2], "pad": [1, 1]}
    cases.add("max_pool_ties", settings, lambda x: F.max_pool2d(x, 3, 2, 1), {"x": x})


def add_joins(cases):
    rng = cases.rng()
    inputs = {"x": random(rng, 2, 3, 5, 3), "x2": random(rng, 2, 3, 5, 3)}
    cases.add("add", {"op": "add"}, lambda x, x2: x + x2, inputs)
    rng = cases.rng()
    inputs = {"x": random(rng, 2, 3, 5, 3), "x2": random(rng, 2, 4, 5, 3)}
    cases.add("concat", {"op": "concat", "axis": 1}, lambda x, x2: torch.cat([x, x2], 1), inputs)
    for name, shape, channels, stride in [
        ("shortcut_a", (2, 4, 6, 8), 8, 2),
        ("shortcut_a_odd", (2, 3, 7, 5), 7, 2),
        ("shortcut_a_stride1", (1, 2, 3, 5), 4, 1),
    ]:
        cases.add(
            name,
            {"op": "shortcut_a", "channels": channels, "stride": stride},
            lambda x: networks.shortcut_a(x, channels, stride),
            {"x": random(cases.rng(), *shape)},
        )


def add_cross_entropy(cases):
    for name, scale, smoothing, soft in [
        ("softmax_ce", 1, 0.0, False),
        ("softmax_ce_large", 300, 0.0, False),
        ("softmax_ce_smooth", 1, 0.1, False),
        ("softmax_ce_soft", 1, 0.0, True),
        ("softmax_ce_soft_smooth", 1, 0.1, True),
    ]:
        rng, rows, classes = cases.rng(), 5, 7
        x = scale * random(rng, rows, classes)
        labels = torch.randint(classes, (rows,), generator=rng)
        target = random(rng, rows, classes).softmax(1) if soft else labels
        settings = {
            "op": "softmax_cross_entropy",
            "target": "soft" if soft else "labels",
            "label_smoothing": smoothing,
            "reduction": "mean",
        }
        cases.add(
            name,
            settings,
            lambda x: F.cross_entropy(x, target, label_smoothing=smoothing),
            {"x": x},
            {"target": target if soft else target.int()},
        )


def add_cross_entropy_pairs(cases):
    """Two labels a row: the distribution is written out from one-hot rows and their shares."""
    for name, scale, smoothing in [("softmax_ce_pairs", 1, 0.0), ("softmax_ce_pairs_smooth", 30, 0.1)]:
        rng, rows, classes = cases.rng(), 6, 7
        x = scale * random(rng, rows, classes)
        labels = torch.randint(classes, (rows, 2), generator=rng)
        labels[1, 1] = labels[1, 0]
        share = torch.rand(rows, generator=rng, dtype=torch.float32)
        share[2], share[3] = 1.0, 0.0
        own, partner = F.one_hot(labels, classes).double().unbind(1)
        target = share.double()[:, None] * own + (1 - share.double())[:, None] * partner
        settings = {
            "op": "softmax_cross_entropy",
            "target": "pairs",
            "label_smoothing": smoothing,
            "reduction": "mean",
        }
        cases.add(
            name,
            settings,
            lambda x: F.cross_entropy(x, target, label_smoothing=smoothing),
            {"x": x},
            {"target": labels.int(), "share": share},
        )


def add_mean_squared_error(cases):
    rng = cases.rng()
    x, target = random(rng, 5, 3), random(rng, 5, 3)
    settings = {"op": "mean_squared_error", "reduction": "mean over all elements"}
    cases.add("mse", settings, lambda x: F.mse_loss(x, target), {"x": x}, {"target": target})


def write(path):
    cases = Cases()
    for add in (
        add_linear,
        add_conv2d,
        add_batch_norm,
        add_layer_norm,
        add_activations,
        add_pools,
        add_joins,
        add_cross_entropy,
        add_mean_squared_error,
        *golden_sequence.ALL,
        add_cross_entropy_pairs,
    ):
        add(cases)
    store.save(path, cases.tensors, cases.metadata)
