"""A loss that explodes and stays finite: seen, confirmed and taken back.

Every step looks at its loss in two stages.

*Alarm.* Let m and s be the mean and the standard deviation of the losses so far, and
e = max(0, (loss - m) / s)^2. While the loss is no worse than before, E[e] <= 1 whatever the noise
is, if it has a variance. So the evidence S <- max(1, S) e is an e-detector (Shin, Ramdas and
Rinaldo, 2023): the mean number of steps until S first reaches 1 / a is at least 1 / a, and a is the
rate of false alarms. With a = 1e-4 one loss 100 s above m is an alarm, and so are two in a row with
10 s, or four with 3.2 s.

*Confirmation.* Only then the loss of the last good point is evaluated with the same data and the
same random numbers. A hard batch is hard at both points, and so is a loss that rises by itself, as
with a KL weight. The alarm stands if the good point's loss is nearer to m than to the alarming one;
this can only lower the rate.

The rate is proved for known m and s. They are estimated from some `memory` losses, from which no
rule can promise less than 1 / (memory + 1) for every distribution (Saw, Yang and Mo, 1984); the
tests measure it: below a for normal and log-normal noise and for Student's with 2.1 degrees of
freedom, even if the noise at the two points is independent.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.numerics.moving_average import mixed
from vpng.numerics.trees import where
from vpng.numerics.trust_region import AFTER_REJECTION

Point = TypeVar("Point")

RECOVERY = 10
"""Memories until one shortening is undone: a rate that is too large costs a tenth of the steps."""


class ExplosionState(NamedTuple, Generic[Point]):
    """What is known of a run's losses.

    Attributes:
        mean: of the losses, per datum.
        variance: of the losses.
        count: losses seen.
        evidence: S.
        share: the part of every step that is taken.
        returns: how often the run went back.
        good: the last good point.
        age: steps since it was.
    """

    mean: Float[Array, ""]
    variance: Float[Array, ""]
    count: Int[Array, ""]
    evidence: Float[Array, ""]
    share: Float[Array, ""]
    returns: Int[Array, ""]
    good: Point
    age: Int[Array, ""]


class Explosions(eqx.Module):
    """When a finite loss means that the run has exploded.

    Attributes:
        false_alarms: most false alarms for each step, in the mean; see the module.
        memory: steps over which mean and variance are taken, and most between two good points. A
            point is a good one if the loss seen there was no evidence at all.
    """

    false_alarms: float = eqx.field(default=1e-4, static=True)
    memory: int = eqx.field(default=100, static=True)

    def __check_init__(self) -> None:
        finite_scalar("false_alarms", self.false_alarms, minimum=0.0, strict=True)
        if self.false_alarms >= 1.0:
            raise expected("false_alarms", "a rate below 1", self.false_alarms)
        positive_integer("memory", self.memory)

    def init(self, point: Point) -> ExplosionState[Point]:
        """Before the first loss."""
        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        return ExplosionState(zero, zero, none, zero, jnp.ones(()), none, point, none)

    def look(
        self,
        state: ExplosionState[Point],
        loss: Float[Array, ""],
        loss_at: Callable[[Point], Float[Array, ""]],
        num_data: int | float,
    ) -> tuple[ExplosionState[Point], Bool[Array, ""]]:
        """What is known after a loss, and whether the run has exploded.

        Args:
            state: what was known.
            loss: per datum, where the run is; one that is not finite says nothing.
            loss_at: a point -> its loss with the same data and random numbers.
            num_data: a rise by less than a nat over all data is never far.
        """
        loss = loss.astype(state.mean.dtype)
        rounding = jnp.finfo(loss.dtype).eps * jnp.abs(state.mean)
        scale = jnp.sqrt(state.variance + (1.0 / num_data + rounding) ** 2)
        rise = loss - state.mean
        usable = jnp.isfinite(loss) & (state.count >= -(-self.memory // RECOVERY))
        factor = jnp.where(usable, jnp.maximum(rise / scale, 0.0) ** 2, 0.0)
        evidence = jnp.maximum(1.0, state.evidence) * factor
        alarm = evidence >= 1.0 / self.false_alarms
        exploded = jax.lax.cond(
            alarm,
            lambda: loss_at(state.good).astype(loss.dtype) < state.mean + rise / 2,
            lambda: jnp.zeros((), bool),
        )
        weight = jnp.maximum(1.0 / (state.count + 1), 1.0 / self.memory)
        (mean, variance), entered = mixed(
            (state.mean, state.variance),
            (loss, (1 - weight) * rise**2),
            weight,
            usable=~exploded,
        )
        recovered = jnp.minimum(
            1.0, state.share * AFTER_REJECTION ** (1 / (RECOVERY * self.memory))
        )
        seen = state._replace(
            mean=mean,
            variance=variance,
            count=state.count + (entered & ~exploded),
            evidence=jnp.where(alarm, 0.0, evidence),
            share=jnp.where(exploded, state.share / AFTER_REJECTION, recovered),
            returns=state.returns + exploded,
            age=jnp.where(exploded, 0, state.age + 1),
        )
        return seen, exploded

    def kept(
        self, state: ExplosionState[Point], here: Point, usable: Bool[Array, ""]
    ) -> ExplosionState[Point]:
        """With `here`, whose loss was looked at last, as the good point if one is due.

        Args:
            state: after `look`, which did not find an explosion.
            here: where the loss was taken.
            usable: whether loss and gradient were finite there.
        """
        # Early in a run a point ages sooner: half of all steps so far are a long time.
        old = state.age >= jnp.clip(state.count // 2, 1, self.memory)
        due = usable & old & (state.evidence < 1.0)
        good = jax.lax.cond(due, lambda: here, lambda: state.good)
        return state._replace(good=good, age=jnp.where(due, 0, state.age))


def went_back(
    exploded: Bool[Array, ""], state: ExplosionState[Point], raised: Point
) -> ExplosionState[Point]:
    """With the good point as it is after a return: more damping, as after any rejection."""
    return state._replace(good=where(exploded, raised, state.good))
