"""The package as pip sees it: the sdist is complete, what is missing is one line at installation, the library links nothing
that it does not need. No PyTorch is needed; the wheel itself is tried by tools/try-wheel."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = Path(os.environ.get("ABAR_LIBRARY") or ROOT / "build" / "libabar_optim.so").resolve()
try:
    import setuptools  # noqa: F401
except ImportError:
    print(f"skipped: {sys.executable} has no setuptools")
    sys.exit(77)


def setup(folder, *arguments, path=None, **environment):
    """setup.py in that folder; its exit status and everything it wrote."""
    env = {k: v for k, v in os.environ.items() if k not in ("ABAR_LIBRARY", "CMAKE_ARGS", "CC")}
    env.update({"PATH": path} if path else {}, **environment)
    command = [sys.executable, "setup.py", "-q", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


class Package(unittest.TestCase):
    """In a copy of the package's folder: a checkout without its C source, unless the sdist brings it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.python = self.work / "python"
        ignore = shutil.ignore_patterns("build", "*.so", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "python", self.python, ignore=ignore)
        self.empty = self.work / "bin"  # a PATH on which there is nothing to build with
        self.empty.mkdir()

    def fails_with(self, pattern, result):
        """The last line says it."""
        status, output = result
        self.assertNotEqual(status, 0, output)
        self.assertRegex(output.strip().splitlines()[-1], pattern)

    def sdist(self):
        for name in ("CMakeLists.txt", "LICENSE", "include", "src", "tools"):
            (self.work / name).symlink_to(ROOT / name)
        status, output = setup(self.python, "sdist", "--dist-dir", str(self.work))
        self.assertEqual(status, 0, output)
        with tarfile.open(next(self.work.glob("abar-*.tar.gz"))) as archive:
            archive.extractall(self.work / "unpacked")
        return next((self.work / "unpacked").iterdir())

    def test_sdist_has_every_file_of_the_library(self):
        unpacked = self.sdist()
        for folder in ("src", "include"):
            there = {p.relative_to(ROOT) for p in (ROOT / folder).rglob("*") if p.is_file()}
            packed = {p.relative_to(unpacked / "native") for p in (unpacked / "native" / folder).rglob("*") if p.is_file()}
            self.assertEqual(there, packed)
        self.assertTrue((unpacked / "native" / "tools" / "exports.map").is_file())

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("cc"), "nothing to build with")
    def test_sdist_can_be_configured(self):
        unpacked = self.sdist()
        command = ["cmake", "-S", unpacked / "native", "-B", self.work / "build", "-DABAR_OPTIM_ONLY=ON", "-DABAR_CUDA=OFF"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_tools_says_which_are_missing(self):
        result = setup(self.sdist(), "build", path=str(self.empty))
        self.fails_with(r"^abar: cmake and cc missing: .*apt install", result)

    def test_without_source_says_so(self):
        self.fails_with("^abar: libabar_optim.so was not found, nor its source", setup(self.python, "build"))

    def test_wrong_library_fails_at_installation(self):
        self.fails_with("ABAR_LIBRARY=/nowhere does not exist", setup(self.python, "build", ABAR_LIBRARY="/nowhere"))
        broken = self.work / "libabar_optim.so"
        broken.write_bytes(b"not a library")
        self.fails_with("cannot be used", setup(self.python, "build", ABAR_LIBRARY=str(broken)))

    def test_editable_fails_at_installation(self):
        """Not at the first use."""
        self.fails_with("was not found, nor its source", setup(self.python, "editable_wheel", "--dist-dir", str(self.work)))


@unittest.skipUnless(LIBRARY.exists() and shutil.which("readelf"), "no library, or no readelf")
class Library(unittest.TestCase):
    def test_links_only_what_it_needs(self):
        """The C and mathematics libraries, OpenMP and BLAS; with CUDA, which is static, those of C++."""
        output = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(lib[a-z+]+)", output))
        allowed = {"libc", "libm", "libgomp", "libomp", "libopenblas", "libpthread", "libdl", "librt", "libstdc++", "libgcc"}
        self.assertLessEqual(needed, allowed | {"libgcc_s"})


if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(bool(failed))
