"""Checks of the paper's convergence theory (docs/paper.md, errata T1 to T12). numpy only; prints the figures quoted there.

The setting of the theorem, in the limit of infinite width, where the network is its linearisation:
    residual  r_{k+1} = (I - eta G) r_k,   G = (X M^-1 X^T) o K,   M = xbar xbar^T + rho I   (o: element by element)
    K_ij = (pi - angle(x_i, x_j)) / (2 pi), the limit of Gamma Gamma^T; lambda_Gamma its least eigenvalue; |x_i| = 1.
The theorem claims |r_k|^2 <= (1 - eta lambda_Gamma lambda_min(X^T X) / (2 (|xbar|^2 + rho)))^k |r_0|^2.
"""

import numpy as np


def least(s):
    return np.linalg.eigvalsh(s)[0]


def largest(s):
    return np.linalg.eigvalsh(s)[-1]


def unit_rows(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def circle(n):
    angle = 2 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def problem(x, rho=1.0):
    """X M^-1 X^T, K, G and xbar."""
    mean = x.mean(axis=0)
    b = x @ np.linalg.inv(np.outer(mean, mean) + rho * np.eye(x.shape[1])) @ x.T
    k = (np.pi - np.arccos(np.clip(x @ x.T, -1, 1))) / (2 * np.pi)
    return b, k, b * k, mean


def violation(step_of, r, eta, claimed):
    """First k at which |r_k|^2 exceeds the theorem's bound; step_of turns r_k into r_{k+1}."""
    bound, k = r @ r, 0
    while r @ r <= bound and k < 1000:
        r, bound, k = step_of(r), bound * (1 - eta * claimed), k + 1
    return k if k < 1000 else None


def counter_example():
    """T1: points on a circle. xbar = 0 and X^T X = (n/2) I, so all constants of the theorem are plain."""
    print("T1 n points on the circle, rho 1: claimed decrease / eta, largest possible / eta, first k that violates the bound")
    for n in (7, 9, 11, 21, 41):
        x = circle(n)
        _, k, g, _ = problem(x)
        eta, claimed = 1 / largest(g), least(k) * least(x.T @ x) / 2
        first = violation(lambda r: r - eta * (g @ r), np.eye(n)[0], eta, claimed)
        print(f"   n = {n:2d}: {claimed:.4f}  {2 * least(g):.4f}  {first}")
    finite_width(21, 200000)
    rng = np.random.default_rng(0)
    for n, d in ((32, 8), (8, 32)):
        x = unit_rows(rng.standard_normal((n, d)))
        print(f"   n = {n}, d = {d}: lambda_min(X M^-1 X^T) = {least(problem(x)[0]):.0e}, lambda_min(X^T X) = {least(x.T @ x):.0e}")


def finite_width(n, m, rho=1.0):
    """The same with m real ReLU units, trained by MAC's update; q = +-1 as the proof needs."""
    rng = np.random.default_rng(1)
    x = circle(n)
    _, k, g, _ = problem(x)
    w, q = rng.standard_normal((m, 2)), rng.choice([-1.0, 1.0], m)
    slopes = lambda w: (x @ w.T > 0) * q / np.sqrt(m)  # S of the proof
    outputs = lambda w: np.maximum(x @ w.T, 0) @ q / np.sqrt(m)
    y, s0, eta = outputs(w) + np.eye(n)[0], slopes(w), 1 / largest(g)
    claimed = least(k) * least(x.T @ x) / 2

    def step(r):
        nonlocal w
        w = w + eta / rho * (slopes(w).T * r) @ x  # F^-1 J^T r; xbar = 0, so F = rho I
        return y - outputs(w)

    first = violation(step, np.eye(n)[0], eta, claimed)
    # |J - J(0)|: J_i = x_i kron s_i, so (J - J0)(J - J0)^T = (X X^T) o (S - S0)(S - S0)^T
    d = slopes(w) - s0
    drift = np.sqrt(largest((x @ x.T) * (d @ d.T)))
    print(f"   n = {n}, {m} units instead of infinitely many: {first}; |J - J(0)| = {drift:.3f},", end=" ")
    print(f"Condition 5.4 allows {0.25 * rho / np.sqrt(largest(x.T @ x)):.3f}")


def remedy():
    rng = np.random.default_rng(2)
    worst = np.inf
    for _ in range(1000):
        n, d, rho = rng.integers(2, 24), rng.integers(2, 24), 10 ** rng.uniform(-2, 1)
        _, k, g, mean = problem(unit_rows(rng.standard_normal((n, d)) + rng.uniform(0, 2)), rho)
        worst = min(worst, least(g) * (mean @ mean + rho) / least(k))
    print(f"T1 remedy: lambda_min(G) (|xbar|^2 + rho) / lambda_Gamma, least of 1000 random problems: {worst:.3f} (claim: >= 1)")


def step_size():
    x = np.stack([[1.0, 0.0], [np.cos(0.01), np.sin(0.01)]])
    _, k, g, _ = problem(x)
    eta = 1 / (largest(x.T @ x) * least(k))
    print(f"T2 two points at angle 0.01: eta lambda_max(G) = {eta * largest(g):.0f} (above 2 diverges)")
    x = unit_rows(np.random.default_rng(3).standard_normal((32, 8)))
    _, k, g, _ = problem(x)
    eta, r = 1 / (largest(x.T @ x) * least(k)), np.ones(32) / np.sqrt(32)
    for _ in range(30):
        r = r - eta * (g @ r)
    print(f"   32 random points, d = 8: |r_30| / |r_0| = {np.linalg.norm(r):.0e};", end=" ")
    print(f"with eta = rho / lambda_max(X^T X): eta lambda_max(G) = {largest(g) / largest(x.T @ x):.2f}")


def ratio(x):
    mean = x.mean(axis=0)
    return len(x) * (mean @ mean) / largest(x.T @ x)


def rest():
    rng = np.random.default_rng(4)
    most = max(ratio(unit_rows(rng.standard_normal((16, 5)) + rng.uniform(0, 3))) for _ in range(1000))
    print(f"T4 n |xbar|^2 / lambda_max(X^T X), largest of 1000 random problems: {most:.4f} (claim: <= 1)")
    print(f"T5 circle, n = 11: lambda_min(G) = {least(problem(circle(11))[2]):.3f}; Condition 5.4 allows C up to 0.5")
    print(f"T10 E[q^2], q uniform on (-1, 1): {np.mean(rng.uniform(-1, 1, 1000000) ** 2):.2f}")
    x = rng.standard_normal((50, 6)) + 3
    mean = x.mean(axis=0)
    gap = np.abs(x.T @ x - 50 * np.outer(mean, mean) - (x - mean).T @ (x - mean)).max() / np.abs(x.T @ x).max()
    print(f"T12 X^T X - m xbar xbar^T - E^T E: {gap:.0e} of X^T X;", end=" ")
    print(f"at epsilon 0.1 |E| / (sqrt(m) |xbar|) may be {np.sqrt(0.1):.3f}, the paper asks {np.sqrt(1.1) - 1:.3f}")


if __name__ == "__main__":
    counter_example()
    remedy()
    step_size()
    rest()
