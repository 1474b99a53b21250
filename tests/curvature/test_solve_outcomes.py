"""Failures survive compilation: they are an outcome, not an exception."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
from vpng.curvature.fallback import clipped, fall_back, more_damping
from vpng.fisher import FisherOperator

ALL = {
    "identity": Identity(),
    "diagonal": Diagonal(),
    "dense": Dense(),
    "least squares": LeastSquares(),
    "dual": Dual(),
    "conjugate gradient": ConjugateGradient(),
    "auto": auto(),
}


def solve(solver, rows, gradient, damping):
    return run(solver, np.asarray(rows, np.float32), np.asarray(gradient, np.float32), damping)


@eqx.filter_jit
def run(solver, rows, gradient, damping):
    operator = FisherOperator(jnp.zeros(rows.shape[1]), lambda v: rows @ v)
    return solver.solve(lambda: operator, gradient, damping, solver.init(operator.parameters))


@pytest.mark.parametrize("name", [n for n in ALL if n != "identity"])
def test_a_metric_that_is_not_finite(name):
    rows = np.ones((3, 4))
    rows[1, 2] = np.nan
    solution = solve(ALL[name], rows, np.ones(4), 0.1)
    assert bool(solution.info.outcome == Outcome.not_finite)


@pytest.mark.parametrize("name", ALL)
def test_a_gradient_that_is_not_finite(name):
    solution = solve(ALL[name], np.eye(4), [1.0, np.inf, 0.0, np.nan], 0.1)
    assert bool(solution.info.outcome == Outcome.not_finite)


@pytest.mark.parametrize("name", [n for n in ALL if n != "identity"])
def test_a_damping_below_zero(name):
    """A number is refused; one that is known only in the compiled program fails the solve."""
    with pytest.raises(InputError, match=r"^damping: expected .*at least 0, got -2.0"):
        solve(ALL[name], np.eye(4), np.ones(4), -2.0)
    solution = solve(ALL[name], np.eye(4), np.ones(4), jnp.float32(-2.0))
    assert bool(solution.info.outcome == Outcome.not_finite)


@pytest.mark.parametrize("name", ["dense", "dual", "least squares"])
def test_a_singular_matrix_without_damping_gets_some(name):
    """The oracle: float64 with the damping that the fallback states."""
    rows = np.array([[1.0, 0.0, 0.0], [2.0, 1.0, 0.0]])
    matrix = rows @ rows.T if name == "dual" else rows.T @ rows
    more = float(jax.jit(more_damping)(np.asarray(matrix, np.float32), 0.0))
    solution = solve(ALL[name], rows, [1.0, 1.0, 1.0], 0.0)
    assert bool(solution.info.outcome == Outcome.damped)
    wanted = np.linalg.solve(rows.T @ rows + more * np.eye(3), np.ones(3))
    np.testing.assert_allclose(solution.direction, wanted, rtol=2e-2)


def test_a_diagonal_with_a_zero_is_clipped():
    solution = solve(Diagonal(), [[2.0, 0.0]], [1.0, 1.0], 0.0)
    assert bool(solution.info.outcome == Outcome.clipped)
    np.testing.assert_allclose(solution.direction, [0.25, 0.25 / np.finfo(np.float32).eps])


def test_clipped_eigenvalues():
    generator = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(generator.normal(size=(4, 4)))
    matrix = vectors * [-1.0, -1e-3, 0.5, 2.0] @ vectors.T
    wanted = vectors / [0.1, 0.1, 0.6, 2.1] @ vectors.T @ np.ones(4)
    found = jax.jit(clipped)(np.asarray(matrix, np.float32), 0.1, np.ones(4, np.float32))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_fallbacks_are_tried_in_turn(count):
    """The first `count` fail: as many attempts are made, and the next one's direction is taken."""
    broken = jnp.full(2, jnp.nan)
    tried = [broken if i < count else jnp.full(2, float(i)) for i in range(4)]
    attempts = [lambda _, direction=direction: direction for direction in tried[1:]]

    @jax.jit
    def run(first, factor):
        return fall_back(first, factor, jnp.ones(2), attempts)

    direction, number = run(tried[0], jnp.eye(2))
    assert int(number) == count
    np.testing.assert_array_equal(direction, float(count))
    if count:
        direction, _ = run(tried[0], jnp.full((2, 2), jnp.inf))
        assert np.isnan(np.asarray(direction)).all()


@pytest.mark.parametrize("name", ["dense", "dual", "least squares"])
def test_what_is_not_needed_is_not_computed(name):
    """Eigenvalues are those of a fallback: they belong into the loop that is hardly ever entered.

    They are the same in each of its turns, and a compiler that sees it takes them out of it.
    """
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)
    several = jax.jit(jax.vmap(lambda rows: run(ALL[name], rows, jnp.ones(4), 0.1).direction))
    program = several.lower(rows).compile().as_text()
    assert "syevd" in program
    entry = program[program.index("ENTRY") :]
    assert "syevd" not in entry


def test_lanes_fall_back_each_for_itself():
    rows = jnp.asarray([[1.0, 0.0], [0.0, 0.0]])

    def run(damping):
        operator = FisherOperator(jnp.zeros(2), lambda v: rows @ v)
        return Dense().solve(lambda: operator, jnp.ones(2), damping, ())

    both = jax.jit(jax.vmap(run))(jnp.array([0.5, 0.0]))
    outcomes = [Outcome[jax.tree.map(lambda leaf, i=i: leaf[i], both.info.outcome)] for i in (0, 1)]
    assert outcomes == [Outcome[Outcome.success], Outcome[Outcome.damped]]
    np.testing.assert_allclose(both.direction[0], [1 / 1.5, 2.0], rtol=1e-5)


def test_a_solution_that_lost_its_digits_is_called_inaccurate():
    """Without refinement the difference that `Dual` divides by mu keeps eps / mu of rounding.

    The oracle: the residual of what was returned, in float64. That in single precision has an
    error of its own: some roundings of products as large as |R|^2 |u|.
    """
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(3, 8)).astype(np.float32)
    gradient = generator.normal(size=8).astype(np.float32)
    seen = set()
    for damping in (1e-1, 1e-3, 1e-7, 1e-9):
        direction, _, info = solve(Dual(refinements=0), rows, gradient, damping)
        direction, exact = np.asarray(direction, np.float64), rows.astype(np.float64)
        image = exact.T @ (exact @ direction) + damping * direction
        residual = np.linalg.norm(image - gradient) / np.linalg.norm(gradient)
        largest = np.linalg.norm(exact, 2) ** 2 * np.linalg.norm(direction)
        rounding = 4 * np.finfo(np.float32).eps * largest / np.linalg.norm(gradient)
        assert float(info.residual) == pytest.approx(residual, abs=1e-3 + rounding)
        wanted = Outcome.inaccurate if residual > 1e-2 else Outcome.success
        assert bool(info.outcome == wanted)
        seen.add(Outcome[info.outcome])
    assert seen == {Outcome[Outcome.success], Outcome[Outcome.inaccurate]}


def test_the_iteration_limit():
    rows = np.diag(np.sqrt(np.geomspace(1e-3, 1e3, 30)))
    solution = solve(ConjugateGradient(rtol=1e-6, max_steps=3), rows, np.ones(30), 1e-6)
    assert bool(solution.info.outcome == Outcome.max_steps)
    assert int(solution.info.iterations) <= 3
    assert np.isfinite(np.asarray(solution.direction)).all()
    assert float(solution.info.residual) > 1e-6


def test_a_failed_solve_does_not_poison_the_next_warm_start():
    rows = np.eye(4)
    rows[0, 0] = np.nan
    solution = solve(ConjugateGradient(), rows, np.ones(4), 0.1)
    assert np.isfinite(np.asarray(solution.state)).all()


def test_a_zero_gradient_is_solved_by_zero():
    for name, solver in ALL.items():
        solution = solve(solver, np.eye(4), np.zeros(4), 0.1)
        assert bool(solution.info.outcome == Outcome.success), name
        np.testing.assert_array_equal(solution.direction, 0.0)
        assert float(solution.info.residual) == 0.0


def test_outcomes_explain_themselves():
    assert "damping" in Outcome[Outcome.not_finite]
    assert "max_steps" in Outcome[Outcome.max_steps]


def test_conjugate_gradients_go_on_where_the_gradient_has_zeros(x64):
    """Two coupled parameters and one that the loss does not feel at all."""
    rows = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 0.0]])
    gradient = np.array([1.0, -2.0, 0.0])
    found = run(ConjugateGradient(rtol=1e-12), rows, gradient, 0.1)
    wanted = np.linalg.solve(rows.T @ rows + 0.1 * np.eye(3), gradient)
    np.testing.assert_allclose(found.direction, wanted, rtol=1e-10, atol=1e-14)
