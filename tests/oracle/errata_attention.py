"""Checks of the paper's attention formulas (docs/paper.md, errata A1 to A5). numpy only; prints the figures quoted."""

import numpy as np


def softmax(r):
    e = np.exp(r - r.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def distance(x, y):
    return np.linalg.norm(x - y) / np.linalg.norm(y)


def cosine(x, y):
    return abs(x @ y) / np.linalg.norm(x) / np.linalg.norm(y)


def loss(x, wq, wk, wv, c):
    """<C, H>, so that dL/dH = C."""
    return (softmax((x @ wq) @ (x @ wk).T / np.sqrt(wq.shape[1])) @ (x @ wv) * c).sum()


def numeric(f, w, h=1e-5):
    g = np.zeros_like(w)
    for i in np.ndindex(*w.shape):
        e = np.zeros_like(w)
        e[i] = h
        g[i] = (f(w + e) - f(w - e)) / (2 * h)
    return g


def vec(m):
    return m.flatten(order="F")  # column after column


def gradients(rng):
    n, d, dk = 7, 6, 4
    x, c = rng.standard_normal((n, d)), rng.standard_normal((n, dk))
    wq, wk, wv = (rng.standard_normal((d, dk)) for _ in range(3))
    q, k, v = x @ wq, x @ wk, x @ wv
    t = softmax(q @ k.T / np.sqrt(dk))
    dt = c @ v.T
    dr = t * (dt - (dt * t).sum(axis=1, keepdims=True))  # dL/dR
    gq = numeric(lambda w: loss(x, w, wk, wv, c), wq)
    gk = numeric(lambda w: loss(x, wq, w, wv, c), wk)
    print(f"A1 d_k = {dk}: |X^T dR K| / |dL/dW_q| = {np.linalg.norm(x.T @ dr @ k) / np.linalg.norm(gq):.4f};", end=" ")
    print(f"with 1/sqrt(d_k) the difference is {distance(x.T @ dr @ k / np.sqrt(dk), gq):.0e}")
    print(f"A2 W_k with dR^T: difference {distance(x.T @ dr.T @ q / np.sqrt(dk), gk):.0e};", end=" ")
    print(f"with dR, as in the equation of F_k: {distance(x.T @ dr @ q / np.sqrt(dk), gk):.1f}")
    left, right = vec(x.T @ t.T @ c), np.kron(c.T, x.T)
    print(f"A3 vec(X^T T^T dH) by vec(T^T): difference {distance(right @ vec(t.T), left):.0e}; by vec(T): {distance(right @ vec(t), left):.1f}")


def rank_one(rng):
    print("A4 uniform attention of N tokens: |T - t t^T| / |T|, |T - 1 t^T| / |T|")
    for n in (2, 16, 197):
        t = np.full((n, n), 1 / n)
        mean = t.mean(axis=0)
        print(f"   N = {n}: {distance(np.outer(mean, mean), t):.4f} = {(n - 1) / n:.4f}, {distance(np.outer(np.ones(n), mean), t):.0e}")
    print("   random attention, N = 32, logits of standard deviation s: the same two errors")
    for s in (0.3, 1, 3):
        t = softmax(s * rng.standard_normal((32, 32)) + s * rng.standard_normal(32))
        mean = t.mean(axis=0)
        print(f"   s = {s}: {distance(np.outer(mean, mean), t):.2f}, {distance(np.outer(np.ones(32), mean), t):.2f}")


def eigenvectors(rng):
    """T = 1 t^T exactly, where the right eigenvector is 1, the left one t; what eigh sees is the lower triangle."""
    n = 32
    mean = softmax(1.5 * rng.standard_normal((1, n)))[0]
    t = np.outer(np.ones(n), mean)
    values, vectors = np.linalg.eigh(t)
    print(f"A5 T = 1 t^T: |T 1 - 1| = {np.abs(t @ np.ones(n) - 1).max():.0e}, |t^T T - t^T| = {np.abs(mean @ t - mean).max():.0e};", end=" ")
    print(f"eigh of its lower triangle: largest eigenvalue {values[-1]:.2f}, cosine with t {cosine(vectors[:, -1], mean):.2f},", end=" ")
    print(f"with 1 {cosine(vectors[:, -1], np.ones(n)):.2f}; cosine of 1 and t {cosine(np.ones(n), mean):.2f}")


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    gradients(rng)
    rank_one(rng)
    eigenvectors(rng)
