"""Fit a problem in one call."""

from collections.abc import Mapping, Sequence

import optax
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.distributed.layout import Layout
from vpng.objective import ELBO
from vpng.problem import AbstractProblem, Parameters
from vpng.run.checkpoint import Checkpoints
from vpng.run.stopping import Converged
from vpng.runtime.compilation import USUAL_STEPS
from vpng.training.data import AbstractData
from vpng.training.guard import Guard
from vpng.training.loop import Callback, FitResult, Loop, Measure, Readout, current
from vpng.training.step import TrainState


def fit(
    problem: AbstractProblem,
    params: Parameters,
    data: PyTree | AbstractData,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    rng_key: PRNGKeyArray,
    *,
    objective: ELBO = ELBO(),
    batch_size: int | None = None,
    max_seconds: float | None = None,
    stop: Converged | None = None,
    record_every: int = 100,
    metrics: Mapping[str, Measure] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    init_from: TrainState | None = None,
    readout: Readout = current,
    guard: Guard | None = Guard(),
    mesh: Mesh | Layout | None = None,
) -> FitResult:
    """Minimise the loss of `problem` on `data`.

    The steps run in compiled chunks of `record_every`; after each a record is made, the metrics are
    evaluated and the callbacks are called, outside the clock.

    Args:
        problem: what is fitted.
        params: where to start.
        data: a pytree of arrays with the data along the first axis, or an `AbstractData`.
        optimizer: any optax transformation; it gets `value`, `batch`, `rng_key` and `full_params`.
        num_steps: most steps to do.
        rng_key: the same key gives the same run.
        objective: particles, KL weight and gradient estimator.
        batch_size: data per step, shuffled every epoch; None for all.
        max_seconds: time for the steps, without compilation and evaluation.
        stop: end when the loss no longer improves by more than its noise, and after the rule's own
            `max_steps` in any case.
        record_every: steps in a chunk.
        metrics: functions (params, rng_key) -> scalar, compiled.
        callbacks: functions (record, state) -> True to stop.
        progress: whether to show a progress bar.
        checkpoints: where to keep the state while running. SIGINT and SIGTERM then finish a chunk,
            make a checkpoint and end the run; a second one interrupts at once.
        resume: go on from the newest checkpoint that is whole, if there is any, to the same bits as
            a run that was never stopped; `num_steps` and `max_seconds` count from its start.
            Callbacks see the new records only.
        init_from: a state to go on from, instead of `params`.
        readout: which parameters of a state are measured and returned: `current`, or
            `iterate_averaged`.
        guard: drops steps that are not finite, takes explosions back, and stops a hopeless run;
            None for none.
        mesh: devices among which every batch is divided, of this process or of many; a `Layout` to
            divide the parameters too. The result is the same up to rounding.

    Returns:
        The final parameters and state, the history and the reason for stopping.

    Raises:
        InputError: if an argument does not fit.
    """
    positive_integer("num_steps", num_steps)
    loop = Loop(
        problem,
        params,
        data,
        optimizer,
        objective=objective,
        batch_size=batch_size,
        record_every=record_every,
        metrics=metrics,
        readout=readout,
        guard=guard,
        mesh=mesh,
        usual_steps=num_steps if stop is None else min(num_steps, USUAL_STEPS),
    )
    state = loop.init(params, rng_key) if init_from is None else init_from
    return loop.run(
        state,
        num_steps,
        max_seconds=max_seconds,
        stop=stop,
        callbacks=callbacks,
        progress=progress,
        checkpoints=checkpoints,
        resume=resume,
    )
