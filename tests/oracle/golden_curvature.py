"""Golden files of the curvature methods: one set of layers with seven batches, and per method the cases over them.

python3 golden_curvature.py [--out DIR]: writes curvature_*.safetensors and prints how far float32 strays.
README.md describes the files.
"""

import argparse
import math
import zlib
from pathlib import Path

import numpy as np

import curvature
import curvature_identities
import curvature_rules
import store
from curvature_rows import Layer

STEPS, BATCH = 7, 3


def linear(name, **options):
    return Layer(name, "linear", **options)


def conv(name, kernel, **options):
    return Layer(name, "conv", kernel=kernel, **options)


# layer, shape of one example's input, outputs
SHAPES = [
    (conv("image", (3, 3), pad=(1, 1), bias=True, first=True), (3, 4, 5), 2),
    (linear("fc", bias=True), (6,), 4),
    (linear("fc_nobias"), (5,), 3),
    (linear("seq", bias=True), (4, 5), 3),
    (linear("seq_nobias"), (3, 4), 5),
    (conv("c1", (1, 1)), (5, 3, 3), 4),
    (conv("c1_outside", (1, 1), stride=(2, 2), pad=(1, 1), bias=True), (3, 4, 3), 2),  # some rows are padding alone
    (conv("c5", (5, 5), stride=(2, 2), pad=(2, 2)), (1, 7, 5), 2),
    (conv("c32", (3, 2), stride=(2, 1), pad=(1, 0), bias=True), (2, 6, 3), 2),
    (conv("dilated", (3, 3), pad=(2, 2), dilation=(2, 2), bias=True), (2, 5, 3), 2),
    (conv("grouped", (2, 2), stride=(2, 2), pad=(1, 1), groups=2, bias=True), (4, 5, 3), 4),
    (conv("depthwise", (3, 3), pad=(1, 1), groups=4), (4, 3, 4), 4),
    (conv("depthwise2", (2, 3), dilation=(1, 2), groups=3, bias=True), (3, 3, 6), 6),  # two outputs per channel
    (conv("depthwise16", (2, 2), stride=(2, 2), pad=(1, 1), groups=16, bias=True), (16, 3, 2), 16),
    (conv("c17", (1, 2), pad=(0, 1), bias=True), (17, 2, 3), 2),
    # apart from the others
    (linear("flat_image", bias=True, first=True), (5,), 3),
    (linear("dead"), (3,), 2),  # x = 0
    (linear("silent"), (3,), 2),  # p = 0
    (linear("equal"), (3, 4), 2),  # every row of every batch the same
    (linear("huge"), (2,), 2),  # every input 2^30
    (Layer("gain", "parameter"), (5,), 5),
    # sixteen examples, three steps
    (linear("wide_fc", bias=True), (17,), 3),
    (conv("wide_c16", (1, 1)), (3, 2, 2), 16),
    (conv("wide_c17", (3, 3), pad=(1, 1), bias=True), (17, 2, 3), 2),
]
LAYERS = {layer.name: layer for layer, _, _ in SHAPES}
ALL = list(LAYERS)[:15]
SMALL = ["fc", "seq_nobias", "c32", "grouped"]
PAIR = ["fc", "grouped"]
FOUR_MAPS = ["fc", "grouped", "seq_nobias"]
MANY_ROWS = ["seq_nobias", "grouped"]
LINEAR = ["fc", "seq_nobias"]
WIDE = ["wide_fc", "wide_c16", "wide_c17"]


# ---- inputs


def few_bits(values):
    """Rounded to eight significant bits: the same numbers in bfloat16, float32 and float64."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 256), exponent - 8).astype(np.float32)


def make_layer(layer, shape, outputs):
    """x, p (K, N, ...), gradients (K, ...), first weights; each name has its own numbers."""
    rng = np.random.RandomState(zlib.crc32(layer.name.encode()))
    steps, batch = (3, 16) if layer.name in WIDE else (STEPS, BATCH)
    if layer.kind == "parameter":
        return {"gw": rng.randn(steps, *shape).astype(np.float32), "w": rng.randn(*shape).astype(np.float32)}
    x = few_bits(0.4 + 0.7 * rng.randn(steps, batch, *shape))
    if layer.kind == "conv":
        places = layer.patches(x[0], 0).shape[1]
        weight = (outputs, shape[0] // layer.groups, *layer.kernel)
        grad_shape = (outputs, *output_extent(layer, shape))
        assert places == math.prod(grad_shape[1:])
    else:
        weight = (outputs, shape[-1])
        grad_shape = (*shape[:-1], outputs)
    offset = 0.3 * rng.randn(outputs)
    p = 0.4 * rng.randn(steps, batch, *grad_shape)
    p = few_bits(p + (offset[:, None, None] if layer.kind == "conv" else offset))
    tensors = {"x": x, "p": p, "gw": rng.randn(steps, *weight).astype(np.float32)}
    tensors["w"] = rng.randn(*weight).astype(np.float32)
    if layer.bias:
        tensors["gb"] = rng.randn(steps, outputs).astype(np.float32)
        tensors["b"] = rng.randn(outputs).astype(np.float32)
    if layer.first:
        for number, size in enumerate((4, 2)):
            tensors[f"calib{number}"] = few_bits(0.2 + rng.randn(size, *shape))
    return tensors


def output_extent(layer, shape):
    axes = zip(shape[1:], layer.kernel, layer.stride, layer.pad, layer.dilation)
    return [(size + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for size, k, stride, pad, dilation in axes]


def make_data():
    data = {layer.name: make_layer(layer, shape, outputs) for layer, shape, outputs in SHAPES}
    data["dead"]["x"][:] = 0
    data["silent"]["p"][:] = 0
    data["equal"]["x"][:] = data["equal"]["x"][0, 0, 0]
    data["huge"]["x"][:] = 2.0**30
    return data


# ---- cases

OPTIONS = {
    "mac": {"damping": "0.01", "first-layer": "running"},
    "smac": {"damping": "0.01", "first-layer": "running", "pgrad": "per-example"},
    "foof": {"damping": "0.01"},
    "kfac": {
        "damping": "0.03",
        "pgrad": "per-example",
        "kfac": "reduce",
        "kfac-inverse": "cholesky",
        "kl-clip": "0.001",
    },
    "eva": {"damping": "0.03", "pgrad": "per-example", "kl-clip": "0.001"},
    "lngd": {"pgrad": "batch-mean", "nu1": "1e-5", "nu2": "1e-2", "mu": "0.03"},
    "skfac": {"damping": "0.03"},
    "kpsvd": {"damping": "0.03", "kl-clip": "0.001"},
    "mfac": {"damping": "0.05", "mfac-gradients": "4"},
    "kbfgs": {"damping": "0.3"},
}
LEAST_SHARES = {"double": 1e-8, "single": 1e-5}  # section 1: the floor of adaptive damping
OFTEN = {"tcov": "1", "tinv": "1"}
SELDOM = {"tcov": "5", "tinv": "2"}


class Cases:
    """The cases of one method: name -> settings."""

    def __init__(self, method):
        self.method, self.cases = method, {}

    def add(self, name, layers=None, changes=None, **settings):
        options = {**OPTIONS[self.method], "stat-decay": "0.95", "tcov": "2", "tinv": "3", **(changes or {})}
        options = {key: value for key, value in options.items() if value is not None}
        layers = SMALL if layers is None else layers
        steps = 3 if layers == WIDE else STEPS
        case = {"method": self.method, "layers": layers, "steps": steps, "options": options, "lr": 0.1, **settings}
        assert name not in self.cases
        self.cases[name] = case

    def add_common(self):
        """What every method must get right."""
        self.add("all", ALL)
        damped = {"damping": "1"} if self.method in ("skfac", "kpsvd") else {}  # p is 16 times as large
        self.add("wide", WIDE, {"tcov": "1", "tinv": "2", **damped})
        self.add("often", None, OFTEN)
        self.add("seldom", PAIR, SELDOM)
        if self.method != "skfac":  # it has no averages
            self.add("decay_half", PAIR, {"stat-decay": "0.5"})
            self.add("decay_eva", PAIR, {"stat-decay": "0.05"})
        self.add("dead", ["fc", "dead", "silent"])
        self.add("parts", PAIR, OFTEN, parts=[1, 2], scales=[1.0, 1.0])
        # a statistic with a NaN: of one map only, at a step that refreshes; and before there is any average
        self.add("bad_x", PAIR, {"tcov": "1"}, poison=[poison("x", 3, "grouped", 36)])
        self.add("bad_first_x", LINEAR, poison=[poison("x", 0, "fc", 7)])
        # a gradient with a NaN: the step is skipped, its refresh made at the next step that can
        self.add("bad_grad", PAIR, {"tcov": "1", "tinv": "2"}, poison=[poison("gw", 2, "grouped", 7)])
        self.add("bad_first_grad", LINEAR, poison=[poison("gw", 0, "seq_nobias", 3, "inf")])
        if "kl-clip" not in OPTIONS[self.method]:
            self.add("kl", None, {"kl-clip": "0.001"})
            self.add("kl_bad_first_x", LINEAR, {"kl-clip": "0.01"}, poison=[poison("x", 0, "fc", 7)])

    def add_long(self):
        """Twenty steps: the batches come round again."""
        self.add("long", SMALL, {"tcov": "2", "tinv": "5"}, steps=20)
        sgd = {"rule": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
        self.add("long_sgd", SMALL + ["gain"], {"tcov": "1", "tinv": "3"}, steps=20, update=sgd)

    def add_first(self, layer, other):
        """Ready from step 0 on: after a first step that is skipped, and where nothing is ever committed."""
        for name, choice in (("mean", "dataset-mean"), ("cov", "dataset-cov")):
            options = {"first-layer": choice, "tcov": "3"}
            self.add(f"{name}_bad_first_grad", [layer, other], options, poison=[poison("gw", 0, other, 2)])
            if self.method == "smac":
                bad = [poison("p", k, layer, 1) for k in range(0, STEPS, 3)]
                self.add(f"{name}_bad_p", [layer, other], options, poison=bad)
            self.add(f"{name}_kl", [layer, other], {**options, "kl-clip": "0.001"})

    def add_spread(self):
        for tinv in ("3", "6"):
            self.add(f"spread{tinv}", FOUR_MAPS, {"tcov": "1", "tinv": tinv, "refresh": "spread"})
        self.add(
            "spread_bad_grad",
            FOUR_MAPS,
            {"tcov": "1", "refresh": "spread"},
            poison=[poison("gw", 4, "fc", 0)],
        )

    def add_uses_p(self):
        """Where the output gradients count."""
        self.add("scale", PAIR, scales=[8.0])
        self.add("parts_scales", PAIR, parts=[2, 1], scales=[0.5, 4.0])
        self.add("parts_batch_mean", PAIR, {"pgrad": "batch-mean"}, parts=[2, 1], scales=[2.0, 8.0])
        self.add("bad_p", PAIR, {"tcov": "1"}, poison=[poison("p", 3, "grouped", 2)])


def poison(tensor, step, layer, index, value="nan"):
    return {"tensor": tensor, "step": step, "layer": layer, "index": index, "value": value}


def mac_cases():
    cases = Cases("mac")
    cases.add_common()
    cases.add_spread()
    cases.add("bad_x_inf", LINEAR, {"tcov": "1"}, poison=[poison("x", 3, "fc", 7, "inf")])
    cases.add("bad_grad_23", PAIR, poison=[poison("gb", 2, "fc", 1)])
    cases.add("rho_1", None, {"damping": "1"})
    cases.add("coupled", None, {"damping-form": "coupled"})
    cases.add("coupled_rho_3", None, {"damping": "3", "damping-form": "coupled"})
    adaptive = {"damping": "adaptive"}
    cases.add("adaptive", ALL, adaptive)
    cases.add("adaptive_edges", ["fc", "dead", "equal"], {**adaptive, "stat-decay": "0.5"})
    cases.add("adaptive_coupled", None, {**adaptive, "damping-form": "coupled"})
    for layer in ("image", "flat_image"):
        layers = [layer, "fc"]
        cases.add(f"mean_{layer}", layers, {"first-layer": "dataset-mean"})
        cases.add(f"cov_{layer}", layers, {"first-layer": "dataset-cov"})
    layers = ["image", "fc_nobias"]
    cases.add("mean_coupled", layers, {"first-layer": "dataset-mean", "damping-form": "coupled"})
    cases.add("mean_adaptive", layers, {"first-layer": "dataset-mean", **adaptive})
    cases.add("cov_rho_1", layers, {"first-layer": "dataset-cov", "damping": "1"})
    cases.add_first("flat_image", "seq_nobias")
    add_floor(cases)
    cases.add("clip", SMALL + ["gain"], clip=0.5)
    cases.add("no_clip", ["fc", "gain"], clip=100.0)
    add_rules(cases)
    return cases.cases


def add_floor(cases):
    """Adaptive damping of equal rows is its least value, by the precision; the coupled form divides by it."""
    options = {"damping": "adaptive", "damping-form": "coupled"}
    for precision in LEAST_SHARES:
        cases.add(f"adaptive_floor_{precision}", ["fc", "equal"], options, precision=precision)


def add_rules(cases):
    layers = SMALL + ["gain"]
    sgd = {"rule": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    adamw = {"rule": "adamw", "lr": 0.01, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.5}
    bad = [poison("gw", 2, "gain", 1)]
    cases.add("sgd", layers, update=sgd)
    cases.add("sgd_nesterov", ["fc", "gain"], update={**sgd, "nesterov": True})
    cases.add("sgd_decoupled", ["fc", "gain"], update={**sgd, "weight_decay": 0.5, "decoupled": True})
    cases.add("sgd_clip", layers, clip=0.5, update=sgd)
    cases.add("sgd_skip", layers, poison=bad, update=sgd)
    cases.add("adamw", layers, update=adamw)
    cases.add("adamw_skip", layers, poison=bad, update=adamw)


def calibrated_cases():
    """Calibration on the data set in front of rules; the first step may be skipped, and the decay inside."""
    updates = {
        "sgd": {"rule": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-2},
        "inside": {"rule": "sgd", "lr": 0.1, "momentum": 0.5, "weight_decay": 5e-2, "inside": True},
        "adamw": {"rule": "adamw", "lr": 0.03, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.5},
        "nadamw": {"rule": "nadamw", "lr": 0.03, "weight_decay": 0.5, "options": {"beta1": "0.8"}},
        "sfadamw": {"rule": "sfadamw", "lr": 0.1, "weight_decay": 0.1, "options": {"beta2": "0.99"}},
        "shampoo": {
            "rule": "shampoo",
            "lr": 0.1,
            "weight_decay": 0.1,
            "options": {"shampoo-block": "8", "shampoo-freq": "2", "shampoo-eps": "0.01", "shampoo-beta": "0.9", "graft": "sgd"},
        },
    }
    layers, found = ["image", "fc", "gain"], {}
    for method in ("mac", "smac"):
        cases = Cases(method)
        for choice in ("mean", "cov"):
            for rule, update in updates.items():
                options = {"first-layer": f"dataset-{choice}"}
                cases.add(f"{method}_{choice}_{rule}", layers, options, steps=20, update=update)
            bad = [poison("gw", 0, "fc", 2)]
            cases.add(f"{method}_{choice}_skip", layers, options, update=updates["adamw"], poison=bad)
        found.update(cases.cases)
    return found


def smac_cases():
    cases = Cases("smac")
    cases.add_common()
    cases.add_uses_p()
    cases.add("batch_mean", None, {"damping": "0.001", "pgrad": "batch-mean"})
    cases.add("rho_1", None, {"damping": "1"})
    cases.add("adaptive", None, {"damping": "adaptive"}, diagonal_damping=1.0)
    batch_mean = {"damping": "adaptive", "pgrad": "batch-mean", "stat-decay": "0.5"}
    cases.add("adaptive_batch_mean", ["fc", "dead"], batch_mean, diagonal_damping=1.0)
    cases.add("mean_image", ["image", "fc"], {"first-layer": "dataset-mean"})
    cases.add("cov_image", ["image", "fc"], {"first-layer": "dataset-cov"})
    cases.add("coupled", None, {"damping-form": "coupled"})
    cases.add("coupled_rho_3", None, {"damping": "3", "damping-form": "coupled"})
    coupled = {"damping": "adaptive", "damping-form": "coupled"}
    cases.add("adaptive_coupled", None, coupled, diagonal_damping=1.0)
    for name, choice in (("mean", "dataset-mean"), ("cov", "dataset-cov")):
        cases.add(f"{name}_coupled", ["image", "fc"], {"first-layer": choice, "damping-form": "coupled"})
    cases.add_first("flat_image", "seq_nobias")
    add_floor(cases)
    cases.add("spread3", FOUR_MAPS, {"tcov": "1", "refresh": "spread"})
    return cases.cases


def foof_cases():
    cases = Cases("foof")
    cases.add_common()
    cases.add_spread()
    cases.add("rho_1", None, {"damping": "1"})
    cases.add("ladder", ["huge"], {"stat-decay": "0.5", "damping": "0.0009765625"})
    return cases.cases


def kfac_cases():
    cases = Cases("kfac")
    cases.add_common()
    cases.add_uses_p()
    cases.add("all_expand_eigen", ALL, {"kfac": "expand", "kfac-inverse": "eigen"})
    for approximation in ("reduce", "expand"):
        for inverse in ("cholesky", "eigen"):
            for pgrad in ("batch-mean", "per-example"):
                for damping in ("0.03", "0.001"):
                    name = "_".join([approximation, inverse, pgrad.replace("-", "_"), damping[2:]])
                    choice = {"kfac": approximation, "kfac-inverse": inverse, "pgrad": pgrad, "damping": damping}
                    cases.add(name, MANY_ROWS, choice)
            off = {"kfac": approximation, "kfac-inverse": inverse, "kl-clip": "0"}
            cases.add(f"{approximation}_{inverse}_no_kl", MANY_ROWS, off)
    cases.add("kl_loose", PAIR, {"kl-clip": "1000"})
    cases.add("zero_grad", PAIR, zero_grad=[4])
    # pi within its limits of 1e-10 and 1e10, and beyond; such dampings that they count
    for name, scale, damping in (
        ("pi_large", 2.0**-20, "1e-12"),
        ("pi_high", 2.0**-40, "1e-20"),
        ("pi_small", 2.0**20, "1e12"),
        ("pi_low", 2.0**40, "1e20"),
    ):
        cases.add(name, ["grouped"], {"kfac": "expand", "damping": damping}, scales=[scale])
    cases.add("clip", PAIR + ["gain"], clip=0.5)
    cases.add("spread3", FOUR_MAPS, {"tcov": "1", "refresh": "spread"})
    return cases.cases


def begun_cases():
    """Averages that begin at a multiple of the identity, a first step with statistics, rows without the final 1, blocks."""
    cases = Cases("foof")
    for init in ("0.001", "2"):
        cases.add(f"init_{init}", ALL, {"stat-init": init})
    cases.add("init_often", None, {**OFTEN, "stat-init": "0.5"})
    cases.add("init_bad_x", LINEAR, {"tcov": "1", "stat-init": "0.5"}, poison=[poison("x", 0, "fc", 7)])
    for offset in ("1", "3"):
        cases.add(f"offset_{offset}", SMALL, {"toffset": offset})
    cases.add("offset_spread", FOUR_MAPS, {"tcov": "1", "tinv": "3", "refresh": "spread", "toffset": "2"})
    cases.add("offset_bad_grad", PAIR, {"toffset": "2", "tcov": "1"}, poison=[poison("gw", 2, "grouped", 7)])
    cases.add("plain_rows", ALL, {"homogeneous": "false"})
    cases.add("plain_rows_kl", SMALL, {"homogeneous": "false", "kl-clip": "0.001"})
    cases.add("all_three", ALL, {"stat-init": "0.1", "toffset": "1", "homogeneous": "false", "damping": "trace:0.2"})
    kfac = Cases("kfac")
    kfac.add("kfac_init", SMALL, {"stat-init": "0.1"})
    kfac.add("kfac_eigen_init", PAIR, {"stat-init": "0.1", "kfac-inverse": "eigen"})
    kfac.add("kfac_all_three", ALL, {"stat-init": "0.1", "toffset": "1", "homogeneous": "false"})
    for width in ("1", "2", "4"):
        cases.add(f"width_{width}", ALL, {"foof-width": width})
        cases.add(f"width_{width}_trace", SMALL, {"foof-width": width, "damping": "trace:0.2"})
    cases.add("width_often", PAIR, {**OFTEN, "foof-width": "3", "damping": "0.5"})
    cases.add("width_init", SMALL, {"foof-width": "3", "stat-init": "0.001", "damping": "trace:0.2"})
    mac = Cases("mac")
    mac.add("mac_plain_rows", SMALL, {"homogeneous": "false", "damping": "1"})
    mac.add("mac_offset", PAIR, {"toffset": "2"})
    return {**cases.cases, **kfac.cases, **mac.cases}


def parts_cases():
    """Inverses by the largest eigenvalues."""
    cases = Cases("foof")
    for rank in ("1", "2", "3", "5"):
        cases.add(f"rank_{rank}", ALL, {"kfac-rank": rank, "damping": "0.1"})
    cases.add("rank_often", PAIR, {**OFTEN, "kfac-rank": "2", "damping": "0.5"})
    cases.add("rank_trace", SMALL, {"kfac-rank": "3", "stat-init": "0.001", "damping": "trace:0.2"})
    kfac = Cases("kfac")
    for rank in ("1", "2", "4"):
        kfac.add(f"kfac_rank_{rank}", SMALL, {"kfac-rank": rank})
        kfac.add(f"kfac_rank_{rank}_batch_mean", PAIR, {"kfac-rank": rank, "pgrad": "batch-mean"})
    kfac.add("kfac_rank_expand", MANY_ROWS, {"kfac-rank": "3", "kfac": "expand", "kl-clip": "0"})
    return {**cases.cases, **kfac.cases}


def eva_cases():
    cases = Cases("eva")
    cases.add_common()
    cases.add_uses_p()
    for pgrad in ("batch-mean", "per-example"):
        for damping in ("0.03", "0.001"):
            for kappa in ("0.001", "0"):
                name = "_".join([pgrad.replace("-", "_"), damping[2:], "kl" if kappa != "0" else "no_kl"])
                cases.add(name, PAIR, {"pgrad": pgrad, "damping": damping, "kl-clip": kappa})
    cases.add("zero_grad", PAIR, zero_grad=[4])
    cases.add("clip", PAIR + ["gain"], clip=0.5)
    return cases.cases


def lngd_cases():
    cases = Cases("lngd")
    cases.add_common()
    cases.add_uses_p()
    cases.add("per_example", None, {"pgrad": "per-example"})
    cases.add("nu_between", None, {"nu1": "1e-6", "nu2": "1e3", "mu": "0.5"})
    cases.add("nu_low", None, {"nu1": "5", "nu2": "10", "mu": "1e-3", "pgrad": "per-example"})
    cases.add("zero_grad", PAIR, zero_grad=[4])
    cases.add("spread3", FOUR_MAPS, {"tcov": "1", "refresh": "spread"})
    return cases.cases


def skfac_cases():
    cases = Cases("skfac")
    cases.add_common()
    cases.add_uses_p()
    cases.add_spread()
    cases.add_long()
    cases.add("rho_1", None, {"damping": "1"})
    cases.add("dense", ALL, {"damping": "0.1"}, examples=0)  # the batch is not known: no side is inverted through it
    cases.add("fewer", SMALL, {"damping": "0.2"}, examples=4)  # than the optimizer was made for
    cases.add("zero_grad", PAIR, zero_grad=[4])
    cases.add("clip", PAIR + ["gain"], clip=0.5)
    return cases.cases


def kpsvd_cases():
    cases = Cases("kpsvd")
    cases.add_common()
    cases.add_uses_p()
    cases.add_long()
    for rounds in ("1", "10"):
        cases.add(f"rounds_{rounds}", SMALL, {"kpsvd-rounds": rounds, "kl-clip": "0"})
    two = {"kpsvd-terms": "2"}
    cases.add("two", ALL, two)
    cases.add("two_often", PAIR, {**two, **OFTEN, "kl-clip": "0", "stat-decay": "0.5"})
    cases.add("two_rounds_10", SMALL, {**two, "kpsvd-rounds": "10", "kl-clip": "0"})
    cases.add("rho_001", SMALL, {"damping": "0.001"})
    cases.add("no_kl", MANY_ROWS, {"kl-clip": "0"})
    cases.add("fewer", PAIR, {"damping": "0.2", "kl-clip": "0"}, examples=20)  # than the optimizer was made for
    cases.add("zero_grad", PAIR, zero_grad=[4])
    cases.add("clip", PAIR + ["gain"], clip=0.5)
    cases.add("spread3", FOUR_MAPS, {"tcov": "1", "refresh": "spread"})
    return cases.cases


def mfac_cases():
    cases = Cases("mfac")
    cases.add("all", ALL)
    for m in ("1", "2", "7", "64"):
        cases.add(f"m_{m}", SMALL, {"mfac-gradients": m})
    for name, rho in (("rho_1", "1"), ("rho_0001", "0.0001")):
        cases.add(name, SMALL, {"damping": rho})
    cases.add("gain", PAIR + ["gain"])
    cases.add("layer", ALL + ["gain"], {"mfac-scope": "layer"})
    cases.add("layer_m_1", PAIR, {"mfac-scope": "layer", "mfac-gradients": "1"})
    cases.add("bf16", SMALL, {"mfac-precision": "bf16"})
    cases.add("layer_bf16", PAIR, {"mfac-precision": "bf16", "mfac-scope": "layer"})
    cases.add("bad_grad", PAIR, poison=[poison("gw", 2, "grouped", 7)])
    cases.add("bad_first_grad", LINEAR, poison=[poison("gw", 0, "seq_nobias", 3, "inf")])
    cases.add("zero_grad", PAIR, zero_grad=[0, 4])
    cases.add("clip", PAIR + ["gain"], clip=0.5)
    cases.add("long", SMALL, {"mfac-gradients": "8"}, steps=20)
    sgd = {"rule": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-2}
    cases.add("long_sgd", SMALL + ["gain"], steps=20, update=sgd)
    cases.add("inside", SMALL + ["gain"], steps=20, update={**sgd, "inside": True})
    cases.add("inside_clip", SMALL, steps=20, update={**sgd, "inside": True}, clip=2.0)
    cases.add("inside_layer", SMALL + ["gain"], {"mfac-scope": "layer"}, steps=20, update={**sgd, "inside": True})
    return cases.cases


FILES = {
    "mac": mac_cases,
    "smac": smac_cases,
    "foof": foof_cases,
    "kfac": kfac_cases,
    "eva": eva_cases,
    "lngd": lngd_cases,
    "skfac": skfac_cases,
    "kpsvd": kpsvd_cases,
    "mfac": mfac_cases,
    "calibrated": calibrated_cases,
    "begun": begun_cases,
    "parts": parts_cases,
}


# ---- running a case


def spoil(data, case):
    """The case's own copy of its tensors, with its bad values set and its zero gradients zeroed."""
    mine = {name: {key: value.copy() for key, value in data[name].items()} for name in case["layers"]}
    for bad in case.get("poison", []):
        values = mine[bad["layer"]][bad["tensor"]][bad["step"]]
        values.reshape(-1)[bad["index"]] = float(bad["value"])
    for step in case.get("zero_grad", []):
        for tensors in mine.values():
            for key in {"gw", "gb"} & set(tensors):
                tensors[key][step] = 0
    return mine


def observe(method, layer, batch, case):
    """Hands over the batch (x, p and what else the layer has of it) in the case's parts, each with its scale."""
    examples = batch["x"].shape[0]
    parts, scales = case.get("parts", [examples]), case.get("scales", [1.0])
    assert sum(parts) == examples and len(parts) == len(scales)
    start = 0
    for size, scale in zip(parts, scales):
        method.observe(layer, scale=scale, **{key: value[start : start + size] for key, value in batch.items()})
        start += size


def make_method(case, data, dtype, layers, methods):
    layers = [layers[name] for name in case["layers"]]
    method = methods[case["method"]](layers, case["options"], case["lr"], dtype)
    method.least_share = LEAST_SHARES[case.get("precision", "double")]
    if "diagonal_damping" in case:
        method.fixed_damping = case["diagonal_damping"]
    if case["options"].get("first-layer", "running") != "running":
        first = data[next(layer.name for layer in layers if layer.first)]
        method.calibrate([first["calib0"], first["calib1"]])
    return method


def make_updates(case, data, dtype):
    settings = dict(case["update"])
    rule = curvature_rules.RULES[settings.pop("rule")]
    tensors = [(name, key) for name in case["layers"] for key in ("w", "b") if key in data[name]]
    return {(name, key): rule(data[name][key].astype(dtype), **settings) for name, key in tensors}


def run(case, data, dtype=np.float64, layers=LAYERS, methods=curvature.METHODS):
    """Expected tensors, steps skipped, and the method as it ended."""
    data = spoil(data, case)
    method = make_method(case, data, dtype, layers, methods)
    updates = make_updates(case, data, dtype) if "update" in case else {}
    history, skipped = [], []
    for step in range(case["steps"]):
        at = step % STEPS
        for name in case["layers"]:
            if "x" in data[name]:
                batch = {key: data[name][key][at] for key in ("x", "p", "columns") if key in data[name]}
                observe(method, name, batch, case)
        grads = {
            name: tuple(data[name][key][at].astype(dtype) if key in data[name] else None for key in ("gw", "gb"))
            for name in case["layers"]
        }
        if "clip" in case:
            grads = curvature_rules.clip(grads, case["clip"])
        if case.get("update", {}).get("inside"):
            grads = {
                name: tuple(g if g is None else updates[name, key].before(g) for g, key in zip(pair, "wb"))
                for name, pair in grads.items()
            }
        result = method.step(grads)
        if result is None:
            skipped.append(step)
            result = {name: [None if g is None else np.zeros_like(g) for g in pair] for name, pair in grads.items()}
        else:
            for (name, key), update in updates.items():
                update.step(result[name]["wb".index(key)])
        history.append(result)
    if updates:
        return {f"{name}.{key}_end": update.weight for (name, key), update in updates.items()}, skipped, method
    return stack(history, data), skipped, method


def stack(history, data):
    out = {}
    for name in history[0]:
        out[f"{name}.w"] = np.stack([result[name][0] for result in history])
        if "gb" in data[name]:
            out[f"{name}.b"] = np.stack([result[name][1] for result in history])
    return out


# ---- checks on the cases themselves


def distance(one, other):
    """Worst |a - b| / |b| (2-norms) over tensors and their steps; where b is zero, a must be."""
    worst = 0.0
    for name in one.keys() & other.keys():
        rows = (one[name],), (other[name],)
        if not name.endswith("_end"):
            rows = one[name], other[name]
        for a, b in zip(*rows):
            apart, size = float(np.linalg.norm(a - b)), float(np.linalg.norm(b))
            if apart > 0:
                worst = max(worst, apart / size if size > 0 else math.inf)
    return worst


def check_telling(method, results, cases, data):
    """No case may pass when the method does nothing, nor when it mistakes one case's settings for another's."""
    names = list(results)
    for name in names:
        case = cases[name]
        if "update" not in case:
            steps = [step % STEPS for step in range(case["steps"])]
            plain = {f"{layer}.w": data[layer]["gw"][steps].astype(np.float64) for layer in case["layers"]}
            assert distance(plain, results[name]) > 0.02, (method, name)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            alike = results[one].keys() == results[other].keys()
            if alike and cases[one]["steps"] == cases[other]["steps"]:
                assert distance(results[one], results[other]) > 1e-3, (method, one, other)


def round_up(value):
    """To one digit, and no less than 1e-7."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-7)))
    return float(f"{math.ceil(max(value, 1e-7) / power) * power:.0e}")


# ---- writing


def write_layers(path, data, layers=LAYERS):
    tensors, metadata = {}, {"layers": list(layers)}
    for name, layer in layers.items():
        described = {"kind": layer.kind, "bias": layer.bias, "first": layer.first}
        if layer.kind == "conv":
            for key in ("kernel", "stride", "pad", "dilation", "groups"):
                described[key] = getattr(layer, key)
        if layer.kind == "attention":
            described.update(layer.described())
        metadata[f"layers.{name}"] = described
        for key, value in data[name].items():
            tensors[f"layers.{name}.{key}"] = value
    store.save(path, tensors, metadata)


def write_cases(path, method, cases, data, **known):
    """The file of one method's cases; returns each one's distance between float32 and float64."""
    tensors, metadata, results, strays = {}, {}, {}, {}
    metadata["cases"] = list(cases)
    for name, case in cases.items():
        results[name], skipped, ended = run(case, data, **known)
        assert all(np.isfinite(value).all() for value in results[name].values()), (method, name)
        events = {
            "dropped": sum(m.dropped for m in ended.maps),
            "raised": sum(m.raised for m in ended.maps),
            "skipped": skipped,
        }
        metadata[f"cases.{name}"] = {**case, **events}
        tensors.update({f"{name}.{key}": value for key, value in results[name].items()})
        if case.get("precision") != "double":
            strays[name] = round_up(distance(run(case, data, np.float32, **known)[0], results[name]))
            metadata[f"cases.{name}"]["float32"] = strays[name]
    check_telling(method, results, cases, data)
    store.save(path, tensors, metadata)
    return strays


def write(out):
    curvature_identities.check_all(SHAPES)
    data = make_data()
    write_layers(out / "curvature_layers.safetensors", data)
    strays = {
        method: write_cases(out / f"curvature_{method}.safetensors", method, cases(), data)
        for method, cases in FILES.items()
    }
    write_ladder(out / "curvature_ladder.safetensors")
    return strays


# ---- the ladder on its own


def ladder_cases():
    """Matrices that are not positive definite on purpose, alike in every precision: name -> matrix, damping."""
    turn = np.array([[0.6, -0.8, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]])
    mix = turn @ turn[[2, 0, 1]][:, [2, 0, 1]]

    def turned(*values):
        return mix @ np.diag(values) @ mix.T

    return {
        "definite": (turned(2.0, 1.0, 0.5), 0.25),
        "one_raise": (turned(2.0, 1.0, -0.5), 0.25),  # 2.5
        "three_raises": (turned(2.0, 1.0, -0.3), 1e-3),  # 1
        "floor": (np.diag([8e4, 4e4, -1e-5]), 1e-12),  # 1e-8 tr/d = 4e-4 at once
        "above_floor": (np.diag([8e4, 4e4, -1e-2]), 1e-12),  # 4e-4, 4e-3, 4e-2
        "five_raises": (turned(2.0, 1.0, -0.3), 1e-5),  # 1
        "hopeless": (turned(2.0, 1.0, -30.0), 1e-5),
    }


def write_ladder(path):
    tensors, metadata = {}, {}
    cases = ladder_cases()
    metadata["cases"] = list(cases)
    for name, (matrix, damping) in cases.items():
        matrix = (matrix + matrix.T) / 2
        inverse, used, raises = curvature.damped_inverse(matrix, damping)
        metadata[f"cases.{name}"] = {"damping": damping, "raises": raises, "ok": inverse is not None, "used": used}
        tensors[f"{name}.matrix"] = matrix
        if inverse is not None:
            tensors[f"{name}.inverse"] = inverse
            other = curvature.damped_inverse(matrix.astype(np.float32), damping)
            assert other[2] == raises and np.allclose(other[0], inverse, rtol=1e-3, atol=1e-4), name
    raises = {name: curvature.damped_inverse(*case)[2] for name, case in cases.items()}
    assert list(raises.values()) == [0, 1, 3, 1, 3, 5, 5], raises
    store.save(path, tensors, metadata)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parent.parent / "golden"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    out = parser.parse_args().out
    for method, strays in write(out).items():
        print(f"{method}: float32 strays by")
        for name, value in sorted(strays.items(), key=lambda item: -item[1]):
            print(f"  {value:.1e} {name}")


if __name__ == "__main__":
    main()
