"""Lightning and the HF Trainer over models that fully_shard has sharded, with two processes: their replicas are equal bit for bit,
and one process with the joint batch; what they save goes on in one process. All in float64, as in test_torch_trainers.py, whose
model, data and settings these are. Each of the two processes is test_torch_sharded.py --rank R FOLDER."""

import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import support
import test_torch_trainers as trainers
from support import Case, abar, finish_python, start_python, torch
from test_torch_trainers import BATCH, HAS, OPTIONS, WORLD, Data, Net, make, weights

HALF = len(Data()) // 2  # the first epoch has the first half of the data, the second the other


def part(epoch):
    return torch.utils.data.Subset(Data(), range(epoch * HALF, (epoch + 1) * HALF))


# ---- Lightning -------------------------------------------------------------------------------------------------------


def lightning_epochs(world, folder, first, last, saved=None):
    """Epochs first .. last - 1; returns module and trainer of the last. saved: a checkpoint to go on with."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def configure_model(self):
            if not hasattr(self.net.conv.weight, "full_tensor"):
                trainers.shard(self.net, self.device_mesh["data_parallel"])

        def training_step(self, batch, _index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return make(self.net)

    for epoch in range(first, last):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=world,
            strategy=lightning.pytorch.strategies.ModelParallelStrategy(
                data_parallel_size=world, tensor_parallel_size=1, process_group_backend="gloo"
            ),
            max_epochs=epoch + 1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=str(folder),
        )
        sampler = torch.utils.data.DistributedSampler(part(epoch), shuffle=False)
        module = Module()
        trainer.fit(module, torch.utils.data.DataLoader(part(epoch), batch_size=BATCH // world, sampler=sampler), ckpt_path=saved)
        assert hasattr(module.net.conv.weight, "full_tensor"), "the model was not sharded"
        saved = str(folder / f"lightning-{world}-{epoch}")
        trainer.save_checkpoint(saved)
    return weights(module.net)


# ---- the HF Trainer --------------------------------------------------------------------------------------------------


def trainer_epochs(world, folder, first, last, saved=None):
    """The same. accelerate shards on accelerators only: its CPU state is told otherwise, the rest is its own code."""
    import transformers
    from accelerate import DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, PartialState

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *_args, **_kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1, state_dict_type="SHARDED_STATE_DICT"
            )
            self.accelerator.state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    for epoch in range(first, last):
        AcceleratorState._reset_state()
        PartialState._reset_state()
        arguments = transformers.TrainingArguments(
            output_dir=str(folder / f"trainer-{world}"),
            use_cpu=True,
            ddp_backend="gloo",
            per_device_train_batch_size=BATCH // world,
            num_train_epochs=epoch + 1,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="epoch",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        model = Net()
        given = abar.torch.MAC, {"model": model, "lr": 0.05, **OPTIONS}
        trainer = Trainer(model=model, args=arguments, train_dataset=part(epoch), optimizer_cls_and_kwargs=given)
        trainer.train(resume_from_checkpoint=saved)
        assert all(hasattr(p, "full_tensor") for p in model.parameters()), "accelerate did not shard"
        saved = str(folder / f"trainer-{world}" / f"checkpoint-{(epoch + 1) * HALF // BATCH}")
    return weights(model)


CASES = {"lightning": lightning_epochs, "transformers": trainer_epochs}


def be(rank, world, folder, meeting):
    """Makes this process one of so many."""
    warnings.simplefilter("ignore")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    os.environ.update(TORCHELASTIC_RUN_ID="test", ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="127.0.0.1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{meeting}", rank=rank, world_size=world)


def be_rank(rank, folder):
    be(rank, WORLD, folder, "meeting")
    for name, case in CASES.items():
        if HAS[name]:
            torch.save(case(WORLD, Path(folder), 0, 2), f"{folder}/{name}.{rank}")
            print(name, flush=True)
    torch.distributed.barrier()
    os._exit(0)  # Lightning and accelerate have threads of their own


@unittest.skipUnless(HAS["gloo"] and HAS["fully_shard"], "there is no fully_shard")
class Sharded(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = Path(cls.folder.name)
        os.environ["MASTER_PORT"] = str(trainers.free_port())
        ranks = [start_python(__file__, "--rank", rank, cls.path) for rank in range(WORLD)]
        try:
            for process in ranks:
                finish_python(process, 250)
        finally:
            for process in ranks:
                process.kill()
        be(0, 1, cls.path, "alone")
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        cls.start, cls.expected = weights(Net()), trainers.run_alone(process_group=False)

    def check(self, found, what):
        moved = lambda found: {n: found[n] - self.start[n] for n in self.start}  # noqa: E731
        self.assert_all_close(moved(found), moved(self.expected), 1e-7, what)

    def check_case(self, name):
        if not HAS[name]:
            self.skipTest(f"there is no {name}")
        first, second = (torch.load(self.path / f"{name}.{rank}", weights_only=True) for rank in range(WORLD))
        self.assert_same(first, second, name)
        self.check(first, name)
        saved = {"lightning": f"lightning-{WORLD}-0", "transformers": f"trainer-{WORLD}/checkpoint-{HALF // BATCH}"}
        self.check(CASES[name](1, self.path, 1, 2, str(self.path / saved[name])), f"{name}, resumed in one process")

    def test_lightning(self):
        self.check_case("lightning")

    def test_trainer(self):
        self.check_case("transformers")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_rank(int(sys.argv[2]), sys.argv[3])
    else:
        support.main()
