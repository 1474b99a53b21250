"""The adaptive rule on losses whose optimum, curvature and noise are known."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import FisherOperator, Parameters
from vpng.adaptive import Adaptive, AveragedDense, Evaluation, Linearised
from vpng.adaptive.acceptance import Promise
from vpng.curvature import Dense

pytestmark = pytest.mark.usefixtures("x64")

CURVATURE = np.array([[100.0, 9.9], [9.9, 1.0]])
ROOT = np.linalg.cholesky(CURVATURE)
OPTIMUM = np.array([1.0, -2.0])


def start():
    return Parameters({"x": jax.device_put(np.array([30.0, 10.0]))}, {})


class Drawn(NamedTuple):
    """A loss of parameters and a draw, with draws in two halves."""

    loss: Callable
    draws: jax.Array

    def at(self, params):
        return jax.vmap(lambda draws: self._half(params, draws)[1])(self.draws).ravel()

    def halves(self, params):
        differentiate = jax.vmap(jax.grad(self._half, has_aux=True), (None, 0))
        gradients, losses = differentiate(params, self.draws)
        return Evaluation(losses.ravel(), gradients, None)

    def by_particle(self, active, embed):
        return None

    def _half(self, params, draws):
        losses = jax.vmap(self.loss, (None, 0))(params, draws)
        return jnp.mean(losses), losses


def quadratic(params):
    away = params.variational["x"] - OPTIMUM
    return 0.5 * away @ CURVATURE @ away


def runner(rule, loss, *, noise=0.0, metric=1.0, particles=4, num_steps=50):
    """Runs the rule on `loss` plus noise . x, noise drawn afresh for every particle and step."""

    def noisy(params, draw):
        return loss(params) + noise * draw @ params.variational["x"]

    def step(state, key):
        draws = jax.random.normal(key, (2, particles // 2, 2)) @ ROOT.T

        rows = lambda params: jnp.sqrt(metric) * ROOT.T @ params.variational["x"]
        metric_at = lambda params: lambda: FisherOperator(params, rows)
        state, info = rule.step(state, Drawn(noisy, draws), metric_at)
        return state, (info, state.accepted.variational["x"])

    @jax.jit
    def run(key):
        return jax.lax.scan(step, rule.init(start()), jax.random.split(key, num_steps))

    return run


def test_a_quadratic_is_solved_to_rounding():
    state, (info, _) = runner(Adaptive(AveragedDense(), 1), quadratic)(jax.random.key(0))
    np.testing.assert_allclose(state.accepted.variational["x"], OPTIMUM, atol=1e-6)
    assert np.asarray(info.accepted).all()
    np.testing.assert_allclose(info.curvature_ratio[1:8], 1.0, rtol=1e-6)


@pytest.mark.parametrize("metric", [0.01, 100.0])
def test_a_metric_wrong_by_a_hundred_is_found_out(metric):
    """Too small, the steps are shortened; too large, they are only slow."""
    rule = Adaptive(AveragedDense(), 1)
    steps = 1500 if metric > 1 else 60
    run = runner(rule, quadratic, metric=metric, num_steps=steps)
    state, (_, path) = run(jax.random.key(0))
    loss = lambda x: quadratic(Parameters({"x": np.asarray(x)}, {}))
    begin, end = (loss(params.variational["x"]) for params in (start(), state.accepted))
    assert end < 1e-3 * begin
    assert max(map(loss, np.asarray(path))) <= begin * (1 + 1e-9)


@cache
def noisy_runs():
    """The loss at the end and the shares of 16 runs with noise in the gradient."""
    run = runner(Adaptive(AveragedDense(), 1), quadratic, noise=2.0, particles=4, num_steps=600)

    def one(key):
        state, (info, _) = run(key)
        return quadratic(state.accepted), info.share

    every = jax.jit(lambda key: jax.vmap(one)(jax.random.split(key, 16)))
    return jax.tree.map(np.asarray, every(jax.random.key(1)))


def test_noise_is_averaged_away():
    """The gradient noise is the metric's own, one nat of it per step; at step t the excess loss of
    the mean of t independent steps is about 2 nats / (2 t), and the rule must come near that."""
    excess, _ = noisy_runs()
    # One step of Newton's method leaves 0.5 tr(F^-1 C) = noise^2 / particles = 1 on average.
    assert excess.mean() < 0.05


def test_the_share_falls_with_the_number_of_steps():
    _, shares = noisy_runs()
    # A mean over all steps would ask for 1 / 550; finding signal by chance keeps it above that.
    assert shares[0, -100:].mean() < 0.06 < shares[0, :20].max()


def test_a_share_of_doubtful_signal_falls_in_the_end():
    """Halves that agree a little for ever, as steps that are too long make them, still settle."""
    rule = Adaptive(AveragedDense(), 1)

    @jax.jit
    def share(agreement, step):
        signal = rule.init(start()).signal._replace(
            agreement=jnp.array([agreement]),
            spread=jnp.array([agreement**2]),
            memory=jnp.array([3.0]),
        )
        return rule.signal_and_noise.share(signal, step, AveragedDense.tolerated_noise)[0]

    assert share(0.3, 0) == pytest.approx(2 * 0.3 / 1.3)
    assert share(0.2, 950) == pytest.approx(50 / 1000)
    assert share(0.6, 950) == pytest.approx(0.36)
    assert share(1.0, 10_000) == 1.0


def test_a_step_with_far_more_noise_than_usual_is_shortened():
    """Beyond four times the usual power of the noise, and what is tolerated, the power is that."""
    rule = Adaptive(AveragedDense(), 1)
    usual = 4.0 * (2.0 + AveragedDense.tolerated_noise)
    before, now = np.full(4, 2.0), np.array([0.0, usual, 100.0 * usual, 1e30])
    tolerated = AveragedDense.tolerated_noise
    calm = jax.jit(lambda usual, now: rule.signal_and_noise.calm(usual, now, tolerated))
    left = np.asarray(calm(before, now))
    np.testing.assert_allclose(left[:3], [1.0, 1.0, 0.1])
    assert 0.0 < left[3] < 1e-10
    unknown = np.full(1, np.finfo(float).max)
    assert np.asarray(calm(unknown, np.array([1e9])))[0] == 1.0


@cache
def walled_run():
    """From a loss beyond a wall, a run."""

    @jax.jit
    def run(bad):
        def walled(params):
            x = params.variational["x"]
            return jnp.where(x[0] < 5.0, bad, quadratic(params))

        rule = Adaptive(AveragedDense(), 1)
        return runner(rule, walled, num_steps=200)(jax.random.key(3))

    return run


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e12])
def test_a_loss_that_breaks_down_is_never_entered(bad):
    """Beyond a wall the loss is not a number, infinite, or absurdly good: never accepted."""
    state, (info, path) = jax.tree.map(np.asarray, walled_run()(bad))
    assert path[:, 0].min() >= 5.0
    assert np.sum(~info.accepted) > 0
    assert np.isfinite(info.loss).all()
    assert np.isfinite(path).all()
    assert state.damping > Adaptive(AveragedDense(), 1).trust_region.minimum


def test_a_heavy_tail_is_no_excuse():
    """Above the wall the loss is worse by far and noisier still: the noise does not admit it."""

    def cliff(params, draw):
        x = params.variational["x"]
        rise = jnp.where(x[0] < 5.0, 1e5 * draw[0] ** 2, 0.0)
        return quadratic(params) + rise

    rule = Adaptive(AveragedDense(), 1)

    def step(state, key):
        draws = jax.random.normal(key, (2, 4, 2))
        rows = lambda p: ROOT.T @ p.variational["x"]
        metric_at = lambda p: lambda: FisherOperator(p, rows)
        state, _ = rule.step(state, Drawn(cliff, draws), metric_at)
        return state, state.accepted.variational["x"][0]

    run = jax.jit(lambda key: jax.lax.scan(step, rule.init(start()), jax.random.split(key, 60)))
    _, path = run(jax.random.key(4))
    assert np.asarray(path).min() >= 5.0


@pytest.mark.parametrize(
    ("square", "agreement", "weight"),
    [(1e9, 1.0, 0.9), (10.0, 1.0, 0.45), (0.0, 1.0, 0.3), (1e9, 0.0, 0.3)],
    ids=["far", "some way", "near", "led by noise"],
)
def test_a_metric_of_another_place_is_forgotten(square, agreement, weight):
    """The further the last step led, by signal, the more the metric found there counts."""
    rule = Adaptive(AveragedDense(), 1)
    rows = lambda params: jnp.sqrt(5.0) * params.variational["x"]
    metric_at = lambda params: lambda: FisherOperator(params, rows)
    state = rule.init(start())
    state = state._replace(
        step=jnp.asarray(9, jnp.int32),
        metrics=jnp.asarray(9, jnp.int32),
        geometry=state.geometry._replace(matrix=jnp.eye(2)),
        promise=Promise(gain=jnp.asarray(square), square=jnp.asarray(square)),
        signal=state.signal._replace(
            agreement=jnp.array([agreement]), spread=jnp.array([agreement**2]), noise=jnp.zeros(1)
        ),
    )
    draws = np.zeros((2, 2, 2))
    flat = lambda params, draw: quadratic(params)
    step = jax.jit(lambda state: rule.step(state, Drawn(flat, draws), metric_at)[0])
    expected = ((1 - weight) + 5.0 * weight) * np.eye(2)
    np.testing.assert_allclose(step(state).geometry.matrix, expected, rtol=1e-6)


def test_the_first_metric_that_is_finite_counts_in_full():
    """However many steps before it had none."""
    rule = Adaptive(AveragedDense(), 1)

    def step(state, factor):
        rows = lambda params: factor * ROOT.T @ params.variational["x"]
        metric_at = lambda params: lambda: FisherOperator(params, rows)
        loss = lambda params, draw: quadratic(params)
        state, _ = rule.step(state, Drawn(loss, np.zeros((2, 2, 2))), metric_at)
        return state, state.geometry.matrix

    factors = np.array([np.nan, np.nan, np.nan, 1.0])
    _, matrices = jax.jit(lambda: jax.lax.scan(step, rule.init(start()), factors))()
    np.testing.assert_array_equal(matrices[2], 0.0)
    np.testing.assert_allclose(matrices[3], CURVATURE, rtol=1e-12)


@pytest.mark.parametrize("geometry", [AveragedDense(), Linearised(Dense())], ids=type)
def test_a_parameter_that_the_metric_does_not_see_counts_for_a_nat_per_unit(geometry):
    """The loss in y has a curvature of one, which no row shows; x has one of its own."""
    point = Parameters({"x": jnp.full(2, 30.0), "y": jnp.full(1, 4.0)}, {})
    rule = Adaptive(geometry, 1)

    def loss(params, draw):
        x = Parameters({"x": params.variational["x"]}, {})
        return quadratic(x) + 0.5 * jnp.sum((params.variational["y"] - 1.0) ** 2)

    def step(state, _):
        rows = lambda params: ROOT.T @ params.variational["x"]
        metric_at = lambda params: lambda: FisherOperator(params, rows)
        return rule.step(state, Drawn(loss, np.zeros((2, 2, 2))), metric_at)[0], None

    state, _ = jax.jit(lambda: jax.lax.scan(step, rule.init(point), length=60))()
    np.testing.assert_allclose(state.accepted.variational["x"], OPTIMUM, atol=1e-3)
    np.testing.assert_allclose(state.accepted.variational["y"], 1.0, atol=1e-3)


def test_a_rejected_step_is_followed_by_none_where_old_gradients_are_not_known():
    """The gradient of a minibatch cannot be solved with the metric of another one."""
    rule = Adaptive(Linearised(Dense(), by_datum=True), 1)
    state = rule.init(start())
    worse = jax.tree.map(lambda leaf: leaf + 100.0, state.accepted)
    state = state._replace(
        step=jnp.asarray(3, jnp.int32),
        begun=jnp.asarray(True),
        candidate=worse,
        gradient=jax.tree.map(jnp.ones_like, state.accepted),
        promise=state.promise._replace(square=jnp.asarray(1.0)),
    )
    rows = lambda params: ROOT.T @ params.variational["x"]
    metric_at = lambda params: lambda: FisherOperator(params, rows)
    loss = lambda params, draw: quadratic(params)
    step = jax.jit(lambda state: rule.step(state, Drawn(loss, np.zeros((2, 2, 2))), metric_at))
    after, info = step(state)
    assert not bool(info.accepted)
    np.testing.assert_array_equal(after.candidate.variational["x"], after.accepted.variational["x"])
    again, info = step(after)
    assert bool(info.accepted)
    assert np.any(again.candidate.variational["x"] != again.accepted.variational["x"])


def test_the_state_keeps_its_types():
    rule = Adaptive(AveragedDense(), 1)
    types = lambda state: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    state, _ = jax.eval_shape(runner(rule, quadratic, num_steps=2), jax.random.key(0))
    assert types(rule.init(start())) == types(state)


@pytest.mark.parametrize(
    ("after", "accepted"),
    [
        ([1.0, 3.0, 2.0, 4.0], True),
        ([0.0, 4.5, 1.5, 4.5], True),
        ([2.0, 3.0, 4.0, 5.0], False),
        ([1.0, 2.0, 3.0, 90.0], False),
    ],
    ids=["the same", "a rise that noise explains", "a rise of every particle", "one far off"],
)
def test_noise_of_the_steps_own_making_is_no_excuse(after, accepted):
    """A particle that the step throws far off makes the gain noisy; the loss was not before."""
    before = np.array([1.0, 2.0, 3.0, 4.0])
    rule = Adaptive(AveragedDense(), 1)

    class Losses(NamedTuple):
        def at(self, params):
            return jnp.asarray(before)

        def halves(self, params):
            zeros = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), params)
            return Evaluation(jnp.asarray(after), zeros, None)

    metric_at = lambda params: lambda: FisherOperator(params, lambda p: p.variational["x"])
    state = rule.init(start())
    promise = state.promise._replace(gain=jnp.asarray(100.0))
    state = state._replace(begun=jnp.asarray(True), promise=promise)
    info = jax.jit(lambda state: rule.step(state, Losses(), metric_at)[1])(state)
    assert bool(info.accepted) is accepted


@pytest.mark.parametrize("first", [0, 1], ids=["at once", "after a loss that was not finite"])
@pytest.mark.parametrize(("noise", "share"), [(1.0, 0.3), (1e3, 0.1)])
def test_a_start_with_much_noise_begins_with_shorter_steps(noise, share, first):
    rule = Adaptive(AveragedDense(), 1)
    rows = lambda params: ROOT.T @ params.variational["x"]
    metric_at = lambda params: lambda: FisherOperator(params, rows)
    noisy = lambda params, draw: quadratic(params) + noise * draw @ params.variational["x"]

    @jax.jit
    def step(state, draws):
        return rule.step(state, Drawn(noisy, draws), metric_at)[0]

    draws = np.array([[[1.0, 0.0]], [[-1.0, 0.0]]])
    state = rule.init(start())._replace(longest=jnp.asarray(0.3))
    state = step(state, np.where(first, np.nan, draws))
    if first:
        # A start that is drawn in is a first step too.
        state = step(state, draws)
    assert state.longest == pytest.approx(share)


def test_a_start_whose_loss_overflows_is_drawn_in_until_it_does_not():
    """Finite within a distance of one from zero: 4, 2, 1, 1/2; then the steps begin."""
    rule = Adaptive(AveragedDense(), 1)
    rows = lambda params: ROOT.T @ params.variational["x"]
    metric_at = lambda params: lambda: FisherOperator(params, rows)
    near = lambda params: jnp.all(jnp.abs(params.variational["x"]) < 1.0)
    loss = lambda params, draw: jnp.where(near(params), quadratic(params), jnp.nan)
    step = jax.jit(lambda state: rule.step(state, Drawn(loss, np.zeros((2, 1, 2))), metric_at))
    state = rule.init(jax.tree.map(lambda leaf: jnp.full_like(leaf, 4.0), start()))
    for _ in range(3):
        state, info = step(state)
        assert not bool(info.accepted)
        assert not bool(state.begun)
        assert state.damping == pytest.approx(rule.initial_damping)
    state, info = step(state)
    assert bool(info.accepted)
    np.testing.assert_allclose(state.accepted.variational["x"], 0.5)
    assert np.all(np.isfinite(state.candidate.variational["x"]))
