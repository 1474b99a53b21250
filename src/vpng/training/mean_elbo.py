"""The ELBO of a whole set, for records and early stopping."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.objective import ELBO
from vpng.problem import AbstractProblem, Parameters


def mean_elbo(
    problem: AbstractProblem, data: PyTree, num_particles: int
) -> Callable[[Parameters, PRNGKeyArray], Float[Array, ""]]:
    """The ELBO per datum over all of `data`, in parts that fit the caches."""
    size, part = problem.batch_size(data), 500
    count = size - size % part if size > part else size
    parts = jax.tree.map(
        lambda leaf: leaf[:count].reshape(-1, min(part, count), *leaf.shape[1:]), data
    )
    rest = jax.tree.map(lambda leaf: leaf[count:], data)
    objective = ELBO(num_particles)

    def evaluate(parameters: Parameters, rng_key: PRNGKeyArray) -> Array:
        keys = jax.random.split(rng_key, count // min(part, count) + 1)
        losses = jax.lax.map(
            lambda pair: objective.estimate(pair[0], problem, parameters, pair[1]).loss,
            (keys[:-1], parts),
        )
        total = jnp.sum(losses) * min(part, count)
        if size > count:
            total += objective.estimate(keys[-1], problem, parameters, rest).loss * (size - count)
        return -total / size

    return evaluate
