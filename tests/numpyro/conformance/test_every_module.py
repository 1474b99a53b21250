"""Networks in models and guides: every function of `numpyro.contrib.module`."""

import equinox as eqx
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro.contrib.module import (
    eqx_module,
    flax_module,
    nnx_module,
    random_eqx_module,
    random_flax_module,
    random_nnx_module,
)
from numpyro.infer import autoguide
from programs import Program, as_numpyro, lowers_the_loss

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32)[:, None]
Y = np.sin(2.0 * X[:, 0])


def observed(prediction):
    with numpyro.plate("data", len(Y)):
        numpyro.sample("y", dist.Normal(prediction[:, 0], 0.3), obs=Y)


def linen(x):
    return flax_module("net", flax.linen.Dense(1), input_shape=(1,))(x)


def linen_with_state(x):
    class Normalised(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            x = flax.linen.BatchNorm(use_running_average=False)(x)
            return flax.linen.Dense(1)(x)

    net = flax_module("net", Normalised(), input_shape=(6, 1), mutable=["batch_stats"])
    return net(x)


def linen_with_dropout(x):
    class Dropping(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            x = flax.linen.Dense(3)(x)
            return flax.linen.Dense(1)(flax.linen.Dropout(0.2, deterministic=False)(x))

    net = flax_module("net", Dropping(), input_shape=(6, 1), apply_rng=["dropout"])
    return net(x, rngs={"dropout": numpyro.prng_key()})


def neural(x):
    return nnx_module("net", nnx.Linear(1, 1, rngs=nnx.Rngs(0)))(x)


def neural_with_state(x):
    class Normalised(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(1, rngs=rngs)
            self.linear = nnx.Linear(1, 1, rngs=rngs)

        def __call__(self, x):
            return self.linear(self.norm(x))

    return nnx_module("net", Normalised(nnx.Rngs(0)))(x)


def equinox_net(x):
    return jax.vmap(eqx_module("net", eqx.nn.Linear(1, 1, key=jax.random.key(0))))(x)


def random_linen(x):
    return random_flax_module("net", flax.linen.Dense(1), dist.Normal(0.0, 1.0), input_shape=(1,))(
        x
    )


def random_neural(x):
    priors = {"kernel": dist.Normal(0.0, 1.0), "bias": dist.Cauchy()}
    return random_nnx_module("net", nnx.Linear(1, 1, rngs=nnx.Rngs(0)), priors)(x)


def random_equinox(x):
    layer = eqx.nn.Linear(1, 1, key=jax.random.key(0))
    return jax.vmap(random_eqx_module("net", layer, lambda name, shape: dist.Normal(0.0, 1.0)))(x)


def learned(net):
    """The weights are parameters of the model, beside one latent."""

    def program():
        def model(x):
            shift = numpyro.sample("shift", dist.Normal(0.0, 0.1))
            observed(net(x) + shift)

        return Program(model, autoguide.AutoNormal(model), args=(X,))

    return program


def amortised(net):
    """The weights are parameters of the guide."""

    def program():
        def model(x):
            with numpyro.plate("data", len(Y)):
                level = numpyro.sample("level", dist.Normal(0.0, 1.0))
                numpyro.sample("y", dist.Normal(level, 0.3), obs=Y)

        def guide(x):
            location = net(jnp.asarray(Y)[:, None])[:, 0]
            with numpyro.plate("data", len(Y)):
                numpyro.sample("level", dist.Normal(location, 0.2))

        return Program(model, guide, args=(X,))

    return program


PROGRAMS = {
    "flax_module": learned(linen),
    "flax_module, batch statistics": learned(linen_with_state),
    "flax_module, dropout": learned(linen_with_dropout),
    "flax_module in a guide": amortised(linen),
    "nnx_module": learned(neural),
    "nnx_module, batch statistics": learned(neural_with_state),
    "nnx_module in a guide": amortised(neural),
    "eqx_module": learned(equinox_net),
    "eqx_module in a guide": amortised(equinox_net),
    "random_flax_module": learned(random_linen),
    "random_nnx_module": learned(random_neural),
    "random_eqx_module": learned(random_equinox),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loss_is_numpyros(make_usual, name):
    as_numpyro(make_usual, PROGRAMS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_lower_the_loss(make_ours, name):
    lowers_the_loss(make_ours, PROGRAMS[name])
