"""Which passes count: those whose gradients are in .grad at the step, each once, and no others."""

import copy

import support
from support import Case, F, abar, batch, loss_of, make, make_net, torch, train, weights_of

from torch import nn


class Discarded(Case):
    """Beside a plain run, something that leaves no gradients. Not a bit may differ."""

    def check(self, disturb, method="smac", **options):
        runs = []
        for disturbed in (True, False):
            model = make_net()
            optimizer = make(method, model, tcov=1, **options)
            for k in range(3):
                optimizer.zero_grad()
                if disturbed:
                    disturb(model, k)
                loss_of(model, batch(k)).backward()
                optimizer.step()
            runs.append(weights_of(model))
            optimizer.close()
        self.assert_same(*runs)

    def test_adversarial_example_by_autograd_grad(self):
        def disturb(model, k):
            x = batch(50 + k)[0].requires_grad_()
            torch.autograd.grad(model(x).square().sum(), x)

        for method in ("mac", "smac", "kfac"):
            with self.subTest(method):
                self.check(disturb, method)

    def test_gradients_of_the_weights_by_autograd_grad(self):
        def disturb(model, k):
            torch.autograd.grad(loss_of(model, batch(50 + k)), list(model.parameters()))

        self.check(disturb)

    def test_gradients_that_the_model_drops(self):
        """model.zero_grad() knows nothing of the optimizer. To None, and to zero."""
        for to_none in (True, False):
            with self.subTest(to_none=to_none):

                def disturb(model, k):
                    loss_of(model, batch(50 + k)).backward()
                    model.zero_grad(set_to_none=to_none)

                self.check(disturb)

    def test_gradients_of_one_layer_that_are_dropped(self):
        """The others keep theirs, and their statistics: those of two batches."""
        runs = []
        for dropped in (True, False):
            model = make_net()
            optimizer = make("mac", model, tcov=1)
            if not dropped:
                model.stem.requires_grad_(False)
            loss_of(model, batch(50)).backward()
            model.stem.requires_grad_(True)
            if dropped:
                model.stem.zero_grad(set_to_none=True)
            loss_of(model, batch(0)).backward()
            optimizer.step()
            runs.append(weights_of(model))
            optimizer.close()
        self.assert_all_close(*runs, 1e-6)

    def test_forward_passes_without_a_backward(self):
        self.check(lambda model, k: (model(batch(50 + k)[0]), model.eval()(batch(60 + k)[0]), model.train()))

    def test_copies_of_the_model(self):
        def disturb(model, k):
            loss_of(copy.deepcopy(model), batch(50 + k)).backward()

        self.check(disturb)


class Counted(Case):
    def test_a_pass_in_eval_mode_that_adds_to_the_gradients(self):
        """As for a network whose batch norms are frozen: dropout and norms aside, it is a pass like any other."""
        runs = []
        for training in (True, False):
            model = make_net()
            optimizer = make("smac", model)
            train(model.train(training), optimizer, 3)
            runs.append(weights_of(model))
        self.assert_same(*runs)

    def test_a_gradient_penalty(self):
        """Double backward: the map's own rows, once, with the gradient of the whole loss."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        x = (torch.randn(6, 4) + 1).double().requires_grad_()
        optimizer = abar.torch.MAC(model, lr=1.0, momentum=0.0, damping=0.1)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.square().mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        g = torch.cat([model[0].weight.grad, model[0].bias.grad[:, None]], 1)
        a = torch.cat([x.detach().mean(0), torch.ones(1)])
        expected = g - torch.outer(g @ a, a) / (0.1 + a @ a)
        self.assert_close(support.taken_step(model, optimizer)["0.weight"], expected[:, :-1], 1e-12)

    def test_a_graph_that_is_kept_counts_once(self):
        """Two losses on one forward pass: MAC's rows are those of one; methods that read output gradients refuse."""
        model, other = make_net(), make_net()
        for net, twice in ((model, True), (other, False)):
            optimizer = make("mac", net, lr=0.5)
            out = net(batch(0)[0])
            parts = [0.25 * out.square().sum(), 0.5 * out.sum()]
            if twice:
                parts[0].backward(retain_graph=True)
                parts[1].backward()
            else:
                sum(parts).backward()
            optimizer.step()
            optimizer.close()
        self.assert_all_close(weights_of(model), weights_of(other), 1e-5)
        optimizer = make("smac", model)
        loss = loss_of(model, batch(0))
        loss.backward(retain_graph=True)
        with self.assertRaisesRegex(RuntimeError, "(?s)twice.*skip="):
            loss.backward()
        optimizer.close()


@support.unittest.skipUnless(hasattr(torch, "func"), "this PyTorch has no torch.func")
class Functional(Case):
    def test_gradients_of_torch_func_are_refused(self):
        model = make_net()
        optimizer = make("mac", model)
        params = dict(model.named_parameters())
        x, y = batch(0)
        grads = torch.func.grad(lambda p: F.cross_entropy(torch.func.functional_call(model, p, (x,)), y))(params)
        for name, p in params.items():
            p.grad = grads[name].detach()
        with self.assertRaisesRegex(RuntimeError, "torch.func"):
            optimizer.step()
        optimizer.close()

    def test_a_pass_through_vmap_is_refused(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = make("mac", model)
        torch.vmap(model)(torch.randn(5, 3)).square().sum().backward()
        with self.assertRaisesRegex(RuntimeError, "(?s)vmap.*skip="):
            optimizer.step()
        optimizer.close()

    def test_torch_func_beside_the_training_is_no_matter(self):
        """Norms of single examples' gradients are looked at, and the step is a plain one."""
        runs = []
        for disturbed in (True, False):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
            optimizer = make("smac", model, tcov=1)
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)) + 1
            for _ in range(3):
                optimizer.zero_grad()
                if disturbed:
                    params = {name: p.detach() for name, p in model.named_parameters()}
                    single = torch.func.grad(lambda p, one: torch.func.functional_call(model, p, (one,)).square().sum())
                    torch.func.vmap(single, (None, 0))(params, x)
                model(x).square().mean().backward()
                optimizer.step()
            runs.append(weights_of(model))
            optimizer.close()
        self.assert_same(*runs)


if __name__ == "__main__":
    support.main()
