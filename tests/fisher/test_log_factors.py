"""The curvature of factors, against their second derivatives written out."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoDelta

from vpng import LogFactors
from vpng.fisher.log_factors import root_of_size
from vpng.numpyro import SVI

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)
MATRIX = np.array([[2.0, 0.7, 0.0], [0.7, -1.0, 0.3], [0.0, 0.3, 0.5]])
"""Not definite."""


def test_the_root_has_the_sizes_of_the_eigenvalues():
    root = np.asarray(root_of_size(jnp.asarray(MATRIX)))
    values, vectors = np.linalg.eigh(MATRIX)
    np.testing.assert_allclose(root.T @ root, (vectors * np.abs(values)) @ vectors.T, atol=1e-12)


def test_what_is_not_finite_has_no_curvature():
    root = jax.jit(root_of_size)(jnp.asarray(MATRIX).at[0, 1].set(jnp.nan))
    np.testing.assert_array_equal(root, np.zeros((3, 3)))


def quadratic():
    place = numpyro.sample("place", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    shift = numpyro.param("shift", 0.5)
    numpyro.sample("apart", dist.Normal(0.0, 1.0))
    both = jnp.append(place, shift)
    with numpyro.handlers.scale(scale=3.0):
        numpyro.factor("bent", -0.5 * both @ jnp.asarray(MATRIX) @ both)


def test_the_metric_of_a_quadratic_factor_is_its_size():
    """Of the factor alone, in all that it depends on; the rest has none."""
    guide = AutoDelta(quadratic)
    svi = SVI(quadratic, guide, fisher=LogFactors(num_particles=2))
    with pytest.warns(UserWarning, match="LogFactors"):
        state = svi.init(KEY)
    params = svi.rule.point(state.optim_state)
    operator = svi.fisher.operator(svi.problem, params, svi.problem.call(KEY, (), {}, None), KEY)
    values, vectors = np.linalg.eigh(3.0 * MATRIX)
    size = (vectors * np.abs(values)) @ vectors.T
    _, unravel = ravel_pytree(params)
    names = unravel(jnp.arange(4))
    order = [
        *np.ravel(names.variational["place_auto_loc"]).astype(int),
        int(names.model["shift"]),
    ]
    wanted = np.zeros((4, 4))
    wanted[np.ix_(order, order)] = size
    np.testing.assert_allclose(operator.to_dense(), wanted, atol=1e-10)


def test_very_many_latents_count_as_observations(monkeypatch):
    """The mean of squared gradients: sum over elements of each one's own."""
    monkeypatch.setattr("vpng.fisher.log_factors.MOST_COORDINATES", 1)
    y = jnp.array([0.3, -1.2, 2.0])

    def model():
        place = numpyro.sample("place", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        numpyro.factor("near", -0.5 * (y - place) ** 2)

    svi = SVI(model, AutoDelta(model), fisher=LogFactors(num_particles=1))
    with pytest.warns(UserWarning, match="LogFactors"):
        state = svi.init(KEY)
    params = svi.rule.point(state.optim_state)
    operator = svi.fisher.operator(svi.problem, params, svi.problem.call(KEY, (), {}, None), KEY)
    away = y - params.variational["place_auto_loc"]
    np.testing.assert_allclose(operator.to_dense(), np.diag(away**2), atol=1e-12)
