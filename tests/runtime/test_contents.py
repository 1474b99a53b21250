"""Contents are equal where the same is computed, and not known where nobody can say."""

import functools
import math
import random
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.runtime.contents import contents

FACTORS = [1.0, 2.0]


def key(thing):
    found = contents(thing)
    return None if found is None else found.key


def scaled_by(factor, shift=0.0):
    return lambda x: factor * x + shift


def reading(x):
    return FACTORS[0] * helper(x)


def helper(x):
    return math.sqrt(len(FACTORS)) * jnp.sum(x)


class Thing:
    power = 2

    def __init__(self, value):
        self.value = value

    def __call__(self, x):
        return self.value * x**self.power


def test_equal_closures_are_equal_and_others_are_not():
    assert key(scaled_by(2.0)) == key(scaled_by(2.0)) is not None
    assert key(scaled_by(2.0)) != key(scaled_by(3.0))
    assert key(scaled_by(1)) != key(scaled_by(1.0)) != key(scaled_by(True))
    assert key(functools.partial(scaled_by, 1.0)) != key(functools.partial(scaled_by, 2.0))


def test_globals_are_read_through_other_functions(monkeypatch):
    before = key(reading)
    assert before == key(reading) is not None
    FACTORS.append(3.0)
    assert key(reading) != before
    FACTORS.pop()
    assert key(reading) == before
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert key(reading) != before


def test_attributes_of_objects_and_classes_count(monkeypatch):
    thing = Thing(1.0)
    before = key(thing)
    assert before == key(Thing(1.0)) == key(thing) is not None
    assert key(thing.__call__) != before
    thing.value = 2.0
    assert key(thing) != before
    thing.value = 1.0
    monkeypatch.setattr(Thing, "power", 3)
    assert key(thing) != before


def test_arrays_of_the_host_are_known_by_their_entries_those_of_jax_by_themselves():
    host = np.arange(3.0)
    before = key(host)
    assert key(np.arange(3.0)) == before
    host[0] = 1.0
    assert key(host) != before
    device = jnp.arange(3.0)
    assert key(device) == key(device) != key(jnp.arange(3.0))


def test_things_that_hold_themselves_end():
    loop = []
    loop.append(loop)
    assert key(loop) is not None


@pytest.mark.parametrize(
    "thing",
    [
        np.random.default_rng(0),
        (number for number in range(3)),
        time.perf_counter,
        random.random,
        random.Random(0).random,
        lambda: np.random.normal(),  # noqa: NPY002
        lambda: time.time(),
        {object()},
    ],
    ids=["generator", "iterator", "clock", "builtin", "method", "numpy", "module", "set"],
)
def test_what_nobody_knows_is_not_known(thing):
    assert contents(thing) is None


def test_what_is_traced_is_not_known():
    @jax.jit
    def inside(x):
        assert contents(lambda: x) is None
        return x

    inside(1.0)
