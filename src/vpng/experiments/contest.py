"""A race of methods: every grid point for a while, then the best of each method, seed by seed.

The choice reads the training metric alone. Every training run is a run of the session, so that a
contest which is stopped goes on where it was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from vpng.distributed import Layout
from vpng.experiments.journal import pack, unpack
from vpng.experiments.methods import Method
from vpng.experiments.results import Run, mean_and_std, params_sha256
from vpng.experiments.session import Session, Tell
from vpng.interrupts import stop_if_interrupted
from vpng.objective import ELBO
from vpng.problem import Parameters, Problem
from vpng.training import AbstractData, Blocks, Loop, Record, StopReason
from vpng.training.blocks import blocks_for
from vpng.training.loop import Metric


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
        budget: seconds of each, without compilation and evaluation; None for no limit.
        iterations: most steps of each.
        pilot: part of the budget for which every point is tried before the choice; 1 runs all of
            them to the end.
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
    def finals(self) -> range:
        """The seeds that run after the choice; a trial of the whole budget has done the first."""
        return range(1 if self.tried and self.pilot == 1.0 else 0, self.seeds)

    def limits(self, part: float) -> tuple[int, float | None]:
        """Steps and seconds for `part` of the budget: the time if there is one, else the steps."""
        if self.budget is None:
            return max(1, round(part * self.iterations)), None
        return self.iterations, part * self.budget


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
        self, point: GridPoint, seed: int, steps: int, seconds: float | None, tell: Tell
    ) -> Trained: ...


@dataclass(frozen=True)
class Contest:
    """What came out.

    Attributes:
        runs: of the chosen points, every method and seed.
        grid: per method, every point and how it scored.
        chosen: per method, the point.
        trained: per method, the chosen runs by seed.
        fallen: per method, points with a good trial whose final runs did not all stay finite.
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

    A point whose final runs do not all stay finite gives way to the next best one; if none does,
    the best one of the trial stays.
    """
    for_method = len(rules.tried) * rules.pilot + len(rules.finals)
    count = len(rules.tried) + len(rules.finals)
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
            def compute(tell: Tell) -> dict[str, Any]:
                if not compiled:
                    tell(0.0, "compiling")
                    compiled.append(trainer(method))
                return compiled[0](point, seed, *rules.limits(part), tell).document()

            stage = "pilot" if part < 1.0 else "final"
            name = f"{method}-{point.rule}-{point.learning_rate:g}-{seed}-{stage}"
            title = f"{method.label}, {point.label}, seed {seed}"
            return Trained.from_document(session.run(name, title, compute, cost=part))

        tried = [run(point, 0, rules.pilot) for point in rules.tried]
        scores = [_score(result, rules.score) for result in tried]
        grid[method.value] = [
            {
                "learning_rate": candidate.learning_rate,
                "optimizer": candidate.rule,
                rules.score: score,
                "iterations": result.last("iteration"),
                "seconds": result.last("seconds"),
                "stop_reason": result.stop_reason,
            }
            for candidate, score, result in zip(rules.tried, scores, tried, strict=True)
        ]
        first, *others = sorted(range(len(tried)), key=lambda place: -scores[place]) or [0]
        finals: dict[int, list[Trained]] = {}
        for place in [first, *(place for place in others if scores[place] > -np.inf)]:
            if finals:
                session.plan(len(rules.finals))
            finals[place] = tried[place : place + rules.finals.start]
            finals[place] += [run(rules.points[place], seed, 1.0) for seed in rules.finals]
            if _stay_finite(finals[place], rules.score):
                break
        fell = [place for place in finals if not _stay_finite(finals[place], rules.score)]
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


def _score(result: Trained, metric: str) -> float:
    """The final value of the metric; of a run that did not stay finite the lowest there is."""
    value = result.last(metric)
    stayed = result.stop_reason != StopReason.NOT_FINITE.value
    return value if stayed and np.isfinite(value) else -np.inf


def _stay_finite(results: Sequence[Trained], metric: str) -> bool:
    return all(_score(result, metric) > -np.inf for result in results)


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
            "iterations": int(np.mean([result.last("iteration") for result in finished])),
            "seconds_per_iteration": float(
                np.mean([result.last("seconds") / result.last("iteration") for result in finished])
            ),
            "best_learning_rate": point.learning_rate,
            "optimizer": point.rule,
        }
    return summary


def loop_trainer(
    problem: Problem,
    parameters: Parameters,
    data: PyTree | AbstractData,
    optimizer_of: Callable[[Array, Array], optax.GradientTransformation],
    init: Callable[[Array], Parameters],
    *,
    objective: ELBO,
    batch_size: int | None,
    record_every: int,
    metrics: Mapping[str, Metric],
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
        point: GridPoint, seed: int, steps: int, seconds: float | None, tell: Tell
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
