"""What any guide says about the latents, in unconstrained space."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro import handlers
from numpyro.infer.util import unconstrain_fn

from vpng.errors import expected
from vpng.posterior.approximate import Guide
from vpng.posterior.density import LogDensity

NUM_DRAWS = 4096
NARROWEST = 1e-3
"""Standard deviation at which the search starts where a guide, such as a point, has none."""


def guide_moments(
    density: LogDensity, guide: Callable, params: Mapping[str, PyTree], seed: int = 0
) -> Guide:
    """Means and standard deviations of a guide's draws.

    Args:
        density: of the model.
        guide: any guide for it.
        params: constrained values of its parameters.
        seed: of the draws.
    """
    names = [latent.name for latent in density.latents]

    def draw(key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any]) -> Float[Array, " P"]:
        given = handlers.substitute(handlers.seed(guide, key), data=dict(params))
        with handlers.block():
            trace = handlers.trace(given).get_trace(*args, **kwargs)
        missing = [name for name in names if name not in trace]
        if missing:
            raise expected("guide", f"a draw of the latents {names}", f"none of {missing}")
        values = {name: trace[name]["value"] for name in names}
        model = handlers.seed(density.with_parameters(), jax.random.key(0))
        return density.flatten(unconstrain_fn(model, args, kwargs, values))

    keys = jax.random.split(jax.random.key(seed), NUM_DRAWS)
    drawn = eqx.filter_jit(eqx.filter_vmap(draw, in_axes=(0, None, None)))
    z = np.asarray(drawn(keys, density.args, density.kwargs), np.float64)
    z = np.where(np.isfinite(z), z, np.nan)
    loc, scale = np.nanmean(z, axis=0), np.nanstd(z, axis=0)
    return Guide(loc, np.maximum(scale, NARROWEST * (1 + np.abs(loc))))
