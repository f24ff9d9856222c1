"""M-FAC and K-BFGS: against the float64 oracle, their state, and what becomes of steps that fail."""

import io

import support
from support import abar, np, torch

import kbfgs
from curvature import Ring
from curvature_rows import Layer
from torch import nn

LAYERS = [
    Layer("0", "conv", bias=True, kernel=(3, 3), pad=(1, 1), groups=2),
    Layer("3", "linear", bias=True),
    Layer("5", "linear"),
]


def make_net(dtype=torch.float64):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 5, bias=False)
    )
    return net.to(dtype)


def batch(k, dtype):
    draw = torch.Generator().manual_seed(100 + k)
    x = torch.randn(12, 2, 4, 4, generator=draw) + 0.3
    return x.to(dtype), (x[:, 0].sum((1, 2)) > 0).long() + 2 * (x[:, 1, 0, 0] > 0).long()


def closure_of(model, optimizer, k, spoil=None):
    """Evaluates the model; spoil: a call whose loss is not a number."""
    calls = [0]

    def closure():
        calls[0] += 1
        x, y = batch(k, next(model.parameters()).dtype)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if calls[0] == spoil:
            loss = loss * float("nan")
        loss.backward()
        return loss

    return closure


def train(model, optimizer, steps, first=0):
    losses = [optimizer.step(closure_of(model, optimizer, k)).item() for k in range(first, first + steps)]
    return losses


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


class Twin:
    """The network in float64, with the oracle's K-BFGS on it."""

    def __init__(self, **settings):
        self.model = make_net()
        named = {"w": "weight", "b": "bias"}
        self.names = {
            (layer.name, key): f"{layer.name}.{named[key]}" for layer in LAYERS for key in "wb" if key == "w" or layer.bias
        }
        params = dict(self.model.named_parameters())
        start = {at: params[name].detach().numpy().copy() for at, name in self.names.items()}
        options = {"damping": str(settings.pop("damping")), "stat-decay": "0.9"}
        options.update({key: str(settings.pop(key)) for key in ("kbfgs-pairs", "kbfgs-decay") if key in settings})
        self.method = kbfgs.Kbfgs(LAYERS, options, start, **settings)

    def look(self, k):
        """Gradients, and input and output gradient of every layer, at the oracle's weights."""
        modules, seen, params = dict(self.model.named_modules()), {}, dict(self.model.named_parameters())
        with torch.no_grad():
            for at, name in self.names.items():
                params[name].copy_(torch.as_tensor(self.method.weights[at]))
        handles = [
            modules[layer.name].register_forward_hook(
                lambda _module, inputs, output, name=layer.name: (output.retain_grad(), seen.update({name: (inputs[0], output)}))[2:]
                or None
            )
            for layer in LAYERS
        ]
        self.model.zero_grad()
        x, y = batch(k, torch.float64)
        nn.functional.cross_entropy(self.model(x), y).backward()
        for handle in handles:
            handle.remove()
        passes = {name: (a.detach().numpy(), z.grad.numpy()) for name, (a, z) in seen.items()}
        return {at: params[name].grad.numpy().copy() for at, name in self.names.items()}, passes

    def step(self, k):
        grads, first = self.look(k)
        assert self.method.step(grads, first, lambda: self.look(k)[1])


class Kbfgs(support.Case):
    def test_weights_are_the_oracles(self):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            for extra in ({}, {"kbfgs-pairs": 3}, {"kbfgs-decay": 0.0}):
                settings = {"damping": 0.3, "lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}
                twin, model = Twin(**settings, **extra), make_net(dtype)
                own = {"pairs": extra.get("kbfgs-pairs"), "difference_decay": extra.get("kbfgs-decay")}
                optimizer = abar.torch.KBFGS(model, **settings, **own)
                for k in range(20):
                    optimizer.step(closure_of(model, optimizer, k))
                    twin.step(k)
                params = dict(model.named_parameters())
                for at, name in twin.names.items():
                    found, right = params[name].detach().double().numpy(), twin.method.weights[at]
                    self.assertLess(np.linalg.norm(found - right), tolerance * np.linalg.norm(right), (dtype, extra, name))
                optimizer.close()

    def test_step_needs_a_closure(self):
        model = make_net()
        with self.assertRaisesRegex(TypeError, "closure"):
            abar.torch.KBFGS(model).step()

    def test_kbfgs_refuses_to_maximize(self):
        model = make_net()
        with self.assertRaisesRegex(ValueError, "cannot maximize.*return the negative loss"):
            abar.torch.KBFGS(model, maximize=True)
        optimizer = abar.torch.KBFGS(model)
        optimizer.param_groups[0]["maximize"] = True
        with self.assertRaisesRegex(ValueError, "cannot maximize"):
            optimizer.step(lambda: self.fail("the closure runs"))

    def test_step_whose_second_pass_fails_is_undone(self):
        model = make_net()
        optimizer = abar.torch.KBFGS(model, momentum=0.9)
        train(model, optimizer, 2)
        before, state = weights(model), optimizer.state_dict()
        optimizer.step(closure_of(model, optimizer, 2, spoil=2))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, weights(model))))
        self.assertEqual(optimizer.skipped_steps, 1)
        for mine, other in zip(state["state"].values(), optimizer.state_dict()["state"].values()):
            for key, value in mine.items():
                self.assertTrue(torch.allclose(value, other[key], 0.0, 0.0, equal_nan=True), key)
        train(model, optimizer, 2, first=3)
        self.assertEqual(optimizer.skipped_steps, 1)

    def test_first_pass_that_fails_makes_no_second(self):
        model = make_net()
        optimizer = abar.torch.KBFGS(model)
        before = weights(model)
        optimizer.step(closure_of(model, optimizer, 0, spoil=1))
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, weights(model))))
        train(model, optimizer, 2, first=1)

    def test_both_passes_have_the_same_dropout_and_one_set_of_running_statistics(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
        optimizer = abar.torch.KBFGS(model, lr=0.0)  # then both passes are the same
        x, y, losses = torch.randn(10, 8), torch.randint(3, (10,)), []

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            return loss

        for k in range(3):
            optimizer.step(closure)
            self.assertEqual(int(model[1].num_batches_tracked), k + 1)
        self.assertEqual(losses[::2], losses[1::2])
        self.assertNotEqual(losses[0], losses[2])

    def test_state_goes_on(self):
        resume(self, lambda model: abar.torch.KBFGS(model, pairs=4))
        resume(self, abar.torch.KBFGS)


def resume(case, make):
    model = make_net(torch.float32)
    optimizer = make(model)
    train(model, optimizer, 5)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    train(model, optimizer, 4, first=5)
    other = make_net(torch.float32)
    again = make(other)
    weights_then, state = torch.load(file)
    other.load_state_dict(weights_then)
    again.load_state_dict(state)
    train(other, again, 4, first=5)
    case.assertTrue(all(torch.equal(a, b) for a, b in zip(weights(model), weights(other))))


class Mfac(support.Case):
    def test_weights_are_the_oracles(self):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            model, twin = make_net(dtype), make_net()
            optimizer = abar.torch.MFAC(model, 0.02, damping=0.01, gradients=6, momentum=0.5, weight_decay=0.01)
            flat = nn.utils.parameters_to_vector(twin.parameters()).detach().numpy()
            ring = Ring(flat.size, {"damping": "0.01", "mfac-gradients": "6"})
            velocity = np.zeros_like(flat)
            for k in range(20):
                optimizer.step(closure_of(model, optimizer, k))
                nn.utils.vector_to_parameters(torch.as_tensor(flat.copy()), twin.parameters())
                closure_of(twin, twin, k)()
                grad = nn.utils.parameters_to_vector([p.grad for p in twin.parameters()]).numpy()
                velocity = 0.5 * velocity + ring.product(grad + 0.01 * flat)
                flat = flat - 0.02 * velocity
            found = nn.utils.parameters_to_vector(model.parameters()).detach().double().numpy()
            self.assertLess(np.linalg.norm(found - flat), tolerance * np.linalg.norm(flat), dtype)

    def test_state_goes_on(self):
        resume(self, lambda model: abar.torch.MFAC(model, gradients=3))
        resume(self, lambda model: abar.torch.MFAC(model, gradients=3, scope="layer", precision="bf16", momentum=0.9))

    def test_report_says_what_it_keeps(self):
        model = make_net(torch.float32)
        optimizer = abar.torch.MFAC(model, gradients=4)
        train(model, optimizer, 3)
        count = sum(p.numel() for p in model.parameters())
        self.assertGreaterEqual(optimizer._engine.state_bytes(), 4 * 4 * count)
        self.assertIn("MFAC on sgd", optimizer.report())


if __name__ == "__main__":
    support.main()
