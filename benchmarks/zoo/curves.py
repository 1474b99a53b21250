"""The ELBO along a run, evaluated off the clock and only as precisely as needed.

A guide whose scale has run off has an ELBO of minus any number, but in float32 the estimate may be
anything, also far above the evidence. So the ELBOs that count are evaluated in float64, and one
that many samples do not tell to a nat counts as none.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import Trace_ELBO

from zoo.case import Case

MARGIN = 2.0
"""A first look is trusted to be this close, in nats."""


def checkpoints(limit: int) -> list[int]:
    """Every step at first, then steps a fifteenth apart."""
    steps = [0]
    while steps[-1] < limit:
        steps.append(min(limit, max(steps[-1] + 1, round(steps[-1] * 16 / 15))))
    return steps


class Evaluator:
    """ELBOs of one case, all with the same random numbers."""

    def __init__(self, case: Case, guide: Any) -> None:
        alone = Trace_ELBO(num_particles=1)

        def estimate(params: Any, args: tuple, num_samples: int) -> tuple[jax.Array, jax.Array]:
            loss = lambda key: alone.loss(key, params, case.run, guide, *args)
            keys = jax.random.split(jax.random.key(2_000), num_samples)
            chunk = min(num_samples, 250)
            values = -jax.lax.map(loss, keys, batch_size=chunk) / case.elbo_divisor
            return jnp.mean(values), jnp.std(values) / math.sqrt(num_samples)

        few, many = case.elbo_samples
        self._args = jax.device_get(case.args)
        self._look = jax.jit(lambda params, args: estimate(params, args, few))
        self._measure = jax.jit(lambda params, args: estimate(params, args, many))

    def look(self, params: Any) -> float:
        """A first estimate; minus infinity for parameters that have no ELBO."""
        return _known(*self._look(params, self._args), 10.0)[0]

    def measure(self, params: Any) -> tuple[float, float]:
        """A precise estimate and its standard error."""
        with jax.enable_x64(True):
            mean, error = self._measure(_double(params), _double(self._args))
        return _known(mean, error, 1.0)


class Curve:
    """The parameters of one run at its checkpoints, and their ELBOs once they are asked for.

    Attributes:
        steps: of the checkpoints.
        levelled: whether the run ended because its kind had arrived and no longer improved.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.steps: list[int] = []
        self.levelled = False
        self._params: list[Any] = []
        self._evaluator = evaluator
        self._looks: dict[int, float] = {}
        self._measures: dict[int, tuple[float, float]] = {}

    def append(self, step: int, params: Any) -> None:
        self.steps.append(step)
        self._params.append(params)

    def look(self, index: int) -> float:
        if index not in self._looks:
            self._looks[index] = self._evaluator.look(self._params[index])
        return self._looks[index]

    def measure(self, index: int) -> tuple[float, float]:
        if index not in self._measures:
            self._measures[index] = self._evaluator.measure(self._params[index])
        return self._measures[index]

    @property
    def final(self) -> tuple[float, float]:
        """The last ELBO and its standard error."""
        return self.measure(len(self.steps) - 1)

    @property
    def best(self) -> float:
        """The highest ELBO of the run, among the checkpoints that look highest."""
        order = sorted(range(len(self.steps)), key=self.look)[-3:]
        return max(self.final[0], *(self.measure(index)[0] for index in order))

    def first_within(self, threshold: float) -> int | None:
        """The first step whose ELBO reaches `threshold`."""
        for index, step in enumerate(self.steps):
            near = self.look(index) >= threshold - MARGIN
            if near and self.measure(index)[0] >= threshold:
                return max(step, 1)
        return None


def _known(mean: jax.Array, error: jax.Array, most: float) -> tuple[float, float]:
    value, spread = float(mean), float(error)
    return (value, spread) if np.isfinite(value) and spread <= most else (-math.inf, spread)


def _double(tree: Any) -> Any:
    floating = lambda leaf: np.issubdtype(leaf.dtype, np.floating)
    return jax.tree.map(
        lambda leaf: leaf.astype(np.float64) if floating(leaf) else leaf, jax.device_get(tree)
    )
