"""welch.json: Student's t, Welch's test and intervals by SciPy; Holm's correction and the number of seeds from their definitions."""

import json
from pathlib import Path

import numpy as np
from scipy import stats

POWER = 0.8


def quantiles():
    rows = []
    for df in (1.0, 1.3, 2.0, 3.7, 5.0, 8.25, 30.0, 59.9, 60.1, 250.0, 1998.0, 1e6):
        for above in (0.4, 0.2, 0.05, 0.025, 0.005, 0.05 / 56, 1e-6, 1e-12):
            rows.append([df, above, float(stats.t.isf(above, df))])
    return rows


def tails():
    return [[df, t, float(stats.t.sf(t, df))] for df in (1.0, 2.5, 4.0, 17.3, 120.0, 5000.0)
            for t in (-3.0, -0.2, 0.0, 0.01, 0.7, 2.0, 5.5, 40.0)]


def cases():
    generator = np.random.default_rng(20)
    rows = []
    for na, nb, shift, scale in ((2, 2, 0.5, 1.0), (3, 3, 0.0, 1.0), (5, 5, 1.5, 0.3), (5, 3, -0.4, 4.0), (10, 2, 0.1, 0.01),
                                 (40, 25, 0.3, 1.5)):
        a = 90.0 + generator.normal(size=na)
        b = 90.0 - shift + scale * generator.normal(size=nb)
        test = stats.ttest_ind(a, b, equal_var=False)
        row = {"a": a.tolist(), "b": b.tolist(), "difference": float(a.mean() - b.mean()), "df": float(test.df),
               "p": float(test.pvalue), "intervals": []}
        for alpha in (0.05, 0.05 / 3, 0.05 / 28):
            interval = test.confidence_interval(1.0 - alpha)
            row["intervals"].append([alpha, float(interval.low), float(interval.high)])
        rows.append(row)
    return rows


def holm(p, alpha):
    """The least alpha at which Holm's step-down procedure rejects each hypothesis, and the level of its interval."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, level = [0.0] * len(p), [0.0] * len(p)
    for k, i in enumerate(order):
        adjusted[i] = max(min(1.0, (len(p) - j) * p[order[j]]) for j in range(k + 1))
    failed = next((k for k, i in enumerate(order) if adjusted[i] > alpha), len(p))
    for k, i in enumerate(order):
        level[i] = alpha / (len(p) - min(k, failed))
    return adjusted, level


def corrections():
    rows = []
    for p in ([0.03], [0.01, 0.04], [0.04, 0.01, 0.03, 0.2], [0.001, 0.02, 0.02, 0.9, 0.013], [0.2, 0.01, 0.01, 0.024, 0.6, 0.5]):
        adjusted, level = holm(p, 0.05)
        rows.append({"p": p, "adjusted": adjusted, "level": level})
    return rows


def enough(difference, a, b, alpha, n):
    va, vb = a * a / n, b * b / n
    df = (va + vb) ** 2 / (va ** 2 / (n - 1) + vb ** 2 / (n - 1))
    return abs(difference) / np.sqrt(va + vb) >= stats.t.isf(alpha / 2, df) + stats.t.isf(1 - POWER, df)


def seeds():
    rows = []
    for difference, a, b, alpha in ((1.0, 0.1, 0.1, 0.05), (0.5, 0.3, 0.2, 0.05), (0.2, 0.3, 0.25, 0.05 / 3), (-0.3, 1.0, 0.0, 0.05),
                                    (0.05, 0.4, 0.5, 0.05 / 28), (0.9, 0.31, 0.07, 0.05 / 28)):
        n = next(n for n in range(2, 10001) if enough(difference, a, b, alpha, n))
        rows.append([difference, a, b, alpha, n])
    return rows


def write(path):
    content = {"quantiles": quantiles(), "tails": tails(), "cases": cases(), "holm": corrections(), "seeds": seeds()}
    lines = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "]" for name, rows in content.items())
    path.write_text("{" + lines + "}\n")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent / "golden" / "welch.json")
