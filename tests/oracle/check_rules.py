"""Compares soap.py, shampoo.py, shampoo_paper.py and hessian.py with their authors' code over the same steps in float64, prints the
deviations, and writes what that code computes: {soap,shampoo,shampoo_paper,hessian}_peer.safetensors.

soap      SOAP of github.com/nikhilvyas/SOAP, whose float32 of factors and bases becomes float64
shampoo   DistributedShampoo of github.com/facebookresearch/optimizers, whose learning rate is float32
paper     Shampoo of github.com/hseung88/mac (cifar10/optimizers), whose coupled-Newton root becomes that of eigenvalues
hessian   Adahessian of github.com/amirgholami/adahessian, timm's Adahessian with averaged kernels (cases timm_*), both with
          the diagonals of the file in place of their own, and SophiaG of github.com/Liuhong99/Sophia

    python3 tests/oracle/check_rules.py FOLDER      with clones of these: SOAP, optimizers, mac, adahessian, Sophia

None of them is part of this repository. Needs torch, timm and numpy.
"""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import torch
from timm.optim.adahessian import Adahessian as TimmAdahessian

import hessian
import shampoo
import shampoo_paper
import soap
import store

TOLERANCE = {"soap": 1e-9, "shampoo": 1e-6, "shampoo_paper": 1e-9, "hessian": 1e-12}  # an lr in float32 is off by 3e-8


def load(path, changes=()):
    """A file as a module, with these pieces of its text replaced."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, f"{path}: has no {old}"
        text = text.replace(old, new)
    module = types.ModuleType(path.stem)
    sys.modules[path.stem] = module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def parameters(initial, shape_of=lambda w: w.shape):
    return {n: torch.nn.Parameter(torch.tensor(w, dtype=torch.float64).reshape(shape_of(w))) for n, w in initial.items()}


def run(optimizer, params, grads, steps):
    for k in range(steps):
        for name, p in params.items():
            p.grad = torch.tensor(grads[name][k], dtype=torch.float64).reshape(p.shape)
        optimizer.step()


def ends(params, initial):
    return {name: p.detach().numpy().reshape(initial[name].shape).copy() for name, p in params.items()}


# ---- SOAP ----------------------------------------------------------------------------------------------


def run_soap(authors, initial, grads, s):
    flat = s["soap-conv"] == "matrix"
    params = parameters(initial, lambda w: (w.shape[0], w.size // w.shape[0]) if w.ndim == 4 and flat else w.shape)
    optimizer = authors.SOAP(
        params.values(),
        lr=s["lr"],
        betas=(s["beta1"], s["beta2"]),
        shampoo_beta=s["shampoo-beta"],
        eps=s["eps"],
        weight_decay=s["weight_decay"],
        precondition_frequency=s["soap-freq"],
        max_precond_dim=s["max-dim"],
        normalize_grads=s["normalize"] == "true",
        correct_bias=s["correct-bias"] == "true",
    )
    run(optimizer, params, grads, soap.STEPS)
    return ends(params, initial)


def check_soap(folder):
    authors = load(folder / "SOAP" / "soap.py", [(".float()", ".double()")])
    initial, grads = soap.make_problem()
    for case, changes in soap.CASES.items():
        s = {**soap.DEFAULTS, **changes}
        if s["soap-factors"] == "shampoo":
            yield case, s, soap.run(initial, grads, s), run_soap(authors, initial, grads, s)


# ---- Shampoo -------------------------------------------------------------------------------------------


def graft_of(authors, s):
    eps, beta = s["graft-eps"], s["graft-beta"]
    return {
        "none": lambda: None,
        "sgd": authors.SGDPreconditionerConfig,
        "adagrad": lambda: authors.AdaGradPreconditionerConfig(epsilon=eps),
        "rmsprop": lambda: authors.RMSpropPreconditionerConfig(beta2=beta or 0.99, epsilon=eps),
        "adam": lambda: authors.AdamPreconditionerConfig(beta2=beta or 0.999, epsilon=eps),
    }[s["graft"]]()


def run_shampoo(authors, initial, grads, s):
    params = parameters(initial)
    wide = {"factor_matrix_dtype": torch.float64, "inv_factor_matrix_dtype": torch.float64}
    if s["shampoo-exponent"] >= 0:
        wide["inverse_exponent_override"] = {order: s["shampoo-exponent"] for order in range(1, 5)}
    optimizer = authors.DistributedShampoo(
        list(params.values()),
        lr=s["lr"],
        betas=(s["beta1"], s["shampoo-beta"]),
        beta3=s["beta3"],
        epsilon=s["shampoo-eps"],
        weight_decay=s["weight_decay"],
        weight_decay_type=authors.WeightDecayType.L2 if s["decay"] == "coupled" else authors.WeightDecayType.DECOUPLED,
        max_preconditioner_dim=s["shampoo-block"],
        precondition_frequency=s["shampoo-freq"],
        start_preconditioning_step=s["shampoo-start"] or -1,
        grafting_config=graft_of(authors, s),
        preconditioner_config=authors.RootInvShampooPreconditionerConfig(**wide),
    )
    run(optimizer, params, grads, shampoo.STEPS)
    return ends(params, initial)


def check_shampoo(folder):
    sys.path.insert(0, str(folder / "optimizers"))
    import distributed_shampoo as authors

    initial, grads = shampoo.make_problem()
    for case, changes in shampoo.CASES.items():
        s = {**shampoo.DEFAULTS, **changes}
        yield case, s, shampoo.run(initial, grads, s), run_shampoo(authors, initial, grads, s)


# ---- the MAC paper's -----------------------------------------------------------------------------------


def eigenvalue_root(matrix, p, ridge_epsilon):
    """In place of ComputePower: what that stops short of. The ridge stays in the matrix, as there."""
    if matrix.shape[0] == 1:
        return torch.ones_like(matrix)
    matrix += ridge_epsilon * torch.linalg.eigvalsh(matrix)[-1] * torch.eye(len(matrix))
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values ** (-1.0 / p)) @ vectors.T


def check_paper(folder):
    roots = types.ModuleType("matrix_functions")
    roots.ComputePower = eigenvalue_root
    sys.modules["matrix_functions"] = roots
    changes = [("from .utils import matrix_functions", "import matrix_functions"), ("var.get_device()", "var.device")]
    authors = load(folder / "mac" / "cifar10" / "optimizers" / "shampoo.py", changes)
    problem = shampoo_paper.FILES["shampoo_paper"]
    initial, grads = shampoo_paper.make_problem(problem["shapes"], problem["steps"])
    for case, changes in problem["cases"].items():
        s = {"lr": 0.02, "beta1": 0.9, **changes, "weight_decay": 0.0}
        params, ours = parameters(initial), {}
        hyper = authors.ShampooHyperParams(weight_decay=5e-4, statistics_compute_steps=5, preconditioning_compute_steps=50)
        optimizer = authors.Shampoo(params.values(), lr=s["lr"], momentum=s["beta1"], hyperparams=hyper)
        run(optimizer, params, grads, problem["steps"])
        for name, w in initial.items():
            rule = shampoo_paper.Parameter(w.astype(np.float64), s, False)
            for grad in grads[name]:
                rule.step(grad.astype(np.float64))
            ours[name] = rule.w.reshape(w.shape)
        yield case, s, ours, ends(params, initial)


# ---- AdaHessian and Sophia -----------------------------------------------------------------------------


def run_adahessian(kind, initial, grads, extra, s):
    """kind: builds an optimizer that reads the diagonals of step `at` from the list it is given."""
    params, at = parameters(initial), [0]
    optimizer = kind(params, extra, at, s)
    for k in range(hessian.STEPS):
        at[0] = k
        given = hessian.clipped({n: grads[n][k] for n in params}, s["clip"])
        for name, p in params.items():
            p.grad = torch.tensor(given[name])
        optimizer.step()
    return ends(params, initial)


def authors_adahessian(authors):
    def build(params, extra, at, s):
        class Given(authors.Adahessian):
            def get_trace(self, params_, grads_):
                hz = [torch.tensor(extra[n][at[0]]) for n in params]
                return [h.abs().mean(dim=(2, 3), keepdim=True) if h.dim() == 4 else h.abs() for h in hz]

        return Given(
            params.values(),
            lr=s["lr"],
            betas=(s["beta1"], s["beta2"]),
            eps=s["eps"],
            weight_decay=s["weight_decay"],
            hessian_power=s["hessian-power"],
        )

    return build


def timm_adahessian(params, extra, at, s):
    names = {id(p): n for n, p in params.items()}

    class Given(TimmAdahessian):
        def set_hessian(self):
            for p in self.get_params():
                if self.state[p]["hessian step"] % self.update_each == 0:
                    p.hess = torch.tensor(extra[names[id(p)]][at[0]])
                self.state[p]["hessian step"] += 1

    return Given(
        params.values(),
        lr=s["lr"],
        betas=(s["beta1"], s["beta2"]),
        eps=s["eps"],
        weight_decay=s["weight_decay"],
        hessian_power=s["hessian-power"],
        update_each=int(s["hessian-every"]),
        avg_conv_kernel=True,
    )


def run_sophia(authors, initial, grads, extra, s):
    params = parameters(initial)
    betas = (s["beta1"], s["beta2"])
    optimizer = authors.SophiaG(params.values(), lr=s["lr"], betas=betas, rho=s["sophia-rho"], weight_decay=s["weight_decay"])

    def give(tensors, k):
        given = hessian.clipped({n: tensors[n][k] for n in params}, s["clip"])
        for name, p in params.items():
            p.grad = torch.tensor(given[name])

    for k in range(hessian.STEPS):
        give(grads, k)
        optimizer.step(bs=hessian.TERMS)
        if k % s["hessian-every"] == s["hessian-every"] - 1:
            give(extra, k)
            optimizer.update_hessian()
    return ends(params, initial)


def check_hessian(folder):
    first = load(folder / "adahessian" / "image_classification" / "optim_adahessian.py")
    second = load(folder / "Sophia" / "sophia.py")
    wide = [{name: value.astype(np.float64) for name, value in x.items()} for x in hessian.make_problem()]
    for case, changes in hessian.CASES.items():
        s = hessian.settings_of(changes)
        if s["rule"] == "sophia":
            yield case, s, hessian.sophia(*wide, s), run_sophia(second, *wide, s)
            continue
        ours = hessian.adahessian(*wide, s)
        yield f"timm_{case}", s, ours, run_adahessian(timm_adahessian, *wide, s)
        if s["hessian-every"] == 1:  # the authors have no other
            yield case, s, ours, run_adahessian(authors_adahessian(first), *wide, s)


# ---- the files -----------------------------------------------------------------------------------------


def described(name, s):
    """As the oracles' own files describe their cases."""
    if name == "shampoo_paper":
        options = [f"beta1={s['beta1']}", "shampoo-preset=mac-paper"]
    else:
        other = ("rule", "lr", "weight_decay", "clip")
        options = [f"{k}={v:.17g}" if isinstance(v, float) else f"{k}={v}" for k, v in s.items() if k not in other]
    about = {"lr": s["lr"], "weight_decay": s["weight_decay"], "exact": name == "shampoo_paper", "options": options}
    return {"rule": s["rule"], "clip": s["clip"], **about} if name == "hessian" else about


def exact_cases(name):
    return {"shampoo": shampoo.EXACT, "soap": soap.EXACT}.get(name, ())


def inputs(name):
    if name == "hessian":
        initial, grads, extra = hessian.make_problem()
        return {"initial": initial, "grad": grads, "extra": extra}
    if name == "shampoo_paper":
        problem = shampoo_paper.FILES["shampoo_paper"]
        made = shampoo_paper.make_problem(problem["shapes"], problem["steps"])
    else:
        made = (soap if name == "soap" else shampoo).make_problem()
    return dict(zip(("initial", "grad"), made))


def check(name, found, out):
    worst, cases, metadata = 0.0, [], {}
    tensors = {f"{kind}.{p}": value for kind, of in inputs(name).items() for p, value in of.items()}
    for case, s, ours, theirs in found:
        off = max(np.abs(theirs[p] - ours[p]).max() / np.abs(ours[p]).max() for p in ours)
        print(f"{name:14} {case:24} {off:.1e}")
        worst, cases = max(worst, off), cases + [case]
        metadata[case] = described(name, s)
        metadata[case]["exact"] = metadata[case]["exact"] or case in exact_cases(name)
        tensors.update({f"{case}.{p}": value for p, value in theirs.items()})
    store.save(out / f"{name}_peer.safetensors", tensors, {"cases": cases, **metadata})
    return worst <= TOLERANCE[name]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_default_dtype(torch.float64)
    folder, out = Path(sys.argv[1]), Path(__file__).resolve().parent.parent / "golden"
    checks = {"soap": check_soap, "shampoo": check_shampoo, "shampoo_paper": check_paper, "hessian": check_hessian}
    fine = [check(name, found(folder), out) for name, found in checks.items()]
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
