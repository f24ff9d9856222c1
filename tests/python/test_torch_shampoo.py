"""Shampoo: against the float64 oracle, alone and behind a method, its blocks and its state."""

import support
from support import abar, torch

import shampoo
from torch import nn

SETTINGS = {**shampoo.DEFAULTS, "shampoo-block": 16, "shampoo-beta": 0.9, "shampoo-eps": 1e-2, "graft": "adam", "weight_decay": 0.1}


def make_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 10), nn.LayerNorm(10), nn.Linear(10, 5))


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
    return abar.torch.Shampoo(
        model,
        s["lr"],
        (s["beta1"], s["shampoo-beta"]),
        s["shampoo-eps"],
        s["weight_decay"],
        block=s["shampoo-block"],
        freq=s["shampoo-freq"],
        start=s["shampoo-start"],
        graft=s["graft"],
        graft_eps=s["graft-eps"],
    )


class Oracle(support.Case):
    def test_weights_are_the_oracles(self):
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            for changes in ({}, {"graft": "none", "shampoo-block": 40}, {"shampoo-freq": 3, "shampoo-start": 2}):
                model = make_net().to(dtype)
                rules = [shampoo.Shampoo(p.detach().double().numpy(), {**SETTINGS, **changes}) for p in model.parameters()]
                train(model, make(model, **changes), 8, rules)
                for rule, parameter in zip(rules, model.parameters()):
                    found = parameter.detach().double().numpy().reshape(rule.w.shape)
                    self.assertLess(abs(found - rule.w).max(), tolerance * max(abs(rule.w).max(), 1.0), (dtype, changes))


class Runs(support.Case):
    MAKERS = {
        "shampoo": lambda m: abar.torch.Shampoo(m, 0.02, (0.9, 0.99), 1e-6, graft="adam", freq=5, block=32),
        "mac": lambda m: abar.torch.MAC(m, 0.02, rule="shampoo", graft="adam", shampoo_freq=5, shampoo_eps=1e-6),
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
        optimizer = self.MAKERS["shampoo"](make_net())
        self.assertEqual({p.rule for p in optimizer.params}, {"shampoo"})


if __name__ == "__main__":
    support.main()
