"""Ready optimizers: a direction, a rule for the step on top of it, and a learning rate."""

from typing import Any

import optax
from jaxtyping import Array, Float

from vpng.checks import learning_rate as check_learning_rate
from vpng.objective import Schedule
from vpng.problem import Problem
from vpng.transform import scale_by_hessian_free, scale_by_natural_gradient, scale_by_vpng

LearningRate = float | Float[Array, ""] | Schedule


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
    problem: Problem,
    learning_rate: LearningRate,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """The variational predictive natural gradient, then `rule`, then the step.

    Args:
        problem: the problem whose loss is minimised.
        learning_rate: a number or a schedule.
        rule: any optax rule; the paper puts `optax.scale_by_adam()` or `optax.scale_by_rms()` here.
        **options: `metric`, `curvature` and `damping` of `scale_by_vpng`.
    """
    return _chain(scale_by_vpng(problem, **options), rule, learning_rate)


def natural_gradient(
    problem: Problem,
    learning_rate: LearningRate,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """The classic natural gradient for lambda, the plain one for theta, then `rule` and the step.

    Args:
        problem: the problem whose loss is minimised.
        learning_rate: a number or a schedule.
        rule: any optax rule.
        **options: `metric`, `curvature` and `damping` of `scale_by_natural_gradient`.
    """
    return _chain(scale_by_natural_gradient(problem, **options), rule, learning_rate)


def hessian_free(
    problem: Problem,
    learning_rate: LearningRate,
    *,
    rule: optax.GradientTransformation = optax.identity(),
    **options: Any,
) -> optax.GradientTransformationExtraArgs:
    """Hessian-free stochastic variational inference, then `rule` and the step.

    Args:
        problem: the problem whose loss is minimised.
        learning_rate: a number or a schedule.
        rule: any optax rule.
        **options: of `scale_by_hessian_free`.
    """
    return _chain(scale_by_hessian_free(problem, **options), rule, learning_rate)


def _chain(
    direction: optax.GradientTransformation,
    rule: optax.GradientTransformation,
    learning_rate: LearningRate,
) -> optax.GradientTransformationExtraArgs:
    check_learning_rate(learning_rate)
    return optax.with_extra_args_support(
        optax.chain(direction, rule, optax.scale_by_learning_rate(learning_rate))
    )
