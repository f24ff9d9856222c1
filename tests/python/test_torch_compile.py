"""Compiled models: no graph break on any step, statistics on every step that is due, plain steps as they are without the
optimizer, and the steps of the model as it is."""

import copy

import support
from support import Case, abar, batch, make, make_net, torch, train, weights_of

import models

if support.TORCH < (2, 4):
    support.give_up(f"PyTorch {torch.__version__} has no custom operators for torch.compile, 2.4 has")

from torch._dynamo.backends.debugging import aot_eager


class Counting:
    """A backend that keeps the graphs it is given."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append(graph.print_readable(print_output=False))
        return aot_eager(graph, inputs)

    def plain(self):
        return [graph for graph in self.graphs if "ops.abar." not in graph]  # a path may have the name, too


def compiled(model, backend=None):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend or aot_eager, fullgraph=True)


def commits(optimizer):
    return {row.name: row.commits for row in optimizer.layers if row.preconditioned}


class Compiled(Case):
    def test_straight_line_has_one_graph_for_each_kind_of_step(self):
        model, backend = make_net(), Counting()
        net = compiled(model, backend)
        train(net, make("smac", model, tcov=3), 7)
        self.assertEqual((len(backend.graphs), len(backend.plain())), (2, 1))

    def test_plain_steps_have_the_graph_they_have_without_the_optimizer(self):
        graphs = []
        for mine in (True, False):
            model, backend = make_net(), Counting()
            optimizer = make("mac", model, tcov=3) if mine else torch.optim.SGD(model.parameters(), 0.05)
            train(compiled(model, backend), optimizer, 3)
            graphs += backend.plain()
        self.assertEqual(len(graphs), 2)
        self.assertEqual(graphs[0], graphs[1])

    def test_two_hundred_steps_have_the_commits_and_weights_of_the_model_as_it_is(self):
        found = []
        for wrap in (compiled, lambda model: model):
            model = make_net().double()
            optimizer = make("mac", model, tcov=5, tinv=10, lr=0.01)
            train(wrap(model), optimizer, 200)
            found.append((commits(optimizer), weights_of(model)))
            optimizer.close()
        self.assertEqual(found[0][0], found[1][0])
        self.assertEqual(set(found[0][0].values()), {40})
        self.assert_all_close(found[0][1], found[1][1], 1e-6)

    def test_resumed_at_a_step_without_statistics_goes_on_equally(self):
        """The first compiled step takes no statistics; those that do come later."""
        model = make_net().double()
        optimizer = make("smac", model, tcov=5, tinv=5)
        train(model, optimizer, 7)
        state = copy.deepcopy(optimizer.state_dict())
        other = copy.deepcopy(model)
        train(model, optimizer, 10, first=7)
        optimizer.close()
        resumed = make("smac", other, tcov=5, tinv=5)
        resumed.load_state_dict(state)
        train(compiled(other), resumed, 10, first=7)
        self.assertEqual(commits(resumed), commits(optimizer_of(model, state, 10)))
        self.assert_all_close(weights_of(other), weights_of(model), 1e-9)

    def test_by_inductor_is_the_model_as_it_is(self):
        weights = []
        for wrap in (lambda model: compiled(model, "inductor"), lambda model: model):
            model = make_net()
            optimizer = make("smac", model, tcov=2)
            train(wrap(model), optimizer, 5)
            weights.append(weights_of(model))
            optimizer.close()
        self.assert_all_close(weights[0], weights[1], 1e-4)

    def test_discarded_passes_leave_no_trace(self):
        weights = []
        for disturb in (True, False):
            model = make_net().double()
            optimizer = make("smac", model, tcov=1)
            net = compiled(model)
            for k in range(3):
                if disturb:
                    x = batch(50 + k)[0].double().requires_grad_()
                    torch.autograd.grad(net(x).square().sum(), x)
                train(net, optimizer, 1, first=k)
            weights.append(weights_of(model))
            optimizer.close()
        self.assert_all_close(weights[0], weights[1], 1e-12)

    def check_attention(self, make_model, loss, backend=None):
        weights = []
        for wrap in (lambda model: compiled(model, backend), lambda model: model):
            torch.manual_seed(0)
            model = make_model().double().train()
            optimizer = abar.torch.MAC(model, lr=0.01, damping=0.1, tcov=2, tinv=2)
            net = wrap(model)
            for k in range(4):
                value = loss(net, k)
                optimizer.zero_grad()  # between forward and backward, as many loops have it
                value.backward()
                optimizer.step()
            self.assertGreater(len([layer for layer in optimizer._layers if layer.values]), 1)
            weights.append(weights_of(model))
            optimizer.close()
        self.assert_all_close(weights[0], weights[1], 1e-7)

    def test_attention_of_torch(self):
        self.check_attention(*models.all_models()[0]["nn.TransformerEncoder"])

    def test_attention_of_others(self):
        found, missing = models.all_models()
        for name in ("timm ViT", "HF GPT-2"):
            if name in found:
                with self.subTest(name):
                    self.check_attention(*found[name])
        if missing:
            self.skipTest("; ".join(missing))


def optimizer_of(model, state, steps):
    """The counts that a state has after so many further steps of the model as it is."""
    other = make_net().double()
    optimizer = make("smac", other, tcov=5, tinv=5)
    optimizer.load_state_dict(state)
    train(other, optimizer, steps, first=7)
    return optimizer


if __name__ == "__main__":
    support.main()
