"""The engine: runs are remembered, a killed grid goes on, and another configuration is refused."""

import json
import os
import signal
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from vpng import ELBO, Parameters, optimizers
from vpng.errors import InputError
from vpng.paper.experiments.contest import (
    GridPoint,
    Rules,
    Trained,
    contest,
    ends_far_below,
    loop_trainer,
    summarise,
)
from vpng.paper.experiments.journal import Journal, pack, unpack
from vpng.paper.experiments.rules import adam_or_rmsprop
from vpng.paper.experiments.session import Session
from vpng.plot.methods import Method
from vpng.problems import LinearLatent
from vpng.run.interrupted import InterruptedRunError
from vpng.runtime.interrupts import deferred_interrupts
from vpng.training import StopReason


class KilledError(Exception):
    """The power went."""


def journal(folder, resume=False, **configuration):
    return Journal.open(folder, "x", configuration, resume=resume)


def test_a_finished_run_is_not_run_again(tmp_path):
    calls = []

    def compute(tell):
        calls.append(1)
        return {"value": float("nan"), "seeds": (1, 2)}

    first = Session(journal(tmp_path)).run("a b/c", "A", compute)
    second = Session(journal(tmp_path, resume=True)).run("a b/c", "A", compute)
    assert first == second == {"value": None, "seeds": [1, 2]}
    assert len(calls) == 1


def test_a_run_that_dies_is_not_remembered(tmp_path):
    def die(tell):
        raise KilledError

    session = Session(journal(tmp_path))
    session.run("first", "", lambda tell: {})
    with pytest.raises(KilledError):
        session.run("second", "", die)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"grid.json", "first.json"}


def test_an_unfinished_grid_is_not_thrown_away_by_accident(tmp_path):
    Session(journal(tmp_path)).run("first", "", lambda tell: {})
    with pytest.raises(InputError, match=r"1 finished runs; go on with --resume"):
        journal(tmp_path)
    assert (tmp_path / "runs" / "first.json").exists()


def test_a_finished_folder_starts_anew_without_resume(tmp_path):
    Session(journal(tmp_path)).run("first", "", lambda tell: {})
    (tmp_path / "results.json").write_text("{}")
    journal(tmp_path, seeds=3)
    assert not (tmp_path / "results.json").exists()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"grid.json"}


def test_another_configuration_is_refused_with_what_differs(tmp_path):
    journal(tmp_path, seeds=1, rates=(0.1, 0.2), same=True)
    with pytest.raises(InputError, match=r"seeds 1 \(now 2\), rates \[0.1, 0.2\] \(now \[0.1\]\)"):
        journal(tmp_path, resume=True, seeds=2, rates=(0.1,), same=True)
    with pytest.raises(InputError, match="a grid of y, got one of x"):
        Journal.open(tmp_path, "y", {}, resume=True)


def test_a_damaged_run_is_named(tmp_path):
    Session(journal(tmp_path)).run("first", "", lambda tell: {})
    (tmp_path / "runs" / "first.json").write_text("{")
    with pytest.raises(InputError, match=r"first.json.*Remove the file"):
        Session(journal(tmp_path, resume=True)).run("first", "", lambda tell: {})


def test_the_status_counts_runs_and_estimates_the_rest(monkeypatch):
    clock = iter(np.arange(0.0, 1000.0, 10.0))
    monkeypatch.setattr(
        "vpng.paper.experiments.session.time.perf_counter", lambda: float(next(clock))
    )
    seen = []
    session = Session(watcher=seen.append)
    session.plan(2, 4.0)
    session.run("a", "A", lambda tell: tell(0.5, "half") or {}, cost=3.0)
    session.run("b", "B", lambda tell: {})
    half = next(status for status in seen if status.detail == "half")
    assert (half.position, half.total, half.fraction) == (1, 2, 1.5 / 4)
    # Two readings of the clock after the start: 20 s for 1.5 of 4 units of work.
    assert half.seconds_left == pytest.approx(20.0 * 2.5 / 1.5)
    assert [status.fraction for status in seen if status.finished] == [0.75, 1.0]
    assert seen[-1].seconds_left == 0.0


def test_recalled_runs_do_not_count_in_the_pace(tmp_path, monkeypatch):
    Session(journal(tmp_path)).run("a", "", lambda tell: {})
    clock = iter(np.arange(0.0, 1000.0, 10.0))
    monkeypatch.setattr(
        "vpng.paper.experiments.session.time.perf_counter", lambda: float(next(clock))
    )
    seen = []
    session = Session(journal(tmp_path, resume=True), seen.append)
    session.plan(3)
    session.run("a", "", lambda tell: {})
    assert seen[-1].seconds_left is None
    session.run("b", "", lambda tell: {})
    assert seen[-1].seconds_left == pytest.approx(20.0), "one run of 20 s done, one left"


def test_pictures_survive_to_a_level_of_grey():
    pictures = np.random.default_rng(0).random((3, 5))
    np.testing.assert_allclose(unpack(json.loads(json.dumps(pack(pictures)))), pictures, atol=0.002)


@dataclass
class Course:
    """A made-up race: the score of a run is known from its point, seed and length."""

    calls: list
    stop_after: int | None = None
    short_lived: tuple[float, ...] = ()

    def __call__(self, method):
        def train(point, seed, steps, seconds, tell):
            if self.stop_after is not None and len(self.calls) >= self.stop_after:
                raise KilledError
            self.calls.append((method, point, seed, steps, seconds))
            gain = (2.0 if method is Method.VPNG else 1.0) * point.learning_rate
            score = float("nan") if point.learning_rate > 5 else gain + 0.1 * seed
            # Its last good parameters have a score all the same.
            failed = point.learning_rate in self.short_lived and seconds == 10.0
            reason = StopReason.NOT_FINITE if failed else StopReason.SECONDS
            curves = {"iteration": [1.0, 2.0], "seconds": [0.5, 1.0], "train_elbo": [0.0, score]}
            return Trained(curves, "0" * 64, reason.value, {"picture": np.full((1, 2), 0.2)})

        return train


def rules(pilot, budget=10.0, points=(0.1, 0.3, 9.0)):
    methods = (Method.GRADIENT, Method.VPNG)
    grid = [GridPoint(rate, "adam") for rate in points]
    return Rules(methods, grid, 2, budget, 100, pilot)


def test_the_best_point_is_chosen_and_the_diverged_one_is_not():
    course = Course([])
    outcome = contest(Session(), rules(0.25), course)
    assert {name: point.learning_rate for name, point in outcome.chosen.items()} == {
        "gradient": 0.3,
        "vpng": 0.3,
    }
    # For each method three points for a quarter of the budget, the better two for half of it, then
    # both seeds for all of it.
    assert [call[-1] for call in course.calls] == 2 * [2.5, 2.5, 2.5, 5.0, 5.0, 10.0, 10.0]
    assert [run.curves["train_elbo"][-1] for run in outcome.runs] == pytest.approx(
        [0.3, 0.4, 0.6, 0.7]
    )
    assert summarise(outcome, ["train_elbo"])["vpng"]["train_elbo"] == pytest.approx(0.65)
    assert outcome.grid["vpng"][2]["train_elbo"] == -np.inf


def test_trials_are_parts_of_the_steps_where_no_clock_runs():
    course = Course([])
    contest(Session(), rules(0.25, budget=None), course)
    steps = [call[3] for call in course.calls if call[0] is Method.VPNG]
    assert steps == [25, 25, 25, 50, 50, 100, 100]
    assert {call[4] for call in course.calls} == {None}


def test_a_point_that_diverges_after_its_trial_gives_way_to_the_next():
    course, seen = Course([], short_lived=(0.3,)), []
    outcome = contest(Session(watcher=seen.append), rules(0.25), course)
    assert {point.learning_rate for point in outcome.chosen.values()} == {0.1}
    # The point that diverged in its trial is not tried again.
    finals = [call[1].learning_rate for call in course.calls if call[-1] == 10.0]
    assert finals == 2 * [0.3, 0.3, 0.1, 0.1]
    assert [run.learning_rate for run in outcome.runs] == 4 * [0.1]
    assert {run.settings["stop_reason"] for run in outcome.runs} == {StopReason.SECONDS.value}
    assert outcome.findings[1] == (
        "VPNG diverged after the trial with adam, rate 0.3; its curves are those of the next best "
        "point, adam, rate 0.1."
    )
    assert (seen[-1].position, seen[-1].fraction) == (seen[-1].total, pytest.approx(1.0))


def test_where_every_point_diverges_the_best_of_the_trial_is_shown():
    outcome = contest(Session(), rules(0.25), Course([], short_lived=(0.1, 0.3)))
    assert {point.learning_rate for point in outcome.chosen.values()} == {0.3}
    assert outcome.findings[0] == "Gradient diverged, with adam, rate 0.3 and adam, rate 0.1."
    assert contest(Session(), rules(0.25), Course([])).findings == []


def test_a_whole_trial_is_the_first_final_run():
    course = Course([])
    contest(Session(), rules(1.0, budget=None), course)
    assert [(call[2], call[3], call[4]) for call in course.calls] == 2 * [
        (0, 100, None),
        (0, 100, None),
        (0, 100, None),
        (1, 100, None),
    ]


def test_a_single_point_needs_no_trial():
    course = Course([])
    assert contest(Session(), rules(0.1, points=(0.1,)), course).grid["vpng"] == []
    assert len(course.calls) == 4


@pytest.mark.parametrize("killed_after", [0, 2, 4, 7])
def test_a_killed_contest_goes_on_where_it_was(tmp_path, killed_after):
    whole = contest(Session(), rules(0.25), Course([]))
    cut = Course([], stop_after=killed_after)
    with pytest.raises(KilledError):
        contest(Session(journal(tmp_path)), rules(0.25), cut)
    rest = Course([])
    resumed = contest(Session(journal(tmp_path, resume=True)), rules(0.25), rest)
    assert len(rest.calls) == 14 - killed_after
    assert resumed.runs == whole.runs
    assert resumed.chosen == whole.chosen


def test_of_six_points_three_go_on_and_two_after_them():
    course = Course([])
    points = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    outcome = contest(Session(), rules(0.1, points=points), course)
    half = len(course.calls) // 2
    tried = [(call[1].learning_rate, call[-1]) for call in course.calls[:half]]
    assert tried[:6] == [(point, 1.0) for point in points]
    assert tried[6:9] == [(0.6, 2.0), (0.5, 2.0), (0.4, 2.0)]
    assert tried[9:] == [(0.6, 4.0), (0.5, 4.0), (0.6, 10.0), (0.6, 10.0)]
    assert [entry["learning_rate"] for entry in outcome.grid["vpng"]] == list(points)


def test_a_run_that_ends_far_below_its_best_has_diverged():
    explosion = [-540.0, -115.0, -95.0, -90.0, -87.0, -86.0, -85.0, -84.8, -97.5]
    assert ends_far_below(explosion)
    assert not ends_far_below(explosion[:-1])
    assert ends_far_below([0.0, 1.0, np.nan])


def test_noise_is_not_divergence():
    """Two thousand noisy plateaus, with heavy tails too: the stated margin covers nearly all."""
    generator = np.random.default_rng(0)
    rise = -500.0 * np.exp(-np.arange(200) / 10.0) - 80.0
    noisy = [rise + generator.normal(size=200) for _ in range(1000)]
    heavy = [rise + generator.standard_t(3.0, size=200) for _ in range(1000)]
    assert np.mean([ends_far_below(curve) for curve in noisy]) < 0.005
    assert np.mean([ends_far_below(curve) for curve in heavy]) < 0.02


def test_the_summary_shows_the_best_beside_the_last():
    outcome = contest(Session(), rules(0.25), Course([]))
    entry = summarise(outcome, ["train_elbo"])["vpng"]
    assert entry["best_train_elbo"] == pytest.approx(0.65)
    curves = {"train_elbo": [0.0, 3.0, float("nan"), 1.0]}
    assert Trained(curves, "", "").best("train_elbo") == 3.0


def test_the_plan_is_what_is_run():
    seen = []
    for pilot, points in ((0.25, (0.1, 0.3)), (1.0, (0.1, 0.3)), (0.25, (0.1,))):
        contest(Session(watcher=seen.append), rules(pilot, points=points), Course([]))
        assert (seen[-1].position, seen[-1].fraction) == (seen[-1].total, pytest.approx(1.0))


def linear_race():
    """A race of real runs, compiled once."""
    problem = LinearLatent(num_data=6)
    parameters = Parameters(jnp.asarray(0.1), jnp.asarray(0.5))
    train = loop_trainer(
        problem,
        parameters,
        jnp.linspace(-1.0, 1.0, 6),
        lambda learning_rate, rmsprop: optimizers.gradient(
            learning_rate, rule=adam_or_rmsprop(rmsprop > 0.5)
        ),
        lambda key: parameters,
        objective=ELBO(1),
        batch_size=2,
        record_every=5,
        metrics={"train_elbo": lambda params, key: -params.model},
        show="train_elbo",
    )
    return lambda method: train


def test_a_run_stopped_by_a_signal_goes_on_inside(tmp_path):
    """The signal comes in the middle of the second run: it is saved there and ends the same."""
    grid = [GridPoint(rate, "adam") for rate in (0.1, 0.3)]
    course = Rules((Method.GRADIENT,), grid, 2, None, 40)
    trainer = linear_race()
    whole = contest(Session(), course, trainer)
    seen = []

    def stop(status):
        seen.append(status)
        if status.position == 2 and status.detail.startswith("15 steps"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRunError, match="SIGTERM"), deferred_interrupts():
        contest(Session(journal(tmp_path), stop), course, trainer)
    unfinished = list((tmp_path / "runs").glob("*.unfinished/step-*15.vpng"))
    assert len(unfinished) == 1
    seen.clear()
    resumed = contest(Session(journal(tmp_path, resume=True), seen.append), course, trainer)
    details = [status.detail for status in seen if "steps" in status.detail]
    assert details[0].startswith("20 steps")
    assert [run.params_sha256 for run in resumed.runs] == [run.params_sha256 for run in whole.runs]
    for mine, theirs in zip(resumed.runs, whole.runs, strict=True):
        assert mine.curves["loss"] == theirs.curves["loss"]
        assert mine.curves["iteration"] == theirs.curves["iteration"]
    assert not list((tmp_path / "runs").glob("*.unfinished"))
    # A new start clears what is left of an old one.
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "runs" / "old.unfinished").mkdir()
    journal(tmp_path)
    assert not list((tmp_path / "runs").glob("*.unfinished"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_line_says_how_to_go_on(vpng, monkeypatch, tmp_path, number, code):
    def stopped(*args, **kwargs):
        raise InterruptedRunError(number)

    monkeypatch.setattr("vpng.paper.cli.reproduce.reproduce_one", stopped)
    found, _, errors = vpng("reproduce", "toy", "--out", str(tmp_path))
    assert found == code
    assert errors == f"vpng: stopped by {number.name}; what is done is kept, go on with --resume\n"
