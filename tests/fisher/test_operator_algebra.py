"""A Fisher operator is one matrix, however it is asked for."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions.transforms import IdentityTransform

import vpng.fisher.operator as operator_module
from problems_for_tests import random_problem
from vpng import Exact, InputError, Parameters, Predictive, Probed, Sampled, Variational
from vpng.fisher.families import Whitened
from vpng.fisher.operator import Bottleneck, TracedFunction, _parts
from vpng.numerics import cost
from vpng.numpyro.problem import Call, TracedProblem
from vpng.problem.selection import Selection, variational_part
from vpng.problems import LogisticRegression, MeanField

pytestmark = pytest.mark.usefixtures("x64")

METRICS = {
    "predictive": Predictive(num_particles=3),
    "sampled": Predictive(Sampled(2), num_particles=3),
    "pooled": Predictive(Sampled(2, pool_particles=True), num_particles=3),
    "probed": Predictive(Probed(2), num_particles=3),
    "exact, two data": Predictive(Exact(), num_particles=3, max_data=2),
    "variational": Variational(num_particles=2),
    "sum": Predictive(num_particles=2) + Variational(),
}
KEY = 7


def forms(kind, family, metric):
    """Every form of the operator, from one compiled program."""
    problem, parameters, batch = random_problem(kind, family, seed=1)

    size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    vector = np.random.default_rng(0).normal(size=size)

    @jax.jit
    def compute(parameters, batch, vector):
        operator = metric.operator(problem, parameters, batch, jax.random.key(KEY))
        flat, unravel = ravel_pytree(parameters)
        rows_as_function = lambda v: operator.row_function(unravel(v)).ravel()
        selection = Selection.of(variational_part(parameters), parameters, None)
        block = operator.restricted(selection.active, selection.embed)
        plain = dataclasses.replace(operator, bottleneck=None, by_datum=None)
        return {
            "dense": operator.to_dense(),
            "plain": plain.to_dense(),
            "rows": operator.rows(),
            "jacobian": jax.jacfwd(rows_as_function)(flat),
            "mv": ravel_pytree(operator.mv(unravel(vector)))[0],
            "push": operator.push(unravel(vector)).ravel(),
            "diagonal": operator.diagonal(),
            "block": block.to_dense(),
            "block rows": block.rows(),
        }

    lambda_size = sum(leaf.size for leaf in jax.tree.leaves(parameters.variational))
    return jax.tree.map(np.asarray, compute(parameters, batch, vector)), vector, lambda_size


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("local", name) for name in METRICS if name not in ("sampled", "sum")),
        ("global", "predictive"),
        ("global", "sampled"),
        ("global", "sum"),
    ],
)
def test_all_forms_agree(kind, name):
    got, vector, size = forms(kind, "bernoulli", METRICS[name])
    dense, rows = got["dense"], got["rows"]
    tolerance = {"rtol": 1e-9, "atol": 1e-11 * np.abs(dense).max()}
    assert np.abs(dense).max() > 1e-3
    np.testing.assert_allclose(rows.T @ rows, dense, **tolerance)
    np.testing.assert_allclose(got["plain"], dense, **tolerance)
    np.testing.assert_allclose(rows, got["jacobian"], **tolerance)
    np.testing.assert_allclose(got["mv"], dense @ vector, **tolerance)
    np.testing.assert_allclose(got["push"], rows @ vector, **tolerance)
    np.testing.assert_allclose(got["diagonal"], np.diag(dense), **tolerance)
    # `Parameters` puts the variational parameters first.
    np.testing.assert_allclose(got["block"], dense[:size, :size], **tolerance)
    block_rows = got["block rows"]
    np.testing.assert_allclose(block_rows.T @ block_rows, dense[:size, :size], **tolerance)


def test_counts_of_rows_and_parameters():
    problem, parameters, batch = random_problem("local", "bernoulli", seed=1)
    pooled = Predictive(Sampled(2, pool_particles=True), num_particles=4)

    @jax.jit
    def count(parameters, batch):
        operators = [
            metric.operator(problem, parameters, batch, jax.random.key(0))
            for metric in (Predictive(num_particles=4), pooled)
        ]
        return [(o.num_rows, o.num_parameters, o.random_signs) for o in operators]

    exact, sampled = count(parameters, batch)
    assert exact[0] == 4 * 3 * 3  # particles, data, outputs
    assert exact[1] == 8 + 15
    assert sampled[0] == 3 * 2  # data, samples
    assert sampled[2]


def test_the_sum_of_metrics_is_the_sum_of_matrices():
    """However it is put together; a second term of one kind has a key of its own."""
    problem, parameters, batch = random_problem("local", "normal", seed=2)
    first, second, third = Predictive(num_particles=2), Variational(), Predictive(num_particles=3)
    key = jax.random.key(3)

    @jax.jit
    def dense(parameters):
        dense = lambda m, key: m.operator(problem, parameters, batch, key).to_dense()
        parts = [dense(first, key), dense(second, key), dense(third, jax.random.fold_in(key, 1))]
        sums = first + second + third, first + (second + third)
        return [dense(metric, key) for metric in sums], sum(parts)

    together, summed = dense(parameters)
    for matrix in together:
        np.testing.assert_allclose(matrix, summed, rtol=1e-10, atol=1e-12)


def test_max_data_is_the_metric_of_the_first_data():
    problem, parameters, batch = random_problem("global", "binomial", seed=2, num_data=5)

    @jax.jit
    def dense(parameters):
        few = jax.tree.map(lambda leaf: leaf[:2], batch)
        dense = lambda m, data: m.operator(problem, parameters, data, jax.random.key(0)).to_dense()
        return dense(Predictive(max_data=2), batch), dense(Predictive(), few)

    np.testing.assert_allclose(*dense(parameters), rtol=1e-12)


def test_the_arguments_of_a_model_are_not_its_data():
    """Cut, they would weigh as little as before in the mean over all data."""

    def model(inputs):
        weight = numpyro.sample("weight", dist.Normal())
        numpyro.sample("output", dist.Normal(weight * inputs, 1.0), obs=inputs)

    guide = lambda inputs: numpyro.sample("weight", dist.Normal(numpyro.param("at", 0.0), 1.0))
    problem = TracedProblem(model, guide, {"at": IdentityTransform()}, num_data=5)
    at, call = Parameters({"at": jnp.zeros(())}, {}), Call((jnp.ones(5),), {}, {}, {})
    key = jax.random.key(KEY)
    metric = lambda count: Predictive(max_data=count).operator(problem, at, call, key)
    assert metric(5).num_rows == metric(6).num_rows
    with pytest.raises(InputError, match=r"max_data.*subsampled plate.*got 2"):
        metric(2)


def test_the_bottleneck_is_used_where_it_is_smaller():
    """Two latents against 2 + 2 variational parameters: Gram matrices of size 2, not 4."""
    problem, parameters, batch = random_problem("global", "normal", seed=0)
    local, local_parameters, local_batch = random_problem("local", "normal", seed=0)
    key = jax.random.key(0)

    def look(parameters, local_parameters):
        operator = Predictive().operator(problem, parameters, batch, key)
        selection = Selection.of(variational_part(parameters), parameters, None)
        block = operator.restricted(selection.active, selection.embed)
        assert operator.bottleneck is not None
        assert block.bottleneck is not None
        by_datum = Predictive().operator(local, local_parameters, local_batch, key).by_datum
        assert by_datum is not None

    jax.eval_shape(look, parameters, local_parameters)


def kernel_rows(latent):
    """Rows that see one leaf through a Cholesky factor, another linearly and a third not at all."""
    distances = (jnp.arange(30.0)[:, None] - jnp.arange(30.0)) ** 2
    kernel = jnp.exp(-distances * jnp.exp(latent["length"])) + 0.1 * jnp.eye(30)
    return jnp.linalg.cholesky(kernel) @ latent["white"]


LATENT = {
    "length": np.array(-2.0),
    "unseen": np.ones(3),
    "white": np.random.default_rng(0).normal(size=30),
}


@pytest.mark.parametrize("rows", [kernel_rows, lambda latent: kernel_rows(latent)[:9]])
def test_a_jacobian_in_parts_is_the_jacobian(rows):
    @jax.jit
    def both():
        flat, unravel = ravel_pytree(LATENT)
        traced = TracedFunction.of(rows, LATENT)
        assert traced.num_rows == rows(LATENT).size
        return traced.jacobian(), jax.jacfwd(lambda v: rows(unravel(v)))(flat)

    np.testing.assert_allclose(*both(), rtol=1e-10, atol=1e-12)


def test_parts_are_few_however_many_leaves_there_are():
    assert _parts([1, 3, 30]) == [[2], [0, 1]]
    assert _parts([1] * 200) == [list(range(200))]
    assert _parts([20, 20]) == [[0], [1]]
    assert _parts([3, 4]) == [[0, 1]]


def test_what_does_not_depend_on_a_leaf_is_not_pushed_along_with_it():
    count = lambda function: str(jax.make_jaxpr(function)()).count("f64[34,30,30]")

    def at_once():
        flat, unravel = ravel_pytree(LATENT)
        return jax.jacfwd(lambda v: kernel_rows(unravel(v)))(flat)

    assert count(at_once) > 0
    assert count(lambda: TracedFunction.of(kernel_rows, LATENT).jacobian()) == 0


def plain(rows):
    return Whitened(jnp.ones(rows.size), rows)


def test_one_vector_of_parameters_is_taken_through_the_parts_of_what_it_makes():
    @jax.jit
    def grams():
        flat, unravel = ravel_pytree(LATENT)
        inner = lambda vector: jax.tree.map(lambda leaf: leaf[None], unravel(jnp.sinh(vector)))
        point = jnp.arcsinh(flat)
        outer = lambda latent, _: plain(kernel_rows(latent))
        bottleneck = Bottleneck(inner(point), inner, outer, ())
        assert bottleneck.is_cheaper(point)
        many = bottleneck._replace(middle={"white": np.ones((1, 30)), "other": np.ones((1, 1000))})
        assert not many.is_cheaper(point)
        blind = bottleneck._replace(outer=lambda latent, _: plain(jnp.zeros(2)))
        jacobian = jax.jacfwd(lambda v: kernel_rows(unravel(jnp.sinh(v))))(point)
        return bottleneck.gram(point), jacobian, blind.gram(point)

    found, jacobian, blind = map(np.asarray, grams())
    np.testing.assert_allclose(found, jacobian.T @ jacobian, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(blind, np.zeros((34, 34)))


@pytest.mark.parametrize("particles", [5, 2], ids=["pairs of columns", "one by one"])
def test_a_linear_predictor_has_one_jacobian_for_all_particles(particles):
    generator = np.random.default_rng(0)
    covariates, labels = generator.normal(size=(7, 3)), generator.integers(0, 2, 7)
    problem, batch = LogisticRegression.create(covariates, labels, intercept=False)
    here = Parameters(MeanField(jnp.arange(3.0), jnp.array([0.5, -0.1, 0.2])))

    def both(parameters):
        operator = Predictive(num_particles=particles).operator(
            problem, parameters, batch, jax.random.key(KEY)
        )
        return operator.to_dense(), operator.rows()

    dense, rows = map(np.asarray, jax.jit(both)(here))
    np.testing.assert_allclose(dense, rows.T @ rows, rtol=1e-10, atol=1e-12)
    traced = str(jax.make_jaxpr(lambda here: both(here)[0])(here))
    assert (f"f64[{particles},7,3]" in traced) == (particles < 3)


def test_weights_that_overflow_when_they_are_squared():
    """Columns as small as the weights are large: the products are of order one."""
    jacobian = np.array([[1.0, 2.0], [-1.0, 0.5], [3.0, 1.0]], np.float32) * np.float32(1e-25)
    weights = np.array([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]], np.float32) * np.float32(1e25)
    found = jax.jit(operator_module._weighted_grams)(weights, jacobian)
    rows = weights[0, :, None].astype(float) * jacobian
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], rows.T @ rows, rtol=1e-5)
    np.testing.assert_array_equal(found[1], 0.0)


@pytest.mark.parametrize("at_once", [1, 2], ids=["one by one", "two at once"])
@pytest.mark.parametrize("kind", ["local", "global"])
def test_a_diagonal_too_large_for_its_factor_is_summed_over_rows(kind, at_once, monkeypatch):
    """27 rows, 9 of each datum: by twos one is left over. No array has as many entries as R."""
    problem, parameters, batch = random_problem(kind, "bernoulli", seed=1)
    operator = lambda parameters: Predictive(num_particles=3).operator(
        problem, parameters, batch, jax.random.key(KEY)
    )
    dense, rows = jax.jit(lambda p: (operator(p).to_dense(), operator(p).rows()))(parameters)
    assert len(rows) == 27
    per_row = cost.jacobian(1, rows.shape[1]).memory
    monkeypatch.setattr(cost, "MEMORY_BUDGET", at_once * per_row)
    traced = jax.jit(lambda parameters: operator(parameters).diagonal()).trace(parameters)
    shapes = re.findall(r"f64\[([\d,]+)\]", str(traced.jaxpr))
    assert max(math.prod(map(int, shape.split(","))) for shape in shapes) < rows.size / 2
    found = traced.lower().compile()(parameters)
    np.testing.assert_allclose(found, np.diag(dense), rtol=1e-9, atol=1e-15)


def test_a_matrix_too_large_for_its_factor_is_made_by_products(monkeypatch):
    """And the linearisation made on the way can be used afterwards, under jit."""
    problem, parameters, batch = random_problem("local", "bernoulli", seed=1)

    @jax.jit
    def compute(parameters):
        make = lambda: Predictive(num_particles=2).operator(
            problem, parameters, batch, jax.random.key(KEY)
        )
        wanted = make().to_dense()
        monkeypatch.setattr(cost, "MEMORY_BUDGET", 1)
        operator = make()
        return operator.to_dense(), operator.mv(parameters), wanted

    dense, image, wanted = jax.tree.map(np.asarray, compute(parameters))
    np.testing.assert_allclose(dense, wanted, rtol=1e-9, atol=1e-12)
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
    np.testing.assert_allclose(flat(image), wanted @ flat(parameters), rtol=1e-9, atol=1e-12)
