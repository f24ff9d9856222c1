"""Two processes under the trainers that people use, DistributedDataParallel and fully_shard: their replicas are equal bit for
bit, and one process with the joint batch. Everything in float64: rounding decides nothing. Each of the two processes is
test_torch_trainers.py --rank R FOLDER; what is not installed is skipped."""

import importlib.util
import os
import socket
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import support
from support import OFTEN, Case, F, abar, finish_python, start_python, torch

from torch import nn

STEPS, BATCH, WORLD = 6, 16, 2
OPTIONS = {"damping": 0.1, "weight_decay": 0.01, **OFTEN}
HAS = {name: importlib.util.find_spec(name) is not None for name in ("accelerate", "lightning", "transformers")}
HAS["fully_shard"] = support.TORCH >= (2, 6)
HAS["gloo"] = torch.distributed.is_available() and torch.distributed.is_gloo_available()


class Net(nn.Module):
    """Some sides do not divide by two, one is shorter than the number of processes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 5, 3)
        self.body = nn.Sequential(nn.Linear(20, 7), nn.Tanh(), nn.Linear(7, 1), nn.Linear(1, 4))
        self.double()

    def forward(self, x, labels=None):
        out = self.body(torch.tanh(self.conv(x)).flatten(1))
        return out if labels is None else {"loss": F.cross_entropy(out, labels), "logits": out}


class Data(torch.utils.data.Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(STEPS * BATCH, 1, 4, 4, generator=draw).double() + 0.5
        self.y = torch.randint(4, (STEPS * BATCH,), generator=draw)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}

    def part(self, k, rank):
        own = slice(k * BATCH + rank, (k + 1) * BATCH, WORLD)
        return self.x[own], self.y[own]

    def whole(self, k):
        own = slice(k * BATCH, (k + 1) * BATCH)
        return self.x[own], self.y[own]


def make(model, kind="MAC", **options):
    return getattr(abar.torch, kind)(model, **{"lr": 0.05, **OPTIONS, **options})


def whole(p):
    return p.full_tensor() if hasattr(p, "full_tensor") else p


def weights(model):
    return {name.replace("module.", ""): whole(p.detach()).clone() for name, p in model.named_parameters()}


def run(model, optimizer, data, first=0, last=STEPS):
    for k in range(first, last):
        optimizer.zero_grad()
        x, y = data(k)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


# ---- what the two processes do ---------------------------------------------------------------------------------------


def ddp_before(rank, _folder):
    """The optimizer is made of the bare model, before DistributedDataParallel."""
    model = Net()
    optimizer = make(model)
    run(nn.parallel.DistributedDataParallel(model), optimizer, lambda k: Data().part(k, rank))
    return weights(model)


def ddp_after(rank, _folder):
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = make(model, "KFAC", damping=0.3)
    run(model, optimizer, lambda k: Data().part(k, rank))
    return weights(model)


def in_front(rank, _folder):
    model = nn.parallel.DistributedDataParallel(Net())
    sgd = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
    optimizer = abar.torch.precondition(sgd, model, "mac", damping=0.1, **OFTEN)
    run(model, optimizer, lambda k: Data().part(k, rank))
    return weights(model)


def drift(rank, _folder):
    """Gradients that nobody averages are an error, on both."""
    model = Net()
    optimizer = make(model)
    try:
        run(model, optimizer, lambda k: Data().part(k, rank))
    except RuntimeError as error:
        return {"said": "differ" in str(error) and "DistributedDataParallel" in str(error)}
    return {"said": False}


def apart(rank, _folder):
    """Two processes that train two models, and say so."""
    model = Net()
    optimizer = make(model, process_group=False)
    run(model, optimizer, lambda k: Data().whole(k) if rank == 0 else Data().part(k, rank))
    return weights(model) if rank == 0 else {}


def shard(model, mesh=None):
    from torch.distributed.fsdp import fully_shard

    mesh = {} if mesh is None else {"mesh": mesh}
    for layer in (model.conv, *(m for m in model.body if isinstance(m, nn.Linear))):
        fully_shard(layer, **mesh)
    return fully_shard(model, **mesh)


def mesh_of(*shape):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])


def fsdp(rank, _folder, mesh=(WORLD,), **options):
    model = shard(Net(), mesh_of(*mesh))
    optimizer = make(model, **options)
    run(model, optimizer, lambda k: Data().part(k, rank))
    return weights(model)


def fsdp_after(rank, _folder):
    """The optimizer is made first; then its groups are given the shards, as accelerate does."""
    model = Net()
    optimizer = make(model)
    names = [name for name, _ in model.named_parameters()]
    shard(model, mesh_of(WORLD))
    shards = dict(model.named_parameters())
    optimizer.param_groups[0]["params"] = [shards[name] for name in names]
    run(model, optimizer, lambda k: Data().part(k, rank))
    return weights(model)


def fsdp_foof(rank, folder):
    return fsdp(rank, folder, kind="FOOF")


def fsdp_adamw(rank, folder):
    return fsdp(rank, folder, rule="adamw", lr=0.01)


def hsdp(rank, folder):
    """Two replicas, each of one shard."""
    return fsdp(rank, folder, mesh=(WORLD, 1))


def fsdp_nan(rank, _folder):
    """Not finite on one rank: no rank makes that step."""
    model = shard(Net(), mesh_of(WORLD))
    optimizer = make(model)
    data = Data()
    run(model, optimizer, lambda k: data.part(k, rank), 0, 2)
    F.cross_entropy(model(data.part(2, rank)[0]), data.part(2, rank)[1]).backward()
    if rank == 1:
        model.conv.weight.grad.to_local().fill_(float("nan"))
    before = weights(model)
    optimizer.step()
    same = all(torch.equal(before[n], p) for n, p in weights(model).items())
    return {"said": same and optimizer.skipped_steps == 1}


def fsdp_refused(rank, _folder):
    """What needs whole matrices says so; tensor parallelism is refused."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    said = []
    for kind, options in (("KFAC", {}), ("MAC", {"rule": "muon"}), ("MAC", {"clip": 1.0}), ("Shampoo", {})):
        try:
            abar.torch.__dict__[kind](shard(Net(), mesh_of(WORLD)), 0.1, **options)
        except ValueError as error:
            said.append("clip" in str(error) or "whole matrices" in str(error))
    split = parallelize_module(Net(), mesh_of(WORLD), {"body.0": ColwiseParallel()})
    try:
        make(split)
    except TypeError as error:
        said.append("tensor parallelism" in str(error))
    return {"said": said == [True] * 5}


def fsdp_save(rank, folder):
    """Half of the run; what it leaves is taken up by one process."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = shard(Net(), mesh_of(WORLD))
    optimizer = make(model, rule="adamw", lr=0.01)
    run(model, optimizer, lambda k: Data().part(k, rank), 0, 3)
    weights_now, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights_now, "optimizer": state}, checkpoint_id=str(folder / "sharded"))
    return {}


def ddp_load(rank, folder):
    """One process's half of a run goes on in two."""
    model = Net()
    optimizer = make(model)
    state = torch.load(folder / "alone.pt", weights_only=support.TORCH >= (2, 0))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    run(nn.parallel.DistributedDataParallel(model), optimizer, lambda k: Data().part(k, rank), 3)
    return weights(model)


def fsdp_load(rank, folder):
    """... and in two that have shards of it."""
    model = shard(Net(), mesh_of(WORLD))
    optimizer = make(model)
    state = torch.load(folder / "alone.pt", weights_only=support.TORCH >= (2, 0))
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, state["model"], options=StateDictOptions(full_state_dict=True))
    optimizer.load_state_dict(state["optimizer"])
    run(model, optimizer, lambda k: Data().part(k, rank), 3)
    return weights(model)


def with_accelerate(model, accelerator):
    optimizer = make(model)
    loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH // WORLD)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
    return weights(accelerator.unwrap_model(model))


def accelerate_ddp(_rank, _folder):
    from accelerate import Accelerator

    return with_accelerate(Net(), Accelerator(cpu=True))


def accelerate_fsdp(_rank, _folder):
    """accelerate shards on accelerators only: its CPU state is told otherwise, the rest is its own code."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state()
    PartialState._reset_state()
    accelerator = Accelerator(cpu=True)
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1
    )
    accelerator.state.distributed_type = DistributedType.FSDP
    try:
        model = Net()
        ended = with_accelerate(model, accelerator)
        assert all(hasattr(p, "full_tensor") for p in model.parameters()), "accelerate did not shard"
        return ended
    finally:
        AcceleratorState._reset_state()
        PartialState._reset_state()


def lightning_ddp(_rank, folder):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, _index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return make(self.net)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy=lightning.pytorch.strategies.DDPStrategy(process_group_backend="gloo"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
    )
    data = Data()
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=BATCH // WORLD, sampler=sampler))
    return weights(module.net)


def trainer_ddp(_rank, folder):
    import transformers

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *_args, **_kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        ddp_backend="gloo",
        per_device_train_batch_size=BATCH // WORLD,
        num_train_epochs=1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    model = Net()
    given = abar.torch.MAC, {"model": model, "lr": 0.05, **OPTIONS}
    Trainer(model=model, args=arguments, train_dataset=Data(), optimizer_cls_and_kwargs=given).train()
    return weights(model)


#: what is needed, what two processes do, what one process does: kind and options of its optimizer, or none
CASES = {
    "ddp_before": ("gloo", ddp_before, {}),
    "ddp_after": ("gloo", ddp_after, {"kind": "KFAC", "damping": 0.3}),
    "in_front": ("gloo", in_front, {}),
    "drift": ("gloo", drift, None),
    "apart": ("gloo", apart, {}),
    "ddp_load": ("gloo", ddp_load, {}),
    "fsdp": ("fully_shard", fsdp, {}),
    "fsdp_after": ("fully_shard", fsdp_after, {}),
    "fsdp_foof": ("fully_shard", fsdp_foof, {"kind": "FOOF"}),
    "fsdp_adamw": ("fully_shard", fsdp_adamw, {"rule": "adamw", "lr": 0.01}),
    "hsdp": ("fully_shard", hsdp, {}),
    "fsdp_nan": ("fully_shard", fsdp_nan, None),
    "fsdp_refused": ("fully_shard", fsdp_refused, None),
    "fsdp_save": ("fully_shard", fsdp_save, None),
    "fsdp_load": ("fully_shard", fsdp_load, {}),
    "accelerate_ddp": ("accelerate", accelerate_ddp, {}),
    "accelerate_fsdp": ("accelerate", accelerate_fsdp, {}),
    "lightning_ddp": ("lightning", lightning_ddp, {}),
    "trainer_ddp": ("transformers", trainer_ddp, {}),
}


def be_rank(rank, folder):
    warnings.simplefilter("ignore")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD))
    os.environ.update(TORCHELASTIC_RUN_ID="test", ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    for name, (needs, case, _) in CASES.items():
        if HAS[needs]:
            ended = case(rank, Path(folder))
            torch.save(ended, f"{folder}/{name}.{rank}")
            print(name, flush=True)
    torch.distributed.barrier()
    os._exit(0)  # Lightning and accelerate have threads of their own


def run_alone(kind="MAC", lr=None, **options):
    model = Net()
    optimizer = make(model, kind, **options)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] if lr is None else lr
    data = Data()
    run(model, optimizer, data.whole)
    return weights(model)


def free_port():
    """Below those that the system gives to clients meanwhile."""
    for i in range(12000):
        port = 20000 + (os.getpid() * 37 + i) % 12000
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:  # somebody has it
                pass
    raise OSError("no port is free")


@unittest.skipUnless(HAS["gloo"], "this PyTorch has no gloo")
class Trainers(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = Path(cls.folder.name)
        model = Net()  # half a run in one process, for others to go on with
        optimizer = make(model)
        run(model, optimizer, Data().whole, 0, 3)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, cls.path / "alone.pt")
        os.environ["MASTER_PORT"] = str(free_port())
        ranks = [start_python(__file__, "--rank", rank, cls.path) for rank in range(WORLD)]
        try:
            for process in ranks:
                finish_python(process, 250)
        finally:
            for process in ranks:
                process.kill()

    def ended(self, name, rank):
        return torch.load(self.path / f"{name}.{rank}", weights_only=support.TORCH >= (2, 0))

    def check(self, name):
        needs, _, alone = CASES[name]
        if not HAS[needs]:
            self.skipTest(f"there is no {needs}")
        first, second = self.ended(name, 0), self.ended(name, 1)
        if alone is None:
            self.assertTrue(all(first.values()) and all(second.values()), name)
            return
        if second:
            self.assert_same(first, second, name)
        start, expected = weights(Net()), run_alone(**alone)
        moved = lambda found: {n: found[n] - start[n] for n in expected}  # noqa: E731
        self.assert_all_close(moved(first), moved(expected), 1e-7, name)

    @unittest.skipUnless(HAS["fully_shard"], "there is no fully_shard")
    def test_shards_of_two_processes_go_on_in_one(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        model = Net()
        optimizer = make(model, rule="adamw")
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(state, checkpoint_id=str(self.path / "sharded"), no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        run(model, optimizer, Data().whole, 3)
        expected, start = run_alone(rule="adamw", lr=0.01), weights(Net())
        moved = lambda found: {n: found[n] - start[n] for n in expected}  # noqa: E731
        self.assert_all_close(moved(weights(model)), moved(expected), 1e-7)


for _name in CASES:
    setattr(Trainers, f"test_{_name}", lambda self, name=_name: self.check(name))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(int(sys.argv[2]), sys.argv[3])
    else:
        support.main()
