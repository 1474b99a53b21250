"""Every objective of `numpyro.infer`, with every argument that its documentation names."""

import jax
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import (
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
)
from programs import Program, Y, as_numpyro, lowers_the_loss
from small_models import normal_guide, normal_mean


def switched(y):
    """A latent that the model alone has, to be summed over."""
    kind = numpyro.sample("kind", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean + kind, 1.0), obs=y)


def each_switched(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        kind = numpyro.sample("kind", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mean + kind, 1.0), obs=y)


def drawn_guide(y):
    """It draws a discrete latent of every datum, from probabilities of its own."""
    normal_guide(y)
    logits = numpyro.param("logits", 0.1 * Y)
    with numpyro.plate("data", len(y)):
        numpyro.sample("kind", dist.Bernoulli(logits=logits))


def enumerated_guide(y):
    """The same, summed over exactly."""
    normal_guide(y)
    logits = numpyro.param("logits", 0.1 * Y)
    with numpyro.plate("data", len(y)):
        numpyro.sample("kind", dist.Bernoulli(logits=logits), infer={"enumerate": "parallel"})


def with_a_level_of_each(y):
    """All sites within one plate, so that a bound of each datum may be taken."""
    with numpyro.plate("data", len(y), subsample_size=3):
        batch = numpyro.subsample(y, event_dim=0)
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=batch)


def level_guide(y):
    slope = numpyro.param("slope", 0.2)
    with numpyro.plate("data", len(y), subsample_size=3):
        batch = numpyro.subsample(y, event_dim=0)
        numpyro.sample("level", dist.Normal(slope * batch, 0.8))


def of_normals(loss):
    return lambda: Program(normal_mean, normal_guide, loss=loss)


def several_at_once(y):
    location = numpyro.param("location", 0.0)
    scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
    numpyro.sample("mean", dist.Normal(location, scale).expand([3]))


def own_map(function, keys):
    return jax.lax.map(function, keys)


PROGRAMS = {
    "Trace": of_normals(Trace_ELBO()),
    "Trace, 3 particles": of_normals(Trace_ELBO(num_particles=3)),
    "Trace, one by one": of_normals(Trace_ELBO(4, vectorize_particles=False)),
    "Trace, own map": of_normals(Trace_ELBO(4, vectorize_particles=own_map)),
    "Trace, several samples": lambda: Program(
        normal_mean, several_at_once, loss=Trace_ELBO(multi_sample_guide=True)
    ),
    "Trace, several particles of several samples": lambda: Program(
        normal_mean, several_at_once, loss=Trace_ELBO(2, multi_sample_guide=True)
    ),
    "TraceMeanField": of_normals(TraceMeanField_ELBO()),
    "TraceMeanField, 2 one by one": of_normals(TraceMeanField_ELBO(2, vectorize_particles=False)),
    "TraceMeanField, own map": of_normals(TraceMeanField_ELBO(2, vectorize_particles=own_map)),
    "TraceGraph": of_normals(TraceGraph_ELBO()),
    "TraceGraph, drawn": lambda: Program(each_switched, drawn_guide, loss=TraceGraph_ELBO(4)),
    "TraceGraph, drawn one by one": lambda: Program(
        each_switched, drawn_guide, loss=TraceGraph_ELBO(4, vectorize_particles=False)
    ),
    "TraceGraph, own map": of_normals(TraceGraph_ELBO(2, vectorize_particles=own_map)),
    "TraceEnum": lambda: Program(switched, normal_guide, loss=TraceEnum_ELBO()),
    "TraceEnum, plates": lambda: Program(
        each_switched,
        normal_guide,
        loss=TraceEnum_ELBO(3, max_plate_nesting=1, vectorize_particles=False),
    ),
    "TraceEnum, own map": lambda: Program(
        each_switched, normal_guide, loss=TraceEnum_ELBO(2, vectorize_particles=own_map)
    ),
    "TraceEnum, guide": lambda: Program(each_switched, enumerated_guide, loss=TraceEnum_ELBO()),
    "TraceEnum, autoguide": lambda: Program(
        each_switched,
        autoguide.AutoNormal(handlers.block(each_switched, hide=["kind"])),
        loss=TraceEnum_ELBO(),
    ),
    "Renyi": of_normals(RenyiELBO()),
    "Renyi, 0.5": of_normals(RenyiELBO(0.5, num_particles=3)),
    "Renyi, 2": of_normals(RenyiELBO(2.0, num_particles=3)),
    "Renyi, -1": of_normals(RenyiELBO(-1.0, num_particles=3)),
    "Renyi, one particle": of_normals(RenyiELBO(0.5, num_particles=1)),
    "Renyi, a bound of each datum": lambda: Program(
        with_a_level_of_each, level_guide, loss=RenyiELBO(num_particles=4)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loss_is_numpyros(make_usual, name):
    as_numpyro(make_usual, PROGRAMS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_lower_the_loss(make_ours, name):
    lowers_the_loss(make_ours, PROGRAMS[name])


def test_the_losses_of_sites_apart_are_evaluated(make_svi):
    """`sum_sites=False` returns a dictionary, to look at: no step is made of it."""
    loss = Trace_ELBO(sum_sites=False)
    svi = make_svi(normal_mean, normal_guide, loss)
    found = svi.evaluate(svi.init(jax.random.key(0), Y), Y)
    assert set(found) == {"mean", "y"}
    whole = make_svi(normal_mean, normal_guide, Trace_ELBO())
    expected = whole.evaluate(whole.init(jax.random.key(0), Y), Y)
    assert abs(sum(found.values()) - expected) < 1e-5


def test_alpha_of_one_is_another_class():
    with pytest.raises(ValueError, match="alpha = 1"):
        RenyiELBO(1.0)
