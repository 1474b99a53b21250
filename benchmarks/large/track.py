"""The ELBO against seconds from the call on.

Seconds are those of the processor. On the one core that a contender is pinned to they are what its
user waits for, and what else runs on the machine is not in them.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Trace_ELBO

from zoo.case import Case

SHARE = 0.3
"""Of the time so far that passes between two looks."""

MOST_AT_ONCE = 512
"""Most steps between two looks."""


class Track:
    """Parameters along a run, with the seconds since it was called; looking stops the clock.

    Attributes:
        seconds: of every look.
        steps: done at every look.
        parameters: at every look.
        ready: seconds until the first step could be taken.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.steps: list[int] = []
        self.parameters: list[Any] = []
        self.ready = math.nan
        self._began, self._paused = time.process_time(), 0.0

    @property
    def now(self) -> float:
        """Seconds on the clock."""
        return time.process_time() - self._began - self._paused

    def resume(self, seconds: float) -> None:
        """Go on from this reading of the clock."""
        self._began, self._paused = time.process_time() - seconds, 0.0

    def look(self, steps: int, parameters: Any) -> None:
        """Note where a run is after so many steps."""
        began, seconds = time.process_time(), self.now
        self.seconds.append(seconds)
        self.steps.append(steps)
        self.parameters.append(jax.device_get(parameters))
        self._paused += time.process_time() - began

    def ready_to_step(self) -> None:
        """Note that everything is compiled."""
        self.ready = self.now

    def steps_until_next(self) -> int:
        """How many steps to take before the next look."""
        if len(self.steps) < 2:
            return 1
        stepping = self.now - self.ready
        per_step = max(stepping, 1e-9) / self.steps[-1]
        return min(MOST_AT_ONCE, max(1, int(SHARE * stepping / per_step)))

    @property
    def per_step(self) -> float:
        """Seconds of a step, over the whole run."""
        return (self.seconds[-1] - self.ready) / max(1, self.steps[-1])

    def curve(self, elbo: Callable[[Any], float]) -> list[tuple[float, int, float]]:
        """Seconds, steps and ELBO of every look."""
        values = [elbo(parameters) for parameters in self.parameters]
        return list(zip(self.seconds, self.steps, values, strict=True))


class Evaluator:
    """ELBOs in double precision, with the same draws for all contenders.

    A scale that has run off makes an estimate of any size: one that the draws do not tell to a
    hundredth of itself, or to ten nats, counts as none.
    """

    def __init__(self, case: Case, guide: Any) -> None:
        alone = Trace_ELBO(num_particles=1)

        def estimate(params: Any, args: tuple) -> tuple[jax.Array, jax.Array]:
            loss = lambda key: alone.loss(key, params, case.run, guide, *args)
            keys = jax.random.split(jax.random.key(2_000), case.elbo_samples[0])
            values = -jax.lax.map(loss, keys, batch_size=8)
            return jnp.mean(values), jnp.std(values) / math.sqrt(keys.size)

        self._args = _double(case.args)
        self._estimate = jax.jit(estimate)
        self.standard_error = math.nan

    def __call__(self, params: Any) -> float:
        """An ELBO; minus infinity for parameters that have none."""
        with jax.enable_x64(True):
            mean, error = map(float, self._estimate(_double(params), self._args))
        known = np.isfinite(mean) and error <= max(10.0, 0.01 * abs(mean))
        self.standard_error = error
        return mean if known else -math.inf


def _double(tree: Any) -> Any:
    floating = lambda leaf: np.issubdtype(np.asarray(leaf).dtype, np.floating)
    widened = lambda leaf: np.asarray(leaf, np.float64) if floating(leaf) else np.asarray(leaf)
    return jax.tree.map(widened, jax.device_get(tree))
