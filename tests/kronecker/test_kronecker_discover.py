"""Layers found in networks of every make, and the words for what is not a layer."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kronecker_networks import apply, network_operator, perceptron

from vpng import InputError, Predictive, Probed
from vpng.kronecker import discover
from vpng.kronecker.discovery import look_at
from vpng.kronecker.structure import by_path
from vpng.problems.autoencoder import mlp_vae

INPUTS = np.ones((5, 3), np.float32)


def _plain():
    return perceptron(0, (3, 4, 2)), apply, INPUTS


@cache
def _linen():
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)])
    return module.init(jax.random.key(0), INPUTS), module.apply, INPUTS


@cache
def _nnx():
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    module = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), jax.nn.gelu, nnx.Linear(4, 2, rngs=rngs))
    graph, state = nnx.split(module)

    def function(pure, inputs):
        copied = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(copied, pure)
        return nnx.merge(graph, copied)(inputs)

    return nnx.to_pure_dict(state), function, INPUTS


@cache
def _equinox():
    module = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    arrays, static = eqx.partition(module, eqx.is_inexact_array)
    return arrays, lambda a, x: jax.vmap(eqx.combine(a, static))(x), INPUTS


@cache
def _equinox_convolution():
    keys = jax.random.split(jax.random.key(0))
    arrays = (eqx.nn.Conv2d(2, 4, 3, key=keys[0]), eqx.nn.Linear(36, 2, key=keys[1]))
    arrays, static = eqx.partition(arrays, eqx.is_inexact_array)

    def one(arrays, image):
        convolution, linear = eqx.combine(arrays, static)
        return linear(jax.nn.relu(convolution(image)).ravel())

    return arrays, lambda a, x: jax.vmap(one, (None, 0))(a, x), jnp.ones((5, 2, 5, 5))


NETWORKS = {
    "plain": (_plain, [(3, 4), (4, 2)]),
    "linen": (_linen, [(3, 4), (4, 2)]),
    "nnx": (_nnx, [(3, 4), (4, 2)]),
    "equinox": (_equinox, [(3, 4), (4, 2)]),
    "equinox convolution": (_equinox_convolution, [(18, 4), (36, 2)]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_of_a_network_lands_in_a_layer(name):
    make, sizes = NETWORKS[name]
    parameters, function, inputs = make()
    structure = look_at(network_operator(function, parameters, inputs)).structure
    assert [layer.size for layer in structure.layers] == sizes
    assert all(layer.bias is not None for layer in structure.layers)
    assert structure.others == ()
    assert structure.layers[1].sources == (structure.layers[0].weight,)
    assert structure.outputs == (structure.layers[1].weight,)
    table = structure.explain()
    assert all(path in table for path in by_path(parameters))
    for layer in structure.layers:
        kind = "convolution" if "convolution" in name and layer.size[0] == 18 else "dense"
        assert f"{kind} {layer.size[0]} -> {layer.size[1]}" in table


def test_layers_turn_leaves_into_a_matrix_and_back():
    for make, _ in NETWORKS.values():
        parameters, function, inputs = make()
        structure = look_at(network_operator(function, parameters, inputs)).structure
        leaves = by_path(parameters)
        again = jax.jit(
            lambda leaves, layers=structure.layers: [
                layer.leaves(layer.matrix(leaves)) for layer in layers
            ]
        )
        for found in again(leaves):
            for path, leaf in found.items():
                np.testing.assert_array_equal(leaf, leaves[path])


def test_particles_share_one_pass_through_the_encoder():
    data = jax.device_put(np.random.default_rng(1).integers(0, 2, (7, 5)).astype(np.float32))
    setup = mlp_vae(jax.random.key(0), data, latent_dim=2, hidden=(4,))
    metric = Predictive(Probed(1), num_particles=3)

    def look(parameters):
        operator = metric.operator(setup.problem, parameters, data, jax.random.key(0))
        traced = look_at(operator)
        shapes = [use.product.equation.output_shape[:-1] for (use,) in traced.uses.values()]
        assert shapes == [(7,), (7,), (3, 7), (3, 7)]
        assert discover(setup.problem, setup.parameters, data, metric) == traced.structure

    jax.eval_shape(look, setup.parameters)


def _one(function, parameters, inputs=INPUTS):
    return look_at(network_operator(function, parameters, inputs)).structure


@jax.custom_vjp
def _affine(x, w):
    return x @ w


_affine.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))


@pytest.mark.parametrize(
    "function",
    [
        jax.jit(lambda w, x: x @ w),
        jax.checkpoint(lambda w, x: jnp.tanh(x @ w)),
        lambda w, x: x @ w.T,
        lambda w, x: jnp.einsum("bi,oi->bo", x, w.reshape(3, 3)),
        lambda w, x: _affine(x, w),
        lambda w, x: jax.vmap(lambda row: w @ row)(x),
        lambda w, x: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32),
    ],
)
def test_a_weight_is_found_behind_every_disguise(function):
    structure = _one(function, jnp.ones((3, 3)))
    assert [layer.size for layer in structure.layers] == [(3, 3)]


def _scanned(w, x):
    return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=2)[0]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda w, x: x @ (2.0 * w), "enters `mul`"),
        (_scanned, "enters `scan`"),
        (lambda w, x: x[:, :2] @ w[:2], "enters `slice`"),
        (lambda w, x: x @ w @ w.T, "is used as different matrices"),
        (lambda w, x: x @ w + jnp.sum(w), "enters `reduce_sum`"),
        (lambda w, x: x @ jax.lax.stop_gradient(w), "no row depends on it"),
        (lambda w, x: x * w[0], "enters `slice`"),
    ],
)
def test_what_is_no_layer_says_why(function, reason):
    structure = _one(function, jnp.arange(9.0).reshape(3, 3))
    assert structure.layers == ()
    assert structure.others[0].reason == reason
    assert reason in structure.explain()


def test_a_bias_must_be_added_to_the_output_alone():
    parameters = {"w": jnp.ones((3, 3)), "b": jnp.ones(3)}

    def twice(p, x):
        y = x @ p["w"]
        return jnp.concatenate([y + p["b"], y], axis=-1)

    structure = _one(twice, parameters)
    assert structure.layers[0].bias is None
    assert [other.path for other in structure.others] == ["['b']"]
    assert _one(lambda p, x: jnp.tanh(p["b"] + x @ p["w"]), parameters).layers[0].bias == "['b']"
    assert _one(lambda p, x: x @ p["w"] + p["b"][:, None][0], parameters).layers[0].bias is None


def test_grouped_convolutions_are_left_to_other_blocks():
    def function(kernel, images):
        return jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", feature_group_count=2
        ).reshape(images.shape[0], -1)

    structure = _one(function, jnp.ones((2, 1, 2, 2)), jnp.ones((3, 2, 4, 4)))
    assert structure.others[0].reason == "is the kernel of a grouped convolution"


def test_a_branch_is_named():
    layers = perceptron(0, (3, 3, 3, 2))

    def skipping(layers, x):
        first = jnp.tanh(x @ layers[0]["w"] + layers[0]["b"])
        second = jnp.tanh(first @ layers[1]["w"] + layers[1]["b"])
        return (first + second) @ layers[2]["w"] + layers[2]["b"]

    structure = _one(skipping, layers)
    with pytest.raises(InputError, match=r"branch at \[2\]\['w'\].*\[0\]\['w'\] and \[1\]\['w'\]"):
        structure.check_chain()
    with pytest.raises(InputError, match="use Kronecker"):
        structure.check_chain()
    _one(apply, layers).check_chain()


def test_restriction_sees_through_fixed_layers():
    layers = perceptron(0, (3, 3, 3, 2))
    whole = _one(apply, layers)
    active = [layers[0], {"w": None, "b": layers[1]["b"]}, {"w": layers[2]["w"], "b": None}]
    part = whole.restricted(active)
    assert [(layer.weight, layer.bias) for layer in part.layers] == [
        ("[0]['w']", "[0]['b']"),
        ("[2]['w']", None),
    ]
    assert part.layers[1].sources == ("[0]['w']",)
    assert [other.path for other in part.others] == ["[1]['b']"]


def test_other_parameters_are_refused():
    structure = _one(apply, perceptron(0, (3, 3, 2)))
    with pytest.raises(InputError, match=r"\[2\]\['b'\]"):
        structure.check_covers(perceptron(0, (3, 3, 2, 2)))
