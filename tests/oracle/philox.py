"""Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3" (2011), and its published known answers."""

import json

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

# counter, key, output: all zeros, all ones, digits of pi (Random123's known-answer file)
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def philox4x32(counter, key, rounds=10):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return [c0, c1, c2, c3]


def words(text):
    return [int(word, 16) for word in text.split()]


def as_hex(values):
    return [f"{value:08x}" for value in values]


def write(path):
    vectors = []
    for counter, key, expected in KNOWN:
        output = philox4x32(words(counter), words(key))
        assert output == words(expected)
        vectors.append({"counter": counter.split(), "key": key.split(), "output": as_hex(output)})
    path.write_text(json.dumps({"generator": "philox4x32-10", "vectors": vectors}, indent=1) + "\n")
