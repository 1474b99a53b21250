"""When to stop: the loss no longer improves by more than its own noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected


@dataclass(frozen=True)
class Converged:
    """Stop when the loss of one window of steps is no better than that of the one before.

    The losses of a window are noisy, and their mean has a standard error. A run has converged when
    the means of `patience` windows in a row improve by less than `z` standard errors of the
    difference, each over the one before, and the last over the first. A loss that is still falling
    slowly under much noise may pass the test once by chance; `patience` makes that rare: one that
    falls by two standard errors a window is stopped within 30 windows with probability 0.02, one
    that falls by three practically never. What a window can see grows with its length to the power
    of 3/2, so a slower run needs a longer window.

    Attributes:
        window: steps of a window.
        patience: windows without improvement.
        z: standard errors that count as an improvement.
        max_steps: stop in any case.
    """

    window: int = 100
    patience: int = 2
    z: float = 1.0
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        positive_integer("window", self.window)
        positive_integer("patience", self.patience)
        positive_integer("max_steps", self.max_steps)
        finite_scalar("z", self.z, minimum=0.0, strict=False)
        if self.window < 8:
            raise expected("window", "at least 8 steps, for a standard error", self.window)

    def reached_between(self, before: int, now: int, latest: Callable[[int], np.ndarray]) -> bool:
        """Whether a window was completed between two steps, and the rule is met.

        Args:
            before: steps done at the test before.
            now: steps done.
            latest: a number -> the losses of so many steps up to now.
        """
        if before // self.window == now // self.window:
            return False
        # Whole windows alone: those of the steps after the last one are left out.
        rest = now % self.window
        losses = latest((self.patience + 1) * self.window + rest)
        return self.reached(losses[: len(losses) - rest])

    def reached(self, losses: np.ndarray) -> bool:
        """Whether the losses so far, oldest first, have stopped improving."""
        whole = len(losses) // self.window
        if whole < self.patience + 1:
            return False
        windows = np.asarray(losses[: whole * self.window], np.float64).reshape(whole, self.window)
        recent = windows[-(self.patience + 1) :]
        if not np.all(np.isfinite(recent)):
            return False
        means = recent.mean(axis=1)
        # Half a window's drift would pass for noise: differences of neighbours do not see it.
        noise = np.std(np.diff(recent, axis=1), axis=1, ddof=1) / math.sqrt(2.0)
        errors = noise / math.sqrt(self.window)
        gains = np.append(means[:-1] - means[1:], means[0] - means[-1])
        of_both = np.append(errors[:-1] ** 2 + errors[1:] ** 2, errors[0] ** 2 + errors[-1] ** 2)
        return bool(np.all(gains <= self.z * np.sqrt(of_both)))
