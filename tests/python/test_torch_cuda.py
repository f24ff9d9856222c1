"""Tensors on a GPU: the optimizers take the steps there that they take on the CPU. Where there is no GPU, or the library was
built without CUDA, there is nothing to try."""

import support
from support import CLASSES, Case, batch, loss_of, make, make_net, torch, weights_of

if "cuda" not in support.device_names():
    support.give_up("the library was built without CUDA")
if not torch.cuda.is_available():
    support.give_up("PyTorch finds no GPU")

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
STEPS = 7


def run(method, device, **options):
    """What some steps moved."""
    model = make_net().to(device)
    start = weights_of(model)
    optimizer = make(method, model, **options)
    for k in range(STEPS):
        x, y = batch(k)
        optimizer.zero_grad()
        loss_of(model, (x.to(device), y.to(device))).backward()
        optimizer.step()
    return {name: (p - start[name]).cpu() for name, p in weights_of(model).items()}


class Gpu(Case):
    def test_takes_the_steps_of_the_cpu(self):
        for method in CLASSES:
            with self.subTest(method):
                self.assert_all_close(run(method, "cuda"), run(method, "cpu"), 1e-4, method)

    def test_takes_them_on_another_stream_too(self):
        """The library works on the stream that is current when the optimizer is made and used."""
        for method in CLASSES:
            with self.subTest(method):
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    found = run(method, "cuda")
                torch.cuda.synchronize()
                self.assert_all_close(found, run(method, "cpu"), 1e-4, method)

    def test_goes_on_from_a_state_of_its_own(self):
        for method in CLASSES:
            with self.subTest(method):
                model, other = make_net().to("cuda"), make_net().to("cuda")
                optimizer, second = make(method, model), make(method, other)
                data = [tuple(part.to("cuda") for part in batch(k)) for k in range(6)]
                self.train(model, optimizer, data[:3])
                second.load_state_dict(optimizer.state_dict())
                other.load_state_dict(model.state_dict())
                self.train(model, optimizer, data[3:])
                self.train(other, second, data[3:])
                self.assert_all_close(weights_of(other), weights_of(model), 1e-6, method)

    def train(self, model, optimizer, batches):
        for data in batches:
            optimizer.zero_grad()
            loss_of(model, data).backward()
            optimizer.step()

    def assert_close(self, found, expected, tolerance, what=""):
        found, expected = (v.cpu() if torch.is_tensor(v) else v for v in (found, expected))
        super().assert_close(found, expected, tolerance, what)


if __name__ == "__main__":
    support.main()
