"""Finds and opens the shared library, turns its failures into exceptions, and reads its option tables."""

from __future__ import annotations

import ctypes
import ctypes.util
import difflib
import functools
import importlib.util
import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import _abi
from ._version import __version__

NAME = "libabar_optim.so"


def _candidates() -> Iterator[str]:
    """Where the library may be, best first."""
    here = Path(__file__).resolve().parent
    yield str(here / NAME)  # put there by pip
    checkout = here.parent.parent
    if (checkout / "include" / "abar" / "optim.h").exists():
        for build in ("build", "build-debug"):
            yield str(checkout / build / NAME)
    system = ctypes.util.find_library("abar_optim")
    if system:
        yield system


def _share_openmp() -> None:
    """Opens the OpenMP runtime that torch brings along, where it does: whoever asks for libgomp.so.1 later, the library or
    torch, gets that one, and there is one pool of threads."""
    torch = importlib.util.find_spec("torch")
    runtime = Path(torch.origin).parent / "lib" / "libgomp.so.1" if torch and torch.origin else None
    if runtime and runtime.exists():
        ctypes.CDLL(str(runtime))


@functools.cache
def load() -> ctypes.CDLL:
    """The library, opened once. $ABAR_LIBRARY decides; otherwise the package, the checkout around it, the system."""
    chosen = os.environ.get("ABAR_LIBRARY")
    path = chosen or next((c for c in _candidates() if "/" not in c or os.path.exists(c)), None)
    if path is None:
        raise ImportError(
            f"abar: {NAME} was not found. Install the package again, or build it (make, in the abar checkout), "
            f"or set ABAR_LIBRARY to its path."
        )
    try:
        _share_openmp()
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ImportError(f"abar: {path} cannot be used: {error}. Build it anew, or correct ABAR_LIBRARY.") from None
    version = library.abar_version().decode()
    differs = [n for n, s in _abi.FIXED.items() if library.abar_struct_size(n.encode()) != ctypes.sizeof(s)]
    differs += [n for n, s in _abi.GROWING.items() if library.abar_struct_size(n.encode()) < ctypes.sizeof(s)]
    if differs or version.split(".")[:2] != __version__.split(".")[:2]:
        raise ImportError(
            f"abar: {path} is version {version}, the Python package {__version__}. Install both from the same release."
        )
    return library


def library_path() -> str:
    """The path of the shared library in use. ``ImportError`` where there is none."""
    return load()._name


class Context:
    """An abar_context: what hangs on it fails through it."""

    def __init__(self) -> None:
        self.library = load()
        handle = ctypes.c_void_p()
        if self.library.abar_context_create(None, ctypes.byref(handle)) < 0:
            raise MemoryError("abar: no memory for a context")
        self.handle = handle
        weakref.finalize(self, self.library.abar_context_destroy, handle)

    def check(self, status: int) -> None:
        """Raises what a failed call left behind."""
        if status >= 0:
            return
        text = self.library.abar_context_error(self.handle) or self.library.abar_status_text(status)
        raise (ValueError if status == _abi.E_ARGUMENT else RuntimeError)("abar: " + _in_python(text.decode()))


def _in_python(text: str) -> str:
    """The library names options as the command line does; here they are keywords."""
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda option: option.group(1).replace("-", "_"), text)


class Options:
    """A configuration struct of the library, by the rows of its option table."""

    def __init__(self, context: Context, table: Any, size: int) -> None:
        self._context, self._table, self._size = context, table, size
        self._memory = (ctypes.c_double * ((size + 7) // 8))()
        context.library.abar_options_default(table, self._memory)
        self.types = {row.name.decode(): row.type for row in _rows(table)}

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.cast(self._memory, ctypes.c_void_p)

    def copy(self) -> Options:
        other = Options(self._context, self._table, self._size)
        ctypes.memmove(other._memory, self._memory, ctypes.sizeof(self._memory))
        return other

    def set(self, name: str, value: Any) -> None:
        """``name`` as on the command line, or with underscores for the hyphens."""
        library, context = self._context.library, self._context
        text = str(value).lower() if isinstance(value, bool) else str(value)
        status = library.abar_options_set(context.handle, self._table, self.pointer, _hyphens(name), text.encode())
        context.check(status if status >= 0 else _abi.E_ARGUMENT)

    def get(self, name: str) -> Any:
        """The value as Python has it: int, float, bool or str."""
        library, context = self._context.library, self._context
        text = ctypes.create_string_buffer(_abi.OPTION_TEXT_MAX)
        status = library.abar_options_get(context.handle, self._table, self.pointer, _hyphens(name), text, len(text))
        context.check(status)
        kind, value = self.types[name.replace("_", "-")], text.value.decode()
        if kind == _abi.OPTION_BOOL:
            return value == "true"
        return {_abi.OPTION_INT: int, _abi.OPTION_REAL: float}.get(kind, str)(value)

    def keywords(self) -> list[str]:
        """The names of all options, as Python spells them."""
        return [name.replace("-", "_") for name in self.types]

    def __contains__(self, name: str) -> bool:
        return name.replace("_", "-") in self.types

    def values(self) -> dict[str, Any]:
        return {keyword: self.get(keyword) for keyword in self.keywords()}


def _hyphens(name: str) -> bytes:
    return name.replace("_", "-").encode()


def _rows(table: Any) -> Iterator[_abi.Option]:
    index = 0
    while table[index].name:
        yield table[index]
        index += 1


class NoOptions(Options):
    """Those of a method that is not there."""

    def __init__(self) -> None:
        self.types = {}

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p()


def method_options(context: Context, method: str) -> Options:
    if not method:
        return NoOptions()
    found = context.library.abar_method_find(method.encode()).contents
    return Options(context, found.options, found.config_size)


def curvature_options(context: Context) -> Options:
    library = context.library
    return Options(context, library.abar_curvature_options(), library.abar_curvature_config_size())


def rule_names(context: Context) -> list[str]:
    return _names(context.library.abar_rule_names())


def device_names(context: Context) -> list[str]:
    return _names(context.library.abar_device_names())


def rule_options(context: Context, rule: str) -> Options:
    if rule not in rule_names(context):
        raise ValueError(f"abar: rule {rule!r} is unknown, take one of {', '.join(rule_names(context))}")
    found = context.library.abar_rule_find(rule.encode()).contents
    return Options(context, found.options, found.config_size)


def _names(array: Any) -> list[str]:
    names: list[str] = []
    while array[len(names)]:
        names.append(array[len(names)].decode())
    return names


def nearest(name: str, known: list[str]) -> str:
    """ ", did you mean ..." or nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
