"""What is not finite never enters a run, is called by its name, and ends a hopeless one."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from vpng import InputError, LevenbergMarquardt, Parameters, Problem, optimizers
from vpng.damping import LevenbergMarquardtState
from vpng.fisher import Predictive
from vpng.kronecker import Kronecker, discover
from vpng.not_finite import NotFinite
from vpng.training import Guard, Loop, StopReason
from vpng.training.guard import after_rejection, trouble_in_optimizer

NUM_DATA = 8


class TwoSites(Problem):
    """z_i ~ N(0, 1) seen twice: as a count and as a length; `lengths` is broken on demand."""

    num_data: int = NUM_DATA
    local: bool = True

    def approximation(self, variational: Any, batch: Any) -> dist.Distribution:
        hidden = jnp.tanh(batch["lengths"][:, None] @ variational["in"])
        return dist.Normal((hidden @ variational["out"])[:, 0], 0.1)

    def prior(self, model: Any, batch: Any) -> dist.Distribution:
        return dist.Normal(jnp.zeros(batch["lengths"].shape), 1.0)

    def likelihood(self, model: Any, latent: Any, batch: Any) -> Any:
        # Beyond 1e4 the square overflows: what a datum off the scale does to a model.
        length = jnp.square(batch["lengths"] * 1e16) * 1e-32 * latent
        return {"counts": dist.Poisson(jnp.exp(latent)), "lengths": dist.Normal(length, 1.0)}

    def observed(self, batch: Any) -> Any:
        return batch


def start() -> Parameters:
    return Parameters({"in": jnp.full((1, 2), 0.3), "out": jnp.full((2, 1), 0.2)})


def data(*, broken: bool) -> dict[str, np.ndarray]:
    lengths = np.linspace(0.5, 1.5, NUM_DATA, dtype=np.float32)
    lengths[3] = 1e5 if broken else 0.7
    return {"counts": np.arange(NUM_DATA) % 3, "lengths": lengths}


def spoilt(after: int, what: str = "nothing") -> dict:
    """The state of `small_steps` that spoils one thing once `after` steps are done."""
    return {
        "count": jnp.zeros((), jnp.int32),
        "moment": jnp.zeros(2),
        "after": jnp.asarray(after),
        "update": jnp.asarray(what == "update"),
        "infinite": jnp.asarray(what == "moment"),
    }


def small_steps() -> optax.GradientTransformation:
    """A small gradient step; its state says what is to be spoilt, and when."""

    def update(updates, state, params=None):
        late = state["count"] >= state["after"]
        small = jax.tree.map(lambda u: -0.01 * u, updates).variational
        second = late & state["update"] & (jnp.arange(2)[:, None] == 1)
        small["out"] = jnp.where(second, jnp.nan, small["out"])
        moment = jnp.where(late & state["infinite"], jnp.inf, state["moment"])
        return Parameters(small), {**state, "count": state["count"] + 1, "moment": moment}

    return optax.GradientTransformation(lambda params: spoilt(0), update)


def run(optimizer, *, num_steps=20, broken=False, **options):
    options = {"record_every": 5, "batch_size": None, **options}
    loop = Loop(TwoSites(), start(), data(broken=broken), optimizer, **options)
    return loop.run(loop.init(start(), jax.random.key(0)), num_steps, progress=False)


def finite(tree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def one_bad_datum():
    """Batches of two: one of the four batches of an epoch has the bad datum."""
    with pytest.warns(RuntimeWarning) as caught:
        result = run(
            optimizers.gradient(0.01, rule=optax.scale_by_adam()), broken=True, batch_size=2
        )
    return result, str(caught[0].message)


def test_a_bad_batch_is_dropped_and_the_rest_is_used(one_bad_datum):
    result, _ = one_bad_datum
    assert result.stop_reason is StopReason.STEPS
    assert result.history.column("rejected").sum() == 5  # once an epoch
    assert int(result.state.rejected) == 5
    assert int(result.state.optimizer[1].count) == 15
    assert finite((result.params, result.state.optimizer))
    assert not np.allclose(result.params.variational["in"], 0.3)


def test_the_site_is_named(one_bad_datum):
    result, message = one_bad_datum
    losses = result.history.step_losses
    first = int(np.argmin(np.isfinite(losses))) + 1
    assert result.causes[0] == f"log-likelihood of ['lengths'], loss at step {first}"
    assert (
        message
        == f"vpng: 5 of 20 steps were not finite and were dropped, first: {result.causes[0]}."
    )


def small_loop(**options):
    """From a state of `spoilt`, and a number of steps, a result."""
    loop = Loop(TwoSites(), start(), data(broken=False), small_steps(), record_every=5, **options)
    begin = loop.init(start(), jax.random.key(0))
    return lambda state, num_steps: loop.run(
        begin._replace(optimizer=state), num_steps, progress=False
    )


@pytest.fixture(scope="module")
def small():
    return small_loop(guard=Guard(max_rejections=4))


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("update", "update of variational['out'] at step 8"),
        ("moment", "optimizer['moment'] at step 8"),
    ],
)
def test_a_rule_that_breaks_stops_the_run_with_the_last_good_state(small, what, cause):
    with pytest.warns(RuntimeWarning, match="Stopped: .*last good ones.*learning rate"):
        result = small(spoilt(7, what), 1000)
    assert result.stop_reason is StopReason.NOT_FINITE
    # Seen at the end of the chunk in which the fourth in a row was dropped.
    np.testing.assert_array_equal(result.history.column("rejected"), [0, 3, 5])
    assert result.causes[0] == cause
    assert result.history.records[0].cause == ""
    assert int(result.state.rejected_in_a_row) == 8
    parts = [
        (end.params, end.state.optimizer["count"], end.state.optimizer["moment"])
        for end in (result, small(spoilt(7), 7))
    ]
    jax.tree.map(lambda now, good: np.testing.assert_allclose(now, good, rtol=1e-6), *parts)


def test_without_a_guard_nothing_is_dropped():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = small_loop(guard=None)(spoilt(7, "update"), 10)
    assert not finite(result.params)
    assert result.stop_reason is StopReason.STEPS


class Edge(TwoSites):
    """On the edge the density and its gradient are finite, but the Fisher is not."""

    def likelihood(self, model: Any, latent: Any, batch: Any) -> Any:
        sites = super().likelihood(model, latent, batch)
        on_edge, inside = batch["on_edge"], sites["lengths"]
        still = jax.lax.stop_gradient(latent)
        # Its observed value sits on its mean: the density is flat there, the Fisher 1 / scale^2.
        loc = jnp.where(on_edge, 1e20 * (latent - still), inside.loc)
        return {**sites, "lengths": dist.Normal(loc, jnp.where(on_edge, 1e-20, inside.scale))}

    def observed(self, batch: Any) -> Any:
        lengths = jnp.where(batch["on_edge"], 0.0, batch["lengths"])
        return {"counts": batch["counts"], "lengths": lengths}


@pytest.fixture(scope="module")
def factored():
    """From data, and a number of steps with Kronecker factors, a result."""

    def those(*, broken: bool, on_edge: bool) -> dict[str, np.ndarray]:
        return {**data(broken=broken), "on_edge": np.full(NUM_DATA, on_edge)}

    problem, params, metric = Edge(), start(), Predictive(num_particles=1)
    sound = those(broken=False, on_edge=False)
    few = jax.tree.map(lambda leaf: leaf[:2], sound)
    structure = discover(problem, params, few, metric)
    optimizer = optimizers.vpng(
        problem,
        0.1,
        metric=metric,
        curvature=Kronecker(structure, statistics_period=1, inverse_period=4),
        damping=LevenbergMarquardt(initial=0.5, maximum=1e4),
    )
    loop = Loop(problem, params, sound, optimizer, record_every=5)
    begin = loop.init(params, jax.random.key(0))
    return lambda num_steps, **kind: loop.on(those(**kind)).run(begin, num_steps, progress=False)


def test_a_fisher_that_is_not_finite_is_named_and_the_damping_rises(factored):
    """Factors of the broken batch: the loss is not finite either, so the damping is what shows."""
    with pytest.warns(RuntimeWarning, match="3 of 3 steps"):
        result = factored(3, broken=True, on_edge=False)
    state = result.state.optimizer[0]
    assert float(state.damping.damping) == pytest.approx(0.5 * 5**3)
    assert bool(state.curvature.failed)  # so that the inverses are made anew
    assert int(state.curvature.step) == 0
    assert finite(state.curvature.averages)
    assert float(state.curvature.averages.weight) == 0.0


def test_a_factor_that_is_not_finite_is_named(factored):
    with pytest.warns(RuntimeWarning, match="4 of 4 steps"):
        result = factored(4, broken=False, on_edge=True)
    assert result.causes[0].startswith("Fisher factor G of variational['in'], Fisher factor G of")
    assert np.isfinite(result.history.step_losses).all()
    assert finite((result.params, result.state.optimizer[0].curvature.averages))


class Cliff(TwoSites):
    """A loss that is not a number once a parameter is above one."""

    def likelihood(self, model: Any, latent: Any, batch: Any) -> Any:
        beyond = jnp.where(model > 1.0, jnp.nan, 0.0)
        return {
            "counts": dist.Poisson(jnp.exp(latent)),
            "lengths": dist.Normal(latent, 1.0 + beyond),
        }


def leap(damping: LevenbergMarquardtState, params: Parameters) -> Parameters:
    """A step of 1 / damping towards the cliff."""
    still = jax.tree.map(jnp.zeros_like, params.variational)
    return Parameters(still, 1.0 / damping.damping)


def leaping() -> optax.GradientTransformation:
    return optax.GradientTransformation(
        lambda params: LevenbergMarquardt().init(params.variational),
        lambda updates, state, params: (leap(state, params), state),
    )


@pytest.fixture(scope="module")
def cliff():
    """From a first damping, and a number of steps, a result."""
    params = start()._replace(model=jnp.zeros(()))
    loop = Loop(Cliff(), params, data(broken=False), leaping(), record_every=10)
    begin = loop.init(params, jax.random.key(0))

    def run(initial: float, num_steps: int):
        damping = LevenbergMarquardt(initial=initial).init(params.variational)
        return loop.run(begin._replace(optimizer=damping), num_steps, progress=False)

    return run


def test_a_step_over_the_edge_is_taken_back_and_made_shorter(cliff):
    """From 0 a step of 1 / 0.02 = 50; each rejection multiplies the damping by five.

    The point beyond is rejected twice, then the run goes back and leaps 50 / 25 = 2; that is
    rejected once, since the run has made no progress, and leads to leaps of 50 / 125 = 0.4: to 0.4,
    to 0.8, and over the edge again. The steps are: leap, rejected, rejected, leap, rejected, leap,
    leap, leap, rejected, rejected.
    """
    with pytest.warns(RuntimeWarning, match="5 of 10 steps"):
        result = cliff(0.02, 10)
    bad = ~np.isfinite(result.history.step_losses)
    np.testing.assert_array_equal(np.flatnonzero(bad), [1, 2, 4, 8, 9])
    assert float(result.params.model) == pytest.approx(0.8)
    assert float(result.state.optimizer.damping) == pytest.approx(0.02 * 5**5)


def test_the_last_good_state_is_one_with_a_finite_loss(cliff):
    """Leaps of 1e30 do not get short enough in thirty rejections."""
    with pytest.warns(RuntimeWarning, match="Stopped"):
        result = cliff(1e-30, 1000)
    assert result.stop_reason is StopReason.NOT_FINITE
    assert float(result.params.model) == 0.0


def test_parts_of_a_state_react_to_a_rejection():
    plain = {"count": jnp.ones(()), "rule": optax.ScaleByRmsState(nu=jnp.ones(2))}
    active = Parameters(jnp.zeros(2))
    damping = LevenbergMarquardt(initial=0.2).init(active)
    after = after_rejection((plain, {"deep": damping}))
    assert isinstance(after[1]["deep"], LevenbergMarquardtState)
    assert float(after[1]["deep"].damping) == pytest.approx(1.0)
    jax.tree.map(np.testing.assert_array_equal, after[0], plain)


def test_what_begins_as_infinite_may_stay_so():
    before = {"best": jnp.inf, "moment": jnp.zeros(2), "count": jnp.zeros((), jnp.int32)}
    now = {"best": jnp.inf, "moment": jnp.array([0.0, jnp.nan]), "count": jnp.ones((), jnp.int32)}
    assert trouble_in_optimizer(now, before).named() == ["optimizer['moment']"]


def test_findings_name_the_floating_leaves():
    tree = {name: jnp.asarray(jnp.nan) for name in "abcd"} | {
        "e": jnp.zeros(()),
        "f": jnp.ones(2, int),
    }
    found = NotFinite.in_tree("gradient", tree)
    assert found.named() == [f"gradient of ['{name}']" for name in "abcd"]
    assert NotFinite.in_tree("gradient", jnp.asarray(jnp.inf)).named() == ["gradient"]


def test_a_number_of_rejections_is_checked():
    with pytest.raises(InputError, match=r"^max_rejections: expected .* at least 1, got 0"):
        Guard(max_rejections=0)
