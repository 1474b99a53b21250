"""A race of methods: successive halving over the grid, then the best point, seed by seed.

The choice reads the training metric alone. Every training run is a run of the session, so that a
contest which is stopped goes on where it was.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from vpng.distributed import Layout
from vpng.objective import ELBO
from vpng.paper.experiments.journal import pack, unpack
from vpng.paper.experiments.results import Run, mean_and_std, params_sha256
from vpng.paper.experiments.session import ProgressReport, Session
from vpng.plot.methods import Method
from vpng.problem import AbstractProblem, Parameters
from vpng.run.interrupted import stop_if_interrupted
from vpng.training import AbstractData, Blocks, Loop, Record, StopReason
from vpng.training.blocks import blocks_for
from vpng.training.loop import Measure


@dataclass(frozen=True)
class GridPoint:
    """One choice of hyper-parameters.

    Attributes:
        learning_rate: the step size.
        rule: what is put on top of the direction.
    """

    learning_rate: float
    rule: str

    @property
    def label(self) -> str:
        """As shown in tables."""
        return f"{self.rule}, rate {self.learning_rate:g}"


@dataclass(frozen=True)
class Rules:
    """The protocol.

    Attributes:
        methods: who takes part.
        points: the grid, the same for every method.
        seeds: runs of the chosen point.
        budget: seconds of each, without compilation and evaluation; None if the steps decide,
            whatever the speed of the machine.
        iterations: most steps of each.
        pilot: part of the budget for which every point is tried; the better half goes on for
            twice as long, until one is left. 1 runs all of them to the end.
        score: the metric that chooses; higher is better.
    """

    methods: Sequence[Method]
    points: Sequence[GridPoint]
    seeds: int
    budget: float | None
    iterations: int
    pilot: float = 1.0
    score: str = "train_elbo"

    @property
    def tried(self) -> Sequence[GridPoint]:
        """The points among which there is a choice."""
        return self.points if len(self.points) > 1 else ()

    @property
    def rounds(self) -> list[tuple[int, float]]:
        """The trials: how many points for which part of the budget."""
        rounds, count, part = [], len(self.tried), self.pilot
        while count > 1 and (part < 1.0 or not rounds):
            rounds.append((count, part))
            count, part = (count + 1) // 2, 2.0 * part
        return rounds

    @property
    def finals(self) -> range:
        """The seeds that run after the choice; a trial of the whole budget has done the first."""
        return range(1 if self.tried and self.pilot == 1.0 else 0, self.seeds)

    def limits(self, part: float) -> tuple[int, float | None]:
        """Steps and seconds for `part` of the budget; whichever is used up first ends a run."""
        steps = max(1, round(part * self.iterations))
        return steps, None if self.budget is None else part * self.budget


@dataclass(frozen=True)
class Trained:
    """A finished training run.

    Attributes:
        curves: the records by column.
        params_sha256: of the final parameters.
        stop_reason: why it ended.
        pictures: arrays in [0, 1] for the figures.
    """

    curves: dict[str, list[float]]
    params_sha256: str
    stop_reason: str
    pictures: dict[str, np.ndarray] = field(default_factory=dict)

    def last(self, name: str) -> float:
        """The final value of a curve."""
        return self.curves[name][-1]

    def best(self, name: str) -> float:
        """The highest value of a curve; of one without any number NaN."""
        return max((value for value in self.curves[name] if value == value), default=float("nan"))

    def document(self) -> dict[str, Any]:
        """In the terms of JSON."""
        packed = {name: pack(array) for name, array in self.pictures.items()}
        return {**vars(self), "pictures": packed}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Trained":
        """What `document` wrote; missing numbers are NaN."""
        curves = {
            name: [float("nan") if value is None else value for value in values]
            for name, values in document["curves"].items()
        }
        pictures = {name: unpack(packed) for name, packed in document["pictures"].items()}
        return cls(curves, document["params_sha256"], document["stop_reason"], pictures)


class Train(Protocol):
    """Trains one method: a point of the grid and a seed, for so many steps and seconds."""

    def __call__(
        self, point: GridPoint, seed: int, steps: int, seconds: float | None, tell: ProgressReport
    ) -> Trained: ...


@dataclass(frozen=True)
class Contest:
    """What came out.

    Attributes:
        runs: of the chosen points, every method and seed.
        grid: per method, every point and how it scored.
        chosen: per method, the point.
        trained: per method, the chosen runs by seed.
        fallen: per method, points with a good trial of which a final run diverged.
    """

    runs: list[Run]
    grid: dict[str, list[dict[str, Any]]]
    chosen: dict[str, GridPoint]
    trained: dict[str, list[Trained]]
    fallen: dict[str, list[GridPoint]]

    @property
    def findings(self) -> list[str]:
        """What the report has to say of the choice, in sentences."""
        sentences = []
        for name, points in self.fallen.items():
            listed = " and ".join(point.label for point in points)
            if self.chosen[name] in points:
                sentences.append(f"{Method(name).label} diverged, with {listed}.")
            elif points:
                sentences.append(
                    f"{Method(name).label} diverged after the trial with {listed}; its curves are "
                    f"those of the next best point, {self.chosen[name].label}."
                )
        return sentences


def contest(session: Session, rules: Rules, trainer: Callable[[Method], Train]) -> Contest:
    """Hold the race; `trainer` compiles a method and is called only if something is left to run.

    A point of which a final run diverges gives way to the next best one; if all do, the best one
    of the trials stays.
    """
    for_method = sum(count * part for count, part in rules.rounds) + len(rules.finals)
    count = sum(count for count, _ in rules.rounds) + len(rules.finals)
    session.plan(len(rules.methods) * count, len(rules.methods) * for_method)

    runs: list[Run] = []
    grid: dict[str, list[dict[str, Any]]] = {}
    chosen: dict[str, GridPoint] = {}
    trained: dict[str, list[Trained]] = {}
    fallen: dict[str, list[GridPoint]] = {}
    for method in rules.methods:
        compiled: list[Train] = []

        def run(
            point: GridPoint,
            seed: int,
            part: float,
            method: Method = method,
            compiled: list[Train] = compiled,
        ) -> Trained:
            def compute(tell: ProgressReport) -> dict[str, Any]:
                if not compiled:
                    tell(0.0, "compiling")
                    compiled.append(trainer(method))
                return compiled[0](point, seed, *rules.limits(part), tell).document()

            stage = f"pilot-{part:g}" if part < 1.0 else "final"
            name = f"{method}-{point.rule}-{point.learning_rate:g}-{seed}-{stage}"
            title = f"{method.label}, {point.label}, seed {seed}"
            return Trained.from_document(session.run(name, title, compute, cost=part))

        ranked, tried = _halved(rules, run)
        scores = {place: _score(result, rules.score) for place, result in tried.items()}
        grid[method.value] = [
            {
                "learning_rate": rules.points[place].learning_rate,
                "optimizer": rules.points[place].rule,
                rules.score: scores[place],
                "iterations": tried[place].last("iteration"),
                "seconds": tried[place].last("seconds"),
                "stop_reason": tried[place].stop_reason,
            }
            for place in sorted(tried)
        ]
        first, *others = ranked or [0]
        finals: dict[int, list[Trained]] = {}
        for place in [first, *(place for place in others if scores[place] > -np.inf)]:
            if finals:
                session.plan(len(rules.finals))
            finals[place] = [tried[place]] if rules.finals.start else []
            finals[place] += [run(rules.points[place], seed, 1.0) for seed in rules.finals]
            if not _any_diverged(finals[place], rules.score):
                break
        fell = [place for place in finals if _any_diverged(finals[place], rules.score)]
        best = next((place for place in finals if place not in fell), first)
        point, finished = rules.points[best], finals[best]
        fallen[method.value] = [rules.points[place] for place in fell]
        chosen[method.value], trained[method.value] = point, finished
        runs += [_run(method, seed, point, result) for seed, result in enumerate(finished)]
    return Contest(runs, grid, chosen, trained, fallen)


def _run(method: Method, seed: int, point: GridPoint, result: Trained) -> Run:
    return Run(
        method=method.value,
        seed=seed,
        learning_rate=point.learning_rate,
        params_sha256=result.params_sha256,
        curves=result.curves,
        settings={"optimizer": point.rule, "stop_reason": result.stop_reason},
    )


def _halved(
    rules: Rules, run: Callable[[GridPoint, int, float], Trained]
) -> tuple[list[int], dict[int, Trained]]:
    """The places of all points, best first, and the longest trial of each.

    A point that went further ranks before one that did not.
    """
    ranked = list(range(len(rules.tried)))
    tried: dict[int, Trained] = {}
    for count, part in rules.rounds:
        going_on = ranked[:count]
        tried |= {place: run(rules.points[place], 0, part) for place in going_on}
        going_on.sort(key=lambda place: -_score(tried[place], rules.score))
        ranked = going_on + ranked[count:]
    return ranked, tried


def _score(result: Trained, metric: str) -> float:
    """The final value of the metric; of a run that diverged the lowest there is."""
    return -np.inf if _any_diverged([result], metric) else result.last(metric)


def _any_diverged(results: Sequence[Trained], metric: str) -> bool:
    return any(
        result.stop_reason == StopReason.NOT_FINITE.value or ends_far_below(result.curves[metric])
        for result in results
    )


FLUCTUATIONS = 10.0
"""Of Gaussian noise: the best among thousands lies some four deviations above the mean, a last one
at worst as far below; the median difference between neighbours is 0.95 of a deviation."""

SHARE_OF_GAIN = 0.01
"""So much of what a run had gained it may lose again, however smooth its curve."""


def ends_far_below(curve: Sequence[float]) -> bool:
    """Whether a curve ends far below its own best: by more than its noise and a part of its gain.

    The noise is the median difference between neighbours in the second half of the curve; the best
    is that of medians of three neighbours, so that one lucky record does not count.
    """
    values = np.asarray(curve, float)
    if not np.isfinite(values[-1]):
        return True
    middle = [np.nanmedian(values[i : i + 3]) for i in range(max(len(values) - 2, 1))]
    best = np.nanmax(middle)
    noise = np.nanmedian(np.abs(np.diff(values[len(values) // 2 :]))) if len(values) > 3 else 0.0
    gain = best - values[np.isfinite(values)][0]
    return bool(best - values[-1] > max(FLUCTUATIONS * noise, SHARE_OF_GAIN * gain, 0.0))


def _own_rows(layout: Layout, data: PyTree, batch_size: int | None) -> AbstractData:
    """The rows of `data` that belong to this process's devices."""
    count = len(jax.tree.leaves(data)[0])
    blocks = blocks_for(layout, count if batch_size is None else batch_size)
    host = jax.tree.map(np.asarray, data)
    read = lambda rows: jax.tree.map(lambda leaf: leaf[rows], host)
    return Blocks.of_process(layout, read, count, blocks)


def summarise(outcome: Contest, metrics: Sequence[str]) -> dict[str, Any]:
    """Per method: the mean over seeds of the final metrics, the pace, and what was chosen."""
    summary = {}
    for name, finished in outcome.trained.items():
        point = outcome.chosen[name]
        summary[name] = {
            **{m: mean_and_std([result.last(m) for result in finished])["mean"] for m in metrics},
            **{f"best_{m}": mean_and_std([r.best(m) for r in finished])["mean"] for m in metrics},
            "iterations": int(np.mean([result.last("iteration") for result in finished])),
            "seconds_per_iteration": float(
                np.mean([result.last("seconds") / result.last("iteration") for result in finished])
            ),
            "best_learning_rate": point.learning_rate,
            "optimizer": point.rule,
        }
    return summary


def loop_trainer(
    problem: AbstractProblem,
    parameters: Parameters,
    data: PyTree | AbstractData,
    optimizer_of: Callable[[Array, Array], optax.GradientTransformation],
    init: Callable[[Array], Parameters],
    *,
    objective: ELBO,
    batch_size: int | None,
    record_every: int,
    metrics: Mapping[str, Measure],
    show: str,
    pictures: Callable[[Parameters], dict[str, np.ndarray]] = lambda _: {},
    layout: Layout | None = None,
) -> Train:
    """One compiled program for all grid points and seeds of a method.

    Args:
        problem: what is fitted.
        parameters: for shapes.
        data: what it is fitted to.
        optimizer_of: a step size and a traced choice of RMSProp over Adam -> the optimizer.
        init: a key -> the first parameters.
        objective: the loss.
        batch_size: None for all data in every step.
        record_every: steps between records.
        metrics: evaluated at every record.
        show: the metric in the progress display.
        pictures: the final parameters of the first seed -> arrays for the figures.
        layout: the mesh to run on, each process with its own rows; None for one device.
    """
    if layout is not None:
        data = _own_rows(layout, data, batch_size)
    loop = Loop(
        problem,
        parameters,
        data,
        optax.inject_hyperparams(optimizer_of)(learning_rate=1.0, rmsprop=0.0),
        objective=objective,
        batch_size=batch_size,
        record_every=record_every,
        metrics=metrics,
        mesh=layout,
    )

    def train(
        point: GridPoint, seed: int, steps: int, seconds: float | None, tell: ProgressReport
    ) -> Trained:
        init_key, run_key = jax.random.split(jax.random.key(seed))
        state = loop.init(init(init_key), run_key)
        chosen = state.optimizer.hyperparams
        chosen["learning_rate"] = jnp.full_like(chosen["learning_rate"], point.learning_rate)
        chosen["rmsprop"] = jnp.full_like(chosen["rmsprop"], float(point.rule == "rmsprop"))

        def on_record(record: Record, _: Any) -> None:
            part = record.iteration / steps
            if seconds is not None:
                part = max(part, record.seconds / seconds)
            value = record.metrics[show]
            name = show.replace("_elbo", " ELBO")
            tell(part, f"{record.iteration} steps, {name} {value:.4g}")

        with warnings.catch_warnings():
            # A grid has rates that are too large; each run's history counts what it dropped.
            warnings.filterwarnings("ignore", "vpng: .* steps", RuntimeWarning)
            result = loop.run(
                state,
                steps,
                max_seconds=seconds,
                callbacks=[on_record],
                progress=False,
                checkpoints=tell.checkpoints,
                resume=tell.checkpoints is not None,
            )
        if result.stop_reason is StopReason.INTERRUPTED:
            stop_if_interrupted()
        return Trained(
            result.history.to_dict(),
            params_sha256(result.params),
            result.stop_reason.value,
            pictures(result.params) if seed == 0 else {},
        )

    return train
