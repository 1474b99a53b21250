"""Whether the data are values that the likelihood allows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, PyTree
from numpyro.distributions import constraints

from vpng.errors import expected
from vpng.numerics.trees import is_traced
from vpng.problem.base import Parameters, Problem


def check_support(problem: Problem, parameters: Parameters, data: PyTree) -> None:
    """Refuse observed values outside the support of their distribution.

    A support that depends on parameters is not looked at, nor are values that a mask may hide. A
    Bernoulli takes anything between 0 and 1, such as the intensities of images.

    Raises:
        InputError: naming the site, its family, and a value that does not fit.
    """
    found: list[tuple[str, str, Any]] = []

    def collect(parameters: Parameters) -> Array:
        latent = problem.latent(
            parameters.variational, problem.noise(jax.random.key(0), data), data
        )
        for site in problem.likelihood_sites(parameters.model, latent, data):
            family, masked = _family(site.distribution)
            support = site.distribution.support
            if not masked and not any(map(is_traced, jax.tree.leaves(support))):
                found.append((site.name, family, support))
        return jnp.zeros(())

    jax.eval_shape(collect, parameters)
    values = jax.tree_util.tree_leaves_with_path(problem.observed(data))
    by_name = {jax.tree_util.keystr(path): value for path, value in values}
    for name, family, support in found:
        if name in by_name:
            _check(f"observed{name}", family, support, by_name[name])


def _check(where: str, family: str, support: Any, value: Array) -> None:
    if is_traced(value):
        return
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    wanted = constraints.unit_interval if support is constraints.boolean else support
    inside = np.asarray(wanted(value))
    if inside.all():
        return
    index = tuple(int(i) for i in np.argwhere(~inside)[0])
    bad = np.asarray(value)[index]
    raise expected(where, f"values that {family} allows", f"{bad} at index {index}")


def _family(distribution: Any) -> tuple[str, bool]:
    """The name of the innermost distribution, and whether a mask may hide values."""
    masked = False
    while hasattr(distribution, "base_dist"):
        masked = masked or isinstance(distribution, dist.MaskedDistribution)
        distribution = distribution.base_dist
    return type(distribution).__name__.removesuffix("Logits").removesuffix("Probs"), masked
