"""Times PyTorch's image loading, for comparison with abar's: files to normalised, collated batches.

    python3 peer_images.py --data DIR --recipe resnet --workers 2
    python3 peer_images.py --data DIR --recipe deit --form timm timm-prefetch --seconds 20

DIR is an image folder with train/CLASS/. Two recipes:

  resnet  176 x 176: random resized crop (bilinear), mirror, TrivialAugmentWide, normalise, random erasing 0.1
  deit    224 x 224: timm's create_transform with rand-m9-mstd0.5-inc1, random interpolation, erasing 0.25

Each recipe has several forms that do the same work: Pillow images, or tensors decoded by Pillow or by torchvision.io, with
the first or the second version of torchvision's transforms; for deit also timm's two loaders. Prints a JSON object per form and
line: images per second of wall time, and per second of CPU time of all processes, which other load disturbs less.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import torch
import torchvision
from PIL import Image
from timm.data import create_dataset, create_loader, create_transform
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import InterpolationMode, v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BILINEAR = InterpolationMode.BILINEAR


# ---- decoders ------------------------------------------------------------------------------------


def pillow(path):
    with Image.open(path) as image:
        return image.convert("RGB")


def pillow_tensor(path):
    return v2.functional.pil_to_tensor(pillow(path))


def torch_tensor(path):
    return decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)


# ---- the recipes, in their forms -------------------------------------------------------------------


def resnet_v1():
    return v1.Compose(
        [
            v1.RandomResizedCrop(176, interpolation=BILINEAR, antialias=True),
            v1.RandomHorizontalFlip(),
            v1.TrivialAugmentWide(interpolation=BILINEAR),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float32),
            v1.Normalize(MEAN, STD),
            v1.RandomErasing(0.1),
        ]
    )


def resnet_v2(tensors):
    return v2.Compose(
        [
            v2.RandomResizedCrop(176, interpolation=BILINEAR, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(interpolation=BILINEAR),
            *([] if tensors else [v2.PILToTensor()]),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.RandomErasing(0.1),
        ]
    )


def deit_timm():
    return create_transform(
        input_size=224,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="random",
        re_prob=0.25,
        re_mode="pixel",
        re_count=1,
        mean=MEAN,
        std=STD,
    )


def deit_v2():
    """As much work as timm's: two operations, each with probability 1/2."""
    return v2.Compose(
        [
            v2.RandomChoice(
                [
                    v2.RandomResizedCrop(224, interpolation=i, antialias=True)
                    for i in (BILINEAR, InterpolationMode.BICUBIC)
                ]
            ),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.RandAugment(1, 9, interpolation=BILINEAR)], 0.5),
            v2.RandomApply([v2.RandAugment(1, 9, interpolation=BILINEAR)], 0.5),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.RandomErasing(0.25, value="random"),
        ]
    )


FORMS = {
    "resnet": {
        "v1-pillow": (pillow, resnet_v1),
        "v2-pillow": (pillow, lambda: resnet_v2(False)),
        "v2-tensor-pillow": (pillow_tensor, lambda: resnet_v2(True)),
        "v2-tensor-torch": (torch_tensor, lambda: resnet_v2(True)),
    },
    "deit": {
        "timm": (pillow, deit_timm),
        "timm-prefetch": None,  # its own loader
        "v2-tensor-pillow": (pillow_tensor, deit_v2),
        "v2-tensor-torch": (torch_tensor, deit_v2),
    },
}


class Photographs(Dataset):
    def __init__(self, folder, load, transform, length):
        classes = sorted(p for p in folder.iterdir() if p.is_dir())
        self.files = [
            (path, label) for label, c in enumerate(classes) for path in sorted(c.rglob("*")) if path.is_file()
        ]
        self.load, self.transform, self.length = load, transform, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        path, label = self.files[i % len(self.files)]
        return self.transform(self.load(path)), label


def loader_of(recipe, form, folder, batch, workers):
    length = 10**6  # more than is taken, so that no epoch ends while the clock runs
    if form == "timm-prefetch":
        data = create_dataset("", root=str(folder))
        repeated = torch.utils.data.ConcatDataset([data] * (length // len(data) + 1))
        transform = create_transform(
            input_size=224,
            is_training=True,
            use_prefetcher=True,
            auto_augment="rand-m9-mstd0.5-inc1",
            interpolation="random",
            mean=MEAN,
            std=STD,
        )
        data.transform = transform
        loader = create_loader(
            data, (3, 224, 224), batch, is_training=True, use_prefetcher=True, re_prob=0.25, re_mode="pixel",
            auto_augment="rand-m9-mstd0.5-inc1", interpolation="random", mean=MEAN, std=STD,
            num_workers=workers, device=torch.device("cpu"), pin_memory=False,
        )  # fmt: skip
        loader.loader = DataLoader(
            repeated, batch, shuffle=True, num_workers=workers, drop_last=True, prefetch_factor=4,
            collate_fn=loader.loader.collate_fn, worker_init_fn=loader.loader.worker_init_fn,
        )  # fmt: skip
        return loader
    load, transform = FORMS[recipe][form]
    data = Photographs(folder, load, transform(), length)
    return DataLoader(data, batch, shuffle=True, num_workers=workers, drop_last=True, prefetch_factor=4)


# ---- timing ------------------------------------------------------------------------------------------


def children():
    """Processes below this one."""
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        return f.read().split()


def cpu_seconds():
    ticks = 0
    for process in ["self", *children()]:
        with open(f"/proc/{process}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(recipe, form, folder, batch, workers, warm_up, seconds):
    images = 0
    began = cpu = None
    for i, (x, _) in enumerate(loader_of(recipe, form, folder, batch, workers)):
        assert x.shape[0] == batch and x.dtype == torch.float32
        now = time.perf_counter()
        if began is None:
            if i + 1 >= warm_up:
                began, cpu = now, cpu_seconds()
            continue
        images += batch
        if now - began >= seconds:
            took, used = now - began, cpu_seconds() - cpu
            break
    return {
        "recipe": recipe,
        "form": form,
        "workers": workers,
        "images": images,
        "images_per_second": round(images / took, 1),
        "images_per_cpu_second": round(images / used, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipe", nargs="+", choices=sorted(FORMS), default=sorted(FORMS))
    parser.add_argument("--form", nargs="+", help="all of the recipe's unless given")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=4, help="batches before the clock starts")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for recipe, form in itertools.chain.from_iterable(
        ((r, f) for f in FORMS[r] if not args.form or f in args.form) for r in args.recipe
    ):
        result = measure(recipe, form, args.data / "train", args.batch, args.workers, args.warm_up, args.seconds)
        versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "pillow": Image.__version__}
        print(json.dumps(result | versions), flush=True)


if __name__ == "__main__":
    main()
