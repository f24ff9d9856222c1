"""Settings of a method by parameter group: each layer is treated as by an optimizer that has its group's settings everywhere.
What those compute the oracles check (test_torch_oracle.py, test_torch_related.py)."""

import copy

import support
from support import Case, abar, batch, loss_of, make_net, torch, weights_of

COMMON = {"tcov": 2, "tinv": 3, "stat_decay": 0.8}
#: class: settings of all, of the second group, and what the class needs
CASES = {
    "MAC": ({"damping": 0.5}, {"damping": 0.02, "damping_form": "coupled"}),
    "SMAC": ({"damping": 0.5}, {"damping": "adaptive", "diagonal_damping": 0.1}),
    "FOOF": ({"damping": 0.5}, {"damping": "trace:0.2"}),
    "KFAC": ({"damping": 0.5, "kl_clip": 0.0}, {"damping": 0.05, "kfac_inverse": "eigen"}),
    "Eva": ({"damping": 0.5, "kl_clip": 0.0}, {"damping": 0.02}),
    "LNGD": ({"nu2": 1.0, "kl_clip": 0.0}, {"nu2": 3.0, "mu": 0.2}),
    "SKFAC": ({"damping": 0.5, "kl_clip": 0.0, "batch": 8}, {"damping": 0.05}),
    "KPSVD": ({"damping": 0.5, "kl_clip": 0.0, "batch": 8}, {"damping": 0.05}),
    "MFAC": ({"damping": 0.5, "scope": "layer", "gradients": 4}, {"damping": 0.05}),
}
SECOND = ("token.", "head.")  # the layers of the second group
RATE = 1e-3


def split(model):
    """The parameters of the first group and of the second."""
    named = list(model.named_parameters())
    return [[p for n, p in named if n.startswith(SECOND) == second] for second in (False, True)]


def grouped(kind, model, everywhere, second, **more):
    groups = [{"params": params} for params in split(model)]
    groups[1].update(second)
    no_averages = {"tinv": 3} if kind == "MFAC" else COMMON
    options = {k: v for k, v in {**no_averages, **everywhere, **more}.items() if not (kind == "MFAC" and k == "tinv")}
    return getattr(abar.torch, kind)(model, RATE, params=groups, momentum=0.0, **options)


def passes(model, optimizer, k):
    optimizer.zero_grad()
    loss_of(model, batch(k)).backward()
    optimizer.step()


class Groups(Case):
    def check(self, kind, everywhere, second, dtype):
        """Three optimizers, whose weights are the same again after every step: with both settings, and with either."""
        first, whole = dict(everywhere), {**everywhere, **second}
        models = [make_net().to(dtype) for _ in range(3)]
        optimizers = [grouped(kind, models[0], everywhere, second), grouped(kind, models[1], first, {})]
        optimizers.append(grouped(kind, models[2], whole, {}))
        differed = False
        for k in range(7):
            for model, optimizer in zip(models, optimizers):
                passes(model, optimizer, k)
            mixed, one, two = (weights_of(model) for model in models)
            expected = {n: (two if n.startswith(SECOND) else one)[n] for n in mixed}
            self.assert_same(mixed, expected, f"{kind} step {k}")
            differed = differed or any(not torch.equal(one[n], two[n]) for n in one if n.startswith(SECOND))
            for model in models[1:]:
                model.load_state_dict(models[0].state_dict())
        self.assertTrue(differed, f"{kind}: the two settings do the same")
        for optimizer in optimizers:
            optimizer.close()

    def test_each_layer_has_the_settings_of_its_group(self):
        for kind, (everywhere, second) in CASES.items():
            for dtype in (torch.float64, torch.float32):
                with self.subTest(kind, dtype=dtype):
                    self.check(kind, everywhere, second, dtype)

    def test_report_has_each_layers_damping(self):
        model = make_net()
        optimizer = grouped("MAC", model, {"damping": 0.5}, {"damping": 0.25})
        passes(model, optimizer, 0)
        found = {row.name: row.damping for row in optimizer.layers if row.preconditioned}
        expected = {name: 0.25 if f"{name}.".startswith(SECOND) else 0.5 for name in found}
        self.assertEqual(found, expected)
        self.assertEqual(len(found), 6)

    def test_state_and_copies_have_them(self):
        model = make_net()
        optimizer = grouped("MAC", model, {"damping": 0.5}, {"damping": 0.05})
        for k in range(4):
            passes(model, optimizer, k)
        other_model = copy.deepcopy(model)
        other = grouped("MAC", other_model, {"damping": 0.5}, {})
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self.assertEqual(other.param_groups[1]["damping"], 0.05)
        twin_model, twin = copy.deepcopy((model, optimizer))
        for k in range(4, 8):
            for each in ((model, optimizer), (other_model, other), (twin_model, twin)):
                passes(*each, k)
        self.assert_same(weights_of(other_model), weights_of(model), "loaded")
        self.assert_same(weights_of(twin_model), weights_of(model), "copied")

    def test_change_holds_from_the_next_refresh(self):
        """... and one that is none changes no bit, in the middle of a step with statistics, too."""
        found = {}
        for name, values in {"constant": {}, "same": {4: 0.05}, "other": {4: 0.3}}.items():
            model = make_net()
            optimizer = grouped("MAC", model, {"damping": 0.5}, {"damping": "5e-2"})
            found[name] = []
            for k in range(9):
                optimizer.zero_grad()
                loss_of(model, batch(k)).backward()
                optimizer.param_groups[1]["damping"] = values.get(k, optimizer.param_groups[1]["damping"])
                optimizer.step()
                found[name].append(weights_of(model))
        for k in range(9):
            self.assert_same(found["same"][k], found["constant"][k], f"step {k}")
        self.assert_same(found["other"][5], found["constant"][5], "before the refresh of step 6")
        self.assert_differ(found["other"][6], found["constant"][6], 1e-5)

    def test_before_another_optimizer(self):
        weights = []
        for dampings in ({}, {"damping": 0.05}):
            model = make_net()
            groups = [{"params": params} for params in split(model)]
            groups[1].update(dampings)
            sgd = torch.optim.SGD(groups, RATE)
            optimizer = abar.torch.precondition(sgd, model, "mac", damping=0.5, **COMMON)
            other = make_net()
            direct = grouped("MAC", other, {"damping": 0.5}, dampings)
            for k in range(5):
                passes(model, optimizer, k)
                passes(other, direct, k)
            self.assert_all_close(weights_of(model), weights_of(other), 1e-6)
            weights.append(weights_of(model))
        self.assert_differ(weights[0], weights[1], 1e-5)

    def test_what_is_one_for_all_is_refused(self):
        model = make_net()
        first, second = split(model)
        for kind, setting, words in (
            ("MAC", {"tcov": 3}, "tcov is one for all parameters; a group may have its own lr, weight_decay, damping"),
            ("KFAC", {"kl_clip": 0.1}, "kl_clip is one for all"),
            ("MAC", {"value_stat": "plain"}, "value_stat is one for all"),
            ("MFAC", {"gradients": 8}, "in a group gradients is called mfac_gradients"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                getattr(abar.torch, kind)(model, RATE, params=[{"params": first}, {"params": second, **setting}])
        with self.assertRaisesRegex(ValueError, "it treats all layers together"):
            abar.torch.NGD(model, RATE, batch=8, params=[{"params": first}, {"params": second, "damping": 1.0}])
        with self.assertRaisesRegex(ValueError, "damping of group 1 would do nothing"):
            gain = [p for n, p in model.named_parameters() if n == "gain"]
            rest = [p for n, p in model.named_parameters() if n != "gain"]
            abar.torch.MAC(model, RATE, params=[{"params": rest}, {"params": gain, "damping": 1.0}])
        with self.assertRaisesRegex(ValueError, "takes a number"):
            abar.torch.MAC(model, RATE, params=[{"params": first}, {"params": second, "damping": -1.0}])


if __name__ == "__main__":
    support.main()
