"""The engine: runs are remembered, a killed grid goes on, and another configuration is refused."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.experiments.contest import GridPoint, Rules, Trained, contest, summarise
from vpng.experiments.journal import Journal, pack, unpack
from vpng.experiments.methods import Method
from vpng.experiments.session import Session


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
    monkeypatch.setattr("vpng.experiments.session.time.perf_counter", lambda: float(next(clock)))
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
    monkeypatch.setattr("vpng.experiments.session.time.perf_counter", lambda: float(next(clock)))
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

    def __call__(self, method):
        def train(point, seed, steps, seconds, tell):
            if self.stop_after is not None and len(self.calls) >= self.stop_after:
                raise KilledError
            self.calls.append((method, point, seed, steps, seconds))
            gain = (2.0 if method is Method.VPNG else 1.0) * point.learning_rate
            score = float("nan") if point.learning_rate > 5 else gain + 0.1 * seed
            curves = {"iteration": [1.0, 2.0], "seconds": [0.5, 1.0], "train_elbo": [0.0, score]}
            return Trained(curves, "0" * 64, "done", {"picture": np.full((1, 2), 0.2)})

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
    # Three pilots of a quarter of the budget, then both seeds for all of it, for each method.
    assert [call[-1] for call in course.calls] == 2 * [2.5, 2.5, 2.5, 10.0, 10.0]
    assert [run.curves["train_elbo"][-1] for run in outcome.runs] == pytest.approx(
        [0.3, 0.4, 0.6, 0.7]
    )
    assert summarise(outcome, ["train_elbo"])["vpng"]["train_elbo"] == pytest.approx(0.65)
    assert outcome.grid["vpng"][2]["train_elbo"] == -np.inf


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
    assert len(rest.calls) == 10 - killed_after
    assert resumed.runs == whole.runs
    assert resumed.chosen == whole.chosen


def test_the_plan_is_what_is_run():
    seen = []
    for pilot, points in ((0.25, (0.1, 0.3)), (1.0, (0.1, 0.3)), (0.25, (0.1,))):
        contest(Session(watcher=seen.append), rules(pilot, points=points), Course([]))
        assert (seen[-1].position, seen[-1].fraction) == (seen[-1].total, pytest.approx(1.0))
