"""`SVI.run` inside transformations: one scan, with the same answer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conjugate_for_tests import data, regression
from numpyro.infer import Trace_ELBO, autoguide

from vpng import Dense
from vpng.errors import InputError
from vpng.numpyro import SVI, Converged
from vpng.run.checkpoint import Checkpoints

SEEDS = (1, 2, 3)
NUM_STEPS = 12


def same(one, other):
    """Up to what rounding makes of a few steps in double precision."""
    for found, wanted in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_every_seed_of_a_vmap_is_a_run_of_its_own(x64, capsys):
    svi = SVI(regression, autoguide.AutoNormal(regression), loss=Trace_ELBO(num_particles=2))
    alone = [
        svi.run(jax.random.key(seed), NUM_STEPS, *data(), progress_bar=False) for seed in SEEDS
    ]
    keys = jax.vmap(jax.random.key)(jnp.asarray(SEEDS))
    together = jax.vmap(lambda key: svi.run(key, NUM_STEPS, *data()))(keys)
    assert capsys.readouterr().err == ""
    assert together.losses.shape == (3, NUM_STEPS)
    assert together.converged is None
    assert together.interrupted is False
    for lane, wanted in enumerate(alone):
        found = jax.tree.map(lambda leaf, lane=lane: leaf[lane], together)
        same((found.losses, found.params), (wanted.losses, wanted.params))
        assert int(found.state.optim_state.step) == NUM_STEPS


def test_values_that_only_the_model_sees_are_found_too(x64):
    covariates, targets = data()
    guide = autoguide.AutoDelta(regression)
    start = SVI(regression, guide, optax.sgd(0.1), Trace_ELBO(), curvature=Dense()).init(
        jax.random.key(0), *data()
    )

    def losses(targets):
        model = lambda: regression(covariates, targets)
        svi = SVI(model, lambda: guide(*data()), optax.sgd(0.1), Trace_ELBO(), curvature=Dense())
        run = svi.run(jax.random.key(0), 3, init_state=start, progress_bar=False)
        return run.losses

    both = jnp.stack([targets, 2.0 * targets])
    same(jax.vmap(losses)(both), jnp.stack([losses(each) for each in both]))


@pytest.mark.parametrize(
    ("num_steps", "checkpoints", "message"),
    [
        ("auto", None, r"num_steps: .*vmap.*give a number"),
        (Converged(max_steps=5), None, r"num_steps: .*vmap.*max_steps=5.*outside"),
        (5, Checkpoints("nowhere"), r"checkpoints: .*vmap.*Leave them out"),
    ],
)
def test_what_needs_values_is_refused(num_steps, checkpoints, message):
    svi = SVI(regression, autoguide.AutoDelta(regression))
    run = lambda key: svi.run(key, num_steps, *data(), checkpoints=checkpoints)
    with pytest.raises(InputError, match=message):
        jax.eval_shape(run, jax.random.key(0))
