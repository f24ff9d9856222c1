"""Times PyTorch's training step, for comparison with abar's.

    python3 peer_torch.py --model lenet5 --batch 128 --threads 2 --steps 20 --rounds 5
    python3 peer_torch.py --device cuda --model resnet20 resnet110 --precision bf16 --steps 50
    python3 peer_torch.py --device cuda --model deit-small swin-tiny gpt2 --steps 20

A step is forward, cross-entropy, backward and SGD with momentum 0.9 on one fixed batch that is
already on the device. Prints JSON objects, one per line, times in milliseconds.

On the CPU each round runs a block of steps in NCHW, in channels-last, and in both with the loss
compiled by torch.compile, so that other load affects all alike. On a GPU there is a line per model,
precision and mode: compiled, where torch.compile makes the loss and the whole step is one CUDA graph;
graph, which is such a graph without torch.compile; and eager. Compiling ends before timing starts;
compile_s is how long the first step takes. bf16 is channels-last and tries two ways, float32 weights
under autocast and bfloat16 weights with float32 masters; the faster one counts. Transformers
(peer_transformers.py) run on a GPU in bf16 only and also try the kinds of fused attention; the later
modes run the fastest way of the first. gpt2 takes fused AdamW.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "oracle"))
import networks  # noqa: E402
import peer_transformers as transformers  # noqa: E402

SHAPES = {
    "lenet5": (1, 28, 28),
    "resnet20": (3, 32, 32),
    "resnet110": (3, 32, 32),
    "densenet121": (3, 32, 32),
    "resnet50": (3, 176, 176),
    "resnet101": (3, 176, 176),
    "wrn28-10": (3, 32, 32),
    "deit-tiny": (3, 32, 32),
}
FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
OPTIMIZERS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}
DEVICE = transformers.DEVICE  # of the measurements on a GPU
MODES = ["compiled", "graph", "eager"]  # likewise
BATCH = 128
WARM_UP = 3


def build(model):
    """A network for images of SHAPES; deit-tiny has patches of 4 x 4 pixels."""
    return transformers.deit_tiny(32, 4, 10) if model == "deit-tiny" else networks.build(model)


def summary(times):
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return {
        "median_ms": round(statistics.median(times), 4),
        "p10_ms": round(cuts[0], 4),
        "p90_ms": round(cuts[-1], 4),
    }


# ---- on the CPU -------------------------------------------------------------------------------


class Run:
    """One network in one memory format, with its optimizer, batch and step times."""

    def __init__(self, model, batch, memory_format, optimizer, compiled=False):
        torch.manual_seed(0)
        self.module = build(model).to(memory_format=memory_format).train()
        x = torch.randn(batch, *SHAPES[model])
        self.x = x.contiguous(memory_format=memory_format)
        self.labels = torch.randint(10, (batch,))
        self.optimizer = torch.optim.SGD(
            self.module.parameters(), lr=0.01, momentum=0.9, **OPTIMIZERS[optimizer]
        )
        self.loss = torch.compile(self.written_loss) if compiled else self.written_loss
        self.times = []

    def written_loss(self):
        return F.cross_entropy(self.module(self.x), self.labels)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimizer.step()

    def block(self, steps):
        self.step()  # refills the caches after the other format's block; not timed
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            self.times.append(1e3 * (time.perf_counter() - start))


def fastest_optimizer(model, steps=30):
    """The fastest of torch's SGD implementations for this network's parameters."""
    medians = {}
    for name in OPTIMIZERS:
        run = Run(model, 2, torch.contiguous_format, name)
        run.step()
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            run.optimizer.step()
            times.append(time.perf_counter() - start)
        medians[name] = statistics.median(times)
    return min(medians, key=medians.get)


def time_on_cpu(args, model):
    torch.set_num_threads(args.threads)
    optimizer = fastest_optimizer(model)
    batch = args.batch or BATCH
    runs = {}
    for compiled in (False, True):
        for name, memory_format in FORMATS.items():
            run = Run(model, batch, memory_format, optimizer, compiled)
            try:
                for _ in range(WARM_UP):
                    run.step()
            except Exception as error:  # noqa: BLE001 - torch.compile fails in many ways
                if not compiled:
                    raise
                print(f"peer_torch: {model} {name} compiled: {str(error).strip()[:400]}", file=sys.stderr)
                continue
            runs[f"{name}_compiled" if compiled else name] = run
    for _ in range(args.rounds):
        for run in runs.values():
            run.block(args.steps)
    result = {"model": model, "device": "cpu", "batch": batch, "threads": args.threads}
    result.update({"torch": torch.__version__, "optimizer": optimizer})
    result.update({name: summary(run.times) for name, run in runs.items()})
    result["best_ms"] = min(result[name]["median_ms"] for name in runs)
    print(json.dumps(result), flush=True)


# ---- on a GPU ---------------------------------------------------------------------------------


def network(model, batch, attention):
    """The network, its input and its labels, on the device."""
    if model in transformers.MODELS:
        return transformers.case(model, batch, attention)
    module = build(model).to(DEVICE).train()
    x = torch.randn(batch, *SHAPES[model], device=DEVICE)
    return module, x, torch.randint(10, (batch,), device=DEVICE)


def optimizer_of(model, weights):
    if model in transformers.MODELS:
        return transformers.optimizer(model, weights)
    return torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True)


class GpuStep:
    """One network with its batch on the device.

    recipe: fp32, tf32, autocast or masters; for transformers a kind of attention may follow.
    """

    def __init__(self, model, batch, recipe):
        torch.manual_seed(0)
        recipe, _, self.attention = recipe.partition(" ")
        self.recipe = recipe
        self.module, x, self.labels = network(model, batch, self.attention)
        if recipe in ("autocast", "masters") and x.ndim == 4:
            self.module = self.module.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        weights = list(self.module.parameters())
        self.masters = None
        if recipe == "masters":
            self.masters = [p.detach().clone() for p in weights]
            self.module = self.module.to(torch.bfloat16)
            for layer in self.module.modules():  # statistics of a batch need more than 8 bits
                if isinstance(layer, torch.nn.BatchNorm2d):
                    layer.float()
            x = x.to(torch.bfloat16) if x.is_floating_point() else x
            weights = self.masters
            self.shadows = list(self.module.parameters())
        self.x = x
        self.optimizer = optimizer_of(model, weights)
        self.loss = self.written_loss

    def entropy(self, logits):  # (N, K), or (N, T, K) of every token
        return F.cross_entropy(logits.flatten(0, -2), self.labels.flatten())

    def written_loss(self):
        if self.recipe == "autocast":
            with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
                return self.entropy(self.module(self.x))
        return self.entropy(self.module(self.x).float())

    def compile(self):
        self.loss = torch.compile(self.written_loss)

    def step(self):
        self.module.zero_grad(set_to_none=True)
        with transformers.backend(self.attention):
            self.loss().backward()
        if self.masters is not None:
            for master, shadow in zip(self.masters, self.shadows):
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
            torch._foreach_copy_([m.grad for m in self.masters], [s.grad for s in self.shadows])
        self.optimizer.step()
        if self.masters is not None:
            torch._foreach_copy_([s.data for s in self.shadows], self.masters)


def record(run):
    """Captures the whole step as one CUDA graph; returns the function that replays it."""
    if DEVICE != "cuda":
        return run.step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    run.module.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        run.step()
    return graph.replay


def finish():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def mark():
    if DEVICE != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_ms(start, end):
    if DEVICE != "cuda":
        return 1e3 * (end - start)
    end.synchronize()
    return start.elapsed_time(end)


def time_blocks(step, steps, blocks=10):
    """Milliseconds per step, timed in blocks that are long beside the clock's resolution."""
    per_block = max(1, steps // blocks)
    times = []
    for _ in range(blocks):
        start = mark()
        for _ in range(per_block):
            step()
        times.append(elapsed_ms(start, mark()) / per_block)
    return times


def time_on_gpu(model, batch, recipe, mode, steps):
    gc.collect()
    torch.cuda.empty_cache()
    began = time.monotonic()
    run = GpuStep(model, batch, recipe)
    if mode == "compiled":
        torch.compiler.reset()
        run.compile()
    run.step()
    finish()
    compile_s = time.monotonic() - began
    for _ in range(WARM_UP):
        run.step()
    finish()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()  # memory of cuDNN's trial runs does not count
    warm_up_s = time.monotonic() - began
    step = run.step if mode == "eager" else record(run)
    time_blocks(step, 10, blocks=3 if model in transformers.MODELS else 10)
    times = time_blocks(step, steps)
    result = {"model": model, "device": DEVICE, "batch": batch, "mode": mode, "recipe": recipe}
    result.update(summary(times))
    result["warm_up_s"] = round(warm_up_s, 2)
    if mode == "compiled":
        result["compile_s"] = round(compile_s, 2)
    result["peak_bytes"] = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
    return result


def print_line(precision, tried):
    best = min(tried, key=lambda r: r["median_ms"])
    best["tried_ms"] = {r["recipe"]: r["median_ms"] for r in tried}
    print(json.dumps({"precision": precision, "torch": torch.__version__, **best}), flush=True)
    return best


def try_on_gpu(model, batch, recipe, mode, steps):
    """A list of one result; empty, with a message, where PyTorch cannot run it."""
    try:
        return [time_on_gpu(model, batch, recipe, mode, steps)]
    except Exception as error:  # noqa: BLE001 - torch.compile fails in many ways
        print(f"peer_torch: {model} {recipe} {mode}: {str(error).strip()[:400]}", file=sys.stderr)
        return []


def transformer_lines(args, model):
    batch, modes = args.batch or transformers.BATCH[model], args.mode or MODES
    count, unit = transformers.rate_of(model)
    recipes = transformers.RECIPES[model]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for mode in modes:
        tried = [r for recipe in recipes for r in try_on_gpu(model, batch, recipe, mode, args.steps)]
        for line in tried:
            line[f"{unit}_per_s"] = round(1e3 * batch * count / line["median_ms"], 1)
        if tried:
            recipes = [print_line("bf16", tried)["recipe"]]


def gpu_lines(args, model):
    batch = args.batch or BATCH
    recipes = {"fp32": ["fp32"], "tf32": ["tf32"], "bf16": ["autocast", "masters"]}
    for precision in args.precision:
        torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        for mode in args.mode or MODES:
            tried = [r for recipe in recipes[precision] for r in try_on_gpu(model, batch, recipe, mode, args.steps)]
            if tried:
                print_line(precision, tried)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*SHAPES, *transformers.MODELS], nargs="+", default=["lenet5"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, help="[128, of transformers 256, of gpt2 8]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="timed steps, in a block on the cpu")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each format, on the cpu")
    parser.add_argument(
        "--precision", choices=["fp32", "tf32", "bf16"], nargs="+", default=["bf16"]
    )
    parser.add_argument("--mode", choices=MODES, nargs="+", help="[all]")
    args = parser.parse_args()
    if min(args.batch or 1, args.threads, args.steps, args.rounds) < 1 or args.steps * args.rounds < 2:
        parser.error("numbers must be positive, and two steps at least")
    if args.device == "cuda" and DEVICE == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    if args.device == "cpu" and any(model in transformers.MODELS for model in args.model):
        parser.error("transformers are timed on a GPU alone: --device cuda")
    return args


def main():
    args = parse_arguments()
    torch.backends.cudnn.benchmark = args.device == "cuda"
    for model in args.model:
        if model in transformers.MODELS:
            transformer_lines(args, model)
        elif args.device == "cuda":
            gpu_lines(args, model)
        else:
            time_on_cpu(args, model)


if __name__ == "__main__":
    main()
