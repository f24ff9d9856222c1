"""What is random about images (docs/images.md): crops, policies, erased boxes, mixing, noise, drawn by counter.

    images_draws.py          checks the published values, then writes tests/golden/images_draws.txt

Python's own arithmetic alone. The purposes of the draws are numbered from `base`: the published values hold for 8, abar
draws with 10. A case is left out where a number is so close to being rounded the other way that another mathematical
library may do so."""

import math
import pathlib
import struct
import sys
import zlib

from philox import MASK, philox4x32

CROP, POLICY, ERASE, NOISE, MIX, JITTER = range(6)
PUBLISHED, OURS = 8, 10
GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "images_draws.txt"


class Close(Exception):
    """A number is too close to where it is rounded or compared."""


def apart(value, edge):
    if abs(value - edge) < 1e-9 * max(1.0, abs(value)) and value != edge:
        raise Close
    return value


def nearest(value):
    apart(value, math.floor(value) + 0.5)
    return round(value)  # half to even


def cut(value):
    apart(value, math.floor(value))
    apart(value, math.ceil(value))
    return int(value)


def uniform(word):
    return word * 2.0**-32


def below(word, n):
    return (word * n) >> 32


def coin(word):
    return word >> 31


def normal(words):
    """The first of two, by Box and Muller, from 53 bits each."""
    a, b = (words[0] << 32 | words[1]) >> 11, (words[2] << 32 | words[3]) >> 11
    return math.sqrt(-2.0 * math.log((a + 0.5) * 2.0**-53)) * math.cos(6.283185307179586476925 * (b * 2.0**-53))


class Sample:
    """One sample of one epoch."""

    def __init__(self, seed, epoch, sample, repetition=0, base=OURS):
        self.seed, self.epoch, self.sample, self.repetition, self.base = seed, epoch, sample, repetition, base

    def words(self, purpose, block):
        index = self.sample | self.repetition << 32 | block << 40
        counter = [index & MASK, index >> 32, self.epoch, self.base + purpose]
        return philox4x32(counter, [self.seed & MASK, self.seed >> 32])


# ---- views and erased boxes --------------------------------------------------------------------------------------


def box_of_area(area, low, high, word):
    """Sides of a box of this area, the aspect drawn evenly in its logarithm: with it, and against it."""
    aspect = math.exp(math.log(low) + (math.log(high) - math.log(low)) * uniform(word))
    return nearest(math.sqrt(area * aspect)), nearest(math.sqrt(area / aspect))


def view(key, timm, flip, low, high, width, height):
    """top, left, height, width, bicubic, mirror"""
    words = key.words(CROP, 10)
    last = (int(timm and coin(words[1])), int(flip and coin(words[0])))
    for attempt in range(10):
        u, v, top, left = key.words(CROP, attempt)
        area = width * height * (low + (high - low) * uniform(u))
        w, h = box_of_area(area, 3 / 4, 4 / 3, v)
        if 0 < w <= width and 0 < h <= height:
            return (below(top, height - h + 1), below(left, width - w + 1), h, w) + last
    w, h = width, height
    if width / height < 3 / 4:
        h = nearest(width / (3 / 4))
    elif width / height > 4 / 3:
        w = nearest(height * (4 / 3))
    return ((height - h) // 2, (width - w) // 2, h, w) + last


def erasing(key, timm, probability, side):
    """top, left, height, width; zeros: none"""
    if not uniform(key.words(ERASE, 0)[0]) < probability:
        return (0, 0, 0, 0)
    most, aspect = (1 / 3, 1 / 0.3) if timm else (0.33, 3.3)
    for attempt in range(10):
        u, v, top, left = key.words(ERASE, 1 + attempt)
        h, w = box_of_area(side * side * (0.02 + (most - 0.02) * uniform(u)), 0.3, aspect, v)
        if h < side and w < side:
            return (below(top, side - h + 1), below(left, side - w + 1), h, w) if h and w else (0, 0, 0, 0)
    return (0, 0, 0, 0)


# ---- policies ----------------------------------------------------------------------------------------------------

TORCHVISION = (
    "Identity ShearX ShearY TranslateX TranslateY Rotate Brightness Color Contrast Sharpness Posterize Solarize "
    "AutoContrast Equalize"
).split()
TIMM = (
    "AutoContrast Equalize Invert Rotate Posterize Solarize SolarizeAdd Color Contrast Brightness Sharpness ShearX ShearY "
    "TranslateX TranslateY"
).split()
ENHANCE = ("Brightness", "Color", "Contrast", "Sharpness")


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def linspace(low, high, i):
    """torch.linspace(low, high, 31)[i]. Double precision holds a float32 product exactly, so one rounding follows the sum
    but for the sum's own in double, which matters in no case here (images_operations.py compares)."""
    low, high = float32(low), float32(high)
    step = float32(float32(high - low) / 30)
    return float32(step * i + low) if i < 15 else float32(-step * (30 - i) + high)


def torchvision_magnitude(policy, name, i, side):
    trivial = policy == "trivial"
    if name.startswith("Shear"):
        return linspace(0, 0.99 if trivial else 0.3, i)
    if name.startswith("Translate"):
        return linspace(0, 32 if trivial else 150 / 331 * side, i)
    if name == "Rotate":
        return linspace(0, 135 if trivial else 30, i)
    if name in ENHANCE:
        return linspace(0, 0.99 if trivial else 0.9, i)
    if name == "Posterize":
        return 8 - round(i / (5.0 if trivial else 7.5))
    if name == "Solarize":
        return linspace(255, 0, i)
    return 0


def signed(name):
    return name not in ("Identity", "Invert", "Posterize", "Solarize", "SolarizeAdd", "AutoContrast", "Equalize")


def torchvision_change(name, magnitude):
    """(operation, value, matrix)"""
    if name.startswith("Shear"):
        angle = math.radians(math.degrees(math.atan(magnitude)))
        if name == "ShearX":
            return "affine", 0, (1, math.tan(angle), 0, 0, 1, 0)
        return "affine", 0, (1, 0, 0, math.sin(angle) / math.cos(angle), 1, 0)
    if name.startswith("Translate"):
        pixels = int(magnitude)
        return "affine", 0, (1, 0, -pixels, 0, 1, 0) if name == "TranslateX" else (1, 0, 0, 0, 1, -pixels)
    return name.lower(), 1.0 + magnitude if name in ENHANCE else magnitude, None


def timm_argument(name, level, negative):
    """level: 0 to 10"""
    share, sign = level / 10, -1 if negative else 1
    if name == "Rotate":
        return sign * (share * 30.0)
    if name == "Posterize":
        return 4 - cut(share * 4)
    if name == "Solarize":
        return 256 - min(256, cut(share * 256))
    if name == "SolarizeAdd":
        return min(128, cut(share * 110))
    if name in ENHANCE:
        return max(0.1, 1.0 + sign * (share * 0.9))
    if name.startswith("Shear"):
        return sign * (share * 0.3)
    if name.startswith("Translate"):
        return sign * (share * 0.45)
    return 0


def timm_change(name, argument, side):
    matrices = {
        "ShearX": (1, argument, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, argument, 1, 0),
        "TranslateX": (1, 0, argument * side, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, argument * side),
    }
    if name in matrices:
        return "affine", 0, matrices[name]
    return name.lower().replace("solarizeadd", "solarize-add"), argument, None


def named_changes(key, policy, magnitude, side):
    """name, magnitude (trivial, rand) or argument (rand-timm), word of the filter's coin"""
    if policy == "trivial":
        words = key.words(POLICY, 0)
        layers = [(TORCHVISION[below(words[0], 14)], below(words[1], 31), words)]
    elif policy == "rand":
        drawn = [key.words(POLICY, layer) for layer in range(2)]
        layers = [(TORCHVISION[below(words[0], 14)], magnitude, words) for words in drawn]
    if policy in ("trivial", "rand"):
        for name, i, words in layers:
            value = torchvision_magnitude(policy, name, i, side)
            yield name, -value if signed(name) and coin(words[2]) else value, words[3]
        return
    for layer in range(2):
        words = key.words(POLICY, 2 * layer)
        if uniform(words[1]) > 0.5:
            continue
        level = max(0.0, min(9 + 0.5 * normal(key.words(POLICY, 2 * layer + 1)), 10))
        name = TIMM[below(words[0], 15)]
        yield name, timm_argument(name, level, signed(name) and coin(words[2])), words[3]


def jitter_changes(key, strength):
    words = key.words(JITTER, 0)
    low, high = max(0.0, 1 - strength), 1 + strength
    names = ("brightness", "contrast", "color")
    orders = ("bcs", "bsc", "cbs", "csb", "sbc", "scb")
    for letter in orders[below(words[3], 6)]:
        i = "bcs".index(letter)
        yield names[i], low + (high - low) * uniform(words[i]), None


def changes(key, policy, timm, magnitude, chosen, strength, side):
    """(operation, value, matrix, filter, fill); chosen: the filter, or "style" """
    fill = (124, 116, 104) if timm else (0, 0, 0)
    if policy == "jitter":
        return [change + ("bilinear" if chosen == "style" else chosen, fill) for change in jitter_changes(key, strength)]
    result = []
    for name, value, word in named_changes(key, policy, magnitude, side):
        if name == "Identity":
            continue
        change = timm_change(name, value, side) if policy == "rand-timm" else torchvision_change(name, value)
        drawn = "bicubic" if timm and coin(word) else "bilinear"
        result.append(change + (drawn if chosen == "style" else chosen, fill))
    return result


# ---- mixing and noise --------------------------------------------------------------------------------------------


def log_gamma(key, alpha, block):
    d = (alpha + 1) - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        x, words = normal(key.words(MIX, block)), key.words(MIX, block + 1)
        block += 2
        u, b = ((word + 0.5) * 2.0**-32 for word in words[:2])
        t = 1 + c * x
        if t <= 0:
            continue
        v = t**3
        if apart(math.log(u) - (x * x / 2 + d - d * v + d * math.log(v)), 0) < 0:
            return math.log(d * v) + math.log(b) / alpha, block


def beta(key, alpha):
    first, block = log_gamma(key, alpha, 1)
    second, _ = log_gamma(key, alpha, block)
    return 1 / (1 + math.exp(second - first)) if second - first < 700 else 0.0


def mixing(seed, epoch, group, timm, mixup, cutmix, side, base=OURS):
    """cutmix, share, top, left, height, width"""
    key = Sample(seed, epoch, group, 0, base)
    words = key.words(MIX, 0)
    cuts = cutmix > 0 and (mixup <= 0 or uniform(words[0]) < 0.5)
    share = beta(key, cutmix if cuts else mixup)
    if not cuts:
        return 0, share, 0, 0, 0, 0
    root = math.sqrt(1 - share)
    half = cut(side * root) // 2 if timm else cut(0.5 * root * side)  # the same number
    x, y = below(words[1], side), below(words[2], side)
    top, left = max(y - half, 0), max(x - half, 0)
    h, w = min(y + half, side) - top, min(x + half, side) - left
    return 1, 1 - h * w / (side * side), top, left, h, w


def quantile(p):
    """AS 241, PPND16."""
    numerators = (
        (3.3871328727963666080e0, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
    )
    denominators = (
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
         21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
         0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    )
    q = p - 0.5
    tail = abs(q) > 0.425
    r = math.sqrt(-math.log(min(p, 1 - p))) - 1.6 if tail else 0.180625 - q * q
    top = bottom = 0.0
    for a, b in zip(reversed(numerators[tail]), reversed(denominators[tail])):
        top, bottom = top * r + a, bottom * r + b
    return math.copysign(top / bottom, q) if tail else q * top / bottom


def noise_table():
    return struct.pack("<4096f", *(quantile((i + 0.5) / 4096) for i in range(4096)))


# ---- the published values, and ours ------------------------------------------------------------------------------


def check_published():
    """Section 10 of the definitions."""
    keys = [Sample(7, 3, sample, 1, PUBLISHED) for sample in range(4)]
    assert keys[2].words(CROP, 0) == [0x50BD88DF, 0xFBD1E4EB, 0xDEF56F95, 0x39B7CACB]
    views = [(4, 8, 370, 488, 0, 1), (148, 148, 206, 237, 1, 1), (128, 44, 229, 303, 0, 0), (37, 28, 182, 190, 1, 1)]
    assert [view(key, True, True, 0.08, 1.0, 500, 375) for key in keys] == views
    trivial = [[("TranslateY", -18.133333206176758)], [("Contrast", -0.2639999985694885)], [("ShearY", 0.23100000619888306)],
               [("TranslateY", 0)]]
    assert [[drawn[:2] for drawn in named_changes(key, "trivial", 0, 176)] for key in keys] == trivial
    timm = [[], [("Brightness", 0.21014609377726412), ("TranslateX", 0.38181484430754203)], [("Invert", 0)], [("Posterize", 1)]]
    assert [[drawn[:2] for drawn in named_changes(key, "rand-timm", 0, 224)] for key in keys] == timm
    assert changes(keys[1], "rand-timm", True, 0, "style", 0, 224)[1][3] == "bilinear"
    boxes = [(28, 6, 64, 207), (53, 29, 133, 88), (35, 101, 32, 53), (0, 0, 0, 0)]
    assert [erasing(key, True, 0.25, 224) for key in keys] == boxes
    assert mixing(7, 3, 0, False, 0.2, 0, 176, PUBLISHED)[1] == 0.027762158064333495
    assert mixing(7, 3, 0, False, 0.8, 0, 176, PUBLISHED)[1] == 0.39550570894950826
    assert mixing(7, 3, 1, False, 0, 1.0, 176, PUBLISHED) == (1, 0.7303719008264462, 80, 89, 96, 87)
    assert mixing(7, 3, 1, True, 0, 1.0, 224, PUBLISHED) == (1, 0.7347337372448979, 103, 114, 121, 110)
    assert zlib.crc32(noise_table()) == 0xDA22B45B


SIZES = [(500, 375), (375, 500), (64, 64), (1, 1), (1, 900), (900, 1), (2, 3), (4000, 40), (37, 4099), (640, 480), (3000, 2000)]
SEEDS = [7, 0, 2**64 - 1, 0x123456789ABCDEF0]


def spread(i):
    """A sample of its own for each case, near and far places, epochs and repetitions."""
    return SEEDS[i % 4], (0, 3, 99, 2**32 - 1)[i // 4 % 4], (i * 2654435761) % 2**31 if i % 3 else i, (0, 1, 2, 255)[i // 3 % 4]


def number(value):
    return str(int(value)) if not isinstance(value, str) and value == int(value) else str(value)


def line(kind, given, result):
    return " ".join([kind, *map(number, given), ":", *map(number, result)])


def view_lines(count):
    for i in range(count):
        key, timm, flip = spread(i), i % 2, int(i % 5 != 0)
        low, high = (0.08, 1.0) if i % 3 else (0.25, 0.5)
        width, height = SIZES[i % len(SIZES)]
        yield lambda: line("view", (*key, timm, flip, low, high, width, height), view(Sample(*key), timm, flip, low, high, width, height))


FILTERS = ("style", "nearest", "bilinear", "bicubic")


def flat(drawn):
    for operation, value, matrix, chosen, fill in drawn:
        yield from (operation, chosen, *fill)
        yield from matrix or (value,)


def change_lines(count):
    policies = ("trivial", "rand-timm", "rand", "rand-timm", "jitter")
    for i in range(count):
        key, policy, timm = spread(i), policies[i % 5], i // 5 % 2
        magnitude, chosen, strength = (9, 0, 30, 14, 15, 11, 26)[i // 5 % 7], FILTERS[i // 5 % 4 if i % 8 == 0 else 0], (0.4, 1.5)[i // 10 % 2]
        side = (176, 224, 64, 1)[i // 15 % 4]
        yield lambda: line("changes", (policy, *key, timm, magnitude, chosen, strength, side),
                           (lambda drawn: (len(drawn), *flat(drawn)))(changes(Sample(*key), policy, timm, magnitude, chosen, strength, side)))


def erase_lines(count):
    for i in range(count):
        key, timm = spread(i), i % 2
        probability, side = ((1.0, 224), (0.25, 224), (0.1, 176), (1.0, 64), (1.0, 8), (1.0, 3), (1.0, 1), (1.0, 5))[i // 2 % 8]
        yield lambda: line("erase", (*key, timm, probability, side), erasing(Sample(*key), timm, probability, side))


def mix_lines(count):
    for i in range(count):
        seed, epoch, group, _ = spread(i)
        timm, side = i % 2, (224, 176, 64, 5)[i // 2 % 4]
        mixup, cutmix = ((0.2, 1.0), (0.8, 0.0), (0.0, 1.0), (0.8, 1.0), (0.001, 0.01), (30.0, 0.0), (0.0, 1000.0))[i % 7]
        yield lambda: line("mix", (seed, epoch, group, timm, mixup, cutmix, side), mixing(seed, epoch, group, timm, mixup, cutmix, side))


def main():
    check_published()
    lines, left_out = [], 0
    for kind in (view_lines(220), change_lines(800), erase_lines(320), mix_lines(210)):
        for case in kind:
            try:
                lines.append(case())
            except Close:
                left_out += 1
    GOLDEN.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} cases, {left_out} too close to a rounding")


if __name__ == "__main__":
    sys.exit(main())
