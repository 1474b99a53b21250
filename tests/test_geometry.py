"""The appendix: as epsilon -> 0 the VPNG direction solves

    max L(eta + d)  subject to  E_eps KL_sym(p_x'(eta) || p_x'(eta + d)) <= epsilon.

A problem with two parameters and a Poisson likelihood. The noise takes three values with equal
probability; they are written into the data, one copy of each datum for each value, so that all
expectations over eps are finite sums and nothing here is random.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from vpng import ELBO, Dense, Parameters, Predictive, Problem, scale_by_vpng

pytestmark = pytest.mark.usefixtures("x64")

NOISE = np.array([-1.2, 0.1, 1.1])
DATA = np.array([0.5, -1.0, 1.5])
COUNTS = np.array([2.0, 0.0, 3.0])


class PoissonLine(Problem):
    """z = lambda x + eps / 2, x' ~ Poisson(exp(theta z)), with eps in the batch."""

    num_data: int
    local: bool = True

    def approximation(self, variational, batch):
        return dist.Normal(variational * batch["x"], 0.5)

    def prior(self, model, batch):
        return dist.Normal(jnp.zeros_like(batch["x"]), 1.0)

    def likelihood(self, model, latent, batch):
        return dist.Poisson(jnp.exp(model * latent))

    def observed(self, batch):
        return batch["count"]

    def noise(self, rng_key, batch):
        return jnp.zeros_like(batch["x"])

    def latent(self, variational, noise, batch):
        return variational * batch["x"] + 0.5 * batch["eps"] + noise


def everything():
    x, eps = np.meshgrid(DATA, NOISE, indexing="ij")
    count = np.broadcast_to(COUNTS[:, None], x.shape)
    return {k: v.ravel() for k, v in {"x": x, "eps": eps, "count": count}.items()}


PROBLEM = PoissonLine(num_data=9)
HERE = (0.6, 0.5)


def loss(vector):
    parameters = Parameters(vector[0], vector[1])
    return ELBO(1).estimate(jax.random.key(0), PROBLEM, parameters, everything()).loss


@jax.jit
def symmetric_divergence(vector):
    """E KL_sym per datum between here and there: (r - r') (log r - log r') for Poisson rates."""
    batch = everything()

    def log_rate(v):
        return v[1] * PROBLEM.latent(v[0], jnp.zeros(9), batch)

    here, there = log_rate(jnp.asarray(HERE)), log_rate(vector)
    return jnp.mean((jnp.exp(here) - jnp.exp(there)) * (here - there))


@jax.jit
def fisher():
    metric, parameters = Predictive(num_particles=1), Parameters(*map(jnp.asarray, HERE))
    return metric.operator(PROBLEM, parameters, everything(), jax.random.key(0)).to_dense()


@jax.jit
def vpng_direction():
    """The ascent direction of the ELBO, by the library."""
    parameters = Parameters(*map(jnp.asarray, HERE))
    transformation = scale_by_vpng(
        PROBLEM, metric=Predictive(num_particles=1), curvature=Dense(), damping=0.0
    )
    gradient = jax.grad(lambda p: loss(jnp.stack([p.variational, p.model])))(parameters)
    updates, _ = transformation.update(
        gradient,
        transformation.init(parameters),
        parameters,
        batch=everything(),
        rng_key=jax.random.key(0),
    )
    return -jnp.stack([updates.variational, updates.model])


@jax.jit
def best_angle(radius_squared, angles):
    """The angle whose point on the boundary of the ball has the highest ELBO."""
    here = jnp.asarray(HERE)

    def on_the_boundary(angle):
        ray = jnp.stack([jnp.cos(angle), jnp.sin(angle)])

        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            inside = symmetric_divergence(here + middle * ray) < radius_squared
            return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

        length, _ = jax.lax.fori_loop(0, 60, halve, (0.0, 1.0))
        return -loss(here + length * ray)

    return angles[jnp.argmax(jax.vmap(on_the_boundary)(angles))]


def test_steepest_ascent_turns_into_the_vpng_direction():
    direction = np.asarray(vpng_direction())
    wanted = np.arctan2(direction[1], direction[0])
    errors = []
    for radius_squared in (1e-2, 1e-4, 1e-6, 1e-8):
        whole_circle = float(best_angle(radius_squared, np.linspace(-np.pi, np.pi, 721)))
        fine = best_angle(radius_squared, whole_circle + np.linspace(-0.02, 0.02, 721))
        errors.append(abs((float(fine) - wanted + np.pi) % (2 * np.pi) - np.pi))
    # The error is of the order of the radius, which falls tenfold each time; half of that will do.
    assert all(later < before / 5 for before, later in pairwise(errors))
    assert errors[-1] < 1e-3
    gradient = -np.asarray(jax.jit(jax.grad(loss))(np.asarray(HERE)))
    plain = np.arctan2(gradient[1], gradient[0])
    assert abs(plain - wanted) > 0.1  # the plain gradient points elsewhere


@pytest.mark.parametrize("angle", [0.0, 0.9, 2.3])
def test_the_divergence_is_the_fisher_to_second_order(angle):
    """KL_sym(d) = d^T F d + O(|d|^3): the remainder over |d|^2 falls in proportion to |d|."""
    ray = np.array([np.cos(angle), np.sin(angle)])
    curvature = ray @ np.asarray(fisher()) @ ray
    remainders = []
    for size in (1e-2, 1e-3):
        divergence = float(symmetric_divergence(np.asarray(HERE) + size * ray))
        remainders.append(divergence / size**2 - curvature)
    assert curvature > 1e-2
    assert abs(remainders[1]) < 0.01 * curvature
    assert remainders[1] / remainders[0] == pytest.approx(0.1, rel=0.1)
