"""Many runs of one method in one compiled program: every seed and every grid point is a lane."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.stats import rankdata
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.interrupts import stop_if_interrupted
from vpng.objective import ELBO
from vpng.problem import Parameters, Problem
from vpng.random import written_out
from vpng.threads import num_processors
from vpng.training import AbstractData, Batches, TrainState, init_state, make_step

OptimizerOf = Callable[[PyTree], optax.GradientTransformation]
Metric = Callable[[Parameters], Array]

LANES_AT_A_TIME = 32


class Sweep(NamedTuple):
    """The outcome for G grid points, S seeds and T records.

    Attributes:
        params: final parameters, leaves of shape [G, S, ...].
        iterations: steps done at each record, [T].
        seconds: time at each record for all lanes together, without compilation, [T].
        curves: metrics by name, each [G, S, T]; `loss` is the mean since the record before, NaN if
            every step was dropped.
        rejected: steps dropped in each lane, [G, S].
    """

    params: Parameters
    iterations: np.ndarray
    seconds: np.ndarray
    curves: dict[str, np.ndarray]
    rejected: np.ndarray


def sweep(
    problem: Problem,
    data: AbstractData,
    init: Callable[[PRNGKeyArray], Parameters],
    optimizer_of: OptimizerOf,
    grid: PyTree,
    *,
    num_seeds: int,
    num_steps: int,
    record_every: int,
    metrics: Mapping[str, Metric],
    objective: ELBO,
    max_seconds: float | None = None,
    on_record: Callable[[float, str], None] = lambda fraction, text: None,
) -> Sweep:
    """Run every grid point with every seed, all in step.

    The lanes run in equal parts, one program for all, and as many parts at once as there are
    processors. How they are divided does not depend on that number.

    Args:
        problem: what is fitted.
        data: all of it is used in every step.
        init: a key -> the first parameters; seed s is the same for every grid point.
        optimizer_of: a grid point -> its optimizer; may be traced.
        grid: hyper-parameters, leaves of shape [G].
        num_seeds: S.
        num_steps: steps of every lane.
        record_every: steps between records.
        metrics: functions of the parameters.
        objective: the loss.
        max_seconds: stop at the first record after so much time.
        on_record: called with the part that is done and the ELBO of the best lane.
    """
    batches = Batches(len(data))

    def start(point: PyTree, seed: Array) -> TrainState:
        init_key, run_key = jax.random.split(jax.random.key(seed))
        return init_state(written_out(run_key), init(init_key), optimizer_of(point), batches)

    def advance(
        point: PyTree, state: TrainState, data: AbstractData, length: Array
    ) -> tuple[TrainState, dict]:
        step = make_step(problem, optimizer_of(point), objective, batches)

        def body(_: Array, carry: tuple[TrainState, Array, Array]) -> tuple:
            state, total, rejected = carry
            state, info = step(state, data)
            total = total + jnp.where(info.rejected, 0.0, info.loss)
            return state, total, rejected + info.rejected

        start = (state, jnp.zeros(()), jnp.zeros((), jnp.int32))
        state, total, rejected = jax.lax.fori_loop(0, length, body, start)
        values = {name: metric(state.params) for name, metric in metrics.items()}
        taken = length - rejected
        mean_loss = jnp.where(taken > 0, total / jnp.maximum(taken, 1), jnp.nan)
        return state, {**values, "loss": mean_loss, "rejected": rejected}

    num_points = jax.tree.leaves(grid)[0].shape[0]
    num_lanes = num_points * num_seeds
    seeds = jnp.tile(jnp.arange(num_seeds), num_points)
    lanes = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_seeds, axis=0), grid)
    parts = _equal_parts((lanes, seeds), num_lanes)
    initialise = jax.jit(jax.vmap(start))
    states = [initialise(*part) for part in parts]
    several = jax.vmap(advance, in_axes=(0, 0, None, None))
    whole = np.int32(record_every)
    compiled = jax.jit(several).lower(parts[0][0], states[0], data, whole).compile()

    def advance_all(states: list[TrainState], length: np.int32) -> tuple[list[TrainState], dict]:
        one = lambda part, state: jax.block_until_ready(compiled(part[0], state, data, length))
        with ThreadPoolExecutor(num_processors()) as pool:
            moved, values = zip(*pool.map(one, parts, states), strict=True)
        return list(moved), _joined(values, num_lanes)

    seconds, records, clock, iterations = 0.0, [], [], []
    while not iterations or iterations[-1] < num_steps:
        before = iterations[-1] if iterations else 0
        done = min(before + record_every, num_steps)
        began = time.perf_counter()
        length = np.int32(done - before)
        states, values = advance_all(states, length)
        seconds += time.perf_counter() - began
        records.append(values)
        clock.append(seconds)
        iterations.append(done)
        part = max(done / num_steps, seconds / (max_seconds or np.inf))
        best = -float(np.nanmin(records[-1]["loss"], initial=np.inf))
        on_record(part, f"{done} steps, best ELBO per datum {best:.4g}")
        stop_if_interrupted()
        if max_seconds is not None and seconds >= max_seconds:
            break
    shape = (num_points, num_seeds)
    curves = {
        name: np.stack([record[name] for record in records], axis=-1).reshape(*shape, -1)
        for name in records[0]
    }
    rejected = curves.pop("rejected").sum(axis=-1)
    params = _joined([state.params for state in states], num_lanes)
    params = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), params)
    return Sweep(params, np.asarray(iterations), np.asarray(clock), curves, rejected)


def _equal_parts(lanes: PyTree, num_lanes: int) -> list[PyTree]:
    """The lanes a few at a time, so that what a step touches stays in the caches.

    The last part repeats the last lane until it is as large as the others.
    """
    count = -(-num_lanes // LANES_AT_A_TIME)
    size = -(-num_lanes // count)
    rows = np.minimum(np.arange(count * size), num_lanes - 1).reshape(count, size)
    return [jax.tree.map(lambda leaf, some=some: leaf[some], lanes) for some in rows]


def _joined(parts: Sequence[PyTree], num_lanes: int) -> PyTree:
    """All lanes of the parts in their order, without those that were repeated."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_lanes], *parts)


def area_under_curve(scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, ""]:
    """The area under the ROC curve: the chance that a positive outscores a negative, ties half.

    From the ranks of the positives, equal scores at the middle of theirs; NaN if a score is.
    """
    ranks = rankdata(scores, nan_policy="propagate")
    positives = jnp.sum(labels)
    below = jnp.sum(labels * ranks) - positives * (positives + 1) / 2
    return below / (positives * (scores.shape[0] - positives))
