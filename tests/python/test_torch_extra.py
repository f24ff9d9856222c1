"""Passes beside that of the batch (AdaHessian, Sophia), and methods in front of torch's own optimizers."""

import copy
import itertools
import pickle

import numpy as np

import support
from support import CLASSES, OFTEN, TELLING, Case, abar, batch, loss_of, make, make_net, rate, torch, train, weights_of

from torch import nn


class AdaHessian(Case):
    def test_on_a_diagonal_quadratic_is_its_formula(self):
        """L = sum(c w^2) / 2: |Hz| is c, whatever the signs."""
        for every, power, decay in ((1, 1.0, 0.0), (3, 0.5, 0.1)):
            with self.subTest(every=every):
                torch.manual_seed(0)
                model = nn.Linear(5, 3).double()
                params = list(model.parameters())
                scales = [torch.rand_like(p) + 0.5 for p in params]
                w, c = [p.detach().numpy().copy() for p in params], [s.numpy() for s in scales]
                options = dict(betas=(0.8, 0.9), eps=1e-3, weight_decay=decay)
                optimizer = abar.torch.AdaHessian(model, 0.05, hessian_every=every, hessian_power=power, **options)

                def closure():
                    optimizer.zero_grad()
                    loss = sum((s * p * p).sum() for s, p in zip(scales, params)) / 2
                    loss.backward(create_graph=True)
                    return loss

                m, v = [np.zeros_like(x) for x in w], [np.zeros_like(x) for x in w]
                for t in range(1, 8):
                    optimizer.step(closure)
                    for i in range(len(w)):
                        m[i] = 0.8 * m[i] + 0.2 * c[i] * w[i]
                        v[i] = 0.9 * v[i] + 0.1 * c[i] ** 2
                        root = (np.sqrt(v[i]) / np.sqrt(1 - 0.9**t)) ** power + 1e-3
                        w[i] = w[i] - 0.05 * (m[i] / (1 - 0.8**t) / root + decay * w[i])
                    for p, expected in zip(params, w):
                        self.assert_close(p, expected, 1e-9, f"step {t}")
                        self.assertIsNone(p.grad.grad_fn)

    def test_channels_last_weights_take_the_same_steps(self):
        """They are copied back and forth while the graph of the first pass still needs them."""
        ends = []
        for form in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(2)
            model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(32, 4)).double()
            model = model.to(memory_format=form)
            optimizer = abar.torch.AdaHessian(model, 0.02)
            for k in range(3):

                def closure():
                    optimizer.zero_grad()
                    loss = loss_of(model, batch(k))
                    loss.backward(create_graph=True)
                    return loss

                optimizer.step(closure)
            ends.append(weights_of(model))
        for name in ends[0]:
            self.assert_close(ends[0][name], ends[1][name], 1e-9, name)

    def test_takes_products_with_signs(self):
        """The first D of a net with a full Hessian is |Hz| for one of all vectors of signs."""
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Tanh(), nn.Linear(1, 2, bias=False)).double()
        params = list(model.parameters())
        x, y = torch.randn(6, 2).double(), torch.randn(6, 2).double()
        loss = lambda: (model(x) - y).square().mean()  # noqa: E731
        grads = torch.autograd.grad(loss(), params, create_graph=True)
        flat = torch.cat([g.reshape(-1) for g in grads])
        rows = [torch.cat([h.reshape(-1) for h in torch.autograd.grad(e, params, retain_graph=True)]) for e in flat]
        hessian = torch.stack(rows)
        optimizer = abar.torch.AdaHessian(model, 0.0, betas=(0.9, 0.5))

        def closure():
            optimizer.zero_grad()
            value = loss()
            value.backward(create_graph=True)
            return value

        optimizer.step(closure)
        state = [optimizer.state[p] for p in params]
        key = next(k for k in state[0] if all(bool((s[k] >= 0).all()) for s in state) and bool((state[0][k] > 0).any()))
        found = torch.cat([s[key].reshape(-1) for s in state])
        products = [hessian @ torch.tensor(z).double() for z in itertools.product((1.0, -1.0), repeat=len(flat))]
        likely = [p.abs() for p in products] + [p.square() / 2 for p in products]  # D, or v after one step
        self.assertLess(min(float((found - p).norm() / p.norm()) for p in likely), 1e-9)

    def test_without_a_closure_or_a_graph_is_refused(self):
        model = make_net()
        optimizer = abar.torch.AdaHessian(model)
        with self.assertRaisesRegex(TypeError, "closure"):
            optimizer.step()

        def closure():
            loss = loss_of(model, batch(0))
            loss.backward()
            return loss

        with self.assertRaisesRegex(RuntimeError, "create_graph=True"):
            optimizer.step(closure)

    def test_trains_and_resumes_to_the_bit(self):
        def run(model, optimizer, first, last):
            for k in range(first, last):

                def closure():
                    optimizer.zero_grad()
                    loss = loss_of(model, batch(k))
                    loss.backward(create_graph=True)
                    return loss

                optimizer.step(closure)

        model, other = make_net(), make_net(seed=1)
        optimizer, second = abar.torch.AdaHessian(model, 0.01), abar.torch.AdaHessian(other, 0.01)
        run(model, optimizer, 0, 3)
        other.load_state_dict(model.state_dict())
        second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        run(model, optimizer, 3, 6)
        run(other, second, 3, 6)
        self.assert_same(weights_of(other), weights_of(model))


class Sophia(Case):
    def test_is_its_formula(self):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).double()
        params = list(model.parameters())
        w = [p.detach().numpy().copy() for p in params]
        m, h = [np.zeros_like(x) for x in w], [np.zeros_like(x) for x in w]
        draw = np.random.default_rng(0)
        optimizer = abar.torch.Sophia(model, 0.01, (0.8, 0.5), rho=2.0, weight_decay=0.1, terms=7, hessian_every=2)
        for k in range(7):
            grads, drawn = [draw.standard_normal(x.shape) for x in w], [draw.standard_normal(x.shape) for x in w]
            for p, g in zip(params, grads):
                p.grad = torch.tensor(g)

            def sampled():
                sum((torch.tensor(e) * p).sum() for e, p in zip(drawn, params)).backward()

            optimizer.step(sampled=sampled)
            for i in range(len(w)):
                m[i] = 0.8 * m[i] + 0.2 * grads[i]
                w[i] = (1 - 0.001) * w[i] - 0.01 * np.sign(m[i]) * np.minimum(np.abs(m[i]) / (2.0 * 7 * h[i] + 1e-15), 1)
                if k % 2 == 1:
                    h[i] = 0.5 * h[i] + 0.5 * drawn[i] ** 2
                self.assert_close(params[i], w[i], 1e-12, f"step {k}")
                self.assertTrue(np.array_equal(params[i].grad, grads[i]), "the batch's own gradient stays")

    def test_without_a_sampled_pass_is_refused(self):
        with self.assertRaisesRegex(TypeError, "sampled"):
            abar.torch.Sophia(make_net(), terms=8).step()

    def test_labels_are_drawn_from_the_softmax(self):
        torch.manual_seed(0)
        logits = torch.tensor([0.0, 1.0, 2.0]).expand(4000, 5, 3)
        drawn = abar.torch.draw_labels(logits)
        self.assertEqual(drawn.shape, (4000, 5))
        shares = torch.bincount(drawn.reshape(-1), minlength=3).double() / drawn.numel()
        self.assert_close(shares, torch.softmax(logits[0, 0].double(), 0), 0.05)  # 20000 draws: ten standard deviations


class InFront(Case):
    def check(self, method, theirs, ours, dtype=torch.float64, tolerance=1e-9):
        one, other = make_net().to(dtype), make_net().to(dtype)
        options = {**TELLING[method], **OFTEN}
        optimizer = abar.torch.precondition(theirs(one), one, method, **options)
        train(one, optimizer, 7)
        train(other, CLASSES[method](other, **options, **ours), 7)
        start = make_net().to(dtype)
        moved = lambda m: {n: p.detach() - dict(start.named_parameters())[n].detach() for n, p in m.named_parameters()}  # noqa: E731
        self.assert_all_close(moved(one), moved(other), tolerance, method)

    def test_of_torchs_sgd_is_the_librarys_own_rule(self):
        for method in CLASSES:
            with self.subTest(method):
                lr = rate(method)
                make_sgd = lambda m: torch.optim.SGD(m.parameters(), lr, momentum=0.9, weight_decay=0.01)  # noqa: E731
                self.check(method, make_sgd, dict(lr=lr, momentum=0.9, weight_decay=0.01))

    def test_of_torchs_adamw_is_the_librarys_own_rule(self):
        for method in ("mac", "foof", "kfac"):
            with self.subTest(method):
                make_adamw = lambda m: torch.optim.AdamW(m.parameters(), 1e-3, weight_decay=0.1)  # noqa: E731
                self.check(method, make_adamw, dict(lr=1e-3, rule="adamw", weight_decay=0.1), tolerance=1e-7)

    @support.unittest.skipUnless(hasattr(torch.optim, "Muon"), "this PyTorch has no Muon")
    def test_of_torchs_muon(self):
        """On the matrices alone, beside an optimizer for the rest; Muon's step is that of the preconditioned gradients."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        twin = copy.deepcopy(model)
        matrices = lambda m: [p for p in m.parameters() if p.dim() == 2]  # noqa: E731
        optimizer = abar.torch.precondition(torch.optim.Muon(matrices(model), 0.01), model, "mac", damping=0.1, **OFTEN)
        muon = torch.optim.Muon(matrices(twin), 0.01)
        x, y = torch.randn(8, 6) + 1.0, torch.randint(4, (8,))
        for k in range(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            plain = [p.grad.clone() for p in matrices(model)]
            optimizer.step()
            self.assertFalse(torch.equal(plain[0], matrices(model)[0].grad))
            for p, q in zip(matrices(model), matrices(twin)):
                q.grad = p.grad.clone()
            muon.step()
        self.assert_same(weights_of(model), weights_of(twin))

    def test_state_dict_goes_on_to_the_bit(self):
        def start():
            model = make_net()
            adamw = torch.optim.AdamW(model.parameters(), 1e-3)
            return model, abar.torch.precondition(adamw, model, "kfac", **TELLING["kfac"], **OFTEN)

        (model, optimizer), (other, second) = start(), start()
        train(model, optimizer, 5)
        other.load_state_dict(model.state_dict())
        second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, second)]
        for scheduler in schedulers:
            scheduler.step()
        train(model, optimizer, 4, first=5)
        train(other, second, 4, first=5)
        self.assert_same(weights_of(other), weights_of(model))

    def test_copies_and_pickles_go_on_the_same(self):
        for copied in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
            model = make_net()
            optimizer = abar.torch.precondition(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model, **OFTEN)
            train(model, optimizer, 3)
            other, theirs = copied((model, optimizer))
            train(model, optimizer, 3, first=3)
            train(other, theirs, 3, first=3)
            self.assert_same(weights_of(model), weights_of(other))

    def test_follows_settings_that_a_group_gets_later(self):
        ends = []
        for chosen in ({}, {"damping": 50.0}):
            model, other = make_net(), make_net()
            optimizer = abar.torch.precondition(torch.optim.SGD(model.parameters(), 0.1), model, **OFTEN)
            direct = abar.torch.MAC(other, 0.1, momentum=0.0, **OFTEN)
            for one in (optimizer, direct):
                one.param_groups[0].update(chosen)
            train(model, optimizer, 3)
            train(other, direct, 3)
            self.assert_all_close(weights_of(model), weights_of(other), 1e-6)
            ends.append(weights_of(model))
        self.assert_differ(*ends, 1e-4)

    def test_a_gradient_that_is_not_finite_skips_the_step(self):
        model = make_net()
        optimizer = abar.torch.precondition(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)
        train(model, optimizer, 2)
        before = weights_of(model)
        loss_of(model, batch(2)).backward()
        model.gain.grad[0] = float("nan")
        optimizer.step()
        self.assert_same(weights_of(model), before)

    def test_unknown_methods_are_refused(self):
        model = make_net()
        with self.assertRaisesRegex(ValueError, "mfac"):
            abar.torch.precondition(torch.optim.SGD(model.parameters(), 0.1), model, "mfac")


if __name__ == "__main__":
    support.main()
