"""Structured curvatures beside the same matrices formed and solved densely, in float64."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from vpng.structure import structure_of

GROUPS, LENGTH = 40, 120
RNG = np.random.default_rng(0)
GROUP = RNG.integers(0, GROUPS, 300)
X = RNG.normal(size=300)
REGION = RNG.integers(0, 8, GROUPS)
USER, ITEM = np.divmod(np.arange(60 * 10), 10)


def arrow(p):
    seen = p["a"][GROUP] * jnp.exp(p["b"][GROUP] * X) + p["mean"] * X
    return jnp.concatenate([seen, (p["a"] - p["mean"]) * jnp.exp(p["s"]), p["b"] * p["s"]])


def nested(p):
    cities = (p["city"] - p["region"][REGION]) * jnp.exp(p["s"])
    return jnp.concatenate([jnp.tanh(p["city"])[GROUP] * X, cities, p["region"] * p["s"]])


def crossed(p):
    seen = p["slope"][ITEM] * (p["user"][USER] - p["item"][ITEM])
    return jnp.concatenate([seen, p["user"], p["slope"], p["item"]])


def chain(p):
    moves = (p["x"][1:] - p["phi"] * p["x"][:-1]) * jnp.exp(p["s"])
    return jnp.concatenate([jnp.sin(p["x"]), moves])


def second_order(p):
    x = p["x"]
    moves = (x[2:] - p["phi"] * x[1:-1] - p["s"] * x[:-2]) * jnp.exp(p["s"])
    return jnp.concatenate([jnp.sin(x), moves])


def scanned(p):
    def step(state, x):
        return x, (x - p["phi"] * state) * jnp.exp(p["s"])

    _, moves = jax.lax.scan(step, jnp.zeros(2), p["x"].reshape(-1, 2), reverse=True)
    return jnp.concatenate([moves.ravel(), jnp.sin(p["x"])])


def apart(p):
    return jnp.exp(p["x"])


def placed(p):
    """Elements written into an array at known places."""
    full = jnp.zeros(2 * LENGTH).at[jnp.arange(LENGTH) * 2].set(p["x"]) + p["s"]
    return jnp.concatenate([full, p["x"] * p["phi"]])


class Shape(NamedTuple):
    """A function, and the largest head that its structure may leave."""

    rows: object
    sizes: dict
    head: int


SHAPES = {
    "arrow": Shape(arrow, {"a": GROUPS, "b": GROUPS, "mean": 0, "s": 0}, 2),
    "nested": Shape(nested, {"city": GROUPS, "region": 8, "s": 0}, 10),
    "crossed": Shape(crossed, {"user": 60, "item": 10, "slope": 10}, 20),
    "chain": Shape(chain, {"x": LENGTH, "phi": 0, "s": 0}, 50),
    "second order": Shape(second_order, {"x": LENGTH, "phi": 0, "s": 0}, 50),
    "scanned": Shape(scanned, {"x": LENGTH, "phi": 0, "s": 0}, 50),
    "apart": Shape(apart, {"x": LENGTH}, 0),
    "placed": Shape(placed, {"x": LENGTH, "phi": 0, "s": 0}, 2),
}


def point_of(sizes):
    return {
        name: jnp.asarray(RNG.normal(size=(size,) if size else ()) / 2)
        for name, size in sizes.items()
    }


def dense_curvature(rows, point):
    flat, unravel = ravel_pytree(point)
    jacobian = jax.jacobian(lambda vector: rows(unravel(vector)))(flat)
    return np.asarray(jacobian.T @ jacobian)


@pytest.mark.parametrize("name", SHAPES)
def test_the_curvature_and_its_inverse_are_those_of_the_dense_matrix(name, x64):
    rows, sizes, head = SHAPES[name]
    point = point_of(sizes)
    structure = structure_of(rows, point)
    assert structure is not None
    assert structure.elimination.size_of_head <= head
    # Found at one point, it holds at another.
    elsewhere = jax.tree.map(lambda leaf: leaf + 0.3, point)
    expected = dense_curvature(rows, elsewhere)
    matrix = structure.of(rows, elsewhere)
    np.testing.assert_allclose(structure.elimination.to_dense(matrix), expected, atol=1e-10)
    np.testing.assert_allclose(structure.elimination.diagonal(matrix), np.diag(expected))

    scale = jnp.asarray(RNG.uniform(0.5, 2.0, len(expected)))
    factor = structure.factor(matrix, scale, jnp.asarray(0.1))
    vectors = jnp.asarray(RNG.normal(size=(3, len(expected))))
    whitened = factor.whiten(vectors)
    damped = expected + 0.1 * np.diag(1.0 / scale**2)
    solved = np.linalg.solve(damped, vectors.T).T
    np.testing.assert_allclose(factor.unwhiten(whitened), solved, atol=1e-10)
    np.testing.assert_allclose(whitened @ whitened.T, vectors @ solved.T, atol=1e-10)


def test_products_are_few(x64):
    """As many as a group has latents, and one for each latent that all groups share."""
    rows, sizes, _ = SHAPES["arrow"]
    found = structure_of(rows, point_of(sizes))
    assert found is not None
    assert found.assembly is not None
    assert found.assembly.num_shared + found.assembly.single.size == 4


@pytest.mark.parametrize(
    "rows",
    [
        lambda p: jnp.asarray(RNG.normal(size=(90, 80))) @ p["x"],
        lambda p: jnp.cumsum(p["x"]) * 2.0,
        lambda p: p["x"][jnp.argsort(p["x"])],
        lambda p: jax.lax.while_loop(lambda x: x[0] < 9.0, lambda x: 2.0 * x, p["x"]),
    ],
    ids=["regression", "sums", "sorted by value", "loop"],
)
def test_what_is_dense_or_depends_on_values_has_no_structure(rows, x64):
    assert structure_of(rows, {"x": jnp.asarray(RNG.normal(size=80))}) is None


def test_other_integers_leave_the_diagonal(x64):
    """The rows of other data touch other groups: what was found does not hold for them."""
    group = jnp.asarray(GROUP)
    rows = lambda group: lambda p: p["a"][group] * X + p["b"][group]
    point = {"a": jnp.ones(GROUPS), "b": jnp.ones(GROUPS)}
    structure = structure_of(rows(group), point)
    assert structure is not None
    same = jax.jit(lambda group: structure.of(rows(group), point))
    full = dense_curvature(rows(group), point)
    np.testing.assert_allclose(structure.elimination.to_dense(same(group)), full, rtol=1e-4)

    mixed = lambda group: lambda p: p["a"][group] * X + p["b"][group[::-1]]
    other = structure.elimination.to_dense(structure.of(mixed(group), point))
    assert np.count_nonzero(other - np.diag(np.diag(other))) == 0
    # Signs of four draws: each entry is a mean of squares of the same expectation.
    expected = np.diag(dense_curvature(mixed(group), point))
    assert 0.5 < np.sum(np.diag(other)) / np.sum(expected) < 2.0
