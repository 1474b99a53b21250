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

from vpng.objective import ELBO
from vpng.problem import AbstractProblem, Parameters
from vpng.random import written_out
from vpng.run.chunk import Chunk, capacity_for, many_steps
from vpng.run.history import History, Record
from vpng.run.identity import RunIdentity
from vpng.run.interrupted import stop_if_interrupted
from vpng.run.runner import AbstractSteps, Runner
from vpng.runtime.processors import num_processors
from vpng.runtime.programs import compiled_program
from vpng.training import AbstractData, Batches, StepInfo, TrainState, init_state, make_step

OptimizerOf = Callable[[PyTree], optax.GradientTransformation]
Measure = Callable[[Parameters], Array]

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
    problem: AbstractProblem,
    data: AbstractData,
    init: Callable[[PRNGKeyArray], Parameters],
    optimizer_of: OptimizerOf,
    grid: PyTree,
    *,
    num_seeds: int,
    num_steps: int,
    record_every: int,
    metrics: Mapping[str, Measure],
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
    lanes = LaneSteps(
        problem, data, optimizer_of, grid, num_seeds, num_steps, record_every, metrics, objective
    )
    kept: list[dict[str, np.ndarray]] = []

    def note(record: Record, state: Lanes) -> None:
        kept.append(state.values)
        part = max(record.iteration / num_steps, record.seconds / (max_seconds or np.inf))
        best = -float(np.nanmin(state.values["loss"], initial=np.inf))
        on_record(part, f"{record.iteration} steps, best ELBO per datum {best:.4g}")
        stop_if_interrupted()

    runner = Runner(lanes, record_every, max_seconds=max_seconds, callbacks=[note], progress=False)
    outcome = runner.run(lanes.start(init), num_steps)
    shape = (jax.tree.leaves(grid)[0].shape[0], num_seeds)
    curves = {
        name: np.stack([values[name] for values in kept], axis=-1).reshape(*shape, -1)
        for name in kept[0]
    }
    rejected = curves.pop("rejected").sum(axis=-1)
    params = lanes.joined([state.params for state in outcome.state.parts])
    params = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), params)
    history = outcome.history
    return Sweep(
        params,
        history.column("iteration").astype(int),
        history.column("seconds"),
        curves,
        rejected,
    )


class Lanes(NamedTuple):
    """Where all lanes are.

    Attributes:
        parts: the states of the lanes, a few at a time.
        values: of every lane at the last record, by name.
    """

    parts: list[TrainState]
    values: dict[str, np.ndarray]


class LaneSteps(AbstractSteps[Lanes]):
    """The steps of `fit` for every grid point and seed, in step."""

    def __init__(
        self,
        problem: AbstractProblem,
        data: AbstractData,
        optimizer_of: OptimizerOf,
        grid: PyTree,
        num_seeds: int,
        num_steps: int,
        length: int,
        metrics: Mapping[str, Measure],
        objective: ELBO,
    ) -> None:
        """The arguments are those of `sweep`; a chunk has at most `length` steps."""
        batches = Batches(len(data))
        num_points = jax.tree.leaves(grid)[0].shape[0]
        self._num_lanes = num_points * num_seeds
        seeds = jnp.tile(jnp.arange(num_seeds), num_points)
        points = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_seeds, axis=0), grid)
        self._lanes = _equal_parts((points, seeds), self._num_lanes)
        self._data, self._optimizer_of, self._batches = data, optimizer_of, batches
        self._num_steps = num_steps
        capacity = capacity_for(length)

        def advance(
            point: PyTree, state: TrainState, data: AbstractData, length: Array
        ) -> tuple[TrainState, StepInfo, dict[str, Array]]:
            step = make_step(problem, optimizer_of(point), objective, batches)
            state, infos = many_steps(step, capacity, state, data)(state, data, length)
            values = {name: metric(state.params) for name, metric in metrics.items()}
            return state, infos._replace(trouble=None), values

        self._several = jax.vmap(advance, in_axes=(0, 0, None, None))
        self._program: Callable[..., tuple] | None = None

    def start(self, init: Callable[[PRNGKeyArray], Parameters]) -> Lanes:
        """Before the first step; seed s is the same for every grid point."""

        def one(point: PyTree, seed: Array) -> TrainState:
            init_key, run_key = jax.random.split(jax.random.key(seed))
            optimizer, key = self._optimizer_of(point), written_out(run_key)
            return init_state(key, init(init_key), optimizer, self._batches)

        initialise = compiled_program(jax.vmap(one), *self._lanes[0], num_steps=1)
        return Lanes([initialise(*part) for part in self._lanes], {})

    def advance(self, state: Lanes, length: int) -> tuple[Lanes, Chunk]:
        count = np.int32(length)
        if self._program is None:
            arguments = (self._lanes[0][0], state.parts[0], self._data, count)
            self._program = compiled_program(self._several, *arguments, num_steps=self._num_steps)
        program = self._program
        one = lambda part, state: jax.block_until_ready(program(part[0], state, self._data, count))
        began = time.perf_counter()
        with ThreadPoolExecutor(num_processors()) as pool:
            parts, infos, values = zip(*pool.map(one, self._lanes, state.parts), strict=True)
        seconds = time.perf_counter() - began
        losses, rejected = (
            self.joined([getattr(info, name) for info in infos])[:, :length]
            for name in ("loss", "rejected")
        )
        taken = np.sum(~rejected, axis=1)
        total = np.sum(np.where(rejected, 0.0, losses), axis=1)
        mean_loss = np.where(taken > 0, total / np.maximum(taken, 1), np.nan)
        about = {**self.joined(values), "loss": mean_loss, "rejected": length - taken}
        none = np.zeros(length, bool)
        return Lanes(list(parts), about), Chunk(losses.mean(axis=0), none, none, "", seconds)

    def is_stuck(self, state: Lanes, record: Record, history: History, *, at_end: bool) -> bool:
        return False

    def last_good(self, state: Lanes) -> Lanes:
        return state

    def identity(self, state: Lanes) -> RunIdentity:
        arguments = (self._lanes[0][0], state.parts[0], self._data, np.int32(1))
        return RunIdentity.of(state.parts, {"lanes": self._lanes}, self._several, *arguments)

    def joined(self, parts: Sequence[PyTree]) -> PyTree:
        """All lanes of the parts in their order, without those that were repeated."""
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: self._num_lanes], *parts)


def _equal_parts(lanes: PyTree, num_lanes: int) -> list[PyTree]:
    """The lanes a few at a time, so that what a step touches stays in the caches.

    The last part repeats the last lane until it is as large as the others.
    """
    count = -(-num_lanes // LANES_AT_A_TIME)
    size = -(-num_lanes // count)
    rows = np.minimum(np.arange(count * size), num_lanes - 1).reshape(count, size)
    return [jax.tree.map(lambda leaf, some=some: leaf[some], lanes) for some in rows]


def area_under_curve(scores: Float[Array, " n"], labels: Float[Array, " n"]) -> Float[Array, ""]:
    """The area under the ROC curve: the chance that a positive outscores a negative, ties half.

    From the ranks of the positives, equal scores at the middle of theirs; NaN if a score is.
    """
    ranks = rankdata(scores, nan_policy="propagate")
    positives = jnp.sum(labels)
    below = jnp.sum(labels * ranks) - positives * (positives + 1) / 2
    return below / (positives * (scores.shape[0] - positives))
