"""NumPyro's sampler, started where the posterior is, with its covariance as its metric."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from numpyro.infer import MCMC, NUTS

from vpng.checks import positive_integer
from vpng.posterior.density import LogDensity
from vpng.posterior.metric import Metric

KNOWN_METRIC_WARMUP = 100
"""Steps of warm-up where only the step size is to be found."""
WARMUP = 500
"""Where the posterior is not to be relied on, and its covariance is a place to begin."""


class HandedOver(MCMC):
    """An `MCMC` that knows where to start and what the model is called with.

    `run(rng_key)` is all it needs; with arguments it is `MCMC.run`.
    """

    def __init__(self, kernel: NUTS, density: LogDensity, starts: Any, **settings: Any) -> None:
        super().__init__(kernel, **settings)
        self._density = density
        self._starts = starts

    def run(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        extra_fields: tuple[str, ...] = (),
        init_params: Any = None,
        **kwargs: Any,
    ) -> None:
        """See `numpyro.infer.MCMC.run`; data are the posterior's if left out."""
        if not args and not kwargs:
            args, kwargs = self._density.args, self._density.kwargs
        starts = self._starts if init_params is None else init_params
        super().run(rng_key, *args, extra_fields=extra_fields, init_params=starts, **kwargs)


def nuts(
    density: LogDensity,
    starts: Float[np.ndarray, "C P"],
    metric: Metric,
    *,
    known: bool,
    num_warmup: int | None,
    num_samples: int,
    chain_method: str | Callable | None,
    progress_bar: bool,
    **settings: Any,
) -> HandedOver:
    """The sampler.

    Args:
        density: log p(x, z).
        starts: one draw for every chain.
        metric: the covariance of the latents.
        known: whether that is the posterior's, so that no metric is to be found.
        num_warmup: steps of warm-up; a few if the metric is known, if left out.
        num_samples: steps that are kept.
        chain_method: as in `numpyro.infer.MCMC`; side by side where that is safe, if left out.
        progress_bar: whether to show one.
        **settings: of `numpyro.infer.NUTS`.
    """
    positive_integer("num_samples", num_samples)
    if num_warmup is None:
        num_warmup = KNOWN_METRIC_WARMUP if known else WARMUP
    blocks = isinstance(metric, dict)
    defaults = {
        "inverse_mass_matrix": jax.tree.map(lambda m: jnp.asarray(m, jnp.zeros(()).dtype), metric),
        "dense_mass": [names for names in metric if metric[names].ndim == 2]
        if blocks
        else metric.ndim == 2,
        "adapt_mass_matrix": not known,
        # The stable step of a standard normal shrinks so with the number of its latents.
        "step_size": 1.0 / starts.shape[1] ** 0.25,
    }
    kernel = NUTS(density.with_parameters(), **{**defaults, **settings})
    if chain_method is None:
        chain_method = "sequential" if density.one_by_one else "vectorized"
    placed = density.unflatten(jnp.asarray(starts, jnp.zeros(()).dtype))
    if len(starts) == 1:
        placed = jax.tree.map(lambda leaf: leaf[0], placed)
    return HandedOver(
        kernel,
        density,
        placed,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=len(starts),
        chain_method=chain_method,
        progress_bar=progress_bar,
    )
