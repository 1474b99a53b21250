"""Results on disk: whole or not at all, and the same bits for the same parameters."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from vpng.paper.experiments.results import (
    Results,
    Run,
    mean_and_std,
    params_sha256,
    write_atomically,
)
from vpng.paper.experiments.sweep import area_under_curve


def test_numbers_that_are_not_finite_become_null():
    curves = {"loss": [1.0, float("nan"), float("inf")]}
    results = Results("x", {"a": np.float32(0.5)}, [Run("vpng", 0, None, "", curves)], {})
    document = json.loads(results.to_json())
    assert document["runs"][0]["curves"]["loss"] == [1.0, None, None]
    assert document["configuration"]["a"] == 0.5


def test_the_fingerprint_sees_values_shapes_and_dtypes():
    base = {"a": jnp.zeros((2, 3))}
    others = [
        {"a": jnp.zeros((3, 2))},
        {"b": jnp.zeros((2, 3))},
        {"a": jnp.zeros((2, 3), jnp.bfloat16)},
        {"a": jnp.zeros((2, 3)).at[0, 0].set(-0.0)},
    ]
    assert params_sha256(base) == params_sha256({"a": jnp.zeros((2, 3))})
    assert len({params_sha256(tree) for tree in [base, *others]}) == 5


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "results.json"
    target.write_text("old")

    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_mean_and_std_of_one_run():
    assert mean_and_std([2.0]) == {"mean": 2.0, "std": 0.0}
    assert mean_and_std([1.0, 3.0]) == {"mean": 2.0, "std": pytest.approx(np.sqrt(2.0))}


def test_area_under_curve_equals_scikit_learn():
    generator = np.random.default_rng(0)
    for _ in range(10):
        labels = generator.integers(0, 2, 50)
        labels[:2] = [0, 1]
        scores = np.round(generator.normal(size=50) + labels, 1)
        ours = area_under_curve(jnp.asarray(scores), jnp.asarray(labels, dtype=float))
        assert float(ours) == pytest.approx(roc_auc_score(labels, scores), abs=1e-6)
