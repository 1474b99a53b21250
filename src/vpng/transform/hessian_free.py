"""Hessian-free stochastic variational inference (HFSGVI, Fan et al. 2015): a baseline."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from vpng.checks import (
    damping_value,
    finite_scalar,
    is_traced,
    of_kind,
    positive_integer,
    single_or_double,
)
from vpng.curvature import Outcome, SolveInfo
from vpng.curvature.base import no_info, nonnegative, relative_norm, solve_info
from vpng.curvature.truncated import truncated_conjugate_gradient
from vpng.errors import expected
from vpng.not_finite import NotFinite
from vpng.numerics.optax_types import transformation
from vpng.objective import ELBO, Reparameterised, Schedule
from vpng.problem import AbstractProblem, Parameters, Problem, Site, drawn_from
from vpng.problem.selection import Selection, unmasked
from vpng.transform.masking import current, filled, of_problem

Product = Callable[[Parameters], Parameters]

SOLVE = "solve with the curvature of the loss"


class AbstractProduct(eqx.Module):
    """Which matrix of the loss is multiplied with."""

    @abstractmethod
    def linearise(
        self,
        problem: AbstractProblem,
        objective: ELBO,
        parameters: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> Product:
        """The map v -> H v at the current parameters, with the noise held fixed."""


class Hessian(AbstractProduct):
    """The Hessian of the Monte Carlo loss, by forward over reverse. It may be indefinite."""

    def linearise(
        self,
        problem: AbstractProblem,
        objective: ELBO,
        parameters: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> Product:
        def gradient(parameters: Parameters) -> Parameters:
            return objective.estimate_and_gradient(rng_key, problem, parameters, batch, step=step)[
                1
            ]

        _, product = jax.linearize(gradient, parameters)
        return product


class GaussNewton(AbstractProduct):
    """J^T H J, with H the Hessian of the loss in the parameters of the likelihood and of q.

    Positive semidefinite wherever the loss is convex in those, as for Bernoulli logits or Normal
    means. A prior with parameters of its own is held fixed.
    """

    def linearise(
        self,
        problem: AbstractProblem,
        objective: ELBO,
        parameters: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        step: Int[Array, ""],
    ) -> Product:
        if not isinstance(problem, Problem):
            wanted = "Hessian(), since the prior of this problem may depend on other latents"
            raise expected("product", wanted, "GaussNewton()")
        keys = jax.random.split(rng_key, objective.num_particles)
        noise = jax.vmap(problem.noise, in_axes=(0, None))(keys, batch)
        weight = objective.weight_at(step) * problem.latent_weight(batch)

        def outputs(parameters: Parameters) -> tuple[list[PyTree], PyTree]:
            def predictive(noise: PyTree) -> list[PyTree]:
                latent = problem.latent(parameters.variational, noise, batch)
                sites = problem.likelihood_sites(parameters.model, latent, batch)
                return [_arrays(site.distribution)[0] for site in sites]

            q = problem.approximation(parameters.variational, batch)
            return jax.vmap(predictive)(noise), _arrays(q)[0]

        # The parts of the distributions that are not differentiated, and the observed values.
        first = jax.tree.map(lambda leaf: leaf[0], noise)
        latent = problem.latent(parameters.variational, first, batch)
        sites = problem.likelihood_sites(parameters.model, latent, batch)
        shells = [_arrays(site.distribution)[1] for site in sites]
        q_shell = _arrays(problem.approximation(parameters.variational, batch))[1]

        def loss(outputs: tuple[list[PyTree], PyTree]) -> Array:
            predictive, approximate = outputs

            def one(arrays: list[PyTree]) -> Array:
                rebuilt = [
                    Site(eqx.combine(a, shell), site.value, site.scale)
                    for a, shell, site in zip(arrays, shells, sites, strict=True)
                ]
                terms = [
                    -jnp.sum(site.scale * site.distribution.log_prob(site.value))
                    for site in rebuilt
                ]
                return sum(terms, jnp.zeros(()))

            q = eqx.combine(approximate, q_shell)
            prior = problem.prior(parameters.model, batch)

            def divergence(key: PRNGKeyArray) -> Array:
                # Drawn from q here, so that a KL that is sampled bends as its expectation does.
                return jnp.sum(problem.divergence(q, prior, drawn_from(q, key), batch))

            kl = jnp.mean(jax.vmap(divergence)(keys))
            return jnp.mean(jax.vmap(one)(predictive)) + weight * kl

        at, push = jax.linearize(outputs, parameters)
        pull = jax.linear_transpose(push, parameters)
        _, curve = jax.linearize(jax.grad(loss), at)
        return lambda vector: pull(curve(push(vector)))[0]


def _arrays(tree: PyTree) -> tuple[PyTree, PyTree]:
    return eqx.partition(tree, eqx.is_inexact_array)


class HessianFreeState(NamedTuple):
    """Updates done, the diagnostics of the last solve and whether it was not finite."""

    step: Int[Array, ""]
    info: SolveInfo
    findings: NotFinite


def scale_by_hessian_free(
    problem: AbstractProblem,
    *,
    objective: ELBO = ELBO(),
    product: AbstractProduct = GaussNewton(),
    damping: Schedule | Float[Array, ""] | float = 1e-1,
    max_steps: Int[Array, ""] | int = 20,
    rtol: Float[Array, ""] | float = 1e-2,
) -> optax.GradientTransformationExtraArgs:
    """Replace the gradient g by (H + mu I)^-1 g, solved by truncated conjugate gradients.

    The iteration stops at the tolerance, at `max_steps` or at a direction of negative curvature,
    and returns what it has by then: always a descent direction. `update` needs `batch` and
    `rng_key` by keyword, and `full_params` under `optax.masked` or `optax.multi_transform`: it then
    solves with the block of H that belongs to the parameters left in place.

    Args:
        problem: the problem whose loss is minimised.
        objective: the loss whose curvature is taken.
        product: the full Hessian or its Gauss-Newton part.
        damping: mu per datum.
        max_steps: most products for one direction.
        rtol: relative tolerance on the residual.
    """
    of_kind("problem", problem, AbstractProblem, "a vpng.Problem")
    of_kind("product", product, AbstractProduct, "Hessian() or GaussNewton()")
    _check_max_steps(max_steps)
    finite_scalar("rtol", rtol, minimum=0.0, strict=False)
    damping_value(damping(jnp.zeros((), jnp.int32)) if callable(damping) else damping)
    if not isinstance(objective.gradient, Reparameterised):
        raise expected("objective.gradient", "Reparameterised()", objective.gradient)

    def init(params: Parameters) -> HessianFreeState:
        active = unmasked(of_problem(params))
        single_or_double("params", active)
        return HessianFreeState(jnp.zeros((), jnp.int32), no_info(active), NotFinite.none([SOLVE]))

    def update(
        updates: Parameters,
        state: HessianFreeState,
        params: Parameters | None = None,
        *,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        full_params: Parameters | None = None,
        **extra_args: Any,
    ) -> tuple[Parameters, HessianFreeState]:
        del extra_args
        params = current(params)
        if not jax.tree.leaves(unmasked(updates)):
            return updates, state._replace(step=state.step + 1)
        selection = Selection.of(unmasked(params), params, full_params)
        whole = selection.embed(selection.active)
        flat, unravel = ravel_pytree(unmasked(updates))
        full = product.linearise(problem, objective, whole, batch, rng_key, state.step)
        block = _block(full, selection)
        mu = nonnegative(
            jnp.asarray(damping(state.step) if callable(damping) else damping), flat.dtype
        )

        def damped(vector: Array) -> Array:
            return ravel_pytree(block(unravel(vector)))[0] + mu * vector

        direction, iterations, converged = truncated_conjugate_gradient(
            damped, flat, max_steps=max_steps, rtol=rtol
        )
        info = solve_info(
            direction,
            relative_norm(damped(direction) - flat, flat),
            condition=jnp.nan,
            iterations=iterations,
            converged=converged,
        )
        finite = info.outcome != Outcome.not_finite
        direction = jnp.where(finite, direction, 0.0).astype(flat.dtype)
        findings = NotFinite.of([SOLVE], [~finite])
        moved = filled(unravel(direction), updates)
        return moved, HessianFreeState(state.step + 1, info, findings)

    return transformation(init, update)


def _block(product: Product, selection: Selection) -> Product:
    """The product with the rows and columns of the active parameters alone."""
    still = jax.tree.map(jnp.zeros_like, selection.fixed)
    return lambda active: selection.extract(product(eqx.combine(active, still)))


def _check_max_steps(value: Any) -> None:
    """Refuse a limit below one; `optax.inject_hyperparams` makes an array of it."""
    is_number = isinstance(value, jax.Array) and value.ndim == 0
    if is_number and jnp.issubdtype(value.dtype, jnp.integer):
        value = 1 if is_traced(value) else int(value)
    positive_integer("max_steps", value)
