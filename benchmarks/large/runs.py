"""The contenders: each from the call that a user makes, watched until its time is up."""

import copy
import math
import warnings
from typing import Any

import jax
import numpy as np
from numpyro import infer, optim
from numpyro.infer import Trace_ELBO

import vpng.numpyro.svi as front_door
from large.track import Evaluator, Track
from vpng.numpyro import SVI
from vpng.numpyro.steps import Carried, SVISteps
from vpng.run.chunk import Chunk
from zoo.case import Case

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
FIRST_PART = 1 / 3
"""Of the time for steps, after which only the better rates of Adam go on."""

GOING_ON = 2
"""Rates of Adam that have all the time: the best so far."""

LEAST_LOOKS = 3
"""Of every run, however long it took to compile."""

Found = dict[str, Any]


class TimeIsUpError(Exception):
    """Ends a run that would have gone on."""


def vpng(case: Case, key: jax.Array, limit: float) -> Found:
    """`SVI(model, guide).run(key, "auto", ...)`, which may end earlier."""
    guide, ended = case.make_guide(), "time is up"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        track = Track()
        svi = SVI(case.run, guide)
        front_door.SVISteps = watched(track, svi, limit)
        try:
            result = svi.run(key, "auto", *case.args, progress_bar=False)
            ended = result.stop_reason.value
        except TimeIsUpError:
            pass
    # Constrained off the clock: it is a program of its own.
    track.parameters = [constrained(svi, raw) for raw in track.parameters]
    found = described(case, guide, track)
    said = list(dict.fromkeys(str(each.message) for each in said))
    particles = getattr(svi.loss, "num_particles", None)
    geometry = getattr(getattr(svi.rule, "adaptive", None), "geometry", svi.rule)
    return {
        **found,
        "ended": ended,
        "warnings": said,
        "num_particles": particles,
        "representation": type(geometry).__name__,
    }


def constrained(svi: SVI, raw: Any) -> Any:
    return jax.device_get(svi._constrain(raw))


def watched(track: Track, svi: SVI, limit: float) -> type[SVISteps]:
    """The steps of a run, looked at as they are made."""

    class Watched(SVISteps):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            track.ready_to_step()

        def advance(self, state: Carried, length: int) -> tuple[Carried, Chunk]:
            if not track.steps:
                track.look(0, by_name(state))
            chunks = []
            while length:
                count = min(length, track.steps_until_next())
                state, chunk = super().advance(state, count)
                track.look(track.steps[-1] + count, by_name(state))
                if track.now > limit:
                    raise TimeIsUpError
                chunks.append(chunk)
                length -= count
            losses, rejected, exploded = (
                np.concatenate([getattr(chunk, name) for chunk in chunks])
                for name in ("losses", "rejected", "exploded")
            )
            return state, Chunk(losses, rejected, exploded, "", sum(c.seconds for c in chunks))

    def by_name(state: Carried) -> Any:
        accepted = state.state.optim_state.accepted
        return {**accepted.variational, **accepted.model}

    return Watched


def adam(case: Case, key: jax.Array, limit: float, num_particles: int) -> Found:
    """NumPyro's SVI with Adam at all rates, each as if it were alone.

    What is compiled serves all of them, and every one has the seconds that this took on its clock.
    After a third of the time the best go on.
    """
    guide, track = case.make_guide(), Track()
    svi = infer.SVI(case.run, guide, optim.Adam(0.01), Trace_ELBO(num_particles=num_particles))
    first = svi.init(key, *case.args)

    def several(state: Any, rate: jax.Array, count: jax.Array, args: tuple) -> Any:
        own = copy.copy(svi)
        own.optim = optim.Adam(rate)
        step = lambda _, state: own.update(state, *args)[0]
        return jax.lax.fori_loop(0, count, step, state)

    shapes = (first, np.float32(0), np.int32(0), case.args)
    program = jax.jit(several).lower(*shapes).compile()
    setup = track.now
    get = jax.jit(svi.get_params)
    get(first)
    lanes = [_Lane(rate, setup, first) for rate in RATES]
    evaluator = Evaluator(case, guide)
    forwards = lambda state, rate, count: program(
        state, np.float32(rate), np.int32(count), case.args
    )
    for lane in lanes:
        lane.go(forwards, get, setup + FIRST_PART * (limit - setup))
    best = sorted(lanes, key=lambda lane: -evaluator(lane.track.parameters[-1]))
    for lane in best[:GOING_ON]:
        lane.go(forwards, get, limit)
    return {
        "rates": {str(lane.rate): described(case, guide, lane.track, evaluator) for lane in lanes}
    }


class _Lane:
    """One rate of Adam, which goes on where it stopped."""

    def __init__(self, rate: float, setup: float, state: Any) -> None:
        self.rate, self.setup, self.state, self.track = rate, setup, state, Track()

    def go(self, forwards: Any, get: Any, limit: float) -> None:
        track = self.track
        track.resume(track.seconds[-1] if track.seconds else self.setup)
        if not track.steps:
            track.ready_to_step()
            track.look(0, get(self.state))
        while track.now < limit or len(track.steps) < LEAST_LOOKS:
            count = track.steps_until_next()
            self.state = jax.block_until_ready(forwards(self.state, self.rate, count))
            track.look(track.steps[-1] + count, get(self.state))


def described(case: Case, guide: Any, track: Track, evaluator: Evaluator | None = None) -> Found:
    """What is kept of a run."""
    evaluator = Evaluator(case, guide) if evaluator is None else evaluator
    curve = track.curve(evaluator)
    return {
        "ready": track.ready,
        "steps": track.steps[-1],
        "microseconds_per_step": 1e6 * track.per_step,
        "standard_error": evaluator.standard_error,
        "curve": [(s, n, e if math.isfinite(e) else None) for s, n, e in curve],
    }
