"""How a gradient moves parameters. A step works in place on one stretch of memory, and may use up the gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BLOCK = 1 << 16
"""Elements that are worked on at a time, so that one pass through the caches does for all operations."""


@dataclass(frozen=True, slots=True)
class SGD:
    """`parameter -= lr * gradient`."""

    lr: float = 0.01
    slots: ClassVar[int] = 0
    additive: ClassVar[bool] = True
    """Whether the sum of two gradients does what one after the other would."""

    def step(
        self, old: Floats, new: Floats, gradient: Floats, slots: list[Floats], lr: Floats, t: int
    ) -> None:
        import numpy as np

        np.multiply(gradient, lr, out=gradient)
        np.subtract(old, gradient, out=new)


@dataclass(frozen=True, slots=True)
class Momentum:
    """`velocity = momentum * velocity + gradient; parameter -= lr * velocity`, as torch has it."""

    lr: float = 0.01
    momentum: float = 0.9
    slots: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    def step(
        self, old: Floats, new: Floats, gradient: Floats, slots: list[Floats], lr: Floats, t: int
    ) -> None:
        import numpy as np

        (velocity,) = slots
        np.multiply(velocity, np.float32(self.momentum), out=velocity)
        np.add(velocity, gradient, out=velocity)
        np.multiply(velocity, lr, out=gradient)
        np.subtract(old, gradient, out=new)


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam with corrected bias; of rows that are pushed alone, only those rows' moments move (as torch's SparseAdam)."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    slots: ClassVar[int] = 2
    additive: ClassVar[bool] = False

    def step(
        self, old: Floats, new: Floats, gradient: Floats, slots: list[Floats], lr: Floats, t: int
    ) -> None:
        import numpy as np

        first, second = slots
        scratch = gradient * np.float32(1 - self.beta1)
        np.multiply(first, np.float32(self.beta1), out=first)
        np.add(first, scratch, out=first)
        np.multiply(gradient, gradient, out=gradient)
        np.multiply(gradient, np.float32(1 - self.beta2), out=gradient)
        np.multiply(second, np.float32(self.beta2), out=second)
        np.add(second, gradient, out=second)
        np.sqrt(second, out=scratch)
        np.multiply(scratch, np.float32((1 - self.beta2**t) ** -0.5), out=scratch)
        np.add(scratch, np.float32(self.epsilon), out=scratch)
        np.divide(first, scratch, out=scratch)
        np.multiply(scratch, lr * np.float32(1 / (1 - self.beta1**t)), out=scratch)
        np.subtract(old, scratch, out=new)


Optimizer = SGD | Momentum | Adam


class NotFinite(Exception):
    """A gradient has infinite values, or what is not a number."""


def blocks(size: int) -> Iterator[slice]:
    return (slice(i, i + BLOCK) for i in range(0, size, BLOCK))


def finite(values: NDArray[Any]) -> bool:
    """Without an array of answers: what is not a number comes through `maximum` and `minimum`."""
    import numpy as np

    most, least = np.maximum.reduce, np.minimum.reduce
    return all(isfinite(most(values[b])) and isfinite(least(values[b])) for b in blocks(values.size))


def step_in_blocks(
    optimizer: Optimizer, old: Floats, new: Floats, gradient: Floats, slots: list[Floats], lr: float, t: int
) -> None:
    """One step of a whole stretch; `old` and `new` may be the same memory."""
    import numpy as np

    rate: Floats = np.float32(lr)  # type: ignore[assignment]
    for block in blocks(gradient.size):
        optimizer.step(old[block], new[block], gradient[block], [slot[block] for slot in slots], rate, t)


def checked_step(optimizer: SGD, old: Floats, new: Floats, gradient: Floats, lr: float) -> None:
    """The same, with each block looked at when it is at hand anyway: a pass over the memory less.

    If one is not finite, what was done in place is taken back, which leaves no more than a rounding.
    """
    import numpy as np

    rate: Floats = np.float32(lr)  # type: ignore[assignment]
    most, least = np.maximum.reduce, np.minimum.reduce
    for block in blocks(gradient.size):
        part = gradient[block]
        if not (isfinite(most(part)) and isfinite(least(part))):
            if old is new:
                new[: block.start] += gradient[: block.start]
            raise NotFinite
        optimizer.step(old[block], new[block], part, [], rate, 1)
