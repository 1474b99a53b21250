"""The dependence of traced functions beside the nonzeros of their Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import solve_triangular

from vpng.structure import primitives, recurrences  # noqa: F401
from vpng.structure.propagation import dependence_of

RNG = np.random.default_rng(1)
INDEX = jnp.asarray(RNG.integers(0, 12, (5, 2)))
MATRIX = jnp.asarray(RNG.normal(size=(3, 4)))


def tridiagonal_steps(x):
    step = lambda carry, slice: ((slice[0], carry[0]), carry[0] * slice[1] + carry[1])
    return jax.lax.scan(step, (x[0], x[1]), (x[:6], x[6:]))[1]


EXACT = {
    "elementwise": lambda x: jnp.tanh(x) * x[::-1],
    "gather": lambda x: x[INDEX] * 2,
    "rows of a matrix": lambda x: x.reshape(4, 3)[jnp.array([0, 0, 3])].ravel(),
    "slices": lambda x: x[2:9:3] + x[::4],
    "padded": lambda x: jnp.pad(x, (1, 2))[3:],
    "put together": lambda x: jnp.stack([x[:4], x[8:]], axis=1),
    "split": lambda x: jnp.split(x, 3)[1] ** 2,
    "sums of rows": lambda x: x.reshape(3, 4).sum(axis=0) ** 2,
    "batched product": lambda x: jnp.einsum("bi,bji->bj", x.reshape(4, 3), jnp.ones((4, 2, 3))),
    "product": lambda x: MATRIX @ x.reshape(4, 3),
    "product of both": lambda x: x[:6].reshape(2, 3) @ x[6:].reshape(3, 2),
    "written": lambda x: jnp.zeros(9).at[jnp.array([1, 5, 1])].add(x[:3] ** 2),
    "dynamic": lambda x: jax.lax.dynamic_slice(x, (3,), (4,)),
    "custom derivative": lambda x: jax.nn.softplus(x) + jax.nn.relu(x),
    "scan": tridiagonal_steps,
    "held fixed": lambda x: jax.lax.stop_gradient(jnp.sum(x)) * x,
}

LARGER = {
    "switch": lambda x: jnp.where(jnp.arange(12) < 6, x, x[::-1] ** 2),
    "sorted": lambda x: jnp.sort(x),
    "sums": lambda x: jnp.cumsum(x),
    "carried on": lambda x: jax.lax.scan(lambda c, s: (c * 0.5 + s, c), x[0], x)[1],
    "branches": lambda x: jax.lax.cond(x[0] > 0, lambda: x[1:3], lambda: x[3:5]),
    "while": lambda x: jax.lax.while_loop(lambda c: c[0] < 9.0, lambda c: c + 1.0, x),
    "triangular": lambda x: solve_triangular(jnp.eye(3) + x[:9].reshape(3, 3), x[9:], lower=True),
    "index by value": lambda x: x[jnp.argmax(x)] * jnp.ones(2),
}


def patterns(function):
    point = jnp.asarray(RNG.uniform(0.5, 1.5, 12))
    found = dependence_of(function, point).by_element.toarray()
    jacobian = jax.jacfwd(lambda x: function(x).ravel())(point)
    return found, np.asarray(jacobian) != 0


@pytest.mark.parametrize("name", EXACT)
def test_dependence_is_that_of_the_jacobian(name):
    found, nonzero = patterns(EXACT[name])
    np.testing.assert_array_equal(found, nonzero)


@pytest.mark.parametrize("name", LARGER)
def test_dependence_is_never_too_small(name):
    found, nonzero = patterns(LARGER[name])
    assert np.all(found | ~nonzero)
