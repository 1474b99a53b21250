"""A posterior as ArviZ's DataTree."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from numpyro import handlers
from numpyro.infer import Predictive, log_likelihood

from vpng.extras import Extra, require
from vpng.posterior.density import LogDensity

if TYPE_CHECKING:
    from xarray import DataTree

CHAINS = 4
"""Among which independent draws are dealt, for ArviZ."""


def to_arviz(
    density: LogDensity,
    samples: Mapping[str, np.ndarray],
    heights: np.ndarray,
    attrs: Mapping[str, float | str],
    rng_key: PRNGKeyArray,
) -> "DataTree":
    """Draws of equal weight with predictions, log likelihoods and their log densities.

    Args:
        density: log p(x, z).
        samples: of every site, along the first axis; as many as divide among four chains.
        heights: log p(x, z) there.
        attrs: what is said of the posterior as a whole.
        rng_key: of the predictions.
    """
    require("Posterior.to_arviz", Extra.ARVIZ)
    from arviz_base import from_dict

    model, latents = density.with_parameters(), {each.name for each in density.latents}
    values = {name: value for name, value in samples.items() if name in latents}
    observed = _observed(density)
    free = Predictive(handlers.uncondition(model), values)(rng_key, *density.args, **density.kwargs)
    groups = {
        "posterior": samples,
        "posterior_predictive": {name: free[name] for name in observed if name in free},
        "log_likelihood": log_likelihood(model, values, *density.args, **density.kwargs),
        "sample_stats": {"lp": heights},
    }
    dealt = {
        group: {name: _dealt(np.asarray(value)) for name, value in part.items()}
        for group, part in groups.items()
    }
    tree = from_dict({**dealt, "observed_data": observed})
    tree.attrs.update(attrs)
    return tree


def _dealt(value: np.ndarray) -> np.ndarray:
    return value.reshape(CHAINS, -1, *value.shape[1:])


def _observed(density: LogDensity) -> dict[str, np.ndarray]:
    seeded = handlers.seed(density.with_parameters(), jax.random.key(0))
    with handlers.block():
        trace = handlers.trace(seeded).get_trace(*density.args, **density.kwargs)
    return {
        name: np.asarray(site["value"])
        for name, site in trace.items()
        if site["type"] == "sample" and site["is_observed"] and site["value"] is not None
    }
