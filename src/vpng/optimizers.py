"""Ready optimizers: a direction, a rule for the step on top of it, and a learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from vpng.checks import learning_rate as check_learning_rate
from vpng.checks import of_kind
from vpng.curvature import AbstractCurvature
from vpng.damping import AbstractDamping
from vpng.fisher import AbstractMetric, Predictive, Probed, Variational
from vpng.kronecker import Structure, discover, in_eigenbasis
from vpng.objective import ELBO, Schedule
from vpng.problem import AbstractProblem, Parameters
from vpng.transform import (
    AbstractProduct,
    GaussNewton,
    iterate_average,
    limit_step,
    scale_by_hessian_free,
    scale_by_natural_gradient,
    scale_by_vpng,
)
from vpng.transform.preconditioning import DEFAULT_DAMPING
from vpng.transform.trust_region import MOST_DATA

LearningRate = optax.ScalarOrSchedule

NETWORK_METRIC = Predictive(Probed(num_probes=1), num_particles=1)
"""Of the optimizer for networks."""


__all__ = [
    "eigenbasis_adam",
    "gradient",
    "hessian_free",
    "natural_gradient",
    "network_vpng",
    "vpng",
]


def gradient(
    learning_rate: LearningRate, *, rule: optax.GradientTransformation = optax.identity()
) -> optax.GradientTransformationExtraArgs:
    """The plain gradient, then `rule`, then the step.

    Args:
        learning_rate: a number or a schedule.
        rule: any optax rule, for instance `optax.scale_by_adam()`.
    """
    return _chain(optax.identity(), rule, learning_rate)


def vpng(
    problem: AbstractProblem,
    learning_rate: LearningRate,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    metric: AbstractMetric | None = None,
    curvature: AbstractCurvature | None = None,
    damping: AbstractDamping | Schedule | Float[Array, ""] | float = DEFAULT_DAMPING,
    radius: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The variational predictive natural gradient, then `rule`, then the step.

    Args:
        problem: the problem whose loss is minimised.
        learning_rate: a number or a schedule.
        rule: any optax rule; the paper puts `optax.scale_by_adam()` or `optax.scale_by_rms()` here.
        metric: see `scale_by_vpng`.
        curvature: see `precondition`.
        damping: see `precondition`.
        radius: the longest step, in nats per datum; None for no limit. See `limit_step`.
    """
    direction = scale_by_vpng(problem, metric=metric, curvature=curvature, damping=damping)
    steps = _chain(direction, rule, learning_rate)
    return steps if radius is None else optax.chain(steps, limit_step(problem, radius=radius))


def natural_gradient(
    problem: AbstractProblem,
    learning_rate: LearningRate,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    metric: AbstractMetric | None = None,
    curvature: AbstractCurvature | None = None,
    damping: AbstractDamping | Schedule | Float[Array, ""] | float = DEFAULT_DAMPING,
    radius: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The classic natural gradient for lambda, the plain one for theta, then `rule` and the step.

    Args:
        problem: the problem whose loss is minimised.
        learning_rate: a number or a schedule.
        rule: any optax rule.
        metric: see `scale_by_natural_gradient`.
        curvature: see `precondition`.
        damping: see `precondition`.
        radius: how far one step may move the approximation, in nats per datum; None for no limit.
            See `limit_step`.
    """
    direction = scale_by_natural_gradient(
        problem, metric=metric, curvature=curvature, damping=damping
    )
    steps = _chain(direction, rule, learning_rate)
    if radius is None:
        return steps
    ruler = Variational(max_data=MOST_DATA if problem.local else None)
    return optax.chain(steps, limit_step(problem, ruler, radius=radius))


def hessian_free(
    problem: AbstractProblem,
    learning_rate: LearningRate,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    objective: ELBO = ELBO(),
    product: AbstractProduct = GaussNewton(),
    damping: Schedule | Float[Array, ""] | float = 1e-1,
    max_steps: Int[Array, ""] | int = 20,
    rtol: Float[Array, ""] | float = 1e-2,
) -> optax.GradientTransformationExtraArgs:
    """Hessian-free stochastic variational inference, then `rule` and the step.

    Args:
        problem: the problem whose loss is minimised.
        learning_rate: a number or a schedule.
        rule: any optax rule.
        objective: see `scale_by_hessian_free`, like those that follow.
        product: the full Hessian or its Gauss-Newton part.
        damping: mu per datum.
        max_steps: most products for one direction.
        rtol: relative tolerance on the residual.
    """
    direction = scale_by_hessian_free(
        problem,
        objective=objective,
        product=product,
        damping=damping,
        max_steps=max_steps,
        rtol=rtol,
    )
    return _chain(direction, rule, learning_rate)


def network_vpng(
    problem: AbstractProblem,
    params: Parameters,
    data: PyTree,
    learning_rate: LearningRate | None = None,
    *,
    batch_size: int = 256,
    calibration_size: int = 10_000,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """The recommended optimizer for networks, such as autoencoders, with defaults from MNIST.

    Nesterov Adam in the eigenbasis of the predictive Fisher's Kronecker factors, a step that decays
    like 1 / sqrt(1 + t / 400), and an average of the iterates; read the average out with
    `fit(..., readout=vpng.training.iterate_averaged)`. The parts are `vpng.kronecker.discover`,
    `vpng.kronecker.in_eigenbasis` and `vpng.transform.iterate_average`.

    Args:
        problem: the problem whose loss is minimised.
        params: its parameters, to find the layers.
        data: its data; some of them calibrate the layers that they feed.
        learning_rate: a number or a schedule; 0.008 with the decay above if left out.
        batch_size: of the run: the noise of its gradient sets Adam's denominator.
        calibration_size: most data used for the calibration.
        **options: of `in_eigenbasis`.
    """
    some = jax.tree.map(lambda leaf: jnp.asarray(leaf[:calibration_size]), data)
    few = jax.tree.map(lambda leaf: leaf[: min(batch_size, 8)], some)
    return in_averaged_eigenbasis(
        problem,
        discover(problem, params, few, NETWORK_METRIC),
        slowly_decaying(0.008) if learning_rate is None else learning_rate,
        batch_size=batch_size,
        calibration=some,
        parameters=params,
        **options,
    )


def in_averaged_eigenbasis(
    problem: AbstractProblem,
    structure: Structure,
    learning_rate: LearningRate,
    *,
    batch_size: int,
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """The parts of `network_vpng` put together, for layers that are known.

    Args:
        problem: the problem whose loss is minimised.
        structure: its layers.
        learning_rate: a number or a schedule.
        batch_size: see `network_vpng`.
        **options: of `in_eigenbasis`.
    """
    direction = in_eigenbasis(problem, structure, eigenbasis_adam(batch_size), **options)
    return iterate_average(_chain(direction, optax.identity(), learning_rate))


def slowly_decaying(learning_rate: float) -> Schedule:
    """The schedule of networks: the rate over sqrt(1 + t / 400) at step t."""
    return lambda step: learning_rate / jnp.sqrt(1.0 + step / 400.0)


def eigenbasis_adam(batch_size: int) -> optax.GradientTransformation:
    """Nesterov Adam for coordinates in which the metric is nearly diagonal.

    Its denominator is sqrt(v + epsilon / B): gradients of a batch of B have variances of the order
    F / B.
    """
    return optax.scale_by_adam(b1=0.9, b2=0.98, eps=0.0, eps_root=1e-3 / batch_size, nesterov=True)


def _chain(
    direction: optax.GradientTransformation,
    rule: optax.GradientTransformation,
    learning_rate: LearningRate,
) -> optax.GradientTransformationExtraArgs:
    check_learning_rate(learning_rate)
    of_kind("rule", rule, optax.GradientTransformation, "an optax rule such as scale_by_adam()")
    return optax.with_extra_args_support(
        optax.chain(direction, rule, optax.scale_by_learning_rate(learning_rate))
    )
