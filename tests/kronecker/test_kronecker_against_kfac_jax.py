"""Factors of an autoencoder against those of kfac-jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kronecker_networks import compiled_statistics

from vpng import Exact, Predictive
from vpng.kronecker import discover
from vpng.problems.autoencoder import mlp_vae
from vpng.problems.networks import mlp_apply

pytestmark = pytest.mark.endurance

kfac_jax = pytest.importorskip("kfac_jax")


@pytest.fixture
def estimator_class(monkeypatch):
    """kfac-jax 0.0.8 expects two results of `get_bind_params`, which has one since JAX 0.10."""
    matcher = pytest.importorskip("kfac_jax._src.tag_graph_matcher")

    def evaluate(equation, values):
        params = equation.primitive.get_bind_params(equation.params)
        results = equation.primitive.bind(*values, **params)
        return list(results) if equation.primitive.multiple_results else [results]

    monkeypatch.setattr(matcher, "eval_jaxpr_eqn", evaluate)
    return kfac_jax.BlockDiagonalCurvature


def test_factors_of_an_autoencoder_agree(estimator_class):
    data = jnp.round(jax.random.uniform(jax.random.key(1), (8, 5)))
    setup = mlp_vae(jax.random.key(0), data, latent_dim=2, hidden=(6,))
    parameters = jax.tree.map(lambda leaf: leaf + 0.1, setup.parameters)
    metric = Predictive(Exact(), num_particles=1)
    rng_key = jax.random.key(2)
    structure = discover(setup.problem, parameters, data, metric)
    found = compiled_statistics(
        structure, metric.operator(setup.problem, parameters, data, rng_key)
    )

    noise_key, _ = jax.random.split(rng_key)
    noise = setup.problem.noise(jax.random.split(noise_key, 1)[0], data)

    def loss(parameters, batch):
        loc, log_scale = jnp.split(mlp_apply(parameters[0], batch), 2, axis=-1)
        logits = mlp_apply(parameters[1], loc + jnp.exp(log_scale) * noise)
        kfac_jax.register_multi_bernoulli_predictive_distribution(logits)
        return jnp.sum(logits)

    try:
        estimator = estimator_class(loss, default_estimation_mode="fisher_exact")
        arguments = (tuple(parameters), data)
        state = estimator.init(
            rng=rng_key,
            func_args=arguments,
            exact_powers_to_cache=None,
            approx_powers_to_cache=None,
            cache_eigenvalues=False,
        )
        state = estimator.update_curvature_matrix_estimate(
            state,
            ema_old=0.0,
            ema_new=1.0,
            identity_weight=0.0,
            batch_size=len(data),
            rng=rng_key,
            func_args=arguments,
        )
    except (TypeError, ValueError, AttributeError) as error:
        pytest.skip(f"this kfac-jax does not run on this JAX: {error}")
    theirs = {
        tuple(len(factor.value) for factor in block.factors): [f.value for f in block.factors]
        for block in state.blocks_states
    }
    assert len(theirs) == 4
    for layer in structure.layers:
        wanted = theirs[layer.num_inputs, layer.num_outputs]
        ours = found.layers[layer.weight]
        np.testing.assert_allclose(ours.inputs, wanted[0], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(ours.outputs, wanted[1], rtol=2e-5, atol=1e-6)
