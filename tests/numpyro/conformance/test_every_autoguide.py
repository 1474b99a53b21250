"""Every guide of `numpyro.infer.autoguide`, with the methods that its documentation promises."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO, autoguide, init_to_mean, init_to_value
from programs import KEY, Program, Y, as_numpyro, lowers_the_loss


def two_latents(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


def in_groups(y):
    with numpyro.plate("groups", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean.sum(), 1.0), obs=y)


def everywhere():
    return numpyro.sample("mean", dist.Normal(0.0, 1.0))


def at_each_datum(mean):
    with numpyro.plate("data", len(Y), subsample_size=3):
        batch = numpyro.subsample(jnp.asarray(Y), event_dim=0)
        level = numpyro.sample("level", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=batch)


def with_levels():
    at_each_datum(everywhere())


def of(make, model=two_latents, **options):
    return lambda: Program(model, make(model, **options))


def in_a_list():
    guide = autoguide.AutoGuideList(two_latents)
    guide.append(autoguide.AutoDelta(handlers.block(two_latents, hide=["spread"])))
    guide.append(autoguide.AutoNormal(handlers.block(two_latents, hide=["mean"])))
    return Program(two_latents, guide)


def with_a_function_of_ones_own():
    guide = autoguide.AutoGuideList(two_latents)
    guide.append(autoguide.AutoDelta(handlers.block(two_latents, hide=["spread"])))

    def spread(y):
        location = numpyro.param("location", 0.0)
        return {"spread": numpyro.sample("spread", dist.LogNormal(location, 0.1))}

    guide.append(spread)
    return Program(two_latents, guide)


def surrogate():
    def likelihood():
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
        weight = numpyro.param("weight", 1.5, constraint=dist.constraints.positive)
        with numpyro.plate("some", 2), handlers.scale(scale=weight):
            numpyro.sample("y", dist.Normal(mean, spread), obs=Y[:2])

    guide = autoguide.AutoSurrogateLikelihoodDAIS(two_latents, likelihood, K=2)
    return Program(two_latents, guide)


def semi_dais():
    guide = autoguide.AutoSemiDAIS(
        with_levels, at_each_datum, autoguide.AutoNormal(everywhere), K=2
    )
    return Program(with_levels, guide, args=())


PROGRAMS = {
    "AutoNormal": of(autoguide.AutoNormal),
    "AutoNormal, options": of(
        autoguide.AutoNormal, prefix="q", init_loc_fn=init_to_mean, init_scale=0.3
    ),
    "AutoDelta": of(
        autoguide.AutoDelta, init_loc_fn=init_to_value(values={"mean": 0.5, "spread": 1.0})
    ),
    "AutoDiagonalNormal": of(autoguide.AutoDiagonalNormal),
    "AutoMultivariateNormal": of(autoguide.AutoMultivariateNormal),
    "AutoLowRankMultivariateNormal": of(autoguide.AutoLowRankMultivariateNormal, rank=1),
    "AutoLaplaceApproximation": of(autoguide.AutoLaplaceApproximation),
    "AutoBatchedMultivariateNormal": of(
        autoguide.AutoBatchedMultivariateNormal, in_groups, batch_ndim=1
    ),
    "AutoBatchedLowRankMultivariateNormal": of(
        autoguide.AutoBatchedLowRankMultivariateNormal, in_groups, batch_ndim=1, rank=1
    ),
    "AutoIAFNormal": of(autoguide.AutoIAFNormal, num_flows=1, hidden_dims=[3]),
    "AutoBNAFNormal": of(autoguide.AutoBNAFNormal, num_flows=1, hidden_factors=[2]),
    "AutoDAIS": of(autoguide.AutoDAIS, K=2),
    "AutoSurrogateLikelihoodDAIS": surrogate,
    "AutoSemiDAIS": semi_dais,
    "AutoGuideList": in_a_list,
    "AutoGuideList, own function": with_a_function_of_ones_own,
}


def test_no_guide_is_forgotten():
    public = {name for name in autoguide.__all__ if name not in {"AutoGuide", "AutoContinuous"}}
    assert public <= {name.split(",")[0] for name in PROGRAMS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_guide_begins_as_with_numpyro(make_usual, name):
    as_numpyro(make_usual, PROGRAMS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_lower_the_loss(make_ours, name):
    begun = PROGRAMS[name]
    many = lambda: begun()._replace(loss=Trace_ELBO(num_particles=4))
    svi, result = lowers_the_loss(make_ours, many)
    if name.startswith("AutoGuideList") or name in {"AutoSemiDAIS"}:
        return
    draws = svi.guide.sample_posterior(KEY, result.params, Y, sample_shape=(7,))
    assert all(np.all(np.isfinite(draw)) and len(draw) == 7 for draw in draws.values())


def test_the_methods_of_a_guide_take_our_parameters(make_svi):
    guide = autoguide.AutoMultivariateNormal(two_latents)
    svi = make_svi(two_latents, guide, Trace_ELBO())
    params = svi.get_params(svi.init(KEY, Y))
    assert guide.median(params)["mean"].shape == ()
    assert guide.quantiles(params, 0.5)["spread"].shape == ()
    assert guide.get_posterior(params).event_shape == (2,)
    moved = guide.get_transform(params)(jnp.zeros(2))
    np.testing.assert_allclose(moved, params["auto_loc"], rtol=1e-6)
    assert guide.sample_posterior(KEY, params)["mean"].shape == ()
    assert jax.tree.leaves(guide.get_base_dist())
