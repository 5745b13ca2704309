"""Operations of a computation graph: each computes a value, and passes a gradient back by its local Jacobian.

`backward(grad, value, *inputs)` returns one gradient per input: the gradient of the output times the Jacobian of the
operation with respect to that input, evaluated at the inputs. For elementwise operations the Jacobian is diagonal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Operation:
    """A differentiable function with a symbol for labels: infix between two inputs, else a function name."""

    name: str
    forward: Callable[..., Array]
    backward: Callable[..., tuple[Array, ...]]
    infix: str = ""
    domain: Callable[..., Any] | None = None  # whether the inputs are allowed
    domain_text: str = ""


def _unbroadcast(grad: Array, like: Array) -> Array:
    """Sum a gradient over the axes along which its input was repeated by broadcasting."""
    grad = grad.sum(axis=tuple(range(grad.ndim - like.ndim)))
    repeated = tuple(i for i, size in enumerate(like.shape) if size == 1 and grad.shape[i] != 1)
    return grad.sum(axis=repeated, keepdims=True) if repeated else grad


def _elementwise(
    name: str, forward: Callable[..., Array], derivative: Callable[..., tuple[Any, ...]], **settings: Any
) -> Operation:
    """Return an operation from the derivatives of its output with respect to each input."""

    def backward(grad: Array, value: Array, *inputs: Array) -> tuple[Array, ...]:
        return tuple(_unbroadcast(grad * d, x) for d, x in zip(derivative(value, *inputs), inputs))

    return Operation(name, forward, backward, **settings)


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def _power_derivative(value: Array, x: Array, n: Array) -> tuple[Array, Array]:
    """Return n·x^(n-1) and x^n·log x, which is 0 where x is 0."""
    return n * x ** (n - 1), value * np.log(np.where(x > 0, x, 1.0))


def _matmul_backward(grad: Array, value: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Return the gradients grad·bᵀ and aᵀ·grad, also for vectors."""
    a2, b2 = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    grad2 = grad.reshape(a2.shape[0], b2.shape[1])
    return (grad2 @ b2.T).reshape(a.shape), (a2.T @ grad2).reshape(b.shape)


def _cross_entropy(logits: Array, target: Array) -> Array:
    """Return the sum of -log softmax(logits)[target] over rows."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -np.take_along_axis(log_probs, target.astype(int)[..., None], axis=-1).sum()


def _cross_entropy_backward(grad: Array, value: Array, logits: Array, target: Array) -> tuple[Array, Array]:
    """Return softmax minus the one-hot target, and no gradient of the target."""
    exps = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probs = exps / exps.sum(axis=-1, keepdims=True)
    np.put_along_axis(probs, target.astype(int)[..., None], np.take_along_axis(
        probs, target.astype(int)[..., None], axis=-1) - 1, axis=-1)  # fmt: skip
    return grad * probs, np.zeros_like(target)


def _is_power_defined(x: Array, n: Array) -> bool:
    """Return whether x^n and its gradient exist."""
    is_whole = bool(np.all(n == np.round(n)))
    return bool(np.all((x > 0) | ((x < 0) & is_whole) | ((x == 0) & (n >= 1))))


OPERATIONS = {
    operation.name: operation
    for operation in (
        _elementwise("add", lambda a, b: a + b, lambda v, a, b: (1.0, 1.0), infix="+"),
        _elementwise("subtract", lambda a, b: a - b, lambda v, a, b: (1.0, -1.0), infix="-"),
        _elementwise("multiply", lambda a, b: a * b, lambda v, a, b: (b, a), infix="*"),
        _elementwise(
            "divide",
            lambda a, b: a / b,
            lambda v, a, b: (1 / b, -a / b**2),
            infix="/",
            domain=lambda a, b: np.all(b != 0),
            domain_text="a divisor other than 0",
        ),
        _elementwise(
            "power",
            lambda x, n: x**n,
            _power_derivative,
            infix="**",
            domain=_is_power_defined,
            domain_text="a positive base, or a whole exponent",
        ),
        _elementwise("negate", lambda x: -x, lambda v, x: (-1.0,)),
        _elementwise("exp", np.exp, lambda v, x: (v,)),
        _elementwise(
            "log", np.log, lambda v, x: (1 / x,), domain=lambda x: np.all(x > 0), domain_text="a positive argument"
        ),
        _elementwise("sin", np.sin, lambda v, x: (np.cos(x),)),
        _elementwise("cos", np.cos, lambda v, x: (-np.sin(x),)),
        _elementwise("tanh", np.tanh, lambda v, x: (1 - v**2,)),
        _elementwise("sigmoid", _sigmoid, lambda v, x: (v * (1 - v),)),
        _elementwise("relu", lambda x: np.maximum(x, 0.0), lambda v, x: ((x > 0) * 1.0,)),
        Operation("matmul", lambda a, b: a @ b, _matmul_backward, infix="@"),
        Operation("sum", lambda x: np.asarray(x.sum()), lambda g, v, x: (np.broadcast_to(g, x.shape).copy(),)),
        Operation(
            "mean", lambda x: np.asarray(x.mean()), lambda g, v, x: (np.broadcast_to(g / x.size, x.shape).copy(),)
        ),
        Operation("cross_entropy", _cross_entropy, _cross_entropy_backward),
    )
}


def slice_operation(start: int, stop: int) -> Operation:
    """Return the operation that takes a range of the last axis."""

    def backward(grad: Array, value: Array, x: Array) -> tuple[Array]:
        full = np.zeros_like(x)
        full[..., start:stop] = grad
        return (full,)

    return Operation(f"slice[{start}:{stop}]", lambda x: x[..., start:stop], backward)
