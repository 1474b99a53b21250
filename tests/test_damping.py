"""Damping rules: constant, scheduled, and adapted to how well the quadratic model predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vpng import ELBO, Constant, InputError, LevenbergMarquardt, Parameters, Predictive, Scheduled
from vpng.damping import DampingContext, as_damping
from vpng.problem.selection import Selection
from vpng.problems import GaussianMean


def toy():
    covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
    problem = GaussianMean.create(covariance, 5)
    data = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)) + 2.0, jnp.float32)
    return problem, data


def situation(parameters, step, problem, data):
    key = jax.random.key(1)
    metric = lambda: Predictive(num_particles=2).operator(problem, parameters, data, key)
    selection = Selection.of(parameters, parameters, None)
    return DampingContext(jnp.asarray(step), problem, parameters, data, key, metric, selection)


# Without the KL the loss of the toy is exactly quadratic with Hessian Sigma^-1 = F_r.
QUADRATIC = ELBO(4, kl_weight=0.0)


def newton_point(start, length, problem, data, objective=QUADRATIC):
    """start + length times the Newton step, exact without the KL, for the noise of the key."""
    _, gradient = objective.estimate_and_gradient(jax.random.key(1), problem, start, data)
    covariance = problem.covariance_root @ problem.covariance_root.T
    return Parameters(start.variational - length * covariance @ gradient.variational)


def adapting(rule):
    """The damping and the state after a step of a certain length, compiled."""
    problem, data = toy()

    @jax.jit
    def adapt(length, step=1):
        start = Parameters(jnp.array([0.0, 0.0]))
        after = newton_point(start, length, problem, data)
        return rule.update(rule.init(start), situation(after, step, problem, data))

    return adapt


def test_constant_and_scheduled():
    problem, data = toy()
    here = situation(problem.init(), 3, problem, data)
    assert float(Constant(0.2).update((), here)[0]) == pytest.approx(0.2)
    decaying = Scheduled(optax.exponential_decay(1.0, 1, 0.5))
    assert float(decaying.update((), here)[0]) == pytest.approx(0.125)
    value, _ = Constant(0.2).update((), here)
    assert value.dtype == jnp.float32


def test_numbers_schedules_and_rules_are_all_dampings():
    assert isinstance(as_damping(0.1), Constant)
    assert isinstance(as_damping(lambda step: 0.1), Scheduled)
    rule = LevenbergMarquardt()
    assert as_damping(rule) is rule


@pytest.mark.parametrize("length", [1.0, 0.3])
def test_an_exact_model_predicts_exactly_and_damping_falls(length):
    rule = LevenbergMarquardt(initial=0.1, factor=2.0, objective=QUADRATIC)
    damping, state = adapting(rule)(length)
    assert float(state.ratio) == pytest.approx(1.0, rel=1e-3)
    assert float(damping) == pytest.approx(0.05)
    assert float(state.damping) == float(damping)


def test_a_step_that_goes_up_raises_the_damping():
    """Three Newton steps at once: the loss rises, as the model would have said itself."""
    rule = LevenbergMarquardt(initial=0.1, factor=2.0, objective=QUADRATIC)
    damping, state = adapting(rule)(3.0)
    assert float(state.ratio) < 0.25
    assert float(damping) == pytest.approx(0.2)


def test_a_model_that_promises_too_much_raises_the_damping():
    """The KL at n times its weight is curvature that F does not have: the step overshoots."""
    strong = LevenbergMarquardt(initial=0.1, factor=2.0, objective=ELBO(4, kl_weight=20.0))
    problem, data = toy()

    @jax.jit
    def adapt(start):
        after = newton_point(start, 1.0, problem, data, strong.objective)
        return strong.update(strong.init(start), situation(after, 1, problem, data))

    damping, state = adapt(Parameters(jnp.array([1.0, -1.0])))
    assert float(state.ratio) < 0.25
    assert float(damping) == pytest.approx(0.2)


def test_bounds():
    low = LevenbergMarquardt(initial=0.1, factor=2.0, minimum=0.08, objective=QUADRATIC)
    assert float(adapting(low)(1.0)[0]) == pytest.approx(0.08)
    high = LevenbergMarquardt(initial=0.1, factor=2.0, maximum=0.15, objective=QUADRATIC)
    assert float(adapting(high)(3.0)[0]) == pytest.approx(0.15)


def test_period():
    rule = LevenbergMarquardt(initial=0.1, factor=2.0, period=3, objective=QUADRATIC)
    adapt = adapting(rule)
    for step, wanted in ((1, 0.1), (2, 0.1), (3, 0.05), (0, 0.1)):  # before 0 there is no step
        assert float(adapt(1.0, step)[0]) == pytest.approx(wanted)


def test_the_step_before_is_remembered():
    problem, data = toy()
    rule = LevenbergMarquardt(objective=QUADRATIC)
    start = Parameters(jnp.array([0.0, 0.0]))
    after = Parameters(jnp.array([0.5, 0.5]))
    update = jax.jit(
        lambda after: rule.update(rule.init(start), situation(after, 1, problem, data))
    )
    _, state = update(after)
    np.testing.assert_array_equal(state.previous.variational, after.variational)


def test_a_loss_that_is_not_a_number_raises_the_damping():
    problem, data = toy()
    rule = LevenbergMarquardt(initial=0.1, factor=2.0, objective=QUADRATIC)
    start = Parameters(jnp.array([0.0, 0.0]))
    broken = Parameters(jnp.array([jnp.nan, 0.0]))
    update = jax.jit(
        lambda broken: rule.update(rule.init(start), situation(broken, 1, problem, data))
    )
    assert float(update(broken)[0]) == pytest.approx(0.2)


def test_a_failed_solve_raises_the_damping_much():
    rule = LevenbergMarquardt(initial=0.1, factor=2.0)
    state = rule.failed(rule.init(Parameters(jnp.zeros(2))))
    assert float(state.damping) == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Constant(-0.1), "damping"),
        (lambda: Constant(float("nan")), "damping"),
        (lambda: Constant(True), "damping"),
        (lambda: Scheduled(lambda step: -0.1), "damping"),
        (lambda: as_damping(lambda step: step - 0.1), "damping"),
        (lambda: LevenbergMarquardt(initial=0.0), "initial"),
        (lambda: LevenbergMarquardt(factor=1.0), "factor"),
        (lambda: LevenbergMarquardt(period=0), "period"),
        (lambda: LevenbergMarquardt(low=0.8, high=0.2), "low"),
    ],
)
def test_bad_rules_are_refused(make, name):
    with pytest.raises(InputError, match=rf"^{name}: expected .*, got "):
        make()
