"""The reference networks as PyTorch modules; transformers are in networks_vit.py and networks_gpt.py.

Tensor names, shapes and initial distributions are those that abar's checkpoints use, so that
load_state_dict(strict=True) takes an abar export as it is. Run as a script to check the
parameter counts.
"""

import re

import torch
import torch.nn.functional as F
from torch import nn

import networks_gpt
import networks_vit

COUNTS = {
    "mlp": 669_706,
    "lenet5": 61_706,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "densenet121": 6_956_298,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "wrn28-10": 36_479_194,
    "deit-tiny": 5_717_416,
    "deit-small": 22_050_664,
    "swin-tiny": 28_288_354,
    "gpt2": 124_439_808,
    "gpt-char": 10_745_088,
}

TRANSFORMERS = {  # with their usual images or texts
    "deit-tiny": lambda: networks_vit.deit("deit-tiny"),
    "deit-small": lambda: networks_vit.deit("deit-small"),
    "swin-tiny": networks_vit.swin_tiny,
    "gpt2": networks_gpt.gpt2,
    "gpt-char": networks_gpt.gpt_char,
}

DENSE_LAYERS = {"densenet121": (6, 12, 24, 16)}
BOTTLENECKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3)}

MLP_WIDTHS = (784, 512, 512, 10)


class Mlp(nn.Module):
    """Linear layers fc1, fc2, ... with ReLU between them. PyTorch's default init."""

    def __init__(self, widths):
        super().__init__()
        self.depth = len(widths) - 1
        for i in range(self.depth):
            setattr(self, f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))

    def forward(self, x):  # (N, C, H, W) or (N, D)
        x = x.flatten(1)
        for i in range(1, self.depth):
            x = F.relu(getattr(self, f"fc{i}")(x))
        return getattr(self, f"fc{self.depth}")(x)


class LeNet5(nn.Module):
    """6c5p2-mp2-16c5-mp2-120-84-10 on (N, 1, 28, 28). PyTorch's default init."""

    def __init__(self, activation="relu", classes=10):
        super().__init__()
        self.act = {"relu": F.relu, "tanh": torch.tanh}[activation]
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x):
        x = F.max_pool2d(self.act(self.conv1(x)), 2)  # (N, 6, 14, 14)
        x = F.max_pool2d(self.act(self.conv2(x)), 2)  # (N, 16, 5, 5)
        x = self.act(self.fc1(x.flatten(1)))
        x = self.act(self.fc2(x))
        return self.fc3(x)


def conv3x3(c_in, c_out, stride):
    return nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)


def batch_norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)


def shortcut_a(x, channels, stride):
    """Option A: every stride-th pixel, and as many zero channels before x's as after them."""
    extra = channels - x.shape[1]
    assert extra % 2 == 0
    x = x[:, :, ::stride, ::stride]
    return F.pad(x, (0, 0, 0, 0, extra // 2, extra // 2))


class BasicBlock(nn.Module):
    """y = relu(bn2(conv2(relu(bn1(conv1 x)))) + shortcut x), stride in conv1."""

    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.c_in, self.c_out, self.stride = c_in, c_out, stride
        self.conv1 = conv3x3(c_in, c_out, stride)
        self.bn1 = batch_norm(c_out)
        self.conv2 = conv3x3(c_out, c_out, 1)
        self.bn2 = batch_norm(c_out)

    def shortcut(self, x):
        if self.stride == 1 and self.c_in == self.c_out:
            return x
        return shortcut_a(x, self.c_out, self.stride)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        return F.relu(h + self.shortcut(x))


class ResNetCifar(nn.Module):
    """CIFAR ResNet of 6n+2 layers on (N, 3, 32, 32): stages of width, 2 width, 4 width."""

    def __init__(self, n, width=16, classes=10):
        super().__init__()
        self.conv1 = conv3x3(3, width, 1)
        self.bn1 = batch_norm(width)
        self.layer1 = self.stage(n, width, width, 1)
        self.layer2 = self.stage(n, width, 2 * width, 2)
        self.layer3 = self.stage(n, 2 * width, 4 * width, 2)
        self.linear = nn.Linear(4 * width, classes)
        self.apply(kaiming_fan_in)

    @staticmethod
    def stage(n, c_in, c_out, stride):
        first = BasicBlock(c_in, c_out, stride)
        rest = [BasicBlock(c_out, c_out, 1) for _ in range(n - 1)]
        return nn.Sequential(first, *rest)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


class WideBlock(nn.Module):
    """a = relu(bn1 x); y = conv2(relu(bn2(conv1 a))) + (x, or convShortcut a where the shape changes)."""

    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.bn1 = batch_norm(c_in)
        self.conv1 = conv3x3(c_in, c_out, stride)
        self.bn2 = batch_norm(c_out)
        self.conv2 = conv3x3(c_out, c_out, 1)
        self.convShortcut = None
        if c_in != c_out or stride != 1:
            self.convShortcut = nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False)

    def forward(self, x):
        a = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(a))))
        return y + (x if self.convShortcut is None else self.convShortcut(a))


class WideStage(nn.Module):
    def __init__(self, n, c_in, c_out, stride):
        super().__init__()
        first = WideBlock(c_in, c_out, stride)
        self.layer = nn.Sequential(first, *(WideBlock(c_out, c_out, 1) for _ in range(n - 1)))

    def forward(self, x):
        return self.layer(x)


class WideResNet(nn.Module):
    """Pre-activation ResNet of 6n+4 layers: stages of widen stem, 2 widen stem, 4 widen stem."""

    def __init__(self, n, widen, stem=16, classes=10):
        super().__init__()
        width = stem * widen
        self.conv1 = conv3x3(3, stem, 1)
        self.block1 = WideStage(n, stem, width, 1)
        self.block2 = WideStage(n, width, 2 * width, 2)
        self.block3 = WideStage(n, 2 * width, 4 * width, 2)
        self.bn1 = batch_norm(4 * width)
        self.fc = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.relu(self.bn1(x)).mean(dim=(2, 3)))


class DenseLayer(nn.Module):
    """x -> [y, x] along channels, y = conv2(relu(bn2(conv1(relu(bn1 x))))) of growth channels."""

    def __init__(self, c_in, growth):
        super().__init__()
        self.bn1 = batch_norm(c_in)
        self.conv1 = nn.Conv2d(c_in, 4 * growth, 1, bias=False)
        self.bn2 = batch_norm(4 * growth)
        self.conv2 = conv3x3(4 * growth, growth, 1)

    def forward(self, x):
        y = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return torch.cat((y, x), dim=1)


class Transition(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.bn = batch_norm(c_in)
        self.conv = nn.Conv2d(c_in, c_out, 1, bias=False)

    def forward(self, x):
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """Four dense blocks, half of the channels and of the pixels between them. PyTorch's default init.

    images: side of the input; the last average pool covers what is left of it, 4 x 4 of 32 x 32.
    """

    def __init__(self, layers, growth, classes=10, images=32):
        super().__init__()
        self.last_pool = images // 8
        self.conv1 = conv3x3(3, 2 * growth, 1)
        channels = 2 * growth
        for i, count in enumerate(layers, start=1):
            inputs = range(channels, channels + count * growth, growth)
            setattr(self, f"dense{i}", nn.Sequential(*(DenseLayer(c, growth) for c in inputs)))
            channels += count * growth
            if i < len(layers):
                setattr(self, f"trans{i}", Transition(channels, channels // 2))
                channels //= 2
        self.bn = batch_norm(channels)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.trans1(self.dense1(self.conv1(x)))
        x = self.trans2(self.dense2(x))
        x = self.trans3(self.dense3(x))
        x = F.relu(self.bn(self.dense4(x)))
        return self.linear(F.avg_pool2d(x, self.last_pool).flatten(1))


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to four times the width; plus x, or downsample x where the shape changes."""

    def __init__(self, c_in, width, stride):
        super().__init__()
        c_out = 4 * width
        self.conv1 = nn.Conv2d(c_in, width, 1, bias=False)
        self.bn1 = batch_norm(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = batch_norm(width)
        self.conv3 = nn.Conv2d(width, c_out, 1, bias=False)
        self.bn3 = batch_norm(c_out)
        self.downsample = None
        if stride != 1 or c_in != c_out:
            projection = nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, batch_norm(c_out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNetImageNet(nn.Module):
    """Stem 7x7/2 and max-pool 3x3/2, then four stages of bottlenecks; torchvision's names and initial weights."""

    def __init__(self, blocks, width=64, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = batch_norm(width)
        c_in = width
        for stage, count in enumerate(blocks):
            wide = width * 2**stage
            first = Bottleneck(c_in, wide, 1 if stage == 0 else 2)
            c_in = 4 * wide
            rest = [Bottleneck(c_in, wide, 1) for _ in range(count - 1)]
            setattr(self, f"layer{stage + 1}", nn.Sequential(first, *rest))
        self.fc = nn.Linear(c_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


def kaiming_fan_in(module):
    """Weights normal with variance 2 / fan-in. Biases and norms keep PyTorch's default."""
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")


def mlp(widths=MLP_WIDTHS):
    return Mlp(widths)


def lenet5(activation="relu", classes=10):
    return LeNet5(activation, classes)


def resnet_cifar(n, width=16, classes=10):
    return ResNetCifar(n, width, classes)


def wide_resnet(n, widen, stem=16, classes=10):
    return WideResNet(n, widen, stem, classes)


def densenet(layers, growth, classes=10, images=32):
    return DenseNet(layers, growth, classes, images)


def resnet_imagenet(blocks, width=64, classes=1000):
    return ResNetImageNet(blocks, width, classes)


def build(name, classes=None, widths=MLP_WIDTHS, activation="relu"):
    """A network by its abar name; raises ValueError for a name that is not known here."""
    if name in TRANSFORMERS:
        return TRANSFORMERS[name]()
    if classes is None:
        classes = 1000 if name in BOTTLENECKS else 10
    if name == "mlp":
        return mlp(widths)
    if name == "lenet5":
        return lenet5(activation, classes)
    if name in DENSE_LAYERS:
        return densenet(DENSE_LAYERS[name], 32, classes)
    if name in BOTTLENECKS:
        return resnet_imagenet(BOTTLENECKS[name], classes=classes)
    match = re.fullmatch(r"resnet(\d+)", name)
    if match and name in COUNTS:
        return resnet_cifar((int(match[1]) - 2) // 6, classes=classes)
    match = re.fullmatch(r"wrn(\d+)-(\d+)", name)
    if match and name in COUNTS:
        return wide_resnet((int(match[1]) - 4) // 6, int(match[2]), classes=classes)
    raise ValueError(f"unknown model {name}; known: {' '.join(COUNTS)}")


def count_parameters(module):
    return sum(p.numel() for p in module.parameters())


def check_counts():
    for name, expected in COUNTS.items():
        count = count_parameters(build(name))
        assert count == expected, f"{name}: {count} parameters, expected {expected}"


if __name__ == "__main__":
    check_counts()
    print("ok parameter counts:", " ".join(COUNTS))
