"""Models whose curvature has a structure: what is found in them, and where their fits end."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

from vpng.adaptive import Eliminated
from vpng.numpyro import SVI

GROUPS = 80
RNG = np.random.default_rng(0)
GROUP = jnp.asarray(RNG.integers(0, GROUPS, 400))
DATA = jnp.asarray(RNG.normal(size=400) + 2.0 * RNG.normal(size=GROUPS)[np.asarray(GROUP)])


def hierarchy(group, y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("groups", GROUPS):
        level = numpyro.sample("level", dist.Normal(mean, 1.5))
    numpyro.sample("y", dist.Normal(level[group], 0.8).to_event(1), obs=y)


def exact_means(group, y):
    """Of the posterior, which is Normal: mean first."""
    across = np.concatenate([-np.ones((GROUPS, 1)), np.eye(GROUPS)], axis=1) / 1.5
    seen = np.zeros((len(y), GROUPS + 1))
    seen[np.arange(len(y)), 1 + np.asarray(group)] = 1.0
    prior = np.zeros((1, GROUPS + 1))
    prior[0, 0] = 1.0 / 3.0
    rows = np.concatenate([across, seen / 0.8, prior])
    return np.linalg.solve(rows.T @ rows, seen.T @ np.asarray(y) / 0.8**2)


@pytest.mark.parametrize("make", [AutoNormal, AutoDiagonalNormal])
def test_a_hierarchy_is_fitted_by_elimination(make):
    svi = SVI(hierarchy, make(hierarchy))
    result = svi.run(jax.random.key(0), 80, GROUP, DATA, progress_bar=False)
    geometry = svi.rule.adaptive.geometry
    assert isinstance(geometry, Eliminated)
    # All groups at once, and their mean with them.
    assert geometry.structure.assembly.num_shared + geometry.structure.assembly.single.size == 2
    point = svi.rule.point(result.state.optim_state)
    named = point.variational
    if make is AutoNormal:
        found = np.append(named["mean_auto_loc"], named["level_auto_loc"])
    else:
        found = named["auto_loc"]
    # Locations are exact for any factorised Normal; the score takes most of the noise of the draws.
    assert np.max(np.abs(found - exact_means(GROUP, DATA))) < 0.05


def test_a_chain_written_with_scan_is_banded():
    def model(y):
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))

        def step(state, observed):
            state = numpyro.sample("state", dist.Normal(0.9 * state, spread))
            numpyro.sample("y", dist.Normal(state, 0.5), obs=observed)
            return state, None

        scan(step, jnp.zeros(()), y)

    svi = SVI(model, AutoNormal(model))
    svi.init(jax.random.key(0), jnp.asarray(RNG.normal(size=100)))
    elimination = svi.rule.adaptive.geometry.structure.elimination
    assert elimination.width == 2
    assert elimination.size_of_head <= 33


def test_data_of_other_groups_are_fitted_too():
    """What was found for the first data does not hold for the next, and the steps go on."""
    svi = SVI(hierarchy, AutoNormal(hierarchy))
    state = svi.init(jax.random.key(0), GROUP, DATA)
    update, evaluate = jax.jit(svi.update), jax.jit(svi.evaluate)
    first = float(evaluate(state, GROUP[::-1], DATA))
    for _ in range(30):
        state, _ = update(state, GROUP[::-1], DATA)
    last = float(evaluate(state, GROUP[::-1], DATA))
    assert np.isfinite(last)
    assert last < first
