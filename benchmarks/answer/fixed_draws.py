"""Deterministic ADVI (Giordano, Ingram and Broderick, 2024): fixed draws, mean field, Newton.

The ELBO with thirty draws that stay the same is a function like any other, and second-order methods
minimise it: SciPy's trust region with conjugate gradients, and products with the Hessian.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpyro.infer.util import initialize_model
from scipy.optimize import minimize

NUM_DRAWS = 30


def log_density(
    model: Callable, args: tuple, rng_key: Array
) -> tuple[Callable[[Float[Array, " d"]], Array], Float[Array, " d"]]:
    """The log-density of the unconstrained latents as one vector, and where to start."""
    found = initialize_model(rng_key, model, model_args=args)
    start, unravel = ravel_pytree(found.param_info.z)
    return lambda flat: -found.potential_fn(unravel(flat)), start


def fit(model: Callable, args: tuple, rng_key: Array) -> dict[str, Any]:
    """Mean and standard deviations of the latents, in the order of their names."""
    density, start = log_density(model, args, rng_key)
    noise = jax.random.normal(jax.random.fold_in(rng_key, 1), (NUM_DRAWS, start.size))

    @jax.jit
    def loss(flat: Array) -> Array:
        mean, log_scale = jnp.split(flat, 2)
        latents = mean + jnp.exp(log_scale) * noise
        return -jnp.mean(jax.vmap(density)(latents)) - jnp.sum(log_scale)

    slope = jax.jit(jax.value_and_grad(loss))
    curve = jax.jit(lambda flat, step: jax.jvp(jax.grad(loss), (flat,), (step,))[1])
    single = lambda flat: jnp.asarray(flat, start.dtype)
    double = lambda leaf: np.asarray(leaf, np.float64)
    found = minimize(
        lambda flat: tuple(map(double, slope(single(flat)))),
        double(jnp.concatenate([start, jnp.full_like(start, -2.0)])),
        jac=True,
        hessp=lambda flat, step: double(curve(single(flat), single(step))),
        method="trust-ncg",
        options={"gtol": 1e-3, "maxiter": 500},
    )
    mean, log_scale = np.split(found.x, 2)
    return {"mean": mean, "scale": np.exp(log_scale), "density": density}
