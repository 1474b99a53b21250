"""Saved models, whole, damaged and foreign."""

import os
from functools import cache
from pathlib import Path

import numpy as np
from fuzz_target import Target, damaged, refused, stays_inside
from hypothesis import strategies as st

from vpng.models import BayesianLogisticRegression, PoissonFactorization
from vpng.storage.archive import read_archive, write_archive


@cache
def saved_models() -> dict[str, tuple[dict, dict[str, np.ndarray]]]:
    """Settings and arrays of two small models."""
    import tempfile

    found = {}
    counts = np.random.default_rng(0).poisson(1.0, (12, 5))
    labels = np.arange(12) % 2
    models = {
        "PoissonFactorization": PoissonFactorization(
            n_components=2, hidden=(3,), batch_size=4, max_epochs=1, random_state=0
        ).fit(counts),
        "BayesianLogisticRegression": BayesianLogisticRegression(num_steps=2, random_state=0).fit(
            counts, labels
        ),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, model in models.items():
            found[name] = read_archive(model.save(Path(scratch) / "model"), name)
    return found


KINDS = {
    "PoissonFactorization": PoissonFactorization,
    "BayesianLogisticRegression": BayesianLogisticRegression,
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
ARRAYS = st.sampled_from(
    [
        np.zeros(0),
        np.zeros((2, 3)),
        np.full((1,), np.nan),
        np.array(["text"]),
        np.array(3),
        np.zeros((5, 2), np.complex64),
        np.arange(4),
        np.zeros((1, 1, 1, 1)),
    ]
)


@st.composite
def model_files(draw) -> tuple[str, dict, dict, bytes | None]:
    """A kind, settings and arrays to be written, or the bytes of a damaged file."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    settings, arrays = map(dict, saved_models()[kind])
    if draw(st.integers(0, 2)) == 0:
        return kind, settings, arrays, draw(damaged(_packed(kind, settings, arrays)))
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(settings)) | st.text(max_size=3))
        if draw(st.booleans()):
            settings.pop(key, None)
        else:
            settings[key] = draw(JSON)
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(arrays)) | st.text("ab[]'", max_size=3))
        if draw(st.booleans()):
            arrays.pop(key, None)
        else:
            arrays[key] = draw(ARRAYS)
    return kind, settings, arrays, None


def _packed(kind: str, settings: dict, arrays: dict) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        return write_archive(Path(scratch) / "model", kind, settings, arrays).read_bytes()


def check_model(case: tuple, folder: Path) -> None:
    kind, settings, arrays, content = case
    path = folder / "model"
    if content is None:
        try:
            write_archive(path, kind, settings, arrays)
        except ValueError:  # what JSON or a file's name in a zip cannot say
            return
    else:
        path.write_bytes(content)
    rows = np.random.default_rng(1).poisson(1.0, (3, 5))
    with stays_inside(folder):
        bad, model = refused(lambda: KINDS[kind].load(path))
    assert os.listdir(folder) == ["model"]
    whole_settings, whole_arrays = saved_models()[kind]
    whole = content is None and settings == whole_settings and arrays.keys() == whole_arrays.keys()
    whole = whole and all(np.array_equal(arrays[key], whole_arrays[key]) for key in arrays)
    assert not (whole and bad)
    if whole:
        predicted = model.transform(rows) if kind.startswith("Poisson") else model.predict(rows)
        assert np.isfinite(predicted).all()


TARGETS = {
    "model": Target(model_files(), check_model, 2.0),
}
