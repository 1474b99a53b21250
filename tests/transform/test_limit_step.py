"""The bound on a step in the metric, against the dense Fisher."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from problems_for_tests import random_problem
from vpng import ELBO, InputError, Parameters, Predictive, Variational, fit, optimizers
from vpng.problems import LinearLatent
from vpng.training.guard import after_rejection
from vpng.transform import limit_step

KEY = jax.random.key(3)


def linear():
    """A problem whose metric does not depend on the draws."""
    data = jnp.asarray(np.random.default_rng(0).normal(size=40) * 2.0)
    return LinearLatent(num_data=40), Parameters(jnp.asarray(0.1), jnp.asarray(0.5)), data


def limited(problem, params, batch, updates, radius, metric=None):
    transformation = limit_step(problem, metric, radius=radius)
    state = transformation.init(params)
    return transformation.update(updates, state, params, batch=batch, rng_key=KEY)


class Fixed(Predictive):
    """The predictive metric at one draw, whatever the key."""

    def operator(self, problem, parameters, batch, rng_key):
        return super().operator(problem, parameters, batch, KEY)


@pytest.mark.parametrize("radius", [1e-3, 0.5])
def test_a_long_step_keeps_its_direction_and_ends_on_the_boundary(radius):
    problem, params, batch = random_problem("local", "bernoulli", 0)
    metric = Fixed(num_particles=3)
    updates = jax.tree.map(lambda leaf: 30.0 * jnp.cos(jnp.arange(leaf.size) + 1.0), params)
    updates = jax.tree.map(lambda new, leaf: new.reshape(leaf.shape), updates, params)
    short, state = limited(problem, params, batch, updates, radius, metric)
    before, after = ravel_pytree(updates)[0], ravel_pytree(short)[0]
    fisher = metric.operator(problem, params, batch, KEY).to_dense()
    np.testing.assert_allclose(state.length, 0.5 * before @ fisher @ before, rtol=1e-4)
    np.testing.assert_allclose(0.5 * after @ fisher @ after, radius, rtol=1e-4)
    cosine = before @ after / jnp.linalg.norm(before) / jnp.linalg.norm(after)
    assert cosine > 1 - 1e-5


@pytest.mark.parametrize("size", [0.0, 1e-4])
def test_a_short_step_passes_unchanged(size):
    problem, params, batch = random_problem("local", "bernoulli", 0)
    updates = jax.tree.map(lambda leaf: jnp.full_like(leaf, size), params)
    after, _ = limited(problem, params, batch, updates, 0.5)
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(updates), strict=True):
        np.testing.assert_array_equal(new, old)


def test_the_length_is_the_divergence_of_the_predictive_per_datum():
    """Near zero d.F d / 2 is KL(p_old || p_new) per datum, for each draw of the noise."""
    problem, params, batch = linear()
    noise = problem.noise(KEY, batch)
    moved = jax.tree.map(lambda leaf: leaf + 1e-2, params)

    def predictive(parameters):
        latent, _ = problem.latent_and_kl(parameters, noise, batch)
        [site] = problem.likelihood_sites(parameters.model, latent, batch)
        return site.distribution

    old, new = predictive(params), predictive(moved)
    draws = old.sample(jax.random.key(0), (40_000,))
    gaps = old.log_prob(draws) - new.log_prob(draws)
    mean = gaps.mean(0)
    exact = 0.5 * jnp.mean((gaps - mean).var(0))
    step = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-2), params)
    fisher = Predictive(num_particles=1).operator(problem, params, batch, KEY)
    assert float(0.5 * jnp.sum(fisher.push(step) ** 2)) == pytest.approx(float(exact), rel=0.3)


def test_a_classic_natural_step_ends_on_the_boundary_of_its_own_metric():
    problem, params, batch = random_problem("local", "bernoulli", 0)
    transformation = optimizers.natural_gradient(problem, 50.0, radius=0.1)
    updates, _ = transformation.update(
        jax.tree.map(jnp.ones_like, params),
        transformation.init(params),
        params,
        batch=batch,
        rng_key=KEY,
    )
    step = ravel_pytree(updates)[0]
    fisher = Variational().operator(problem, params, batch, KEY).to_dense()
    np.testing.assert_allclose(0.5 * step @ fisher @ step, 0.1, rtol=1e-4)


def test_a_part_of_many_data_measures_a_step_without_bias():
    """Lengths from 128 of 512 data, drawn 200 times, have the mean of those from all of them."""
    problem, params, batch = random_problem("local", "bernoulli", 0, num_data=512)
    updates = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e-3), params)

    def length(key, metric):
        transformation = limit_step(problem, metric)
        order = jax.random.permutation(key, 512)
        shuffled = jax.tree.map(lambda leaf: leaf[order], batch)
        state = transformation.init(params)
        _, state = transformation.update(updates, state, params, batch=shuffled, rng_key=key)
        return state.length

    keys = jax.random.split(KEY, 200)
    few, all_of_them = (
        np.asarray(jax.jit(jax.vmap(lambda key, metric=metric: length(key, metric)))(keys))
        for metric in (None, Predictive(num_particles=1))
    )
    error = few.std() / np.sqrt(len(keys))
    assert abs(few.mean() - all_of_them.mean()) < 4 * error
    assert few.std() < 0.2 * few.mean()


def test_a_rejected_step_shortens_the_radius_which_grows_back():
    problem, params, batch = linear()
    transformation = limit_step(problem, radius=0.5)
    state = after_rejection(transformation.init(params))
    assert state.radius == pytest.approx(0.1)
    zero = jax.tree.map(jnp.zeros_like, params)
    for _ in range(200):
        _, state = transformation.update(zero, state, params, batch=batch, rng_key=KEY)
    assert state.radius == pytest.approx(0.5)


def test_parts_that_optax_masks_are_limited_alone():
    problem, params, batch = random_problem("local", "bernoulli", 0)
    mask = Parameters(
        jax.tree.map(lambda _: True, params.variational),
        jax.tree.map(lambda _: False, params.model),
    )
    transformation = optax.masked(limit_step(problem, radius=1e-3), mask)
    updates = jax.tree.map(lambda leaf: jnp.full_like(leaf, 50.0), params)
    state = transformation.init(params)
    after, _ = transformation.update(
        updates, state, params, batch=batch, rng_key=KEY, full_params=params
    )
    assert all(leaf.max() < 50.0 for leaf in jax.tree.leaves(after.variational))
    assert all((leaf == 50.0).all() for leaf in jax.tree.leaves(after.model))


def test_a_rate_far_too_large_costs_time_and_not_the_run():
    problem, params, data = linear()
    run = lambda radius: fit(
        problem,
        params,
        data,
        optimizers.vpng(problem, 3.0, rule=optax.scale_by_rms(), radius=radius),
        num_steps=400,
        objective=ELBO(10),
        batch_size=10,
        rng_key=KEY,
        progress=False,
    )
    loss = lambda result: float(
        ELBO(100).estimate(jax.random.key(9), problem, result.params, data).loss
    )
    assert loss(run(0.5)) < loss(run(None)) - 1.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"radius": 0.0}, "radius"), ({"radius": jnp.nan}, "radius"), ({"metric": 3}, "metric")],
)
def test_bad_input_is_named(arguments, word):
    with pytest.raises(InputError, match=word):
        limit_step(linear()[0], **arguments)
    with pytest.raises(InputError, match="problem"):
        limit_step("model")


def test_steps_may_be_as_long_as_the_loss_falls():
    """A loss that falls by 3 nats a step ends with steps of 3 nats; noise around 0 does not."""
    problem, params, batch = random_problem("local", "bernoulli", 0)
    metric = Fixed(num_particles=3)
    transformation = limit_step(problem, metric, radius=0.5)
    updates = jax.tree.map(lambda leaf: jnp.full_like(leaf, 30.0), params)
    fisher = metric.operator(problem, params, batch, KEY).to_dense()

    def length_after(losses):
        def step(state, loss):
            return transformation.update(
                updates, state, params, batch=batch, rng_key=KEY, value=loss
            )[::-1]

        _, steps = jax.lax.scan(step, transformation.init(params), jnp.asarray(losses))
        last = ravel_pytree(jax.tree.map(lambda leaf: leaf[-1], steps))[0]
        return 0.5 * last @ fisher @ last

    falling = 500.0 - 3.0 * np.arange(100)
    assert length_after(falling) == pytest.approx(3.0, rel=1e-2)
    assert length_after(falling[::-1].copy()) == pytest.approx(0.5, rel=1e-3)
    noise = 90.0 + np.random.default_rng(0).normal(size=100)
    assert length_after(noise) == pytest.approx(0.5, rel=1e-3)
    falling[40] = np.nan
    assert length_after(falling) == pytest.approx(3.0, rel=1e-2)
