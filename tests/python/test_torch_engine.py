"""A small ResNet and a small vision transformer under abar.torch against abar's own engine (engine_run, from engine_run.c), from
the same weights and batches: loss and preconditioned gradients of step 0 to 1e-5, twenty losses at a small learning rate to 1e-4."""

import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import support
from support import CLASSES, Case, F, abar, np, taken_step, torch

import golden_train
import networks
import networks_vit
import store

ENGINE = Path(os.environ.get("ABAR_ENGINE_RUN") or support.ROOT / "build" / "tests" / "engine_run")
WIDTH, STEPS, LR = 8, 20, 3e-4
SHAPE = (4, 16, 3, 16, 16)  # (K, N, C, H, W)


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = {"F64": np.float64, "F32": np.float32}[entry["dtype"]]
        tensors[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"]).copy()
    return tensors


def make_data():
    images, labels = golden_train.make_images(5, SHAPE)
    inputs = (torch.as_tensor(images).float() / 255 - 0.45) / 0.25
    return inputs, torch.as_tensor(labels)


def make_resnet():
    torch.manual_seed(5)
    return networks.resnet_cifar(1, width=WIDTH).train()


def make_vit():
    """Weights large enough that attention is far from uniform."""
    torch.manual_seed(5)
    model = networks_vit.DeiT(image=16, patch=4, width=12, depth=2, heads=3, classes=10).train()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(40)
    return model


@support.unittest.skipUnless(ENGINE.exists(), f"{ENGINE} is not built")
class Engine(Case):
    make_model = staticmethod(make_resnet)
    width = WIDTH
    words: list = []  # further settings of the engine
    keywords: dict = {}  # ... of the binding

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.inputs, cls.labels = make_data()
        tensors = {f"w.{name}": p for name, p in cls.make_model().named_parameters()}
        store.save(cls.path("in"), {**tensors, "inputs": cls.inputs, "labels": cls.labels})

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def engine(self, method, **options):
        words = [f"{key.replace('_', '-')}={value}" for key, value in options.items()]
        command = [ENGINE, self.path("in"), self.path(method), method, self.width, STEPS, LR, "weight-decay=0", "threads=1"]
        done = subprocess.run([*map(str, command), *self.words, *words], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read_safetensors(self.path(method))

    def loss(self, model, k):
        k = k % SHAPE[0]
        return F.cross_entropy(model(self.inputs[k]), self.labels[k].long())

    def check(self, method, **options):
        expected = self.engine(method, **options)
        model = self.make_model()
        first = CLASSES[method](model, LR, momentum=0.0, **options, **self.keywords)
        loss = self.loss(model, 0)
        loss.backward()
        self.assert_close(loss, expected["losses"][0], 1e-5, f"{method}: loss of step 0")
        for group in first.param_groups:  # the rate of the KL clip stays that of the start
            group["lr"] = 1.0
        found = {f"momentum.{name}": value for name, value in taken_step(model, first).items()}
        wanted = {name: value for name, value in expected.items() if name != "losses"}
        self.assert_all_close(found, wanted, 1e-5, method)
        first.close()
        self.check_losses(method, expected["losses"], options)

    def check_losses(self, method, expected, options):
        model = self.make_model()
        optimizer = CLASSES[method](model, LR, **options, **self.keywords)
        losses = []
        for k in range(STEPS):
            optimizer.zero_grad()
            loss = self.loss(model, k)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertGreater(losses[0] - losses[-4], 0.001, "training changed nothing")
        worst = float(np.abs(np.array(losses) / expected - 1).max())
        self.assertLess(worst, 1e-4, f"{method}: losses apart by {worst:.1e}")

    def test_of_mac_takes_the_same_steps(self):
        self.check("mac")

    def test_of_mac_with_frequent_refreshes_takes_the_same_steps(self):
        self.check("mac", damping=0.1, tcov=2, tinv=4)

    def test_of_the_other_methods_takes_the_same_steps(self):
        for method in ("smac", "foof", "kfac", "eva", "lngd"):
            with self.subTest(method):
                self.check(method, tcov=2, tinv=4)


class Transformer(Engine):
    """Attention is written out in the model, which does not say how many heads it has: the optimizer is told."""

    make_model = staticmethod(make_vit)
    width = 0
    words = ["width=12", "heads=3", "depth=2", "patch=4", "decay=coupled", "label-smoothing=0", "drop-path=0", "clip=0"]
    keywords = {"attention": {"blocks.*.attn": abar.torch.Attention(qkv="qkv", heads=3)}}

    def test_of_mac_takes_the_same_steps(self):
        self.check("mac", damping=0.1, tcov=2, tinv=4)

    def test_of_mac_with_every_statistic_of_values_takes_the_same_steps(self):
        for stat in ("expectation", "factored", "per-head"):
            with self.subTest(stat):
                self.check("mac", damping=0.1, tcov=2, tinv=4, value_stat=stat)

    def test_of_mac_with_frequent_refreshes_takes_the_same_steps(self):
        self.check("mac", damping=0.3, tcov=1, tinv=1)

    def test_of_the_other_methods_takes_the_same_steps(self):
        self.check("smac", tcov=2, tinv=4)


if __name__ == "__main__":
    support.main()
