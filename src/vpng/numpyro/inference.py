"""A NumPyro model and the wish for a posterior: one call."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from vpng.numpyro.svi import SVI
from vpng.posterior import Budget, Posterior, log_density, posterior_of


def infer(
    model: Callable,
    *args: Any,
    rng_key: PRNGKeyArray | None = None,
    guide: Callable | None = None,
    budget: Budget | None = None,
    **kwargs: Any,
) -> Posterior:
    """The posterior of a model's latents: no guide, no optimizer, no number of steps.

    The best normal approximation is found from several starts, factorised first and then, where
    matrices of all latents are formed, with all correlations; its covariance is that of linear
    response. Its draws are weighted to the posterior, or moved there where weights fail, and a
    verdict says what to make of them.

    Args:
        model: the model; discrete latents are summed over.
        *args: its positional arguments.
        rng_key: a key, for a guide's run.
        guide: a guide of one's own, fitted first, to start from and to compare with.
        budget: what may be spent.
        **kwargs: the model's keyword arguments.
    """
    if guide is None:
        return posterior_of(log_density(model, args, kwargs), budget)
    svi = SVI(model, guide)
    rng_key = jax.random.key(0) if rng_key is None else rng_key
    result = svi.run(rng_key, "auto", *args, progress_bar=False, **kwargs)
    return svi.posterior(result, *args, budget=budget, **kwargs)
