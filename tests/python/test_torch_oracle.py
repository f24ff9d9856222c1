"""Every optimizer, through PyTorch, against the float64 oracle: preconditioned gradients and weights to 1e-4.

Branches has the oracle's own layers side by side, whose output gradients are given; Net is a network, whose output
gradients come out of autograd.
"""

import support
from support import Case, batch, loss_of, make, make_net, np, taken_step, torch, weights_of

import curvature_rules
import golden_curvature
from torch import nn
from twin import Twin, telling

TOLERANCE = 1e-4
STEPS = 7
PLAIN = {"lr": 1.0, "momentum": 0.0}  # then a step takes off the preconditioned gradient itself
KINDS = {
    "linear": ["fc", "fc_nobias"],
    "sequence": ["seq", "seq_nobias"],
    "conv": ["image", "c1", "c1_outside", "c5", "c32", "dilated", "c17"],
    "grouped": ["grouped", "depthwise", "depthwise2", "depthwise16"],
}


def as_module(layer, data):
    weight = data["w"]
    if layer.kind == "linear":
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias)
    else:
        channels = weight.shape[1] * layer.groups
        geometry = {"stride": layer.stride, "padding": layer.pad, "dilation": layer.dilation, "groups": layer.groups}
        module = nn.Conv2d(channels, weight.shape[0], layer.kernel, bias=layer.bias, **geometry)
    with torch.no_grad():
        module.weight.copy_(torch.as_tensor(weight))
        if layer.bias:
            module.bias.copy_(torch.as_tensor(data["b"]))
    return module


class Branches(nn.Module):
    """Layers side by side; the loss is what makes p of step k their output gradients."""

    data = golden_curvature.make_data()

    def __init__(self, names):
        super().__init__()
        for name in names:
            self.add_module(name, as_module(golden_curvature.LAYERS[name], self.data[name]))

    def loss(self, k):
        dtype = next(self.parameters()).dtype
        total = 0.0
        for name, module in self.named_children():
            x, p = (torch.as_tensor(self.data[name][key][k]).to(dtype) for key in "xp")
            total = total + (module(x) * p).sum()
        return total


def by_layer(grads):
    """The matrix of each layer, bias column included (methods.md section 0), as one vector: by cancellation the bias
    alone can be so small that float32 knows few of its digits."""
    layers = {}
    for name, grad in grads.items():
        layers.setdefault(name.rpartition(".")[0] or name, []).append(np.asarray(grad, np.float64).ravel())
    return {name: np.concatenate(parts) for name, parts in layers.items()}


class PreconditionedGradients(Case):
    def check(self, method, model, loss_at, steps=STEPS, tolerance=TOLERANCE, **options):
        """loss_at(model, k). The weights move a little between steps, in both alike."""
        options = telling(method, **options)
        twin = Twin(model, method, PLAIN["lr"], **options)
        optimizer = make(method, model, **PLAIN, **options)
        for k in range(steps):
            twin.follow(model)
            optimizer.zero_grad()
            loss_at(model, k).backward()
            twin.backward(lambda other: loss_at(other, k))
            found, expected = taken_step(model, optimizer), twin.step()
            self.assert_all_close(by_layer(found), by_layer(expected), tolerance, f"{method} step {k}")
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p -= 0.02 * torch.as_tensor(expected[name]).to(p.dtype)
        optimizer.close()

    def check_kind(self, kind):
        for method in support.CLASSES:
            with self.subTest(method):
                self.check(method, Branches(KINDS[kind]), lambda model, k: model.loss(k))

    def test_of_linear_layers_are_the_oracles(self):
        self.check_kind("linear")

    def test_of_sequence_layers_are_the_oracles(self):
        self.check_kind("sequence")

    def test_of_convolutions_are_the_oracles(self):
        self.check_kind("conv")

    def test_of_grouped_convolutions_are_the_oracles(self):
        self.check_kind("grouped")

    def test_of_all_layers_together_are_the_oracles(self):
        """One KL clip over all maps, one numbering of maps for spread refreshes."""
        names = [name for group in KINDS.values() for name in group]
        for method in support.CLASSES:
            with self.subTest(method):
                self.check(method, Branches(names), lambda model, k: model.loss(k), refresh="spread")

    def test_of_a_network_are_the_oracles(self):
        for method in support.CLASSES:
            with self.subTest(method):
                self.check(method, make_net(), lambda model, k: loss_of(model, batch(k)))

    def test_in_float64_are_the_oracles_to_the_last_digits(self):
        names = [name for group in KINDS.values() for name in group]
        for method in support.CLASSES:
            with self.subTest(method):
                self.check(method, Branches(names).double(), lambda model, k: model.loss(k), tolerance=1e-9)

    def test_with_options_are_the_oracles(self):
        cases = [
            ("mac", {"damping": "adaptive"}),
            ("mac", {"damping": 3, "damping_form": "coupled"}),
            ("smac", {"pgrad": "batch-mean", "damping": 0.001}),
            ("kfac", {"kfac": "expand"}),
            ("kfac", {"kfac": "expand", "kfac_inverse": "eigen", "kl_clip": 0}),
            ("kfac", {"pgrad": "batch-mean", "tcov": 1, "tinv": 2}),
            ("foof", {"damping": "trace:0.2", "stat_init": 0.001, "toffset": 1, "foof_width": 3, "homogeneous": False}),
            ("foof", {"kfac_rank": 2, "damping": 0.1}),
            ("kfac", {"stat_init": 0.1, "kfac_rank": 2}),
            ("eva", {"pgrad": "batch-mean", "damping": 0.001}),
            ("lngd", {"nu1": 1e-6, "nu2": 1e3, "mu": 0.5, "pgrad": "per-example"}),
        ]
        for method, options in cases:
            with self.subTest(method, **options):
                self.check(method, Branches(["fc", "seq", "c32", "grouped"]), lambda m, k: m.loss(k), **options)

    def test_of_rows_in_more_dimensions_are_the_oracles(self):
        """A linear layer on (N, H, W, C): every position is a row. As it stands, and with strides of its own."""
        torch.manual_seed(1)
        x, p = torch.randn(7, 3, 5, 2, 4) + 0.5, torch.randn(7, 3, 5, 2, 6)
        strided = (torch.randn(7, 3, 4, 5, 2) + 0.5).permute(0, 1, 3, 4, 2)
        for name, inputs in {"dense": x, "strided": strided}.items():
            for method in ("mac", "kfac"):
                with self.subTest(name, method=method):
                    model = nn.Sequential(nn.Linear(4, 6))
                    self.check(method, model, lambda m, k: (m(like(m, inputs[k])) * like(m, p[k])).sum())

    def test_of_outputs_changed_in_place_are_the_oracles(self):
        """Also where the output is a view, as that of a linear layer on a sequence may be."""
        torch.manual_seed(3)
        for shape in ((7, 6, 5), (7, 6, 3, 5)):
            for method in ("smac", "kfac"):
                with self.subTest(method, shape=shape):
                    x = torch.randn(*shape) + 0.5
                    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
                    self.check(method, model, lambda m, k: (m(like(m, x[k])).exp_() ** 2).sum() / 6)

    def test_of_layers_in_other_memory_formats_are_the_oracles(self):
        """channels_last images and weights; an output gradient that is one number spread out."""
        torch.manual_seed(2)
        images = torch.randn(7, 3, 4, 6, 5) + 0.5
        for form in (torch.channels_last, torch.contiguous_format):
            for method in ("mac", "smac", "foof", "kfac"):
                with self.subTest(method, form=form):
                    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding="same"), nn.Conv2d(6, 4, 2, stride=2, groups=2))
                    model = model.to(memory_format=form)
                    x = [image.contiguous(memory_format=form) for image in images]
                    self.check(method, model, lambda m, k: m(like(m, x[k])).sum() / 40)

    def test_leave_skipped_layers_alone(self):
        model = make_net()
        options = telling("mac")
        skip = ("head.*", "stem")
        twin = Twin(model, "mac", 1.0, skip=skip, **options)
        optimizer = make("mac", model, **PLAIN, skip=skip)
        loss_of(model, batch(0)).backward()
        twin.backward(lambda other: loss_of(other, batch(0)))
        found, expected = taken_step(model, optimizer), twin.step()
        self.assert_all_close(found, expected, TOLERANCE)
        self.assert_close(found["stem.weight"], plain_grad(model, "stem.weight"), 1e-6)


def like(model, tensor):
    return tensor.to(next(model.parameters()).dtype)


def plain_grad(model, name):
    """The gradient of batch 0 by plain autograd."""
    parameter = dict(model.named_parameters())[name]
    return torch.autograd.grad(loss_of(model, batch(0)), parameter)[0]


class Weights(Case):
    """The rule behind the method: six steps, every parameter."""

    def check(self, method, rule, keywords, **settings):
        """settings: of the oracle's rule; keywords: the binding's words for them."""
        model = make_net()
        lr = settings["lr"]
        twin = Twin(model, method, lr, **telling(method))
        optimizer = make(method, model, **keywords)
        rules = {n: rule(p.detach().double().numpy(), **settings) for n, p in model.named_parameters()}
        for k in range(6):
            with torch.no_grad():
                for name, p in twin.model.named_parameters():
                    p.copy_(torch.as_tensor(rules[name].weight))
            twin.backward(lambda other: loss_of(other, batch(k)))
            for name, grad in twin.step().items():
                rules[name].step(grad)
        support.train(model, optimizer, 6)
        expected = {name: r.weight for name, r in rules.items()}
        moved = {name: torch.as_tensor(value) for name, value in expected.items()}
        self.assert_differ(moved, {n: p.double() for n, p in make_net().named_parameters()}, 0.005, "nothing moved")
        self.assert_all_close(weights_of(model), expected, TOLERANCE, method)

    def test_under_momentum_and_decay_are_the_oracles(self):
        for method in support.CLASSES:
            with self.subTest(method):
                keywords = {"lr": support.rate(method), "momentum": 0.9, "weight_decay": 0.1}
                self.check(method, curvature_rules.Sgd, keywords, **keywords)

    def test_under_nesterov_are_the_oracles(self):
        keywords = {"lr": 0.05, "momentum": 0.8, "nesterov": True}
        self.check("mac", curvature_rules.Sgd, keywords, **keywords)

    def test_under_decoupled_decay_are_the_oracles(self):
        keywords = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.5}
        self.check("smac", curvature_rules.Sgd, {**keywords, "decay": "decoupled"}, **keywords, decoupled=True)

    def test_under_adamw_are_the_oracles(self):
        keywords = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.5}
        for method in ("mac", "kfac"):
            with self.subTest(method):
                self.check(method, curvature_rules.AdamW, {**keywords, "rule": "adamw"}, **keywords)


if __name__ == "__main__":
    support.main()
