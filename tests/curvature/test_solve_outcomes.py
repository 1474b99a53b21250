"""Failures survive compilation: they are an outcome, not an exception."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import ConjugateGradient, Dense, Diagonal, Dual, Identity, LeastSquares, Outcome, auto
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
    @jax.jit
    def run(rows, gradient):
        operator = FisherOperator(jnp.zeros(rows.shape[1]), lambda v: rows @ v)
        return solver.solve(lambda: operator, gradient, damping, solver.init(operator.parameters))

    return run(jnp.asarray(rows, jnp.float32), jnp.asarray(gradient, jnp.float32))


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


@pytest.mark.parametrize("name", ["dense", "dual"])
def test_a_singular_matrix_without_damping(name):
    solution = solve(ALL[name], [[1.0, 0.0, 0.0]], [1.0, 1.0, 1.0], 0.0)
    assert bool(solution.info.outcome == Outcome.not_finite)


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
