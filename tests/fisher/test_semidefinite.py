"""F_r and F_q are symmetric and positive semidefinite, whatever the problem (the paper's point)."""

from functools import lru_cache

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems_for_tests import random_problem
from vpng import Predictive, Probed, Sampled, Variational

pytestmark = pytest.mark.usefixtures("x64")

METRICS = {
    "exact": Predictive(num_particles=2),
    "sampled": Predictive(Sampled(1), num_particles=2),
    "probed": Predictive(Probed(1, pool_particles=True), num_particles=2),
    "variational": Variational(),
}


@lru_cache
def compiled(kind, family, name):
    problem, _, _ = random_problem(kind, family, seed=0)

    def products(parameters, batch, rng_key):
        operator = METRICS[name].operator(problem, parameters, batch, rng_key)
        # By products, which do not make the matrix symmetric by construction as R^T R does.
        flat, unravel = jax.flatten_util.ravel_pytree(parameters)
        column = lambda e: jax.flatten_util.ravel_pytree(operator.mv(unravel(e)))[0]
        return jax.vmap(column)(np.eye(flat.size)), operator.to_dense()

    return jax.jit(products)


@pytest.mark.parametrize(
    ("kind", "name", "family"),
    [
        ("local", "exact", "gamma"),
        ("local", "exact", "poisson"),
        ("local", "sampled", "categorical"),
        ("local", "probed", "multivariate_normal"),
        ("local", "variational", "normal"),
        ("global", "exact", "bernoulli"),
        ("global", "sampled", "normal"),
        ("global", "probed", "binomial"),
        ("global", "variational", "normal"),
    ],
)
@given(seed=st.integers(0, 10_000))
def test_symmetric_positive_semidefinite(kind, name, family, seed):
    _, parameters, batch = random_problem(kind, family, seed)
    for matrix in compiled(kind, family, name)(parameters, batch, jax.random.key(seed)):
        matrix = np.asarray(matrix)
        largest = np.linalg.norm(matrix, 2)
        assert np.isfinite(matrix).all()
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12 * largest)
        assert np.linalg.eigvalsh(0.5 * (matrix + matrix.T)).min() >= -1e-12 * largest
