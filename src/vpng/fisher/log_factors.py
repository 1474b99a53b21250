"""The curvature of what is added to the log density and is no distribution.

A `numpyro.factor` has no predictive distribution, so that it has no Fisher information. With f the
sum of all factors, -f has the second derivative H = V diag(h) V^T in the latents and parameters
that it depends on, and |H| = V |diag(h)| V^T takes the place of the information: the steps of
Newton's method where -f is convex, and away from saddles where it is not. |H|^(1/2) is held fixed,
and its product with what moves are the rows.
"""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.fisher.metric import AbstractMetric, BayesianNetwork
from vpng.fisher.operator import FisherOperator
from vpng.problem import AbstractProblem, Parameters, leaves_in_use

MOST_COORDINATES = 1200
"""Beyond which the second derivatives of a sum are not formed."""


class LogFactors(AbstractMetric):
    """|second derivative of the log factors|, at draws of the latents.

    Factors of very many latents whose values are an array count as so many observations: the
    squares of their gradients stand in.

    Attributes:
        num_particles: draws of eps.
    """

    stream: ClassVar[int] = BayesianNetwork.stream

    num_particles: int = eqx.field(default=10, static=True)

    def __check_init__(self) -> None:
        positive_integer("num_particles", self.num_particles)

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        if not problem.has_log_factors():
            return FisherOperator(parameters, lambda parameters: jnp.zeros(0))
        # The latents of the other terms.
        noise_key, _ = jax.random.split(rng_key)
        noise = jax.vmap(problem.noise, in_axes=(0, None))(
            jax.random.split(noise_key, self.num_particles), batch
        )

        def middle(parameters: Parameters, noise: PyTree) -> PyTree:
            return problem.latent_for_sites(parameters, noise, batch), parameters.model

        one_noise = jax.tree.map(lambda leaf: leaf[0], noise)
        shapes, structure = jax.tree.flatten(jax.eval_shape(middle, parameters, one_noise))

        def factors(leaves: list[Array]) -> Float[Array, " F"]:
            latent, model = jax.tree.unflatten(structure, leaves)
            return problem.log_factors(model, latent, batch)

        [used] = leaves_in_use(lambda leaves: [factors(leaves)], shapes)
        moves = [
            here and jnp.issubdtype(leaf.dtype, jnp.floating)
            for here, leaf in zip(used, shapes, strict=True)
        ]
        if not any(moves):
            return FisherOperator(parameters, lambda parameters: jnp.zeros(0))
        size = sum(leaf.size for leaf, here in zip(shapes, moves, strict=True) if here)
        moving = lambda leaves: ravel_pytree(
            [leaf for leaf, here in zip(leaves, moves, strict=True) if here]
        )
        share = math.sqrt(problem.latent_weight(batch) / self.num_particles)
        leaves_at = lambda parameters, noise: jax.tree.leaves(middle(parameters, noise))
        each = lambda function: jax.vmap(function)(noise)
        if size > MOST_COORDINATES:
            return FisherOperator(
                parameters, lambda p: share * each(lambda n: factors(leaves_at(p, n))).ravel()
            )

        def root(leaves: list[Array]) -> Float[Array, "d d"]:
            flat, restore = moving(leaves)

            def total(vector: Array) -> Array:
                rest = iter(restore(vector))
                pairs = zip(leaves, moves, strict=True)
                return jnp.sum(factors([next(rest) if here else leaf for leaf, here in pairs]))

            return root_of_size(jax.hessian(total)(flat))

        frozen = jax.lax.stop_gradient(parameters)
        roots = share * each(lambda n: root(leaves_at(frozen, n)))

        def row_function(parameters: Parameters) -> Array:
            one = lambda n, root: root @ moving(leaves_at(parameters, n))[0]
            return jax.vmap(one)(noise, roots).ravel()

        return FisherOperator(parameters, row_function)


def root_of_size(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """S with S^T S = |A|, the matrix with the absolute values of the eigenvalues of A.

    Zero where A is not finite, as behind a factor of minus infinity: the other terms still hold.
    """
    matrix = jnp.where(jnp.all(jnp.isfinite(matrix)), matrix, jnp.zeros_like(matrix))
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    return jnp.sqrt(jnp.abs(values))[:, None] * vectors.T
