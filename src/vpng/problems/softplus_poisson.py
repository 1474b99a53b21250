"""Counts with the rate softplus(output), safe for rates near zero, the constant kept apart.

log p(x | t) = x log softplus(t) - softplus(t) - log x!. The last term does not depend on any
parameter: of data it is computed once (`counted`) and handed over with them, never in a loop.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Num
from numpyro.distributions import constraints

from vpng.fisher.families import same_density

_BELOW_THIS_LINEAR = -15.0


class Counted(NamedTuple):
    """Rows of counts with what is constant in their likelihood.

    Attributes:
        counts: in any type, bytes for instance.
        log_factorials: the sum of log x! over each row.
    """

    counts: Num[Array, "B m"]
    log_factorials: Float[Array, " B"]


def counted(counts: Num[np.ndarray, "n m"]) -> Counted:
    """Rows of whole numbers with their log-factorials, a few thousand rows at a time."""
    from scipy.special import gammaln as host_gammaln

    host = np.asarray(counts)
    parts = [
        host_gammaln(host[start : start + 4096].astype(np.float64) + 1.0).sum(axis=1)
        for start in range(0, len(host), 4096)
    ]
    total = np.concatenate(parts) if parts else np.zeros(0)
    return Counted(jnp.asarray(host), jnp.asarray(total, jnp.result_type(float)))


def log_softplus(t: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logarithm of log(1 + e^t), with its derivative, for every t.

    Far below zero softplus underflows; there log softplus(t) = t - e^t / 2 + O(e^2t).
    """
    far = t < _BELOW_THIS_LINEAR
    # Each branch sees what it can take, so that no infinity enters the derivative of the other.
    low, high = jnp.where(far, t, _BELOW_THIS_LINEAR), jnp.where(far, _BELOW_THIS_LINEAR, t)
    return jnp.where(far, low - 0.5 * jnp.exp(low), jnp.log(jax.nn.softplus(high)))


@same_density
class SoftplusPoisson(dist.Poisson):
    """x ~ Poisson(softplus(outputs)), one count an output."""

    arg_constraints = {"outputs": constraints.real}  # noqa: RUF012  (NumPyro's own form)

    def __init__(self, outputs: Float[Array, "..."], *, validate_args: bool | None = None) -> None:
        self.outputs = outputs
        super().__init__(jax.nn.softplus(outputs), validate_args=validate_args)

    def varying(self, value: Num[Array, "..."]) -> Float[Array, "..."]:
        """The log-density without its constant -log value!."""
        return value * log_softplus(self.outputs) - self.rate

    def log_prob(self, value: Num[Array, "..."]) -> Float[Array, "..."]:
        return self.varying(value) - gammaln(value + 1.0)


@same_density
class PoissonRow(dist.Independent):
    """A row of independent counts; its log-density takes an array, or `Counted` data."""

    def __init__(self, outputs: Float[Array, "B m"]) -> None:
        super().__init__(SoftplusPoisson(outputs, validate_args=False), 1, validate_args=False)

    def log_prob(self, value: Counted | Num[Array, "B m"]) -> Float[Array, " B"]:
        if not isinstance(value, Counted):
            return jnp.asarray(super().log_prob(value))
        counts: Any = self.base_dist
        return jnp.sum(counts.varying(value.counts), axis=-1) - value.log_factorials
