"""One call: conjugate models with their evidence, verdicts on posteriors that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from scipy.stats import multivariate_normal

from vpng.errors import InputError
from vpng.numpyro import SVI, infer
from vpng.posterior import Budget, Corrected, Posterior, SeveralModes, UseIt, UseNUTS

COVARIATES = np.array([[1.0, 0.9], [1.0, 1.1], [0.5, 0.4], [-1.0, -1.2], [0.2, 0.4]], np.float32)
RESPONSES = np.array([1.0, 1.5, 0.2, -1.8, 0.7], np.float32)


def regression(covariates, responses=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    numpyro.deterministic("total", weights.sum())
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("response", dist.Normal(covariates @ weights, 0.5), obs=responses)


def exact():
    """Mean and covariance of the weights, and the log evidence."""
    X, y = COVARIATES.astype(float), RESPONSES.astype(float)
    covariance = np.linalg.inv(np.eye(2) / 4.0 + X.T @ X / 0.25)
    marginal = multivariate_normal(np.zeros(5), 4.0 * X @ X.T + 0.25 * np.eye(5))
    return covariance @ X.T @ y / 0.25, covariance, marginal.logpdf(y)


@pytest.fixture(scope="module")
def posterior():
    return infer(regression, COVARIATES, responses=RESPONSES)


def test_a_conjugate_model_is_exact(posterior):
    mean, covariance, evidence = exact()
    np.testing.assert_allclose(posterior.covariance(), covariance, rtol=1e-4)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(posterior.found.modes[0].frame.centre, mean, atol=1e-3 * sd.min())
    value, error = posterior.log_evidence
    # Weights of an exact approximation are all equal: no error but rounding.
    assert value == pytest.approx(evidence, abs=1e-3)
    assert error < 1e-3
    assert isinstance(posterior.verdict, UseIt)


def test_the_table_has_all_sites_with_their_errors(posterior):
    mean, covariance, _ = exact()
    row = posterior.summary["total"]
    sd = np.sqrt(covariance.sum())
    # Five standard errors of 8,192 independent draws.
    assert row.mean == pytest.approx(mean.sum(), abs=5 * sd / np.sqrt(8192))
    assert row.sd == pytest.approx(sd, rel=5 / np.sqrt(2 * 8192))
    assert row.error == pytest.approx(sd / np.sqrt(8192), rel=0.1)
    assert row.upper - row.lower == pytest.approx(2 * 1.645 * sd, rel=0.06)
    printed = str(posterior)
    assert "weights[1]" in printed
    assert "Use it" in printed


def test_the_delta_method_knows_deterministic_sites(posterior):
    _, covariance, _ = exact()
    found = posterior.covariance_of(lambda values: values["total"])
    np.testing.assert_allclose(found, [[covariance.sum()]], rtol=1e-3)


def test_draws_and_predictions(posterior):
    mean, covariance, _ = exact()
    drawn = posterior.sample(jax.random.key(0), 4000)
    assert drawn["weights"].shape == (4000, 2)
    np.testing.assert_allclose(np.cov(drawn["weights"].T), covariance, rtol=0.15, atol=0.01)
    new = np.array([[2.0, 1.0]], np.float32)
    predicted = posterior.predict(jax.random.key(1), new, num_draws=4000)["response"]
    variance = new[0] @ covariance @ new[0] + 0.25
    assert float(predicted.mean()) == pytest.approx(new[0] @ mean, abs=5 * np.sqrt(variance / 4000))
    assert float(predicted.var()) == pytest.approx(variance, rel=5 * np.sqrt(2 / 4000))


def test_saved_and_loaded_it_is_the_same(posterior, tmp_path):
    path = posterior.save(tmp_path / "posterior.vpng")
    again = Posterior.load(path, regression, COVARIATES, responses=RESPONSES)
    assert str(again) == str(posterior)
    with pytest.raises(InputError, match="latents"):
        Posterior.load(path, lambda: numpyro.sample("other", dist.Normal()))


def test_arviz_takes_it(posterior):
    tree = posterior.to_arviz(num_draws=400)
    assert {"posterior", "posterior_predictive", "log_likelihood", "sample_stats"} <= set(
        tree.children
    )
    assert tree["posterior"]["weights"].shape == (4, 100, 2)
    assert tree["log_likelihood"]["response"].shape == (4, 100, 5)
    assert tree["posterior_predictive"]["response"].std() > 0.3
    assert "k_hat" in tree.attrs


def test_the_figure_is_written(posterior, tmp_path):
    posterior.plot(tmp_path / "posterior.png")
    assert (tmp_path / "posterior.png").stat().st_size > 10_000


def test_nuts_starts_where_the_posterior_is(posterior):
    mean, covariance, _ = exact()
    mcmc = posterior.nuts(num_samples=500, num_chains=4)
    mcmc.run(jax.random.key(0), extra_fields=("num_steps",))
    drawn = np.asarray(mcmc.get_samples()["weights"])
    sd = np.sqrt(np.diag(covariance))
    # At least 500 effective draws of 2,000.
    np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - mean), 5 * sd / np.sqrt(500))
    # In the right metric a trajectory is a few steps, whatever the correlation.
    assert float(mcmc.get_extra_fields()["num_steps"].mean()) < 8


def test_a_guide_that_is_too_narrow_is_corrected():
    guide = AutoNormal(regression)
    svi = SVI(regression, guide)
    result = svi.run(jax.random.key(0), 100, COVARIATES, responses=RESPONSES, progress_bar=False)
    corrected = svi.posterior(result, COVARIATES, responses=RESPONSES)
    _, covariance, evidence = exact()
    assert isinstance(corrected.verdict, Corrected)
    assert "sds are 0." in str(corrected.verdict)
    np.testing.assert_allclose(corrected.covariance(), covariance, rtol=1e-4)
    assert corrected.log_evidence[0] == pytest.approx(evidence, abs=1e-3)
    # Of 4,096 draws: five standard errors.
    np.testing.assert_allclose(
        corrected.guide.scale, result.params["weights_auto_scale"], rtol=5 / np.sqrt(2 * 4096)
    )


def funnel():
    width = numpyro.sample("width", dist.Normal(0.0, 3.0))
    with numpyro.plate("many", 9):
        numpyro.sample("narrow", dist.Normal(0.0, jnp.exp(width / 2)))


def two_modes():
    place = numpyro.sample("place", dist.Normal(0.0, 3.0))
    mixture = dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.7, 0.3])), dist.Normal(jnp.array([-4.0, 4.0]), 0.5)
    )
    numpyro.factor("data", mixture.log_prob(place))


def test_a_funnel_is_left_to_nuts():
    verdict = infer(funnel, budget=Budget(seconds=5.0)).verdict
    assert isinstance(verdict, UseNUTS)
    assert not verdict.trusted


def test_two_modes_are_found_and_weighed():
    posterior = infer(two_modes, budget=Budget(num_starts=8))
    assert isinstance(posterior.verdict, SeveralModes)
    locations = np.sort([float(mode.frame.centre[0]) for mode in posterior.found.modes])
    # N(0, 9) times N(4, 1/4) is N(4 * 36 / 37, 9 / 37), and as far on the other side.
    np.testing.assert_allclose(locations, [-4 * 36 / 37, 4 * 36 / 37], atol=0.02)
    np.testing.assert_allclose(posterior.found.shares.max(), 0.7, atol=0.03)
    evidence = dist.Normal(0.0, np.sqrt(9.25)).log_prob(4.0)
    assert posterior.log_evidence[0] == pytest.approx(float(evidence), abs=0.02)


def test_many_latents_by_moved_chains():
    # Sixty log-gamma latents: weights multiply, chains do not.
    def gammas():
        with numpyro.plate("many", 60):
            numpyro.sample("rate", dist.Gamma(1.5, 1.0))

    posterior = infer(gammas, budget=Budget(num_starts=1, max_latents=10))
    assert posterior.found.settled is not None
    assert isinstance(posterior.verdict, UseIt)
    mean, sd = posterior.found.draws.moments()
    # log of Gamma(1.5, 1): digamma(1.5) = 0.03649, trigamma(1.5) = 0.93480.
    error = 4.5 / np.sqrt(posterior.found.draws.effective)
    np.testing.assert_allclose(mean, 0.03649, atol=error)
    np.testing.assert_allclose(sd, np.sqrt(0.9348), rtol=0.1)
    value, error = posterior.log_evidence
    assert value == pytest.approx(0.0, abs=max(5 * error, 0.1))


def test_discrete_latents_are_summed_over():
    def mixture(data):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(data)):
            kind = numpyro.sample("kind", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            numpyro.sample("x", dist.Normal(shift + 0.0 * kind, 1.0), obs=data)

    data = np.array([0.5, 1.5, 1.0], np.float32)
    posterior = infer(mixture, data, budget=Budget(num_starts=1))
    assert posterior.summary["shift"].mean == pytest.approx(0.75, abs=0.03)
    np.testing.assert_allclose(posterior.covariance(), [[0.25]], rtol=1e-3)


def only_discrete():
    numpyro.sample("coin", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})


def never_finite():
    numpyro.factor("nothing", jnp.nan * numpyro.sample("x", dist.Normal()))


def with_parameters():
    numpyro.sample("x", dist.Normal(numpyro.param("centre", 0.0), 1.0))


def subsampled():
    numpyro.sample("x", dist.Normal())
    with numpyro.plate("data", 10, subsample_size=2):
        numpyro.sample("y", dist.Normal(), obs=0.0)


def counted():
    numpyro.sample("count", dist.Poisson(3.0))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: None, "at least one continuous latent, got none"),
        (only_discrete, "only the discrete 'coin'"),
        (never_finite, "finite somewhere"),
        (with_parameters, "parameters .*centre"),
        (subsampled, "all 10 of its data"),
        (counted, "finitely many values"),
    ],
)
def test_bad_models_get_a_clear_word(model, words):
    with pytest.raises(InputError, match=words):
        infer(model)


def test_bad_budgets_get_a_clear_word():
    with pytest.raises(InputError, match="seconds"):
        Budget(seconds=0.0)
    with pytest.raises(InputError, match="num_starts"):
        Budget(num_starts=0)
