"""The average of the iterates: the weights it claims, and where to find it."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vpng import InputError
from vpng.transform import averaged, iterate_average


def test_the_average_is_the_recursion_it_states():
    optimizer = iterate_average(optax.sgd(1.0), horizon=3.0, max_decay=0.7, period=2)
    params = {"w": jnp.array(0.0)}
    state = optimizer.init(params)
    wanted = 0.0
    for step in range(1, 9):
        updates, state = optimizer.update({"w": jnp.array(-1.0)}, state, params)
        params = optax.apply_updates(params, updates)
        if step % 2 == 0:
            keep = min(0.7, 1.0 - 3.0 / (step + 2.0)) ** 2
            wanted = keep * wanted + (1.0 - keep) * step
    assert float(params["w"]) == 8.0, "the updates themselves are untouched"
    np.testing.assert_allclose(averaged((None, {"a": state}))["w"], wanted, rtol=1e-6)


def test_a_constant_iterate_is_its_own_average():
    optimizer = iterate_average(optax.identity(), period=1)
    params = jnp.array([1.5, -2.0])
    state = optimizer.init(params)
    for _ in range(5):
        _, state = optimizer.update(jnp.zeros(2), state, params)
    np.testing.assert_allclose(averaged(state), params)


def test_no_average_is_refused():
    with pytest.raises(InputError, match="iterate_average"):
        averaged(optax.sgd(0.1).init(jnp.zeros(2)))


@pytest.mark.parametrize("options", [{"horizon": 0.5}, {"max_decay": 1.0}, {"period": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        iterate_average(optax.identity(), **options)
