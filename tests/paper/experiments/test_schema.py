"""The documented schema: what is written follows it, and a fault is refused with its place."""

import copy
import csv
import io
import json

import pytest

from vpng.errors import InputError
from vpng.paper.experiments.results import Headline, Results, Run
from vpng.paper.experiments.schema import find_results, load_results, validate

CURVES = {"iteration": [1, 2], "seconds": [0.5, 1.0], "loss": [1.0, float("nan")]}
RESULTS = Results(
    "made-up",
    {"seeds": 1},
    [Run("vpng", 0, 0.1, "0" * 64, CURVES)],
    {"vpng": {"loss": 1.0}},
    headline=Headline("loss", "loss", higher_is_better=False),
)


@pytest.fixture
def document():
    return json.loads(RESULTS.to_json((["a"], [["1"]])))


def test_what_is_written_follows_the_schema(document):
    assert validate(document) is document
    assert document["schema_version"] == 1


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("schema",), "vpng.results/0", "$.schema"),
        (("schema_version",), 2, "$.schema_version"),
        (("runs",), [], "$.runs"),
        (("runs", 0, "seed"), -1, "$.runs[0].seed"),
        (("runs", 0, "params_sha256"), "short", "$.runs[0].params_sha256"),
        (("runs", 0, "curves", "loss"), ["1", 2], "$.runs[0].curves.loss[0]"),
        (("runs", 0, "curves", "loss"), [1.0], "runs[0].curves"),
        (("summary",), [], "$.summary"),
        (("headline", "higher_is_better"), None, "$.headline"),
        (("environment", "packages"), None, "$.environment.packages"),
    ],
)
def test_a_fault_is_refused_with_its_place(document, path, value, place):
    broken = copy.deepcopy(document)
    *way, last = path
    inner = broken
    for step in way:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(InputError) as error:
        validate(broken, "file")
    assert place in str(error.value)
    assert "file" in str(error.value)


@pytest.mark.parametrize("key", ["schema", "environment", "configuration", "runs", "summary"])
def test_a_missing_part_is_named(document, key):
    del document[key]
    with pytest.raises(InputError, match=f"'{key}' is a required property"):
        validate(document)


def test_the_csv_is_tidy():
    rows = list(csv.DictReader(io.StringIO(RESULTS.to_csv())))
    assert [(r["iteration"], r["seconds"], r["quantity"], r["value"]) for r in rows] == [
        ("1", "0.5", "loss", "1.0"),
        ("2", "1.0", "loss", ""),
    ]
    assert {(r["experiment"], r["method"], r["seed"]) for r in rows} == {("made-up", "vpng", "0")}


def test_results_are_found_at_a_folder_or_below(tmp_path):
    text = RESULTS.to_json()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text)
    assert find_results(tmp_path) == {"a": tmp_path / "a", "b": tmp_path / "b"}
    assert find_results(tmp_path / "a") == {"a": tmp_path / "a"}
    assert load_results(tmp_path / "a")["experiment"] == "made-up"


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        find_results(tmp_path / "nowhere")
    with pytest.raises(InputError, match="a folder with results"):
        find_results(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="go on with --resume"):
        find_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(InputError, match="JSON document"):
        load_results(tmp_path)
