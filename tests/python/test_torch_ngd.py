"""Exact natural gradient through PyTorch: twenty steps against the dense solve of tests/oracle/ngd.py, and what is refused."""

import support
from support import Case, torch

import abar.torch
import ngd
from torch.nn import functional as F


def steps(net, optimizer, x, labels, dtype):
    for step in range(ngd.STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(x[step % ngd.BATCHES].to(dtype)), labels[step % ngd.BATCHES]).backward()
        optimizer.step()


class TestSteps(Case):
    def test_steps_agree_with_the_dense_solve(self):
        x, labels = ngd.data()
        for case in ("empirical", "empirical_layer", "norm"):
            _, blocks, damping, norm = ngd.CASES[case]
            wanted = ngd.train(case, x, labels)[ngd.STEPS]
            for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
                net = ngd.start(norm, dtype)
                optimizer = abar.torch.NGD(
                    net,
                    lr=ngd.LR,
                    momentum=ngd.MOMENTUM,
                    weight_decay=ngd.DECAY,
                    batch=ngd.BATCH + 2,
                    damping=damping,
                    fisher_blocks=blocks,
                )
                steps(net, optimizer, x, labels, dtype)
                for name, p in net.named_parameters():
                    away = float((p.detach().double() - wanted[name]).norm() / wanted[name].norm())
                    self.assertLess(away, bound, f"{case}, {dtype}, {name}")

    def test_maximize_is_minimizing_the_negative(self):
        """The step is made of the rows of single examples, which are gradients of the loss that backward saw."""
        x, labels = ngd.data()
        ends = []
        for sign in (1, -1):
            net = ngd.start(False, torch.float64)
            optimizer = abar.torch.NGD(net, lr=0.02, batch=ngd.BATCH, damping=0.1, maximize=sign == 1)
            for step in range(3):
                optimizer.zero_grad()
                (sign * F.cross_entropy(net(x[step % ngd.BATCHES].double()), labels[step % ngd.BATCHES])).backward()
                optimizer.step()
            ends.append([p.detach() for p in net.parameters()])
        for a, b in zip(*ends):
            self.assertTrue(torch.equal(a, b))

    def test_a_saved_state_goes_on_as_if_nothing_had_happened(self):
        x, labels = ngd.data()
        nets = [ngd.start(False, torch.float32) for _ in range(2)]
        made = [abar.torch.NGD(net, lr=0.05, momentum=0.9, batch=ngd.BATCH, damping=0.1) for net in nets]
        steps(nets[0], made[0], x, labels, torch.float32)
        nets[1].load_state_dict(nets[0].state_dict())
        made[1].load_state_dict(made[0].state_dict())
        for net, optimizer in zip(nets, made):
            steps(net, optimizer, x, labels, torch.float32)
        for a, b in zip(nets[0].parameters(), nets[1].parameters()):
            self.assertTrue(torch.equal(a, b))


class TestRefusals(Case):
    def test_labels_that_are_not_the_datas_are_refused(self):
        net = ngd.start(False, torch.float32)
        for fisher in ("exact", "mc:2"):
            with self.assertRaisesRegex(ValueError, "further backward passes"):
                abar.torch.NGD(net, batch=ngd.BATCH, fisher=fisher)

    def test_more_examples_than_said_and_accumulation_are_refused(self):
        x, labels = ngd.data()
        for batch, passes, part in ((ngd.BATCH - 1, 1, "at most 5"), (ngd.BATCH, 2, "without accumulation")):
            net = ngd.start(False, torch.float32)
            _optimizer = abar.torch.NGD(net, batch=batch)
            with self.assertRaisesRegex(ValueError if passes == 1 else RuntimeError, part):
                for _ in range(passes):
                    F.cross_entropy(net(x[0]), labels[0]).backward()


if __name__ == "__main__":
    support.main()
