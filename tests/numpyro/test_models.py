"""Every feature of a model: finite throughout, better at the end; minibatches, discrete latents."""

import warnings
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints, transforms
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, autoguide
from scipy import stats
from scipy.special import expit

from vpng import BayesianNetwork, Predictive
from vpng.errors import InputError
from vpng.numpyro import SVI, Call

KEY = jax.random.key(0)
COUNTS = np.array([[9, 12, 8, 10], [3, 1, 2, 2], [30, 25, 28, 33]])


def plates(counts):
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("groups", 3, dim=-2):
        level = numpyro.sample("level", dist.Normal(mean, scale))
        with numpyro.plate("items", 4, dim=-1):
            rate = numpyro.deterministic("rate", jnp.exp(level) * jnp.ones(4))
            with handlers.mask(mask=counts < 33):
                numpyro.sample("counts", dist.Poisson(rate), obs=counts)
            with handlers.scale(scale=0.5):
                both = jnp.stack([level + jnp.zeros(4), 0.0 * rate], axis=-1)
                logarithms = jnp.stack([jnp.log(counts), 0.1 * counts % 1], axis=-1)
                numpyro.sample("logs", dist.Normal(both, 1).to_event(1), obs=logarithms)


def supports(choices, grades, pairs, sizes):
    flat = lambda support, *shape: dist.ImproperUniform(support, (), shape)
    shares = numpyro.sample("shares", flat(constraints.simplex, 3))
    cuts = numpyro.sample("cuts", flat(constraints.ordered_vector, 2))
    factor = numpyro.sample("factor", dist.LKJCholesky(2))
    location = numpyro.sample("location", flat(constraints.real))
    with numpyro.plate("data", 6):
        numpyro.sample("choices", dist.Categorical(shares), obs=choices)
        numpyro.sample("grades", dist.OrderedLogistic(0.0, cuts), obs=grades)
        numpyro.sample("pairs", dist.MultivariateNormal(0.0, scale_tril=factor), obs=pairs)
        numpyro.sample("sizes", dist.LogNormal(location, 0.5), obs=sizes)


SUPPORTS = (
    np.array([0, 0, 1, 0, 2, 0]),
    np.array([0, 1, 2, 1, 1, 2]),
    np.array([[1.0, 0.9], [-1.0, -1.2], [0.3, 0.1], [-0.2, 0.1], [1.1, 1.5], [0.2, 0.4]]),
    np.array([20.0, 25.0, 15.0, 30.0, 22.0, 18.0]),
)


def state_space(series):
    drift = numpyro.sample("drift", dist.Normal(0, 1))

    def step(level, observed):
        level = numpyro.sample("level", dist.Normal(level + drift, 0.5))
        numpyro.sample("series", dist.Normal(level, 0.2), obs=observed)
        return level, None

    scan(step, jnp.zeros(()), series)


class Tent(dist.Distribution):
    """Log-density -|x - loc|: known to this file alone."""

    arg_constraints: ClassVar = {"loc": constraints.real}
    support = constraints.real

    def __init__(self, loc, *, validate_args=None):
        self.loc = loc
        super().__init__(jnp.shape(loc), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        return self.loc + jax.random.laplace(key, sample_shape + self.batch_shape)

    def log_prob(self, value):
        return -jnp.abs(value - self.loc) - jnp.log(2.0)


class Stretch(transforms.Transform):
    """Times a number that nobody sees: it cannot be flattened."""

    domain = codomain = constraints.real

    def __init__(self, factor):
        self._factor = factor

    def __call__(self, x):
        return self._factor * x

    def _inverse(self, y):
        return y / self._factor

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.broadcast_to(jnp.log(self._factor), jnp.shape(x))


def unusual(values):
    location = numpyro.sample("location", dist.Normal(0, 5))
    stretched = dist.TransformedDistribution(dist.Normal(0, 5), Stretch(jnp.cosh(location / 9.0)))
    other = numpyro.sample("other", stretched)
    numpyro.factor("pull", -0.5 * (other - 3.0) ** 2)
    with numpyro.plate("data", 6):
        numpyro.sample("tent", Tent(jnp.broadcast_to(location, 6)), obs=values)
        parts = dist.Normal(jnp.stack([location, other], -1), 1.0)
        mixture = dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), parts)
        numpyro.sample("mixture", mixture, obs=values)
        known = jnp.array([True, True, False, True, True, True])
        numpyro.sample("partly", dist.Normal(location, 1.0), obs=values, obs_mask=known)


MODELS = {
    "plates": (plates, (COUNTS,)),
    "supports": (supports, SUPPORTS),
    "scan": (state_space, (np.arange(1.0, 7.0),)),
    "unusual": (unusual, (np.array([8.0, 9.0, 10.0, 8.5, 9.5, 9.0]),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_features_of_models(name):
    model, data = MODELS[name]
    data = tuple(map(jnp.asarray, data))
    guide = autoguide.AutoNormal(model)
    svi = SVI(model, guide, loss=Trace_ELBO(num_particles=4))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        SVI(model, guide, fisher=BayesianNetwork()).init(KEY, *data)
        # Inside jit, where NumPyro's own loop for a start is compiled, once.
        state = jax.jit(svi.init)(KEY, *data) if name == "plates" else None
        result = svi.run(KEY, 50, *data, init_state=state, progress_bar=False)
    assert np.all(np.isfinite(result.losses))
    assert np.mean(result.losses[-5:]) < result.losses[0] - 5.0
    if name == "unusual":
        assert svi.problem.root_names == {"location"}
    mentioned = [str(w.message) for w in said if "numpyro.factor" in str(w.message)]
    assert len(mentioned) == (name == "unusual")
    assert all("'pull'" in message for message in mentioned)


def subsampled(covariates, targets):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", 4, subsample_size=2) as index:
        logits = covariates[index] @ weights
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=targets[index])


def test_minibatches_are_scaled_once_in_loss_and_metric(x64):
    covariates = np.array([[1.0, 0.2], [-1.0, 0.5], [0.4, 2.0], [1.0, -1.0]])
    targets = np.array([1, 0, 1, 1])
    data = jnp.asarray(covariates), jnp.asarray(targets)
    guide = autoguide.AutoDelta(subsampled)
    svi = SVI(subsampled, guide, loss=Trace_ELBO())
    state = jax.jit(svi.init)(KEY, *data)
    params, parameters = svi.get_params(state), state.optim_state.accepted
    problem = svi.problem
    assert problem.num_data == 4
    pairs = np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])

    @jax.jit
    @jax.vmap
    def at(index):
        given = handlers.substitute(subsampled, data={"data": index})
        loss = svi.loss.loss(KEY, params, given, guide, *data)
        call = Call(data, {}, {"data": index}, {})
        metric = Predictive(num_particles=1).operator(problem, parameters, call, KEY)
        return loss, metric.to_dense()

    losses, metrics = at(pairs)
    weights = np.asarray(params["w_auto_loc"])
    probabilities = expit(covariates @ weights)
    log_joint = (
        stats.bernoulli.logpmf(targets, probabilities).sum() + stats.norm.logpdf(weights).sum()
    )
    # Every pair is as likely as any other: the mean over them is the expectation.
    np.testing.assert_allclose(np.mean(losses), -log_joint, rtol=1e-10)
    variances = probabilities * (1 - probabilities)
    whole = (covariates.T * variances) @ covariates / 4
    np.testing.assert_allclose(np.mean(metrics, axis=0), whole, rtol=1e-10)


class Unsampled(dist.Distribution):
    """The exponential prior, of which only the density was written down."""

    support = constraints.positive

    def log_prob(self, value):
        return -value


def minibatch(values, slope, level):
    with numpyro.plate("data", 4, subsample_size=2):
        numpyro.sample("y", dist.Normal(slope * level, 1.0), obs=numpyro.subsample(values, 0))


def positive_guide(values):
    """Declares a parameter that only the model uses."""
    numpyro.param("slope", 2.0, constraint=constraints.positive)
    numpyro.sample("level", dist.LogNormal(numpyro.param("loc", 0.0), 0.5))


@pytest.mark.parametrize(
    "model",
    [
        lambda values: minibatch(values, 2.0, numpyro.sample("level", Unsampled())),
        lambda values: minibatch(
            values, numpyro.param("slope"), numpyro.sample("level", dist.Exponential(1.0))
        ),
    ],
    ids=["prior without samples", "parameter without a value"],
)
def test_minibatches_are_drawn_without_running_the_prior(model):
    values = jnp.arange(4.0)
    svi = SVI(model, positive_guide)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Unsampled sites cannot be sampled")
        state = jax.eval_shape(svi.init, KEY, values)
        after, loss = jax.eval_shape(svi.update, state, values)
    assert loss.shape == ()
    assert jax.tree.structure(after) == jax.tree.structure(state)
    drawn = [
        svi.problem.call(jax.random.key(seed), (values,), {}, None).subsamples["data"]
        for seed in range(8)
    ]
    # Of six pairs, eight draws hold more than one but for a chance of 6^-7.
    assert len({tuple(np.sort(chosen)) for chosen in drawn}) > 1
    assert all(len(set(np.asarray(chosen))) == 2 for chosen in drawn)


def switch(values):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    on = numpyro.sample("on", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Normal(mean + 4.0 * on, 1.0), obs=values)


def mean_guide(values):
    loc = numpyro.param("loc", 0.0)
    scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
    numpyro.sample("mean", dist.Normal(loc, scale))


def switch_guide(values):
    mean_guide(values)
    numpyro.sample(
        "on", dist.Bernoulli(numpyro.param("p", 0.4, constraint=constraints.unit_interval))
    )


VALUES = np.array([5.0, 6.0, 5.5, 4.5], np.float32)


@pytest.mark.parametrize(("guide", "where"), [(switch_guide, "guide"), (mean_guide, "model")])
def test_discrete_latent_is_named_with_its_remedies(guide, where):
    message = f"{where} site 'on'.*TraceEnum_ELBO.*RelaxedBernoulli.*TraceGraph_ELBO"
    with pytest.raises(InputError, match=message):
        SVI(switch, guide).init(KEY, VALUES)


def test_discrete_latent_under_an_autoguide_is_named_with_its_remedies():
    def model(values):
        on = numpyro.sample("on", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        with numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(4.0 * on, 1.0), obs=values)

    with pytest.raises(InputError, match=r"'on'.*TraceEnum_ELBO.*RelaxedBernoulli"):
        SVI(model, autoguide.AutoNormal(model)).init(KEY, VALUES)


def test_a_model_without_latents_is_fitted():
    def model(values):
        mean = numpyro.param("mean", 0.0)
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        with numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(mean, scale), obs=values)

    result = SVI(model, autoguide.AutoNormal(model)).run(KEY, 60, VALUES, progress_bar=False)
    np.testing.assert_allclose(result.params["mean"], VALUES.mean(), rtol=1e-4)
    np.testing.assert_allclose(result.params["scale"], VALUES.std(), rtol=1e-3)


def levels(values):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    with numpyro.plate("data", 40, subsample_size=10):
        level = numpyro.sample("level", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=numpyro.subsample(values, 0))


def levels_guide(values):
    scale = numpyro.param("mean_auto_scale", 0.1, constraint=constraints.positive)
    numpyro.sample("mean", dist.Normal(numpyro.param("mean_auto_loc", 0.0), scale))
    locations = numpyro.param("level_auto_loc", jnp.zeros(40))
    scales = numpyro.param("level_auto_scale", jnp.full(40, 0.1), constraint=constraints.positive)
    with numpyro.plate("data", 40, subsample_size=10) as chosen:
        numpyro.sample("level", dist.Normal(locations[chosen], scales[chosen]))


@pytest.mark.parametrize(
    "guide",
    [
        # By hand what AutoNormal has: the same parameters, and the same geometry.
        pytest.param(levels_guide, marks=pytest.mark.exhaustive, id="handwritten"),
        pytest.param(autoguide.AutoNormal(levels), marks=pytest.mark.endurance, id="AutoNormal"),
    ],
)
def test_parameters_of_single_data_settle_with_minibatches(guide):
    """Seen once in four steps, each must move by what one step sees of it, and no more."""
    values = (np.random.default_rng(0).normal(size=40) + 3.0).astype(np.float32)
    result = SVI(levels, guide).run(jax.random.key(1), 300, values, progress_bar=False)
    # The posterior of a level given the others: precision 5 and mean (4 y + mean) / 5.
    expected = (4.0 * values + values.mean()) / 5.0
    np.testing.assert_allclose(result.params["level_auto_loc"], expected, atol=0.3)
    np.testing.assert_allclose(result.params["level_auto_scale"], 1 / np.sqrt(5.0), rtol=0.3)


@pytest.mark.parametrize(
    ("guide", "loss"),
    [(mean_guide, TraceEnum_ELBO()), (switch_guide, TraceGraph_ELBO(num_particles=10))],
    ids=["enumerated", "score function"],
)
def test_discrete_latents_where_the_loss_copes(guide, loss):
    result = SVI(switch, guide, loss=loss).run(KEY, 60, VALUES, progress_bar=False)
    assert np.all(np.isfinite(result.losses))
    assert np.mean(result.losses[-10:]) < result.losses[0] - 5.0
