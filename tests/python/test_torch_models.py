"""Real models, in tiny versions: every map is seen, and twenty steps of MAC are those of a float64 oracle.

The oracle is written from methods.md sections 0, 1, 2 and 8. It looks at what runs below autograd, operation by operation, and
knows a weight by its memory: nothing of the binding is used.
"""

import copy
import warnings

import support
from support import Case, abar, torch

import models
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 20
SETTINGS = {"damping": 0.1, "tcov": 2, "tinv": 4, "stat_decay": 0.8, "momentum": 0.9, "weight_decay": 1e-3}
FOUND, MISSING = models.all_models()
#: share of the parameters that is preconditioned, at least; what the others are is in the report
RATES = {"torchvision resnet18": 0.003}
SHARES = {"HF Mixtral": 0.3, "HF BERT": 0.7, "PEFT LoRA": 1.0, "siamese": 1.0}


#: names of weights that make values, and how many equal parts of their rows make other things before
VALUES = {"attn.qkv.weight": 3, "in_proj_weight": 3, "c_attn.weight": 3, ".v_proj.weight": 1, ".value.weight": 1, "Attention.v.weight": 1}
GROUPED = {"HF Llama": 3, "HF Mixtral": 3}  # heads of the values, where queries have more


ATTENDING = ("Encoder", "ViT", "vit", "DeiT", "win", "GPT", "BERT", "Llama", "T5", "Mixtral")


class Rows(TorchDispatchMode):
    """The rows that every weight is multiplied with: by the address of its memory, their sum and number. Of those that make
    values the rows themselves too, with the probabilities of the attention that comes next."""

    def __init__(self, weights, values=()):
        super().__init__()
        self.weights, self.sums = {w.data_ptr(): w for w in weights}, {}
        self.values, self.attended, self.last = {w.data_ptr() for w in values}, {}, None

    def add(self, weight, rows):
        total, count = self.sums.get(weight.data_ptr(), (0.0, 0))
        self.sums[weight.data_ptr()] = total + rows.double().sum(0), count + rows.shape[0]
        if weight.data_ptr() in self.values:
            self.last = (weight.data_ptr(), rows.double())

    def attend(self, t):
        """t: probabilities (N, heads, queries, tokens)."""
        if self.last is not None:
            address, rows = self.last
            self.attended.setdefault(address, []).append((rows, t.double().mean(2)))
            self.last = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "linear", "addmv", "bmm", "matmul"):
            for x, w in zip(args, args[1:]):
                known = self.weights.get(w.data_ptr()) if torch.is_tensor(w) else None
                if known is not None and w.numel() == known.numel() and torch.is_tensor(x):
                    self.add(known, x.reshape(-1, x.shape[-1]))
        elif name == "convolution" and args[1].data_ptr() in self.weights:
            self.add_patches(*args)
        elif name.startswith("_scaled_dot_product"):
            self.attend(full_probabilities(*args, **(kwargs or {})))
        out = func(*args, **(kwargs or {}))
        if name in ("_softmax", "_safe_softmax") and out.dim() == 4:
            self.attend(out)
        elif name == "_softmax" and out.dim() == 3:  # nn.MultiheadAttention of old: (N heads, queries, tokens), 3 heads
            self.attend(out.reshape(-1, 3, *out.shape[1:]))
        return out

    def add_patches(self, x, weight, bias, stride, padding, dilation, _transposed, _output_padding, groups):
        patches = torch.nn.functional.unfold(x, weight.shape[2:], dilation, padding, stride)  # (N, C k k, P)
        rows = patches.transpose(1, 2).reshape(-1, groups, patches.shape[1] // groups)
        self.add(self.weights[weight.data_ptr()], rows)


def full_probabilities(q, k, v, *more, is_causal=None, attn_mask=None, scale=None):
    """(N, heads, queries, tokens), as written."""
    is_causal = more[1] if is_causal is None and len(more) > 1 else is_causal
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # grouped queries
    scores = q.double() @ k.double().transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -float("inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(3)


def value_means(parts, stat, heads, positions_first):
    """Section 2, of the uses of one weight: (1 or heads, d). positions_first: rows are ordered by token, then sequence."""
    sequences, columns = [], []
    for rows, t in parts:
        n, _, tokens = t.shape
        x = rows.reshape(tokens, n, -1).transpose(0, 1) if positions_first else rows.reshape(n, tokens, -1)
        sequences.append(x)
        columns.append(t.reshape(n, heads, -1, tokens).mean(2) if heads else t)
    x, t = torch.cat(sequences), torch.cat(columns)
    if stat == "factored":
        return (x.mean(0).t() @ t.mean((0, 1)))[None]
    each = torch.einsum("bjd,bhj->hd", x, t) / x.shape[0]
    return each if stat == "per-head" else each.mean(0, keepdim=True)


class Mac:
    """methods.md sections 1, 2 and 8 on a model in float64. layers: pairs of weight and bias, by parameter name; turned:
    weights that are (in, out); heads: of values, where they are fewer than those of queries."""

    def __init__(self, model, layers, turned, lr, stat="expectation", heads=0):
        self.model, self.layers, self.turned, self.lr, self.stat, self.heads = model, layers, turned, lr, stat, heads
        ends = {w: next((end for end in VALUES if w.endswith(end)), None) for w, _ in layers}
        self.value_parts = {w: VALUES[end] for w, end in ends.items() if end is not None and stat != "plain"}
        self.params = dict(model.named_parameters())
        self.means, self.commits, self.ready, self.velocity = {}, {}, {}, {}

    def step(self, k, loss):
        weights = [self.params[w] for w, _ in self.layers]
        rows = Rows(weights, [self.params[w] for w in self.value_parts])
        with rows:
            value = loss(self.model, k)
        self.model.zero_grad()
        value.backward()
        grads = {n: p.grad.clone() for n, p in self.params.items() if p.grad is not None}
        for (w, b), weight in zip(self.layers, weights):
            if k % SETTINGS["tcov"] == 0 and weight.data_ptr() in rows.sums and w in grads:
                total, count = rows.sums[weight.data_ptr()]
                mean = total / count
                if w in self.value_parts:  # one mean for each block of rows: what makes q and k, then each part of v
                    attended = rows.attended[weight.data_ptr()]
                    values = value_means(attended, self.stat, self.heads, w.endswith("in_proj_weight"))
                    repeat = (self.value_parts[w] - 1) * values.shape[0]
                    mean = torch.cat([mean.expand(repeat, -1), values])
                self.commit(w, b, mean)
            if w in grads and k % SETTINGS["tinv"] == 0 and w in self.means:
                self.ready[w] = self.means[w] / (1 - SETTINGS["stat_decay"] ** self.commits[w])
            if w in grads and w in self.ready:
                self.precondition(w, b, grads)
        self.update(grads)

    def commit(self, w, b, mean):
        """mean: (d,), or (groups, d) of a convolution or of blocks of rows."""
        if b is not None:
            mean = torch.cat([mean, torch.ones(*mean.shape[:-1], 1, dtype=mean.dtype)], -1)
        beta = SETTINGS["stat_decay"]
        self.means[w] = beta * self.means.get(w, 0.0) + (1 - beta) * mean
        self.commits[w] = self.commits.get(w, 0) + 1

    def precondition(self, w, b, grads):
        g = grads[w].t() if w in self.turned else grads[w]
        a = self.ready[w].reshape(-1, self.ready[w].shape[-1])  # (groups, d)
        matrix = g.reshape(a.shape[0], g.shape[0] // a.shape[0], -1)  # (groups, out, in)
        if b is not None:
            matrix = torch.cat([matrix, grads[b].reshape(a.shape[0], -1, 1)], 2)
        along = torch.einsum("god,gd->go", matrix, a) / (SETTINGS["damping"] + (a * a).sum(1))[:, None]
        matrix = matrix - along[:, :, None] * a[:, None, :]
        if b is not None:
            grads[b], matrix = matrix[:, :, -1].reshape(grads[b].shape), matrix[:, :, :-1]
        grads[w] = matrix.reshape(g.shape).t() if w in self.turned else matrix.reshape(g.shape)

    def update(self, grads):
        with torch.no_grad():
            for name, g in grads.items():
                p = self.params[name]
                v = SETTINGS["momentum"] * self.velocity.get(name, 0.0) + g + SETTINGS["weight_decay"] * p
                self.velocity[name] = v
                p -= self.lr * v


def maps_of(model):
    """Weights and biases of the maps, found by what the classes of the model are known to have."""
    owners = {}
    for name, module in model.named_modules():
        for key, p in module._parameters.items():
            if p is not None:
                owners.setdefault(id(p), []).append(type(module).__name__)
    layers, turned = {}, set()
    names = {id(p): n for n, p in model.named_parameters()}
    for module in model.modules():
        kind = type(module).__name__
        for key in ("weight", "in_proj_weight"):
            w, b = (module._parameters.get(key.replace("weight", part)) for part in ("weight", "bias"))
            is_map = isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)) or kind in ("Conv1D", "MultiheadAttention")
            if w is None or not w.requires_grad or not is_map or "Embedding" in owners[id(w)]:
                continue
            layers[names[id(w)]] = names[id(b)] if b is not None else None
            if kind == "Conv1D":
                turned.add(names[id(w)])
    return list(layers.items()), turned


def build(make):
    torch.manual_seed(0)
    return make().train()


class Models(Case):
    def check_seen(self, name, make, loss):
        model = build(make)
        optimizer = abar.torch.MAC(model, lr=0.05)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="abar.*")
            loss(model, 0).backward()
            optimizer.step()
        never = [row.name for row in optimizer.layers if "never" in row.reason]
        self.assertEqual(never, [])
        share = optimizer.preconditioned_share()
        self.assertGreaterEqual(share, SHARES.get(name, 0.8), name)
        print(f"    {name}: {share:.1%} of the parameters preconditioned")
        optimizer.close()

    def check_steps(self, name, make, loss, stat="expectation", **more):
        start, lr = build(make), RATES.get(name, 0.01)
        other = copy.deepcopy(start).double()
        oracle = Mac(other, *maps_of(other), lr, stat, GROUPED.get(name, 0))
        attends = any(kind in name for kind in ATTENDING)
        self.assertEqual(bool(oracle.value_parts), attends and stat != "plain", name)
        for k in range(STEPS):
            oracle.step(k, loss)
        before = dict(start.named_parameters())
        expected = torch.cat([p.detach().flatten() for p in other.parameters()])
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
            model = copy.deepcopy(start).to(dtype)
            optimizer = abar.torch.MAC(model, lr=lr, **SETTINGS, **more)
            for k in range(STEPS):
                optimizer.zero_grad()
                loss(model, k).backward()
                optimizer.step()
            weights = dict(model.named_parameters())
            self.assertGreater(max(float((weights[n] - before[n]).norm() / before[n].norm()) for n, _ in oracle.layers), 0.01)
            found = torch.cat([p.detach().double().flatten() for p in weights.values()])
            self.assert_close(found, expected, tolerance, f"{name} {dtype}")
            optimizer.close()

    def test_every_map_is_seen(self):
        for name, (make, loss) in FOUND.items():
            with self.subTest(name):
                self.check_seen(name, make, loss)

    def test_twenty_steps_are_the_oracles(self):
        for name, (make, loss) in FOUND.items():
            with self.subTest(name):
                self.check_steps(name, make, loss)


    def test_of_every_statistic_of_values_are_the_oracles(self):
        """value_stat: blocks of rows of the fused projections, separate ones, grouped queries, windows, masks."""
        told = {
            "HF GPT-2": {"transformer.h.*.attn": abar.torch.Attention(qkv="c_attn", heads=3, tokens=7)},
            "HF Llama": {"model.layers.*.self_attn": abar.torch.Attention(value="v_proj", heads=3, tokens=7)},
            "nn.TransformerEncoder": {"body.layers.*.self_attn": abar.torch.Attention(qkv="in_proj", heads=3, tokens=16)},
            "timm ViT": None,
            "torchvision swin_t": None,
        }
        for name, attention in told.items():
            for stat in ("per-head", "factored", "plain"):
                if name in FOUND:
                    with self.subTest(name, value_stat=stat):
                        more = {} if attention is None or stat == "plain" else {"attention": attention}
                        self.check_steps(name, *FOUND[name], stat, value_stat=stat, **more)


for number, line in enumerate(MISSING):

    def skipped(self, line=line):
        self.skipTest(line)

    setattr(Models, f"test_missing_{number}", skipped)


if __name__ == "__main__":
    support.main()
