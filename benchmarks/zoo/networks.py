"""Networks: one with a prior on its weights, and a variational autoencoder."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.module import nnx_module
from sklearn.datasets import load_digits

from zoo.case import Case, normal_guides

NUM_HIDDEN = 10
NUM_LATENTS = 8
BATCH_SIZE = 100


def bayesian_network(inputs: jax.Array, responses: jax.Array) -> None:
    weights = dist.Normal(0.0, 1.0)
    first = numpyro.sample("first", weights.expand([2, NUM_HIDDEN]).to_event(2))
    second = numpyro.sample("second", weights.expand([NUM_HIDDEN + 1]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    hidden = jnp.tanh(2.0 * (inputs[:, None] * first[0] + first[1]))
    mean = hidden @ second[:-1] + second[-1]
    with numpyro.plate("data", inputs.size):
        numpyro.sample("response", dist.Normal(mean, noise), obs=responses)


def autoencoder(images: jax.Array) -> Case:
    from flax import nnx

    num_images, num_pixels = images.shape
    rngs = nnx.Rngs(0)

    def layers(sizes: tuple[int, int, int]) -> nnx.Module:
        first, second = (nnx.Linear(*sizes[i : i + 2], rngs=rngs) for i in range(2))
        return nnx.Sequential(first, nnx.tanh, second)

    encoder = layers((num_pixels, 64, 2 * NUM_LATENTS))
    decoder = layers((NUM_LATENTS, 64, num_pixels))

    def model(images: jax.Array, batch_size: int | None = None) -> None:
        decode = nnx_module("decoder", decoder)
        with numpyro.plate("images", num_images, subsample_size=batch_size) as chosen:
            code = numpyro.sample("code", dist.Normal(jnp.zeros(NUM_LATENTS), 1.0).to_event(1))
            pixels = dist.Bernoulli(logits=decode(code)).to_event(1)
            numpyro.sample("image", pixels, obs=images[chosen])

    def guide(images: jax.Array, batch_size: int | None = None) -> None:
        encode = nnx_module("encoder", encoder)
        with numpyro.plate("images", num_images, subsample_size=batch_size) as chosen:
            mean, raw = jnp.split(encode(images[chosen]), 2, axis=-1)
            numpyro.sample("code", dist.Normal(mean, jnp.exp(raw)).to_event(1))

    return Case(
        "VAE, digits",
        "amortised",
        model,
        lambda: guide,
        (images,),
        training={"batch_size": BATCH_SIZE},
        elbo_divisor=num_images,
        elbo_samples=(2, 20),
    )


def cases() -> tuple[Case, ...]:
    rng = np.random.default_rng(4)
    inputs = np.linspace(-2.0, 2.0, 60)
    responses = np.sin(2.0 * inputs) + 0.1 * rng.normal(size=60)
    digits = jnp.asarray(load_digits().data > 8.0, jnp.float32)
    return (
        *normal_guides("Bayesian network", bayesian_network, (inputs, responses)),
        autoencoder(digits),
    )
