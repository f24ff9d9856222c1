"""The C interface of libabar_optim as ctypes sees it: include/abar/*.h, and nothing that is not used here."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p

F64, F32, BF16, F16, I64 = range(5)  # abar_dtype
OPTION_INT, OPTION_REAL, OPTION_BOOL, OPTION_CHOICE, OPTION_TEXT = range(5)  # abar_option_type
EXTRA_NONE, EXTRA_DIFFERENCE, EXTRA_SAMPLED, EXTRA_ROWS = range(4)  # abar_extra
E_ARGUMENT = -1
MAX_DIM = 6
OPTION_TEXT_MAX = 512


class Option(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("type", c_int),
        ("offset", c_size_t),
        ("fallback", c_char_p),
        ("min", c_double),
        ("max", c_double),
        ("choices", c_char_p),
        ("help", c_char_p),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("dev", c_void_p),
        ("data", c_void_p),
        ("dtype", c_int),
        ("layout", c_int),
        ("ndim", c_int),
        ("dim", c_int64 * MAX_DIM),
        ("stride", c_int64 * MAX_DIM),
    ]


class Window(ctypes.Structure):
    _fields_ = [
        ("kernel", c_int64 * 2),
        ("stride", c_int64 * 2),
        ("pad", c_int64 * 2),
        ("dilation", c_int64 * 2),
        ("groups", c_int64),
    ]


class Attention(ctypes.Structure):
    _fields_ = [
        ("heads", c_int64),
        ("value_row", c_int64),
        ("value_rows", c_int64),
        ("grid", c_int64 * 2),
        ("side", c_int64),
        ("shift", c_int64),
        ("columns", Tensor),
    ]


class Layer(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("weight", Tensor),
        ("bias", Tensor),
        ("weight_grad", Tensor),
        ("bias_grad", Tensor),
        ("input", Tensor),
        ("output_grad", Tensor),
        ("output_grad_scale", c_double),
        ("window", Window),
        ("reads_network_input", c_bool),
        ("attention", Attention),
    ]


class DeviceConfig(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int),
        ("deterministic", c_bool),
        ("precision", c_int),
        ("stream", c_void_p),
    ]


class Method(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("summary", c_char_p),
        ("keeps", c_char_p),
        ("options", POINTER(Option)),
        ("config_size", c_size_t),
    ]


class Rule(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("summary", c_char_p),
        ("options", POINTER(Option)),
        ("config_size", c_size_t),
        ("states", c_int),
        ("averages", c_bool),
    ]


class MapInfo(ctypes.Structure):
    _fields_ = [
        ("layer", c_char_p),
        ("group", c_int64),
        ("rows", c_int64),
        ("columns", c_int64),
        ("state_bytes", c_size_t),
        ("commits", c_int64),
        ("dropped", c_int64),
        ("raised", c_int64),
        ("doubled", c_int64),
        ("kept", c_int64),
        ("damping", c_double),
        ("mean_square", c_double),
        ("condition", c_double),
        ("cosine", c_double),
        ("ratio", c_double),
    ]


class ParamInfo(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("value", Tensor),
        ("rule", c_char_p),
        ("why", c_char_p),
        ("lr_scale", c_double),
        ("weight_decay", c_double),
        ("blocks", c_int64),
        ("block_rows", c_int64),
        ("block_columns", c_int64),
    ]


class BlockCounts(ctypes.Structure):
    _fields_ = [("blocks", c_int64), ("dropped", c_int64), ("small", c_int64), ("kept", c_int64)]


class Param(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("value", Tensor),
        ("grad", Tensor),
        ("lr_scale", c_double),
        ("weight_decay", c_double),
    ]


class OptimConfig(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rule", c_char_p),
        ("rule_config", c_void_p),
        ("method", c_char_p),
        ("method_config", c_void_p),
        ("curvature", c_void_p),
        ("params", POINTER(Param)),
        ("n_params", c_int),
        ("layers", POINTER(Layer)),
        ("n_layers", c_int),
        ("base_lr", c_double),
        ("shadows", c_void_p),
        ("yields_output", POINTER(c_bool)),
        ("examples", c_int64),
        ("extra_grads", POINTER(c_void_p)),
        ("loss_terms", c_int64),
        ("seed", c_uint64),
        ("classes", c_int64),
        ("method_configs", POINTER(c_void_p)),
    ]


class StepConfig(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("lr", c_double),
        ("clip", c_double),
        ("grad_scale", c_double),
        ("observed_scale", c_double),
    ]


class MomentsSummary(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        *(
            (name, c_double)
            for name in (
                "rows trace largest second least effective_rank entropy_rank mean_square cosine gap distance davis_kahan "
                "davis_kahan_sharp covariance_norm covariance_spectral covariance_trace rank1_error rank1_share "
                "adaptive_damping kappa_kfac kappa_mac condition_sgd condition_mac condition_foof"
            ).split()
        ),
    ]


class ProbabilitiesSummary(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        *(
            (name, c_double)
            for name in "matrices cosine_stationary cosine_singular top_share rank1_error printed_error".split()
        ),
    ]


#: the library's names of what is laid out here, by how they may change (docs/abi.md): never ...
FIXED = {
    "abar_option": Option,
    "abar_tensor": Tensor,
    "abar_window": Window,
    "abar_attention": Attention,
    "abar_layer": Layer,
    "abar_optim_param": Param,
}
#: ... or by more members at the end
GROWING = {
    "abar_device_config": DeviceConfig,
    "abar_method": Method,
    "abar_rule": Rule,
    "abar_map_info": MapInfo,
    "abar_param_info": ParamInfo,
    "abar_block_counts": BlockCounts,
    "abar_optim_config": OptimConfig,
    "abar_step_config": StepConfig,
}

StateVisitor = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, POINTER(Tensor))

#: name: (result, arguments)
FUNCTIONS = {
    "abar_version": (c_char_p, []),
    "abar_struct_size": (c_size_t, [c_char_p]),
    "abar_context_create": (c_int, [c_void_p, POINTER(c_void_p)]),
    "abar_context_destroy": (None, [c_void_p]),
    "abar_context_error": (c_char_p, [c_void_p]),
    "abar_status_text": (c_char_p, [c_int]),
    "abar_options_default": (None, [POINTER(Option), c_void_p]),
    "abar_options_set": (c_int, [c_void_p, POINTER(Option), c_void_p, c_char_p, c_char_p]),
    "abar_options_get": (c_int, [c_void_p, POINTER(Option), c_void_p, c_char_p, c_char_p, c_size_t]),
    "abar_device_names": (POINTER(c_char_p), []),
    "abar_device_open": (c_int, [c_void_p, c_char_p, POINTER(DeviceConfig), POINTER(c_void_p)]),
    "abar_device_close": (None, [c_void_p]),
    "abar_device_set_stream": (c_int, [c_void_p, c_void_p]),
    "abar_device_describe": (c_char_p, [c_void_p]),
    "abar_tensor_copy": (c_int, [c_void_p, POINTER(Tensor), POINTER(Tensor)]),
    "abar_method_find": (POINTER(Method), [c_char_p]),
    "abar_method_reads_output_grad": (c_bool, [c_char_p]),
    "abar_curvature_options": (POINTER(Option), []),
    "abar_curvature_config_size": (c_size_t, []),
    "abar_rule_find": (POINTER(Rule), [c_char_p]),
    "abar_rule_names": (POINTER(c_char_p), []),
    "abar_rule_extra": (c_int, [POINTER(Rule)]),
    "abar_optim_create": (c_int, [c_void_p, POINTER(OptimConfig), POINTER(c_void_p)]),
    "abar_optim_destroy": (None, [c_void_p]),
    "abar_optim_set_param": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_double, c_double]),
    "abar_optim_set_rule": (c_int, [c_void_p, c_void_p]),
    "abar_optim_step": (c_int, [c_void_p, POINTER(StepConfig), c_void_p]),
    "abar_optim_average": (c_int, [c_void_p]),
    "abar_optim_skip": (None, [c_void_p]),
    "abar_optim_extra": (c_int, [c_void_p]),
    "abar_optim_perturb": (c_int, [c_void_p, c_int]),
    "abar_optim_take_sampled": (c_int, [c_void_p, POINTER(StepConfig)]),
    "abar_optim_wants_pass": (c_bool, [c_void_p]),
    "abar_optim_end_pass": (c_int, [c_void_p, c_bool, c_double, POINTER(c_bool)]),
    "abar_optim_forget": (None, [c_void_p]),
    "abar_optim_forget_layer": (None, [c_void_p, c_int]),
    "abar_optim_observes": (c_bool, [c_void_p]),
    "abar_optim_observe": (c_int, [c_void_p, c_int, POINTER(Layer)]),
    "abar_optim_pending_count": (c_int64, [c_void_p]),
    "abar_optim_pending_read": (c_int, [c_void_p, c_void_p]),
    "abar_optim_pending_write": (c_int, [c_void_p, c_void_p]),
    "abar_optim_map_count": (c_int, [c_void_p]),
    "abar_optim_map": (POINTER(MapInfo), [c_void_p, c_int]),
    "abar_optim_param_info": (POINTER(ParamInfo), [c_void_p, c_int]),
    "abar_optim_blocks": (POINTER(BlockCounts), [c_void_p]),
    "abar_optim_steps": (c_int64, [c_void_p]),
    "abar_optim_measure": (None, [c_void_p]),
    "abar_optim_visit": (c_int, [c_void_p, StateVisitor, c_void_p]),
    "abar_optim_state_bytes": (c_size_t, [c_void_p]),
    "abar_moments_create": (c_int, [c_void_p, c_int64, POINTER(c_void_p)]),
    "abar_moments_destroy": (None, [c_void_p]),
    "abar_moments_add": (c_int, [c_void_p, POINTER(Tensor)]),
    "abar_moments_side": (c_int64, [c_void_p]),
    "abar_moments_summarise": (c_int, [c_void_p, c_double, POINTER(MomentsSummary), c_void_p, c_int64]),
    "abar_probabilities_create": (c_int, [c_void_p, c_int64, POINTER(c_void_p)]),
    "abar_probabilities_destroy": (None, [c_void_p]),
    "abar_probabilities_add": (c_int, [c_void_p, POINTER(Tensor)]),
    "abar_probabilities_summarise": (c_int, [c_void_p, POINTER(ProbabilitiesSummary), c_void_p, c_void_p, c_void_p]),
}
