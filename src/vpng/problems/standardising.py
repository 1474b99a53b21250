"""Where to start with real data of any scale."""

from typing import cast

import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.problem import Parameters
from vpng.problems.networks import AffineLayer


def standardised(parameters: Parameters, data: Float[Array, "n m"]) -> Parameters:
    """The parameters of `mlp_vae` with a normal likelihood, as if the data had been standardised.

    With the columns' means m and deviations s the encoder's first layer sees (x - m) / s and the
    decoder's last one gives m + s y. A learned scale starts at s, and that of q at one, whatever z
    and x are: weights drawn for log-scales make the scale of some data so small that the first
    gradients have no bound. A column that is constant counts as one with s = 1.

    Args:
        parameters: of two perceptrons.
        data: one datum a row.
    """
    mean, deviation = jnp.mean(data, axis=0), jnp.std(data, axis=0)
    deviation = jnp.where(deviation > 0, deviation, 1.0)
    first, *inner = cast(tuple[AffineLayer, ...], parameters.variational)
    kernel = first.kernel / deviation[:, None]
    *inner, head = AffineLayer(kernel, first.bias - mean @ kernel), *inner
    half = head.kernel.shape[1] // 2
    head = AffineLayer(head.kernel.at[:, half:].set(0.0), head.bias.at[half:].set(0.0))
    *outer, last = cast(tuple[AffineLayer, ...], parameters.model)
    size = len(mean)
    kernel = last.kernel.at[:, :size].multiply(deviation)
    kernel = kernel.at[:, size:].set(0.0)
    bias = last.bias.at[:size].set(mean).at[size:].set(jnp.log(deviation)[: last.bias.size - size])
    return Parameters((*inner, head), (*outer, AffineLayer(kernel, bias)))
