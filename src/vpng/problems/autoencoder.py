"""The variational autoencoder, Section 5.2: local latents, any encoder, decoder and likelihood."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.nn.initializers import Initializer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.errors import InputError, expected
from vpng.problem import Parameters
from vpng.problems.amortised import AmortisedNormal
from vpng.problems.likelihoods import AbstractLikelihood, BernoulliLikelihood, pair
from vpng.problems.networks import GLOROT, TRUNCATED_NORMAL, AffineLayer, Network, mlp, mlp_apply

Apply = Callable[[PyTree, Array], PyTree]


class VariationalAutoencoder(AmortisedNormal):
    """z_i ~ N(0, I), x_i ~ p(x | decoder(z_i; theta)), q(z_i | x_i) = N(loc, exp(log_scale)^2).

    loc and log_scale, vectors with an entry for each latent dimension, are the encoder's outputs at
    x_i with the parameters lambda. A batch is an array of data of shape `[B, *event_shape]`. Made
    by `vae`, which checks that the parts fit.

    Attributes:
        num_data: n.
        latent_dim: the length of z_i.
        event_shape: the shape of one datum.
        encoder: (lambda, x) -> the pair (loc, log_scale), each `[B, latent_dim]`, or both side by
            side in one array.
        decoder: (theta, z) -> outputs, the data along the first axis.
        observation: the likelihood, given the outputs.
    """

    num_data: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    event_shape: tuple[int, ...] = eqx.field(static=True)
    encoder: Apply
    decoder: Apply
    observation: AbstractLikelihood = BernoulliLikelihood()

    def encode(
        self, variational: PyTree, batch: Num[Array, "B ..."]
    ) -> tuple[Float[Array, "B k"], Float[Array, "B k"]]:
        """The loc and log_scale of q(z | x)."""
        if batch.shape[1:] != self.event_shape:
            raise expected("batch", f"data of shape {self.event_shape}", batch.shape[1:])
        loc, log_scale = pair("encoder", self.encoder(variational, batch))
        self.check_encoded(loc, log_scale, batch)
        return loc, log_scale

    def likelihood(
        self, model: PyTree, latent: Float[Array, "B k"], batch: Num[Array, "B ..."]
    ) -> dist.Distribution:
        return self.observation.distribution(self.decoder(model, latent), self.event_shape)

    def observed(self, batch: Num[Array, "B ..."]) -> Num[Array, "B ..."]:
        return self.observation.observed(batch)


class Setup(NamedTuple):
    """A problem with its initial parameters and its checked data."""

    problem: VariationalAutoencoder
    parameters: Parameters
    data: Num[Array, "n ..."]


def vae(
    encoder: Network,
    decoder: Network,
    data: Num[Array, "n ..."],
    *,
    likelihood: AbstractLikelihood = BernoulliLikelihood(),
) -> Setup:
    """A variational autoencoder from two networks; the latent dimension is the encoder's.

    Args:
        encoder: gives (loc, log_scale), or both side by side in one array.
        decoder: gives the likelihood's parameters.
        data: one datum along the first axis.
        likelihood: of the data given the decoder's outputs.

    Raises:
        InputError: for data outside the likelihood's support, or networks that do not fit.
    """
    data = _checked(likelihood, data)
    first = jax.ShapeDtypeStruct((1, *data.shape[1:]), data.dtype)
    encode = lambda parameters, x: pair("encoder", encoder.apply(parameters, x))
    loc, _ = _outputs("encoder", encode, encoder.parameters, first)
    if loc.ndim != 2:
        raise expected("encoder", "loc of shape (B, latent_dim)", f"shape {loc.shape}")
    problem = VariationalAutoencoder(
        num_data=data.shape[0],
        latent_dim=loc.shape[1],
        event_shape=data.shape[1:],
        encoder=_as_pytree(encoder.apply),
        decoder=_as_pytree(decoder.apply),
        observation=likelihood,
    )
    _outputs("encoder", problem.encode, encoder.parameters, first)
    outputs = _outputs("decoder", decoder.apply, decoder.parameters, loc)
    jax.eval_shape(partial(likelihood.distribution, event_shape=problem.event_shape), outputs)
    return Setup(problem, Parameters(encoder.parameters, decoder.parameters), data)


def mlp_vae(
    rng_key: PRNGKeyArray,
    data: Num[ArrayLike, "n ..."],
    *,
    latent_dim: int,
    hidden: Sequence[int] = (200, 200),
    likelihood: AbstractLikelihood = BernoulliLikelihood(),
    initialiser: Initializer = GLOROT,
) -> Setup:
    """A variational autoencoder of two perceptrons, the decoder the encoder's mirror image.

    For real data `standardised` gives parameters to start from whatever their scale, `calibrated`
    for binary ones.

    Args:
        rng_key: a key.
        data: one datum along the first axis.
        latent_dim: the length of z.
        hidden: the widths of the encoder's hidden layers, from the data to the latents.
        likelihood: of the data given the decoder's outputs.
        initialiser: draws the weights.

    Raises:
        InputError: for data outside the likelihood's support or a width below one.
    """
    positive_integer("latent_dim", latent_dim)
    data = _checked(likelihood, data)
    features = jax.eval_shape(likelihood.features, data)
    encoder_key, decoder_key = jax.random.split(rng_key)
    encoder = mlp(
        encoder_key, (features.shape[1], *hidden, 2 * latent_dim), initialiser, dtype=features.dtype
    )
    decoder = mlp(
        decoder_key,
        (latent_dim, *reversed(hidden), likelihood.num_outputs(data.shape[1:])),
        initialiser,
        dtype=features.dtype,
    )
    encoder = encoder._replace(apply=_FeatureEncoder(likelihood))
    return vae(encoder, decoder, data, likelihood=likelihood)


def paper_vae(rng_key: PRNGKeyArray, data: Num[ArrayLike, "n ..."]) -> Setup:
    """Section 5.2 for binary images: 784-200-200-(2 x 100) and 100-200-200-784 units."""
    return mlp_vae(rng_key, data, latent_dim=100, initialiser=TRUNCATED_NORMAL)


def calibrated(setup: Setup, *, gain: float = 2.0, log_scale: float = -1.0) -> Parameters:
    """Initial parameters that fit the data's margins, for two perceptrons and binary data.

    The decoder's last bias becomes the log-odds of every pixel, so that training starts at the
    independent model instead of at noise; the encoder's means are `gain` times larger and its
    standard deviations start at exp(log_scale), so that the latents carry a signal at once.

    Args:
        setup: from `mlp_vae` with a Bernoulli likelihood.
        gain: of the encoder's means.
        log_scale: the first log-scale of q.
    """
    if not isinstance(setup.problem.observation, BernoulliLikelihood):
        raise expected("setup", "a Bernoulli likelihood", type(setup.problem.observation).__name__)
    *inner, head = setup.parameters.variational
    *outer, last = setup.parameters.model
    if not isinstance(head, AffineLayer) or not isinstance(last, AffineLayer):
        raise expected("setup", "perceptrons as made by mlp_vae", type(head).__name__)
    size = setup.problem.latent_dim
    head = AffineLayer(head.kernel.at[:, :size].multiply(gain), head.bias.at[size:].set(log_scale))
    mean = jnp.mean(setup.data, axis=0).reshape(-1)
    odds = jnp.log((mean + 0.01) / (1.01 - mean)).astype(last.bias.dtype)
    last = last._replace(bias=odds)
    return Parameters((*inner, head), (*outer, last))


def decode(
    problem: VariationalAutoencoder, model: PyTree, latent: Float[Array, "m k"]
) -> Float[Array, "m ..."]:
    """E[x | z] at each z; for categories the probability of every class."""
    return problem.observation.mean(problem.decoder(model, latent), problem.event_shape)


def reconstruct(
    problem: VariationalAutoencoder, parameters: Parameters, batch: Num[Array, "B ..."]
) -> Float[Array, "B ..."]:
    """`decode` at the mean of q(z | x)."""
    loc, _ = problem.encode(parameters.variational, batch)
    return decode(problem, parameters.model, loc)


def sample_prior(
    rng_key: PRNGKeyArray, problem: VariationalAutoencoder, model: PyTree, num_samples: int
) -> Num[Array, "m ..."]:
    """Draws of x from the model p(z) p(x | z; theta); `decode` gives their means instead."""
    positive_integer("num_samples", num_samples)
    latent_key, data_key = jax.random.split(rng_key)
    latent = jax.random.normal(latent_key, (num_samples, problem.latent_dim))
    outputs = problem.decoder(model, latent)
    likelihood = problem.observation.distribution(outputs, problem.event_shape)
    return jnp.asarray(likelihood.sample(data_key))


class _FeatureEncoder(eqx.Module):
    likelihood: AbstractLikelihood

    def __call__(self, layers: PyTree, batch: Num[Array, "B ..."]) -> Float[Array, "B m"]:
        return mlp_apply(layers, self.likelihood.features(batch))


def _as_pytree(function: Apply) -> Any:
    """`function` such that a problem that holds it can be an argument of `jax.jit`."""
    return function if isinstance(function, eqx.Module) else jax.tree_util.Partial(function)


def _checked(likelihood: AbstractLikelihood, data: Num[ArrayLike, "n ..."]) -> Num[Array, "n ..."]:
    data = likelihood.check("data", data)
    if data.ndim < 2 or 0 in data.shape:
        wanted = "an array of shape (n, ...) that is not empty"
        raise expected("data", wanted, f"shape {data.shape}")
    return data


def _outputs(name: str, apply: Apply, parameters: PyTree, inputs: PyTree) -> PyTree:
    """The shapes of a network's outputs; what it cannot take is named."""
    try:
        return jax.eval_shape(apply, parameters, inputs)
    except InputError:
        raise
    except Exception as error:
        wanted = f"a network that takes inputs of shape {inputs.shape}"
        raise expected(name, wanted, f"the error: {error}") from error
