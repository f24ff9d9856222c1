"""SOAP: against the float64 oracle, alone and behind a method, and its state."""

import support
from support import abar, torch

import soap
from torch import nn

# Rotated sides are at most as long as the rest of their tensor: the null space of a first gradient has no basis in particular.
SETTINGS = {**soap.DEFAULTS, "lr": 0.02, "eps": 1e-3, "max-dim": 6, "soap-freq": 2, "weight_decay": 0.1}
REPLACED = (  # what the step ends in
    {"cautious": "true", "weight_decay": 0.5},
    {"soap-factors": "kl", "hyperball": "true", "correct-bias": "false", "weight_decay": 0.0},
)


def make_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 8), nn.LayerNorm(8), nn.Linear(8, 8))


def train(model, optimizer, steps, oracle=None):
    generator = torch.Generator().manual_seed(7)
    dtype = next(model.parameters()).dtype
    losses = []
    for _ in range(steps):
        x = torch.randn(24, 2, 6, 6, generator=generator).to(dtype)
        y = (x[:, 0].sum((1, 2)) > 0).long() + 2 * (x[:, 1, 0, 0] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for rule, parameter in zip(oracle or [], model.parameters()):
            rule.step(parameter.grad.double().numpy().copy())
        optimizer.step()
        losses.append(loss.item())
    return losses


def make(model, **changes):
    s = {**SETTINGS, **changes}
    return abar.torch.Soap(
        model,
        s["lr"],
        (s["beta1"], s["beta2"]),
        s["eps"],
        s["weight_decay"],
        shampoo_beta=s["shampoo-beta"],
        freq=s["soap-freq"],
        max_dim=s["max-dim"],
        normalize=s["normalize"] == "true",
        correct_bias=s["correct-bias"] == "true",
        factors=s["soap-factors"],
        cautious=s["cautious"] == "true",
        hyperball=s["hyperball"] == "true",
    )


class Oracle(support.Case):
    def test_weights_are_the_oracles(self):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            for changes in ({}, {"max-dim": 0}, {"normalize": "true", "correct-bias": "false"}, {"soap-factors": "kl"}, *REPLACED):
                model = make_net().to(dtype)
                rules = [soap.Soap(p.detach().double().numpy(), {**SETTINGS, **changes}) for p in model.parameters()]
                train(model, make(model, **changes), 8, rules)
                for rule, parameter in zip(rules, model.parameters()):
                    found = parameter.detach().double().numpy().reshape(rule.w.shape)
                    self.assertLess(abs(found - rule.w).max(), tolerance * max(abs(rule.w).max(), 1.0), (dtype, changes))

    def test_first_step_moves_nothing(self):
        model = make_net()
        before = [p.detach().clone() for p in model.parameters()]
        train(model, make(model), 1)
        for a, b in zip(before, model.parameters()):
            self.assertTrue(torch.equal(a, b))


class Runs(support.Case):
    MAKERS = {
        "soap": lambda m: abar.torch.Soap(m, 0.01, freq=3),
        "kl": lambda m: abar.torch.Soap(m, 0.01, freq=3, factors="kl"),
        "mac": lambda m: abar.torch.MAC(m, 0.01, rule="soap", soap_freq=3),
    }

    def test_losses_fall(self):
        for name, make_one in self.MAKERS.items():
            model = make_net()
            losses = train(model, make_one(model), 60)
            self.assertLess(sum(losses[-5:]), 0.7 * sum(losses[:5]), name)

    def test_state_dicts_go_on_bit_for_bit(self):
        for name, make_one in self.MAKERS.items():
            model = make_net()
            optimizer = make_one(model)
            train(model, optimizer, 7)
            other = make_net()
            other.load_state_dict(model.state_dict())
            loaded = make_one(other)
            loaded.load_state_dict(optimizer.state_dict())
            train(model, optimizer, 7)
            train(other, loaded, 7)
            for a, b in zip(model.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a, b), name)

    def test_report_tells_the_rule(self):
        optimizer = self.MAKERS["soap"](make_net())
        self.assertEqual({p.rule for p in optimizer.params}, {"soap"})


if __name__ == "__main__":
    support.main()
