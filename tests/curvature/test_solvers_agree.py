"""Dense = LeastSquares = Dual = ConjugateGradient, on any operator."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from vpng import (
    ConjugateGradient,
    Dense,
    Diagonal,
    Dual,
    Identity,
    InputError,
    LeastSquares,
    Outcome,
    auto,
)
from vpng.fisher import FisherOperator

SOLVERS = {
    "dense": Dense(),
    "least squares": LeastSquares(),
    "dual": Dual(),
    "conjugate gradient": ConjugateGradient(rtol=1e-12, max_steps=None),
    "auto": auto(),
}


def template(size, dtype):
    """A pytree with odd structure: nested, a scalar, an empty tuple, a None and a matrix."""
    return {
        "a": [jnp.zeros((), dtype), None, ()],
        "b": (jnp.zeros((1, 2), dtype), {"c": jnp.zeros(size - 3, dtype)}),
    }


def operator_of(rows, dtype=None):
    """The operator with this factor R, acting on an odd pytree."""
    rows = jnp.asarray(rows, dtype)
    point = template(rows.shape[1], rows.dtype)
    return FisherOperator(point, lambda tree: rows @ ravel_pytree(tree)[0])


@eqx.filter_jit
def solve(solver, rows, gradient, damping, state=None):
    rows = jnp.asarray(rows)
    operator = operator_of(rows)
    _, unravel = ravel_pytree(operator.parameters)
    tree = unravel(jnp.asarray(gradient, rows.dtype))
    state = solver.init(operator.parameters) if state is None else state
    solution = solver.solve(lambda: operator, tree, damping, state)
    assert jax.tree.structure(solution.direction) == jax.tree.structure(tree)
    return ravel_pytree(solution.direction)[0], solution


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SOLVERS)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(3, 8), (8, 8), (20, 8)]),
    damping=st.sampled_from([1e-3, 1e-1, 10.0]),
)
def test_all_solve_the_same_system(name, seed, shape, damping):
    generator = np.random.default_rng(seed)
    rows, gradient = generator.normal(size=shape), generator.normal(size=8)
    wanted = np.linalg.solve(rows.T @ rows + damping * np.eye(8), gradient)
    direction, solution = solve(SOLVERS[name], rows, gradient, np.float64(damping))
    assert np.linalg.norm(direction - wanted) <= 1e-8 * np.linalg.norm(wanted)
    assert bool(solution.info.outcome == Outcome.success)
    assert float(solution.info.residual) < 1e-9


@pytest.mark.parametrize("name", ["dense", "least squares", "dual", "auto"])
def test_single_precision_has_a_small_residual(name):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(6, 10)).astype(np.float32)
    direction, solution = solve(SOLVERS[name], rows, generator.normal(size=10), 1e-2)
    assert direction.dtype == jnp.float32
    assert float(solution.info.residual) < 1e-4
    assert float(solution.info.condition) < 1e6


def test_conjugate_gradient_in_single_precision():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(6, 10)).astype(np.float32)
    _, solution = solve(ConjugateGradient(), rows, generator.normal(size=10), 1e-1)
    assert float(solution.info.residual) <= 1.1e-3
    assert bool(solution.info.outcome == Outcome.success)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["dense", "least squares", "conjugate gradient"])
def test_no_damping_is_allowed_where_the_matrix_is_regular(name):
    generator = np.random.default_rng(3)
    rows, gradient = generator.normal(size=(20, 8)), generator.normal(size=8)
    direction, solution = solve(SOLVERS[name], rows, gradient, 0.0)
    np.testing.assert_allclose(direction, np.linalg.solve(rows.T @ rows, gradient), rtol=1e-7)
    assert bool(solution.info.outcome == Outcome.success)


@pytest.mark.usefixtures("x64")
def test_diagonal_and_identity():
    generator = np.random.default_rng(3)
    rows, gradient = generator.normal(size=(20, 8)), generator.normal(size=8)
    direction, _ = solve(Diagonal(), rows, gradient, 0.3)
    np.testing.assert_allclose(direction, gradient / ((rows**2).sum(0) + 0.3), rtol=1e-12)
    direction, _ = solve(Identity(), rows, gradient, 0.3)
    np.testing.assert_array_equal(direction, gradient)


def test_least_squares_holds_where_the_normal_equations_break_down():
    """R of condition 3e5 is bearable in float32, but F has 1e11, beyond its seven digits.

    Rounding of the gradient alone moves the solution by eps / 3e-6, about 0.02 in the norm |R u|.
    """
    broken = 0
    for seed in range(5):
        generator = np.random.default_rng(seed)
        left, _ = np.linalg.qr(generator.normal(size=(30, 8)))
        right, _ = np.linalg.qr(generator.normal(size=(8, 8)))
        rows = (left * np.geomspace(1.0, 3e-6, 8)) @ right.T
        wanted = generator.normal(size=8)
        single, gradient = rows.astype(np.float32), rows.T @ (rows @ wanted)
        direction, solution = solve(LeastSquares(), single, gradient, 0.0)
        assert bool(solution.info.outcome == Outcome.success)
        assert np.linalg.norm(rows @ (direction - wanted)) < 0.1
        _, solution = solve(Dense(), single, gradient, 0.0)
        broken += bool(solution.info.outcome != Outcome.success)
    # Three pivots are below the rounding of the largest: of either sign.
    assert broken >= 3


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((4, 9), Dual), ((9, 4), Dense), ((9, 9), Dense), ((3000, 2500), "iterative")],
)
def test_auto_chooses_by_shape(shape, kind):
    rows = jnp.zeros(shape)
    operator = FisherOperator(jnp.zeros(shape[1]), lambda v: rows @ v)
    kind = ConjugateGradient if kind == "iterative" else kind
    assert isinstance(auto().chosen(operator), kind)


@pytest.mark.parametrize(("num_rows", "kind"), [(500, Dual), (2**9, ConjugateGradient)])
def test_auto_forms_no_factor_above_its_limit(num_rows, kind):
    """Of 2**27 entries, which are there twice while they are made; here none of them is."""
    operator = FisherOperator(jnp.zeros(2**18), lambda v: v[:num_rows])
    assert isinstance(auto().chosen(operator), kind)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SOLVERS)
def test_vectorises(name):
    generator = np.random.default_rng(5)
    rows, gradients = generator.normal(size=(3, 5, 8)), generator.normal(size=(3, 8))
    together = jax.vmap(lambda r, g: solve(SOLVERS[name], r, g, 0.1)[0])(
        jnp.asarray(rows), jnp.asarray(gradients)
    )
    for i in range(3):
        wanted = np.linalg.solve(rows[i].T @ rows[i] + 0.1 * np.eye(8), gradients[i])
        np.testing.assert_allclose(together[i], wanted, rtol=1e-8)


@pytest.mark.parametrize("count", [-1, 1.5, True, "one"])
def test_refinements_are_counted(count):
    with pytest.raises(InputError, match=r"^refinements: expected a whole number of at least 0"):
        Dual(refinements=count)


@pytest.mark.usefixtures("x64")
def test_condition_estimates():
    """F = diag(1 .. 100): pivots see its condition number to within a small factor."""
    rows = np.diag(np.sqrt(np.geomspace(1.0, 100.0, 8)))
    for name in ("dense", "least squares"):
        _, solution = solve(SOLVERS[name], rows, np.ones(8), 0.0)
        assert float(solution.info.condition) == pytest.approx(100.0, rel=1e-6)
    _, solution = solve(SOLVERS["dual"], rows, np.ones(8), 1.0)
    assert float(solution.info.condition) == pytest.approx(101.0, rel=1e-6)
    _, solution = solve(SOLVERS["conjugate gradient"], rows, np.ones(8), 1.0)
    assert 10.0 < float(solution.info.condition) < 110.0
    assert 1 <= int(solution.info.iterations) <= 16


@pytest.mark.usefixtures("x64")
def test_warm_start_saves_iterations():
    generator = np.random.default_rng(5)
    rows, gradient = generator.normal(size=(40, 30)), generator.normal(size=30)
    solver = ConjugateGradient(rtol=1e-6, max_steps=None)
    _, cold = solve(solver, rows, gradient, 0.1)
    _, warm = solve(solver, rows, gradient * (1 + 1e-7), 0.1, state=cold.state)
    assert int(warm.info.iterations) < int(cold.info.iterations) / 2
    fresh = ConjugateGradient(rtol=1e-6, max_steps=None, warm_start=False)
    _, again = solve(fresh, rows, gradient, 0.1, state=cold.state)
    assert int(again.info.iterations) == int(cold.info.iterations)
