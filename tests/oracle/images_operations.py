"""Operations on pixels, by Pillow 9 to 12: CRCs of their results, and the policies against torchvision and timm.

    images_operations.py              checks the published CRCs, then writes tests/golden/images_operations.txt
    images_operations.py --libraries  compares the policies' changes (images_draws.py) with torchvision's and timm's code

Needs Pillow below 13; --libraries also torch, torchvision, timm."""

import argparse
import pathlib
import random
import zlib

import PIL
from PIL import Image, ImageEnhance, ImageOps

import images_draws as draws

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "images_operations.txt"
FILTERS = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}
KINDS = ("formula", "noise", "flat", "two")


def make_image(kind, width, height):
    """Images that a few lines of C make, too."""
    state, pixels = 12345, bytearray()
    for y in range(height):
        for x in range(width):
            rgb = [7 * x + 3 * y, x * x // 5 + 11 * y, x * y // 3 + 40 * ((x // 9 + y // 7) & 3)]
            for c in range(3):
                state = (state * 1664525 + 1013904223) % 2**32
                if kind == "noise":
                    rgb[c] = state >> 24
                elif kind == "flat":
                    rgb[c] = (173, 0, 191)[c]  # its gray is halfway between two bytes
                elif kind == "two":
                    rgb[c] = (20 + 60 * c, 250 - 80 * c)[state >> 31]
            pixels += bytes(value % 256 for value in rgb)
    return Image.frombytes("RGB", (width, height), bytes(pixels))


def solarize_add(image, summand):
    return image.point([min(255, v + summand) if v < 128 else v for v in range(256)] * 3)


def apply(image, operation, value, matrix, chosen="bilinear", fill=(0, 0, 0)):
    if operation == "affine":
        return image.transform(image.size, Image.AFFINE, matrix, FILTERS[chosen], fillcolor=fill)
    if operation == "rotate":
        return image.rotate(value, FILTERS[chosen], fillcolor=fill)
    if operation in ("brightness", "color", "contrast", "sharpness"):
        return getattr(ImageEnhance, operation.capitalize())(image).enhance(value)
    if operation == "solarize-add":
        return solarize_add(image, value)
    plain = {"invert": ImageOps.invert, "autocontrast": ImageOps.autocontrast, "equalize": ImageOps.equalize}
    if operation in plain:
        return plain[operation](image)
    return {"posterize": ImageOps.posterize, "solarize": ImageOps.solarize}[operation](image, value)


def crc(image, before=0):
    return zlib.crc32(image.tobytes(), before)


def check_published():
    image = make_image("formula", 83, 61)
    assert crc(image) == 0x741A6216
    for change, expected in (
        (("rotate", 90, None), 0x6F60DA47),
        (draws.torchvision_change("Sharpness", draws.linspace(0, 0.99, 20)), 0xCBAD2ADB),
        (("equalize", 0, None), 0xAFEB7BD0),
        (draws.torchvision_change("ShearX", draws.linspace(0, 0.99, 20)), 0x883A0E09),
    ):
        assert crc(apply(image, *change)) == expected, change


def changes():
    """(operation, filter, fill, value or matrix)"""
    rng = random.Random(10)
    fills = [(0, 0, 0), (124, 116, 104), (255, 1, 128)]
    matrices = [(1, 0, 0, 0, 1, 0), (1, 0, 3, 0, 1, -2), (1, 0, -1, 0, 1, 0), (1, 0, 5000, 0, 1, 0), (1, 0, 0.5, 0, 1, 0)]
    matrices += [(1, 0, 0, 0, 1, -7.25), (1, 0, 12.8125, 0, 1, 0), (1, 0, 1.3, 0, 1, 2.6)]
    matrices += [(1, shear, 0, 0, 1, 0) for shear in (0.99, -0.66, 0.3, -0.033, 1e-9, -1e-15)]
    matrices += [(1, 0, 0, shear, 1, 0) for shear in (0.99, -0.66, 0.3, -0.033, 1e-9, -1e-15)]
    matrices += [(0.5, 0, 0, 0, 0.5, 0), (1.7, 0, -3, 0, 0.9, 1), (-1, 0, 17, 0, 1, 0), (1, 0, 0, 0, -1, 23), (0, 1, 0, 1, 0, 0)]
    matrices += [tuple(rng.uniform(-1.5, 1.5) * (20 if i % 3 == 2 else 1) for i in range(6)) for _ in range(8)]
    for chosen in FILTERS:
        for i, matrix in enumerate(matrices):
            yield "affine", chosen, fills[i % 3], matrix
        for i, degrees in enumerate((0, 4.5, -13.5, 30, 45, 89.99999, 90, -90, 135, 180, 270, 360, -350.25, 1e-13, -1e-20, 725.5)):
            yield "rotate", chosen, fills[i % 3], (degrees,)
    for operation in ("brightness", "color", "contrast", "sharpness"):
        for factor in (0, 0.01, 0.1, 0.21014609377726412, 0.5, 1 - 1e-9, 1, 1.2639999985694885, 1.66, 1.99, 3.5):
            yield operation, "bilinear", fills[0], (factor,)
    for bits in range(9):
        yield "posterize", "bilinear", fills[0], (bits,)
    for threshold in (0, 25.5, 127.5, 128, 178.5, 255, 256):
        yield "solarize", "bilinear", fills[0], (threshold,)
    for summand in (0, 1, 98, 110, 128):
        yield "solarize-add", "bilinear", fills[0], (summand,)
    for operation in ("invert", "autocontrast", "equalize"):
        yield operation, "bilinear", fills[0], (0,)


SIZES = [(1, 1), (2, 1), (1, 4), (2, 2), (3, 3), (4, 2), (2, 5), (5, 7), (17, 23), (64, 64), (83, 61), (300, 9), (131, 130)]


def write():
    check_published()
    lines = []
    for width, height in SIZES:
        images = [make_image(kind, width, height) for kind in KINDS]
        for operation, chosen, fill, numbers in changes():
            result = 0
            for image in images:
                value, matrix = (0, numbers) if operation == "affine" else (numbers[0], None)
                result = crc(apply(image, operation, value, matrix, chosen, fill), result)
            given = map(draws.number, (width, height, operation, chosen, *fill, *numbers))
            lines.append(f"{' '.join(given)} : {result:08x}")
    GOLDEN.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} cases")


# ---- the policies against the libraries --------------------------------------------------------------------------


def torchvision_result(image, name, magnitude):
    from torchvision.transforms import InterpolationMode, autoaugment

    if name == "Identity":
        return image
    return autoaugment._apply_op(image, name, magnitude, InterpolationMode.BILINEAR, [0.0, 0.0, 0.0])


def check_torchvision(images):
    """Every operation and bin of both policies, both signs; also the magnitudes themselves."""
    from torchvision.transforms import autoaugment

    count = 0
    for policy, library in (("trivial", autoaugment.TrivialAugmentWide()), ("rand", autoaugment.RandAugment())):
        for image in images:
            side = image.size[0]
            space = library._augmentation_space(31) if policy == "trivial" else library._augmentation_space(31, (side, side))
            assert list(space) == draws.TORCHVISION
            for name, (magnitudes, both) in space.items():
                assert both == draws.signed(name), name
                for i in range(31 if magnitudes.ndim else 1):
                    theirs = float(magnitudes[i]) if magnitudes.ndim else 0.0
                    ours = draws.torchvision_magnitude(policy, name, i, side)
                    assert theirs == ours, (policy, name, i, theirs, ours)
                    for sign in (1, -1) if both else (1,):
                        if name == "Identity":
                            continue
                        made = apply(image, *draws.torchvision_change(name, sign * ours))
                        assert made.tobytes() == torchvision_result(image, name, sign * theirs).tobytes(), (name, i, sign)
                        count += 1
    return count


def check_timm(images):
    """Every operation of rand-m9-mstd0.5-inc1 at many levels, both signs and filters."""
    from timm.data import auto_augment

    rng, count = random.Random(3), 0
    names = [name.replace("Increasing", "").replace("Rel", "") for name in auto_augment._RAND_INCREASING_TRANSFORMS]
    assert names[:15] == draws.TIMM, names
    for full, name in zip(auto_augment._RAND_INCREASING_TRANSFORMS[:15], draws.TIMM):
        for level in [0, 10, 9, 9.25] + [min(10, max(0, rng.gauss(9, 0.5))) for _ in range(12)]:
            for sign in (0, 1):
                auto_augment.random.random = lambda sign=sign: 0.9 if sign else 0.1  # _randomly_negate: above 1/2
                level_fn = auto_augment.LEVEL_TO_ARG[full]
                theirs = level_fn(level, {}) if level_fn else ()
                ours = draws.timm_argument(name, level, sign and draws.signed(name))
                assert (theirs or (0,))[0] == ours, (name, level, sign, theirs, ours)
                for image in images:
                    for chosen in ("bilinear", "bicubic"):
                        given = {"fillcolor": (124, 116, 104), "resample": FILTERS[chosen]}
                        result = auto_augment.NAME_TO_OP[full](image, *theirs, **given)
                        change = draws.timm_change(name, ours, image.size[0])
                        assert apply(image, *change, chosen, (124, 116, 104)).tobytes() == result.tobytes(), (name, level)
                        count += 1
    return count


def check_jitter(images):
    import torchvision.transforms.functional as functional

    names = {"brightness": "brightness", "contrast": "contrast", "color": "saturation"}
    for image in images:
        for operation, name in names.items():
            for factor in (0.0, 0.6, 1.3055851323530077):
                theirs = getattr(functional, f"adjust_{name}")(image, factor)
                assert apply(image, operation, factor, None).tobytes() == theirs.tobytes(), name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--libraries", action="store_true")
    assert int(PIL.__version__.split(".")[0]) < 13, "Pillow 13 gives other bytes"
    if not parser.parse_args().libraries:
        return write()
    images = [make_image(kind, side, side) for kind in KINDS[:2] for side in (31, 64)]
    torchvision_count, timm_count = check_torchvision(images), check_timm(images)
    check_jitter(images)
    print(f"{torchvision_count} results equal torchvision's, {timm_count} timm's")


if __name__ == "__main__":
    main()
