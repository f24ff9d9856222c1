"""abar.torch as one of torch's optimizers: signatures, repr, state, copies, pickles, groups, maximize, half precision."""

import copy
import inspect
import io
import pickle
import warnings

import support
from support import CLASSES, OFTEN, Case, F, abar, batch, loss_of, make, make_net, torch, train, weights_of

from torch import nn

METHODS = ("MAC", "SMAC", "FOOF", "KFAC", "Eva", "LNGD", "SKFAC", "KPSVD", "NGD", "MFAC", "KBFGS")
HALVES = (torch.bfloat16, torch.float16) if support.TORCH >= (2, 1) else (torch.bfloat16,)  # 1.13 has no float16 on the CPU
RULES = ("SGD", "AdamW", "NAdamW", "SFAdamW", "Muon", "Shampoo", "Soap", "AdaHessian", "Sophia")


def numbers(state):
    """NaN, which says that there is no such number, in a form that equals itself."""
    return {key: torch.nan_to_num(value, nan=-1.0).clone() for key, value in state.items()}


def weights_of_part(weights, prefix):
    return {name[len(prefix) :]: p for name, p in weights.items() if name.startswith(prefix)}


class Words(Case):
    def test_every_optimizer_of_the_library_has_a_class(self):
        context = support._library.Context()
        ours = {getattr(abar.torch, name).method for name in METHODS}
        self.assertEqual(ours, set("mac smac foof kfac eva lngd skfac kpsvd ngd mfac kbfgs".split()))
        self.assertEqual({name.lower() for name in RULES}, set(support._library.rule_names(context)))

    def test_signatures_name_and_type_every_setting(self):
        for name in (*METHODS, *RULES):
            with self.subTest(name):
                signature = inspect.signature(getattr(abar.torch, name))
                for setting in ("model", "lr", "weight_decay", "skip", "params", "clip", "process_group", "maximize"):
                    self.assertIn(setting, signature.parameters)
                for parameter in signature.parameters.values():
                    self.assertIsNot(parameter.annotation, inspect.Parameter.empty, parameter.name)
                if name in RULES:
                    kinds = {p.kind for p in signature.parameters.values()}
                    self.assertNotIn(inspect.Parameter.VAR_KEYWORD, kinds)

    def test_docstrings_say_formula_and_cost(self):
        for name in METHODS:
            text = getattr(abar.torch, name).__doc__
            self.assertIn("Ĝ =", text, name)
            self.assertIn("Cost", text, name)
        for name in RULES:
            self.assertIn("W ←", getattr(abar.torch, name).__doc__.replace("z ←", "W ←"), name)

    def test_repr_has_all_settings(self):
        model = make_net()
        text = repr(make("kfac", model, lr=0.03125, clip=7.0))
        for piece in ("KFAC (", "kfac_inverse: 'cholesky'", "damping: 0.3", "clip: 7.0", "lr: 0.03125", "Parameter Group 0"):
            self.assertIn(piece, text)


class Copies(Case):
    def check(self, copied):
        for method in CLASSES:
            with self.subTest(method):
                model = make_net()
                head = {"params": list(model.head.parameters()), "lr": 0.001}
                rest = {"params": [p for n, p in model.named_parameters() if not n.startswith("head")]}
                optimizer = make(method, model, params=[rest, head])
                train(model, optimizer, 4)
                other, second = copied((model, optimizer))
                self.assertIs(second.param_groups[1]["params"][0], next(other.head.parameters()))
                train(other, second, 1, first=20)  # does not touch the first
                other.load_state_dict(model.state_dict())
                other, second = copied((model, optimizer))
                train(model, optimizer, 5, first=4)
                train(other, second, 5, first=4)
                self.assert_same(weights_of(other), weights_of(model), method)

    def test_deepcopy_goes_on_alike(self):
        self.check(copy.deepcopy)

    def test_pickle_goes_on_alike(self):
        self.check(lambda both: pickle.loads(pickle.dumps(both)))

    def test_alone_brings_its_model_along(self):
        model = make_net()
        second = copy.deepcopy(make("mac", model))
        self.assertFalse({id(p) for g in second.param_groups for p in g["params"]} & {id(p) for p in model.parameters()})

    def test_muon_keeps_its_positional_arguments(self):
        model = make_net()
        optimizer = abar.torch.Muon(model, 0.01, 0.2)
        train(model, optimizer, 2)
        other, second = pickle.loads(pickle.dumps((model, optimizer)))
        train(model, optimizer, 3, first=2)
        train(other, second, 3, first=2)
        self.assert_same(weights_of(other), weights_of(model))


class State(Case):
    def test_can_be_looked_at(self):
        model = make_net()
        optimizer = make("foof", model, momentum=0.9)
        self.assertEqual(len(optimizer.state), len(list(model.parameters())), "there before the first step")
        train(model, optimizer, 3)
        saved = optimizer.state_dict()["state"]
        names = [name for name, _ in model.named_parameters()]
        for index, p in enumerate(model.parameters()):
            self.assert_same(numbers(optimizer.state[p]), numbers(saved[index]), names[index])
        before = optimizer.state[model.gain]["momentum"].clone()
        train(model, optimizer, 1, first=3)
        self.assertFalse(torch.equal(before, optimizer.state[model.gain]["momentum"]))

    @support.unittest.skipIf(support.TORCH < (2, 3), "torch.distributed.checkpoint.state_dict is newer")
    def test_goes_through_distributed_checkpoints(self):
        from torch.distributed.checkpoint import state_dict as dcp

        model = make_net()
        optimizer = make("mac", model)
        train(model, optimizer, 4)
        weights, state = copy.deepcopy(dcp.get_state_dict(model, optimizer))
        train(model, optimizer, 4, first=4)
        other = make_net(seed=1)
        second = make("mac", other)
        dcp.set_state_dict(other, second, model_state_dict=weights, optim_state_dict=state)
        train(other, second, 4, first=4)
        self.assert_same(weights_of(other), weights_of(model))


class Groups(Case):
    def test_added_later_leave_the_others_their_past(self):
        for method in CLASSES:
            with self.subTest(method):
                model = make_net()
                early = {n: p for n, p in model.named_parameters() if not n.startswith("head")}
                optimizer = make(method, model, params=list(early.values()), momentum=0.9)
                train(model, optimizer, 4)
                kept = {name: numbers(optimizer.state[p]) for name, p in early.items()}
                optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 0.001})
                for name, p in early.items():
                    self.assert_same(numbers(optimizer.state[p]), kept[name], name)
                before = weights_of(model)
                train(model, optimizer, 3, first=4)
                self.assert_differ(weights_of(model.head), weights_of_part(before, "head."), 1e-7)

    def test_with_cadences_of_their_own_are_refused(self):
        model = make_net()
        with self.assertRaisesRegex(ValueError, "tinv is one for all parameters"):
            make("mac", model, params=[{"params": model.parameters(), "tinv": 3}])

    def test_rates_that_are_no_rates_are_refused_in_words_of_the_caller(self):
        model = make_net()
        for wrong in (float("nan"), float("inf"), -1.0):
            with self.assertRaisesRegex(ValueError, "lr .* must be finite and not negative"):
                make("mac", model, wrong)
            optimizer = make("mac", model)
            loss_of(model, batch(0)).backward()
            optimizer.param_groups[0]["lr"] = wrong
            with self.assertRaisesRegex(ValueError, "abar: lr .* of a group must be finite and not negative"):
                optimizer.step()
            optimizer.close()
        with self.assertRaisesRegex(TypeError, "no option 'betas'"):
            make("mac", model, betas=(0.9, 0.99))

    def test_a_misspelt_setting_of_a_group_warns(self):
        model = make_net()
        with self.assertWarnsRegex(UserWarning, "'dampng', which nothing here reads; did you mean damping"):
            make("mac", model, params=[{"params": model.parameters(), "dampng": 2.0}])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make("mac", model, params=[{"params": model.parameters(), "name": "all", "lr_scale": 1.0, "initial_lr": 0.1}])

    def test_maximize_is_minimizing_the_negative(self):
        for method in CLASSES:
            with self.subTest(method):
                one, other = make_net(), make_net()
                up, down = make(method, one, maximize=True, weight_decay=0.01), make(method, other, weight_decay=0.01)
                for k in range(4):
                    for model, optimizer, sign in ((one, up, 1), (other, down, -1)):
                        optimizer.zero_grad()
                        (sign * loss_of(model, batch(k))).backward()
                        optimizer.step()
                self.assert_same(weights_of(one), weights_of(other), method)

    def test_maximize_reaches_weights_that_the_library_reads_in_copies(self):
        """Of channels_last convolutions, and of HF's Conv1D, whose weight is the transpose."""

        class Conv1D(nn.Module):
            def __init__(self, nf, nx):
                super().__init__()
                self.nf = nf
                self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)
                self.bias = nn.Parameter(torch.zeros(nf))

            def forward(self, x):
                return torch.addmm(self.bias, x, self.weight)

        def make_model():
            torch.manual_seed(3)
            return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), Conv1D(4, 144)).to(memory_format=torch.channels_last)

        for method in CLASSES:
            with self.subTest(method):
                models = [make_model() for _ in range(2)]
                for model, maximize in zip(models, (True, False)):
                    optimizer = make(method, model, maximize=maximize)
                    for k in range(3):
                        optimizer.zero_grad()
                        (loss_of(model, batch(k)) * (1 if maximize else -1)).backward()
                        given = {name: p.grad.clone() for name, p in model.named_parameters()}
                        optimizer.step()
                        if method == "mac":  # which leaves gradients as they are
                            self.assert_same({name: p.grad for name, p in model.named_parameters()}, given, "gradients")
                self.assert_same(weights_of(models[0]), weights_of(models[1]), method)

    def test_maximize_differs_by_group_is_refused(self):
        model = make_net()
        groups = [{"params": [model.gain], "maximize": True}, {"params": list(model.head.parameters())}]
        optimizer = make("mac", model, params=groups)
        loss_of(model, batch(0)).backward()
        with self.assertRaisesRegex(ValueError, "maximize"):
            optimizer.step()


class Half(Case):
    """Parameters in bfloat16 or float16: what is trained are float32 masters."""

    def run_half(self, dtype, steps, state=None, first=0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).to(dtype)
        optimizer = abar.torch.MAC(model, lr=1e-3, momentum=0.9, **OFTEN)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for k in range(first, first + steps):
            draw = torch.Generator().manual_seed(k)
            x, y = torch.randn(8, 6, generator=draw).to(dtype), torch.randint(4, (8,), generator=draw)
            optimizer.zero_grad()
            F.cross_entropy(model(x).float(), y).backward()
            optimizer.step()
        return model, optimizer

    def test_masters_keep_what_rounding_would_lose(self):
        """SGD on masters, by hand: the masters are equal, the parameters are the masters rounded."""
        for dtype in HALVES:
            with self.subTest(dtype):
                torch.manual_seed(0)
                model = nn.Linear(6, 4).to(dtype)
                optimizer = abar.torch.SGD(model, lr=1e-4, momentum=0.5)
                masters = [p.detach().float() for p in model.parameters()]
                velocity = [torch.zeros_like(m) for m in masters]
                for k in range(20):
                    optimizer.zero_grad()
                    model(torch.ones(3, 6, dtype=dtype)).float().square().sum().backward()
                    grads = [p.grad.float() for p in model.parameters()]
                    optimizer.step()
                    for m, v, g in zip(masters, velocity, grads):
                        v.mul_(0.5).add_(g)
                        m.sub_(v, alpha=1e-4)
                    for p, m in zip(model.parameters(), masters):
                        self.assert_close(optimizer.state[p]["master"], m, 1e-6)
                        self.assertTrue(torch.equal(optimizer.state[p]["master"].to(dtype), p))

    def test_resumes_to_the_bit(self):
        for dtype in HALVES:
            with self.subTest(dtype):
                model, optimizer = self.run_half(dtype, 5)
                state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                buffer = io.BytesIO()
                torch.save(state, buffer)
                buffer.seek(0)
                loaded = torch.load(buffer, weights_only=support.TORCH >= (2, 0))
                found, _ = self.run_half(dtype, 4, loaded, 5)
                expected, _ = self.run_half(dtype, 9)
                self.assert_same(weights_of(found), weights_of(expected))

    def test_weights_changed_from_outside_are_taken_up(self):
        model, optimizer = self.run_half(torch.bfloat16, 2)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.5)
        optimizer.zero_grad()
        model(torch.zeros(2, 6, dtype=torch.bfloat16)).sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        self.assertTrue(all(bool((p == 0.5).all()) for p in model.parameters()))


if __name__ == "__main__":
    support.main()
