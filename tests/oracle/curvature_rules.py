"""Clipping and the update rules of methods.md section 8, in numpy, one tensor at a time; others are those of adams.py and shampoo.py."""

import functools

import numpy as np

import adams
import shampoo


def clip(grads, limit):
    """All gradients scaled so that their joint norm is at most about limit."""
    squares = sum(float((g.astype(np.float64) ** 2).sum()) for pair in grads.values() for g in pair if g is not None)
    factor = min(1.0, limit / (squares**0.5 + 1e-6))
    return {name: tuple(None if g is None else factor * g for g in pair) for name, pair in grads.items()}


class Sgd:
    def __init__(self, weight, lr, momentum=0.0, nesterov=False, weight_decay=0.0, decoupled=False, inside=False):
        self.weight, self.velocity = weight.copy(), np.zeros_like(weight)
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.decay, self.decoupled, self.inside = weight_decay, decoupled, inside

    def before(self, grad):
        """What a method gets."""
        return grad + self.decay * self.weight if self.inside else grad

    def step(self, grad):
        if self.inside:
            pass
        elif self.decoupled:
            self.weight = (1 - self.lr * self.decay) * self.weight
        else:
            grad = grad + self.decay * self.weight
        self.velocity = self.momentum * self.velocity + grad
        self.weight = self.weight - self.lr * (grad + self.momentum * self.velocity if self.nesterov else self.velocity)


class AdamW:
    def __init__(self, weight, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        self.weight, self.first, self.second = weight.copy(), np.zeros_like(weight), np.zeros_like(weight)
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, weight_decay
        self.t = 0

    def step(self, grad):
        self.t += 1
        b1, b2 = self.betas
        self.first = b1 * self.first + (1 - b1) * grad
        self.second = b2 * self.second + (1 - b2) * grad**2
        first, second = self.first / (1 - b1**self.t), self.second / (1 - b2**self.t)
        self.weight = self.weight - self.lr * self.decay * self.weight - self.lr * first / (np.sqrt(second) + self.eps)


def with_options(defaults, options):
    """defaults, and options as on the command line."""
    return {**defaults, **{key: type(defaults[key])(value) for key, value in (options or {}).items()}}


class Adams:
    """A rule of adams.py, at a constant rate."""

    def __init__(self, weight, rule, lr, weight_decay=0.0, options=None):
        settings = with_options({**adams.DEFAULTS, **adams.OWN[rule]}, options)
        self.one, self.lr = adams.make(rule, weight, {**settings, "weight_decay": weight_decay}), lr

    @property
    def weight(self):
        return self.one.w

    def step(self, grad):
        self.one.step(grad, self.lr)


class Shampoo:
    def __init__(self, weight, lr, weight_decay=0.0, options=None):
        settings = with_options(shampoo.DEFAULTS, options)
        self.one, self.shape = shampoo.Shampoo(weight, {**settings, "lr": lr, "weight_decay": weight_decay}), weight.shape

    @property
    def weight(self):
        return self.one.w.reshape(self.shape)

    def step(self, grad):
        self.one.step(grad)


RULES = {
    "sgd": Sgd,
    "adamw": AdamW,
    "nadamw": functools.partial(Adams, rule="nadamw"),
    "sfadamw": functools.partial(Adams, rule="sfadamw"),
    "shampoo": Shampoo,
}
