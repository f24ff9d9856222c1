"""Attention in windows: methods that look at examples see images, not windows, as methods.md section 0 says. Against the float64
oracle, which is given the windows of an image as rows of one example."""

import importlib.util

import support
import models
from support import Case, abar, torch
from twin import Twin, telling

FOUND = {name: make for name, make in models.all_models()[0].items() if "win" in name.lower()}
IMAGES = 4


def hf_swin():
    import transformers as hf

    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=12, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=4, drop_path_rate=0.0
    )
    return hf.SwinForImageClassification(config)


if importlib.util.find_spec("transformers"):
    FOUND["HF Swin"] = (hf_swin, models.images(16))


def build(name):
    torch.manual_seed(0)
    return FOUND[name][0]().train()


def settings(method):
    more = {"pgrad": "per-example"} if method in ("smac", "kfac") else {}
    more.update({"value_stat": "plain"} if method == "smac" else {}, **({"kl_clip": 0.0} if method == "kfac" else {}))
    return telling(method, **more)


class Windows(Case):
    def need(self, *names):
        for name in names:
            if name not in FOUND:
                self.skipTest(f"{name}: not installed")

    def give_rows(self, twin, as_windows):
        """Rows of an image together, whatever shape they have, but those of windows where a window is to be an example."""
        observe = twin.oracle.observe

        def joined(name, x, p):
            as_it_is = twin.layers[name].weight.dim() == 4 or (as_windows and x.ndim == 3)
            return observe(name, *((x, p) if as_it_is else (t.reshape(IMAGES, -1, t.shape[-1]) for t in (x, p))))

        twin.oracle.observe = joined

    def check(self, name, method, as_windows=False):
        """as_windows: the oracle as it is: a window is an example."""
        model, options = build(name).double(), settings(method)
        twin = Twin(model, method, 1e-3, **options)
        self.give_rows(twin, as_windows)
        optimizer = support.CLASSES[method](model, 1e-3, momentum=0.0, **options)
        for k in range(5):
            twin.follow(model)
            before = support.weights_of(model)
            loss = FOUND[name][1](model, k)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            twin.backward(lambda other: FOUND[name][1](other, k))
            expected = twin.step()
            now = support.weights_of(model)
            taken = {n: (before[n] - now[n]) / 1e-3 for n in expected}
            for n in [n for n, e in expected.items() if abs(e).max() < 1e-20]:  # LNGD on keys, whose bias has no effect
                self.assertLess(float(taken[n].abs().max()), 1e-20)
                del taken[n], expected[n]
            self.assert_all_close(taken, expected, 1e-5, f"{name} {method} step {k}")
        optimizer.close()

    def test_of_an_image_are_one_example(self):
        self.need("timm Swin", "HF Swin")
        for name in ("timm Swin", "HF Swin"):
            for method in ("kfac", "lngd", "smac"):
                with self.subTest(name, method=method):
                    self.check(name, method)

    def test_as_examples_would_be_told_apart(self):
        self.need("timm Swin")
        for method in ("kfac", "lngd", "smac"):
            with self.subTest(method), self.assertRaises(AssertionError):
                self.check("timm Swin", method, as_windows=True)

    def test_are_found_in_every_package(self):
        parts = {"timm Swin": ("qkv", "proj"), "torchvision swin_t": ("qkv", "proj"), "HF Swin": ("q_proj", "k_proj", "v_proj", "o_proj")}
        for name, ends in parts.items():
            self.need(name)
            optimizer = abar.torch.KFAC(build(name), 1e-3)
            found = {layer.name for layer in optimizer._layers if layer.windowed}
            expected = {layer.name for layer in optimizer._layers if layer.name.rpartition(".")[2] in ends}
            self.assertEqual(found, {n for n in expected if "patch_embed" not in n}, name)
            self.assertEqual(len(found), 4 * len(ends), name)
            optimizer.close()

    def test_scale_the_output_gradients_of_values_by_images(self):
        """p has the examples' number in it, whatever weighs the inputs: the diagonals of rows of v are those of plain statistics."""
        self.need("timm Swin", "torchvision swin_t")
        for name in ("timm Swin", "torchvision swin_t"):
            with self.subTest(name):
                found = []
                for stat in ("plain", "expectation", "per-head", "factored"):
                    model = build(name).double()
                    optimizer = abar.torch.SMAC(model, 1e-3, pgrad="per-example", value_stat=stat, tcov=1)
                    FOUND[name][1](model, 0).backward()
                    optimizer.step()
                    state = [optimizer.state[p] for n, p in model.named_parameters() if n.endswith("qkv.weight")]
                    found.append([torch.cat([v for k, v in each.items() if k.partition("@")[0] == "average.pp"]) for each in state])
                    optimizer.close()
                for others in found[1:]:
                    for one, other in zip(found[0], others, strict=True):
                        self.assertGreater(float(one.norm()), 0.0)
                        self.assert_close(other, one, 1e-9, name)

    def test_whose_images_nothing_tells_are_an_error(self):
        self.need("timm Swin")
        model = build("timm Swin")
        optimizer = abar.torch.KFAC(model, 1e-3, skip=("head*", "patch_embed*", "*.mlp", "*.downsample"))
        with self.assertRaisesRegex(RuntimeError, "of how many images"):
            FOUND["timm Swin"][1](model, 0).backward()
        optimizer.close()


if __name__ == "__main__":
    support.main()
