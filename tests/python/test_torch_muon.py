"""Muon: against torch.optim.Muon with its iteration in float32 or float64, which parameters it takes, and its state."""

import support
from support import abar, torch

from torch import nn

STEPS = 20
FORMS = ("original", "match_rms_adamw")


class Shapes(nn.Module):
    """Tall, wide, square, a convolution; none of them first or last of the model."""

    def __init__(self):
        super().__init__()
        self.tall, self.wide, self.square = nn.Linear(10, 24), nn.Linear(30, 9), nn.Linear(14, 14)
        self.conv = nn.Conv2d(3, 8, 3)


def orthogonalise(grad, coefficients, steps, eps):
    """torch's function without its rounding to bfloat16."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if grad.size(0) > grad.size(1) else x


def spread(rows, columns, generator):
    """A matrix with singular values from 1 down to 1/3: rounding is not magnified."""
    left, _, right = torch.linalg.svd(
        torch.randn(rows, columns, generator=generator, dtype=torch.float64), full_matrices=False
    )
    return (left * torch.logspace(0, -0.477, min(rows, columns), dtype=torch.float64)) @ right


def grads_of(params, generator):
    for p in params:
        rows = p.shape[0]
        g = spread(rows, p.numel() // rows, generator) if p.dim() > 1 else torch.randn(p.shape, generator=generator)
        p.grad = g.reshape(p.shape).to(p.dtype)


def run_ours(dtype, form, settings):
    torch.manual_seed(3)
    model = Shapes().to(dtype)
    start = [p.detach().clone() for p in model.parameters() if p.dim() > 1]
    optimizer = abar.torch.Muon(model, 0.02, adjust_lr_fn=form, first=(), head=(), ns_precision="fp32", **settings)
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        grads_of(model.parameters(), generator)
        optimizer.step()
    return start, [p.detach() for p in model.parameters() if p.dim() > 1]


def run_torch(dtype, form, settings):
    """torch takes matrices only; AdamW's parameters draw their gradients all the same."""
    from torch.optim import _muon

    torch.manual_seed(3)
    model = Shapes().to(dtype)
    weights = [p for p in model.parameters() if p.dim() > 1]
    flat = [nn.Parameter(p.detach().reshape(p.shape[0], -1).clone()) for p in weights]
    optimizer = torch.optim.Muon(flat, 0.02, adjust_lr_fn=form, **settings)
    generator = torch.Generator().manual_seed(5)
    shipped = _muon._zeropower_via_newtonschulz
    _muon._zeropower_via_newtonschulz = orthogonalise
    try:
        for _ in range(STEPS):
            grads_of(model.parameters(), generator)
            for p, w in zip(flat, weights):
                p.grad = w.grad.reshape(p.shape).clone()
            optimizer.step()
    finally:
        _muon._zeropower_via_newtonschulz = shipped
    return [p.detach().reshape(w.shape) for p, w in zip(flat, weights)]


class AgainstTorch(support.Case):
    def check(self, dtype, tolerance):
        if not hasattr(torch.optim, "Muon"):
            self.skipTest("this torch has no Muon")
        cases = [{}, {"nesterov": False}, {"weight_decay": 0.0, "momentum": 0.6}, {"ns_steps": 3}]
        for form in FORMS:
            for settings in cases:
                start, ours = run_ours(dtype, form, settings)
                theirs = run_torch(dtype, form, settings)
                for before, a, b in zip(start, ours, theirs):
                    moved = (b - before).abs().max()
                    self.assertGreater(moved, 1e-3)
                    self.assertLess((a - b).abs().max() / b.abs().max(), tolerance, f"{form} {settings} {a.shape}")

    def test_float64_steps_are_torchs(self):
        self.check(torch.float64, 1e-11)

    def test_float32_steps_are_torchs(self):
        self.check(torch.float32, 1e-5)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 11, bias=False)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.down(torch.relu(self.norm(self.up(x)))))


class Parameters(support.Case):
    def rules(self, optimizer):
        return {p.name: (p.rule, p.why) for p in optimizer.params}

    def test_hidden_layers_are_taken(self):
        rules = self.rules(abar.torch.Muon(Transformer(), aux_lr=1e-2))
        self.assertEqual(rules["up.weight"], ("muon", "hidden layer"))
        self.assertEqual(rules["down.weight"], ("muon", "hidden layer"))
        self.assertEqual(rules["head.weight"], ("adamw", "makes the output"))
        self.assertEqual(rules["embed.weight"], ("adamw", "not a layer's weight"))
        for name in ("up.bias", "norm.weight", "norm.bias"):
            self.assertEqual(rules[name], ("adamw", "not a matrix"))

    def test_first_and_head_can_be_named(self):
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 8), nn.Linear(8, 5))
        self.assertEqual(self.rules(abar.torch.Muon(net))["0.weight"], ("adamw", "reads the input"))
        self.assertEqual(self.rules(abar.torch.Muon(net))["4.weight"], ("adamw", "makes the output"))
        rules = self.rules(abar.torch.Muon(net, first=(), head="3", muon_skip="1.weight"))
        self.assertEqual(rules["0.weight"], ("muon", "hidden layer"))
        self.assertEqual(rules["1.weight"], ("adamw", "--muon-skip names it"))
        self.assertEqual(rules["3.weight"], ("adamw", "makes the output"))
        self.assertEqual(rules["4.weight"], ("muon", "hidden layer"))
        with self.assertRaisesRegex(ValueError, "head='9'"):
            abar.torch.Muon(net, head="9")

    def test_a_tied_head_is_left_to_adamw(self):
        net = Transformer()
        net.head.weight = net.embed.weight
        rules = self.rules(abar.torch.Muon(net))
        self.assertEqual(rules["embed.weight"][0], "adamw")
        self.assertEqual(rules["down.weight"], ("muon", "hidden layer"))

    def test_the_report_tells_rules_and_rates(self):
        optimizer = abar.torch.Muon(Transformer(), lr=0.02, aux_lr=1e-3)
        report = optimizer.report()
        for part in ("up.weight", "hidden layer", "makes the output", "0 dropped and 0 small blocks"):
            self.assertIn(part, report)
        infos = {p.name: p for p in optimizer.params}
        self.assertAlmostEqual(infos["up.weight"].lr, 0.02)
        self.assertAlmostEqual(infos["up.bias"].lr, 1e-3)
        self.assertAlmostEqual(infos["up.bias"].weight_decay, 0.01)
        self.assertEqual(infos["up.weight"].block_shape, (16, 8))

    def test_nothing_to_take_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "takes none of the parameters"):
            abar.torch.Muon(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)))

    def test_a_method_in_front_acts_on_what_muon_takes(self):
        for cls in (abar.torch.MAC, abar.torch.FOOF, abar.torch.KFAC):
            optimizer = cls(Transformer(), 0.02, rule="muon", tcov=1, tinv=1)
            names = [layer.name for layer in optimizer.layers if layer.preconditioned]
            self.assertEqual(names, ["up", "down"])


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(steps):
        x = torch.randint(11, (32, 6), generator=generator)
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), (x.flatten() * 3 + 1) % 11)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Runs(support.Case):
    MAKERS = {
        "muon": lambda m: abar.torch.Muon(m, 0.02, aux_lr=0.01, normuon=True),
        "mac": lambda m: abar.torch.MAC(m, 0.02, rule="muon", aux_lr=0.01, damping="trace:0.2"),
        "foof": lambda m: abar.torch.FOOF(m, 0.02, rule="muon", aux_lr=0.01, damping="trace:0.2"),
        "kfac": lambda m: abar.torch.KFAC(m, 0.02, rule="muon", aux_lr=0.01, betas=(0.9, 0.99)),
    }

    def test_losses_fall(self):
        for name, make in self.MAKERS.items():
            torch.manual_seed(1)
            model = Transformer()
            losses = train(model, make(model), 60)
            self.assertLess(losses[-1], 0.5 * losses[0], name)

    def test_state_dicts_go_on_bit_for_bit(self):
        for name, make in self.MAKERS.items():
            torch.manual_seed(1)
            model = Transformer()
            optimizer = make(model)
            train(model, optimizer, 7)
            other = Transformer()
            other.load_state_dict(model.state_dict())
            loaded = make(other)
            loaded.load_state_dict(optimizer.state_dict())
            self.assertEqual(loaded.skipped_steps, 0)
            train(model, optimizer, 7)
            train(other, loaded, 7)
            for a, b in zip(model.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a, b), name)

    def test_schedulers_change_both_rates(self):
        model = Transformer()
        optimizer = abar.torch.Muon(model, lr=0.02, aux_lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        train(model, optimizer, 1)
        scheduler.step()
        train(model, optimizer, 1)
        infos = {p.name: p for p in optimizer.params}
        self.assertAlmostEqual(infos["up.weight"].lr, 0.01)
        self.assertAlmostEqual(infos["up.bias"].lr, 5e-4)

    def test_momentum_can_be_changed(self):
        model = Transformer()
        optimizer = abar.torch.Muon(model, lr=0.02)
        optimizer.param_groups[0]["momentum"] = 0.85
        train(model, optimizer, 2)
        optimizer.param_groups[0]["momentum"] = 0.0
        with self.assertRaisesRegex(ValueError, "keeps other state"):
            train(model, optimizer, 1)


if __name__ == "__main__":
    support.main()
