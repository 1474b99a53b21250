"""The one Fisher entry that needs an integral: the dispersion of the negative binomial."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_NODES = 96


def negative_binomial_dispersion_information(
    mean: Float[Array, "..."], dispersion: Float[Array, "..."]
) -> Float[Array, "..."]:
    """I_rr of NegativeBinomial(mean m, dispersion r), to quadrature accuracy.

    I_rr = E[psi'(r) - psi'(r + X)] - 1/r + 1/(r + m). With the probability generating function
    G(t) = (1 + (1 - t) m / r)^-r and t = exp(-s),

        E[psi'(r) - psi'(r + X)] = int_0^inf (1 - G(e^-s)) e^(-r s) s / (1 - e^-s) ds,

    whose integrand is smooth on the logarithmic axis u = log s: the trapezoid rule there converges
    geometrically. The cancelling terms -1/r + 1/(r + m) = -int_0^inf (1 - e^(-m s)) e^(-r s) ds are
    taken under the same integral, which keeps the small difference accurate in float32.
    """
    m, r = jnp.broadcast_arrays(jnp.asarray(mean), jnp.asarray(dispersion))
    m, r = m[..., None], r[..., None]
    # Below s = 1e-5 / (1 + m + r) and above s = 40 / r the integrand is negligible.
    low = jnp.log(1e-5 / (1.0 + m + r))
    high = jnp.log(40.0 / r)
    unit = jnp.asarray((np.arange(_NODES) + 0.5) / _NODES, dtype=m.dtype)
    step = (high - low) / _NODES
    s = jnp.exp(low + (high - low) * unit)
    decay = -jnp.expm1(-s)
    missing_mass = -jnp.expm1(-r * jnp.log1p(decay * m / r))
    ratio = s / decay
    integrand = (missing_mass * ratio + jnp.expm1(-m * s)) * jnp.exp(-r * s)
    return jnp.maximum(jnp.sum(integrand * s * step, axis=-1), 0.0)
