"""Factors against brute force, where the approximation is exact and in expectation."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kronecker_networks import (
    apply,
    compiled_statistics,
    layer_rows,
    network_operator,
    normal,
    perceptron,
    relative_error,
)

from vpng import Exact, Predictive, Probed, Sampled, Variational
from vpng.fisher import FisherOperator
from vpng.kronecker import discover, statistics
from vpng.kronecker.discovery import look_at
from vpng.kronecker.factor_statistics import _taps
from vpng.kronecker.structure import by_path
from vpng.problems.autoencoder import mlp_vae


def exact_blocks(structure, make_operator, **options):
    """Checks every block of F by brute force; the factors, and the rows of R for each layer."""

    @jax.jit
    def compute():
        operator = make_operator()
        found = statistics(structure, operator, **options)
        return found, layer_rows(operator, structure.layers)

    found, rows = jax.tree.map(np.asarray, compute())
    for layer, mine in zip(structure.layers, rows, strict=True):
        block = np.kron(*found.layers[layer.weight])
        assert relative_error(block, mine.T @ mine) < 1e-12
    return found, rows


def test_one_datum_has_exact_blocks(x64):
    layers = perceptron(0, (4, 5, 3, 2))
    operator = network_operator(apply, layers, normal((1, 4), seed=1))
    exact_blocks(look_at(operator).structure, lambda: operator)


@pytest.mark.parametrize("bias", [True, False])
def test_deep_linear_network_has_exact_blocks_and_couplings(x64, bias):
    layers = perceptron(0, (4, 5, 3, 2), bias=bias)
    inputs = normal((7, 4), seed=1)
    operator = network_operator(lambda p, x: apply(p, x, lambda s: s), layers, inputs)
    structure = look_at(operator).structure
    found, rows = exact_blocks(structure, lambda: operator, couplings=True)
    for pair, (before, after) in zip(found.couplings, pairwise(rows), strict=True):
        assert relative_error(np.kron(*pair), before.T @ after) < 1e-12


def test_rows_that_do_not_separate_by_datum_give_the_same_factors(x64):
    layers = perceptron(0, (4, 5, 2))
    operator = network_operator(apply, layers, normal((3, 4), seed=1))
    whole = FisherOperator(layers, operator.row_function)
    structure = look_at(operator).structure
    wanted, found = jax.jit(lambda: [statistics(structure, one) for one in (operator, whole)])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-14), wanted, found)


def _convolution(strides, padding, dilation, spec, _width):
    def function(parameters, images):
        hidden = jax.lax.conv_general_dilated(
            images, parameters["k"], strides, padding, rhs_dilation=dilation, dimension_numbers=spec
        )
        channel = spec[2].index("C")
        shape = [1] * 4
        shape[channel] = -1
        hidden = jnp.tanh(hidden + parameters["b"].reshape(shape))
        return hidden.reshape(images.shape[0], -1) @ parameters["w"]

    return function


CONVOLUTIONS = [
    ((1, 1), "VALID", (1, 1), ("NHWC", "HWIO", "NHWC"), 64),
    ((2, 1), "SAME", (1, 1), ("NCHW", "OIHW", "NCHW"), 60),
    ((1, 2), ((1, 2), (0, 1)), (2, 1), ("NCHW", "HWIO", "NHWC"), 60),
]


def _convolution_operator(setting, num_data=2):
    *_, spec, width = setting
    sizes = {"N": num_data, "H": 6, "W": 5, "C": 2}
    kernel = {"H": 3, "W": 2, "I": 2, "O": 4}
    images = normal([sizes[c] for c in spec[0]], seed=0)
    parameters = {
        "k": normal([kernel[c] for c in spec[1]], seed=1),
        "b": normal((4,), seed=2),
        "w": normal((width, 3), seed=3) / np.sqrt(width),
    }
    return network_operator(_convolution(*setting), parameters, images)


@pytest.mark.parametrize("setting", CONVOLUTIONS)
def test_inputs_times_cotangents_are_the_gradient(x64, setting):
    """sum_e a_e g_e^T is the weight's gradient exactly, whatever the layout of the product."""
    operator = _convolution_operator(setting)
    traced = look_at(operator)
    layers = traced.structure.layers

    @jax.jit
    def both():
        rows, pull, activations = _taps(traced, operator, frozenset())
        cotangents = jax.random.normal(jax.random.key(5), rows.shape)
        at_outputs, gradient = pull(cotangents)[0], by_path(operator.pull(cotangents))
        found = []
        for layer in layers:
            (use,) = traced.uses[layer.weight]
            inputs = use.product.inputs(activations[use.position])
            outputs = use.product.outputs(at_outputs[use.position])
            found.append((inputs, outputs, layer.matrix(gradient)))
        return found

    assert {layer.bias for layer in layers} == {"['b']", None}
    for layer, arrays in zip(layers, both(), strict=True):
        inputs, outputs, wanted = map(np.asarray, arrays)
        inputs = inputs.reshape(-1, inputs.shape[-1])
        outputs = outputs.reshape(-1, outputs.shape[-1])
        np.testing.assert_allclose(inputs.T @ outputs, wanted[: layer.size[0]], atol=1e-12)
        if layer.bias is not None:
            np.testing.assert_allclose(outputs.sum(axis=0), wanted[-1], atol=1e-12)


def test_convolution_factors_follow_kfc(x64):
    """Omega is the sum over positions and the mean over data of the patches' products."""
    operator = _convolution_operator(CONVOLUTIONS[0])
    found = compiled_statistics(look_at(operator).structure, operator).layers["['k']"]
    images = np.asarray(operator.by_datum.inputs)
    omega = np.zeros((13, 13))
    for image in images:
        for row in range(4):
            for column in range(4):
                patch = image[row : row + 3, column : column + 2]
                patch = np.append(patch.transpose(2, 0, 1).ravel(), 1.0)
                omega += np.outer(patch, patch) / len(images)
    np.testing.assert_allclose(found.inputs, omega, atol=1e-12)


def _autoencoder(num_data=6):
    generator = np.random.default_rng(1)
    data = jax.device_put((generator.random((num_data, 5)) > 0.5).astype(float))
    setup = mlp_vae(jax.random.key(0), data, latent_dim=2, hidden=(4,))
    # Zero biases and dead units make logits of exactly zero, where NumPyro's Bernoulli has a kink.
    moved = jax.tree.map(
        lambda leaf: jax.device_put(np.asarray(leaf) + 0.1 * generator.normal(size=leaf.shape)),
        setup.parameters,
    )
    return setup._replace(parameters=moved)


def _operator(setup, metric):
    return metric.operator(setup.problem, setup.parameters, setup.data, jax.random.key(2))


def test_one_particle_and_datum_of_an_autoencoder_has_exact_blocks(x64):
    setup = _autoencoder(1)
    metric = Predictive(Exact(), num_particles=1)
    structure = discover(setup.problem, setup.parameters, setup.data, metric)
    assert len(structure.layers) == 4
    exact_blocks(structure, lambda: _operator(setup, metric))


@pytest.mark.parametrize(
    ("estimator", "num_particles"), [(Probed(1), 1), (Probed(1), 3), (Sampled(2), 3)]
)
def test_random_factors_agree_with_exact_ones_in_expectation(x64, estimator, num_particles):
    """Encoder factors see sums over particles, whose cross terms must vanish on average.

    The same key gives the same particles to both metrics, so the differences have mean zero. The
    mean of 800 lies within 5 of its standard errors but for about one entry in a million; a few
    hundred entries are compared.
    """
    setup = _autoencoder()

    def factors(metric, key):
        operator = metric.operator(setup.problem, setup.parameters, setup.data, key)
        return statistics(look_at(operator).structure, operator, couplings=True)

    random, exact = (
        Predictive(chosen, num_particles=num_particles) for chosen in (estimator, Exact())
    )

    def difference(key):
        return jax.tree.map(jnp.subtract, factors(random, key), factors(exact, key))

    keys = jax.random.split(jax.random.key(3), 800)
    differences = jax.jit(jax.vmap(difference))(keys)
    for name, layer in differences.layers.items():
        np.testing.assert_allclose(layer.inputs, 0.0, atol=1e-12, err_msg=name)
    outputs = [layer.outputs for layer in differences.layers.values()]
    outputs += [pair.outputs for pair in differences.couplings]
    for values in map(np.asarray, outputs):
        error = values.std(axis=0) / np.sqrt(len(values))
        assert np.all(np.abs(values.mean(axis=0)) <= 5 * error + 1e-12)


def test_diagonal_outputs_are_exact_for_a_bernoulli(x64):
    setup = _autoencoder()
    metric = Predictive(Exact(), num_particles=2)
    structure = discover(setup.problem, setup.parameters, setup.data, metric)
    assert structure.outputs == ("model[1].kernel",)

    @jax.jit
    def outputs():
        operator = _operator(setup, metric)
        both = [statistics(structure, operator, diagonal_outputs=thin) for thin in (False, True)]
        return [found.layers["model[1].kernel"].outputs for found in both]

    full, thin = outputs()
    np.testing.assert_allclose(full, np.diag(thin), atol=1e-14)


def test_variational_metric_sees_the_encoder_alone(x64):
    setup = _autoencoder(1)
    metric = Variational()
    structure = discover(setup.problem, setup.parameters, setup.data, metric)
    assert [layer.weight for layer in structure.layers] == [
        f"variational[{i}].kernel" for i in range(2)
    ]
    assert all(not other.is_read for other in structure.others)
    structure.check_chain()
    exact_blocks(structure, lambda: _operator(setup, metric))


def test_shared_weights_sum_their_uses(x64):
    """Two uses of one weight on the same inputs: A as of one use, G of both."""
    weight = normal((3, 3), seed=0)
    inputs = normal((4, 3), seed=1)
    shared = network_operator(
        lambda w, x: jnp.concatenate([jnp.tanh(x @ w), jnp.sin(x @ w)], axis=-1), weight, inputs
    )
    separate = network_operator(
        lambda ws, x: jnp.concatenate([jnp.tanh(x @ ws[0]), jnp.sin(x @ ws[1])], axis=-1),
        (weight, weight),
        inputs,
    )
    structure = look_at(shared).structure
    assert structure.layers[0].num_uses == 2
    apart = look_at(separate).structure
    together, alone = jax.jit(
        lambda: (statistics(structure, shared), statistics(apart, separate))
    )()
    found, (first, second) = together.layers[""], alone.layers.values()
    np.testing.assert_allclose(found.inputs, first.inputs, atol=1e-14)
    both = np.asarray(first.outputs) + np.asarray(second.outputs)
    np.testing.assert_allclose(found.outputs, both, atol=1e-14)


def test_other_parameters_have_exact_blocks(x64):
    parameters = {"w": np.ones((3, 2)), "gain": np.arange(1.0, 4.0), "shift": np.ones(2)}
    inputs = normal((4, 3), seed=1)

    def function(p, x):
        return jnp.tanh((x * p["gain"]) @ p["w"]) * p["shift"] + p["shift"]

    operator = network_operator(function, parameters, inputs)
    structures = [look_at(operator, dense_limit=limit).structure for limit in (500, 2)]

    @jax.jit
    def compute():
        found, thin = (statistics(structure, operator) for structure in structures)
        return operator.to_dense(), found, thin

    dense, found, thin = compute()
    dense = np.asarray(dense)[:5, :5]
    np.testing.assert_allclose(found.dense, dense, atol=1e-13)
    np.testing.assert_allclose(thin.dense, dense[3:, 3:], atol=1e-13)
    np.testing.assert_allclose(thin.diagonal["['gain']"], np.diag(dense)[:3], atol=1e-13)
