"""Races on a user's own problem, in Python and from the command line."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vpng
from vpng.errors import InputError
from vpng.paper.experiments.race import Course, RaceConfig, load_course, race_on
from vpng.paper.experiments.schema import load_results
from vpng.plot.methods import Method
from vpng.problems import GaussianMean

MODULE = """
import jax.numpy as jnp
from vpng.problems import GaussianMean

covariance = jnp.array([[1.0, 0.95], [0.95, 1.0]])
data = jnp.array([[2.0, 1.0]]) + jnp.linspace(-1.0, 1.0, 8)[:, None]
problem = GaussianMean.create(covariance, 8)
mine = (problem, problem.init(), data)
number = 3


def made():
    return (*mine, data[:4])
"""
SETTINGS = {
    "iterations": 200,
    "record_every": 20,
    "budget": 1e3,
    "pilot": 1.0,
    "seeds": 2,
    "num_particles": 2,
    "learning_rates": (0.1, 0.5),
    "rules": ("adam",),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a module of the user's."""
    (tmp_path / "users_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("users_module", None)


def toy():
    off_diagonal = 0.95
    covariance = jnp.array([[1.0, off_diagonal], [off_diagonal, 1.0]])
    problem = GaussianMean.create(covariance, 8, scale=0.01)
    data = jnp.array([[2.0, 1.0]]) + jax.random.normal(jax.random.key(0), (8, 2))
    return problem, data


def test_a_race_in_python_finds_the_optimum_and_writes_the_report(tmp_path):
    problem, data = toy()
    methods = ("gradient", "vpng")
    results = vpng.race(
        *(problem, problem.init(), data),
        out=tmp_path / "out",
        methods=tuple(map(Method, methods)),
        **SETTINGS,
    )
    best = float(problem.elbo(problem.optimum(data), data)) / 8
    final = [run.curves["train_elbo"][-1] for run in results.runs if run.method == "vpng"]
    # At the optimum the draws of z add 20 (0.01)^2 / 2 = 0.001, and it starts more than 1 below.
    assert float(problem.elbo(jnp.zeros(2), data)) / 8 < best - 1.0
    assert len(final) == 2
    np.testing.assert_allclose(final, best, atol=0.02)
    document = load_results(tmp_path / "out")
    assert set(document["summary"]) == set(methods)
    assert document["configuration"]["num_parameters"] == 2
    assert document["headline"]["metric"] == "train_elbo"
    assert {len(points) for points in document["grid"].values()} == {2}
    assert (tmp_path / "out" / "report.html").exists()


def test_a_numpyro_model_and_guide_can_be_raced():
    pytest.importorskip("vpng.numpyro")
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(y):
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

    def guide(y):
        loc = numpyro.param("loc", jnp.zeros(()))
        numpyro.sample("level", dist.Normal(loc, 0.1))

    y = jnp.linspace(1.0, 3.0, 10)
    course = Course.from_numpyro(model, guide, y)
    results = race_on(course, **{**SETTINGS, "seeds": 1, "learning_rates": (0.3,)})
    # Exact but for the prior's pull: log N(y | 2, 1) averaged, less 10 (0.1)^2 / 2 / 10, less KL.
    log_likelihood = -0.5 * jnp.log(2 * jnp.pi) - 0.5 * jnp.mean((y - 2.0) ** 2) - 0.005
    divergence = jnp.log(10.0 / 0.1) + 0.5 * (0.1**2 + 2.0**2) / 10.0**2 - 0.5
    for run in results.runs:
        # Twenty draws of the level with spread 0.1: an error of at most 0.01 per datum.
        assert run.curves["train_elbo"][-1] == pytest.approx(
            float(log_likelihood - divergence / 10), abs=0.02
        )
    assert {run.method for run in results.runs} == set(results.summary)
    assert len(results.summary) == 4


def test_a_network_that_is_no_chain_can_be_raced():
    """Two branches that meet have the block-diagonal curvature, the paper's wants a chain."""
    keys = jax.random.split(jax.random.key(0), 4)
    first, second = (0.1 * jax.random.normal(key, (20, 60)) for key in keys[:2])
    last = 0.1 * jax.random.normal(keys[2], (60, 4))
    weights = {"first": first, "second": second, "last": last}

    def encode(weights, x):
        hidden = jnp.tanh(x @ weights["first"]) + jnp.sin(x @ weights["second"])
        return hidden @ weights["last"]

    decoder = vpng.problems.mlp(keys[3], (2, 20, 20))
    images = (jax.random.uniform(keys[3], (40, 20)) > 0.5).astype(float)
    problem, params, data = vpng.problems.vae(
        vpng.problems.Network(weights, encode), decoder, images
    )
    course = Course(problem, params, data)
    settings = {**SETTINGS, "iterations": 4, "record_every": 2, "seeds": 1, "batch_size": 20}
    methods = Method.NATURAL_GRADIENT, Method.VPNG
    results = race_on(course, **{**settings, "learning_rates": (0.01,)}, methods=methods)
    assert set(results.summary) == {"natural_gradient", "vpng"}
    for run in results.runs:
        assert np.isfinite(run.curves["train_elbo"]).all()


def test_a_race_from_the_command_line(vpng, here):
    code, out, _ = vpng(
        *("race", "users_module:made", "--out", "out", "--seeds", "1", "--methods", "vpng"),
        *("--set", "iterations=20", "--set", "learning_rates=[0.1]", "--set", 'rules=["adam"]'),
    )
    assert code == 0
    assert "Test ELBO" in out
    document = load_results(here / "out")
    assert document["experiment"] == "users_module:made"
    assert document["headline"]["metric"] == "test_elbo"
    assert (here / "out" / "race_curves.svg").exists()


@pytest.mark.parametrize(("name", "tested"), [("mine", False), ("made", True)])
def test_what_a_target_may_be(here, name, tested):
    course = load_course(f"users_module:{name}")
    assert isinstance(course, Course)
    assert (course.test is not None) == tested


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("users_module", ["module:attribute", "users_module"]),
        ("users_module:", ["module:attribute"]),
        ("no_such_module:x", ["no_such_module", "imported"]),
        ("users_module:other", ["other", "users_module"]),
        ("users_module:number", ["(problem, params, data)", "int"]),
        ("users_module:problem", ["(problem, params, data)", "GaussianMean"]),
    ],
)
def test_a_bad_target_is_refused(vpng, here, target, words):
    code, _, err = vpng("race", target, "--out", "out")
    assert code == 2
    for word in words:
        assert word in err
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("budget", 0.0),
        ("pilot", 2.0),
        ("damping", -1.0),
        ("batch_size", 0),
        ("learning_rates", (0.0,)),
        ("rules", ("sgd",)),
        ("decay_steps", 0),
    ],
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=field):
        RaceConfig(**{field: value})
