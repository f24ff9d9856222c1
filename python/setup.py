"""Puts the shared library into the wheel: the one found, or built by CMake. An sdist carries the C source in native/.

$ABAR_LIBRARY names a library to take; $CMAKE_ARGS goes to CMake; tools/wheel sets $ABAR_BUNDLE. What cannot be built fails
here, in one line.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.dist import Distribution

NAME = "libabar_optim.so"
HERE = Path(__file__).resolve().parent
SOURCE = HERE / "native" if (HERE / "native").exists() else HERE.parent  # an unpacked sdist, or a checkout
#: what of a checkout the library is built from
NATIVE = ("CMakeLists.txt", "LICENSE", "include", "src", "tools/exports.map", "tools/abar.pc.in", "tools/abar_optim.pc.in")


def stop(reason: str) -> None:
    raise SystemExit(f"abar: {reason}")


def find() -> Path | None:
    """$ABAR_LIBRARY, or a finished build of the checkout."""
    chosen = os.environ.get("ABAR_LIBRARY")
    if chosen and not Path(chosen).exists():
        stop(f"ABAR_LIBRARY={chosen} does not exist; correct it or unset it")
    library = Path(chosen) if chosen else SOURCE / "build" / NAME
    return library.resolve() if library.exists() else None


def check_tools() -> None:
    compiler = os.environ.get("CC", "cc").split()[0]
    missing = [name for name in ("cmake", compiler) if shutil.which(name) is None]
    if missing:
        stop(
            f"{' and '.join(missing)} missing: {NAME} is built from source here. Install a C compiler, CMake 3.25 and OpenBLAS "
            f"(Debian: apt install gcc make cmake libopenblas-openmp-dev), take a wheel, or set ABAR_LIBRARY"
        )


def build(folder: Path) -> Path:
    """A release build of the library alone."""
    if not (SOURCE / "CMakeLists.txt").exists():
        stop(f"{NAME} was not found, nor its source: install from a checkout, an sdist or a wheel, or set ABAR_LIBRARY")
    check_tools()
    configure = ["cmake", "-S", str(SOURCE), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", "-DABAR_OPTIM_ONLY=ON"]
    done = subprocess.run(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")), capture_output=True, text=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        lacking = [what for mark, what in MISSING.items() if mark in done.stderr]
        stop(f"{lacking[0]}; CMake's words are above" if lacking else "CMake could not configure the library, the reason is above")
    command = ["cmake", "--build", str(folder), "--target", "abar_optim_shared", "--parallel", str(os.cpu_count() or 1)]
    if subprocess.run(command).returncode != 0:
        stop("the library could not be compiled, the reason is above")
    return (folder / NAME).resolve()


#: what CMake complains of: what is missing
MISSING = {
    "OPENBLAS": "OpenBLAS is missing (Debian: apt install libopenblas-openmp-dev)",
    "OpenMP": "a C compiler with OpenMP is missing (gcc, or clang with libomp-dev)",
    "or higher is required": "CMake is too old, 3.25 or newer is needed (pip install cmake)",
}


def bundle(package: Path) -> None:
    """For wheels, where the library was built with OpenBLAS inside and looks for OpenMP's runtime in openmp/: that runtime,
    under its own name, so that it is torch's wherever torch has loaded one; and the licences of what is carried along."""
    command = [*os.environ.get("CC", "cc").split(), "-print-file-name=libgomp.so.1"]
    runtime = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    for source, target in {
        runtime: "openmp/libgomp.so.1",
        Path("/usr/share/doc/libgomp1/copyright"): "licenses/libgomp",
        Path("/usr/share/doc/libopenblas-openmp-dev/copyright"): "licenses/openblas",
    }.items():
        if not source.exists():
            stop(f"{source} is missing: wheels are built on Debian with gcc and libopenblas-openmp-dev")
        (package / target).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, package / target)


def verify(package: Path) -> None:
    """That Python opens the library, and that it is of this version: better now than at the first use."""
    code = "from abar import _library; _library.load()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=package)
    if done.returncode != 0:
        stop(done.stderr.strip().splitlines()[-1].replace("ImportError: abar: ", ""))


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):  # a checkout finds its own build folder
            if find() is None:
                build(SOURCE / "build")
            verify(HERE)
            return
        library = find() or build(HERE / "build" / "library")
        target = Path(self.build_lib) / "abar" / NAME
        shutil.copyfile(library, target)
        if os.environ.get("ABAR_BUNDLE"):
            bundle(target.parent)
        verify(Path(self.build_lib))


class SdistWithSource(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in NATIVE:
            source, target = SOURCE / name, Path(base_dir) / "native" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copyfile(source, target)


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


setup(
    cmdclass={"build_py": BuildWithLibrary, "sdist": SdistWithSource, **tag_for_any_python()},
    distclass=PlatformDistribution,
)
