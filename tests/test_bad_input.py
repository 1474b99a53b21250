"""Bad input is refused at the boundary: what is wrong, what was expected, what came."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from problems_for_tests import LocalProblem, random_problem
from vpng import (
    ELBO,
    ConjugateGradient,
    Dual,
    InputError,
    LevenbergMarquardt,
    Parameters,
    Predictive,
    Probed,
    Sampled,
    Variational,
    optimizers,
    scale_by_hessian_free,
)
from vpng.checks import binary_labels, counts, data_tree, finite_array, finite_scalar, matrix
from vpng.problem import check_problem
from vpng.problem.support import check_support
from vpng.problems import GaussianMean, LinearLatent, LogisticRegression
from vpng.training import fit

NAN, INF = float("nan"), float("inf")
GOOD = np.ones((4, 2))

CASES = {
    "zero particles": (lambda: ELBO(0), "num_particles", "at least 1", "0"),
    "half a particle": (lambda: ELBO(2.5), "num_particles", "whole number", "2.5"),
    "true particles": (lambda: ELBO(True), "num_particles", "whole number", "True"),
    "metric without particles": (lambda: Predictive(num_particles=0), "num_particles", "", "0"),
    "F_q without particles": (lambda: Variational(num_particles=-1), "num_particles", "", "-1"),
    "no data in a metric": (lambda: Predictive(max_data=0), "max_data", "at least 1", "0"),
    "an estimator's name": (lambda: Predictive("exact"), "estimator", r"Exact\(\)", "'exact'"),
    "a gradient's name": (lambda: ELBO(gradient="score"), "gradient", "ScoreFunction", "'score'"),
    "negative tolerance": (lambda: ConjugateGradient(rtol=-1.0), "rtol", "at least 0", "-1"),
    "no iterations": (lambda: ConjugateGradient(max_steps=0), "max_steps", "at least 1", "0"),
    "refinements below none": (lambda: Dual(refinements=-1), "refinements", "at least 0", "-1"),
    "bounds the wrong way": (
        lambda: LevenbergMarquardt(minimum=1.0, maximum=0.1),
        "minimum",
        "at most maximum = 0.1",
        "1.0",
    ),
    "a product's name": (
        lambda: scale_by_hessian_free(LinearLatent(num_data=1), product="gn"),
        "product",
        "GaussNewton",
        "'gn'",
    ),
    "a rule's name": (
        lambda: optimizers.vpng(LinearLatent(num_data=1), 0.1, rule="adam"),
        "rule",
        "scale_by_adam",
        "'adam'",
    ),
    "no samples": (lambda: Sampled(0), "num_samples", "at least 1", "0"),
    "no probes": (lambda: Probed(0), "num_probes", "at least 1", "0"),
    "negative KL weight": (lambda: ELBO(kl_weight=-1.0), "kl_weight", "at least 0", "-1"),
    "NaN KL weight": (lambda: ELBO(kl_weight=NAN), "kl_weight", "finite", "nan"),
    "learning rate 0": (lambda: optimizers.gradient(0.0), "learning_rate", "above 0", "0.0"),
    "learning rate NaN": (lambda: optimizers.gradient(NAN), "learning_rate", "finite", "nan"),
    "learning rate inf": (lambda: optimizers.gradient(INF), "learning_rate", "finite", "inf"),
    "learning rate text": (lambda: optimizers.gradient("fast"), "learning_rate", "number", "fast"),
    "learning rate array": (
        lambda: optimizers.gradient(np.ones(2)),
        "learning_rate",
        "number",
        r"shape \(2,\)",
    ),
    "vpng learning rate": (
        lambda: optimizers.vpng(LinearLatent(num_data=1), -0.1),
        "learning_rate",
        "above 0",
        "-0.1",
    ),
    "negative damping": (
        lambda: optimizers.vpng(LinearLatent(num_data=1), 0.1, damping=-1e-3),
        "damping",
        "at least 0",
        "-0.001",
    ),
    "damping NaN": (
        lambda: optimizers.natural_gradient(LinearLatent(num_data=1), 0.1, damping=NAN),
        "damping",
        "finite",
        "nan",
    ),
    "damping of hessian_free": (
        lambda: optimizers.hessian_free(LinearLatent(num_data=1), 0.1, damping=INF),
        "damping",
        "finite",
        "inf",
    ),
    "labels 2": (lambda: LogisticRegression.create(GOOD, [0, 1, 2, 0]), "labels", r"\{0, 1\}", "2"),
    "labels -1": (
        lambda: LogisticRegression.create(GOOD, [0, 1, -1, 0]),
        "labels",
        r"\{0, 1\}",
        "-1",
    ),
    "too few labels": (
        lambda: LogisticRegression.create(GOOD, [0, 1]),
        "labels",
        "4 labels",
        r"shape \(2,\)",
    ),
    "NaN labels": (
        lambda: LogisticRegression.create(GOOD, [0, 1, NAN, 0]),
        "labels",
        "finite",
        "nan",
    ),
    "NaN covariates": (
        lambda: LogisticRegression.create([[1.0, NAN]], [1]),
        "covariates",
        "finite",
        r"nan at index \(0, 1\)",
    ),
    "infinite covariates": (
        lambda: LogisticRegression.create([[INF, 1.0]], [1]),
        "covariates",
        "finite",
        "inf",
    ),
    "covariates in one dimension": (
        lambda: LogisticRegression.create(np.ones(4), np.ones(4)),
        "covariates",
        "matrix",
        r"shape \(4,\)",
    ),
    "no covariates": (
        lambda: LogisticRegression.create(np.ones((0, 2)), []),
        "covariates",
        "at least one row",
        r"\(0, 2\)",
    ),
    "text covariates": (
        lambda: LogisticRegression.create([["a", "b"]], [1]),
        "covariates",
        "numbers",
        "",
    ),
    "ragged covariates": (
        lambda: LogisticRegression.create([[1.0, 2.0], [3.0]], [1, 0]),
        "covariates",
        "numbers",
        "",
    ),
    "complex covariates": (
        lambda: LogisticRegression.create(np.ones((1, 2)) * 1j, [1]),
        "covariates",
        "real",
        "complex",
    ),
    "prior scale": (
        lambda: LogisticRegression.create(GOOD, np.ones(4), prior_scale=0.0),
        "prior_scale",
        "above 0",
        "0",
    ),
    "covariance not square": (
        lambda: GaussianMean.create(np.ones((2, 3)), 4),
        "covariance",
        "square",
        r"shape \(2, 3\)",
    ),
    "covariance not symmetric": (
        lambda: GaussianMean.create([[2.0, 0.3], [0.0, 2.0]], 4),
        "covariance",
        "symmetric",
        "",
    ),
    "covariance not definite": (
        lambda: GaussianMean.create([[1.0, 2.0], [2.0, 1.0]], 4),
        "covariance",
        "definite",
        "",
    ),
    "toy without data": (lambda: GaussianMean.create(np.eye(2), 0), "num_data", "at least 1", "0"),
    "toy without scale": (
        lambda: GaussianMean.create(np.eye(2), 3, scale=0.0),
        "scale",
        "above 0",
        "0",
    ),
    "negative counts": (
        lambda: counts("ratings", [[1, -2]]),
        "ratings",
        "non-negative",
        r"-2 at index \(0, 1\)",
    ),
    "fractional counts": (lambda: counts("ratings", [0.5]), "ratings", "whole", "0.5"),
    "infinite counts": (lambda: counts("ratings", [INF]), "ratings", "finite", "inf"),
    "empty data": (lambda: data_tree("data", {}), "data", "at least one array", "empty"),
    "no data": (lambda: data_tree("data", np.ones((0, 2))), "data", "at least one datum", "none"),
    "scalar data": (lambda: data_tree("data", 3.0), "data", "first axis", "scalar"),
    "uneven data": (
        lambda: data_tree("data", {"x": np.ones(3), "y": np.ones(4)}),
        "data",
        "one length",
        "has 3.*has 4",
    ),
    "NaN data": (
        lambda: data_tree("data", {"x": np.array([1.0, NAN])}),
        r"data\['x'\]",
        "finite",
        r"nan at index \(1,\)",
    ),
    "text data": (lambda: data_tree("data", np.array(["a"])), "data", "numbers", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    make, argument, wanted, got = CASES[name]
    with pytest.raises(
        InputError, match=rf"(?s)^{argument}: expected .*{wanted}.*, got .*{got}.*\.$"
    ):
        make()


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


def test_good_values_pass_and_become_floating():
    assert binary_labels("labels", [True, False], length=2).dtype == jnp.float32
    assert counts("ratings", np.array([0, 3])).dtype == jnp.float32
    assert matrix("x", [[1, 2]], columns=2).shape == (1, 2)
    assert data_tree("data", {"x": np.ones((3, 2)), "y": np.arange(3)}) == 3
    finite_scalar("x", np.float32(1.0), minimum=0.0, strict=True)
    finite_scalar("x", jnp.asarray(1.0), minimum=0.0, strict=True)


def test_traced_values_pass():
    jax.jit(lambda v: finite_scalar("x", v, minimum=0.0, strict=True) or v)(-1.0)
    jax.jit(lambda v: finite_array("x", v))(jnp.array([jnp.nan]))
    optimizers.gradient(lambda step: 0.1)  # a schedule


# Problems whose parts do not fit.


def check(problem, parameters=None):
    _, good, batch = random_problem("local", "normal", seed=0)
    check_problem(problem, good if parameters is None else parameters, batch)


class Ignoring(LocalProblem):
    def likelihood(self, model, latent, batch):
        return super().likelihood(model, jnp.ones_like(latent), batch)


class WithoutBatch(LocalProblem):
    """A density for all data at once: the loss would be right and the Fisher B times too small."""

    def likelihood(self, model, latent, batch):
        return dist.Normal(jnp.sum(latent), 1.0)


class ScalarDensity(LocalProblem):
    def likelihood(self, model, latent, batch):
        return super().likelihood(model, latent, batch).to_event(1)


class WrongValues(LocalProblem):
    def observed(self, batch):
        return batch["observed"][:, None]


class WrongPrior(LocalProblem):
    def prior(self, model, batch):
        p = super().prior(model, batch)
        return {"z": p}


class NoDistribution(LocalProblem):
    def likelihood(self, model, latent, batch):
        return jnp.sum(latent)


class WrongDivergence(LocalProblem):
    def divergence(self, q, p, latent, batch):
        return jnp.zeros((3, 2))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Ignoring, "likelihood: expected a distribution that depends on the latent variables, got"),
        (WithoutBatch, r"likelihood \(site 0\): expected .*3 data.*, got batch shape \(\)"),
        (ScalarDensity, r"likelihood \(site 0\): expected .*3 data.*, got batch shape \(\)"),
        (WrongValues, r"observed \(site 0\): expected .*batch shape \(3,\), got shape \(3, 3\)"),
        (WrongPrior, "prior: expected the approximation's structure .*, got"),
        (NoDistribution, "distributions: expected NumPyro distributions, got"),
        (WrongDivergence, r"kl: expected shape \(3,\), got shape \(3, 2\)"),
    ],
)
def test_problems_that_do_not_fit(cls, message):
    with pytest.raises(InputError, match=message):
        check(cls(num_data=3, family="normal"))


@pytest.mark.parametrize("kind", ["local", "global"])
@pytest.mark.parametrize("family", ["normal", "bernoulli", "multivariate_normal"])
def test_good_problems_pass(kind, family):
    check_problem(*random_problem(kind, family, seed=0))


def test_parameters_of_the_wrong_kind():
    problem, good, _ = random_problem("local", "normal", seed=0)
    with pytest.raises(InputError, match=r"params: expected vpng.Parameters.*, got dict"):
        check(problem, {"a": jnp.ones(2)})
    whole = good._replace(variational={**good.variational, "bias": jnp.array([1, 2])})
    with pytest.raises(
        InputError, match=r"params.*bias.*: expected a floating array, got dtype int32"
    ):
        check(problem, whole)
    half = good._replace(variational={**good.variational, "bias": jnp.ones(2, jnp.float16)})
    with pytest.raises(
        InputError, match=r"params.*bias.*: expected .*float32.*, got dtype float16"
    ):
        check(problem, half)
    lost = good._replace(variational={**good.variational, "bias": jnp.array([1.0, NAN])})
    with pytest.raises(InputError, match=r"params.*bias.*: expected finite numbers only, got nan"):
        check(problem, lost)


def fitted(rng_key=None, **changed):
    problem, parameters, batch = random_problem("global", changed.pop("family", "normal"), seed=0)
    batch = {**batch, **{key: value for key, value in changed.items() if key in batch}}
    given = {"problem": problem, "optimizer": optimizers.gradient(0.1), "objective": ELBO(2)}
    given |= {key: value for key, value in changed.items() if key not in batch}
    return fit(
        params=parameters,
        data=batch,
        num_steps=2,
        rng_key=jax.random.key(0) if rng_key is None else rng_key,
        progress=False,
        **given,
    )


@pytest.mark.parametrize(
    ("family", "bad", "message"),
    [
        ("poisson", -1.0, r"observed: expected values that Poisson allows, got -1.0 at index \(0"),
        ("poisson", 0.5, "observed: expected values that Poisson allows, got 0.5"),
        ("bernoulli", 2.0, "observed: expected values that Bernoulli allows, got 2.0"),
    ],
)
def test_fit_refuses_data_that_the_likelihood_does_not_allow(family, bad, message):
    _, _, batch = random_problem("global", family, seed=0)
    observed = jnp.asarray(batch["observed"]).astype(float).at[0].set(bad)
    with pytest.raises(InputError, match=message):
        fitted(family=family, observed=observed)


def test_a_bernoulli_takes_intensities():
    problem, parameters, batch = random_problem("global", "bernoulli", seed=0)
    grey = {**batch, "observed": 0.3 * jnp.ones_like(batch["observed"], float)}
    check_support(problem, parameters, grey)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimizer": None}, "optimizer: expected an optax transformation, got None"),
        ({"problem": None}, "problem: expected a vpng.Problem, got None"),
        ({"objective": "elbo"}, "objective: expected an objective such as .*, got 'elbo'"),
        ({"rng_key": 0.5}, "rng_key: expected a single key such as .*, got 0.5"),
        (
            {"rng_key": np.zeros(3)},
            r"rng_key: expected a single key.*, got an array of shape \(3,\)",
        ),
        ({"stop": 3}, r"stop: expected a rule such as Converged\(\).*, got 3"),
        ({"guard": True}, r"guard: expected Guard\(\).*, got True"),
        ({"checkpoints": "folder"}, r"checkpoints: expected Checkpoints\(.*, got 'folder'"),
        ({"callbacks": [3]}, r"callbacks\[0\]: expected a function .*, got 3"),
        ({"metrics": {"size": 3}}, r"metrics\['size'\]: expected a function .*, got 3"),
        (
            {"metrics": {"bias": lambda params, rng_key: params.variational["bias"]}},
            r"metrics\['bias'\]: expected a single number, got shape \(2,\)",
        ),
    ],
)
def test_fit_refuses_arguments_of_another_kind(changed, message):
    with pytest.raises(InputError, match=message):
        fitted(**changed)


@pytest.mark.parametrize("name", ["iteration", "seconds", "loss", "standard_error", "rejected"])
def test_a_metric_may_not_be_called_like_what_every_record_has(name):
    with pytest.raises(InputError, match=rf"^metrics: expected names other than .*, got {name}\.$"):
        fitted(metrics={name: lambda params, rng_key: 0.0})


def test_keys_of_either_kind_give_the_same_run():
    typed, raw = (fitted(make(5)).params for make in (jax.random.key, jax.random.PRNGKey))
    jax.tree.map(np.testing.assert_array_equal, typed, raw)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_fit_refuses_data_that_are_not_finite(bad):
    data = jnp.array([1.0, bad, 2.0])
    parameters = Parameters(jnp.asarray(0.1), jnp.asarray(0.5))
    with pytest.raises(
        InputError, match=r"data: expected finite numbers only, got (nan|inf) at index \(1,\)"
    ):
        fit(
            LinearLatent(num_data=3),
            parameters,
            data,
            optimizers.gradient(0.1),
            5,
            jax.random.key(0),
            progress=False,
        )


def test_fit_refuses_a_likelihood_that_ignores_the_latents():
    _, parameters, batch = random_problem("local", "normal", seed=0)
    with pytest.raises(InputError, match="ignores them"):
        fit(
            Ignoring(num_data=3, family="normal"),
            parameters,
            batch,
            optimizers.gradient(0.1),
            5,
            jax.random.key(0),
            progress=False,
        )
