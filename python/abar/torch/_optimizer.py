"""The optimizer that all methods share: torch's interface on one side, the library on the other."""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _library
from ._citizen import Citizen
from ._engine import Closed, Engine, Settings, make_settings
from ._attention import Attention, find_values, mark_windows
from ._groups import check_change, check_group, chosen_options, options_of_layers, rates_of, rule_settings, set_rule_settings
from ._hooks import Observer, Rows
from ._layers import Layer, check_model, find_layers, mark_ends
from ._ranks import CHECK_EVERY, Ranks
from ._report import LayerReport, ParamReport, format_params, format_report, report_layers, report_params
from ._scaling import Scaling, find_scaling
from ._stand import Stands, by_rows, check_rows_alone, check_shards
from ._state import AVERAGES, BLOCKS, DIAGONALS, SHARED
from ._state import carry_over, check_state, load_state, read_shared, save_state, saved_states


class CurvatureOptimizer(Citizen):
    """Preconditions the gradients of Linear and Conv2d layers, then updates all parameters by a rule.

    Use one of its subclasses. Arguments that are ``None`` take the library's default, the published setting.

    Args:
        model: the module whose layers are preconditioned; DistributedDataParallel is seen through.
        lr: learning rate.
        momentum, nesterov, decay: of rule "sgd"; decay "coupled" (as torch.optim.SGD), "decoupled", or "inside" the
            gradient that the method gets.
        betas, eps: of rules "adamw", "nadamw" and "sfadamw", and of the parameters that "muon" leaves to AdamW.
        weight_decay: of the rule.
        rule: "sgd", "adamw", "nadamw", "sfadamw", "muon", "shampoo" or "soap"; "adahessian" and "sophia" stand alone.
        first, head: of rule "muon": patterns of the layers that read the network's input and make its output, which go
            to AdamW. Default: the first Linear or Conv2d, unless an embedding comes before it; the last Linear.
        stat_decay: weight of the old value in the averages of statistics (0.95).
        tcov, tinv: steps between statistics (5), between refreshes of what is derived from them (50).
        skip: patterns (``*``, ``?``) of layers that go to the rule as they are (of rule "muon": to AdamW): names of
            modules or parameters.
        params: parameters, or groups as for torch.optim with their own lr, weight_decay and settings of the method, such as
            damping; default all of the model.
        grad_scaler: the GradScaler, needed only where its unscale_() is called and the method reads output gradients.
        process_group: over which statistics are joined; default that of DistributedDataParallel, else the default group, if
            there is one at the step. False: this process trains its own model.
        clip: limit for the global norm of the gradient, before preconditioning; 0: none.
        maximize: the objective rather than to minimize it.
        attention: of MAC and SMAC: modules of attention that are not recognised, by pattern, as :class:`Attention`; None:
            those that fit are not attention.
        options: whatever else the method's and the rule's option tables know, e.g. ``pgrad="per-example"``.
    """

    method = ""
    _examples = _terms = _seed = 0
    _stands_type = Stands
    _step_supports_amp_scaling = True

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.1,
        *,
        momentum: float | None = None,
        weight_decay: float = 0.0,
        nesterov: bool | None = None,
        decay: str | None = None,
        rule: str = "sgd",
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        stat_decay: float | None = None,
        tcov: int | None = None,
        tinv: int | None = None,
        skip: str | Sequence[str] = (),
        first: str | Sequence[str] | None = None,
        head: str | Sequence[str] | None = None,
        params: Iterable[Any] | None = None,
        grad_scaler: Any = None,
        process_group: Any = None,
        clip: float = 0.0,
        maximize: bool = False,
        attention: Mapping[str, Attention | None] | None = None,
        **options: Any,
    ) -> None:
        if type(self) is CurvatureOptimizer:
            raise TypeError("abar: CurvatureOptimizer is a base; use one of its subclasses, such as MAC, FOOF, KFAC or Muon")
        self._ready = False
        if not all(0.0 <= float(x) < math.inf for x in (lr, weight_decay, clip)):
            raise ValueError(f"abar: lr {lr}, weight_decay {weight_decay} and clip {clip} must be finite and not negative")
        self._model, group = check_model(model)
        check_shards(self._model)
        self._ranks, self._joined = Ranks(process_group, group), 0
        self._grad_scaler, self._clip = grad_scaler, float(clip)
        self._unseen: set[str] | None = None  # layers whose gradients came without a use; None: no statistics yet
        self._warned = False
        self._trained: list[Tensor] | None = None  # the weights that are trained, while the model has others
        adamw = "aux_" if rule == "muon" else ""
        named = {"momentum": momentum, "nesterov": nesterov, "decay": decay, f"{adamw}eps": eps}
        named.update(stat_decay=stat_decay, tcov=tcov, tinv=tinv)
        if betas is not None:
            named.update({f"{adamw}beta1": betas[0], f"{adamw}beta2": betas[1]})
        settings = {k: v for k, v in {**named, **options}.items() if v is not None}
        self._skip = _patterns(skip) + _split(settings.pop("skip_layers", ""))
        self._context = _library.Context()
        self._settings = self._configure(rule, float(lr), settings)
        self._refuse_idle(settings, first is not None or head is not None)
        self._ends, self._told = (first, head), (attention, settings)
        defaults = dict(
            lr=lr, weight_decay=weight_decay, maximize=bool(maximize), **rule_settings(self._settings.rule_options)
        )
        super().__init__(self._model.parameters() if params is None else params, defaults)
        self._attach()
        self._ready = True
        self._expect_shards()

    def _attach(self) -> None:
        """Finds the layers of the parameters there are, and makes the library's optimizer for them."""
        self._layers, self._left = find_layers(self._model, self._all_params(), self._skip)
        self._layers, left = by_rows(self._layers)
        self._left += left
        self._require_layers()
        if self._settings.rule == "muon":
            first, head = (None if given is None else _patterns(given) for given in self._ends)
            mark_ends(self._model, self._layers, first, head)
        mark_windows(self._model, self._layers)
        self._find_values(*self._told)
        self._stands = self._stands_type(self._all_params())
        self._engine: Any = self._make_engine(self._settings)
        self._options_in_force = chosen_options(self._settings.method_options, self.param_groups)
        self._rule_in_force = rule_settings(self._settings.rule_options)
        seen = {self._engine.layer_of(m) for m in self._engine.maps()}
        observed = [layer for layer in self._layers if layer.name in seen]
        self._observer = Observer(
            observed,
            self._observe,
            self._forget,
            self._engine.reads_output_grad,
            self._engine.reads_examples,
            {layer.index: layer.values.heads for layer in observed if layer.values is not None},
        )
        self._watch()

    # ---- making ----------------------------------------------------------------------------------------------------

    def _configure(self, rule: str, base_lr: float, keywords: dict[str, Any]) -> Settings:
        settings = make_settings(self._context, self.method, rule, base_lr)
        settings.examples, settings.loss_terms, settings.seed = self._examples, self._terms, self._seed
        if rule == "muon" and "kl_clip" in settings.method_options:
            settings.method_options.set("kl_clip", 0.0)  # as in the library: methods.md section 11
        for name, value in keywords.items():
            table = next((t for t in settings.tables() if name in t), None)
            if table is None:
                known = [keyword for t in settings.tables() for keyword in t.keywords()]
                name = {"beta1": "betas", "aux_beta1": "betas", "aux_eps": "eps"}.get(name, name)
                raise TypeError(
                    f"{type(self).__name__}() with rule {rule!r} has no option {name!r}{_library.nearest(name, known)}"
                )
            table.set(name, value)
        return settings

    def _refuse_idle(self, given: dict[str, Any], ends: bool) -> None:
        """Settings that would do nothing here."""
        method, rule = self._settings.method, self._settings.rule
        reads_grad = bool(method) and self._context.library.abar_method_reads_output_grad(method.encode())
        idle: dict[str, str] = {}
        if ends and rule != "muon":
            idle["first and head"] = "they name the layers that rule 'muon' leaves to AdamW"
        if not reads_grad:
            idle["pgrad"] = f"{type(self).__name__} does not read output gradients"
        if not method or method == "ngd":
            idle.update(dict.fromkeys(("tcov", "tinv", "stat_decay", "refresh"), "there are no averages of statistics"))
        if given.get("first_layer") not in (None, "running"):
            idle["first_layer"] = "it needs a pass over the training set, which only abar train makes"
        if method == "smac" and _is_number(given.get("damping", 1.0)):
            idle["diagonal_damping"] = "damping is a number, and holds for both sides"
        for name, why in idle.items():
            if name in given or name == "first and head":
                raise ValueError(f"abar: {name} would do nothing: {why}; leave it out")

    def _all_params(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def _require_layers(self) -> None:
        if self._layers:
            return
        left = [f"{m.name} ({type(m.module).__name__}: {m.reason})" for m in self._left]
        raise ValueError(
            f"abar: {type(self).__name__} preconditions Linear and Conv2d layers, and found none among "
            f"{', '.join(left) or 'no modules with parameters'}; use torch.optim for this model"
        )

    def _find_values(self, told: Mapping[str, Attention | None] | None, given: dict[str, Any]) -> None:
        """Layers that make values of attention have statistics of their own, unless told otherwise."""
        options = self._settings.method_options
        if "value_stat" not in options or options.get("value_stat") == "plain":
            if told is not None:
                raise ValueError(f"abar: attention does nothing here, {type(self).__name__} treats all rows alike")
            return
        values = find_values(self._model, self._layers, told)
        if not values and "value_stat" in given:
            raise ValueError(
                f"abar: value_stat={given['value_stat']!r}: no attention was recognised in the model; name it with "
                f"attention={{'blocks.*.attn': abar.torch.Attention(qkv='qkv', heads=3)}}, or leave value_stat out"
            )
        for layer in self._layers:
            layer.values = values.get(layer.index)
            if options.get("value_stat") == "factored" and layer.values is not None and not layer.values.tokens:
                raise ValueError(
                    f"abar: value_stat='factored' needs the number of tokens that {layer.name} reads; name it with "
                    f"attention={{...: abar.torch.Attention(..., tokens=197)}}"
                )

    def _make_engine(self, settings: Settings, groups: Sequence[dict[str, Any]] | None = None) -> Engine:
        """groups: the method's settings of each; None: what the groups say now."""
        params = self._all_params()
        known = {id(p): name for name, p in self._model.named_parameters()}
        names = [known.get(id(p), f"params.{i}") for i, p in enumerate(params)]
        factors = [(float(g["lr"]), float(g["weight_decay"])) for g in self.param_groups for _ in g["params"]]
        if self._stands.sharded:
            kl_clip = settings.method_options.get("kl_clip") if "kl_clip" in settings.method_options else 0.0
            check_rows_alone(settings.method, settings.rule, kl_clip, self._clip, self._layers)
        if groups is None:
            groups = chosen_options(settings.method_options, self.param_groups)
        own = options_of_layers(settings.method_options, self.param_groups, groups, self._layers)
        return Engine(self._context, self._stands.tensors, names, factors, self._stands.layers(self._layers), settings, own)

    def _follow_options(self) -> None:
        """Where somebody has changed a group's settings of the method. They hold from the next refresh on."""
        wanted = chosen_options(self._settings.method_options, self.param_groups)
        if wanted == self._options_in_force:
            return
        before, pending = self._engine, self._engine.read_pending()
        engine = self._make_engine(self._settings, wanted)
        check_change(self.method, before, engine, pending is not None)
        carry_over(before, engine, self._stands.originals, self._stands.originals)
        if pending is not None:
            engine.write_pending(pending)
        before.close()
        self._engine, self._options_in_force = engine, wanted

    def _watch(self) -> None:
        self._observer.set_active(self._engine.observes())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. What the optimizer knows of its other parameters stays; AdamW's t counts its updates, not a group's."""
        check_group(self._settings, param_group, self.defaults)
        super().add_param_group(param_group)
        if self._ready:
            self._follow_params()

    def _expect_shards(self) -> None:
        """accelerate shards a model after its optimizer is made, and gives the groups the shards: the first forward pass
        looks whether it has."""
        if self._ranks.world() == 1 and int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return
        me = weakref.ref(self)

        def look(_module: nn.Module, _inputs: Any) -> None:
            handle.remove()
            optimizer = me()
            if optimizer is not None:
                optimizer._follow_params()

        handle = self._model.register_forward_pre_hook(look)

    def _follow_params(self) -> None:
        """Where the groups have other parameters than before (a group more, or shards in the place of wholes)."""
        if [id(p) for p in self._all_params()] == [id(p) for p in self._stands.originals]:
            return
        before, params = self._engine, self._stands.originals
        self._observer.close()
        self._attach()
        carry_over(before, self._engine, params, self._stands.originals)
        before.close()
        self._watch()

    # ---- statistics ------------------------------------------------------------------------------------------------

    def _world(self) -> int:
        return self._ranks.world()

    def _observe(self, layer: Layer, rows: Rows) -> None:
        """Called in backward. Ranks average their gradients, so each contributes its part of the joint mean. What is minimized
        is the negative of what is to be maximized, output gradients included."""
        sign = -1.0 if self.param_groups[0].get("maximize", False) else 1.0  # they agree, or step() refuses them
        self._engine.observe(layer, *rows[:3], sign * rows.scale / self._world())

    def _forget(self, layer: Layer) -> None:
        self._engine.forget_layer(layer)

    def _join_ranks(self) -> None:
        if self._ranks.world() == 1:
            return
        pending, device = self._engine.read_pending(), self._engine.torch_device
        if not self._stands.sharded and (pending is not None or self._joined % CHECK_EVERY == 0):
            self._ranks.check_equal(self._all_params(), device)
        self._joined += 1
        if pending is not None:
            self._engine.write_pending(self._ranks.add_up(pending, device))

    def _check_seen(self) -> None:
        """On a step with statistics: which of the gradients were made by uses that were seen."""
        observer = self._observer
        if observer.closed or not self._engine.observes():
            return
        observer.forget_all_dropped()
        trained = [layer for layer in observer.layers if layer.weight.grad is not None]
        for layer in trained:
            reason = observer.why_hidden(layer)
            if reason is not None:
                raise RuntimeError(
                    f"abar: {layer.name} {reason}, so its statistics are unknown; leave it to the rule with "
                    f"skip=({layer.name!r},)"
                )
        unseen = {layer.name for layer in trained if layer.index not in observer.observed}
        if not trained or unseen == self._unseen:
            return
        if self._unseen is None and len(unseen) == len(trained):
            raise RuntimeError(
                f"abar: {type(self).__name__} would precondition nothing: the gradients did not come from a backward pass "
                f"through the model that it saw. Gradients of torch.func or of another copy of the model cannot be used; "
                f"run the model and call backward after the optimizer is made"
            )
        self._unseen = unseen
        if unseen:
            self._warn_unseen(unseen)

    def _warn_unseen(self, unseen: set[str]) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"abar: {type(self).__name__} takes statistics at this step, but saw no use of {', '.join(sorted(unseen))}, "
            f"whose gradients stay as they are; {self.preconditioned_share():.0%} of the parameters are preconditioned.",
            stacklevel=5,
        )

    def preconditioned_share(self) -> float:
        """The parameters in layers whose gradients are preconditioned, as a share of all that are trained."""
        ready = {row.name for row in self.layers if row.preconditioned}
        mine = [p for layer in self._layers if layer.name in ready for p in (layer.weight, layer.bias) if p is not None]
        total = sum(p.numel() for p in self._all_params() if p.requires_grad)
        return sum(p.numel() for p in mine if p.requires_grad) / max(total, 1)

    # ---- stepping --------------------------------------------------------------------------------------------------

    def _place_params(self) -> None:
        self._stands.load()
        self._engine.params[:] = self._stands.tensors
        rates = [rates_of(group) for group in self.param_groups]
        rate = self._engine.set_rates([lr for lr, _ in rates])
        sizes = [len(group["params"]) for group in self.param_groups]
        with torch._C.DisableTorchFunction():  # nothing here concerns the mode that looks for uses
            self._engine.place_all([(n, lr / rate, decay) for n, (lr, decay) in zip(sizes, rates)])

    def _follow_rule(self) -> None:
        """Schedulers change momentum and betas in the groups; they hold for all parameters."""
        wanted = {k: self.param_groups[0][k] for k in self._rule_in_force}
        if any({k: group[k] for k in wanted} != wanted for group in self.param_groups[1:]):
            names = ", ".join(wanted)
            raise ValueError(f"abar: {names} must be the same in all parameter groups; lr and weight_decay may differ")
        if wanted == self._rule_in_force:
            return
        set_rule_settings(self._settings.rule_options, wanted)
        self._engine.set_rule(self._settings.rule_options)
        self._rule_in_force = dict(wanted)

    def _observed_scale(self, scaling: Scaling) -> float:
        if scaling.outputs is not None:
            return 1.0 / scaling.outputs
        if self._engine.reads_output_grad and self._engine.observes():
            raise RuntimeError(
                f"abar: after GradScaler.unscale_() the scale of the output gradients that {type(self).__name__} reads "
                f"is unknown; make it with grad_scaler=your scaler"
            )
        return 1.0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """One step. A gradient that is not finite skips it: nothing changes, ``skipped_steps`` counts.

        FOOF, KFAC, LNGD and NGD leave the preconditioned gradients in ``.grad``, muon the step of what it takes, shampoo and soap
        theirs.

        Args:
            closure: reevaluates the model and returns the loss.
        """
        passed = kwargs.pop("grad_scaler", None)  # given by the GradScaler of torch 1.13
        if kwargs:
            raise TypeError(f"step() got an unexpected keyword argument {next(iter(kwargs))!r}")
        if self._trained is not None:
            raise RuntimeError("abar: the model has the weights that are tested; call train() of the optimizer first")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scaling = find_scaling(self, self._grad_scaler, passed)
        self._looked = None
        if self._skips(scaling):
            self._engine.skip()
        else:
            self._update(scaling)
        self._watch()
        self._finish(closure, scaling)
        return loss

    def _finish(self, closure: Callable[[], Any] | None, scaling: Scaling) -> None:
        """What a method does once the weights have moved."""

    def _skips(self, scaling: Scaling) -> bool:
        """Ranks that have shards see infinities of their own."""
        if not self._stands.sharded:
            return scaling.found_inf
        return self._ranks.any(scaling.found_inf or not self._stands.finite(), self._engine.torch_device)

    def _maximizes(self) -> bool:
        wanted = {bool(group.get("maximize", False)) for group in self.param_groups}
        if len(wanted) > 1:
            raise ValueError("abar: maximize must be the same in all parameter groups; lr and weight_decay may differ")
        return wanted.pop()

    def _store(self) -> None:
        self._stands.store()

    def _update(self, scaling: Scaling) -> None:
        self._follow_params()
        self._follow_options()
        self._follow_rule()
        self._place_params()
        observed_scale = self._observed_scale(scaling)
        self._check_seen()
        self._join_ranks()
        flipped = self._engine.placed_grads() if self._maximizes() else []
        if flipped:
            torch._foreach_neg_(flipped)
        self._engine.step(self._clip, 1.0 / scaling.grads, observed_scale)
        if flipped:
            torch._foreach_neg_(flipped)
        self._store()

    @torch.no_grad()
    def eval(self) -> None:
        """Gives the model the weights that are to be tested and exported, until train(). Only of rule "sfadamw" are they
        others than those that are trained. Running statistics of batch norms belong to the latter: before a test, run some
        training batches forward in the model's train mode, and put the statistics back afterwards."""
        if not self._engine.averages or self._trained is not None:
            return
        self._place_params()
        self._trained = [p.detach().clone() for p in self._all_params()]
        kept = [None if t is p else t.clone() for t, p in zip(self._stands.tensors, self._stands.originals)]
        self._engine.average()
        self._stands.publish(kept)

    @torch.no_grad()
    def train(self) -> None:
        """Gives the model back the weights that are trained."""
        if self._trained is None:
            return
        for p, value in zip(self._all_params(), self._trained):
            p.copy_(value)
        self._trained = None

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's; statistics of the gradients that are thrown away go with them."""
        super().zero_grad(*args, **kwargs)
        if self._observer.observed:
            self._engine.forget()
        self._observer.reset()

    # ---- state -----------------------------------------------------------------------------------------------------

    def _shared(self) -> dict[str, Any]:
        """What the groups of a state dict say about the optimizer as a whole."""
        settings = self._settings
        return dict(
            method=settings.method,
            rule=settings.rule,
            base_lr=settings.base_lr,
            options={**settings.curvature_options.values(), **settings.method_options.values()},
        )

    def _drop_shared(self) -> None:
        for group in self.param_groups:
            for key in (*SHARED, *BLOCKS, *AVERAGES, *DIAGONALS):
                group.pop(key, None)

    def state_dict(self) -> dict[str, Any]:
        """Complete: moments and curvature per parameter, counters and settings in the groups."""
        if self._trained is not None:
            raise RuntimeError(
                "abar: a run goes on with the weights that are trained; call train() of the optimizer, then save both"
            )
        self._looked = None
        self._follow_params()
        _, counters = save_state(self._engine, self._stands)
        for group in self.param_groups:
            group.update(self._shared(), **counters)
        try:
            return super().state_dict()
        finally:
            self._drop_shared()

    def _read_state(self) -> dict[Any, dict[str, Any]]:
        if not getattr(self, "_ready", False):
            return {}
        self._follow_params()
        return save_state(self._engine, self._stands)[0]

    def _all_settings(self) -> dict[str, Any]:
        shared = self._shared()
        return dict(method=shared["method"] or None, rule=shared["rule"], clip=self._clip, skip=self._skip, **shared["options"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up where another optimizer of the same method, rule and model stopped, with its settings."""
        self._follow_params()
        rule = self._settings.rule
        shared = read_shared(state_dict, self.param_groups, self.method, rule)
        wanted = {key: state_dict["param_groups"][0][key] for key in self._rule_in_force}
        settings = self._configure(rule, float(shared["base_lr"]), shared["options"])
        set_rule_settings(settings.rule_options, wanted)
        groups = chosen_options(settings.method_options, state_dict["param_groups"])
        engine = self._make_engine(settings, groups)
        states = saved_states(engine, self._stands, state_dict)
        check_state(engine, states)
        super().load_state_dict({**state_dict, "state": {}})
        self.__dict__.pop("state", None)
        self._drop_shared()
        load_state(engine, self._stands, states, shared)
        self._engine.close()
        self._engine, self._settings, self._rule_in_force, self._options_in_force = engine, settings, wanted, groups
        self._trained = None  # what the model has now is what is trained
        self._watch()

    # ---- looking inside --------------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[LayerReport]:
        """All modules with parameters: what becomes of their gradients, and what was counted and measured."""
        maps = [(self._engine.layer_of(m), m) for m in self._engine.maps()]
        return report_layers(self._layers, self._left, maps, self._unseen)

    @property
    def params(self) -> list[ParamReport]:
        """All parameters: the rule that updates each, and why."""
        shapes = [tuple(p.shape) for p in self._engine.params]
        return report_params(self._engine.names, shapes, self._engine.param_infos())

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing because a gradient was not finite."""
        counters = self._engine.counters()
        return counters["steps"] - counters["updates"]

    def measure(self) -> None:
        """Asks the next step for cosine and ratio between gradients and their preconditioned form."""
        self._engine.measure()

    def report(self) -> str:
        """The layers as a table; where the rule treats parameters apart, those too."""
        device = self._context.library.abar_device_describe(self._engine.device).decode()
        title = (
            f"{self._title()}, {device}, state {self._engine.state_bytes()} bytes, {self.skipped_steps} skipped steps"
            + (f", {self.preconditioned_share():.1%} of the parameters preconditioned" if self.method else "")
        )
        params, counts = self.params, self._engine.block_counts()
        if not any(p.why for p in params):
            return format_report(title, self.layers)
        title += f", {counts.dropped} dropped and {counts.small} small blocks"
        tables = [format_report(title, self.layers)] if self.method else [title]
        return "\n".join([*tables, format_params(params)])

    def _title(self) -> str:
        name = type(self).__name__
        return f"{name} on {self._settings.rule}" if self.method else name

    def remove_hooks(self) -> None:
        """Takes the hooks off the model for good: steps go on with the averages there are."""
        self._observer.close()

    def close(self) -> None:
        """Takes the hooks off the model and frees the library's memory. The optimizer cannot be used afterwards."""
        self._observer.close()
        if not isinstance(self._engine, Closed):
            self._engine.close()
        self._engine = Closed()


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _patterns(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _split(patterns: str) -> list[str]:
    return [p for p in patterns.split(",") if p]
