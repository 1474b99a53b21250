"""The parts of the adaptive rule, each alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.adaptive.acceptance import Acceptance
from vpng.adaptive.control_variate import ControlCoefficient
from vpng.adaptive.gradient_products import GradientProducts
from vpng.adaptive.metric_average import MetricAverage
from vpng.adaptive.noise_covariance import NoiseCovariance
from vpng.adaptive.reach import LEAST_SHARE, Reach, curvature_ratio
from vpng.adaptive.signal import Signal, SignalAndNoise

pytestmark = pytest.mark.usefixtures("x64")

TOLERATED = 0.1


def halves(seed=0):
    """Gradients g_a, g_b and scores h_a, h_b in a metric of ones, and their products."""
    g_a, g_b, h_a, h_b = np.random.default_rng(seed).normal(size=(4, 3))
    rows = np.stack([(g_a + g_b) / 2, (g_a - g_b) / 2, h_a, h_b])
    return (g_a, g_b, h_a, h_b), GradientProducts(jnp.asarray((rows @ rows.T)[None]))


def test_products_have_the_names_of_what_they_are():
    (g_a, g_b, h_a, h_b), products = halves()
    mean, apart = (g_a + g_b) / 2, (g_a - g_b) / 2
    np.testing.assert_allclose(products.power[0], mean @ mean)
    np.testing.assert_allclose(products.noise[0], apart @ apart)
    np.testing.assert_allclose(products.of_scores[0], h_a @ h_a + h_b @ h_b)
    np.testing.assert_allclose(products.with_scores[0], g_a @ h_a + g_b @ h_b)
    assert products.has_scores
    assert not GradientProducts(products.matrix[:, :2, :2]).has_scores


@pytest.mark.parametrize(
    ("gain", "accepted"),
    [(0.0, True), (-0.09, True), (-0.2, False), (1.0, True), (31.5, False), (np.nan, False)],
)
def test_a_step_is_taken_unless_the_loss_says_otherwise(gain, accepted):
    """No noise: a tenth of a nat up is free, 30 times the promise and a nat down is the limit."""
    before = jnp.full(4, 100.0)
    found = Acceptance().accepts(jnp.asarray(1.0), before, before - gain, 1)
    assert bool(found) is accepted


def test_budgets_of_acceptance_are_over_all_data():
    before = jnp.full(4, 1.0)
    accepts = lambda rise: bool(
        Acceptance(resolution=0.0).accepts(jnp.asarray(0.0), before, before + rise, 1000)
    )
    assert accepts(0.9e-4)
    assert not accepts(1.1e-4)


@pytest.mark.parametrize("factor", [0.5, 1.0, 7.0])
def test_the_curvature_of_a_quadratic_is_found(factor):
    """L = factor x^2 / 2 from x = 3 to x = 1, in a metric of one."""
    loss = lambda x: factor * x**2 / 2
    before, after = jnp.full(4, loss(3.0)), jnp.full(4, loss(1.0))
    slope = jnp.asarray(factor * 1.0 * (1.0 - 3.0))
    ratio = curvature_ratio(jnp.asarray(4.0), slope, before, after)
    np.testing.assert_allclose(ratio, factor)


def test_a_curvature_that_rounding_hides_is_the_metrics():
    losses = jnp.full(2, 1e9)
    assert curvature_ratio(jnp.asarray(1e-9), jnp.asarray(0.0), losses, losses) == 1.0
    broken = curvature_ratio(jnp.asarray(1.0), jnp.asarray(jnp.nan), losses, losses)
    assert broken == 100.0


@pytest.mark.parametrize(
    ("longest", "accepted", "ratio", "wanted"),
    [
        (0.1, True, 1.0, 0.2),
        (0.8, True, 0.5, 1.0),
        (1.0, True, 2.0, 0.5),
        (1.0, True, 50.0, 0.25),
        (0.4, False, 1.0, 0.1),
        (1e-6, False, 1.0, LEAST_SHARE),
    ],
)
def test_the_reach_follows_the_curvature(longest, accepted, ratio, wanted):
    found = Reach().after_step(jnp.asarray(longest), jnp.asarray(accepted), jnp.asarray(ratio))
    np.testing.assert_allclose(found, wanted)


def test_the_regression_is_that_of_the_gradients_on_the_scores():
    """After one step: least squares of both halves, what was subtracted before added again."""
    (g_a, g_b, h_a, h_b), products = halves(seed=3)
    start = ControlCoefficient.none(1, jnp.float64)
    found = start.updated(products, jnp.asarray(0), jnp.asarray(True))
    wanted = (g_a @ h_a + g_b @ h_b) / (h_a @ h_a + h_b @ h_b)
    np.testing.assert_allclose(found.coefficient[0], np.clip(wanted, 0.0, 1.0))
    kept = found.updated(products, jnp.asarray(5), jnp.asarray(False))
    np.testing.assert_array_equal(kept.product, found.product)
    broken = found.updated(
        GradientProducts(products.matrix * jnp.nan), jnp.asarray(5), jnp.asarray(True)
    )
    np.testing.assert_array_equal(broken.square, found.square)


def test_a_gradient_that_is_its_score_is_all_noise_to_the_regression():
    rows = np.random.default_rng(1).normal(size=(2, 3))
    stacked = np.stack([rows.mean(0), (rows[0] - rows[1]) / 2, *rows])
    products = GradientProducts(jnp.asarray((stacked @ stacked.T)[None]))
    found = ControlCoefficient.none(1, jnp.float64).updated(
        products, jnp.asarray(0), jnp.asarray(True)
    )
    np.testing.assert_allclose(found.coefficient, 1.0)


def told(power, noise, *, steps):
    rule, signal = SignalAndNoise(), Signal.unknown(1, jnp.float64)
    products = GradientProducts(jnp.asarray([[[power, 0.0], [0.0, noise]]]))
    for step in range(steps):
        signal = rule.updated(signal, products, jnp.asarray(step), TOLERATED, 10, jnp.asarray(True))
    return signal


def test_halves_that_agree_are_all_signal():
    signal = told(5.0, 0.0, steps=4)
    np.testing.assert_allclose(signal.certain, 1.0)
    np.testing.assert_allclose(SignalAndNoise().share(signal, jnp.asarray(4), TOLERATED), 1.0)


def test_halves_that_agree_by_chance_are_noise_whose_nats_are_known():
    """g and d of the same power: no agreement. The noise is in nats over ten data."""
    signal = told(2.0, 2.0, steps=12)
    np.testing.assert_allclose(signal.certain, 0.0, atol=1e-12)
    np.testing.assert_allclose(signal.noise, 20.0)
    assert SignalAndNoise().share(signal, jnp.asarray(12), TOLERATED)[0] < 0.2


def test_a_step_that_is_not_usable_tells_nothing():
    signal = told(3.0, 1.0, steps=5)
    products = GradientProducts(jnp.full((1, 2, 2), jnp.nan))
    update = lambda usable: SignalAndNoise().updated(
        signal, products, jnp.asarray(5), TOLERATED, 10, jnp.asarray(usable)
    )
    for usable in (True, False):
        jax.tree.map(np.testing.assert_array_equal, update(usable), signal)


def test_the_covariance_is_that_of_the_mean_in_units_of_quiet_noise():
    generator = np.random.default_rng(2)
    gradients, scores = generator.normal(size=(2, 6, 3))
    found = NoiseCovariance(quiet=2.0).of(
        jnp.asarray(gradients), jnp.asarray(scores), jnp.array([0.3, 9.0]), 50
    )
    wanted = np.cov((gradients - 0.3 * scores).T) / 6 * 50 / 2.0
    np.testing.assert_allclose(found, wanted)


def test_noise_is_added_as_far_as_there_is_no_signal():
    signal = told(5.0, 0.0, steps=4)
    here = NoiseCovariance().here(jnp.eye(2), signal, jnp.asarray(True))
    assert here.part == 0.0
    lost = signal._replace(agreement=jnp.zeros(1), spread=jnp.zeros(1))
    assert NoiseCovariance().here(jnp.eye(2), lost, jnp.asarray(True)).part == 1.0
    assert NoiseCovariance().here(jnp.eye(2), lost, jnp.asarray(False)).rate == 0.0


@pytest.mark.parametrize(
    ("count", "step", "share", "accepted", "wanted"),
    [
        (0, 1, 0.01, True, 1.0),
        (9, 4, 0.01, True, 0.1),
        (99, 4, 0.01, True, 0.02),
        (99, 5, 0.01, True, 0.0),
        (99, 5, 1.0, True, 0.3),
        (99, 4, 1.0, False, 0.0),
    ],
    ids=["the first", "one of ten", "one of many", "not due", "long steps", "rejected"],
)
def test_the_weight_of_a_metric(count, step, share, accepted, wanted):
    noise = Signal.unknown(1, jnp.float64)._replace(agreement=jnp.zeros(1), spread=jnp.zeros(1))
    found = MetricAverage().weight(
        jnp.asarray(count),
        jnp.asarray(step),
        jnp.array([share]),
        noise,
        jnp.asarray(0.0),
        jnp.asarray(accepted),
    )
    np.testing.assert_allclose(found, wanted)
