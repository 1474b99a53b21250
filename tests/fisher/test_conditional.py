"""The joint information of a latent and its parents, and what goes with it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import biject_to

from vpng.fisher.conditional import joint_rows, sampled_scores
from vpng.fisher.entropy import entropy_rows
from vpng.fisher.families import whitened
from vpng.fisher.misfit import scaled_by_misfit

pytestmark = pytest.mark.usefixtures("x64")

FAMILIES = {
    "normal": (lambda p: dist.Normal(p[0], jnp.exp(p[1])), [0.3, -0.2], 1.1),
    "student": (lambda p: dist.StudentT(4.0, p[0], jnp.exp(p[1])), [0.3, 0.2], -0.4),
    "laplace": (lambda p: dist.Laplace(p[0], jnp.exp(p[1])), [-0.5, 0.1], 0.7),
    "logistic": (lambda p: dist.Logistic(p[0], jnp.exp(p[1])), [-0.5, 0.1], 0.7),
    "lognormal": (lambda p: dist.LogNormal(p[0], jnp.exp(p[1])), [0.2, -0.3], 1.7),
    "half normal": (lambda p: dist.HalfNormal(jnp.exp(p[0])), [0.4], 0.6),
    "half cauchy": (lambda p: dist.HalfCauchy(jnp.exp(p[0])), [0.4], 2.5),
    "exponential": (lambda p: dist.Exponential(jnp.exp(p[0])), [-0.3], 0.9),
    "gamma": (lambda p: dist.Gamma(jnp.exp(p[0]), jnp.exp(p[1])), [0.9, 0.2], 1.3),
    "inverse gamma": (lambda p: dist.InverseGamma(jnp.exp(p[0]), jnp.exp(p[1])), [1.1, 0.2], 1.3),
}


def by_quadrature(make, parents, low=-60.0, high=60.0, count=200_001):
    """E[s s^T] with s the score in (u, parents), u the unconstrained latent, on a fine grid."""
    transform = biject_to(make(parents).support)

    def log_density(u, parents):
        z = transform(u)
        return make(parents).log_prob(z) + transform.log_abs_det_jacobian(u, z)

    grid = jnp.linspace(low, high, count)
    score = jax.vmap(jax.grad(log_density, (0, 1)), (0, None))(grid, parents)
    scores = jnp.concatenate([score[0][:, None], score[1]], axis=1)
    weights = jnp.exp(jax.vmap(log_density, (0, None))(grid, parents)) * (grid[1] - grid[0])
    kept = jnp.where((weights > 1e-300)[:, None], scores, 0.0)
    return (kept * weights[:, None]).T @ kept


@pytest.mark.parametrize("name", FAMILIES)
def test_joint_information_is_the_expected_outer_product_of_scores(name):
    make, parents, value = FAMILIES[name]
    wide = 2000.0 if name == "student" else 60.0

    @jax.jit
    def both(parents, value):
        transform = biject_to(make(parents).support)
        rows = lambda joint: joint_rows(make(joint[1:]), transform(joint[0])).rows.ravel()
        at = jnp.concatenate([transform.inv(value)[None], parents])
        return jax.jacfwd(rows)(at), by_quadrature(make, parents, -wide, wide)

    jacobian, expected = map(np.asarray, both(np.array(parents), np.asarray(value)))
    # The motion of z is measured at z itself: the same for every z on the unconstrained scale.
    np.testing.assert_allclose(jacobian.T @ jacobian, expected, rtol=2e-5, atol=2e-4)


def test_multivariate_normal_couples_the_latent_with_its_mean():
    tril = np.array([[1.0, 0.0], [0.4, 0.5]])
    precision = np.linalg.inv(tril @ tril.T)

    def rows(joint):
        moved, mean = joint
        return joint_rows(dist.MultivariateNormal(mean, scale_tril=tril), moved).rows.ravel()

    jacobian = jax.jit(jax.jacfwd(rows))((np.array([0.3, -1.0]), np.array([1.0, 2.0])))
    factor = np.concatenate(jacobian, axis=1)
    expected = np.block([[precision, -precision], [-precision, precision]])
    np.testing.assert_allclose(factor.T @ factor, expected, atol=1e-12)


def test_wrappers_keep_the_joint_rows():
    def wrapped(joint):
        base = dist.Normal(joint[3], 2.0).expand([3]).mask(jnp.array([True, False, True]))
        return joint_rows(base.to_event(1), joint[:3]).rows.ravel()

    jacobian = np.asarray(jax.jit(jax.jacfwd(wrapped))(np.array([0.1, 0.2, 0.3, 1.0])))
    difference = np.array([[1.0, 0.0, 0.0, -1.0], [0.0, 0.0, 1.0, -1.0]]) / 2.0
    np.testing.assert_allclose(jacobian.T @ jacobian, difference.T @ difference, atol=1e-12)


def test_a_transform_with_arrays_has_no_closed_form():
    scaled = dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(jnp.array(1.0), jnp.array(2.0))
    )
    assert joint_rows(scaled, jnp.array(0.5)) is None


def test_sampled_scores_have_the_joint_information():
    """20,000 draws: the relative error of a second moment of a Beta's score is about 1 percent."""
    concentrations = np.array([2.0, 3.0])
    samples = np.random.default_rng(0).beta(*concentrations, size=20_000)

    def scores(joint, samples):
        beta = dist.Beta(joint[1], joint[2])
        return sampled_scores(beta, jax.nn.sigmoid(joint[0]), samples)

    @jax.jit
    def both(concentrations, samples):
        at = jnp.concatenate([jnp.array([0.4]), concentrations])
        make = lambda p: dist.Beta(p[0], p[1])
        return jax.jacfwd(scores)(at, samples), by_quadrature(make, concentrations)

    jacobian, expected = map(np.asarray, both(concentrations, samples))
    estimate = jacobian.T @ jacobian / len(samples)
    np.testing.assert_allclose(estimate, expected, rtol=0.06)
    # In closed form for the latent itself: a b / (a + b + 1).
    np.testing.assert_allclose(estimate[0, 0], 1.0, rtol=0.04)


def test_entropy_rows_are_the_second_derivative_of_the_negative_entropy():
    tril = np.array([[1.0, 0.0, 0.0], [0.4, 0.5, 0.0], [-0.3, 0.2, 2.0]])
    lower = np.tril_indices(3)

    def posterior(entries):
        matrix = jnp.zeros((3, 3)).at[lower].set(entries)
        return dist.MultivariateNormal(jnp.zeros(3), scale_tril=matrix)

    @jax.jit
    def both(entries):
        rows = jax.jacfwd(lambda e: entropy_rows(posterior(e), jnp.zeros(3)))(entries)
        return rows, jax.hessian(lambda e: -posterior(e).entropy())(entries)

    rows, hessian = map(np.asarray, both(tril[lower]))
    np.testing.assert_allclose(rows.T @ rows, hessian, atol=1e-12)


def test_entropy_rows_of_a_normal_and_of_a_point():
    normal = lambda s: dist.TransformedDistribution(
        dist.Normal(1.0, s), dist.transforms.ExpTransform()
    )
    differentiate = jax.jit(jax.jacfwd(lambda s: entropy_rows(normal(s), jnp.ones(2))))
    rows = np.asarray(differentiate(np.array([0.5, 2.0])))
    np.testing.assert_allclose(rows.T @ rows, np.diag([4.0, 0.25]), atol=1e-12)
    assert entropy_rows(dist.Delta(jnp.ones(2)), jnp.ones(2)) is None


def test_what_elements_share_counts_in_each_and_masked_ones_hold_nothing():
    """-H = -n log s: n over s^2."""
    kept = np.array([True, True, False])
    shared = {
        5: lambda s: dist.Normal(0.0, s).expand([5]),
        6: lambda s: dist.Normal(jnp.zeros((2, 3)), s).to_event(1),
        3: lambda s: dist.MultivariateNormal(jnp.zeros((3, 1)), scale_tril=jnp.diag(s[None])),
        2: lambda s: dist.Normal(0.0, s).expand([3]).mask(kept),
        4: lambda s: dist.Normal(0.0, s).expand([3, 2]).to_event(1).mask(kept),
    }

    @jax.jit
    def curvatures(s):
        rows = lambda make: lambda s: entropy_rows(make(s), jnp.zeros(make(s).shape()))
        return {n: jnp.sum(jax.jacfwd(rows(make))(s) ** 2) for n, make in shared.items()}

    for count, curvature in curvatures(0.5).items():
        np.testing.assert_allclose(curvature, 4.0 * count, rtol=1e-12)


WRAPPED = {
    "expanded inside": lambda d, a, b: d.expand([2, 3]).mask(a),
    "expanded outside": lambda d, a, b: dist.ExpandedDistribution(d.mask(a), (2, 3)),
    "rows": lambda d, a, b: d.expand([2, 3]).to_event(1).mask(b),
    "inside an event": lambda d, a, b: d.expand([2, 3]).mask(a).to_event(1),
    "nested": lambda d, a, b: d.mask(a).expand([2, 3]).mask(b[:, None]),
    "nested about an event": lambda d, a, b: d.expand([2, 3]).mask(a).to_event(1).mask(b),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_masks_hide_what_numpyro_hides(name):
    """The scale's information is 2 for each value that is left, times the mean of the misfit."""
    columns, lines = np.array([True, False, True]), np.array([False, True])
    make = lambda s: WRAPPED[name](dist.Normal(0.0, s), columns, lines)
    kept = np.asarray(make(1.0).log_prob(np.full((2, 3), 4.0)) != 0.0)
    if kept.ndim == 1:
        inner = columns if "event" in name else np.ones(3, bool)
        kept = kept[:, None] & inner
    values = np.where(kept, 1.0, np.nan)

    @jax.jit
    def both(s):
        def observed(s):
            return scaled_by_misfit(whitened(make(s), make(s)), make(s), values).rows

        square = lambda rows: jnp.sum(jax.jacfwd(rows)(s) ** 2)
        return square(observed), square(lambda s: joint_rows(make(s), jnp.ones((2, 3))).rows)

    np.testing.assert_allclose(both(1.0), 2.0 * kept.sum(), rtol=1e-12)


def test_a_folded_distribution_has_no_joint_closed_form():
    folded = dist.FoldedDistribution(dist.Normal(0.3, 1.0))
    assert joint_rows(folded, jnp.ones(())) is None


def information_with_misfit(values):
    """About the log of a Normal's scale, at a scale of one."""

    def rows(log_scale):
        site = dist.Normal(0.0, jnp.exp(log_scale)).expand([len(values)])
        return scaled_by_misfit(whitened(site, site), site, values).rows.ravel()

    return jnp.sum(jax.jacfwd(rows)(0.0) ** 2)


@pytest.mark.parametrize("size", [0.01, 0.3, 1.0, 4.0, 300.0])
def test_one_step_leads_to_the_scale_of_the_data(size):
    """In the log of the scale, from any misfit; the gradient is autodiff's."""
    data = size * np.array([1.1, -0.9, 1.3])

    @jax.jit
    def moved(values):
        loss = lambda log_scale: -dist.Normal(0.0, jnp.exp(log_scale)).log_prob(values).sum()
        return -jax.grad(loss)(0.0) / information_with_misfit(values)

    np.testing.assert_allclose(moved(data), np.log(np.sqrt(np.mean(data**2))), rtol=1e-10)


def test_where_the_data_fit_the_misfit_changes_nothing():
    data = np.array([1.0, -1.0, 1.0])
    information = jax.jit(information_with_misfit)
    np.testing.assert_allclose(information(data), 2.0 * 3, rtol=1e-12)
    # Continuous where the mean changes its form, and never nothing.
    np.testing.assert_allclose(*map(information, (1.00498 * data, 1.00500 * data)), rtol=1e-4)
    assert 0.0 < information(0.0 * data) < 1.0


@pytest.mark.parametrize("hidden", [0.0, -1e5, np.nan])
def test_masked_values_are_no_misfit(hidden):
    values = np.array([2.0, -3.0, hidden])
    known = np.array([True, True, False])

    @jax.jit
    def rows(log_scale):
        site = dist.Normal(0.0, jnp.exp(log_scale)).expand([3]).mask(known)
        return scaled_by_misfit(whitened(site, site), site, values).rows.ravel()

    found = np.asarray(jax.jit(jax.jacfwd(rows))(0.0))
    np.testing.assert_allclose((found**2).sum(), information_with_misfit(values[:2]), rtol=1e-12)


def test_a_misfit_leaves_the_location_alone():
    def rows(location):
        site = dist.Normal(location, 2.0)
        return scaled_by_misfit(whitened(site, site), site, jnp.array(50.0)).rows.ravel()

    np.testing.assert_allclose(np.square(jax.jit(jax.jacfwd(rows))(0.0)).sum(), 0.25)
