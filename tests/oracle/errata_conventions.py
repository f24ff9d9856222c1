"""Checks of what follows from the paper's conventions (docs/paper.md, errata C1 to C4). numpy only; prints the figures quoted.

One step of a small network with batch norm at the published settings: 128 examples, cross-entropy of the batch mean, and
every linear layer in front of a batch norm but the last.
"""

import numpy as np

B, WIDTHS = 128, (64, 64, 64, 10)


def batch_norm(z):
    deviation = z.std(axis=0)
    return (z - z.mean(axis=0)) / deviation, deviation


def batch_norm_backward(dy, y, deviation):
    return (dy - dy.mean(axis=0) - y * (dy * y).mean(axis=0)) / deviation


def network():
    """Per layer its inputs a, output gradients p (of the batch mean) and gradient G."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, B)
    x = np.abs(rng.standard_normal((B, WIDTHS[0])) + rng.standard_normal((10, WIDTHS[0]))[labels])
    weights = [rng.standard_normal((o, i)) * np.sqrt(2 / i) for i, o in zip(WIDTHS, WIDTHS[1:])]
    inputs, normed = [x], []
    for w in weights[:-1]:
        y, deviation = batch_norm(inputs[-1] @ w.T)
        normed.append((y, deviation))
        inputs.append(np.maximum(y, 0))
    logits = inputs[-1] @ weights[-1].T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p = (p / p.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / B
    layers = []
    for i in range(len(weights) - 1, -1, -1):
        layers.insert(0, (inputs[i], p, p.T @ inputs[i]))
        if i:
            y, deviation = normed[i - 1]
            p = batch_norm_backward((p @ weights[i]) * (y > 0), y, deviation)
    return layers


def mac(g, a, rho):
    return g - np.outer(g @ a, a) / (rho + a @ a)


def smac(g, a, squares, rho):
    return mac(g, a, rho) / (squares + rho)[:, None]


def eva(g, a, p, rho):
    return (g - (p @ g @ a) * np.outer(p, a) / (rho + (a @ a) * (p @ p))) / rho


def distance(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def main():
    layers = network()
    print("C2, C4 SMAC and MAC, rho 1:  layer, mean of E[p^2], |SMAC - MAC| / |MAC|;  rho 3: |SMAC - MAC / 3| / |MAC / 3|")
    for i, (a, p, g) in enumerate(layers):
        mean, squares = a.mean(axis=0), (p * p).mean(axis=0)
        print(f"   {i}: {squares.mean():.1e}  {distance(smac(g, mean, squares, 1), mac(g, mean, 1)):.1e}", end="  ")
        print(f"{distance(smac(g, mean, squares, 3), mac(g, mean, 3) / 3):.1e}")
    print("C3 Eva, rho 0.03:  layer, |E[p]| / |p|, |Eva - G/rho| / |G/rho|")
    for i, (a, p, g) in enumerate(layers):
        mean = p.mean(axis=0)
        print(f"   {i}: {np.linalg.norm(mean) / np.linalg.norm(p):.1e}  {distance(eva(g, a.mean(axis=0), mean, 0.03), g / 0.03):.1e}")
    a, p, _ = layers[1]
    print(f"C1 B = {B}: tr E[p p^T] of single losses / of the batch mean = {((B * p) ** 2).sum() / (p**2).sum():.0f} = B^2;", end=" ")
    print(f"at B = 256: {256**2}")
    print("Differences: what is left of the identity that FOOF's average starts from, at steps 0, 50, 500:", end=" ")
    print(", ".join(f"{0.95**m / (1 - 0.95**m):.3g}" for m in (1, 11, 101)))


if __name__ == "__main__":
    main()
