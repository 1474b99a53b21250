"""Losses that explode and stay finite: true alarms are taken back, noise raises none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from vpng import Guard, InputError, Loop, StopReason, optimizers
from vpng.numpyro import SVI
from vpng.problems import GaussianMean
from vpng.run.explosion import Explosions

NOISES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "log-normal": lambda rng, shape: rng.lognormal(size=shape),
    "Student, 2.1": lambda rng, shape: rng.standard_t(2.1, size=shape),
}
LANES, STEPS = 250, 4000


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("same", [True, False], ids=["same noise", "independent noise"])
def test_noise_raises_no_more_false_alarms_than_stated(noise, same):
    """A million losses of runs in equilibrium, the loss falling at first.

    Noise that is the same at both points never rejects anything. Independent noise gives the
    confirmation nothing to see, which is the worst case; the bound is the stated rate, 100 in a
    million.
    """
    rule = Explosions(false_alarms=1e-4)

    def lane(here, there):
        def body(state, losses):
            loss, good = losses
            state, exploded = rule.look(state, loss, lambda _: good, 1e9)
            return rule.kept(state, jnp.zeros(()), ~exploded), exploded

        return jax.lax.scan(body, rule.init(jnp.zeros(())), (here, there))[1]

    rng, trend = np.random.default_rng(0), 50.0 * np.exp(-np.arange(STEPS) / 200.0)
    here, there = (trend + noise(rng, (LANES, STEPS)) for _ in range(2))
    rejected = int(jnp.sum(jax.jit(jax.vmap(lane))(here, here if same else there)))
    assert rejected == 0 if same else rejected <= 1e-4 * LANES * STEPS


def known(rule, *, mean=0.0, deviation=1.0):
    state = rule.init(jnp.zeros(()))
    return state._replace(
        mean=jnp.asarray(mean), variance=jnp.asarray(deviation**2), count=jnp.asarray(10**6)
    )


def alarms(losses, *, good=0.0, rule=None, **about):
    rule = Explosions(memory=10**6) if rule is None else rule
    state, found = known(rule, **about), []
    for loss in losses:
        state, exploded = rule.look(state, jnp.asarray(loss), lambda _: jnp.asarray(good), 1e9)
        found.append(bool(exploded))
    return found


@pytest.mark.parametrize(
    ("height", "needed"), [(150.0, 1), (99.0, 2), (10.5, 2), (9.5, 3), (3.3, 4), (2.0, 7)]
)
def test_the_further_up_the_sooner_the_alarm(height, needed):
    assert alarms([height] * needed) == [False] * (needed - 1) + [True]


def test_evidence_does_not_outlive_an_ordinary_loss():
    assert not any(alarms([20.0, -0.1] * 20))


def test_a_batch_that_is_as_hard_for_the_good_point_is_no_explosion():
    assert not any(alarms([1000.0] * 5, good=990.0))
    assert not any(alarms([1000.0] * 5, good=jnp.nan))


def test_a_rise_of_less_than_a_nat_is_never_far():
    """A loss without noise, over 1000 data."""
    rule = Explosions()
    state = known(rule, mean=5.0, deviation=0.0)
    for rise, expected in ((0.0005, False), (0.0009, False), (0.2, True)):
        good = lambda _: jnp.asarray(5.0)
        assert bool(rule.look(state, jnp.asarray(5.0 + rise), good, 1000)[1]) == expected


@pytest.mark.parametrize("loss", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_loss_that_is_not_finite_says_nothing(loss):
    rule = Explosions()
    state, exploded = rule.look(known(rule), jnp.asarray(loss), lambda _: jnp.zeros(()), 1)
    assert not exploded
    assert (float(state.mean), float(state.variance)) == (0.0, 1.0)


def test_the_step_is_shortened_and_recovers():
    rule = Explosions()
    state = known(rule)
    state, exploded = rule.look(state, jnp.asarray(1e4), lambda _: jnp.zeros(()), 1)
    assert exploded
    assert float(state.share) == pytest.approx(1 / 5)
    look = jax.jit(lambda state: rule.look(state, jnp.zeros(()), lambda _: jnp.zeros(()), 1)[0])
    for _ in range(500):
        state = look(state)
    assert float(state.share) == pytest.approx(5**-0.5, rel=1e-3)
    for _ in range(510):
        state = look(state)
    assert float(state.share) == 1.0


@pytest.mark.parametrize("options", [{"false_alarms": 0.0}, {"false_alarms": 1.0}, {"memory": 0}])
def test_bad_options(options):
    (name,) = options
    with pytest.raises(InputError, match=rf"^{name}: expected"):
        Explosions(**options)


def too_long_from(step, rate, factor):
    """A rate that is multiplied by `factor` once `step` steps are done."""
    return optimizers.gradient(lambda count: rate * jnp.where(count < step, 1.0, factor))


def mean_loop(guard, **options):
    """A quadratic with curvature 20 per datum at most: gradient steps beyond 0.1 diverge."""
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]], np.float32)
    data = (np.random.default_rng(1).normal(size=(60, 2)) + 1.0).astype(np.float32)
    problem = GaussianMean.create(covariance, 60, scale=0.05)
    optimizer = too_long_from(400, 0.05, 5.0)
    loop = Loop(problem, problem.init(), data, optimizer, guard=guard, batch_size=20, **options)
    return loop, loop.init(problem.init(), jax.random.key(0))


def test_a_step_that_becomes_too_long_costs_time_and_not_the_run():
    """The rate goes from a half to two and a half times the limit, to the end of the run."""
    loop, begin = mean_loop(Guard())
    with pytest.warns(RuntimeWarning, match=r"the loss exploded .* in 1500 steps.*rise of"):
        result = loop.run(begin, 1500, progress=False)
    records = result.history.column("loss")
    assert result.stop_reason is StopReason.STEPS
    assert 0 < int(result.state.rejected) < 30
    assert sum(record.exploded for record in result.history.records) == int(result.state.rejected)
    assert "rise of the loss beyond its noise at step 40" in result.causes[0]
    losses = result.history.step_losses
    assert np.median(losses[-100:]) < np.median(losses[300:400]) + 0.5
    assert np.median(records[5:]) < records[3] + 1.0
    bare, begin = mean_loop(Guard(explosions=None))
    without = bare.run(begin, 450, progress=False).history.step_losses
    assert without[-1] > 1e6


def test_chunks_and_checkpoints_do_not_change_where_it_goes_back_to(tmp_path):
    from vpng.training import Checkpoints, EverySteps

    ends = []
    for every in (100, 70):
        loop, begin = mean_loop(Guard(), record_every=every)
        with pytest.warns(RuntimeWarning, match="exploded"):
            ends.append(loop.run(begin, 560, progress=False))
    np.testing.assert_allclose(*(end.params.variational for end in ends), rtol=1e-3)
    keep = Checkpoints(tmp_path, every=EverySteps(1))
    with pytest.warns(RuntimeWarning, match="exploded"):
        first = loop.run(begin, 420, progress=False, checkpoints=keep)
    assert int(first.state.step) == 420
    with pytest.warns(RuntimeWarning, match="exploded"):
        rest = loop.run(begin, 560, progress=False, checkpoints=keep, resume=True)
    np.testing.assert_array_equal(rest.params.variational, ends[1].params.variational)
    np.testing.assert_array_equal(rest.history.step_losses, ends[1].history.step_losses)


MEASUREMENTS = np.linspace(-1.0, 3.0, 50, dtype=np.float32)


def measured(values):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(values)):
        numpyro.sample("value", dist.Normal(mean, 0.1), obs=values)


def test_svi_with_an_optimizer_comes_back():
    """Newton steps of three times the distance diverge by a factor of two each."""
    rate = lambda count: jnp.where(count < 200, 0.3, 3.0)
    svi = SVI(measured, AutoNormal(measured), optax.sgd(rate), Trace_ELBO(10))
    with pytest.warns(RuntimeWarning, match="The loss exploded .* in 800 steps"):
        result = svi.run(jax.random.key(0), 800, MEASUREMENTS, progress_bar=False)
    losses = np.asarray(result.losses)
    assert np.all(np.isfinite(losses))
    assert float(result.params["mean_auto_loc"]) == pytest.approx(1.0, abs=0.1)
    assert np.median(losses[-100:]) < np.median(losses[100:200]) + 5.0
    assert 0 < int(result.state.optim_state.explosions.returns) < 20
