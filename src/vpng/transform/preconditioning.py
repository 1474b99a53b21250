"""The natural gradient of a metric as an optax transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from vpng.checks import single_or_double
from vpng.curvature import AbstractCurvature, Outcome, SolveInfo, auto
from vpng.curvature.base import no_info
from vpng.damping import AbstractDamping, DampingContext, as_damping
from vpng.errors import expected
from vpng.fisher import AbstractMetric, FisherOperator, Predictive, Variational
from vpng.not_finite import NotFinite
from vpng.numerics.optax_types import transformation
from vpng.objective import Schedule
from vpng.problem import AbstractProblem, Parameters
from vpng.problem.selection import Selection, unmasked, variational_part
from vpng.transform.masking import current, filled, of_problem

DEFAULT_DAMPING = 1e-3
SOLVE = "solve with the metric"


class PreconditionState(NamedTuple):
    """The state of a preconditioner.

    Attributes:
        step: updates done.
        curvature: what the curvature carries along.
        damping: what the damping rule carries along.
        info: diagnostics of the last solve.
        findings: whether that was not finite.
    """

    step: Int[Array, ""]
    curvature: PyTree
    damping: PyTree
    info: SolveInfo
    findings: NotFinite


def precondition(
    problem: AbstractProblem,
    metric: AbstractMetric,
    *,
    curvature: AbstractCurvature | None = None,
    damping: AbstractDamping | Schedule | Float[Array, ""] | float = DEFAULT_DAMPING,
    select: Callable[[Parameters], Parameters] | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Replace the gradient g by (F + mu I)^-1 g, with F the metric at the current parameters.

    `update` needs two extras, both by keyword: the current `batch` and an `rng_key`. Under
    `optax.masked` or `optax.multi_transform` it needs `full_params` too, and preconditions with the
    block of F that belongs to the parameters left in place.

    A solve that does not give a finite direction yields a zero update, and says so in `state.info`.

    Args:
        problem: the problem whose loss is minimised.
        metric: which Fisher.
        curvature: how to represent and solve; chosen by shape if left out.
        damping: mu per datum: a number, a schedule or a rule.
        select: keeps the parameters to precondition and puts None for the rest, whose gradients
            pass unchanged. All of them if left out.

    Returns:
        A transformation of gradients, to be chained with any rule for the step.
    """
    if not isinstance(problem, AbstractProblem):
        raise expected("problem", "a vpng.Problem", type(problem).__name__)
    if not isinstance(metric, AbstractMetric):
        raise expected("metric", "a metric such as Predictive()", type(metric).__name__)
    solver = auto() if curvature is None else curvature
    if not isinstance(solver, AbstractCurvature):
        raise expected("curvature", "a curvature such as Dense()", type(solver).__name__)
    rule = as_damping(damping)

    def selected(tree: Parameters) -> Parameters:
        return unmasked(tree) if select is None else select(unmasked(tree))

    def init(params: Parameters) -> PreconditionState:
        active = selected(of_problem(params))
        single_or_double("params", active)
        return PreconditionState(
            jnp.zeros((), jnp.int32),
            solver.init(active),
            rule.init(active),
            no_info(active),
            NotFinite.none([SOLVE]),
        )

    def update(
        updates: Parameters,
        state: PreconditionState,
        params: Parameters | None = None,
        *,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        full_params: Parameters | None = None,
        **extra_args: Any,
    ) -> tuple[Parameters, PreconditionState]:
        del extra_args
        params = current(params)
        if not jax.tree.leaves(selected(updates)):
            return updates, state._replace(step=state.step + 1)
        selection = Selection.of(selected(params), params, full_params)
        whole = selection.embed(selection.active)
        metric_key, damping_key = jax.random.split(rng_key)

        def here() -> FisherOperator:
            operator = metric.operator(problem, whole, batch, metric_key)
            return operator.restricted(selection.active, selection.embed)

        situation = DampingContext(state.step, problem, whole, batch, damping_key, here, selection)
        mu, damping_state = rule.update(state.damping, situation)
        gradient = selected(updates)
        solution = solver.solve(here, gradient, mu, state.curvature)
        finite = solution.info.outcome != Outcome.not_finite
        direction = jax.tree.map(
            lambda u, g: jnp.where(finite, u, jnp.zeros_like(u)).astype(g.dtype),
            solution.direction,
            gradient,
        )
        damping_state = jax.tree.map(
            lambda kept, raised: jnp.where(finite, kept, raised),
            damping_state,
            rule.failed(damping_state),
        )
        return filled(direction, updates), PreconditionState(
            state.step + 1,
            solution.state,
            damping_state,
            solution.info,
            NotFinite.of([SOLVE], [~finite]),
        )

    return transformation(init, update)


class _ByProblem(AbstractMetric):
    """`Predictive()`, with `Variational()` for an approximation that cannot be reparameterised.

    No gradient flows through the latents of such a one: F_r says nothing of its parameters, whose
    gradient would be divided by the damping alone.
    """

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        flows = problem.reparameterised(parameters.variational, batch)
        metric = Predictive() if flows else Predictive() + Variational()
        return metric.operator(problem, parameters, batch, rng_key)


def scale_by_vpng(
    problem: AbstractProblem,
    *,
    metric: AbstractMetric | None = None,
    curvature: AbstractCurvature | None = None,
    damping: AbstractDamping | Schedule | Float[Array, ""] | float = DEFAULT_DAMPING,
) -> optax.GradientTransformationExtraArgs:
    """The variational predictive natural gradient, eq. (vpng-update), of lambda and theta.

    Args:
        problem: the problem whose loss is minimised.
        metric: `Predictive()` unless given, and `Predictive() + Variational()` for an
            approximation that cannot be reparameterised.
        curvature: see `precondition`.
        damping: see `precondition`.
    """
    chosen = _ByProblem() if metric is None else metric
    return precondition(problem, chosen, curvature=curvature, damping=damping)


def scale_by_natural_gradient(
    problem: AbstractProblem,
    *,
    metric: AbstractMetric | None = None,
    curvature: AbstractCurvature | None = None,
    damping: AbstractDamping | Schedule | Float[Array, ""] | float = DEFAULT_DAMPING,
) -> optax.GradientTransformationExtraArgs:
    """The classic natural gradient: F_q^-1 on lambda, the plain gradient on theta.

    Args:
        problem: the problem whose loss is minimised.
        metric: `Variational()` unless given.
        curvature: see `precondition`.
        damping: see `precondition`.
    """
    chosen = Variational() if metric is None else metric
    return precondition(
        problem, chosen, curvature=curvature, damping=damping, select=variational_part
    )
