"""Writes images_pixels.safetensors: small image files, and CRC-32s of what Pillow makes of them.

python3 images_pixels.py [--out DIR]. Needs pillow >= 10, < 13 (later ones resize in another order) and numpy.

NAME.file: the bytes. NAME.views (n, 13) int32: crop (top, left, height, width), the size it is resized to (height, width),
window of that (top, left, height, width), filter (2 bilinear, 3 bicubic), mirror, CRC-32 of the RGB planes.
NAME.shrunk (2): a short side, and the CRC-32 of the planes of Pillow's JPEG of that size. Files that Pillow cannot write
(samplings, gray of few bits, interlacing) are made by the small encoders below.
"""

import argparse
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

import store

FILTERS = {2: Image.BILINEAR, 3: Image.BICUBIC}


def picture(width, height, seed=0):
    """Gradients, edges and some noise: (height, width, 3) bytes."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = 7 * x + 3 * y, x * x // 5 + 11 * y
    blue = x * y // 3 + 40 * ((x // 9 + y // 7) & 3)
    noise = np.random.default_rng(seed).integers(0, 12, (height, width, 3))
    image = np.stack([red // 3, green // 4, blue // 2], 2) + noise
    return (255 - np.abs(image % 511 - 255)).astype(np.uint8)


# --- a baseline JPEG encoder for any sampling factors ------------------------------------------------------------------
ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8))
DC_SYMBOLS = list(range(12))  # codes of 4 bits, in this order
AC_SYMBOLS = [0x00, 0xF0] + [run << 4 | size for run in range(16) for size in range(1, 11)]  # codes of 8 bits


def segment(marker, payload):
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + bytes(payload)


def huffman_table(kind, symbols, bits):
    counts = [0] * 16
    counts[bits - 1] = len(symbols)
    return segment(0xC4, [kind] + counts + symbols)


class Bits:
    def __init__(self):
        self.data, self.value, self.count = bytearray(), 0, 0

    def put(self, value, count):
        for i in reversed(range(count)):
            self.value, self.count = self.value << 1 | (value >> i & 1), self.count + 1
            if self.count == 8:
                self.data.append(self.value)
                if self.value == 0xFF:
                    self.data.append(0)
                self.value = self.count = 0

    def flush(self):
        while self.count:
            self.put(1, 1)


def put_number(bits, code, code_bits, value, size):
    bits.put(code, code_bits)
    bits.put(value if value >= 0 else value + (1 << size) - 1, size)


def put_block(bits, block, previous):
    """Huffman codes of one quantised block in zigzag order; returns its DC value."""
    difference = int(block[0]) - previous
    size = abs(difference).bit_length()
    put_number(bits, DC_SYMBOLS.index(size), 4, difference, size)
    run = 0
    for value in map(int, block[1:]):
        if value == 0:
            run += 1
            continue
        for _ in range(run // 16):
            bits.put(AC_SYMBOLS.index(0xF0), 8)
        size = abs(value).bit_length()
        put_number(bits, AC_SYMBOLS.index((run % 16) << 4 | size), 8, value, size)
        run = 0
    if run:
        bits.put(AC_SYMBOLS.index(0), 8)
    return int(block[0])


def cosines():
    k, n = np.mgrid[0:8, 0:8]
    return np.cos((2 * n + 1) * k * np.pi / 16) * np.where(k == 0, np.sqrt(1 / 8), 0.5)


def quantised(plane, step):
    """(rows, columns) samples, multiples of 8, to (rows/8, columns/8, 64) integers in zigzag order."""
    rows, columns = plane.shape[0] // 8, plane.shape[1] // 8
    blocks = plane.reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3).astype(float) - 128
    c = cosines()
    return np.rint(c @ blocks @ c.T / step).astype(int).reshape(rows, columns, 64)[:, :, ZIGZAG]


def sampled(plane, h, v, h_max, v_max):
    """A component's samples, padded to whole MCUs."""
    height, width = plane.shape
    full = np.pad(plane, ((0, -height % (8 * v_max)), (0, -width % (8 * h_max))), mode="edge")
    return full[:: v_max // v, :: h_max // h] if v_max % v == 0 and h_max % h == 0 else uneven(full, h, v, h_max, v_max)


def uneven(full, h, v, h_max, v_max):
    """Factors that do not divide the largest: the nearest samples."""
    rows, columns = full.shape[0] * v // v_max, full.shape[1] * h // h_max
    return full[np.arange(rows) * v_max // v][:, np.arange(columns) * h_max // h]


def scan(blocks, factors, mcu_rows, mcu_columns, restart):
    """Entropy-coded data of interleaved components."""
    bits, previous, count = Bits(), [0] * len(factors), 0
    for my in range(mcu_rows):
        for mx in range(mcu_columns):
            if restart and count and count % restart == 0:
                bits.flush()
                bits.data += bytes([0xFF, 0xD0 + (count // restart - 1) % 8])
                previous = [0] * len(factors)
            for c, (h, v) in enumerate(factors):
                for by in range(v):
                    for bx in range(h):
                        previous[c] = put_block(bits, blocks[c][my * v + by, mx * h + bx], previous[c])
            count += 1
    bits.flush()
    return bytes(bits.data)


def scan_header(components):
    body = [len(components)]
    for c in components:
        body += [c, 0x00]
    return segment(0xDA, body + [0, 63, 0])


def jpeg(planes, factors, step=6, restart=0, adobe=None, ids=None, separate=False):
    """planes: one per component, of equal size. separate: a scan per component."""
    height, width = planes[0].shape
    ids = ids or list(range(1, len(planes) + 1))
    h_max, v_max = max(h for h, _ in factors), max(v for _, v in factors)
    blocks = [quantised(sampled(p, h, v, h_max, v_max), step) for p, (h, v) in zip(planes, factors)]
    out = b"\xff\xd8"
    if adobe is not None:
        out += segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, adobe))
    out += segment(0xDB, [0] + [step] * 64)
    frame = struct.pack(">BHHB", 8, height, width, len(planes))
    out += segment(0xC0, frame + b"".join(bytes([i, h << 4 | v, 0]) for i, (h, v) in zip(ids, factors)))
    out += huffman_table(0x00, DC_SYMBOLS, 4) + huffman_table(0x10, AC_SYMBOLS, 8)
    if restart:
        out += segment(0xDD, struct.pack(">H", restart))
    if separate or len(planes) == 1:  # the MCU of a lone component is a block, padding left out
        for c, (h, v) in enumerate(factors):
            rows = -(-(-(-height * v // v_max)) // 8)
            columns = -(-(-(-width * h // h_max)) // 8)
            out += scan_header([ids[c]]) + scan([blocks[c]], [(1, 1)], rows, columns, restart)
    else:
        mcu_rows, mcu_columns = -(-height // (8 * v_max)), -(-width // (8 * h_max))
        out += scan_header(ids) + scan(blocks, factors, mcu_rows, mcu_columns, restart)
    return out + b"\xff\xd9"


def ycc(image):
    return [np.asarray(p) for p in Image.fromarray(image).convert("YCbCr").split()]


# --- a PNG encoder for all colour types --------------------------------------------------------------------------------
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def packed(row, depth):
    """(columns, samples) numbers to bytes."""
    flat = row.reshape(-1)
    if depth == 16:
        return flat.astype(">u2").tobytes()
    if depth == 8:
        return flat.astype(np.uint8).tobytes()
    bits = (flat[:, None] >> np.arange(depth)[::-1] & 1).reshape(-1)
    return np.packbits(bits.astype(np.uint8)).tobytes()


def filtered(rows, bytes_per_pixel):
    """Rows with the filters 0 to 4 in turn."""
    out, above = b"", None
    for y, row in enumerate(rows):
        current = np.frombuffer(row, np.uint8).astype(int)
        above = np.zeros_like(current) if above is None else above
        left, corner = np.zeros_like(current), np.zeros_like(current)
        left[bytes_per_pixel:], corner[bytes_per_pixel:] = current[:-bytes_per_pixel], above[:-bytes_per_pixel]
        estimate = left + above - corner
        distance = np.abs(np.stack([estimate - left, estimate - above, estimate - corner]))
        paeth = np.choose(distance.argmin(0), [left, above, corner])
        predicted = [np.zeros_like(current), left, above, (left + above) // 2, paeth][y % 5]
        out += bytes([y % 5]) + ((current - predicted) % 256).astype(np.uint8).tobytes()
        above = current
    return out


def png(samples, depth, colour, interlaced=False, extra=b"", bad_crc=False, end=True, small_window=False):
    """samples: (height, width, samples of a pixel)."""
    height, width, n = samples.shape
    step = max(1, n * depth // 8)
    grids = ADAM7 if interlaced else [(0, 0, 1, 1)]
    raw = b""
    for x, y, dx, dy in grids:
        part = samples[y::dy, x::dx]
        if part.size:
            raw += filtered([packed(row, depth) for row in part], step)
    data = zlib.compress(raw, 9)
    if small_window:  # the stream claims one of 256 bytes
        data = b"\x08\x1d" + data[2:]
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
    out += extra
    for at in range(0, len(data), 600):
        piece = chunk(b"IDAT", data[at : at + 600])
        out += piece[:-1] + bytes([piece[-1] ^ 1]) if bad_crc else piece
    return out + (chunk(b"IEND", b"") if end else b"")


# --- the files ---------------------------------------------------------------------------------------------------------
def saved(image, mode, **options):
    out = io.BytesIO()
    Image.fromarray(image).convert(mode).save(out, **options)
    return out.getvalue()


def insert_end(data, share):
    """The first part of a JPEG, and an EOI: what follows is gray, or unrefined."""
    return data[: int(len(data) * share)] + b"\xff\xd9"


def pillow_jpegs():
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        for width, height in ((1, 1), (3, 2), (8, 8), (17, 33), (37, 1), (1, 29), (83, 61)):
            image = picture(width, height, seed=width)
            options = {"format": "JPEG", "quality": 85, "subsampling": subsampling}
            yield f"jpeg_{name}_{width}x{height}", saved(image, "RGB", **options)
    image = picture(70, 53)
    for name, subsampling in (("444", 0), ("420", 2)):
        options = {"format": "JPEG", "quality": 90, "subsampling": subsampling}
        progressive = saved(image, "RGB", progressive=True, **options)
        yield f"jpeg_progressive_{name}", progressive
        if subsampling == 0:  # of others libjpeg-turbo 2 and 3 smooth some edges differently
            yield "jpeg_unfinished_444", insert_end(progressive, 0.45)
        yield f"jpeg_restart_{name}", saved(image, "RGB", restart_marker_blocks=3, **options)
        yield f"jpeg_early_end_{name}", insert_end(saved(image, "RGB", **options), 0.6)
    for width, height in ((1, 1), (31, 18), (70, 53)):
        yield f"jpeg_gray_{width}x{height}", saved(picture(width, height), "L", format="JPEG", quality=90)
    yield "jpeg_gray_progressive", saved(image, "L", format="JPEG", quality=90, progressive=True)
    yield "jpeg_cmyk", saved(image, "CMYK", format="JPEG", quality=90)
    yield "jpeg_cmyk_progressive", saved(image, "CMYK", format="JPEG", quality=90, progressive=True)


def own_jpegs():
    image = picture(75, 58, seed=5)
    planes, one = ycc(image), (1, 1)
    samplings = {
        "440": [(1, 2), one, one],
        "411": [(4, 1), one, one],
        "410": [(4, 2), one, one],
        "444_doubled": [(2, 1), (2, 1), (2, 1)],
        "mixed": [(2, 2), (2, 1), (1, 2)],
        "chroma_finer": [one, (2, 2), (2, 2)],
        "three": [(3, 1), one, one],
        "three_high": [(1, 3), one, one],
        "four_four": [(2, 4), one, one],
    }
    for name, factors in samplings.items():
        yield f"jpeg_own_{name}", jpeg(planes, factors)
    yield "jpeg_own_restart", jpeg(planes, [(2, 2), one, one], restart=2)
    yield "jpeg_own_separate", jpeg(planes, [(2, 2), one, one], separate=True)
    yield "jpeg_own_separate_444", jpeg(planes, [one, one, one], separate=True)
    yield "jpeg_own_gray_2x2", jpeg(planes[:1], [(2, 2)])
    yield "jpeg_own_gray_3x1", jpeg(planes[:1], [(3, 1)])
    rgb = [image[:, :, c] for c in range(3)]
    yield "jpeg_own_rgb_adobe", jpeg(rgb, [one] * 3, adobe=0)
    yield "jpeg_own_rgb_ids", jpeg(rgb, [one] * 3, ids=[82, 71, 66])
    black = image[::-1, ::-1, 1] // 2 + 100
    yield "jpeg_own_ycck", jpeg(planes + [black], [(2, 2), one, one, (2, 2)], adobe=2)
    yield "jpeg_own_cmyk_plain", jpeg(rgb + [black], [one] * 4)
    yield "jpeg_own_tall", jpeg(ycc(picture(9, 150)), [(2, 2), one, one])


def pngs():
    rng = np.random.default_rng(3)
    width, height = 37, 26
    image = picture(width, height, seed=9)
    alpha = rng.integers(0, 256, (height, width, 1))
    wide = image.astype(int) * 256 + rng.integers(0, 256, image.shape)
    palette = rng.integers(0, 256, 768).astype(np.uint8).tobytes()
    plte = lambda n: chunk(b"PLTE", palette[: 3 * n])
    for kind, interlaced in (("", False), ("interlaced_", True)):
        for depth in (1, 2, 4, 8, 16):
            levels = (wide[:, :, :1] >> (16 - depth)).astype(int)
            yield f"png_{kind}gray{depth}", png(levels, depth, 0, interlaced)
            if depth < 16:
                yield f"png_{kind}palette{depth}", png(levels, depth, 3, interlaced, plte(1 << depth))
        for depth, values in ((8, image.astype(int)), (16, wide)):
            clear = alpha * (257 if depth == 16 else 1)
            yield f"png_{kind}rgb{depth}", png(values, depth, 2, interlaced)
            yield f"png_{kind}rgba{depth}", png(np.concatenate([values, clear], 2), depth, 6, interlaced)
            yield f"png_{kind}gray_alpha{depth}", png(np.concatenate([values[:, :, :1], clear], 2), depth, 4, interlaced)
    levels = image[:, :, :1].astype(int)
    transparent = chunk(b"tRNS", bytes(range(0, 250, 5)))
    yield "png_palette_short", png(levels, 8, 3, extra=plte(100))
    yield "png_palette_transparent", png(levels, 8, 3, extra=plte(256) + transparent)
    yield "png_rgb_transparent", png(image.astype(int), 8, 2, extra=chunk(b"tRNS", struct.pack(">HHH", *map(int, image[3, 4]))))
    yield "png_gray_transparent", png(levels >> 4, 4, 0, extra=chunk(b"tRNS", b"\0\7"))
    yield "png_gamma_text", png(image.astype(int), 8, 2, extra=chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"tEXt", b"a\0b"))
    yield "png_bad_crc_of_data", png(image.astype(int), 8, 2, bad_crc=True)
    yield "png_small_window", png(np.tile(picture(width, 5).astype(int), (4, 1, 1)), 8, 2, small_window=True)
    yield "png_without_end", png(image.astype(int), 8, 2, end=False)
    for size in ((1, 1), (3, 1), (1, 5), (8, 8)):
        yield f"png_interlaced_{size[0]}x{size[1]}", png(picture(*size).astype(int), 8, 2, True)


# --- what is expected --------------------------------------------------------------------------------------------------
def pixels(name, data):
    """The whole image as Pillow makes it; 16-bit gray by its high byte, where Pillow makes white."""
    image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(int) >> 8).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def crc(image):
    planes = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
    return struct.unpack("<i", struct.pack("<I", zlib.crc32(planes.tobytes())))[0]


def view(image, crop, size, window, kind, mirror):
    (top, left, height, width), (to_height, to_width) = crop, size
    made = image.crop((left, top, left + width, top + height)).resize((to_width, to_height), FILTERS[kind])
    y, x, h, w = window
    made = made.crop((x, y, x + w, y + h))
    made = made.transpose(Image.FLIP_LEFT_RIGHT) if mirror else made
    return [*crop, *size, *window, kind, int(mirror), crc(made)]


def centre(width, height, resize, size):
    h, w = (int(resize * height / width), resize) if width <= height else (resize, int(resize * width / height))
    return (h, w), (round((h - size) / 2), round((w - size) / 2), size, size)


def views(image, rng):
    width, height = image.size
    whole = (0, 0, height, width)
    yield view(image, whole, (height, width), whole, 2, False)
    yield view(image, whole, (height, width), whole, 3, True)
    for resize, size, kind in ((37, 32, 2), (24, 24, 3)):
        yield view(image, whole, *centre(width, height, resize, size), kind, False)
    for i in range(6):
        h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        crop = (int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w)
        size = [(h, w), (h, 20), (20, w), (19, 23), (48, 50), (7, 5)][i]
        yield view(image, crop, size, (0, 0, *size), 2 + i % 2, bool(rng.integers(0, 2)))


def shrunk(data, image, side):
    """The planes of Pillow's copy with a short side of at most `side`."""
    gray = Image.open(io.BytesIO(data)).mode in ("1", "L", "LA", "I", "I;16")
    width, height = image.size
    if min(width, height) > side:
        (height, width), _ = centre(width, height, side, side)
        image = image.resize((width, height), Image.BICUBIC)
    out = io.BytesIO()
    image.convert("L" if gray else "RGB").save(out, "JPEG", quality=90, subsampling=-1 if gray else 2)
    return [side, crc(Image.open(out).convert("RGB"))]


def write(path):
    rng = np.random.default_rng(11)
    tensors = {}
    for name, data in (*pillow_jpegs(), *own_jpegs(), *pngs()):
        image = pixels(name, data)
        tensors[f"{name}.file"] = np.frombuffer(data, np.uint8)
        tensors[f"{name}.views"] = np.array(list(views(image, rng)), np.int32)
        tensors[f"{name}.shrunk"] = np.array(shrunk(data, image, 21), np.int32)
    store.save(path, tensors, {"pillow": PIL.__version__})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    if int(PIL.__version__.split(".")[0]) >= 13:
        raise SystemExit("images_pixels.py needs pillow < 13, whose resize has the published order of passes")
    write(parser.parse_args().out / "images_pixels.safetensors")


if __name__ == "__main__":
    main()
