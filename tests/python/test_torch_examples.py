"""The examples with other people's packages: each runs as it is written, and learns. What is not installed is skipped. Arguments that
cannot work are refused in one line."""

import importlib.util
import re

import support
from support import Case, finish_python, start_python


class Examples(Case):
    def learns(self, package, name):
        if support.TORCH < (2, 0) or importlib.util.find_spec(package) is None:
            self.skipTest(f"there is no {package} for this PyTorch")
        output = finish_python(start_python(support.ROOT / "examples" / name, "--steps", 30))
        found = re.search(r"^loss ([0-9.]+) -> ([0-9.]+)$", output, re.M)
        self.assertIsNotNone(found, output)
        first, last = map(float, found.groups())
        self.assertLess(last, 0.7 * first, output)
        self.assertIn("preconditioned", output)

    def test_accelerate_learns(self):
        self.learns("accelerate", "torch_accelerate.py")

    def test_lightning_learns(self):
        self.learns("lightning", "torch_lightning.py")

    def test_hf_trainer_learns(self):
        self.learns("transformers", "torch_hf_trainer.py")

    def test_timm_learns(self):
        self.learns("timm", "torch_timm.py")

    def refuses(self, package, name, *arguments):
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"there is no {package}")
        process = start_python(support.ROOT / "examples" / name, *arguments)
        output, _ = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 2, output)
        self.assertRegex(output.splitlines()[-1], f"^{name}: error: {arguments[0]}.*: ")

    def test_fashion_mnist_refuses_what_cannot_work(self):
        for arguments in (("--epochs", 0), ("--limit", 127), ("--out", "/no/such/folder/x.svg")):
            with self.subTest(arguments=arguments):
                self.refuses("torch", "torch_fashion_mnist.py", *arguments)

    def test_no_steps_are_refused(self):
        packages = {"accelerate": "accelerate", "lightning": "lightning", "hf_trainer": "transformers", "timm": "timm"}
        for name, package in packages.items():
            with self.subTest(name):
                self.refuses(package, f"torch_{name}.py", "--steps", 0)


if __name__ == "__main__":
    support.main()
