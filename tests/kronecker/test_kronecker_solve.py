"""Solves against dense inverses of the matrices they stand for; averages, periods, safety."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from kronecker_networks import (
    apply,
    network_operator,
    normal,
    perceptron,
    relative_error,
)

from vpng import InputError, Outcome
from vpng.kronecker import (
    Averages,
    FactoredTikhonov,
    Factors,
    FullRank,
    Kronecker,
    KroneckerTridiagonal,
    LogarithmicRank,
    PerFactor,
    statistics,
    zero_statistics,
)
from vpng.kronecker.discovery import look_at
from vpng.kronecker.matrices import Full, LowRank, inverse_root, leading_eigenpairs

DAMPINGS = [PerFactor(), FactoredTikhonov()]


def _perceptron_operator(num_data=6):
    layers = perceptron(0, (3, 4, 2, 3))
    return network_operator(apply, layers, normal((num_data, 3), seed=1))


def _gradient(parameters):
    generator = np.random.default_rng(9)
    return jax.tree.map(lambda leaf: jax.device_put(generator.normal(size=leaf.shape)), parameters)


def _solve(curvature, operator, gradient, damping=0.05):
    def solve(gradient):
        state = curvature.init(operator.parameters)
        return curvature.solve(lambda: operator, gradient, damping, state)

    return jax.jit(solve)(gradient)


def _damped(curvature, structure, operator, damping=0.05, **options):
    """The statistics, and of each layer the damped factors."""

    @jax.jit
    def compute(damping):
        found = statistics(structure, operator, **options)
        layers = [found.layers[layer.weight] for layer in structure.layers]
        return found, layers, [curvature.factor_damping.split(pair, damping) for pair in layers]

    found, layers, added = jax.tree.map(np.asarray, compute(damping))
    damp = lambda factor, more: factor + more * np.eye(len(factor))
    return found, [Factors(*map(damp, *both)) for both in zip(layers, added, strict=True)]


@pytest.mark.parametrize("factor_damping", DAMPINGS)
def test_block_diagonal_solve_is_the_dense_one(x64, factor_damping):
    operator = _perceptron_operator()
    structure = look_at(operator).structure
    curvature = Kronecker(structure, factor_damping)
    gradient = _gradient(operator.parameters)
    solution = _solve(curvature, operator, gradient)
    _, damped = _damped(curvature, structure, operator)
    for position, factors in enumerate(damped):
        block = np.kron(*factors)
        matrix = np.vstack([gradient[position]["w"], gradient[position]["b"]])
        wanted = np.linalg.solve(block, matrix.ravel()).reshape(matrix.shape)
        np.testing.assert_allclose(solution.direction[position]["w"], wanted[:-1], rtol=1e-8)
        np.testing.assert_allclose(solution.direction[position]["b"], wanted[-1], rtol=1e-8)
    assert solution.info.outcome == Outcome.success


def test_balanced_damping_is_blind_to_the_scale_between_the_factors(x64):
    factors = Factors(np.diag([1.0, 3.0]), np.diag([0.2, 0.4, 0.1]))
    scaled = Factors(10 * factors.inputs, factors.outputs / 10)
    split = jax.jit(FactoredTikhonov().split)
    (a, g), (b, h) = np.array([split(factors, 0.3), split(scaled, 0.3)])
    np.testing.assert_allclose([a * g, b * h], 0.3)
    np.testing.assert_allclose([b / a, g / h], 10.0)
    plain = FactoredTikhonov(balanced=False).split(factors, jnp.asarray(0.3))
    np.testing.assert_allclose(plain, np.sqrt(0.3))


def _chain_matrix(damped, couplings):
    """The damped matrix that agrees with F on three block diagonals, as a Gaussian chain.

    Layer i given layer i + 1 has the mean Psi_i = Psi^A (x) Psi^G times the latter, so the blocks
    further off are F_ij = Psi_i F_{i+1, j}.
    """
    count = len(damped)
    slopes = [
        np.kron(
            np.linalg.solve(damped[i + 1].inputs, pair.inputs.T).T,
            np.linalg.solve(damped[i + 1].outputs, pair.outputs.T).T,
        )
        for i, pair in enumerate(couplings)
    ]
    blocks = {(j, j): np.kron(*damped[j]) for j in range(count)}
    for j in range(count):
        for i in reversed(range(j)):
            blocks[i, j] = slopes[i] @ blocks[i + 1, j]
            blocks[j, i] = blocks[i, j].T
    return np.block([[blocks[i, j] for j in range(count)] for i in range(count)])


@pytest.mark.parametrize("factor_damping", DAMPINGS)
def test_tridiagonal_solve_is_the_dense_one(x64, factor_damping):
    operator = _perceptron_operator()
    structure = look_at(operator).structure
    curvature = KroneckerTridiagonal(structure, factor_damping)
    gradient = _gradient(operator.parameters)
    solution = _solve(curvature, operator, gradient)
    found, damped = _damped(curvature, structure, operator, couplings=True)
    matrix = _chain_matrix(damped, found.couplings)
    flat, direction = (
        np.concatenate([np.append(layer["w"], layer["b"]) for layer in layers])
        for layers in (gradient, solution.direction)
    )
    assert relative_error(direction, np.linalg.solve(matrix, flat)) < 1e-8


def _inverse_matrix(curvature, operator):
    """The matrix of the solve, column by column."""

    @jax.jit
    def columns():
        flat, unravel = ravel_pytree(operator.parameters)
        state = curvature.init(operator.parameters)

        def column(vector):
            solution = curvature.solve(lambda: operator, unravel(vector), 0.05, state)
            return ravel_pytree(solution.direction)[0]

        return jax.vmap(column)(jnp.eye(flat.size, dtype=flat.dtype))

    return columns()


@pytest.mark.parametrize(
    ("rank", "diagonal_outputs"),
    [(FullRank(), True), (LogarithmicRank(1.0, threshold=2), False)],
)
def test_tridiagonal_inverse_stays_positive_definite(x64, rank, diagonal_outputs):
    operator = _perceptron_operator(num_data=2)
    structure = look_at(operator).structure
    curvature = KroneckerTridiagonal(
        structure, PerFactor(), rank, diagonal_outputs=diagonal_outputs
    )
    inverse = np.asarray(_inverse_matrix(curvature, operator))
    np.testing.assert_allclose(inverse, inverse.T, atol=1e-6 * np.abs(inverse).max())
    assert np.linalg.eigvalsh((inverse + inverse.T) / 2).min() > 0


def test_other_blocks_are_solved_with_their_own_curvature(x64):
    parameters = {"w": np.ones((3, 2)), "gain": np.arange(1.0, 4.0), "shift": np.ones(2)}
    inputs = normal((4, 3), seed=1)
    operator = network_operator(
        lambda p, x: jnp.tanh((x * p["gain"]) @ p["w"]) * p["shift"], parameters, inputs
    )
    matrix = np.asarray(jax.jit(operator.to_dense)())[:5, :5] + 0.05 * np.eye(5)
    gradient = _gradient(parameters)
    solution = _solve(Kronecker(look_at(operator).structure), operator, gradient)
    wanted = np.linalg.solve(matrix, np.concatenate([gradient["gain"], gradient["shift"]]))
    np.testing.assert_allclose(solution.direction["gain"], wanted[:3], rtol=1e-8)
    np.testing.assert_allclose(solution.direction["shift"], wanted[3:], rtol=1e-8)
    solution = _solve(Kronecker(look_at(operator, dense_limit=0).structure), operator, gradient)
    wanted = np.asarray(gradient["gain"]) / np.diag(matrix)[:3]
    np.testing.assert_allclose(solution.direction["gain"], wanted, rtol=1e-8)


def _decaying(size):
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))
    values = 0.7 ** np.arange(size)
    return (basis * values) @ basis.T, values, basis


def test_low_rank_keeps_the_leading_directions(x64):
    matrix, values, basis = _decaying(60)
    identity = np.eye(60)

    @jax.jit
    def compute(matrix, damping):
        root = inverse_root(matrix, damping, LogarithmicRank(3.0, threshold=50))
        small = inverse_root(matrix, damping, LogarithmicRank(3.0, threshold=61))
        products = root.gram().mv(identity), root.mv(root.transposed_mv(identity))
        return leading_eigenpairs(matrix, 12)[0], root, products, small

    found, root, (gram, twice), small = compute(matrix, 0.01)
    np.testing.assert_allclose(found, values[:12], rtol=1e-4)
    assert isinstance(root, LowRank)
    assert root.vectors.shape == (60, 13)
    truncated = (basis[:, :13] * values[:13]) @ basis[:, :13].T + 0.01 * np.eye(60)
    assert relative_error(gram, np.linalg.inv(truncated)) < 1e-3
    assert relative_error(twice, gram) < 1e-12
    assert isinstance(small, Full)


def _scalar_statistics(value):
    operator = network_operator(lambda w, x: x @ w, jnp.ones((1, 1)), jnp.ones((1, 1)))
    zeros = zero_statistics(
        look_at(operator).structure, operator.parameters, couplings=False, diagonal_outputs=False
    )
    return jax.tree.map(lambda leaf: np.full_like(leaf, value), zeros)


def test_averages_are_unbiased_and_skip_what_is_not_finite():
    averages = Averages.of(_scalar_statistics(0.0))
    assert averages.current.layers[""].inputs == 0.0
    update = jax.jit(Averages.updated, static_argnames="decay")
    for value in (2.0, np.nan, 4.0, np.inf):
        averages = update(averages, _scalar_statistics(value), decay=0.9)
    np.testing.assert_allclose(averages.current.layers[""].inputs, (0.9 * 2 + 4) / 1.9, rtol=1e-6)
    newest = update(averages, _scalar_statistics(7.0), decay=None)
    np.testing.assert_allclose(newest.current.layers[""].outputs, 7.0)


def test_periods_decide_what_is_refreshed():
    layers = perceptron(0, (3, 4, 2))
    inputs = normal((4, 3), seed=1)
    structure = look_at(network_operator(apply, layers, inputs)).structure
    curvature = Kronecker(structure, statistics_period=2, inverse_period=3)
    traces = []

    @jax.jit
    def step(state, scale):
        traces.append(scale)
        operator = network_operator(apply, layers, scale * inputs)
        return curvature.solve(lambda: operator, layers, 0.1, state).state

    state = jax.jit(curvature.init)(layers)
    for count in range(7):
        new = step(state, 1.0 + count)
        same = [
            all(map(np.array_equal, jax.tree.leaves(old), jax.tree.leaves(now)))
            for old, now in ((state.averages, new.averages), (state.inverses, new.inverses))
        ]
        assert same == [count % 2 != 0, count % 3 != 0]
        state = new
    assert len(traces) == 1


@pytest.mark.parametrize("factor_damping", DAMPINGS)
def test_a_failed_solve_is_reported_and_recovered_from(factor_damping):
    operator = _perceptron_operator()
    curvature = Kronecker(
        look_at(operator).structure, factor_damping, statistics_period=10, inverse_period=10
    )
    gradient = _gradient(operator.parameters)
    solve = jax.jit(
        lambda state, damping: curvature.solve(lambda: operator, gradient, damping, state)
    )
    state = jax.jit(curvature.init)(operator.parameters)
    for bad in (jnp.nan, -0.05):
        failed = solve(state, bad)
        assert failed.info.outcome == Outcome.not_finite
        assert solve(failed.state, 0.1).info.outcome == Outcome.success
    with pytest.raises(InputError, match=r"^damping: expected .*at least 0, got -0.05"):
        curvature.solve(lambda: operator, gradient, -0.05, state)


def test_options_are_checked():
    structure = look_at(_perceptron_operator()).structure
    with pytest.raises(InputError, match="decay"):
        Kronecker(structure, decay=1.0)
    with pytest.raises(InputError, match="inverse_period"):
        Kronecker(structure, inverse_period=0)
    with pytest.raises(InputError, match="discover"):
        KroneckerTridiagonal("layers")
    other = network_operator(apply, perceptron(0, (3, 5, 2)), jnp.ones((2, 3)))
    with pytest.raises(InputError, match="structure was discovered with"):
        _solve(Kronecker(structure), other, other.parameters)


def test_a_chain_that_branches_is_refused():
    weights = (jnp.ones((3, 2)), jnp.ones((3, 2)))
    operator = network_operator(lambda ws, x: (x @ ws[0]) * (x @ ws[1]), weights, jnp.ones((4, 3)))
    structure = look_at(operator).structure
    Kronecker(structure)
    with pytest.raises(InputError, match=r"branch at \[1\]"):
        KroneckerTridiagonal(structure)


def test_particles_as_many_as_data_cannot_be_told_apart():
    layers = perceptron(0, (3, 4, 2))
    operator = network_operator(
        lambda p, x: apply(p, jnp.stack([x, 2 * x, 3 * x])), layers, jnp.ones((3, 3))
    )
    with pytest.raises(InputError, match="number of particles"):
        _solve(KroneckerTridiagonal(look_at(operator).structure), operator, layers)
