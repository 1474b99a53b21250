"""Verdicts on made-up races whose outcome is known."""

import pytest
from made_up_results import document, run, two_methods

from vpng.paper.experiments.results import Headline
from vpng.paper.report.verdict import Standing, verdict


def words(found):
    return " ".join(found.sentences)


def test_vpng_ahead_with_the_factors():
    found = verdict(document(two_methods(8.0, 4.0, pace=1.5, jitter=0.0)))
    assert found.standing is Standing.AHEAD
    # Final -20 against -60, which VPNG passes after 5 of 10 steps and 7.5 of 10 seconds.
    assert "VPNG -20 ± 0, Gradient -60 ± 0" in words(found)
    assert "40 ahead of Gradient" in words(found)
    assert "2 times fewer steps" in words(found)
    assert "1.33 times less time" in words(found)
    assert "more than the noise" in words(found)


def test_vpng_behind_is_said():
    found = verdict(document(two_methods(4.0, 8.0, pace=2.0)))
    assert found.standing is Standing.BEHIND
    assert "VPNG ends 40 behind Gradient" in words(found)
    assert "times more steps" in words(found)
    assert "4 times more time" in words(found) or "4.0" in words(found)


def test_seeds_that_scatter_more_than_they_differ():
    found = verdict(document(two_methods(4.05, 4.0, jitter=1.0)))
    assert found.standing is Standing.LEVEL
    assert "within the noise" in words(found)


def test_one_seed_is_no_proof():
    found = verdict(document(two_methods(8.0, 4.0, seeds=1)))
    assert found.standing is Standing.ONE_SEED
    assert "nothing can be said about the noise" in words(found)


def test_the_better_vpng_is_compared_with_the_best_of_the_others():
    runs = [run("vpng", s, 3.0) for s in range(2)] + [run("vpng_block", s, 7.0) for s in range(2)]
    runs += [run("gradient", s, 4.0) for s in range(2)]
    runs += [run("natural_gradient", s, 5.0) for s in range(2)]
    found = verdict(document(runs))
    assert "VPNG, block-diagonal ends 20 ahead of Natural gradient" in words(found)
    assert "VPNG ends 20 behind Natural gradient" in words(found), "the other one's loss is told"


def test_a_diverged_run_counts_against_its_method():
    made = document(two_methods(8.0, 4.0, seeds=2))
    for entry in made["runs"]:
        if entry["method"] == "vpng" and entry["seed"] == 1:
            entry["curves"]["test_elbo"] = [None] * 10
    found = verdict(made)
    assert found.standing is Standing.BEHIND
    assert "VPNG has runs that ended without a finite test ELBO" in words(found)


def test_a_goal_is_about_how_soon():
    headline = Headline("test_elbo", "test ELBO", goal=-60.0)
    found = verdict(document(two_methods(8.0, 4.0, jitter=0.0), headline=headline))
    assert found.standing is Standing.AHEAD
    assert "VPNG needs 5 steps and Gradient 10: 2 times fewer steps" in words(found)
    missed = verdict(document(two_methods(2.0, 4.0, jitter=0.0), headline=headline))
    assert missed.standing is Standing.BEHIND
    assert "VPNG does not reach a test ELBO of -60" in words(missed)


def test_lower_can_be_better():
    headline = Headline("loss", "loss", higher_is_better=False, axes=("iteration",))
    found = verdict(document(two_methods(8.0, 4.0), headline=headline))
    assert found.standing is Standing.AHEAD
    assert "40 ahead" in words(found)


@pytest.mark.parametrize("headline", [None, Headline("test_elbo", "test ELBO")])
def test_nothing_to_compare(headline):
    made = document([run("vpng", 0, 1.0)], headline=headline, findings=["It is so."])
    found = verdict(made)
    assert found.standing is Standing.NONE
    assert "It is so." in found.sentences


def test_every_form_of_vpng_is_vpng():
    made = [("gradient", 4.0), ("vpng", 5.0), ("vpng_eigenbasis", 8.0)]
    runs = [run(name, seed, slope) for name, slope in made for seed in range(2)]
    found = verdict(document(runs))
    assert found.standing is Standing.AHEAD
    assert "VPNG, eigenbasis ends 40 ahead of Gradient" in words(found)
    alone = verdict(document([entry for entry in runs if entry.method != "vpng"]))
    assert alone.standing is Standing.AHEAD
