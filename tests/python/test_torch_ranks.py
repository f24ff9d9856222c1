"""Two processes with half of each batch are one process with the whole of it: DistributedDataParallel over gloo, on
this machine alone. Every method; replicas stay equal bit for bit. Each of the two is test_torch_ranks.py --rank R FILE.
"""

import contextlib
import os
import sys
import tempfile

import support
from support import CLASSES, Case, batch, finish_python, loss_of, make, make_net, start_python, torch, train, weights_of

STEPS, BATCH, WORLD = 7, 16, 2
# Lines of the comparison: method, options, how the batches reach the optimizer.
RUNS = {method: (method, {}) for method in CLASSES}
RUNS["mac adaptive"] = ("mac", {"damping": "adaptive"})
RUNS["kfac micro"] = ("kfac", {})  # two micro-batches, the first without talking to the other rank
RUNS["smac by hand"] = ("smac", {})  # without DistributedDataParallel: gradients averaged here, the group given
RUNS["smac nan"] = ("smac", {})
# In float64 rounding cannot hide a wrong sum. In float32 adaptive damping amplifies it: 5e-5 is passed on some CPUs only.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 5e-5}
AMPLIFIED = "mac adaptive"
CASES = [(dtype, run) for dtype in TOLERANCE for run in RUNS]


def part(k, rank, piece, pieces):
    """Every rank's own examples of the joint batch."""
    x, y = batch(k, BATCH)
    own = slice(rank * pieces + piece, None, WORLD * pieces)
    return x[own], y[own]


def run_rank(run, rank, dtype):
    method, options = RUNS[run]
    by_hand, pieces = run.endswith("by hand"), 2 if run.endswith("micro") else 1
    if by_hand:
        model = wrapped = make_net().to(dtype)
        optimizer = make(method, model, process_group=torch.distributed.group.WORLD, **options)
    else:
        model = make_net(seed=rank).to(dtype)  # the ranks start apart: DDP gives all the weights of rank 0
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = make(method, wrapped, **options)
    for k in range(STEPS):
        optimizer.zero_grad()
        for piece in range(pieces):
            with wrapped.no_sync() if piece + 1 < pieces else contextlib.nullcontext():
                (loss_of(wrapped, part(k, rank, piece, pieces)) / pieces).backward()
        for p in model.parameters() if by_hand else ():
            torch.distributed.all_reduce(p.grad)
            p.grad /= WORLD
        if run.endswith("nan") and k == 4:
            model.gain.grad[0] = float("nan")
        optimizer.step()
    counts = torch.tensor([optimizer.skipped_steps, STEPS])
    return {**weights_of(model), "counts": counts}


def be_rank(rank, path):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=WORLD)
    ended = {dtype: {run: run_rank(run, rank, dtype) for run in RUNS} for dtype in TOLERANCE}
    torch.save(ended, f"{path}.{rank}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_alone(run, dtype):
    method, options = RUNS[run]
    model = make_net(seed=0).to(dtype)
    optimizer = make(method, model, **options)
    for k in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, batch(k, BATCH)).backward()
        if run.endswith("nan") and k == 4:
            model.gain.grad[0] = float("nan")
        optimizer.step()
    return weights_of(model)


@support.unittest.skipUnless(
    torch.distributed.is_available() and torch.distributed.is_gloo_available(), "this PyTorch has no gloo"
)
class TwoRanks(Case):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "meeting")
            ranks = [start_python(__file__, "--rank", rank, path) for rank in range(WORLD)]
            try:
                for process in ranks:
                    finish_python(process)
            finally:
                for process in ranks:
                    process.kill()
            cls.ended = [torch.load(f"{path}.{rank}") for rank in range(WORLD)]

    def test_stay_equal_bit_for_bit(self):
        for dtype, run in CASES:
            with self.subTest(run, dtype=dtype):
                self.assert_same(self.ended[1][dtype][run], self.ended[0][dtype][run], run)

    def test_are_one_process_with_the_joint_batch(self):
        for dtype, run in CASES:
            if run == AMPLIFIED and dtype == torch.float32:
                continue
            with self.subTest(run, dtype=dtype):
                start = weights_of(make_net(seed=0).to(dtype))
                alone = run_alone(run, dtype)
                expected = {name: p - start[name] for name, p in alone.items()}
                found = {name: self.ended[0][dtype][run][name] - start[name] for name in alone}
                self.assert_all_close(found, expected, TOLERANCE[dtype], run)

    def test_skip_a_step_together(self):
        for dtype, run in CASES:
            with self.subTest(run, dtype=dtype):
                self.assertEqual(int(self.ended[0][dtype][run]["counts"][0]), int(run.endswith("nan")))


class OneRank(Case):
    def test_halves_of_a_batch_differ_enough_to_tell(self):
        """Were each rank's statistics its own, the comparison above would fail."""
        for method in CLASSES:
            with self.subTest(method):
                one, other = make_net(), make_net()
                train(one, make(method, one), 2)
                optimizer = make(method, other)
                for k in range(2):
                    optimizer.zero_grad()
                    x, y = batch(k)
                    loss_of(other, (x[::2], y[::2])).backward()
                    whole = make_net()
                    whole.load_state_dict(other.state_dict())
                    loss_of(whole, (x, y)).backward()
                    for p, q in zip(other.parameters(), whole.parameters()):
                        p.grad = q.grad
                    optimizer.step()
                self.assert_differ(weights_of(one), weights_of(other), 5e-5, method)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(int(sys.argv[2]), sys.argv[3])
    else:
        support.main()
