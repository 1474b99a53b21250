"""`diagnose`: one look at a problem, or at a NumPyro model and guide."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, overload

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, positive_integer
from vpng.curvature import Outcome, SolveInfo
from vpng.diagnostics.diagnosis import Diagnosis, Direction
from vpng.diagnostics.importance import k_hat
from vpng.diagnostics.landscape import Landscape
from vpng.diagnostics.spectrum import Spectrum, spectrum_of
from vpng.errors import InputError, expected
from vpng.fisher import AbstractMetric, FisherOperator, Predictive, Variational
from vpng.objective import ELBO
from vpng.problem import Parameters, Problem, check_problem
from vpng.transform import precondition, scale_by_natural_gradient

RELATIVE_DAMPING = 1e-6
"""Of the metric's largest eigenvalue: what single precision can still resolve."""
LANDSCAPE_PARTICLES = 100
"""Draws behind every point of the figure."""


class _Point(NamedTuple):
    """A problem, where it is looked at, and the metric to look through."""

    problem: Problem
    parameters: Parameters
    batch: PyTree
    metric: AbstractMetric

    @property
    def has_variational_fisher(self) -> bool:
        """Whether F_q can be had: not for a flow, whose density at a held z needs its inverse.

        Nor where no latent has an approximation.
        """
        return bool(jax.tree.leaves(self.parameters.variational)) and getattr(
            self.problem, "held_density", True
        )


@overload
def diagnose(
    rng_key: PRNGKeyArray,
    model: Problem,
    guide: Parameters,
    batch: PyTree,
    /,
    *,
    num_particles: int = ...,
    metric: AbstractMetric | None = ...,
    damping: float | None = ...,
) -> Diagnosis: ...


@overload
def diagnose(
    rng_key: PRNGKeyArray,
    model: Callable,
    guide: Callable,
    /,
    *args: Any,
    params: Any = ...,
    num_particles: int = ...,
    metric: AbstractMetric | None = ...,
    damping: float | None = ...,
    **kwargs: Any,
) -> Diagnosis: ...


def diagnose(
    rng_key: PRNGKeyArray,
    model: Any,
    guide: Any,
    /,
    *args: Any,
    params: Any = None,
    num_particles: int = 1000,
    metric: AbstractMetric | None = None,
    damping: float | None = None,
    **kwargs: Any,
) -> Diagnosis:
    """Look at the metric, the directions and the approximation at one point.

    Called as `diagnose(rng_key, model, guide, *args, params=..., **kwargs)` with a NumPyro model,
    its guide and their arguments, or as `diagnose(rng_key, problem, parameters, batch)`.

    Args:
        rng_key: for all draws.
        model: a NumPyro model, or a `vpng.Problem`.
        guide: the guide, or the problem's `Parameters`.
        *args: arguments of model and guide, or the problem's data.
        params: constrained values of the parameters of model and guide, as `SVI.get_params` and
            the result of `SVI.run` have them, or that result itself; the initial ones if left out.
        num_particles: draws for the ELBO, the gradient and k-hat.
        metric: the F of VPNG; if left out the paper's `Predictive()` for a problem and the metric
            that `vpng.numpyro.SVI` uses for a model.
        damping: added to the metric, per datum; a millionth of its largest eigenvalue if left out.
        **kwargs: keyword arguments of model and guide.

    Raises:
        InputError: if an argument does not fit.
    """
    positive_integer("num_particles", num_particles)
    if num_particles < 50:
        raise expected("num_particles", "at least 50, for the tail of the weights", num_particles)
    if not isinstance(metric, AbstractMetric | None):
        raise expected("metric", "a metric such as Predictive()", type(metric).__name__)
    if damping is not None:
        finite_scalar("damping", damping, minimum=0.0, strict=False)
    setup_key, draw_key = jax.random.split(rng_key)
    if isinstance(model, Problem):
        if params is not None or kwargs or len(args) != 1:
            raise InputError(
                "diagnose: expected (rng_key, problem, parameters, batch) for a vpng.Problem, got "
                f"{len(args)} arguments after the parameters and the keywords "
                f"{sorted([*kwargs, *(['params'] if params is not None else [])])}."
            )
        check_problem(model, guide, args[0])
        point = _Point(model, guide, args[0], Predictive() if metric is None else metric)
    elif callable(model) and callable(guide):
        point = _traced(setup_key, model, guide, args, kwargs, params, metric)
    else:
        raise expected(
            "model, guide",
            "a NumPyro model and guide, or a vpng.Problem and its Parameters",
            f"{type(model).__name__} and {type(guide).__name__}",
        )
    return _diagnose(draw_key, point, num_particles, damping)


def _traced(
    rng_key: PRNGKeyArray,
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    params: Any,
    metric: AbstractMetric | None,
) -> _Point:
    """The problem of a NumPyro model and guide at `params`."""
    from vpng.numpyro import SVI, default_metric

    mutable = None
    if hasattr(params, "params") and hasattr(params, "state"):
        params, mutable = params.params, params.state.mutable_state
    if not isinstance(params, Mapping | None):
        raise expected(
            "params", "a dictionary by site name or the result of SVI.run", type(params).__name__
        )
    svi = SVI(model, guide)
    init_key, plate_key = jax.random.split(rng_key)
    state = svi.init(init_key, *args, init_params=params, **kwargs)
    parameters = state.optim_state.accepted
    if params is not None:
        known = {*parameters.variational, *parameters.model}
        if set(params) != known:
            raise expected("params", f"values for {sorted(known)}", f"those of {sorted(params)}")
    mutable = state.mutable_state if mutable is None else mutable
    problem = svi._initialised()
    call = problem.call(plate_key, args, kwargs, mutable)
    return _Point(problem, parameters, call, default_metric() if metric is None else metric)


def _diagnose(
    rng_key: PRNGKeyArray, point: _Point, num_particles: int, damping: float | None
) -> Diagnosis:
    problem, parameters, batch, metric = point
    loss_key, metric_key, weight_key, plane_key = jax.random.split(rng_key, 4)
    objective = ELBO(num_particles)
    estimate, gradient = jax.jit(
        lambda at: objective.estimate_and_gradient(loss_key, problem, at, batch)
    )(parameters)
    # The solves split their key; the spectrum is that of the very same matrix.
    solve_key, _ = jax.random.split(metric_key)
    spectrum = spectrum_of(lambda at: metric.operator(problem, at, batch, solve_key), parameters)
    damping = _default_damping(spectrum) if damping is None else float(damping)

    def solve(transformation: Any) -> Direction:
        update = jax.jit(
            lambda g: transformation.update(
                g, transformation.init(parameters), parameters, batch=batch, rng_key=metric_key
            )
        )
        direction, state = update(gradient)
        return _direction(direction, state.info)

    natural = Direction(np.zeros(spectrum.num_parameters), "F_q is not available", float("nan"))
    if point.has_variational_fisher:
        own = spectrum_of(_variational_block(point, solve_key), parameters.variational)
        natural = solve(scale_by_natural_gradient(problem, damping=_default_damping(own)))
    vpng = solve(precondition(problem, metric, damping=damping))
    plain = Direction(-_flat(gradient), "no solve", 0.0)
    return Diagnosis(
        elbo=float(-estimate.loss * problem.num_data),
        elbo_standard_error=float(estimate.standard_error * problem.num_data),
        num_particles=num_particles,
        k_hat=k_hat(weight_key, problem, parameters, batch, num_particles=num_particles),
        spectrum=spectrum,
        damping=damping,
        gradient=plain,
        natural_gradient=natural,
        vpng=vpng,
        promised_gain=float(0.5 * problem.num_data * (plain.vector @ vpng.vector)),
        landscape=_landscape(plane_key, point),
    )


def _variational_block(point: _Point, rng_key: PRNGKeyArray) -> Callable[[PyTree], FisherOperator]:
    """F_q as an operator on lambda alone."""
    problem, parameters, batch, _ = point

    def operator_at(variational: PyTree) -> FisherOperator:
        whole = parameters._replace(variational=variational)
        operator = Variational().operator(problem, whole, batch, rng_key)
        return operator.restricted(variational, lambda part: parameters._replace(variational=part))

    return operator_at


def _default_damping(spectrum: Spectrum) -> float:
    """Small beside the metric; 1 where there is none, which leaves the gradient as it is."""
    return RELATIVE_DAMPING * spectrum.largest if spectrum.largest > 0 else 1.0


def _landscape(rng_key: PRNGKeyArray, point: _Point) -> Landscape:
    problem, parameters, batch, _ = point
    objective = ELBO(LANDSCAPE_PARTICLES)
    flat, unravel = ravel_pytree(parameters)

    def elbo(displacement: Float[Array, " P"]) -> Float[Array, ""]:
        moved = unravel(flat + displacement.astype(flat.dtype))
        estimate = objective.estimate(rng_key, problem, moved, batch)
        return -problem.num_data * estimate.loss

    return Landscape(elbo)


def _direction(descent: Parameters, info: SolveInfo) -> Direction:
    outcome = Outcome[info.outcome]
    return Direction(-_flat(descent), outcome, float(info.residual))


def _flat(tree: PyTree) -> Array:
    return np.asarray(ravel_pytree(tree)[0], np.float64)
