"""The paper's tridiagonal form ten times beyond its first plateau, at three times the usual step.

The test ELBO on the digits is flat from iteration 300 on. What is asserted is the training ELBO:
the digits are few, and a test ELBO that falls slowly from there on says that the model fits them.
"""

import jax
import numpy as np
import pytest

from vpng import ELBO
from vpng.paper.datasets import load_digits
from vpng.paper.experiments.networks import Factored, network_optimizer
from vpng.plot.methods import Method
from vpng.problems.autoencoder import mlp_vae
from vpng.problems.networks import TRUNCATED_NORMAL
from vpng.training import Loop
from vpng.training.mean_elbo import mean_elbo

PLATEAU = 300


@pytest.mark.endurance
def test_a_long_run_ends_where_it_was_best():
    """Without the limit on a step it ends at minus infinity."""
    problem, parameters, data = mlp_vae(
        jax.random.key(0),
        load_digits().train,
        latent_dim=50,
        hidden=(100, 100),
        initialiser=TRUNCATED_NORMAL,
    )
    batch = data[:100]
    optimizer = network_optimizer(
        Factored(), Method.VPNG, problem, parameters, batch, 0.03, rmsprop=True
    )
    loop = Loop(
        problem,
        parameters,
        data,
        optimizer,
        objective=ELBO(2),
        batch_size=len(batch),
        record_every=PLATEAU // 3,
        metrics={"train_elbo": mean_elbo(problem, data, 2)},
        guard=None,
    )
    state = loop.init(parameters, jax.random.key(1))
    history = loop.run(state, 10 * PLATEAU, progress=False).history
    elbo = np.array([record.metrics["train_elbo"] for record in history.records])
    assert elbo[-1] > np.nanmax(elbo) - 0.5
    assert elbo[-1] > elbo[2], "it goes on from the first plateau"
