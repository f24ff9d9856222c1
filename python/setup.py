"""Puts the shared library into the wheel: the one found, or built by CMake from the checkout around this folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

NAME = "libabar_optim.so"
HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent


def find() -> Path | None:
    """$ABAR_LIBRARY, or a finished build of the checkout."""
    chosen = os.environ.get("ABAR_LIBRARY")
    if chosen and not Path(chosen).exists():
        raise SystemExit(f"abar: ABAR_LIBRARY={chosen} does not exist; correct it or unset it")
    library = Path(chosen) if chosen else CHECKOUT / "build" / NAME
    return library.resolve() if library.exists() else None


def build(folder: Path) -> Path:
    """A release build of the library alone."""
    if not (CHECKOUT / "CMakeLists.txt").exists():
        raise SystemExit(
            f"abar: {NAME} was not found, and neither was the source to build it from: "
            f"set ABAR_LIBRARY to its path, or install from the python/ folder of a checkout"
        )
    configure = ["cmake", "-S", str(CHECKOUT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", "-DABAR_TESTS=OFF"]
    subprocess.run(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")), check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", "abar_optim_shared", "--parallel"], check=True)
    return (folder / NAME).resolve()


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return  # a checkout finds its own build folder
        library = find() or build(HERE / "build" / "library")
        shutil.copyfile(library, Path(self.build_lib) / "abar" / NAME)


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # not pure: it carries a library


def tag_for_any_python() -> dict[str, type]:
    """The wheel fits every Python 3 of its platform: ctypes needs no ABI."""
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        try:
            from setuptools.command.bdist_wheel import bdist_wheel
        except ImportError:
            return {}

    class BdistWheel(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:
            return "py3", "none", super().get_tag()[2]

    return {"bdist_wheel": BdistWheel}


setup(cmdclass={"build_py": BuildWithLibrary, **tag_for_any_python()}, distclass=PlatformDistribution)
