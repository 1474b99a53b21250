"""`diagnose`: one look at a problem, or at a NumPyro model and guide."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, overload

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro.infer.elbo import ELBO

from vpng.checks import finite_scalar, positive_integer
from vpng.curvature import Outcome, SolveInfo
from vpng.diagnostics.bound import Bound, NumPyroBound, OwnBound
from vpng.diagnostics.diagnosis import Diagnosis, Direction
from vpng.diagnostics.importance import k_hat
from vpng.diagnostics.landscape import Landscape
from vpng.diagnostics.spectrum import Spectrum, spectrum_of
from vpng.errors import InputError, expected
from vpng.fisher import AbstractMetric, FisherOperator, Predictive, Variational
from vpng.problem import AbstractProblem, Parameters, check_problem
from vpng.transform import precondition, scale_by_natural_gradient

RELATIVE_DAMPING = 1e-6
"""Of the metric's largest eigenvalue: what single precision can still resolve."""
LANDSCAPE_PARTICLES = 100
"""Draws behind every point of the figure."""


class _Point(NamedTuple):
    """A problem, where it is looked at, and the metric to look through.

    Attributes:
        problem: the problem.
        parameters: where.
        batch: its data.
        metric: F.
        bound: the ELBO.
    """

    problem: AbstractProblem
    parameters: Parameters
    batch: PyTree
    metric: AbstractMetric
    bound: Bound

    @property
    def has_variational_fisher(self) -> bool:
        """Whether F_q can be had: not for a flow, whose density at a held z needs its inverse.

        Nor where no latent has an approximation.
        """
        return (
            bool(jax.tree.leaves(self.parameters.variational)) and self.problem.has_held_density()
        )

    @property
    def has_weights(self) -> bool:
        """Whether p(x, z) / q(z) can be had: not where the loss sums over latents of the model."""
        return not self.problem.sums_over_latents()


@overload
def diagnose(
    rng_key: PRNGKeyArray,
    model: AbstractProblem,
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
    loss: ELBO | None = ...,
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
    loss: ELBO | None = None,
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
        loss: a NumPyro objective for the ELBO and the gradient, such as `TraceEnum_ELBO()` for a
            model whose discrete latents are enumerated. It is evaluated `num_particles` times, with
            one particle each; `RenyiELBO`, which is no mean over particles, with all its own.
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
    if not isinstance(loss, ELBO | None):
        raise expected("loss", "a NumPyro objective such as TraceEnum_ELBO()", type(loss).__name__)
    setup_key, draw_key = jax.random.split(rng_key)
    if isinstance(model, AbstractProblem):
        named = {"params": params, "loss": loss}
        foreign = sorted([*kwargs, *(name for name, value in named.items() if value is not None)])
        if foreign or len(args) != 1:
            raise InputError(
                "diagnose: expected (rng_key, problem, parameters, batch) for a vpng.Problem, got "
                f"{len(args)} arguments after the parameters and the keywords {foreign}."
            )
        check_problem(model, guide, args[0])
        metric = Predictive() if metric is None else metric
        point = _Point(model, guide, args[0], metric, OwnBound(model, args[0]))
    elif callable(model) and callable(guide):
        point = _traced(setup_key, model, guide, args, kwargs, params, metric, loss)
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
    loss: ELBO | None,
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
    svi = SVI(model, guide, loss=loss)
    init_key, plate_key = jax.random.split(rng_key)
    state = svi.init(
        init_key, *args, init_params=None if params is None else dict(params), **kwargs
    )
    parameters = state.optim_state.accepted
    if params is not None:
        known = {*parameters.variational, *parameters.model}
        if set(params) != known:
            raise expected("params", f"values for {sorted(known)}", f"those of {sorted(params)}")
    mutable = state.mutable_state if mutable is None else mutable
    problem = svi._traced()
    call = problem.call(plate_key, args, kwargs, mutable)
    bound = OwnBound(problem, call) if loss is None else NumPyroBound(loss, problem, call)
    metric = default_metric() if metric is None else metric
    return _Point(problem, parameters, call, metric, bound)


def _diagnose(
    rng_key: PRNGKeyArray, point: _Point, num_particles: int, damping: float | None
) -> Diagnosis:
    problem, parameters, batch, metric, bound = point
    loss_key, metric_key, weight_key, plane_key = jax.random.split(rng_key, 4)
    estimate, gradient = jax.jit(
        lambda at: bound.estimate_and_gradient(loss_key, at, num_particles)
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
    shape = float("nan")
    if point.has_weights:
        shape = k_hat(weight_key, problem, parameters, batch, num_particles=num_particles)
    return Diagnosis(
        elbo=float(-estimate.loss * problem.num_data),
        elbo_standard_error=float(estimate.standard_error * problem.num_data),
        num_particles=num_particles,
        k_hat=shape,
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
    problem, parameters, batch, *_ = point

    def operator_at(variational: PyTree) -> FisherOperator:
        whole = parameters._replace(variational=variational)
        operator = Variational().operator(problem, whole, batch, rng_key)
        return operator.restricted(variational, lambda part: parameters._replace(variational=part))

    return operator_at


def _default_damping(spectrum: Spectrum) -> float:
    """Small beside the metric; 1 where there is none, which leaves the gradient as it is."""
    return RELATIVE_DAMPING * spectrum.largest if spectrum.largest > 0 else 1.0


def _landscape(rng_key: PRNGKeyArray, point: _Point) -> Landscape:
    flat, unravel = ravel_pytree(point.parameters)

    def elbo(displacement: Float[Array, " P"]) -> Float[Array, ""]:
        moved = unravel(flat + displacement.astype(flat.dtype))
        loss = point.bound.loss(rng_key, moved, LANDSCAPE_PARTICLES)
        return -point.problem.num_data * loss

    return Landscape(elbo)


def _direction(descent: Parameters, info: SolveInfo) -> Direction:
    outcome = Outcome[info.outcome]
    return Direction(-_flat(descent), outcome, float(info.residual))


def _flat(tree: PyTree) -> Float[np.ndarray, " P"]:
    return np.asarray(ravel_pytree(tree)[0], np.float64)
