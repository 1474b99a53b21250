"""Rows of a batch that stand for all data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, autoguide

from vpng import Predictive
from vpng.errors import InputError
from vpng.numpyro import SVI
from vpng.numpyro.rows import RowsOfBatch

KEY = jax.random.key(0)
X = np.array([[1.0, 0.8], [-0.5, -0.3], [0.2, 0.4], [1.5, 1.1], [-1.0, -1.2], [0.3, 0.1], [2, 1]])
Y = np.array([1.2, -0.4, 0.7, 1.9, -1.8, 0.1, 0.6])
N, B = 7, 3
PARTS = [slice(0, 3), slice(3, 6), slice(6, 7)]
"""Two batches of three rows and one of one."""


def model(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.param("spread", 0.7, constraint=dist.constraints.positive)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, spread), obs=y)


def with_a_plate_of_all(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.param("spread", 0.7, constraint=dist.constraints.positive)
    with numpyro.plate("rows", N, subsample_size=len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, spread), obs=y)


def with_levels(x, y):
    """A latent of every row."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        level = numpyro.sample("level", dist.Normal(x @ weights, 1.0))
        numpyro.sample("y", dist.Normal(level, 0.7), obs=y)


def amortised(x, y):
    weights = numpyro.param("place", jnp.array([0.3, -0.2]))
    numpyro.sample("weights", dist.Delta(weights).to_event(1))
    slope = numpyro.param("slope", 0.4)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("level", dist.Delta(slope * y))


def filled_up(part):
    """The rows of a part, and copies of the first for those that are missing."""
    rows = np.arange(N)[part]
    return np.concatenate([rows, np.repeat(rows[:1], B - len(rows))]), len(rows)


def at(svi, params, x, y):
    """The loss of NumPyro's class and its gradient in the constrained parameters."""
    loss = lambda params: svi.loss.loss(KEY, params, svi.model, svi.guide, x, y)
    return jax.value_and_grad(loss)(params)


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize(
    ("model", "guide"),
    [
        (model, autoguide.AutoDelta(model)),
        (with_a_plate_of_all, autoguide.AutoDelta(with_a_plate_of_all)),
        (with_levels, amortised),
    ],
    ids=["plate of rows", "plate of all", "latents of rows"],
)
def test_loss_and_gradient_are_unbiased(model, guide, loss, x64):
    """A datum is in a part with the probability that the part has: the mean is that of all data."""
    svi = SVI(model, guide, loss=loss())
    params = svi.get_params(svi.init(KEY, X, Y))
    total = [0.0, jax.tree.map(jnp.zeros_like, params)]
    for part in PARTS:
        rows, count = filled_up(part)
        with RowsOfBatch(B, N, count=jnp.int32(count)):
            found = at(svi, params, X[rows], Y[rows])
        total = jax.tree.map(lambda sum_, one: sum_ + count / N * one, total, list(found))  # noqa: B023
    wanted = list(at(svi, params, X, Y))
    for one, other in zip(jax.tree.leaves(total), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.parametrize("model", [model, with_a_plate_of_all], ids=["of rows", "of all"])
def test_metric_and_number_of_data_are_those_of_all(model, x64):
    guide = autoguide.AutoDelta(model)
    with RowsOfBatch(B, N):
        svi = SVI(model, guide)
        state = svi.init(KEY, X[:3], Y[:3])
    assert svi.problem.num_data == N
    assert svi.problem.subsampled
    parameters = svi.rule.point(state.optim_state)

    def metric(count, rows):
        problem, call = svi.problem, svi.problem.call(KEY, (X[rows], Y[rows]), {}, None)
        with RowsOfBatch(len(rows), N, count=count):
            return Predictive(num_particles=1).operator(problem, parameters, call, KEY).to_dense()

    parts = [filled_up(part) for part in PARTS]
    found = sum(count / N * metric(jnp.int32(count), rows) for rows, count in parts)
    np.testing.assert_allclose(found, metric(None, np.arange(N)), rtol=1e-9, atol=1e-12)
    # It is the information of all data in closed form, per datum: x'x / sd^2, and 2 n / sd^2.
    spread = 0.7
    information = np.zeros((3, 3))
    information[:2, :2] = X.T @ X / spread**2
    information[2, 2] = 2 * N
    np.testing.assert_allclose(found, information / N, rtol=1e-9, atol=1e-12)


def test_a_plate_of_the_same_length_is_told_apart(x64):
    def grouped(x, y):
        with numpyro.plate("groups", 3):
            numpyro.sample("level", dist.Normal(0.0, 1.0))
        model(x, y)

    seen = RowsOfBatch(B, N)
    with seen, handlers.seed(rng_seed=0), handlers.trace():
        grouped(X[:3], Y[:3])
    assert seen.observed == {"rows"}


@pytest.mark.parametrize("plates", [0, 2])
def test_the_plate_of_the_rows_must_be_clear(plates):
    def observed(x, y):
        for i in range(plates):
            with numpyro.plate(f"rows{i}", len(x)):
                numpyro.sample(f"y{i}", dist.Normal(0.0, 1.0), obs=y)

    found = "none" if plates == 0 else r"\['rows0', 'rows1'\]"
    unclear = pytest.raises(InputError, match=f"one plate of the 3 rows .* got {found}.*plate=")
    with unclear, RowsOfBatch(B, N), handlers.trace():
        observed(X[:3], Y[:3])
    if plates:
        named = RowsOfBatch(B, N, plate="rows0")
        with named, handlers.trace():
            observed(X[:3], Y[:3])
        assert named.observed == {"rows0"}


def test_parameters_of_single_rows_are_refused():
    with (
        pytest.raises(InputError, match=r"'level_auto_loc' in the plate 'rows'.*subsample_size"),
        RowsOfBatch(B, N),
    ):
        SVI(with_levels, autoguide.AutoNormal(with_levels)).init(KEY, X[:3], Y[:3])
