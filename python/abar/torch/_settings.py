"""The settings that all classes share: named and typed once, and shown in every class's signature."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, TypeVar

Kind = TypeVar("Kind", bound=type)


class Settings(TypedDict, total=False):
    """None: the library's default. CurvatureOptimizer says what they mean, docs/methods.md and docs/optimizers.md the rest."""

    momentum: float | None
    weight_decay: float
    nesterov: bool | None
    decay: str | None
    rule: str
    betas: tuple[float, float] | None
    eps: float | None
    stat_decay: float | None
    tcov: int | None
    tinv: int | None
    refresh: str | None
    pgrad: str | None
    kl_clip: float | None
    skip: str | Sequence[str]
    first: str | Sequence[str] | None
    head: str | Sequence[str] | None
    params: Iterable[Any] | None
    grad_scaler: Any
    process_group: Any
    clip: float
    maximize: bool
    # of MAC and SMAC
    first_layer: str | None
    value_stat: str | None
    attention: Any
    # of rules "adamw", "muon" and "soap"
    cautious: bool
    # of rule "sfadamw"
    sf_time_power: float
    sf_rate_power: float
    # of rule "muon"
    ns: str
    ns_steps: int
    ns_precision: str
    muon_adjust: str
    muon_eps: float
    muon_take: str
    muon_skip: str
    normuon: bool
    normuon_beta2: float
    hyperball: bool
    aux_lr: float | None
    aux_weight_decay: float | None
    embed_lr: float
    head_lr: float
    # of rules "muon", "shampoo" and "soap"
    split: str
    # of rule "shampoo"
    shampoo_beta: float
    shampoo_eps: float
    shampoo_exponent: float
    shampoo_block: int
    shampoo_freq: int
    shampoo_start: int
    shampoo_preset: str
    graft: str
    graft_beta: float
    graft_eps: float
    beta1: float
    beta3: float
    # of FOOF and KFAC, and of all methods
    stat_init: float
    toffset: int
    homogeneous: bool
    foof_width: int
    kfac_rank: int
    # of rule "soap"
    soap_freq: int
    soap_factors: str
    soap_conv: str
    max_dim: int
    normalize: bool
    correct_bias: bool


#: what everybody needs; the settings of single rules are left out where a class has another rule
COMMON = (
    "momentum weight_decay nesterov decay rule betas eps stat_decay tcov tinv refresh pgrad skip first head params grad_scaler "
    "process_group clip maximize"
).split()
DEFAULTS: dict[str, Any] = {
    "weight_decay": 0.0,
    "rule": "sgd",
    "skip": (),
    "clip": 0.0,
    "maximize": False,
}


def signed(kind: Kind) -> Kind:
    """Shows all settings of a class in its signature, in the place of **settings."""
    own = inspect.signature(kind.__init__)
    named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD and p.name != "self"]
    taken = {p.name for p in named}
    fixed = {"rule", "momentum", "nesterov", "decay", "betas", "eps"} if not kind.method else set()  # the class is the rule
    for name in [*COMMON, *(("value_stat", "attention") if kind.method in ("mac", "smac") else ())]:
        if name in taken or name in fixed or (name in ("stat_decay", "tcov", "tinv", "refresh", "pgrad") and not kind.method):
            continue
        annotation = Settings.__annotations__[name]
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", annotation)
        named.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=text)
        )
    last = [p for p in own.parameters.values() if p.kind is p.VAR_KEYWORD]  # the settings of other rules
    kind.__signature__ = inspect.Signature([*named, *(last if kind.method else [])], return_annotation=None)
    return kind
