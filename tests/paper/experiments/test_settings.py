"""Settings from options and TOML files: typed, and refused by name."""

import pytest

from vpng.errors import InputError
from vpng.paper.experiments.registry import EXPERIMENTS
from vpng.paper.experiments.settings import Preset, parse_assignment, read_toml, typed_settings
from vpng.paper.experiments.toy import ToyConfig
from vpng.paper.experiments.vae import DataSet, VaeConfig
from vpng.plot.methods import Method


def test_values_take_the_type_of_their_field():
    settings = {
        "budget": 3,
        "learning_rates": [1, 0.5],
        "data": "mnist",
        "methods": ["vpng"],
        "decay": "none",
        "low_rank": 4,
    }
    typed = typed_settings(VaeConfig, settings, "file")
    assert typed == {
        "budget": 3.0,
        "learning_rates": (1.0, 0.5),
        "data": DataSet.MNIST,
        "methods": (Method.VPNG,),
        "decay": None,
        "low_rank": 4.0,
    }
    assert type(typed["budget"]) is float
    assert VaeConfig(**typed).decay is None


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (VaeConfig, {"learning_rate": 1}, ["'learning_rate'", "did you mean learning_rates?"]),
        (VaeConfig, {"zzz": 1}, ["batch_size, num_particles", "'zzz'"]),
        (VaeConfig, {"seeds": 1.5}, ["seeds", "a whole number", "1.5"]),
        (VaeConfig, {"seeds": True}, ["seeds", "a whole number", "True"]),
        (VaeConfig, {"budget": "long"}, ["budget", "a number", "'long'"]),
        (VaeConfig, {"data": "faces"}, ["data", "digits, mnist", "faces"]),
        (VaeConfig, {"learning_rates": 0.1}, ["learning_rates", "an array", "0.1"]),
        (VaeConfig, {"learning_rates": []}, ["learning_rates", "at least one"]),
        (VaeConfig, {"learning_rates": [0.1, "x"]}, ["learning_rates", "a number", "'x'"]),
        (VaeConfig, {"methods": ["sgd"]}, ["methods", "one of gradient", "sgd"]),
        (ToyConfig, {"true_mean": [1.0]}, ["true_mean", "2 values", "1"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kind, settings, words):
    with pytest.raises(InputError) as error:
        typed_settings(kind, settings, "here")
    for word in ["here", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("seeds=3", 3),
        ("budget = 2.5", 2.5),
        ("learning_rates=[0.1, 0.2]", [0.1, 0.2]),
        ("data=mnist", "mnist"),
        ('data="mnist"', "mnist"),
        ("decay=none", "none"),
    ],
)
def test_assignments_are_toml(text, value):
    assert parse_assignment(text) == (text.partition("=")[0].strip(), value)


@pytest.mark.parametrize("text", ["seeds", "=3", ""])
def test_an_assignment_needs_a_key(text):
    with pytest.raises(InputError, match="--set: expected key=value"):
        parse_assignment(text)


def test_a_file_has_tables_named_after_experiments(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("seeds = 2\n[vae]\nbudget = 3\n")
    names = ("toy", "vae")
    assert read_toml(file, names, "toy") == {"seeds": 2}
    assert read_toml(file, names, "vae") == {"seeds": 2, "budget": 3}
    with pytest.raises(InputError, match="table of its experiment, got seeds"):
        read_toml(file, names, "all")
    file.write_text("[vae]\nbudget = 3\n")
    assert read_toml(file, names, "all") == {"vae": {"budget": 3}}


@pytest.mark.parametrize(
    ("text", "words"), [("[tye]\n", ["toy, vae", "tye"]), ("seeds =", ["TOML"])]
)
def test_a_bad_file_is_refused(tmp_path, text, words):
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_toml(file, ("toy", "vae"), "toy")
    assert all(word in str(error.value) for word in words)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--config.*No such file"):
        read_toml(tmp_path / "none.toml", ("toy",), "toy")


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", Preset)
def test_every_preset_is_a_configuration(name, preset):
    experiment = EXPERIMENTS[name]
    configuration = experiment.config(**experiment.settings(preset, {"seeds": 7}))
    assert configuration.seeds == 7, "what is given wins over the preset"


def test_a_budget_lifts_the_limit_on_steps():
    settings = EXPERIMENTS["logistic"].settings(Preset.DEFAULT, {"budget": 1.0})
    assert settings["iterations"] == 10**9
    both = EXPERIMENTS["logistic"].settings(Preset.DEFAULT, {"budget": 1.0, "iterations": 5})
    assert both["iterations"] == 5


@pytest.mark.parametrize("name", ["vae", "vae-no-ema", "vmf"])
@pytest.mark.parametrize("preset", Preset)
def test_a_number_of_steps_lifts_the_limit_on_time(name, preset):
    """What comes out then does not depend on the speed of the machine, whatever the preset."""
    experiment = EXPERIMENTS[name]
    steps = experiment.config(**experiment.settings(preset, {"iterations": 5}))
    assert (steps.iterations, steps.budget) == (5, None)
    both = experiment.config(**experiment.settings(preset, {"iterations": 5, "budget": 2.0}))
    assert (both.iterations, both.budget) == (5, 2.0)


def test_the_paper_preset_has_the_papers_sizes():
    experiment = EXPERIMENTS["vae"]
    config = experiment.config(**experiment.settings(Preset.PAPER, {}))
    assert (config.data, config.budget, config.batch_size) == (DataSet.MNIST, 1000.0, 600)
    assert (config.num_particles, config.num_train_images, config.pilot) == (10, 10_000, 1.0)
