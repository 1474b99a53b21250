"""Models and guides that are mostly networks: Kronecker factors are found unasked."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from numpyro.contrib.module import nnx_module

from vpng.adaptive.rule import AdaptiveState
from vpng.fisher import Predictive
from vpng.numpyro import SVI
from vpng.numpyro.optimizer_rule import OptimizerState

ROWS = np.random.default_rng(0).random((24, 30)) < np.linspace(0.1, 0.9, 30)


class Encoder(nnx.Module):
    """A layer that keeps the running mean of what it has seen."""

    def __init__(self):
        self.linear = nnx.Linear(30, 40, rngs=nnx.Rngs(0))
        self.mean = nnx.Variable(jnp.zeros(30))

    def __call__(self, rows):
        self.mean[...] = 0.9 * self.mean[...] + 0.1 * rows.mean(axis=0)
        return self.linear(rows)


@cache
def networks():
    return nnx.Linear(20, 30, rngs=nnx.Rngs(0)), Encoder()


def model(rows):
    decode = nnx_module("decoder", networks()[0])
    with numpyro.plate("rows", len(rows)):
        code = numpyro.sample("code", dist.Normal(jnp.zeros(20), 1.0).to_event(1))
        numpyro.sample("row", dist.Bernoulli(logits=decode(code)).to_event(1), obs=rows)


def guide(rows):
    encode = nnx_module("encoder", networks()[1])
    with numpyro.plate("rows", len(rows)):
        mean, raw = jnp.split(encode(rows.astype(jnp.float32)), 2, axis=-1)
        numpyro.sample("code", dist.Normal(mean, jnp.exp(raw)).to_event(1))


@pytest.fixture(scope="module")
def run():
    # Made here, and not where the model is traced: what is kept must be no tracer.
    networks()
    svi = SVI(model, guide)
    return svi, svi.run(jax.random.key(0), 150, jnp.asarray(ROWS), progress_bar=False)


def test_the_rule_is_found_and_the_loss_falls(run):
    svi, result = run
    assert isinstance(result.state.optim_state, OptimizerState)
    assert svi.loss.num_particles == 2
    assert np.mean(result.losses[-20:]) < 0.75 * np.mean(result.losses[:5])


def test_the_average_is_read_out(run):
    _, result = run
    state = result.state.optim_state
    averaged = [np.asarray(leaf) for leaf in jax.tree.leaves(result.params["decoder$params"])]
    for found, kept in zip(averaged, jax.tree.leaves(state.accepted.model), strict=True):
        np.testing.assert_array_equal(found, kept)
    current = [np.asarray(leaf) for leaf in jax.tree.leaves(state.current.model)]
    assert any(np.any(a != b) for a, b in zip(averaged, current, strict=True))


def test_a_step_that_is_not_finite_is_dropped(run):
    svi, result = run
    broken = ROWS.astype(np.float32)
    broken[0, 0] = np.nan
    state, _ = jax.jit(svi.update)(result.state, broken)
    before = jax.tree.leaves((result.state.optim_state, result.state.mutable_state))
    after = jax.tree.leaves((state.optim_state, state.mutable_state))
    for now, then in zip(after, before, strict=True):
        np.testing.assert_array_equal(now, then)
    [mean] = jax.tree.leaves(result.state.mutable_state)
    np.testing.assert_allclose(mean, ROWS.mean(axis=0), atol=1e-4)


def test_a_metric_of_ones_own_goes_to_the_adaptive_rule():
    svi = SVI(model, guide, fisher=Predictive(num_particles=1))
    state = svi.init(jax.random.key(0), jnp.asarray(ROWS))
    assert isinstance(state.optim_state, AdaptiveState)
