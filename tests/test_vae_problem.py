"""The variational autoencoder against hand-written forms, for every likelihood and adapter."""

from functools import cache
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from jax.flatten_util import ravel_pytree
from scipy import stats
from scipy.linalg import block_diag

from vpng.errors import InputError
from vpng.fisher import Exact, Predictive
from vpng.objective import ELBO
from vpng.problem import Parameters, check_problem
from vpng.problems.adapters import from_equinox, from_linen, from_nnx
from vpng.problems.autoencoder import (
    VariationalAutoencoder,
    decode,
    mlp_vae,
    paper_vae,
    reconstruct,
    sample_prior,
    vae,
)
from vpng.problems.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    NormalLikelihood,
    PoissonLikelihood,
)
from vpng.problems.networks import (
    GLOROT,
    TRUNCATED_NORMAL,
    AffineLayer,
    Network,
    mlp,
    mlp_apply,
    mlp_init,
)

KEY = jax.random.key(0)
NUM_DATA, WIDTH, LATENT = 6, 5, 2


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw_data(likelihood):
    uniform = np.random.default_rng(1).random((NUM_DATA, WIDTH))
    match likelihood:
        case BernoulliLikelihood(fractions=True) | NormalLikelihood():
            return uniform
        case BernoulliLikelihood():
            return np.round(uniform)
        case _:
            return np.floor(3 * uniform)


def log_bernoulli(outputs, x):
    p = 1 / (1 + np.exp(-outputs))
    return x * np.log(p) + (1 - x) * np.log1p(-p)


def log_categorical(outputs, x):
    logits = outputs.reshape(*x.shape, 3)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(log_p, x.astype(int)[..., None], -1)[..., 0]


def sigmoid(outputs):
    return 1 / (1 + np.exp(-outputs))


def categorical_information(outputs):
    exp = np.exp(outputs.reshape(WIDTH, 3))
    p = exp / exp.sum(-1, keepdims=True)
    return block_diag(*[np.diag(row) - np.outer(row, row) for row in p])


LIKELIHOODS = {
    "bernoulli": (
        BernoulliLikelihood(),
        log_bernoulli,
        lambda out: np.diag(sigmoid(out) * sigmoid(-out)),
    ),
    "fractions": (
        BernoulliLikelihood(fractions=True),
        log_bernoulli,
        lambda out: np.diag(sigmoid(out) * sigmoid(-out)),
    ),
    "normal": (
        NormalLikelihood(0.3),
        lambda out, x: stats.norm.logpdf(x, out, 0.3),
        lambda out: np.eye(WIDTH) / 0.3**2,
    ),
    "learned normal": (
        NormalLikelihood(None),
        lambda out, x: stats.norm.logpdf(x, out[..., :WIDTH], np.exp(out[..., WIDTH:])),
        lambda out: np.diag(np.concatenate([np.exp(-2 * out[WIDTH:]), np.full(WIDTH, 2.0)])),
    ),
    "poisson": (
        PoissonLikelihood(),
        lambda out, x: stats.poisson.logpmf(x, np.log1p(np.exp(out))),
        lambda out: np.diag(sigmoid(out) ** 2 / np.log1p(np.exp(out))),
    ),
    "categorical": (CategoricalLikelihood(3), log_categorical, categorical_information),
}
"""Each with its log-density and its Fisher information of one datum's outputs, by hand."""


@cache
def setup_of(name):
    likelihood, log_density, _ = LIKELIHOODS[name]
    setup = mlp_vae(
        KEY, draw_data(likelihood), latent_dim=LATENT, hidden=(4, 3), likelihood=likelihood
    )
    return setup, log_density


@pytest.fixture(params=LIKELIHOODS)
def case(request):
    return setup_of(request.param)


estimate = jax.jit(lambda setup: ELBO(num_particles=3).estimate(KEY, *setup))
estimate_and_gradient = jax.jit(lambda setup: ELBO(3).estimate_and_gradient(KEY, *setup))


def numpy_mlp(layers, inputs):
    *hidden, last = [(np.asarray(layer.kernel), np.asarray(layer.bias)) for layer in layers]
    for kernel, bias in hidden:
        inputs = np.maximum(inputs @ kernel + bias, 0)
    return inputs @ last[0] + last[1]


def test_elbo_is_the_hand_written_one(case):
    setup, log_density = case
    problem, parameters, data = setup
    drawn = estimate(setup)
    keys = jax.random.split(KEY, 3)
    noise = np.stack([problem.noise(key, data) for key in keys])

    encoded = numpy_mlp(parameters.variational, np.asarray(problem.observation.features(data)))
    loc, log_scale = np.split(encoded, 2, axis=1)
    outputs = numpy_mlp(parameters.model, loc + np.exp(log_scale) * noise)
    x = np.asarray(data)
    reconstruction = np.stack([log_density(out, x).sum() for out in outputs])
    kl = 0.5 * (np.exp(2 * log_scale) + loc**2 - 1 - 2 * log_scale).sum()
    losses = (kl - reconstruction) / NUM_DATA
    np.testing.assert_allclose(drawn.loss, losses.mean(), rtol=1e-12)
    np.testing.assert_allclose(drawn.standard_error, losses.std(ddof=1) / 3**0.5, rtol=1e-9)


def test_gradient_by_finite_differences(case):
    """Along ten random directions, away from the kinks that biases of exactly zero sit on."""
    setup, _ = case
    generator = np.random.default_rng(0)
    normal = lambda: jax.tree.map(lambda leaf: generator.normal(size=leaf.shape), setup.parameters)
    moved = lambda point, step, by: jax.tree.map(lambda p, d: p + step * d, point, by)
    loss = lambda point: float(estimate(setup._replace(parameters=point)).loss)
    here = moved(jax.tree.map(np.asarray, setup.parameters), 0.1, normal())
    _, gradient = estimate_and_gradient(setup._replace(parameters=here))
    step = 1e-6
    for _ in range(10):
        direction = normal()
        slope = sum(map(np.vdot, jax.tree.leaves(gradient), jax.tree.leaves(direction)))
        rise = loss(moved(here, step, direction)) - loss(moved(here, -step, direction))
        np.testing.assert_allclose(slope, rise / (2 * step), atol=1e-7, rtol=1e-6)


def test_check_problem_passes(case):
    check_problem(*case[0])


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_exact_fisher(name):
    """F = J^T I J averaged over data, I by hand and J by forward differentiation of the outputs."""
    problem, parameters, data = setup_of(name)[0]
    information = LIKELIHOODS[name][2]
    metric = Predictive(Exact(), num_particles=1)

    noise = problem.noise(jax.random.split(jax.random.split(KEY)[0], 1)[0], data)

    @jax.jit
    def fisher_and_jacobians(parameters):
        flat, unravel = ravel_pytree(parameters)

        def outputs(flat):
            encoder, decoder = unravel(flat)
            features = problem.observation.features(data)
            loc, log_scale = jnp.split(mlp_apply(encoder, features), 2, axis=1)
            return mlp_apply(decoder, loc + jnp.exp(log_scale) * noise)

        matrix = metric.operator(problem, parameters, data, KEY).to_dense()
        return matrix, jax.jacfwd(outputs)(flat), outputs(flat)

    matrix, jacobians, at = map(np.asarray, fisher_and_jacobians(parameters))
    wanted = sum(j.T @ information(out) @ j for j, out in zip(jacobians, at, strict=True))
    np.testing.assert_allclose(matrix, wanted / NUM_DATA, rtol=1e-9, atol=1e-13)


def test_kl_is_analytic(case):
    (problem, parameters, data), _ = case

    @jax.jit
    def kl_and_encoded(z):
        return problem.kl(parameters, z, data), problem.encode(parameters.variational, data)

    z = np.ones((NUM_DATA, LATENT))
    kl, encoded = kl_and_encoded(z)
    np.testing.assert_array_equal(kl, kl_and_encoded(-3 * z)[0])
    loc, log_scale = map(np.asarray, encoded)
    by_hand = 0.5 * (np.exp(2 * log_scale) + loc**2 - 1 - 2 * log_scale).sum(axis=1)
    np.testing.assert_allclose(kl, by_hand, rtol=1e-12)


def test_latent_and_kl_is_both(case):
    (problem, parameters, data), _ = case

    noise = problem.noise(KEY, data)

    @jax.jit
    def both(parameters):
        latent = problem.latent(parameters.variational, noise, data)
        apart = latent, problem.kl(parameters, latent, data)
        return problem.latent_and_kl(parameters, noise, data), apart

    together, apart = both(parameters)
    np.testing.assert_allclose(together[0], apart[0])
    np.testing.assert_allclose(together[1], apart[1])


def test_helpers(case):
    (problem, parameters, data), _ = case
    shape = (WIDTH, 3) if isinstance(problem.observation, CategoricalLikelihood) else (WIDTH,)
    rebuilt = reconstruct(problem, parameters, data)
    assert rebuilt.shape == (NUM_DATA, *shape)
    loc, _ = problem.encode(parameters.variational, data)
    np.testing.assert_array_equal(rebuilt, decode(problem, parameters.model, loc))
    drawn = sample_prior(KEY, problem, parameters.model, 7)
    assert drawn.shape == (7, WIDTH)
    if not isinstance(problem.observation, NormalLikelihood):
        problem.observation.check("drawn", drawn)
    if shape == (WIDTH, 3):
        np.testing.assert_allclose(rebuilt.sum(axis=-1), 1.0)


def test_images_keep_their_shape():
    images = np.round(np.random.default_rng(0).random((4, 3, 2)))
    whole = mlp_vae(KEY, images, latent_dim=LATENT, hidden=(4,))
    flat = mlp_vae(KEY, images.reshape(4, 6), latent_dim=LATENT, hidden=(4,))
    np.testing.assert_allclose(estimate(whole).loss, estimate(flat).loss)
    assert jax.eval_shape(reconstruct, *whole).shape == (4, 3, 2)


def test_integer_data_are_as_good_as_floating_ones():
    whole = draw_data(PoissonLikelihood()).astype(np.int32)
    for likelihood in (PoissonLikelihood(), CategoricalLikelihood(3)):
        setup = mlp_vae(KEY, whole, latent_dim=LATENT, hidden=(4, 3), likelihood=likelihood)
        losses = [float(estimate(setup._replace(data=batch)).loss) for batch in (setup.data, whole)]
        assert losses[0] == losses[1]


def test_shared_learned_scale():
    """A decoder may give one log-scale for everything."""
    network = mlp(KEY, (LATENT, WIDTH))
    decoder = Network((network.parameters, jnp.log(0.5)), lambda p, z: (mlp_apply(p[0], z), p[1]))
    encoder = mlp(KEY, (WIDTH, 2 * LATENT))
    x = draw_data(NormalLikelihood())
    learned = vae(encoder, decoder, x, likelihood=NormalLikelihood(None))
    fixed = vae(encoder, network, x, likelihood=NormalLikelihood(0.5))
    np.testing.assert_allclose(estimate(learned).loss, estimate(fixed).loss)


@jax.jit
@jax.value_and_grad
def log_poisson_of_two(output):
    likelihood = PoissonLikelihood().distribution(output[None, None], (1,))
    return likelihood.log_prob(jnp.full((1, 1), 2, output.dtype))[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("output", [-1000.0, -150.0, -80.0, 0.0, 80.0, 1000.0])
def test_poisson_is_finite_everywhere(dtype, output):
    value, slope = log_poisson_of_two(dtype(output))
    assert np.isfinite(value)
    assert np.isfinite(slope)
    if output == -80.0:
        np.testing.assert_allclose(slope, 2.0, rtol=1e-5)


class Halves(eqx.Module):
    loc: eqx.nn.Linear
    log_scale: eqx.nn.Linear
    steps: jax.Array

    def __call__(self, x):
        return self.loc(x), self.log_scale(x)


class NnxMlp(nnx.Module):
    def __init__(self, inputs, outputs, rngs):
        self.hidden = nnx.Linear(inputs, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)
        self.out = nnx.Linear(4, outputs, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.hidden(x))))


class LinenMlp(linen.Module):
    outputs: int

    @linen.compact
    def __call__(self, x):
        hidden = linen.BatchNorm(use_running_average=True)(linen.Dense(4)(x))
        return linen.Dense(self.outputs)(linen.relu(hidden))


@cache
def networks(kind):
    keys = jax.random.split(KEY, 3)
    match kind:
        case "equinox":
            linear = eqx.nn.Linear(WIDTH, LATENT, key=keys[0])
            halves = Halves(linear, eqx.nn.Linear(WIDTH, LATENT, key=keys[1]), jnp.arange(3))
            decoder = eqx.nn.MLP(LATENT, WIDTH, 4, 1, key=keys[2])
            return from_equinox(halves), from_equinox(decoder)
        case "nnx":
            rngs = nnx.Rngs(0)
            return from_nnx(NnxMlp(WIDTH, 2 * LATENT, rngs)), from_nnx(NnxMlp(LATENT, WIDTH, rngs))
        case "linen":
            encoder, decoder = LinenMlp(2 * LATENT), LinenMlp(WIDTH)
            return (
                from_linen(encoder, jax.jit(encoder.init)(keys[0], np.ones((1, WIDTH)))),
                from_linen(decoder, jax.jit(decoder.init)(keys[1], np.ones((1, LATENT)))),
            )


@pytest.mark.parametrize("kind", ["equinox", "nnx", "linen"])
def test_adapters(kind):
    encoder, decoder = networks(kind)
    setup = vae(encoder, decoder, draw_data(BernoulliLikelihood()))
    problem, parameters, _ = setup
    check_problem(*setup)
    assert problem.latent_dim == LATENT
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(parameters))

    _, gradient = estimate_and_gradient(setup)
    assert jax.tree.structure(gradient) == jax.tree.structure(parameters)
    moved = jax.tree.map(lambda p, g: np.asarray(p) - 0.01 * np.asarray(g), parameters, gradient)
    metric = Predictive(Exact(), num_particles=1)
    matrix = jax.jit(lambda s: metric.operator(*s, KEY).to_dense())(setup)
    assert float(estimate(setup._replace(parameters=moved)).loss) < float(estimate(setup).loss)
    assert np.isfinite(matrix).all()
    assert np.linalg.eigvalsh(matrix).min() > -1e-6


@pytest.mark.parametrize("kind", ["equinox", "nnx", "linen"])
def test_adapters_agree_with_the_module(kind):
    z = np.random.default_rng(0).normal(size=(3, LATENT))
    _, decoder = networks(kind)
    leaves = jax.tree.leaves(decoder.parameters)
    assert len(leaves) == {"equinox": 4, "nnx": 6, "linen": 6}[kind]
    keys = jax.random.split(KEY, 3)
    if kind == "equinox":
        direct = jax.vmap(eqx.nn.MLP(LATENT, WIDTH, 4, 1, key=keys[2]))(z)
    elif kind == "nnx":
        rngs = nnx.Rngs(0)
        NnxMlp(WIDTH, 2 * LATENT, rngs)
        direct = NnxMlp(LATENT, WIDTH, rngs)(z)
    else:
        module = LinenMlp(WIDTH)
        direct = module.apply(jax.jit(module.init)(keys[1], np.ones((1, LATENT))), z)
    np.testing.assert_allclose(decoder.apply(decoder.parameters, z), direct, rtol=1e-6)


def test_equinox_module_that_takes_batches():
    class Affine(eqx.Module):
        kernel: jax.Array

        def __call__(self, x):
            return x @ self.kernel

    network = from_equinox(Affine(np.ones((2, 3))), batched=True)
    np.testing.assert_array_equal(network.apply(network.parameters, np.ones((4, 2))), 2.0)


def test_linen_without_params():
    with pytest.raises(InputError, match='variables: expected a collection "params"'):
        from_linen(LinenMlp(2), {"batch_stats": {}})


@pytest.mark.parametrize(
    ("likelihood", "value", "message"),
    [
        (
            BernoulliLikelihood(),
            0.5,
            r"data: expected numbers in \{0, 1\}, got 0.5 at index \(1, 2",
        ),
        (BernoulliLikelihood(fractions=True), 1.5, r"numbers in \[0, 1\], got 1.5"),
        (BernoulliLikelihood(), np.nan, "finite"),
        (NormalLikelihood(), np.inf, "finite"),
        (PoissonLikelihood(), -1.0, "non-negative whole numbers, got -1"),
        (PoissonLikelihood(), 0.5, "non-negative whole numbers, got 0.5"),
        (CategoricalLikelihood(3), 3.0, "classes below 3, got 3"),
    ],
)
def test_data_outside_the_support(likelihood, value, message):
    data = np.zeros((NUM_DATA, WIDTH))
    data[1, 2] = value
    with pytest.raises(InputError, match=message):
        mlp_vae(KEY, data, latent_dim=LATENT, likelihood=likelihood)
    encoder, decoder = networks("linen")
    with pytest.raises(InputError, match=message):
        vae(encoder, decoder, data, likelihood=likelihood)


@pytest.mark.parametrize("shape", [(5,), (0, 5), (5, 0)])
def test_data_of_wrong_shape(shape):
    with pytest.raises(InputError, match="data: expected an array of shape"):
        mlp_vae(KEY, np.zeros(shape), latent_dim=LATENT)


def blank(*sizes):
    """A perceptron without weights to speak of."""
    layers = [AffineLayer(np.zeros((n, m)), np.zeros(m)) for n, m in pairwise(sizes)]
    return Network(tuple(layers), mlp_apply)


def scaled(apply):
    return Network(np.ones(()), apply)


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        (blank(4, 2 * LATENT), blank(LATENT, WIDTH), r"encoder: .* shape \(1, 5\)"),
        (blank(WIDTH, 3), blank(LATENT, WIDTH), "encoder: .* even width"),
        (blank(WIDTH, 6), blank(LATENT, WIDTH), r"decoder: .* shape \(1, 3\)"),
        (blank(WIDTH, 4), blank(LATENT, 4), r"decoder: expected 5 outputs.*\(1, 4\)"),
        (
            scaled(lambda p, x: p * np.ones((1, 2, 4))),
            blank(LATENT, WIDTH),
            "encoder: expected loc of shape",
        ),
        (
            scaled(lambda p, x: (p * x[:, :2], p * x[:, :3])),
            blank(LATENT, WIDTH),
            "encoder: expected log_scale of shape",
        ),
        (
            scaled(lambda p, x: (p, p, p)),
            blank(LATENT, WIDTH),
            r"encoder: expected the pair \(loc, log_scale\), got 3",
        ),
        (
            blank(WIDTH, 4),
            scaled(lambda p, z: {"logits": p * z}),
            "decoder: expected one array",
        ),
    ],
)
def test_networks_that_do_not_fit(encoder, decoder, message):
    with pytest.raises(InputError, match=message):
        vae(encoder, decoder, np.zeros((NUM_DATA, WIDTH)))


def test_a_flax_network_of_the_wrong_width():
    encoder, decoder = networks("linen")
    with pytest.raises(InputError, match=r"encoder: expected a network that takes .*\(1, 4\)"):
        vae(encoder, decoder, np.zeros((NUM_DATA, 4)))


def test_a_batch_of_another_shape():
    problem, parameters, data = setup_of("bernoulli")[0]
    with pytest.raises(InputError, match=r"batch: expected data of shape \(5,\), got \(4,\)"):
        ELBO(1).estimate(KEY, problem, parameters, np.asarray(data)[:, :4])


def test_wrong_options():
    for scale in (0.0, -1.0, np.inf, np.array([1.0, 0.0])):
        with pytest.raises(InputError, match="scale: expected"):
            NormalLikelihood(scale)
    with pytest.raises(InputError, match="num_classes"):
        CategoricalLikelihood(1)
    with pytest.raises(InputError, match="latent_dim"):
        mlp_vae(KEY, np.zeros((2, 2)), latent_dim=0)
    with pytest.raises(InputError, match="sizes: expected at least"):
        mlp_init(KEY, (3,))
    with pytest.raises(InputError, match=r"sizes\[1\]"):
        mlp_init(KEY, (3, 0))


def test_paper_vae_has_the_papers_sizes():
    images = np.zeros((3, 784), np.float32)
    problem, parameters, data = paper_vae(KEY, images)
    assert isinstance(problem, VariationalAutoencoder)
    assert isinstance(parameters, Parameters)
    shapes = lambda layers: [layer.kernel.shape for layer in layers]
    assert shapes(parameters.variational) == [(784, 200), (200, 200), (200, 200)]
    assert shapes(parameters.model) == [(100, 200), (200, 200), (200, 784)]
    assert {leaf.dtype for leaf in jax.tree.leaves((parameters, data))} == {np.dtype("float32")}
    assert problem.noise(KEY, data).dtype == np.float32
    gradient = jax.eval_shape(ELBO(1).estimate_and_gradient, KEY, problem, parameters, data)[1]
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype("float32")}
    kernel = np.asarray(parameters.variational[0].kernel)
    assert np.abs(kernel).max() <= 0.2
    # A normal cut at two standard deviations keeps 0.8796 of its scale.
    np.testing.assert_allclose(kernel.std(), 0.1 * stats.truncnorm(-2, 2).std(), rtol=0.01)


def test_initialisers():
    for initialiser in (GLOROT, TRUNCATED_NORMAL):
        (layer,) = mlp_init(KEY, (30, 20), initialiser)
        assert isinstance(layer, AffineLayer)
        assert layer.kernel.dtype == np.float64
        assert np.abs(layer.kernel).max() > 0
        assert not np.asarray(layer.bias).any()


def test_likelihood_is_a_numpyro_distribution(case):
    (problem, parameters, data), _ = case

    def likelihood_at(parameters):
        latent = problem.latent(parameters.variational, problem.noise(KEY, data), data)
        return problem.likelihood(parameters.model, latent, data)

    likelihood = jax.eval_shape(likelihood_at, parameters)
    assert isinstance(likelihood, dist.Distribution)
    assert likelihood.batch_shape == (NUM_DATA,)
    assert likelihood.event_shape == (WIDTH,)
