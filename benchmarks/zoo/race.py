"""One case: every contender from the same starts, then the clock."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from zoo.case import Case
from zoo.clock import seconds_per_step
from zoo.curves import Curve, Evaluator, checkpoints
from zoo.programs import Adam, Program, ours

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PARTICLES = (10, 1)
"""Of Adam, besides as many as vpng takes by default."""
TOLERANCE = 1.0
"""Nats below the best ELBO at which a run has arrived."""


@dataclass(frozen=True)
class Budget:
    """How long everybody may run.

    Attributes:
        vpng_steps: steps of vpng.
        adam_steps: most steps of Adam.
        adam_seconds: most seconds of the processor for the five step sizes of Adam together.
        seeds: number of starts.
        rounds: turns of every contender on the clock.
    """

    vpng_steps: int = 4000
    adam_steps: int = 20_000
    adam_seconds: float = 10.0
    seeds: int = 5
    rounds: int = 7


@dataclass(frozen=True)
class Arrival:
    """When one setting arrived, as the median over seeds.

    Attributes:
        setting: name of the setting.
        steps: to the target; a run that never arrived counts with all its steps.
        seconds: that many steps take.
        censored: number of runs that never arrived.
        levelled: whether one of those ended since others of its kind had arrived.
        final: the last ELBO.
    """

    setting: str
    steps: float
    seconds: float
    censored: int
    levelled: bool
    final: float


def compete(case: Case, budget: Budget, say: Callable[[str], None]) -> dict[str, Any]:
    """Race one case; the entry of the report."""
    vpng = ours(case)
    own = vpng.svi.loss.num_particles
    adams = [Adam(case, count) for count in dict.fromkeys((own, *PARTICLES))]
    evaluator = Evaluator(case, vpng.svi.guide)
    seeds = range(budget.seeds)
    finite = True
    curves: dict[str, list[Curve]] = {"vpng": []}
    for seed in seeds:
        curve, fine = vpng_run(vpng, evaluator, seed, budget.vpng_steps)
        finite = finite and fine
        curves["vpng"].append(curve)
        say(f"  vpng, seed {seed}: {curve.final[0]:.2f}" + ("" if fine else ", NOT FINITE"))
        for adam in adams:
            lanes = _adam_runs(adam, evaluator, seed, budget, goal=curve.best)
            for name, lane in lanes.items():
                curves.setdefault(name, []).append(lane)
            last = next(iter(lanes.values())).steps
            ends = ", ".join(f"{lane.look(len(last) - 1):.2f}" for lane in lanes.values())
            say(f"  Adam, {adam.num_particles} particles, {last[-1]} steps: {ends}")

    best = [max(runs[seed].best for runs in curves.values()) for seed in seeds]
    targets = [value - TOLERANCE for value in best]
    reached = {
        name: [run.first_within(target) for run, target in zip(runs, targets, strict=True)]
        for name, runs in curves.items()
    }
    known = [step for step in reached["vpng"] if step is not None]
    horizon = int(min(max(statistics.median(known) if known else 300, 20), 300))
    programs = {"vpng": vpng} | {_particles(adam.num_particles): adam for adam in adams}
    per_step = seconds_per_step(programs, horizon, budget.rounds)
    arrivals = [
        _arrival(name, curves[name], reached[name], per_step[_kind(name)]) for name in curves
    ]
    return _entry(case, arrivals, per_step, best, curves["vpng"], finite, budget, own)


def vpng_run(program: Program, evaluator: Evaluator, seed: int, limit: int) -> tuple[Curve, bool]:
    """The run, and whether every loss and every parameter in it was finite."""
    curve, state, fine = Curve(evaluator), program.start(seed), True
    curve.append(0, jax.device_get(program.parameters(state)))
    for before, after in pairwise(checkpoints(limit)):
        state, finite = program.advance(state, after - before)
        values = jax.device_get(program.parameters(state))
        fine = fine and bool(finite)
        fine = fine and all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(values))
        curve.append(after, values)
    return curve, fine


def _adam_runs(
    program: Adam, evaluator: Evaluator, seed: int, budget: Budget, *, goal: float
) -> dict[str, Curve]:
    """All step sizes, until time or steps are up, or they are as good as `goal` and level."""
    kind = _particles(program.num_particles)
    curves = {f"Adam {rate:g}, {kind}": Curve(evaluator) for rate in RATES}
    rates, start = jnp.asarray(RATES), program.start(seed)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(RATES)), start)
    jax.block_until_ready(program.advance_lanes(states, rates, 1))
    spent, before, last_check = 0.0, 0, 0
    for after in checkpoints(budget.adam_steps):
        began = time.process_time()
        states = jax.block_until_ready(program.advance_lanes(states, rates, after - before))
        spent += time.process_time() - began
        before = after
        values = jax.device_get(program.parameters_of_lanes(states))
        for lane, curve in enumerate(curves.values()):
            curve.append(after, jax.tree.map(lambda leaf, lane=lane: leaf[lane], values))
        if spent > budget.adam_seconds:
            break
        if after >= 2 * max(last_check, 500):
            last_check = after
            if _level(list(curves.values()), after, goal):
                for curve in curves.values():
                    curve.levelled = True
                break
    return curves


def _level(curves: list[Curve], step: int, goal: float) -> bool:
    steps = curves[0].steps
    half = max(index for index, at in enumerate(steps) if at <= step // 2)
    now = max(curve.look(len(steps) - 1) for curve in curves)
    then = max(curve.look(half) for curve in curves)
    return now >= goal - 0.25 and now - then < 0.25


def _particles(count: int) -> str:
    return f"{count} particles"


def _kind(name: str) -> str:
    return name.split(", ")[-1]


def _arrival(name: str, runs: list[Curve], reached: list[int | None], per_step: float) -> Arrival:
    steps = statistics.median(
        run.steps[-1] if step is None else step for run, step in zip(runs, reached, strict=True)
    )
    missing = [run for run, step in zip(runs, reached, strict=True) if step is None]
    return Arrival(
        name,
        steps,
        steps * per_step,
        len(missing),
        any(run.levelled for run in missing),
        statistics.median(run.final[0] for run in runs),
    )


def _entry(
    case: Case,
    arrivals: list[Arrival],
    per_step: dict[str, float],
    best: list[float],
    runs: list[Curve],
    finite: bool,
    budget: Budget,
    num_particles: int,
) -> dict[str, Any]:
    vpng, *adam = arrivals
    by_steps, by_seconds = _fastest(adam)
    alike = _particles(num_particles)
    same = _fastest([arrival for arrival in adam if _kind(arrival.setting) == alike])
    highest = max(adam, key=lambda arrival: arrival.final)
    return {
        "model": case.model,
        "guide": case.guide,
        "best_elbo": best,
        "elbo_standard_error": max(run.final[1] for run in runs),
        "elbo_per_datum": case.elbo_divisor > 1,
        "vpng": {
            "num_particles": num_particles,
            "steps": vpng.steps,
            "seconds": vpng.seconds,
            "microseconds_per_step": 1e6 * per_step["vpng"],
            "final_elbo": vpng.final,
            "arrived": f"{budget.seeds - vpng.censored} of {budget.seeds}",
            "censored": vpng.censored > 0,
            "finite": finite,
        },
        "adam": {
            "steps": by_steps.steps,
            "steps_setting": by_steps.setting,
            "steps_censored": by_steps.censored > 0,
            "seconds": by_seconds.seconds,
            "seconds_setting": by_seconds.setting,
            "seconds_censored": by_seconds.censored > 0,
            "microseconds_per_step": {
                name: 1e6 * value for name, value in per_step.items() if name != "vpng"
            },
            "final_elbo": highest.final,
            "final_elbo_setting": highest.setting,
        },
        "ratio_steps": by_steps.steps / vpng.steps,
        "ratio_seconds": by_seconds.seconds / vpng.seconds,
        "ratio_steps_is": _bound(vpng, by_steps),
        "ratio_seconds_is": _bound(vpng, by_seconds),
        "same_particles": {
            "ratio_steps": same[0].steps / vpng.steps,
            "ratio_seconds": same[1].seconds / vpng.seconds,
            "ratio_seconds_is": _bound(vpng, same[1]),
            "ratio_per_step": per_step["vpng"] / per_step[alike],
        },
        "final_elbo_gain": vpng.final - highest.final,
    }


def _fastest(adam: list[Arrival]) -> tuple[Arrival, Arrival]:
    """The settings that took the fewest steps and the least time."""
    # Where a kind ended early, one of its settings had arrived: the others were slower.
    settings = [arrival for arrival in adam if not arrival.levelled] or adam
    by_steps = min(settings, key=lambda arrival: arrival.steps)
    return by_steps, min(settings, key=lambda arrival: arrival.seconds)


def _bound(vpng: Arrival, adam: Arrival) -> str:
    if vpng.censored:
        return "undecided" if adam.censored else "at most"
    return "at least" if adam.censored else "exact"
