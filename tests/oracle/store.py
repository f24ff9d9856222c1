"""Writing safetensors files, byte for byte the same every time.

The safetensors package writes metadata in a random order; this writer keeps the order it is
given. Layout: u64 little-endian header length, JSON header padded with spaces to a multiple
of 8, then the tensors one after the other, largest element size first so that each is aligned.
"""

import json
import struct

import numpy as np

DTYPES = {"float64": "F64", "float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8"}


def to_array(value):
    if hasattr(value, "detach"):
        value = value.detach().numpy()
    return np.array(value, order="C")  # a copy, with its shape, scalars included


def save(path, tensors, metadata=None):
    """tensors: name -> torch tensor or numpy array; metadata: name -> str, dict or list."""
    arrays = {name: to_array(value) for name, value in tensors.items()}
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = {key: as_text(value) for key, value in metadata.items()}
    for name, array in ordered:
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, array in ordered:
            out.write(array.tobytes())


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
