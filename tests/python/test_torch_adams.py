"""NAdamW and Schedule-Free AdamW: against the float64 oracle, alone and behind a method; the weights that are tested; state."""

import support
from support import abar, torch

import adams
from torch import nn

CASES = {
    "nadamw": ({}, {"beta1": 0.5, "beta2": 0.9, "weight_decay": 0.5}),
    "sfadamw": ({}, {"warmup": 6}, {"beta1": 0.6, "sf-time-power": 0.5, "sf-rate-power": 1.0, "warmup": 3}),
}


def make_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 10), nn.LayerNorm(10), nn.Linear(10, 5))


def make(rule, model, s):
    named = {"lr": s["lr"], "betas": (s["beta1"], s["beta2"]), "eps": s["eps"], "weight_decay": s["weight_decay"]}
    if rule == "nadamw":
        return abar.torch.NAdamW(model, **named)
    return abar.torch.SFAdamW(model, **named, r=s["sf-time-power"], weight_lr_power=s["sf-rate-power"])


def train(model, optimizer, steps, oracle=(), rates=None, seed=7):
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    losses = []
    for k in range(steps):
        x = torch.randn(24, 2, 6, 6, generator=generator).to(dtype)
        y = (x[:, 0].sum((1, 2)) > 0).long() + 2 * (x[:, 1, 0, 0] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for rule, parameter in zip(oracle, model.parameters()):
            rule.step(parameter.grad.double().numpy().copy(), rates[k])
        if rates:
            for group in optimizer.param_groups:
                group["lr"] = rates[k]
        optimizer.step()
        losses.append(loss.item())
    return losses


def values(model):
    return [p.detach().clone() for p in model.parameters()]


class Oracle(support.Case):
    def near(self, model, expected, tolerance, what):
        for w, parameter in zip(expected, model.parameters()):
            found = parameter.detach().double().numpy()
            self.assertLess(abs(found - w).max(), tolerance * max(abs(w).max(), 1.0), what)

    def test_trained_and_tested_weights_are_the_oracles(self):
        for rule, cases in CASES.items():
            for changes in cases:
                for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
                    s = {**adams.DEFAULTS, **adams.OWN[rule], **changes}
                    model = make_net().to(dtype)
                    oracle = [adams.make(rule, p.detach().double().numpy(), s) for p in model.parameters()]
                    optimizer = make(rule, model, s)
                    train(model, optimizer, 12, oracle, adams.rates(s))
                    self.near(model, [o.w for o in oracle], tolerance, (rule, changes, dtype))
                    optimizer.eval()
                    self.near(model, [o.x for o in oracle], tolerance, (rule, changes, dtype, "tested"))


class Runs(support.Case):
    MAKERS = {
        "nadamw": lambda m: abar.torch.NAdamW(m, 0.01),
        "sfadamw": lambda m: abar.torch.SFAdamW(m, 0.02),
        "mac+sfadamw": lambda m: abar.torch.MAC(m, 0.02, rule="sfadamw"),
    }

    def test_losses_fall(self):
        for name, make_one in self.MAKERS.items():
            model = make_net()
            losses = train(model, make_one(model), 60)
            self.assertLess(sum(losses[-5:]), 0.8 * sum(losses[:5]), name)

    def test_state_dicts_go_on_bit_for_bit(self):
        for name, make_one in self.MAKERS.items():
            model, other = make_net(), make_net()
            optimizer = make_one(model)
            train(model, optimizer, 7, rates=[0.002 * (k + 1) for k in range(7)])
            other.load_state_dict(model.state_dict())
            loaded = make_one(other)
            loaded.load_state_dict(optimizer.state_dict())
            train(model, optimizer, 7)
            train(other, loaded, 7)
            for one in (optimizer, loaded):
                one.eval()
            for a, b in zip(model.parameters(), other.parameters()):
                self.assertTrue(torch.equal(a, b), name)

    def test_testing_leaves_no_trace(self):
        model, other = make_net(), make_net()
        a, b = self.MAKERS["sfadamw"](model), self.MAKERS["sfadamw"](other)
        for k in range(3):
            train(model, a, 4, seed=k)
            train(other, b, 4, seed=k)
            before = values(model)
            a.eval()
            a.eval()
            self.assertFalse(torch.equal(before[0], values(model)[0]))
            with self.assertRaisesRegex(RuntimeError, "call train"):
                a.step()
            with self.assertRaisesRegex(RuntimeError, "call train"):
                a.state_dict()
            a.train()
            a.train()
            for x, y, z in zip(before, values(model), values(other)):
                self.assertTrue(torch.equal(x, y) and torch.equal(x, z))

    def test_other_rules_test_what_they_train(self):
        model = make_net()
        optimizer = self.MAKERS["nadamw"](model)
        train(model, optimizer, 3)
        before = values(model)
        optimizer.eval()
        self.assertTrue(all(torch.equal(x, y) for x, y in zip(before, values(model))))
        optimizer.step()
        optimizer.train()

    def test_channels_last_parameters_are_averaged(self):
        model, other = make_net(), make_net().to(memory_format=torch.channels_last)
        a, b = self.MAKERS["sfadamw"](model), self.MAKERS["sfadamw"](other)
        for m, optimizer in ((model, a), (other, b)):
            train(m, optimizer, 5)
            optimizer.eval()
        for x, y in zip(values(model), values(other)):
            self.assertLess((x - y).abs().max(), 1e-5)

    def test_groups_have_their_own_rates(self):
        model = make_net()
        first, *rest = model.parameters()
        groups = [{"params": [first], "lr": 0.0}, {"params": rest, "lr": 0.01}]
        optimizer = abar.torch.SFAdamW(model, 0.01, params=groups)
        before = values(model)
        train(model, optimizer, 3)
        self.assertTrue(torch.equal(before[0], values(model)[0]))
        self.assertFalse(torch.equal(before[1], values(model)[1]))
        self.assertEqual([p.lr for p in optimizer.params][:2], [0.0, 0.01])

    def test_muon_on_the_hyperball_keeps_norms(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(72, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 5))
        optimizer = abar.torch.Muon(model, 0.05, weight_decay=0.0, hyperball=True)
        norm = model[3].weight.norm().item()
        train(model, optimizer, 5)
        self.assertAlmostEqual(model[3].weight.norm().item(), norm, delta=1e-4 * norm)
        with self.assertRaisesRegex(Exception, "hyperball"):
            abar.torch.Muon(model, 0.05, hyperball=True)


if __name__ == "__main__":
    support.main()
