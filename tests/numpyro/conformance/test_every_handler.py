"""Effect handlers, control flow and reparameterisations around models and guides."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform
from numpyro.infer import Trace_ELBO, autoguide, reparam
from programs import Program, Y, as_numpyro, lowers_the_loss
from small_models import normal_guide, normal_mean

pytestmark = [
    pytest.mark.filterwarnings("ignore:numpyro.factor sites"),
    pytest.mark.filterwarnings("ignore:Found vars in model but not guide"),
]


def around(handler, **options):
    """A handler around model and guide."""
    return lambda: Program(handler(normal_mean, **options), handler(normal_guide, **options))


def within(make):
    """Handlers as contexts inside a model, under a mean-field guide."""

    def program():
        model = make()
        return Program(model, autoguide.AutoNormal(model))

    return program


def scaled_and_masked():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)), handlers.scale(scale=3.0), handlers.mask(mask=y > 0.2):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def conditioned():
    def model(y):
        spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
        mean = numpyro.sample("mean", dist.Normal(0.0, spread))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, spread))

    return handlers.condition(model, data={"y": Y})


def intervened():
    def model(y):
        cause = numpyro.sample("cause", dist.Normal(0.0, 1.0))
        mean = numpyro.sample("mean", dist.Normal(cause, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return handlers.do(model, data={"cause": 0.5})


def substituted():
    return handlers.substitute(conditioned(), data={"spread": jnp.array(1.5)})


def scoped():
    def model(y):
        with handlers.scope(prefix="inner"):
            normal_mean(y)

    return model


def configured():
    return handlers.infer_config(normal_mean, config_fn=lambda site: {"note": site["name"]})


def lifted():
    def model(y):
        mean = numpyro.param("mean", 0.0)
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return handlers.lift(model, prior={"mean": dist.Normal(0.0, 1.0)})


def collapsed():
    def model(y):
        with handlers.collapse():
            fairness = numpyro.sample("fairness", dist.Beta(2.0, 2.0))
            numpyro.sample("tosses", dist.Binomial(5, fairness), obs=3)
        normal_mean(y)

    return model


def seeded():
    def model(y):
        with handlers.seed(rng_seed=1):
            extra = numpyro.prng_key()
        numpyro.deterministic("extra", jax.random.normal(extra))
        normal_mean(y)

    return model


def with_deterministic_and_factor():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2 * mean)
        numpyro.factor("small", -(mean**4))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


def with_missing_data():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y, obs_mask=y > 0.2)

    return model


def crossed_plates():
    def model(y):
        rows, columns = numpyro.plate("rows", 5, dim=-2), numpyro.plate("columns", 2, dim=-1)
        with rows:
            row = numpyro.sample("row", dist.Normal(0.0, 1.0))
        with columns:
            column = numpyro.sample("column", dist.Normal(0.0, 1.0))
        with rows, columns:
            numpyro.sample("y", dist.Normal(row + column, 1.0), obs=y[:, None] + jnp.zeros(2))

    return model


def plates_in_a_stack():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate_stack("data", [5, 1]):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y[:, None])

    return model


def scanned():
    def model(y):
        def step(level, observed):
            level = numpyro.sample("level", dist.Normal(level, 0.5))
            return level, numpyro.sample("y", dist.Normal(level, 1.0), obs=observed)

        scan(step, 0.0, y)

    return model


def scanned_with_history():
    def model(y):
        spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))

        def step(before, _):
            return numpyro.sample("y", dist.Normal(0.5 * before, spread)), None

        with handlers.condition(data={"y": jnp.asarray(y)}):
            scan(step, 0.0, None, length=len(y))

    return model


def branched():
    """NumPyro's example of `cond`: a mixture of two branches, in the model and in the guide."""

    def choose(cluster, high, low):
        normal = lambda at: lambda _: numpyro.sample("x", dist.Normal(*at))
        return cond(cluster > 0, normal(high), normal(low), None)

    def model(y):
        choose(numpyro.sample("cluster", dist.Normal(0.0, 1.0)), (5.0, 1.0), (0.0, 1.0))

    def guide(y):
        params = [
            (numpyro.param(f"m{i}", 2.0), numpyro.param(f"s{i}", 0.5, constraint=positive))
            for i in range(2)
        ]
        choose(numpyro.sample("cluster", dist.Normal(0.0, 1.0)), *params)

    positive = constraints.positive
    return Program(model, guide, loss=Trace_ELBO(num_particles=20))


def loc_scale(centered):
    def make():
        def model(y):
            spread = numpyro.sample("spread", dist.LogNormal(0.0, 0.5))
            with numpyro.plate("data", len(y)):
                level = numpyro.sample("level", dist.Normal(0.3, spread))
                numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

        return handlers.reparam(model, config={"level": reparam.LocScaleReparam(centered)})

    return make


def transformed(kind):
    def make():
        def model(y):
            base = dist.Normal(0.0, 1.0).expand([4]).to_event(1)
            if kind is reparam.TransformReparam:
                base = dist.TransformedDistribution(base, AffineTransform(0.1, 2.0))
            mean = numpyro.sample("mean", base)
            with numpyro.plate("data", len(y)):
                numpyro.sample("y", dist.Normal(mean.sum(), 1.0), obs=y)

        return handlers.reparam(model, config={"mean": kind()})

    return make


def neural_transport():
    guide = autoguide.AutoDiagonalNormal(normal_mean)
    with handlers.seed(rng_seed=0), handlers.trace() as found:
        guide(Y)
    params = {name: site["value"] for name, site in found.items() if site["type"] == "param"}
    return reparam.NeuTraReparam(guide, params).reparam(normal_mean)


def explicit():
    def model(y):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    exp = dist.transforms.ExpTransform()
    return handlers.reparam(model, config={"scale": reparam.ExplicitReparam(exp.inv)})


def circular():
    def model(y):
        angle = numpyro.sample("angle", dist.VonMises(0.0, 2.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(jnp.sin(angle), 1.0), obs=y)

    return handlers.reparam(model, config={"angle": reparam.CircularReparam()})


def projected():
    def model(y):
        direction = numpyro.sample("direction", dist.ProjectedNormal(jnp.array([1.0, 0.5])))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(direction[0], 1.0), obs=y)

    return handlers.reparam(model, config={"direction": reparam.ProjectedNormalReparam()})


def far_guide(y):
    numpyro.sample("mean", dist.Normal(numpyro.param("location", 2.0), 1.0))


PROGRAMS = {
    "trace": around(handlers.trace),
    "scale": around(handlers.scale, scale=0.5),
    "mask": within(scaled_and_masked),
    "block": lambda: Program(normal_mean, handlers.block(normal_guide, hide=[])),
    "condition": within(conditioned),
    "do": within(intervened),
    "substitute": within(substituted),
    "scope": within(scoped),
    "infer_config": within(configured),
    "lift": within(lifted),
    "seed": within(seeded),
    "uncondition": lambda: Program(handlers.uncondition(normal_mean), far_guide),
    "deterministic and factor": within(with_deterministic_and_factor),
    "obs_mask": within(with_missing_data),
    "crossed plates": within(crossed_plates),
    "plate_stack": within(plates_in_a_stack),
    "scan": within(scanned),
    "scan, conditioned": within(scanned_with_history),
    "cond": branched,
    "LocScaleReparam": within(loc_scale(0.0)),
    "LocScaleReparam, learned": within(loc_scale(None)),
    "TransformReparam": within(transformed(reparam.TransformReparam)),
    "HaarReparam": within(transformed(reparam.HaarReparam)),
    "DiscreteCosineReparam": within(transformed(reparam.DiscreteCosineReparam)),
    "NeuTraReparam": within(neural_transport),
    "ExplicitReparam": within(explicit),
    "CircularReparam": within(circular),
    "ProjectedNormalReparam": within(projected),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loss_is_numpyros(make_usual, name):
    as_numpyro(make_usual, PROGRAMS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_lower_the_loss(make_ours, name):
    lowers_the_loss(make_ours, PROGRAMS[name])
