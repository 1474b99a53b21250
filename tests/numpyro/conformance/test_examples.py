"""Programs of the kinds that NumPyro's examples and tutorials show, small."""

from functools import partial

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from jax.example_libraries import stax
from jax.experimental.ode import odeint
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.contrib.funsor import config_enumerate
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from numpyro.contrib.module import flax_module, nnx_module
from numpyro.distributions.transforms import LowerCholeskyAffine, OrderedTransform
from numpyro.infer import (
    TraceEnum_ELBO,
    TraceMeanField_ELBO,
    autoguide,
    init_to_feasible,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
    reparam,
)
from numpyro.ops.indexing import Vindex
from programs import Program, as_numpyro, lowers_the_loss

pytestmark = pytest.mark.filterwarnings("ignore:numpyro.factor sites")

ENUMERATED = {"enumerate": "parallel"}
X = np.linspace(-1.0, 1.0, 6, dtype=np.float32)
Y = np.array([0.4, -0.2, 0.7, 1.3, 0.9, 2.1], np.float32)
KINDS = np.array([0, 1, 2, 0, 1, 2])
COUNTS = np.array([0, 3, 0, 1, 0, 4])
HAS_AGE = np.array([0, 1, 2, 4])


def imputation():
    """Missing covariates are latents, which the observed ones inform."""

    def model(x, y):
        place = numpyro.sample("place", dist.Normal(0.0, 1.0))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        age_of_missing = numpyro.sample(
            "age_of_missing", dist.Normal(place, spread).expand([2]).mask(False)
        )
        age = jnp.zeros(6).at[HAS_AGE].set(x[HAS_AGE])
        age = age.at[np.array([3, 5])].set(age_of_missing)
        with numpyro.plate("data", 6):
            numpyro.sample("age", dist.Normal(place, spread), obs=age)
            numpyro.sample("y", dist.Bernoulli(logits=slope * age), obs=y)

    return Program(model, autoguide.AutoNormal(model), args=(X, KINDS % 2))


def hidden_markov():
    """States summed over along a scan, with transition probabilities to learn."""

    def model(y):
        rows = numpyro.sample(
            "rows", dist.Dirichlet(jnp.array([[2.0, 1.0], [1.0, 2.0]])).to_event(1)
        )
        places = numpyro.sample("places", dist.Normal(jnp.array([-1.0, 1.0]), 1.0).to_event(1))

        def step(state, observed):
            state = numpyro.sample("state", dist.Categorical(Vindex(rows)[state]), infer=ENUMERATED)
            return state, numpyro.sample("y", dist.Normal(Vindex(places)[state], 1.0), obs=observed)

        scan(step, 0, y)

    guide = autoguide.AutoNormal(handlers.block(model, hide=["state"]))
    return Program(model, guide, args=(jnp.asarray(Y),), loss=TraceEnum_ELBO())


def annotators():
    """Votes of annotators for a class that nobody knows."""

    def model(votes):
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("annotators", 3, dim=-2), numpyro.plate("truths", 2, dim=-1):
            habit = numpyro.sample("habit", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("items", 4, dim=-1):
            truth = numpyro.sample("truth", dist.Categorical(share), infer=ENUMERATED)
            with numpyro.plate("voters", 3, dim=-2):
                chances = Vindex(habit)[jnp.arange(3)[:, None], truth, :]
                numpyro.sample("vote", dist.Categorical(chances), obs=votes)

    votes = jnp.array([[0, 1, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0]])
    guide = autoguide.AutoNormal(handlers.block(model, hide=["truth"]))
    return Program(model, guide, args=(votes,), loss=TraceEnum_ELBO())


def mixture():
    """A point estimate of a mixture, whose assignments are summed over."""

    @config_enumerate
    def model(y):
        weights = numpyro.sample("weights", dist.Dirichlet(0.5 * jnp.ones(2)))
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
        with numpyro.plate("components", 2):
            places = numpyro.sample("places", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", len(y)):
            kind = numpyro.sample("kind", dist.Categorical(weights))
            numpyro.sample("y", dist.Normal(places[kind], scale), obs=y)

    start = init_to_value(values={"places": jnp.array([0.0, 1.0]), "scale": 1.0})
    guide = autoguide.AutoDelta(handlers.block(model, hide=["kind"]), init_loc_fn=start)
    return Program(model, guide, args=(Y,), loss=TraceEnum_ELBO())


def mixture_in_closed_form():
    def model(y):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
        ordered = dist.TransformedDistribution(
            dist.Normal(0.0, 2.0).expand([2]).to_event(1), OrderedTransform()
        )
        places = numpyro.sample("places", ordered)
        with numpyro.plate("data", len(y)):
            kinds = dist.Categorical(weights)
            numpyro.sample("y", dist.MixtureSameFamily(kinds, dist.Normal(places, 1.0)), obs=y)

    return Program(model, autoguide.AutoMultivariateNormal(model), args=(Y,))


def ordinal():
    def model(x, kinds):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        base = dist.Normal(0.0, 1.0).expand([2]).to_event(1)
        cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, OrderedTransform()))
        with numpyro.plate("data", 6):
            numpyro.sample("kind", dist.OrderedLogistic(slope * x, cuts), obs=kinds)

    start = init_to_value(values={"cuts": jnp.array([-0.5, 0.5])})
    return Program(model, autoguide.AutoNormal(model, init_loc_fn=start), args=(X, KINDS))


def topics():
    """An amortised topic model: drop-out and batch statistics in the guide, KL in closed form."""

    class Encoder(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(4, 2, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)

        def __call__(self, words):
            return jax.nn.softplus(self.linear(self.drop(jnp.log1p(words)))) + 0.1

    class Decoder(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, mixture):
            logits = flax.linen.Dense(4, use_bias=False)(mixture)
            norm = flax.linen.BatchNorm(use_running_average=False, use_scale=False, use_bias=False)
            return jax.nn.softmax(norm(logits), axis=-1)

    def model(words):
        decoder = flax_module("decoder", Decoder(), input_shape=(3, 2), mutable=["batch_stats"])
        with numpyro.plate("documents", 6, subsample_size=3, dim=-1):
            batch = numpyro.subsample(words, event_dim=1)
            mixture = numpyro.sample("mixture", dist.Dirichlet(jnp.ones((3, 2))))
            numpyro.sample("words", dist.Multinomial(9, decoder(mixture)), obs=batch)

    def guide(words):
        encoder = nnx_module("encoder", Encoder(nnx.Rngs(params=0, dropout=1)))
        with numpyro.plate("documents", 6, subsample_size=3, dim=-1):
            batch = numpyro.subsample(words, event_dim=1)
            numpyro.sample("mixture", dist.Dirichlet(encoder(batch)))

    words = np.random.default_rng(0).multinomial(9, [0.4, 0.3, 0.2, 0.1], size=6)
    return Program(model, guide, args=(words.astype(np.float32),), loss=TraceMeanField_ELBO())


def autoencoder():
    """Networks of `jax.example_libraries.stax`, by `numpyro.module`, a batch in every call."""
    outputs = stax.parallel(stax.Dense(2), stax.serial(stax.Dense(2), stax.Exp))
    encode = stax.serial(stax.Dense(4), stax.Softplus, stax.FanOut(2), outputs)
    decode = stax.serial(stax.Dense(4), stax.Softplus, stax.Dense(8), stax.Sigmoid)

    def model(images):
        decoder = numpyro.module("decoder", decode, (len(images), 2))
        with numpyro.plate("batch", len(images)):
            code = numpyro.sample("code", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("image", dist.Bernoulli(decoder(code)).to_event(1), obs=images)

    def guide(images):
        encoder = numpyro.module("encoder", encode, (len(images), 8))
        place, scale = encoder(images)
        with numpyro.plate("batch", len(images)):
            numpyro.sample("code", dist.Normal(place, scale).to_event(1))

    images = np.random.default_rng(0).integers(0, 2, size=(6, 8)).astype(np.float32)
    return Program(model, guide, args=(images,))


def gaussian_process():
    def model(x, y):
        length = numpyro.sample("length", dist.LogNormal(0.0, 0.5))
        noise = numpyro.sample("noise", dist.LogNormal(-1.0, 0.5))
        kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + noise * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(covariance_matrix=kernel), obs=y)

    return Program(model, autoguide.AutoMultivariateNormal(model), args=(X, Y))


def gaussian_process_in_a_basis():
    def model(x, y):
        length = numpyro.sample("length", dist.LogNormal(0.0, 0.5))
        f = numpyro.deterministic(
            "f", hsgp_squared_exponential(x, alpha=1.0, length=length, ell=1.5, m=3)
        )
        numpyro.sample("y", dist.Normal(f, 0.5), obs=y)

    return Program(model, autoguide.AutoNormal(model), args=(X, Y))


def smoothing():
    """Level and trend along a scan, whose future is drawn."""

    def model(y, future=2):
        level_share = numpyro.sample("level_share", dist.Beta(1.0, 1.0))
        trend_share = numpyro.sample("trend_share", dist.Uniform(0.0, 1.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))

        def step(carry, t):
            level, trend = carry
            expected = level + trend
            seen = numpyro.sample("y", dist.Normal(expected, noise))
            seen = jnp.where(t < len(y), seen, expected)
            new = level_share * seen + (1 - level_share) * expected
            trend = trend_share * (new - level) + (1 - trend_share) * trend
            return (new, trend), expected

        with handlers.condition(data={"y": jnp.asarray(y)}):
            _, path = scan(step, (y[0], 0.0), jnp.arange(len(y) + future))
        numpyro.deterministic("forecast", path[-future:])

    # What lies ahead is a latent of the model that no guide has to have.
    guide = autoguide.AutoNormal(partial(model, future=0))
    return Program(partial(model, future=0), guide, args=(Y,))


def autoregression():
    def model(y):
        weights = numpyro.sample("weights", dist.Normal(0.0, 0.5).expand([2]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))

        def step(carry, observed):
            expected = carry @ weights
            numpyro.sample("y", dist.Normal(expected, noise), obs=observed)
            return jnp.array([observed, carry[0]]), expected

        scan(step, jnp.array([y[1], y[0]]), y[2:])

    return Program(model, autoguide.AutoMultivariateNormal(model), args=(jnp.asarray(Y),))


def with_many_zeros():
    def model(x, counts):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        gate = numpyro.sample("gate", dist.Beta(2.0, 2.0))
        with numpyro.plate("data", 6):
            base = dist.Poisson(jnp.exp(slope * x))
            numpyro.sample("count", dist.ZeroInflatedDistribution(base, gate=gate), obs=counts)

    return Program(model, autoguide.AutoDiagonalNormal(model), args=(X, COUNTS))


def differential_equation():
    """The solver has a derivative of its own, in reverse alone."""

    def model(times, y):
        rate = numpyro.sample("rate", dist.LogNormal(0.0, 0.5))
        field = lambda state, t, rate: rate * state * (1.0 - state)
        path = odeint(field, jnp.array(0.1), times, rate, rtol=1e-3, atol=1e-3, mxstep=20)
        numpyro.sample("y", dist.LogNormal(jnp.log(path), 0.3), obs=y)

    times = np.linspace(0.0, 4.0, 5, dtype=np.float32)
    y = np.array([0.1, 0.2, 0.5, 0.7, 0.9], np.float32)
    return Program(model, autoguide.AutoNormal(model), args=(times, y))


def shrunken():
    """A horseshoe, its coefficients moved off their scales in a plate, by one configuration."""

    def model(x, y):
        overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
        with numpyro.plate("features", 2):
            own = numpyro.sample("own", dist.HalfCauchy(1.0))
            weight = numpyro.sample("weight", dist.Normal(0.0, overall * own))
        with numpyro.plate("data", 6):
            numpyro.sample("y", dist.StudentT(4.0, weight[0] + weight[1] * x, 0.5), obs=y)

    config = lambda site: reparam.LocScaleReparam(0.0) if site["name"] == "weight" else None
    model = handlers.reparam(model, config=config)
    return Program(model, autoguide.AutoLowRankMultivariateNormal(model), args=(X, Y))


def angles():
    def model(angles):
        place = numpyro.sample("place", dist.VonMises(0.0, 1.0))
        tightness = numpyro.sample("tightness", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", 6):
            numpyro.sample("angle", dist.VonMises(place, tightness), obs=angles)

    model = handlers.reparam(model, config={"place": reparam.CircularReparam()})
    return Program(model, autoguide.AutoNormal(model), args=(X,))


def censored():
    """A tail that is cut off counts by its probability, and a truncated prior has bounds."""

    def model(x, y):
        place = numpyro.sample("place", dist.TruncatedNormal(0.5, 1.0, low=0.0, high=3.0))
        with numpyro.plate("seen", 4):
            numpyro.sample("y", dist.LeftTruncatedDistribution(dist.Normal(place, 1.0)), obs=x)
        with numpyro.plate("cut off", 2):
            cut = dist.RightCensoredDistribution(dist.Weibull(place + 0.5, 2.0), jnp.ones(2))
            numpyro.sample("late", cut, obs=y)

    return Program(
        model, autoguide.AutoNormal(model), args=(np.abs(Y[:4]) + 0.1, np.array([1.0, 2.0]))
    )


def juggled_plates():
    """Plates that are kept and entered again in another order, with another between them."""

    def model(y):
        rows, columns = numpyro.plate("rows", 3, dim=-3), numpyro.plate("columns", 2, dim=-1)
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with columns, numpyro.plate("layers", 2):
            column = numpyro.sample("column", dist.Normal(0.0, 1.0))
        with rows:
            row = numpyro.sample("row", dist.Normal(0.0, scale))
            with columns:
                numpyro.sample("cell", dist.Normal(row + column[:1], 1.0), obs=y[:, None])
        with columns, rows:
            numpyro.sample("again", dist.Normal(row * column[1:], scale), obs=y[:, None])

    return Program(model, autoguide.AutoNormal(model), args=(Y.reshape(3, 2),))


def nested_handlers():
    """Scopes within scopes, scaled, masked, conditioned and intervened on."""

    def part(y):
        place = numpyro.sample("place", dist.Normal(0.0, 1.0))
        numpyro.deterministic("shifted", place + 1.0)
        with numpyro.plate("data", 6), handlers.scale(scale=0.5), handlers.mask(mask=y > 0.0):
            numpyro.sample("y", dist.Normal(place, 1.0))

    def model(y):
        with handlers.scope(prefix="outer", divider="."):
            handlers.scope(part, prefix="first")(y)
            part(y)
        handlers.do(handlers.scope(part, prefix="fixed"), data={"fixed/place": 0.3})(y)

    data = {"outer.first/y": Y, "outer.y": Y, "fixed/y": Y}
    conditioned = handlers.condition(model, data=data)
    hidden = handlers.block(conditioned, expose_types=["sample"])
    return Program(conditioned, autoguide.AutoNormal(hidden), args=(Y,))


def semi_supervised():
    """A class that some data have, drawn from a relaxation for the rest."""

    def model(y, kinds):
        place = numpyro.param("place", jnp.array([-1.0, 1.0]))
        with numpyro.plate("data", 6):
            relaxed = dist.RelaxedBernoulliLogits(1.0, jnp.zeros(()))
            share = numpyro.sample("share", relaxed, obs=kinds, obs_mask=np.arange(6) < 3)
            numpyro.sample("y", dist.Normal(place[0] + share * place[1], 0.5), obs=y)

    def guide(y, kinds):
        weight = numpyro.param("weight", 0.5)
        with numpyro.plate("data", 6):
            logits = numpyro.param("bias", -0.2) + weight * y
            numpyro.sample("share_unobserved", dist.RelaxedBernoulliLogits(1.0, logits))

    kinds = np.array([0.1, 0.9, 0.8, 0.5, 0.5, 0.5], np.float32)
    return Program(model, guide, args=(Y, kinds))


def begun_by(strategy):
    def program():
        def model(x, y):
            slope = numpyro.sample("slope", dist.Normal(1.0, 1.0))
            noise = numpyro.sample("noise", dist.InverseGamma(3.0, 1.0))
            with numpyro.plate("data", 6):
                numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)

        guide = autoguide.AutoNormal(model, init_loc_fn=strategy, init_scale=0.2)
        return Program(model, guide, args=(X, Y))

    return program


def varying_slopes():
    """A covariance from its scales and its correlations, of effects that vary together."""

    def model(x, y):
        scales = numpyro.sample("scales", dist.HalfNormal(1.0).expand([2]).to_event(1))
        factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
        tril = scales[:, None] * factor
        with numpyro.plate("groups", 3), handlers.reparam(config=config):
            base = dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2))
            moved = dist.TransformedDistribution(base, LowerCholeskyAffine(jnp.zeros(2), tril))
            effect = numpyro.sample("effect", moved)
        group = np.arange(6) % 3
        with numpyro.plate("data", 6):
            place = effect[group, 0] + effect[group, 1] * x
            numpyro.sample("y", dist.Normal(place, 0.5), obs=y)

    config = {"effect": reparam.TransformReparam()}
    return Program(model, autoguide.AutoNormal(model), args=(X, Y))


PROGRAMS = {
    "imputation": imputation,
    "hidden Markov model": hidden_markov,
    "annotators": annotators,
    "mixture, enumerated": mixture,
    "mixture, closed form": mixture_in_closed_form,
    "ordinal regression": ordinal,
    "topics": topics,
    "autoencoder, stax": autoencoder,
    "Gaussian process": gaussian_process,
    "Gaussian process in a basis": gaussian_process_in_a_basis,
    "exponential smoothing": smoothing,
    "autoregression": autoregression,
    "zero-inflated counts": with_many_zeros,
    "differential equation": differential_equation,
    "horseshoe": shrunken,
    "angles": angles,
    "censored and truncated": censored,
    "plates in any order": juggled_plates,
    "handlers in handlers": nested_handlers,
    "semi-supervised": semi_supervised,
    "varying slopes": varying_slopes,
    "init_to_median": begun_by(init_to_median(num_samples=5)),
    "init_to_mean": begun_by(init_to_mean),
    "init_to_sample": begun_by(init_to_sample),
    "init_to_uniform": begun_by(init_to_uniform(radius=1.0)),
    "init_to_feasible": begun_by(init_to_feasible),
}


RARELY = {
    "Gaussian process in a basis",
    "angles",
    "annotators",
    "autoregression",
    "censored and truncated",
    "init_to_feasible",
    "init_to_mean",
    "init_to_median",
    "init_to_uniform",
    "mixture, closed form",
    "ordinal regression",
    "plates in any order",
    "zero-inflated counts",
}
"""What they consist of is in another of the programs, or among the handlers."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name in RARELY else [])
        for name in PROGRAMS
    ],
)
def test_the_loss_is_numpyros(make_usual, name):
    as_numpyro(make_usual, PROGRAMS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_lower_the_loss(make_ours, name):
    lowers_the_loss(make_ours, PROGRAMS[name])
