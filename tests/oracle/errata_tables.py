"""Arithmetic on the paper's tables (docs/paper.md, errata C2 and R1 to R4). numpy only; prints the figures quoted there."""

import numpy as np

# Table 2: CIFAR-10, then CIFAR-100; columns ResNet-110, DenseNet-121, WRN-28-10 at 50, 100, 200 epochs each.
CIFAR = {
    "MAC": ([93.5, 94.4, 94.9, 95.3, 95.7, 95.9, 95.7, 96.2, 96.4], [72.8, 74.2, 75.0, 78.9, 80.5, 80.6, 79.4, 80.9, 81.6]),
    "SGD": ([92.0, 93.5, 94.3, 94.9, 95.4, 95.6, 95.4, 96.0, 96.2], [71.1, 72.5, 73.5, 78.2, 79.6, 79.9, 79.3, 80.7, 81.5]),
    "AdamW": ([93.4, 94.2, 94.4, 94.7, 94.9, 94.9, 95.1, 95.6, 95.9], [71.6, 73.4, 73.7, 77.3, 78.5, 79.0, 78.2, 79.7, 80.2]),
    "KFAC": ([93.5, 94.3, 94.7, 94.9, 95.3, 95.6, 95.4, 96.0, 96.3], [71.5, 73.2, 74.2, 78.1, 79.7, 80.1, 79.3, 81.0, 81.5]),
    "FOOF": ([94.0, 94.7, 95.1, 95.6, 95.8, 96.0, 95.8, 96.2, 96.4], [73.6, 75.1, 76.0, 79.8, 80.9, 81.0, 80.0, 80.8, 81.0]),
    "Eva": ([93.6, 94.1, 94.7, 94.7, 95.3, 95.7, 95.4, 95.9, 96.2], [71.9, 73.6, 74.7, 77.9, 79.4, 79.9, 79.3, 81.0, 81.6]),
    "LNGD": ([92.8, 93.8, 94.1, 95.0, 95.4, 95.3, 95.2, 95.6, 95.8], [71.7, 73.1, 74.5, 78.8, 79.9, 79.7, 79.1, 79.8, 79.4]),
}
# Table 8: SMAC, likewise.
SMAC = ([93.8, 94.4, 95.0, 95.3, 95.8, 95.9, 95.6, 96.2, 96.4], [72.5, 74.3, 74.9, 78.8, 80.7, 80.7, 79.3, 81.0, 81.6])
# Tables 2 and 8: standard deviations of MAC and of SMAC, CIFAR-10 and CIFAR-100.
DEVIATION_MAC = [0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
DEVIATION_SMAC = [0.2, 0.2, 0.1, 0.2, 0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.2, 0.5, 0.2, 0.2, 0.3, 0.1, 0.2, 0.3]
# Table 3: ImageNet, ResNet-50, ResNet-101, DeiT-Small, Swin-Tiny at 100, 200 epochs; None: failed.
IMAGENET = {
    "MAC": [78.0, 79.7, 79.8, 81.2, 73.5, 77.4, 77.7, 80.1],
    "KFAC": [78.2, 79.3, 79.6, 81.1, 69.9, None, None, None],
    "Eva": [77.7, 79.4, 79.6, 81.1, 69.7, 76.6, None, None],
}
# Table 4: relative time, ResNet-110, DenseNet-121, WRN-28-10, ResNet-50, ResNet-101, DeiT-Small, Swin-Tiny.
TIME = {
    "MAC": [1.16, 1.14, 1.21, 1.04, 1.06, 1.03, 1.02],
    "FOOF": [1.55, 1.64, 2.13, 1.21, 1.31, 1.25, 1.13],
    "KFAC": [2.45, 2.18, 2.71, 1.25, 1.37, 1.26, 1.12],
}


def main():
    for name in ("FOOF", "KFAC"):
        faster = 100 * (1 - np.array(TIME["MAC"]) / np.array(TIME[name]))
        print(f"R1 MAC takes less time than {name} by, %: {np.round(faster, 1)}")
    mac = IMAGENET["MAC"]
    for name in ("KFAC", "Eva"):
        row = IMAGENET[name]
        done = [i for i, x in enumerate(row) if x is not None]
        print(f"R2 {name}: mean with failures as 0: {sum(row[i] for i in done) / 8:.1f};", end=" ")
        print(f"of its {len(done)} runs that ended: {np.mean([row[i] for i in done]):.1f}, MAC on the same: {np.mean([mac[i] for i in done]):.1f}")
    for which, data in enumerate(("CIFAR-10", "CIFAR-100")):
        means = {name: np.mean(rows[which]) for name, rows in CIFAR.items()}
        order = sorted(means, key=lambda name: -means[name])
        print(f"R3 {data}, mean over nine columns: " + ", ".join(f"{name} {means[name]:.2f}" for name in order))
    both = [np.concatenate(rows) for rows in (CIFAR["MAC"], CIFAR["Eva"], SMAC)]
    print(f"R4 of 18 columns: Eva above MAC in {sum(both[1] > both[0])}, equal in {sum(both[1] == both[0])};", end=" ")
    print(f"SMAC above Eva in {sum(both[2] > both[1])}, equal in {sum(both[2] == both[1])}")
    difference = both[2] - both[0]
    error = np.sqrt((np.square(DEVIATION_MAC) + np.square(DEVIATION_SMAC)) / 5)  # of a difference of means of five runs
    z = np.abs(difference) / error
    print(f"C2 SMAC - MAC over 18 columns: mean {difference.mean():+.2f}, largest {np.abs(difference).max():.1f};", end=" ")
    print(f"in standard errors: root mean square {np.sqrt((z * z).mean()):.1f}, largest {z.max():.1f}")


if __name__ == "__main__":
    main()
