"""State dicts: what is saved at step 57 and loaded in a new process goes on bit for bit; wrong ones are refused.

The new process is test_torch_state.py --go-on FILE.
"""

import copy
import io
import os
import sys
import tempfile

import support
from support import CLASSES, Case, finish_python, make, make_net, start_python, torch, train, weights_of

from torch import nn

SAVED, STEPS = 57, 64
# Statistics and refreshes at their published periods: step 57 lies between two of each.
PUBLISHED = {"tcov": 5, "tinv": 50, "stat_decay": 0.95}
RUNS = {method: PUBLISHED for method in CLASSES}
RUNS = {method: (method, {**options, "weight_decay": 0.01}) for method, options in RUNS.items()}
RUNS["mac spread"] = ("mac", {"refresh": "spread", "damping": "adaptive", "nesterov": True})
RUNS["kfac adamw"] = ("kfac", {"rule": "adamw", "lr": 1e-3, "kfac_inverse": "eigen"})
RUNS["smac groups"] = ("smac", {"momentum": 0.0})


def start(run):
    """Model, optimizer and scheduler of a run, before its first step."""
    method, options = RUNS[run]
    model = make_net()
    if run.endswith("groups"):
        head = {"params": list(model.head.parameters()), "lr": 0.02, "weight_decay": 0.1}
        rest = {"params": [p for name, p in model.named_parameters() if not name.startswith("head")]}
        options = {**options, "params": [head, rest]}
    optimizer = make(method, model, **options)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4 * STEPS)


def go_on(model, optimizer, scheduler, first, last):
    for k in range(first, last):
        train(model, optimizer, 1, first=k)
        scheduler.step()


def load(file):
    """As people should: nothing but tensors and plain values. 1.13 refuses every float, those of torch.optim too."""
    return torch.load(file, weights_only=support.TORCH >= (2, 0))


def continue_from(path):
    """In the new process: every run from its state to the end."""
    saved, ended = load(path), {}
    for run in RUNS:
        parts = start(run)
        for part, state in zip(parts, saved[run]):
            part.load_state_dict(state)
        go_on(*parts, SAVED, STEPS)
        ended[run] = weights_of(parts[0])
    torch.save(ended, path + ".out")


class Continuing(Case):
    def test_in_a_new_process_is_not_stopping(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state.pt")
            saved, expected, middle = {}, {}, {}
            for run in RUNS:
                parts = start(run)
                go_on(*parts, 0, SAVED)
                saved[run] = copy.deepcopy([part.state_dict() for part in parts])
                middle[run] = weights_of(parts[0])
                go_on(*parts, SAVED, STEPS)
                expected[run] = weights_of(parts[0])
            torch.save(saved, path)
            finish_python(start_python(__file__, "--go-on", path))
            found = load(path + ".out")
        for run in RUNS:
            with self.subTest(run):
                self.assert_same(found[run], expected[run], run)
                self.assert_differ(expected[run], middle[run], 1e-3, "the last steps moved nothing")

    def test_in_the_same_optimizer_is_going_back(self):
        """A state dict is a copy: training on does not change it, and loading it returns to where it was."""
        for method in CLASSES:
            with self.subTest(method):
                model = make_net()
                optimizer = make(method, model)
                train(model, optimizer, 4)
                kept = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
                train(model, optimizer, 5, first=4)
                expected = weights_of(model)
                model.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
                train(model, optimizer, 5, first=4)
                self.assert_same(weights_of(model), expected, method)

    def test_between_backward_and_step_of_another_model_is_exact(self):
        """Loaded before the first step or after some: what was there before leaves no trace."""
        model = make_net()
        optimizer = make("kfac", model)
        train(model, optimizer, 4)
        state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        train(model, optimizer, 5, first=4)
        other = make_net(seed=1)
        second = make("kfac", other)
        train(other, second, 3, first=50)
        other.load_state_dict(weights)
        second.load_state_dict(state)
        train(other, second, 5, first=4)
        self.assert_same(weights_of(other), weights_of(model))


class Form(Case):
    def trained(self, method="mac", steps=3, **options):
        model = make_net()
        optimizer = make(method, model, **options)
        train(model, optimizer, steps)
        return model, optimizer

    def test_is_torchs(self):
        """{"state": {index: {...}}, "param_groups": [...]}, counted as torch does; tensors and plain values only."""
        for method in CLASSES:
            with self.subTest(method):
                model, optimizer = self.trained(method)
                state = optimizer.state_dict()
                count = len(list(model.parameters()))
                self.assertEqual({"state", "param_groups"}, set(state))
                self.assertLessEqual(set(state["state"]), set(range(count)))
                indices = [i for group in state["param_groups"] for i in group["params"]]
                self.assertEqual(sorted(indices), list(range(count)))
                self.assertGreaterEqual(len(state["state"]), count, "momentum of every parameter")
                buffer = io.BytesIO()
                torch.save(state, buffer)
                buffer.seek(0)
                again = load(buffer)
                self.assertEqual(set(again["state"]), set(state["state"]))

    def test_holds_the_curvature_under_its_weight(self):
        model, optimizer = self.trained("foof")
        state = optimizer.state_dict()["state"]
        names = [name for name, _ in model.named_parameters()]
        for layer, size in {"stem.weight": 2 * 9 + 1, "token.weight": 6 + 1}.items():
            entry = state[names.index(layer)]
            sizes = [v.numel() for v in entry.values() if torch.is_tensor(v)]
            self.assertIn(size * size, sizes, f"{layer}: the average of a a^T")
        gain = state[names.index("gain")]
        self.assertEqual([v.numel() for v in gain.values() if torch.is_tensor(v) and v.numel() > 1], [6])

    def test_loads_before_any_step_too(self):
        for method in CLASSES:
            with self.subTest(method):
                one, other = make_net(), make_net()
                fresh = copy.deepcopy(make(method, one).state_dict())
                optimizer = make(method, other)
                train(other, optimizer, 3, first=20)
                other.load_state_dict(make_net().state_dict())
                optimizer.load_state_dict(fresh)
                train(other, optimizer, 4)
                train(one, make(method, one), 4)
                self.assert_same(weights_of(other), weights_of(one), method)

    def test_brings_the_learning_rates_with_it(self):
        _, optimizer = self.trained()
        optimizer.param_groups[0]["lr"] = 0.0125
        other = make("mac", make_net())
        other.load_state_dict(optimizer.state_dict())
        self.assertEqual(other.param_groups[0]["lr"], 0.0125)

    def test_brings_the_settings_with_it(self):
        """Loaded into an optimizer made with others, it goes on with its own."""
        model, optimizer = self.trained("kfac", 4)
        state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
        train(model, optimizer, 4, first=4)
        other = make_net()
        second = make("kfac", other, lr=1.5, damping=7.0, momentum=0.5, weight_decay=0.3)
        other.load_state_dict(weights)
        second.load_state_dict(state)
        train(other, second, 4, first=4)
        self.assert_same(weights_of(other), weights_of(model))

    def refuses(self, optimizer, state, pattern):
        """One clear ValueError; and the optimizer goes on as if nothing had been tried."""
        with self.assertRaisesRegex(ValueError, pattern):
            optimizer.load_state_dict(state)

    def test_of_another_model_is_refused(self):
        _, optimizer = self.trained()
        model = make_net(width=4)
        train(model, make("mac", model), 1)
        other = make("mac", model)
        train(model, other, 2)
        expected_model = copy.deepcopy(model)
        self.refuses(other, optimizer.state_dict(), "(?i)shape|size|model|parameter")
        self.assert_same(weights_of(model), weights_of(expected_model))
        train(model, other, 2, first=2)
        self.assertTrue(all(torch.isfinite(p).all() for p in model.parameters()))

    def test_of_a_model_with_fewer_parameters_is_refused(self):
        _, optimizer = self.trained()
        other = make("mac", nn.Sequential(nn.Linear(3, 2)))
        self.refuses(other, optimizer.state_dict(), "(?i)group|parameter")

    def test_of_another_method_is_refused(self):
        _, optimizer = self.trained("mac")
        for method in ("smac", "foof", "kfac", "eva", "lngd"):
            with self.subTest(method):
                self.refuses(make(method, make_net()), optimizer.state_dict(), "(?i)mac")

    def test_of_another_rule_is_refused(self):
        _, optimizer = self.trained()
        self.refuses(make("mac", make_net(), rule="adamw"), optimizer.state_dict(), "(?i)sgd|adamw|rule")

    def test_of_torchs_own_sgd_is_refused(self):
        model = make_net()
        sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        train(model, sgd, 1)
        self.refuses(make("mac", make_net()), sgd.state_dict(), ".")

    def test_with_something_missing_is_refused(self):
        _, optimizer = self.trained("foof")
        state = copy.deepcopy(optimizer.state_dict())
        entry = state["state"][0]
        largest = max((k for k in entry if torch.is_tensor(entry[k])), key=lambda k: entry[k].numel())
        del entry[largest]
        self.refuses(make("foof", make_net()), state, ".")

    def test_a_refused_one_leaves_no_trace(self):
        model, optimizer = self.trained("kfac", 4)
        other, twin = copy.deepcopy(model), make_net()
        second = make("kfac", twin)
        train(twin, second, 4)
        self.assert_same(weights_of(twin), weights_of(other))
        self.refuses(optimizer, make("kfac", make_net(width=4)).state_dict(), ".")
        train(model, optimizer, 4, first=4)
        train(twin, second, 4, first=4)
        self.assert_same(weights_of(model), weights_of(twin))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--go-on"]:
        continue_from(sys.argv[2])
    else:
        support.main()
