"""Points side by side, or one after the other where matrices are solved."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

from vpng.errors import InputError
from vpng.numpyro import infer
from vpng.posterior import Budget, log_density
from vpng.posterior.batches import FEWEST, MOST_NUMBERS, over

INPUTS = np.linspace(0.0, 1.0, 6, dtype=np.float32)


def process(inputs):
    length = numpyro.sample("length", dist.LogNormal())
    matrix = jnp.exp(-((inputs[:, None] - inputs) ** 2) / length) + 0.1 * jnp.eye(inputs.size)
    prior = dist.MultivariateNormal(jnp.zeros(inputs.size), covariance_matrix=matrix)
    numpyro.sample("response", prior, obs=jnp.sin(inputs))


def level(inputs):
    numpyro.sample("x", dist.Normal(numpyro.sample("mean", dist.Normal()), 1.0), obs=inputs)


def test_points_of_a_gaussian_process_are_taken_one_after_the_other():
    alone = log_density(process, (INPUTS,), {})
    assert alone.one_by_one
    assert not log_density(level, (INPUTS,), {}).one_by_one
    points = jnp.asarray([[0.1], [-0.3], [1.0]])
    together = jax.jit(jax.vmap(alone))(points)
    np.testing.assert_allclose(jax.jit(over(alone, alone))(points), together, rtol=1e-5)


class Rows(eqx.Module):
    """A density of so many data."""

    data: jax.Array

    def __call__(self, point):
        return jnp.sum(self.data[:1]) + point[0]


def test_of_many_data_few_points_go_together():
    data = jax.ShapeDtypeStruct((MOST_NUMBERS // FEWEST,), jnp.float32)
    points = jax.ShapeDtypeStruct((20, 1), jnp.float32)
    program = jax.make_jaxpr(lambda data, points: over(Rows(data), Rows(data))(points))
    loops = [each for each in program(data, points).eqns if each.primitive.name == "scan"]
    # And the four that are left by themselves.
    assert [loop.params["length"] for loop in loops] == [20 // FEWEST]


def decay(times, heights=None):
    rate = numpyro.sample("rate", dist.LogNormal())
    mean = odeint(lambda x, t, rate: -rate * x, jnp.ones(()), times, rate)
    numpyro.sample("height", dist.Normal(mean, 0.1).to_event(1), obs=heights)


def test_what_has_no_second_derivatives_gets_a_clear_word():
    with pytest.raises(InputError, match="second derivatives"):
        infer(decay, INPUTS, heights=jnp.exp(-INPUTS), budget=Budget(num_starts=1))
