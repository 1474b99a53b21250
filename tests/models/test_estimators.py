"""The autoencoder and the logistic regression as estimators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import (
    check_complex_data,
    check_do_not_raise_errors_in_init_or_set_params,
    check_estimator_cloneable,
    check_estimator_repr,
    check_estimators_empty_data_messages,
    check_estimators_unfitted,
    check_get_params_invariance,
    check_mixin_order,
    check_no_attributes_set_in_init,
    check_parameters_default_constructible,
    check_set_params,
    check_valid_tag_types,
)

from vpng.errors import InputError
from vpng.models import VAE, BayesianLogisticRegression, PoissonFactorization, amortised
from vpng.models.logistic_regression import _compiled
from vpng.problems import (
    BernoulliLikelihood,
    Labelled,
    NormalLikelihood,
    mlp_vae,
    reconstruct,
    standardised,
)

RNG = np.random.default_rng(1)
X = RNG.normal(size=(80, 3))
Y = np.where(X @ [2.0, -1.0, 0.0] + 0.5 + RNG.logistic(size=80) > 0, "yes", "no")
BITS = (RNG.random((40, 6)) < np.where(np.arange(40) % 2, 0.9, 0.1)[:, None]).astype(np.float32)


@pytest.fixture(scope="module")
def regression():
    return BayesianLogisticRegression(random_state=0, num_steps=200).fit(X, Y)


def test_the_posterior_mean_is_near_the_penalised_estimate(regression):
    """A N(0, 1) prior is C = 1; the mean of q differs from the mode by the posterior's skew."""
    mode = LogisticRegression(C=1.0).fit(X, Y)
    np.testing.assert_allclose(regression.coef_, mode.coef_, atol=0.3)
    assert (np.sign(regression.coef_[0, :2]) == [1, -1]).all()
    assert regression.score(X, Y) >= mode.score(X, Y) - 0.03
    assert regression.classes_.tolist() == ["no", "yes"]


def test_probabilities_are_posterior_averages(regression):
    found = regression.predict_proba(X[:2])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    for row, probability in zip(X[:2], found[:, 1], strict=True):
        row = row.astype(np.float32).astype(float)
        mean = row @ regression.coef_[0] + regression.intercept_[0]
        whole = np.append(row, 1.0)
        deviation = np.sqrt(whole @ regression.coef_covariance_.astype(float) @ whole)
        average, _ = quad(
            lambda t, m=mean, s=deviation: norm.pdf(t, m, s) / (1 + np.exp(-t)),
            mean - 12 * deviation,
            mean + 12 * deviation,
        )
        assert probability == pytest.approx(average, abs=1e-6)


def test_a_saved_regression_is_the_same(regression, tmp_path):
    loaded = BayesianLogisticRegression.load(regression.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict_proba(X), regression.predict_proba(X))
    np.testing.assert_array_equal(loaded.predict(X), regression.predict(X))
    with pytest.raises(InputError, match="expected a VAE, got a BayesianLogisticRegression"):
        VAE.load(tmp_path / "model")


def test_fits_of_one_shape_share_a_program(regression):
    """And other data give what they give alone."""
    before = _compiled.cache_info()
    mirrored = BayesianLogisticRegression(random_state=0, num_steps=200).fit(-X, Y)
    after = _compiled.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
    # q at -X is the mirror image in the weights; the draws are not mirrored.
    np.testing.assert_allclose(mirrored.coef_, -regression.coef_, atol=0.15)
    np.testing.assert_allclose(mirrored.intercept_, regression.intercept_, atol=0.15)


def test_a_compiled_loop_takes_data_of_its_own_shape_alone(regression):
    loop = _compiled(80, 4, 1.0, 200, 0.1, 0.01, 10, np.dtype(np.float32), False)
    with pytest.raises(InputError, match="data: expected arrays as the loop was made with"):
        loop.on(Labelled(np.zeros((79, 4), np.float32), np.zeros(79, np.float32)))


def test_labels_must_be_two():
    with pytest.raises(ValueError, match="Only binary"):
        BayesianLogisticRegression().fit(X, np.arange(80) % 3)
    with pytest.raises(ValueError, match="one class"):
        BayesianLogisticRegression().fit(X, np.zeros(80))


@pytest.fixture(scope="module")
def autoencoder():
    settings = {"hidden": (5,), "batch_size": 20, "max_epochs": 40, "learning_rate": 0.02}
    return VAE(1, random_state=0, **settings).fit(BITS)


def test_the_autoencoder_tells_groups_apart(autoencoder):
    assert isinstance(autoencoder.likelihood_, BernoulliLikelihood)
    codes = autoencoder.transform(BITS)[:, 0]
    full, empty = codes[BITS.sum(axis=1) >= 4], codes[BITS.sum(axis=1) <= 2]
    assert abs(full.mean() - empty.mean()) > 3 * max(full.std(), empty.std()) / 2
    pictures = autoencoder.predict(BITS)
    assert pictures.shape == BITS.shape
    assert ((pictures >= 0) & (pictures <= 1)).all()
    assert autoencoder.score(BITS) > autoencoder.score(1.0 - np.eye(6)[np.arange(40) % 6])


def test_fits_of_one_shape_share_a_program_and_nothing_else(autoencoder):
    """Other data, then the same again: one program, and the model that a fit alone gives."""
    before = amortised._compiled.cache_info()
    mirrored = clone(autoencoder).fit(1.0 - BITS)
    again = clone(autoencoder).set_params(hidden=[5], patience=10).fit(BITS)
    after = amortised._compiled.cache_info()
    assert (after.hits, after.misses) == (before.hits + 2, before.misses)
    assert (mirrored.transform(BITS) != autoencoder.transform(BITS)).any()
    np.testing.assert_array_equal(again.transform(BITS), autoencoder.transform(BITS))
    assert again.history_["validation_elbo"] == autoencoder.history_["validation_elbo"]


def test_settings_that_cannot_be_compared_have_a_program_of_their_own():
    """An array has no hash."""
    model = VAE(likelihood=NormalLikelihood(scale=jnp.full(3, 2.0)))
    model.likelihood_ = model.likelihood
    assert model._program_key() is None
    model.likelihood_ = NormalLikelihood(scale=2.0)
    assert hash(model._program_key())


def test_a_saved_autoencoder_is_the_same(autoencoder, tmp_path):
    loaded = VAE.load(autoencoder.save(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.predict(BITS), autoencoder.predict(BITS))
    assert isinstance(loaded.likelihood, BernoulliLikelihood)


def test_data_outside_the_support_are_refused(autoencoder):
    with pytest.raises(InputError, match="X: expected numbers in"):
        autoencoder.transform(BITS + 0.5)
    with pytest.raises(InputError, match="Z: expected rows of length 1"):
        autoencoder.inverse_transform(np.zeros((2, 3)))
    with pytest.raises(InputError, match="likelihood"):
        VAE(likelihood="normal").fit(BITS)


def test_real_data_get_a_normal_likelihood():
    """Whatever their scale: in columns of deviation 1 the entropy of N(0, I) is 1.42 for each."""
    far = 1e3 * X + 1e4
    model = VAE(1, hidden=(2,), max_epochs=1, random_state=0).fit(far)
    assert isinstance(model.likelihood_, NormalLikelihood)
    assert model.history_["rejected"] == [0]
    assert model.score(far) + 3 * np.log(1e3) == pytest.approx(-3 * 1.42, abs=1.5)


def test_a_standardised_start_commutes_with_scaling():
    """Scaled data give the latents and the scaled means that the data themselves give."""
    data = X.astype(np.float32)
    likelihood = NormalLikelihood(scale=None)
    made = mlp_vae(jax.random.key(0), data, latent_dim=1, hidden=(2,), likelihood=likelihood)
    factors, offsets = np.array([1e-2, 1.0, 1e2]), np.array([0.0, -3.0, 1e3])

    @jax.jit
    def encoded_and_means(start, rows):
        encoded = made.problem.encode(start.variational, rows)
        return *encoded, reconstruct(made.problem, start, rows)

    found = []
    for rows in (data, (factors * data + offsets).astype(np.float32)):
        start = standardised(made.parameters, jnp.asarray(rows))
        loc, log_scale, means = map(np.asarray, encoded_and_means(start, rows))
        assert not log_scale.any()
        found.append((loc, means))
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-4)
    np.testing.assert_allclose(found[1][1], factors * found[0][1] + offsets, rtol=1e-4, atol=1e-4)
    constant = standardised(made.parameters, jnp.ones((4, 3)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(constant))


@pytest.mark.parametrize("kind", [VAE, PoissonFactorization, BayesianLogisticRegression])
def test_constructors_follow_the_conventions(kind):
    """scikit-learn's checks that need no fit; `tools/estimator_checks.py` has all of them.

    All that apply pass there. Two do not apply to `PoissonFactorization`, those of sparse input;
    `test_sparse_rows_are_the_same_rows` stands for them and says why.
    """
    name = kind.__name__
    check_complex_data(name, kind())
    check_do_not_raise_errors_in_init_or_set_params(name, kind())
    check_estimator_cloneable(name, kind())
    check_estimator_repr(name, kind())
    check_estimators_empty_data_messages(name, kind())
    check_estimators_unfitted(name, kind())
    check_mixin_order(name, kind())
    check_valid_tag_types(name, kind())
    check_parameters_default_constructible(name, kind())
    check_no_attributes_set_in_init(name, kind())
    check_get_params_invariance(name, kind())
    check_set_params(name, kind())
    with pytest.raises(NotFittedError):
        kind().predict(np.ones((2, 3)))
