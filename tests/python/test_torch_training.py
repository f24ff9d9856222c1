"""However a batch reaches the optimizer, the step is the same: micro-batches, scaled losses, autocast, clipping,
closures, frozen parameters, evaluation in between, parameter groups and schedulers. For every method where methods can
differ."""

import copy

import support
from support import CLASSES, Case, batch, loss_of, make, make_net, taken_step, torch, train, weights_of

import curvature_rules
from scaler import make_scaler
from torch import nn
from torch.optim import lr_scheduler as schedulers
from twin import Twin, telling

STEPS = 7
ROUNDING = 2e-5  # of what seven steps moved


def moved(model):
    """How far each parameter is from where make_net put it."""
    start = weights_of(make_net().to(next(model.parameters()).dtype))
    return {name: p - start[name] for name, p in weights_of(model).items()}


def plain_run(method, size=8, dtype=torch.float32, **options):
    model = make_net().to(dtype)
    optimizer = make(method, model, **options)
    train(model, optimizer, STEPS, size=size)
    return moved(model)


class EveryMethod(Case):
    """The same seven steps by another way."""

    def check(self, run, tolerance=ROUNDING, size=8, methods=CLASSES, **options):
        """run(model, optimizer) trains for STEPS steps."""
        for method in methods:
            with self.subTest(method):
                model = make_net()
                run(model, make(method, model, **options))
                self.assert_all_close(moved(model), plain_run(method, size), tolerance, method)

    def test_four_micro_batches_are_one_batch(self):
        def run(model, optimizer):
            for k in range(STEPS):
                x, y = batch(k, 16)
                optimizer.zero_grad()
                for part in range(4):
                    mine = slice(4 * part, 4 * part + 4)
                    (loss_of(model, (x[mine], y[mine])) / 4).backward()
                optimizer.step()

        self.check(run, size=16)

    def test_micro_batches_of_unequal_size_are_one_batch(self):
        def run(model, optimizer):
            for k in range(STEPS):
                x, y = batch(k, 16)
                optimizer.zero_grad()
                for mine in (slice(0, 3), slice(3, 4), slice(4, 16)):
                    part = len(y[mine])
                    (loss_of(model, (x[mine], y[mine])) * part / 16).backward()
                optimizer.step()

        self.check(run, size=16)

    def test_micro_batches_whose_forwards_come_first_are_one_batch(self):
        def run(model, optimizer):
            for k in range(STEPS):
                x, y = batch(k, 16)
                optimizer.zero_grad()
                losses = [loss_of(model, (x[i::2], y[i::2])) / 2 for i in range(2)]
                for loss in losses:
                    loss.backward()
                optimizer.step()

        self.check(run, size=16)

    def scaled(self, model, optimizer, scaler):
        for k in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batch(k))).backward()
            scaler.step(optimizer)
            scaler.update()

    def test_scaled_losses_are_plain_ones(self):
        for scale in (1.0, 1000.0, 65536.0):
            self.check(lambda m, o: self.scaled(m, o, make_scaler(init_scale=scale)))

    def test_a_scale_that_grows_between_steps_changes_nothing(self):
        self.check(lambda m, o: self.scaled(m, o, make_scaler(init_scale=2.0, growth_interval=2)))

    def test_scaled_micro_batches_are_one_batch(self):
        def run(model, optimizer):
            scaler = make_scaler(init_scale=4096.0)
            for k in range(STEPS):
                x, y = batch(k, 16)
                optimizer.zero_grad()
                for part in range(2):
                    mine = slice(8 * part, 8 * part + 8)
                    scaler.scale(loss_of(model, (x[mine], y[mine])) / 2).backward()
                scaler.step(optimizer)
                scaler.update()

        self.check(run, size=16)

    def unscaled_by_hand(self, model, optimizer, scaler):
        for k in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batch(k))).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    def test_gradients_unscaled_by_hand_are_plain_ones_where_the_scaler_is_known(self):
        for method in CLASSES:
            with self.subTest(method):
                model, scaler = make_net(), make_scaler(init_scale=1024.0)
                self.unscaled_by_hand(model, make(method, model, grad_scaler=scaler), scaler)
                self.assert_all_close(moved(model), plain_run(method), ROUNDING, method)

    def test_gradients_unscaled_by_hand_are_refused_where_output_gradients_count(self):
        """Their scale cannot be known; but the scaler of PyTorch 1.13 comes along and can be asked."""
        for method in ("smac", "kfac", "eva", "lngd"):
            with self.subTest(method):
                model, scaler = make_net(), make_scaler(init_scale=1024.0)
                if support.TORCH < (2, 0):
                    self.unscaled_by_hand(model, make(method, model), scaler)
                    self.assert_all_close(moved(model), plain_run(method), ROUNDING, method)
                    continue
                with self.assertRaisesRegex(RuntimeError, "grad_scaler="):
                    self.unscaled_by_hand(model, make(method, model), scaler)

    def test_gradients_unscaled_by_hand_are_plain_ones_where_they_do_not(self):
        self.check(
            lambda model, optimizer: self.unscaled_by_hand(model, optimizer, make_scaler(init_scale=1024.0)),
            methods=("mac", "foof"),
        )

    def test_a_closure_is_a_step(self):
        def run(model, optimizer):
            for k in range(STEPS):

                def closure():
                    optimizer.zero_grad()
                    loss = loss_of(model, batch(k))
                    loss.backward()
                    return loss

                with torch.no_grad():
                    expected = loss_of(model, batch(k)).item()
                self.assertEqual(optimizer.step(closure).item(), expected)

        self.check(run, tolerance=0.0)

    def test_gradients_that_are_zeroed_instead_of_dropped_change_nothing(self):
        def run(model, optimizer):
            for k in range(STEPS):
                optimizer.zero_grad(set_to_none=False)
                loss_of(model, batch(k)).backward()
                optimizer.step()

        self.check(run, tolerance=0.0)

    def test_a_backward_whose_gradients_are_thrown_away_changes_nothing(self):
        def run(model, optimizer):
            for k in range(STEPS):
                loss_of(model, batch(100 + k)).backward()
                optimizer.zero_grad()
                loss_of(model, batch(k)).backward()
                optimizer.step()

        self.check(run, tolerance=0.0)

    def test_evaluation_in_between_changes_nothing(self):
        """Without gradients, with them, and with a backward pass; and a training forward that nobody follows back."""

        def run(model, optimizer):
            for k in range(STEPS):
                optimizer.zero_grad()
                model.eval()
                with torch.no_grad():
                    model(batch(100)[0])
                image = batch(101)[0].requires_grad_()
                torch.autograd.grad(model(image).sum(), image)
                model.train()
                with torch.no_grad():
                    model(batch(102)[0])
                model(batch(103)[0])
                loss_of(model, batch(k)).backward()
                optimizer.step()

        self.check(run, tolerance=0.0)


class Precision(Case):
    def test_under_autocast_is_the_oracles(self):
        """Activations and output gradients are bfloat16; the oracle is given the very same numbers."""
        for method in CLASSES:
            with self.subTest(method):
                model, options = make_net(), telling(method)
                twin = Twin(model, method, 1.0, dtype=torch.float32, **options)
                optimizer = make(method, model, lr=1.0, momentum=0.0)
                for k in range(4):

                    def loss_at(net):
                        with torch.autocast("cpu", dtype=torch.bfloat16):
                            return nn.functional.cross_entropy(net(batch(k)[0]).float(), batch(k)[1])

                    optimizer.zero_grad()
                    loss_at(model).backward()
                    twin.backward(loss_at)
                    self.assert_all_close(taken_step(model, optimizer), twin.step(), 1e-4, f"{method} step {k}")


class Clipping(Case):
    limit = 0.1

    def test_before_the_step_is_the_oracles(self):
        """The gradients are clipped, what the statistics see is not."""
        for method in CLASSES:
            with self.subTest(method):
                model = make_net()
                twin = Twin(model, method, 1.0, **telling(method))
                optimizer = make(method, model, lr=1.0, momentum=0.0)
                loss_of(model, batch(0)).backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), self.limit)
                self.assertGreater(float(norm), 2 * self.limit)
                twin.backward(lambda other: loss_of(other, batch(0)))
                twin.scale_grads(self.limit / (twin.grad_norm() + 1e-6))
                self.assert_all_close(taken_step(model, optimizer), twin.step(), 1e-4, method)

    def test_by_the_optimizer_is_clipping_before_the_step(self):
        for method in ("mac", "kfac"):
            with self.subTest(method):
                model = make_net().double()  # the two ways differ in the last digits, which KFAC amplifies
                optimizer = make(method, model)
                for k in range(STEPS):
                    optimizer.zero_grad()
                    loss_of(model, batch(k)).backward()
                    nn.utils.clip_grad_norm_(model.parameters(), self.limit)
                    optimizer.step()
                self.assert_all_close(plain_run(method, dtype=torch.float64, clip=self.limit), moved(model), 1e-6, method)


class Absent(Case):
    """Parameters that have no gradient, always or now and then."""

    def test_frozen_parameters_stay_and_the_others_are_the_oracles(self):
        for method in ("mac", "smac", "foof", "kfac"):
            with self.subTest(method):
                model = make_net()
                model.stem.bias.requires_grad_(False)
                model.token.weight.requires_grad_(False)
                for p in model.grouped.parameters():
                    p.requires_grad_(False)
                twin = Twin(model, method, 1.0, skip=("token", "grouped"), **telling(method))
                optimizer = make(method, model, lr=1.0, momentum=0.0, weight_decay=0.0)
                loss_of(model, batch(0)).backward()
                twin.backward(lambda other: loss_of(other, batch(0)))
                twin.grads["stem.bias"] = 0 * model.stem.bias.numpy()
                expected, found = twin.step(), taken_step(model, optimizer)
                for name, p in model.named_parameters():
                    if p.requires_grad:
                        self.assert_close(found[name], expected[name], 1e-4, f"{method} {name}")
                    else:
                        self.assertEqual(float(found[name].abs().max()), 0.0, name)

    def test_parameters_without_a_gradient_stay_with_all_their_state(self):
        """A branch that is not taken: neither decay nor momentum moves it, as in torch.optim."""
        model = nn.ModuleDict({"always": nn.Linear(3, 3), "sometimes": nn.Linear(3, 3)})
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(3)) + 1
        other = copy.deepcopy(model)

        def step(net, optimizer, k):
            optimizer.zero_grad(set_to_none=True)
            names = ["always"] if k % 3 == 2 else ["always", "sometimes"]
            sum((net[name](x) ** 2).mean() for name in names).backward()
            before = weights_of(net["sometimes"])
            optimizer.step()
            return before, weights_of(net["sometimes"])

        keywords = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}
        mine = make("mac", model, damping=1e30, **keywords)  # so large a damping makes MAC the rule alone
        theirs = torch.optim.SGD(other.parameters(), **keywords)
        for k in range(STEPS):
            before, after = step(model, mine, k)
            step(other, theirs, k)
            if k % 3 == 2:
                self.assert_same(after, before)
        self.assert_all_close(weights_of(model), weights_of(other), 1e-6)

    def test_a_step_without_any_gradient_changes_nothing(self):
        model = make_net()
        optimizer = make("mac", model, weight_decay=0.1)
        train(model, optimizer, 2)
        before = weights_of(model)
        optimizer.zero_grad(set_to_none=True)
        optimizer.step()
        self.assert_same(weights_of(model), before)


class BadNumbers(Case):
    def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted(self):
        for method in CLASSES:
            for bad in (float("nan"), float("inf")):
                with self.subTest(method, bad=bad):
                    model = make_net()
                    optimizer = make(method, model)
                    train(model, optimizer, 4)
                    before = weights_of(model)
                    optimizer.zero_grad()
                    loss_of(model, batch(4)).backward()
                    model.token.weight.grad[1, 2] = bad
                    optimizer.step()
                    self.assert_same(weights_of(model), before)
                    self.assertEqual(optimizer.skipped_steps, 1)
                    train(model, optimizer, 3, first=5)
                    self.assertEqual(optimizer.skipped_steps, 1)
                    self.assert_differ(weights_of(model), before, 1e-4, "training did not go on")
                    self.assertTrue(all(torch.isfinite(p).all() for p in model.parameters()))

    def overflowing_run(self, method, scaler):
        """Step 4, which would take statistics, overflows. Returns what all steps moved, and the optimizer."""
        model = make_net()
        optimizer = make(method, model)
        for k in range(STEPS):
            before = weights_of(model)
            optimizer.zero_grad()
            loss = loss_of(model, batch(k))
            loss = scaler.scale(loss) if scaler else loss
            (loss * float("inf") if k == 4 else loss).backward()
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if k == 4:
                self.assert_same(weights_of(model), before)
        return moved(model), optimizer

    def test_a_loss_that_overflows_under_a_scaler_skips_the_step_and_lowers_the_scale(self):
        """And what follows is what follows without a scaler."""
        for method in CLASSES:
            with self.subTest(method):
                scaler = make_scaler(init_scale=1024.0)
                found, optimizer = self.overflowing_run(method, scaler)
                self.assertEqual(optimizer.skipped_steps, 1)
                self.assertEqual(scaler.get_scale(), 512.0)
                expected, _ = self.overflowing_run(method, None)
                self.assert_all_close(found, expected, ROUNDING, method)

    def test_a_step_that_the_scaler_skips_is_skipped_though_all_gradients_are_finite(self):
        """It has seen an infinity that is no longer there."""
        model, scaler = make_net(), make_scaler(init_scale=1024.0)
        optimizer = make("mac", model)
        before = weights_of(model)
        scaler.scale(loss_of(model, batch(0))).backward()
        model.gain.grad[0] = float("inf")
        scaler.unscale_(optimizer)
        model.gain.grad.zero_()
        scaler.step(optimizer)
        scaler.update()
        self.assert_same(weights_of(model), before)
        self.assertEqual(optimizer.skipped_steps, 1)

    def test_a_skipped_step_is_as_if_its_batch_had_not_been(self):
        """Step 2 takes statistics; skipped, it leaves none: step 4 onwards is the oracle's, which skips too."""
        model = make_net()
        twin = Twin(model, "mac", 1.0, **telling("mac"))
        optimizer = make("mac", model, lr=1.0, momentum=0.0)
        for k in range(6):
            optimizer.zero_grad()
            loss_of(model, batch(k)).backward()
            twin.backward(lambda other: loss_of(other, batch(k)))
            if k == 2:
                model.gain.grad.fill_(float("nan"))
                twin.grads["stem.weight"][:] = float("nan")
                optimizer.step()
                self.assertIsNone(twin.oracle.step({"stem": (twin.grads["stem.weight"], None)}))
                twin.grads = {}
            else:
                self.assert_all_close(taken_step(model, optimizer), twin.step(), 1e-4, f"step {k}")


class Groups(Case):
    def groups(self, model):
        head = list(model.head.parameters())
        rest = [p for p in model.parameters() if not any(p is q for q in head)]
        return [{"params": head, "lr": 0.1, "weight_decay": 0.2}, {"params": rest}]

    def test_have_rates_and_decays_of_their_own(self):
        model = make_net()
        twin = Twin(model, "mac", 0.02, **telling("mac"))
        optimizer = make("mac", model, lr=0.02, weight_decay=0.01, params=self.groups(model))
        rules = {}
        for name, p in model.named_parameters():
            own = {"lr": 0.1, "weight_decay": 0.2} if name.startswith("head") else {"lr": 0.02, "weight_decay": 0.01}
            rules[name] = curvature_rules.Sgd(p.detach().double().numpy(), momentum=0.9, **own)
        for k in range(STEPS):
            if k == 3:  # a rate set by hand
                optimizer.param_groups[0]["lr"] = 0.3
                for name, rule in rules.items():
                    rule.lr = 0.3 if name.startswith("head") else rule.lr
            optimizer.zero_grad()
            loss_of(model, batch(k)).backward()
            twin.follow(model)
            twin.backward(lambda other: loss_of(other, batch(k)))
            for name, grad in twin.step().items():
                rules[name].step(grad)
            optimizer.step()
        self.assert_all_close(weights_of(model), {n: r.weight for n, r in rules.items()}, 1e-4)

    def test_of_some_parameters_leave_the_others_alone(self):
        """A layer that is not among params is neither preconditioned nor moved."""
        model = make_net()
        optimizer = make("mac", model, params=[{"params": list(model.head.parameters())}])
        train(model, optimizer, 3)
        for name, change in moved(model).items():
            self.assertEqual(float(change.abs().max()) > 0, name.startswith("head"), name)

    def test_may_be_plain_parameters(self):
        model = make_net()
        optimizer = make("mac", model, params=model.parameters())
        train(model, optimizer, STEPS)
        self.assert_all_close(moved(model), plain_run("mac"), 0.0)


SCHEDULES = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda k: 1 / (k + 1)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4], 0.5),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.3, 3),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.2, 1.0, 4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 6),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.001, 0.1, 3),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=STEPS + 1),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(o, 0.9), schedulers.ConstantLR(o, 0.5, 2)]
    ),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.9)], [2]
    ),
}


class Schedules(Case):
    def run_with(self, schedule, optimizer, model):
        scheduler = schedule(optimizer)
        for k in range(STEPS):
            train(model, optimizer, 1, first=k)
            if isinstance(scheduler, schedulers.ReduceLROnPlateau):
                scheduler.step(1.0)
            else:
                scheduler.step()
        return weights_of(model)

    def test_move_the_steps_as_they_move_torch_optims(self):
        """Under so large a damping MAC is the rule alone. CyclicLR and OneCycleLR move the momentum too."""
        keywords = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
        seen = []
        for name, schedule in SCHEDULES.items():
            with self.subTest(name):
                theirs, mine = make_net(), make_net()
                expected = self.run_with(schedule, torch.optim.SGD(theirs.parameters(), **keywords), theirs)
                found = self.run_with(schedule, make("mac", mine, damping=1e30, **keywords), mine)
                self.assert_all_close(found, expected, 1e-6, name)
                for other in seen:
                    self.assert_differ(found, other, 1e-5, name)
                seen.append(found)

    def test_move_the_betas_of_adamw(self):
        keywords = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.1}
        theirs, mine = make_net(), make_net()
        one_cycle = SCHEDULES["OneCycleLR"]
        expected = self.run_with(one_cycle, torch.optim.AdamW(theirs.parameters(), **keywords), theirs)
        found = self.run_with(one_cycle, make("mac", mine, damping=1e30, rule="adamw", **keywords), mine)
        self.assert_all_close(found, expected, 1e-5)


if __name__ == "__main__":
    support.main()
