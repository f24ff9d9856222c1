"""Using abar.torch, rightly and wrongly: hooks come and go, reports tell, wrappers work or are refused, mistakes get
one clear exception."""

import copy
import gc
import gzip
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from xml.etree import ElementTree

import support
from support import CLASSES, Case, F, abar, batch, loss_of, make, make_net, torch, train, weights_of

from torch import nn


def hooks_on(model):
    """Hooks of modules and of parameters."""
    modules = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    return modules + sum(len(p._backward_hooks or ()) for p in model.parameters())


def is_looking():
    """Whether calls of torch's functions are looked at."""
    return torch._C._len_torch_function_stack() > 0


class Hooks(Case):
    def test_are_there_only_while_a_step_takes_statistics(self):
        model = make_net()
        optimizer = make("mac", model, tcov=3)
        for k in range(7):
            expected = k % 3 == 0
            self.assertEqual((hooks_on(model) > 0, is_looking()), (expected, expected), f"step {k}")
            optimizer.zero_grad()
            loss = loss_of(model, batch(k))
            self.assertEqual((hooks_on(model) > 0, is_looking()), (expected, expected), f"step {k}, after forward")
            loss.backward()
            optimizer.step()
        optimizer.close()

    def test_can_be_removed_for_good(self):
        model = make_net()
        optimizer = make("mac", model, tcov=1)
        train(model, optimizer, 2)
        optimizer.remove_hooks()
        self.assertEqual((hooks_on(model), is_looking()), (0, False))
        train(model, optimizer, 2, first=2)
        self.assertEqual((hooks_on(model), is_looking()), (0, False))
        self.assertTrue(all(torch.isfinite(p).all() for p in model.parameters()))

    def test_go_with_the_optimizer(self):
        model = make_net()
        optimizer = make("mac", model)
        self.assertGreater(hooks_on(model), 0)
        optimizer.close()
        optimizer.close()
        self.assertEqual((hooks_on(model), is_looking()), (0, False))
        with self.assertRaisesRegex(RuntimeError, "(?i)closed"):
            train(model, optimizer, 1)
        second = make("mac", model)
        train(model, second, 2)
        del second, optimizer
        gc.collect()
        self.assertEqual((hooks_on(model), is_looking()), (0, False))

    def test_leave_modes_of_others_as_they_were(self):
        """An optimizer is made and steps inside a with statement of someone else's mode, and goes on behind it."""

        class Counting(torch.overrides.TorchFunctionMode):
            count = 0

            def __torch_function__(self, func, types, args=(), kwargs=None):
                self.count += 1
                return func(*args, **(kwargs or {}))

        mine, plain = make_net(), make_net()
        with Counting() as mode:
            optimizer = make("mac", mine, tcov=1)
            train(mine, optimizer, 2)
        count = mode.count
        self.assertGreater(count, 0)
        train(mine, optimizer, 2, first=2)
        self.assertEqual(mode.count, count, "the mode of the with statement stayed")
        optimizer.close()
        self.assertFalse(is_looking())
        train(plain, make("mac", plain, tcov=1), 4)
        self.assert_same(weights_of(mine), weights_of(plain))

    def test_leave_other_hooks_alone(self):
        seen = []
        model = make_net()
        model.stem.register_forward_hook(lambda *_: seen.append("mine"))
        optimizer = make("mac", model)
        train(model, optimizer, 3)
        optimizer.close()
        model(batch(0)[0])
        self.assertEqual(len(seen), 4)

    def test_survive_copies_of_the_model(self):
        """Averages of weights are deep copies, whole models are pickled: neither drags the optimizer along."""
        model = make_net()
        optimizer = make("mac", model)
        twin = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        plain = make_net()
        second = make("mac", plain)
        for k in range(5):
            loss_of(twin, batch(90 + k)).backward()  # must not be observed
            train(model, optimizer, 1, first=k)
            train(plain, second, 1, first=k)
        self.assert_same(weights_of(model), weights_of(plain))


class Report(Case):
    def test_names_every_layer_and_what_becomes_of_it(self):
        model = nn.Sequential()
        model.add_module("body", make_net())
        model.body.lonely = nn.Conv1d(2, 3, 1)
        model.body.stem.weight.requires_grad_(False)
        optimizer = make("mac", model, skip=("body.head.*",))
        text = optimizer.report()
        self.assertIsInstance(text, str)
        lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
        for name in ("body.stem", "body.grouped", "body.depthwise", "body.token", "body.head.0", "body.head.2"):
            self.assertIn(name, lines)
        self.assertRegex(lines["body.head.0"], "(?i)skip")
        self.assertRegex(lines["body.stem"], "(?i)frozen")
        self.assertIn("body.lonely", lines)
        self.assertRegex(lines["body.lonely"], "(?i)conv1d")
        self.assertNotRegex(lines["body.token"], "(?i)skip|frozen")

    def test_follows_the_training(self):
        for method in CLASSES:
            with self.subTest(method):
                model = make_net()
                optimizer = make(method, model)
                before = optimizer.report()
                train(model, optimizer, 3)
                optimizer.measure()
                train(model, optimizer, 1, first=3)
                after = optimizer.report()
                self.assertNotEqual(before, after)
                self.assertIn("token", after)
                self.assertEqual(len(before.splitlines()), len(after.splitlines()))

    def test_measures_what_a_step_did(self):
        """cosine = <G, G^> / (|G| |G^|), ratio = |G^| / |G|, against plain arithmetic."""
        model = nn.Sequential(nn.Linear(4, 3))
        optimizer = make("mac", model, lr=1.0, momentum=0.0)
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) + 1
        F.cross_entropy(model(x), torch.arange(6) % 3).backward()
        g = torch.cat([model[0].weight.grad, model[0].bias.grad[:, None]], 1)
        optimizer.measure()
        taken = support.taken_step(model, optimizer)
        p = torch.cat([taken["0.weight"], taken["0.bias"][:, None]], 1)
        cosine, ratio = float((g * p).sum() / g.norm() / p.norm()), float(p.norm() / g.norm())
        (layer,) = [layer for layer in optimizer.layers if layer.name == "0"]
        self.assertAlmostEqual(layer.cosine, cosine, places=4)
        self.assertAlmostEqual(layer.ratio, ratio, places=4)
        self.assertLess(cosine, 0.99)

    def test_is_what_printing_shows(self):
        optimizer = make("mac", make_net())
        self.assertIn("MAC", repr(optimizer))


class Unseen(Case):
    class Net(nn.Module):
        """One layer is used in a way that is not looked at."""

        def __init__(self):
            super().__init__()
            self.seen, self.einsum = nn.Linear(4, 6), nn.Linear(6, 2, bias=False)

        def forward(self, x):
            return torch.einsum("ni,oi->no", torch.tanh(self.seen(x)), self.einsum.weight * 1.0)

    def test_layers_are_named_once_with_the_share_that_is_preconditioned(self):
        torch.manual_seed(0)
        model = self.Net()
        optimizer = make("mac", model, tcov=1)
        x = torch.randn(5, 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                optimizer.zero_grad()
                model(x).square().sum().backward()
                optimizer.step()
        texts = [str(w.message) for w in caught if "abar" in str(w.message)]
        self.assertEqual(len(texts), 1)
        self.assertRegex(texts[0], "einsum.*71%")  # 30 of 42
        rows = {row.name: row for row in optimizer.layers}
        self.assertEqual((rows["einsum"].preconditioned, rows["einsum"].reason), (False, "never seen"))
        self.assertTrue(rows["seen"].preconditioned)
        self.assertAlmostEqual(optimizer.preconditioned_share(), 30 / 42)
        self.assertIn("71.4% of the parameters", optimizer.report())

    def test_a_weight_that_is_used_in_parts_is_one(self):
        """nn.MultiheadAttention with queries of one input and keys of another."""

        class Cross(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.attend = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)

            def forward(self, x, y):
                return self.attend(self.first(x), y, y, need_weights=False)[0]

        for skip in ((), ("attend.in_proj",)):
            model = Cross()
            optimizer = make("mac", model, skip=skip)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model(torch.randn(3, 5, 4), torch.randn(3, 6, 4)).square().sum().backward()
                optimizer.step()
            texts = [str(w.message) for w in caught if "abar" in str(w.message)]
            self.assertEqual(["attend.in_proj" in text for text in texts], [] if skip else [True])
            seen = {row.name for row in optimizer.layers if row.preconditioned}
            self.assertEqual(seen, {"first", "attend.out_proj"})

    def test_nothing_seen_at_all_is_an_error(self):
        model = self.Net()
        optimizer = make("mac", model, skip=("seen",))
        model(torch.randn(5, 4)).square().sum().backward()
        with self.assertRaisesRegex(RuntimeError, "nothing"):
            optimizer.step()


class Wrappers(Case):
    """Around the model: they work, which is to give the very same steps, or are refused in words that say what to
    do."""

    def check(self, wrap, word, tolerance=0.0):
        model, plain = make_net(), make_net()
        try:
            wrapped = wrap(model)
        except Exception as error:  # not the optimizer's doing
            self.skipTest(f"PyTorch itself cannot: {error}")
        try:
            optimizer = make("smac", wrapped)
        except (TypeError, ValueError, RuntimeError) as error:
            self.assertRegex(str(error), word)
            return
        train(wrapped, optimizer, 5)
        train(plain, make("smac", plain), 5)
        self.assert_all_close(weights_of(model), weights_of(plain), tolerance)

    def test_data_parallel(self):
        self.check(nn.DataParallel, "DataParallel")

    @support.unittest.skipUnless(hasattr(torch, "compile"), "this PyTorch has no torch.compile")
    def test_torch_compile(self):
        self.check(lambda model: torch.compile(model, backend="eager"), "compile", 1e-5)

    @support.unittest.skipUnless(hasattr(torch, "compile"), "this PyTorch has no torch.compile")
    def test_a_model_compiled_behind_the_optimizers_back(self):
        """The optimizer is given the model, training runs its compiled form: the same steps, or words about it."""
        model, plain = make_net(), make_net()
        optimizer = make("smac", model)
        compiled = torch.compile(model, backend="eager")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                train(compiled, optimizer, 5)
            except RuntimeError as error:
                self.assertRegex(str(error), "compile")
                return
        if any("compile" in str(warning.message) and "abar" in str(warning.message) for warning in caught):
            return
        train(plain, make("smac", plain), 5)
        self.assert_all_close(weights_of(model), weights_of(plain), 1e-5)

    def test_checkpointed_activations(self):
        """The forward of a part runs again inside backward: the same steps, or one clear exception."""
        from torch.utils.checkpoint import checkpoint

        class Saving(support.Net):
            def forward(self, x):
                x = F.relu_(self.stem(x))
                x = checkpoint(lambda y: F.relu(self.grouped(y)), x, use_reentrant=self.reentrant)
                x = self.gain * self.depthwise(x)
                x = F.relu_(self.token(x.flatten(2).transpose(1, 2)))
                return self.head(x.flatten(1))

        for reentrant in (False, True):
            with self.subTest(reentrant=reentrant):
                model, plain = make_net(), make_net()
                model.__class__ = Saving
                model.reentrant = reentrant
                optimizer = make("smac", model)
                try:
                    train(model, optimizer, 5)
                except RuntimeError as error:
                    self.assertRegex(str(error), "skip=")
                    continue
                train(plain, make("smac", plain), 5)
                self.assert_all_close(weights_of(model), weights_of(plain), 1e-5)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.outer = nn.Linear(5, 2)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.outer = nn.Linear(5, 2)
        self.second.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.second(torch.tanh(self.inner(x)))))


class WeightsUsedTwice(Case):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)) + 1
    y = torch.arange(6) % 2

    def one_step(self, model, optimizer):
        optimizer.zero_grad()
        F.cross_entropy(model(self.x), self.y).backward()
        optimizer.step()

    def test_have_the_statistics_of_all_their_uses(self):
        """MAC by hand: the mean over the rows of both uses. Two modules that share a weight but not the bias: without
        the bias, which is the rule's."""
        for kind in (Twice, Shared):
            with self.subTest(kind.__name__):
                torch.manual_seed(0)
                model = kind()
                first = model.inner(self.x)
                rows = torch.cat([self.x, torch.tanh(first)]).detach().double()
                if kind is Twice:
                    rows = torch.cat([rows, torch.ones(12, 1)], 1)
                optimizer = make("mac", model, lr=1.0, momentum=0.0)
                F.cross_entropy(model(self.x), self.y).backward()
                g, bias = model.inner.weight.grad.double(), model.inner.bias.grad.double()
                a = rows.mean(0)
                whole = torch.cat([g, bias[:, None]], 1) if kind is Twice else g
                expected = whole - torch.outer(whole @ a, a) / (0.1 + a @ a)
                plain = bias if kind is Shared else expected[:, -1]
                taken = support.taken_step(model, optimizer)
                self.assert_close(taken["inner.weight"], expected[:, :5], 1e-4)
                self.assert_close(taken["inner.bias"], plain, 1e-4)

    def test_are_further_rows_of_the_same_examples(self):
        """K-FAC looks at examples: twice through one layer is once through a layer on sequences of two."""

        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.outer = nn.Linear(5, 4), nn.Linear(8, 2)

            def forward(self, x):
                return self.outer(torch.tanh(torch.cat([self.inner(x[:, 0]), self.inner(x[:, 1])], 1)))

        class Sequence(Pair):
            def forward(self, x):
                return self.outer(torch.tanh(self.inner(x)).flatten(1))

        pairs = torch.stack([self.x, self.x.flip(1) - 1], 1)
        for method in ("kfac", "lngd", "smac"):
            for options in ({}, {"kfac": "expand"}) if method == "kfac" else ({},):
                with self.subTest(method, **options):
                    weights = []
                    for kind in (Pair, Sequence):
                        torch.manual_seed(0)
                        model = kind()
                        optimizer = make(method, model, **options)
                        for _ in range(3):
                            optimizer.zero_grad()
                            F.cross_entropy(model(pairs), self.y).backward()
                            optimizer.step()
                        weights.append(weights_of(model))
                    self.assert_all_close(weights[0], weights[1], 1e-5)

    def test_transposed_are_refused_by_name(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.code, self.head = nn.Linear(5, 3), nn.Linear(5, 2)

            def forward(self, x):
                return self.head(F.linear(torch.tanh(self.code(x)), self.code.weight.t()))

        model = Tied()
        with self.assertRaisesRegex(RuntimeError, r"(?s)code.*transposed.*skip="):
            self.one_step(model, make("mac", model))
        self.one_step(model, make("mac", model, skip=("code",)))

    def test_work_where_they_are_skipped(self):
        for kind, skip in ((Twice, ("inner",)), (Shared, ("inner", "second"))):
            with self.subTest(kind.__name__):
                torch.manual_seed(0)
                model = kind()
                other = copy.deepcopy(model)
                self.one_step(model, make("mac", model, skip=skip, lr=0.1))
                sgd = torch.optim.SGD(other.parameters(), 0.1)
                self.one_step(other, sgd)
                self.assert_close(model.inner.weight, other.inner.weight, 1e-6)
                self.assert_differ({"outer": model.outer.weight}, {"outer": other.outer.weight}, 1e-3)


class FakeCuda(nn.Parameter):
    """A parameter that says it is on a GPU: the library must refuse it before it touches its memory."""

    @property
    def device(self):
        return torch.device("cuda", 0)

    @property
    def is_cuda(self):
        return True


class Mistakes(Case):
    def test_no_module(self):
        parameters = list(make_net().parameters())
        for wrong in (parameters, iter(parameters), [{"params": parameters}], None, parameters[0]):
            with self.assertRaisesRegex(TypeError, "(?i)module"):
                abar.torch.MAC(wrong, lr=0.1)

    def test_nothing_to_precondition_lists_what_there_is(self):
        model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Embedding(4, 5))
        with self.assertRaisesRegex(ValueError, "(?s)Linear.*Conv2d"):
            abar.torch.MAC(model, lr=0.1)

    def test_misspelt_option_names_the_nearest(self):
        with self.assertRaisesRegex(TypeError, "damping"):
            abar.torch.MAC(make_net(), lr=0.1, dampling=0.3)
        with self.assertRaisesRegex(TypeError, "kfac_inverse|kfac-inverse"):
            abar.torch.KFAC(make_net(), lr=0.1, kfac_invers="eigen")

    def test_options_that_would_do_nothing(self):
        cases = [
            (abar.torch.MAC, {"pgrad": "per-example"}, "pgrad"),
            (abar.torch.MAC, {"first_layer": "dataset-mean"}, "first_layer"),
            (abar.torch.MAC, {"head": "head.*"}, "head"),
            (abar.torch.MAC, {"value_stat": "expectation"}, "value_stat"),
            (abar.torch.FOOF, {"attention": {}}, "attention"),
            (abar.torch.Muon, {"tcov": 3}, "tcov"),
            (abar.torch.SMAC, {"diagonal_damping": 0.3}, "diagonal_damping"),
        ]
        for kind, options, name in cases:
            with self.subTest(kind.__name__, **options):
                with self.assertRaisesRegex(ValueError, name):
                    kind(make_net(), lr=0.1, **options)

    def test_attention_that_is_told_wrongly(self):
        told = {"nowhere": abar.torch.Attention(qkv="qkv", heads=1)}
        with self.assertRaisesRegex(ValueError, "nowhere"):
            abar.torch.MAC(make_net(), lr=0.1, attention=told)
        with self.assertRaisesRegex(ValueError, "(?s)head.*5 heads"):
            abar.torch.MAC(make_net(), lr=0.1, attention={"head": abar.torch.Attention(value="0", heads=5)})

    def test_attention_whose_probabilities_are_not_seen(self):
        class Linear(nn.Module):  # attention without a softmax
            num_heads = 2

            def __init__(self):
                super().__init__()
                self.qkv = nn.Linear(4, 12)

            def forward(self, x):
                q, k, v = self.qkv(x).chunk(3, -1)
                return q @ (k.transpose(1, 2) @ v)

        model = nn.Sequential(Linear(), nn.Linear(4, 1))
        x = torch.randn(3, 5, 4)
        for options in ({}, {"value_stat": "plain"}, {"attention": {"0": None}}):
            optimizer = abar.torch.MAC(model, lr=0.1, **options)
            if options:
                model(x).sum().backward()
                optimizer.step()
            else:
                with self.assertRaisesRegex(RuntimeError, "(?s)qkv.*value_stat='plain'"):
                    model(x).sum().backward()
            optimizer.close()

    def test_option_of_another_method(self):
        with self.assertRaises(TypeError):
            abar.torch.MAC(make_net(), lr=0.1, kfac="reduce")

    def test_values_out_of_range(self):
        for options in (
            {"damping": -1.0},
            {"tcov": 0},
            {"stat_decay": 1.5},
            {"damping_form": "tight"},
            {"momentum": -0.5},
        ):
            with self.subTest(**options):
                with self.assertRaises(ValueError) as caught:
                    abar.torch.MAC(make_net(), **{"lr": 0.1, **options})
                self.assertIn(next(iter(options)), str(caught.exception))
                self.assertNotIn("--", str(caught.exception))
        for lr in (-1.0, float("nan")):
            with self.assertRaisesRegex(ValueError, "(?i)lr|learning rate"):
                abar.torch.MAC(make_net(), lr=lr)

    def test_a_pattern_that_fits_no_layer(self):
        """Silently skipping nothing would be a trap."""
        with self.assertRaisesRegex(ValueError, "haed"):
            abar.torch.MAC(make_net(), lr=0.1, skip=("haed.*",))

    @support.unittest.skipIf("cuda" in support.device_names(), "this library has CUDA")
    def test_cuda_tensors_with_a_library_without_cuda(self):
        model = make_net()
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                setattr(module, name, FakeCuda(p.detach()))
        with self.assertRaisesRegex(RuntimeError, "built without CUDA.*move the model"):
            make("mac", model)

    def test_parameters_on_several_devices(self):
        model = make_net()
        model.token.weight = FakeCuda(model.token.weight.detach())
        with self.assertRaisesRegex(ValueError, "one device"):
            make("mac", model)

    def test_tensors_without_memory(self):
        model = nn.Sequential(nn.Linear(3, 2)).to("meta")
        with self.assertRaisesRegex((RuntimeError, ValueError), "meta"):
            make("mac", model)

    def test_sparse_gradients(self):
        model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
        optimizer = make("mac", model)
        model(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex((RuntimeError, ValueError), "(?i)sparse"):
            optimizer.step()

    def test_parameters_of_another_model(self):
        model, other = make_net(), make_net()
        with self.assertRaisesRegex(ValueError, "(?i)model|module"):
            make("mac", model, params=other.parameters())

    def test_groups_added_later(self):
        model = make_net()
        optimizer = make("mac", model, params=[{"params": list(model.head.parameters())}])
        try:
            optimizer.add_param_group({"params": list(model.stem.parameters()), "lr": 0.5})
        except (RuntimeError, NotImplementedError, ValueError) as error:
            self.assertRegex(str(error), "params=")
            return
        before = weights_of(model)
        train(model, optimizer, 1)
        self.assert_differ({"w": model.stem.weight.detach()}, {"w": before["stem.weight"]}, 1e-6, "it did not move")

    def test_padding_that_is_not_zeros_is_right_or_listed(self):
        """A convolution that reflects at the border: its rows are those of the padded image."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(48, 2))
        x = torch.randn(5, 2, 4, 4) + 1
        optimizer = make("mac", model, lr=1.0, momentum=0.0)
        F.cross_entropy(model(x), torch.arange(5) % 2).backward()
        plain = model[0].weight.grad.clone()
        found = support.taken_step(model, optimizer)["0.weight"]
        line = next(line for line in optimizer.report().splitlines() if line.startswith("0 "))
        if "reflect" in line:
            self.assert_close(found, plain, 1e-6)
            return
        rows = F.unfold(F.pad(x, (1, 1, 1, 1), mode="reflect"), 3).transpose(1, 2).reshape(-1, 18).double()
        a = torch.cat([rows, torch.ones(len(rows), 1)], 1).mean(0)
        g = torch.cat([plain.reshape(3, -1), model[0].bias.grad[:, None]], 1).double()
        expected = g - torch.outer(g @ a, a) / (0.1 + a @ a)
        self.assert_close(found.reshape(3, -1), expected[:, :-1], 1e-4)


class Library(Case):
    def python(self, code, **environment):
        clean = {key: value for key, value in os.environ.items() if key not in ("ABAR_LIBRARY", "PYTHONPATH")}
        path = str(support.ROOT / "python")
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**clean, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            cwd="/",
            timeout=300,
        )

    use = "import torch, abar.torch; abar.torch.MAC(torch.nn.Linear(2, 2), lr=0.1)"

    def test_that_is_not_there_is_one_clear_error(self):
        done = self.python(self.use, ABAR_LIBRARY="/nowhere/libabar_optim.so")
        self.assertNotEqual(done.returncode, 0)
        last = done.stderr.strip().splitlines()[-1]
        self.assertIn("/nowhere/libabar_optim.so", last)

    def test_that_is_something_else_is_one_clear_error(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(b"not a library")
            file.flush()
            done = self.python(self.use, ABAR_LIBRARY=file.name)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(file.name, done.stderr.strip().splitlines()[-1])

    def test_knows_where_it_is_and_its_version(self):
        self.assertTrue(os.path.samefile(abar.library_path(), support.LIBRARY))
        header = (support.ROOT / "include/abar/base.h").read_text()
        parts = [header.split(f"ABAR_VERSION_{part} ")[1].split()[0] for part in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(abar.__version__, ".".join(parts))

    def test_goes_away_without_a_word(self):
        """Optimizers alive at exit, forgotten ones, and many of them: nothing crashes, nothing is printed."""
        code = (
            "import torch, abar.torch\n"
            "m = torch.nn.Sequential(torch.nn.Linear(3, 2))\n"
            "keep = abar.torch.KFAC(m, lr=0.1)\n"
            "for _ in range(50): abar.torch.MAC(torch.nn.Sequential(torch.nn.Linear(300, 200)), lr=0.1)\n"
            "m(torch.ones(4, 3)).sum().backward(); keep.step(); print('done')\n"
        )
        done = self.python(code, ABAR_LIBRARY=str(support.LIBRARY))
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "done"), done.stderr)
        self.assertNotIn("abar", done.stderr)


class Installing(Case):
    def test_by_pip_brings_the_library_along(self):
        """pip install ./python into a folder of its own, without the network; it then runs from there alone."""
        missing = [name for name in ("pip", "setuptools", "wheel") if not importlib.util.find_spec(name)]
        if missing:
            self.skipTest(f"this interpreter has no {' and no '.join(missing)}")
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "source")
            ignore = shutil.ignore_patterns("build", "__pycache__", "*.egg-info")
            shutil.copytree(support.ROOT / "python", os.path.join(source, "python"), ignore=ignore)
            target = os.path.join(folder, "site")
            command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
            command += ["--target", target, os.path.join(source, "python")]
            environment = {**os.environ, "ABAR_LIBRARY": str(support.LIBRARY), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            environment.pop("PYTHONPATH", None)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
            code = (
                "import abar, abar.torch, torch; print(abar.library_path()); print(abar.__file__)\n"
                "m = torch.nn.Linear(2, 2); o = abar.torch.MAC(m, lr=0.1)\n"
                "m(torch.ones(3, 2)).sum().backward(); o.step()"
            )
            environment.pop("ABAR_LIBRARY")
            environment["PYTHONPATH"] = target
            used = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd="/"
            )
            self.assertEqual(used.returncode, 0, used.stderr)
            for path in used.stdout.split():
                self.assertTrue(os.path.realpath(path).startswith(os.path.realpath(target)), path)
            self.assertTrue(os.path.exists(os.path.join(target, "abar", "py.typed")))


class Example(Case):
    def write_idx(self, path, *shape):
        """Random bytes, or labels that the images' brightness gives away."""
        values = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
        if len(shape) == 1:
            values = torch.arange(shape[0]) % 10
        else:
            values = (values // 8 + 20 * (torch.arange(shape[0]) % 10)[:, None, None]).clamp(max=255)
        head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        with gzip.open(path, "wb") as file:
            file.write(head + bytes(values.to(torch.uint8).flatten().tolist()))

    def test_trains_with_both_and_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            for part, count in (("train", 512), ("t10k", 100)):
                self.write_idx(os.path.join(folder, f"{part}-images-idx3-ubyte.gz"), count, 28, 28)
                self.write_idx(os.path.join(folder, f"{part}-labels-idx1-ubyte.gz"), count)
            out = os.path.join(folder, "curves.svg")
            script = support.ROOT / "examples" / "torch_fashion_mnist.py"
            text = support.finish_python(support.start_python(script, "--epochs", 2, "--data", folder, "--out", out))
            self.assertEqual(text.count("test accuracy"), 4, text)
            self.assertIn("conv1", text)
            names = [element.text for element in ElementTree.parse(out).iter() if element.tag.endswith("text")]
            self.assertTrue({"SGD", "MAC", "steps", "seconds"} <= set(names), names)


if __name__ == "__main__":
    support.main()
