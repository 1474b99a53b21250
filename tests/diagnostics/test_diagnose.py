"""The diagnosis against closed forms: the toy Gaussian, known tails, a known evidence."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import TraceEnum_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from numpyro.infer.svi import SVIRunResult, SVIState
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal, norm

from problems_for_tests import random_problem
from vpng import ELBO, FisherOperator, InputError, Parameters, Predictive, diagnose
from vpng.diagnostics import spectrum
from vpng.diagnostics.importance import k_hat, log_weight
from vpng.diagnostics.landscape import plane
from vpng.numpyro import SVI
from vpng.problems import GaussianMean

COVARIANCE = np.array([[1.0, 0.99], [0.99, 1.0]])
SCALE = 1e-7
NUM_DATA = 20
HERE = np.array([0.5, -1.0])
KEY = jax.random.key(0)


def toy_data():
    return np.random.default_rng(0).multivariate_normal([3.0, 1.0], COVARIANCE, size=NUM_DATA)


def toy_model(data):
    mean = numpyro.sample("mean", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("data", len(data)):
        numpyro.sample("x", dist.MultivariateNormal(mean, jnp.asarray(COVARIANCE)), obs=data)


def toy_guide(data):
    location = numpyro.param("location", jnp.zeros(2))
    numpyro.sample("mean", dist.Normal(location, SCALE).to_event(1))


@pytest.fixture(scope="module")
def toy():
    """So narrow an approximation that the gradient has no noise to speak of."""
    with jax.enable_x64(True):
        problem = GaussianMean.create(COVARIANCE, NUM_DATA, scale=SCALE)
        data = jnp.asarray(toy_data())
        found = diagnose(KEY, problem, Parameters(jnp.asarray(HERE)), data, num_particles=50)
        yield problem, data, found


def angle(a, b):
    return np.degrees(np.arccos(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))


def test_the_toys_spectrum_and_angles_are_the_closed_forms(toy):
    """F = Sigma^-1, gradient Sigma^-1 (mean x - lambda) - lambda / n, F_q a multiple of I."""
    _, data, found = toy
    precision = np.linalg.inv(COVARIANCE)
    values = np.linalg.eigvalsh(precision)[::-1]
    np.testing.assert_allclose(found.spectrum.eigenvalues, values, rtol=1e-8)
    rank = values.sum() ** 2 / np.sum(values**2)
    np.testing.assert_allclose(found.spectrum.effective_rank, rank, rtol=1e-8)
    np.testing.assert_allclose(found.damping, 1e-6 * values[0], rtol=1e-8)
    np.testing.assert_allclose(
        found.condition, (values + found.damping)[0] / (values + found.damping)[1], rtol=1e-8
    )
    gradient = precision @ (np.mean(data, axis=0) - HERE) - HERE / NUM_DATA
    step = np.linalg.solve(precision + found.damping * np.eye(2), gradient)
    np.testing.assert_allclose(found.gradient.vector, gradient, rtol=1e-4)
    np.testing.assert_allclose(found.vpng.vector, step, rtol=1e-4)
    np.testing.assert_allclose(found.gradient.angle(found.vpng), angle(gradient, step), atol=1e-2)
    assert found.gradient.angle(found.natural_gradient) < 1e-3
    gain = 0.5 * NUM_DATA * gradient @ step
    np.testing.assert_allclose(found.promised_gain, gain, rtol=1e-4)


def test_the_toys_elbo_and_landscape_are_the_closed_form(toy):
    problem, data, found = toy
    np.testing.assert_allclose(found.elbo, problem.elbo(HERE, data), rtol=1e-5)
    assert found.elbo_standard_error < 1e-2
    axes = plane(found.gradient.vector, found.vpng.vector)
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-9)
    across, along = np.linspace(-1, 1, 3), np.linspace(0, 1, 2)
    with jax.enable_x64(True):
        heights = found.landscape.heights(axes, across, along)
    for i, y in enumerate(along):
        for j, x in enumerate(across):
            wanted = problem.elbo(HERE + x * axes[0] + y * axes[1], data)
            np.testing.assert_allclose(heights[i, j], wanted, rtol=1e-5)


def test_a_diagnosis_is_a_table_and_a_figure(toy, tmp_path):
    *_, found = toy
    text = str(found)
    for words in ("ELBO", "k-hat", "effective rank", "gradient to VPNG", "solved, residual"):
        assert words in text
    assert f"{found.spectrum.effective_rank:.2f} of 2" in text
    with jax.enable_x64(True):
        figure = found.plot(tmp_path / "diagnosis.png")
    assert len(figure.axes) == 2
    assert (tmp_path / "diagnosis.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["diagnosis.png"]


def test_a_numpyro_model_is_diagnosed_like_the_same_problem_by_hand(toy):
    *_, wanted = toy
    data = jnp.asarray(toy_data())
    params = {"location": jnp.asarray(HERE)}
    result = SVIRunResult(params, SVIState(None, None, KEY), jnp.zeros(1))
    with jax.enable_x64(True):
        found = diagnose(
            KEY,
            toy_model,
            toy_guide,
            data,
            params=result,
            metric=Predictive(),
            num_particles=50,
        )
    np.testing.assert_allclose(found.spectrum.eigenvalues, wanted.spectrum.eigenvalues, rtol=1e-6)
    np.testing.assert_allclose(found.vpng.vector, wanted.vpng.vector, rtol=1e-4)
    np.testing.assert_allclose(found.elbo, wanted.elbo, atol=1.0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("narrowing", [0.9, 0.1])
def test_k_hat_of_a_gaussian_that_is_too_narrow(narrowing):
    """In two dimensions, q of variance s^2 times the posterior's: P(w > t) = t^(-1 / (1 - s^2)).

    The squared radius over 2 s^2 is exponential, so the tail is exactly Pareto with k = 1 - s^2.
    With 4,000 draws the tail has 190, k-hat a standard error of (1 + k) / sqrt(190) < 0.14 and,
    from its prior at 0.5, a bias of at most 0.02: 0.45 is three of them.
    """
    variance = narrowing / (NUM_DATA + 1)
    problem = GaussianMean.create(np.eye(2), NUM_DATA, scale=variance**0.5)
    data = jnp.asarray(toy_data())
    params = Parameters(problem.optimum(data))
    found = k_hat(KEY, problem, params, data, num_particles=4000)
    np.testing.assert_allclose(found, 1.0 - narrowing, atol=0.45)


@pytest.mark.usefixtures("x64")
def test_the_weights_of_the_exact_posterior_are_the_evidence():
    """x is jointly normal: the log-evidence is one density, whatever z was drawn."""
    data = jnp.asarray(toy_data())
    precision = NUM_DATA * np.linalg.inv(COVARIANCE) + np.eye(2)
    guide = AutoMultivariateNormal(toy_model)
    location = np.linalg.solve(precision, np.linalg.solve(COVARIANCE, np.sum(data, axis=0)))
    params = {
        "auto_loc": location,
        "auto_scale_tril": np.linalg.cholesky(np.linalg.inv(precision)),
    }
    svi = SVI(toy_model, guide)
    state = jax.jit(lambda params: svi.init(KEY, data, init_params=params))(params)
    call = svi.problem.call(KEY, (data,), {}, None)
    weigh = jax.jit(lambda key: log_weight(svi.problem, state.optim_state.accepted, key, call))
    joint = np.kron(np.ones((NUM_DATA, NUM_DATA)), np.eye(2)) + np.kron(
        np.eye(NUM_DATA), COVARIANCE
    )
    evidence = multivariate_normal(cov=joint).logpdf(np.ravel(data))
    weights = [weigh(jax.random.key(i)) for i in range(3)]
    np.testing.assert_allclose(weights, evidence, rtol=1e-9)


@pytest.mark.parametrize("kind", ["local", "global"])
def test_the_mean_log_weight_is_the_elbo(kind):
    """A batch of 3 of 7 data; both are means of 4,000 draws, compared within four errors."""
    problem, params, batch = random_problem(kind, "bernoulli", 3, num_data=3, num_total=7)

    @jax.jit
    def both(key):
        keys = jax.random.split(key, 4000)
        weights = jax.vmap(lambda k: log_weight(problem, params, k, batch))(keys)
        return weights, ELBO(4000).estimate(key, problem, params, batch)

    weights, estimate = jax.tree.map(np.asarray, both(KEY))
    wanted, error = 7 * estimate.elbo, 7 * estimate.standard_error
    error = np.hypot(error, np.std(weights) / np.sqrt(4000))
    assert abs(np.mean(weights) - wanted) < 4 * error


@pytest.mark.usefixtures("x64")
def test_every_way_to_the_spectrum_gives_the_same_one(monkeypatch):
    """30 rows, 40 parameters, singular values known; traces within four errors of their probes."""
    generator = np.random.default_rng(1)
    left, _ = np.linalg.qr(generator.normal(size=(30, 30)))
    right, _ = np.linalg.qr(generator.normal(size=(40, 30)))
    singular = 2.0 ** -np.arange(30.0)
    rows = left * singular @ right.T
    point = jnp.zeros(40)
    of = lambda: spectrum.spectrum_of(lambda p: FisherOperator(p, lambda p: rows @ p), point)

    short, rows = rows, np.concatenate([rows, np.zeros((10, 40))])
    dense = of()
    np.testing.assert_allclose(dense.eigenvalues, [*singular**2, *[0.0] * 10], atol=1e-12)
    rows = short
    dual = of()
    np.testing.assert_allclose(dual.eigenvalues, dense.eigenvalues, atol=1e-12)
    monkeypatch.setattr(spectrum, "NUM_PRODUCTS", 1)
    monkeypatch.setattr(spectrum, "NUM_LEADING", 4)
    leading = of()
    np.testing.assert_allclose(leading.eigenvalues, singular[:4] ** 2, rtol=1e-2)
    assert dense.complete
    assert dual.complete
    assert not leading.complete
    assert leading.smallest == 0.0
    gram = rows.T @ rows
    for estimate, exact, matrix in (
        (leading.trace, dense.trace, gram),
        (leading.trace_of_square, dense.trace_of_square, gram @ gram),
    ):
        variance = 2 * (np.sum(matrix**2) - np.sum(np.diag(matrix) ** 2))
        assert abs(estimate - exact) < 4 * np.sqrt(variance / spectrum.NUM_PROBES)


def test_a_model_without_observed_sites():
    """N(0, 1) times a factor about 3: at N(0, 1) the ELBO is E[-(x - 3)^2 / 2] = -5."""

    def model():
        numpyro.factor("near", -0.5 * (numpyro.sample("x", dist.Normal()) - 3.0) ** 2)

    guide = lambda: numpyro.sample("x", dist.Normal(numpyro.param("at", jnp.zeros(())), 1.0))
    found = diagnose(KEY, model, guide, num_particles=100)
    np.testing.assert_allclose(found.elbo, -5.0, atol=4 * found.elbo_standard_error)
    # One of the prior, and one of the factor.
    np.testing.assert_allclose(found.spectrum.eigenvalues, [2.0], rtol=1e-5)


def test_a_model_without_latents():
    """The mean of Normals alone: F = 1 per datum."""

    def model(data):
        with numpyro.plate("data", len(data)):
            numpyro.sample("x", dist.Normal(numpyro.param("at", 0.0), 1.0), obs=data)

    data = np.array([1.0, 3.0], np.float32)
    found = diagnose(
        KEY, model, lambda data: None, data, num_particles=50, metric=Predictive(num_particles=1)
    )
    np.testing.assert_allclose(found.elbo, -5.0 - np.log(2 * np.pi), rtol=1e-5)
    np.testing.assert_allclose(found.spectrum.largest, 1.0, rtol=1e-5)
    np.testing.assert_allclose(found.vpng.vector, 2.0, rtol=1e-4)
    empty = spectrum.Spectrum(np.zeros(0), 0, 0.0, 0.0)
    assert (empty.largest, empty.smallest, empty.condition(1.0)) == (0.0, 0.0, 1.0)


COMPONENTS = np.array([-3.0, 0.5, 4.0])
POINTS = np.add.outer(COMPONENTS, [-0.6, -0.1, 0.2, 0.7]).ravel()


def mixture(points):
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        centres = numpyro.sample("centres", dist.Normal(0, 5))
    with numpyro.plate("data", len(points)):
        chosen = numpyro.sample("c", dist.Categorical(shares), infer={"enumerate": "parallel"})
        numpyro.sample("x", dist.Normal(centres[chosen], 0.5), obs=points)


def sticks(raw):
    """Shares from unconstrained values [n, 2], and the log-determinant of the map."""
    parts = expit(raw - np.log([2.0, 1.0]))
    left = np.stack([np.ones(len(raw)), 1 - parts[:, 0]], 1)
    shares = np.stack([parts[:, 0], left[:, 1] * parts[:, 1], np.prod(1 - parts, axis=1)], 1)
    return shares, np.sum(np.log(left * parts * (1 - parts)), axis=1)


def test_an_enumerated_mixture_is_diagnosed_with_its_loss():
    """The sum over assignments by hand, at draws of our own: within four standard errors."""
    guide = AutoNormal(handlers.block(mixture, hide=["c"]))
    params = {
        "centres_auto_loc": COMPONENTS + np.array([0.1, -0.1, 0.2]),
        "centres_auto_scale": np.array([0.3, 0.2, 0.4]),
        "shares_auto_loc": np.array([0.2, -0.3]),
        "shares_auto_scale": np.array([0.5, 0.3]),
    }
    given = {name: jnp.asarray(value, float) for name, value in params.items()}
    points, loss = jnp.asarray(POINTS, float), TraceEnum_ELBO()
    found = diagnose(
        KEY, mixture, guide, points, params=given, loss=loss, num_particles=2000, damping=0.1
    )

    count = 4000
    noise = np.random.default_rng(0).normal(size=(count, 5))
    centres = params["centres_auto_loc"] + params["centres_auto_scale"] * noise[:, :3]
    raw = params["shares_auto_loc"] + params["shares_auto_scale"] * noise[:, 3:]
    shares, log_determinant = sticks(raw)
    # [draw, point, component]
    joint = norm.logpdf(POINTS[:, None], centres[:, None], 0.5) + np.log(shares)[:, None]
    prior = np.log(2.0) + log_determinant + norm.logpdf(centres, 0, 5).sum(axis=1)
    scales = np.concatenate([params["centres_auto_scale"], params["shares_auto_scale"]])
    log_q = norm.logpdf(noise).sum(axis=1) - np.log(scales).sum()
    elbos = logsumexp(joint, axis=2).sum(axis=1) + prior - log_q
    error = np.hypot(found.elbo_standard_error, elbos.std() / count**0.5)
    np.testing.assert_allclose(found.elbo, elbos.mean(), atol=4 * error)
    np.testing.assert_allclose(found.elbo_standard_error, elbos.std() / 2000**0.5, rtol=0.2)

    # Through the centres the reparameterised gradient is that of the log-joint.
    responsibilities = np.exp(joint - logsumexp(joint, axis=2, keepdims=True))
    pulls = responsibilities * (POINTS[:, None] - centres[:, None]) / 0.25
    slopes = (pulls.sum(axis=1) - centres / 25) / len(POINTS)
    errors = slopes.std(axis=0) * (1 / 2000 + 1 / count) ** 0.5
    assert np.all(np.abs(found.gradient.vector[:3] - slopes.mean(axis=0)) < 4 * errors)

    here = found.landscape.heights(np.eye(2, 10), np.zeros(1), np.zeros(1))
    np.testing.assert_allclose(here, found.elbo, atol=4 * elbos.std() / 100**0.5)
    assert np.isnan(found.k_hat)
    assert np.all(np.isfinite(found.vpng.vector))
    assert "no importance weights" in str(found)


def test_a_score_function_model_is_diagnosed_with_its_loss():
    """One switch: the ELBO and its gradient in the logit are sums over two values."""

    def model(value):
        on = numpyro.sample("on", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(4.0 * on, 1.0), obs=value)

    def guide(value):
        numpyro.sample("on", dist.Bernoulli(logits=numpyro.param("logit", 0.3)))

    value, count = 1.7, 2000
    # The number of particles that it has by itself does not matter.
    loss = TraceGraph_ELBO(num_particles=3)
    found = diagnose(KEY, model, guide, value, loss=loss, num_particles=count)
    q = np.array([expit(-0.3), expit(0.3)])
    terms = np.log(0.5) + norm.logpdf(value, [0.0, 4.0], 1.0) - np.log(q)
    np.testing.assert_allclose(found.elbo, q @ terms, atol=4 * found.elbo_standard_error)
    scores = np.array([-q[1], q[0]])
    error = np.sqrt(q @ (scores * terms) ** 2 / count)
    np.testing.assert_allclose(found.gradient.vector, [q @ (scores * terms)], atol=4 * error)


def test_a_plane_needs_no_second_direction():
    axes = plane(np.array([2.0, 0.0, 0.0]), np.array([3.0, 0.0, 0.0]))
    np.testing.assert_allclose(axes @ axes.T, np.eye(2))
    assert np.isfinite(plane(np.ones(1), np.ones(1))).all()


BAD = {
    "no guide": (lambda: diagnose(KEY, toy_model, None), "model, guide", "NoneType"),
    "few particles": (
        lambda: diagnose(KEY, toy_model, toy_guide, toy_data(), num_particles=3),
        "num_particles",
        "3",
    ),
    "metric": (
        lambda: diagnose(KEY, toy_model, toy_guide, toy_data(), metric="fisher"),
        "metric",
        "str",
    ),
    "damping": (
        lambda: diagnose(KEY, toy_model, toy_guide, toy_data(), damping=-1.0),
        "damping",
        "-1.0",
    ),
    "loss": (
        lambda: diagnose(KEY, toy_model, toy_guide, toy_data(), loss="elbo"),
        "loss.*TraceEnum_ELBO",
        "str",
    ),
    "a problem with a loss": (
        lambda: diagnose(
            KEY,
            GaussianMean.create(np.eye(2), 3),
            Parameters(jnp.zeros(2)),
            1,
            loss=TraceEnum_ELBO(),
        ),
        "batch",
        "loss",
    ),
    "foreign params": (
        lambda: diagnose(KEY, toy_model, toy_guide, toy_data(), params={"weight": jnp.ones(2)}),
        r"params.*\['location'\]",
        "weight",
    ),
    "params in a list": (
        lambda: diagnose(KEY, toy_model, toy_guide, toy_data(), params=[1.0]),
        "params",
        "list",
    ),
    "a problem without data": (
        lambda: diagnose(KEY, GaussianMean.create(np.eye(2), 3), Parameters(jnp.zeros(2))),
        "batch",
        "0 arguments",
    ),
    "a problem with params twice": (
        lambda: diagnose(
            KEY, GaussianMean.create(np.eye(2), 3), Parameters(jnp.zeros(2)), 1, params={}
        ),
        "batch",
        "params",
    ),
    "a problem with plain params": (
        lambda: diagnose(KEY, GaussianMean.create(np.eye(2), 3), jnp.zeros(2), np.ones((3, 2))),
        "params",
        "Parameters",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=list(BAD))
def test_bad_input(case):
    call, name, got = BAD[case]
    with pytest.raises(InputError, match=f"(?s){name}.*{got}"):
        call()
