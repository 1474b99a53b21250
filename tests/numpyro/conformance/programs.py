"""A promise of NumPyro's documentation is a program: what it must do, whoever runs it."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import infer
from numpyro.infer import Trace_ELBO
from numpyro.infer.svi import SVIState

from vpng.numpyro import SVI

KEY = jax.random.key(0)
Y = np.array([0.3, 1.2, 0.7, 1.5, 0.1], np.float32)
STEPS = 40


class Program(NamedTuple):
    """What an SVI is made of and called with."""

    model: Callable
    guide: Callable
    args: tuple = (Y,)
    kwargs: dict[str, Any] = {}  # noqa: RUF012
    loss: Any = None
    static: dict[str, Any] = {}  # noqa: RUF012

    def made_by(self, make):
        """The SVI that a maker of the fixture makes of it."""
        loss = Trace_ELBO() if self.loss is None else self.loss
        return make(self.model, self.guide, loss, **self.static)


class Begun(NamedTuple):
    """What NumPyro makes of a program."""

    svi: infer.SVI
    state: SVIState
    params: dict[str, Any]
    loss: jax.Array


def as_numpyro(make, program: Callable[[], Program]):
    """The same start and the same loss from the same key; a step keeps the shapes of the state."""
    mine, its = program(), with_numpyro(program)
    svi, state = mine.made_by(make), its.state
    if isinstance(svi, SVI):
        state = svi.init(KEY, *mine.args, **mine.kwargs)
        assert_same(svi.get_params(state), its.params)
        # One operation after the other: they are the same in all programs, and compiled already.
        assert_same(svi.evaluate(state, *mine.args, **mine.kwargs), its.loss)
    else:
        svi = its.svi
    after, loss = jax.eval_shape(svi.update, state, *mine.args, **mine.kwargs)
    assert shapes(after) == shapes(state)
    assert loss.shape == ()


@cache
def with_numpyro(program: Callable[[], Program]) -> Begun:
    """The parameters that NumPyro begins with, and the loss there."""
    its = program()
    make = lambda model, guide, loss, **static: infer.SVI(
        model, guide, numpyro.optim.Adam(0.05), loss, **static
    )
    svi = its.made_by(make)
    state = svi.init(KEY, *its.args, **its.kwargs)
    params = svi.get_params(state)
    _, key = jax.random.split(state.rng_key)
    # Its `evaluate` loses the mutable state, and then has no value for some networks.
    values = {**params, **(state.mutable_state or {})}
    named = {**its.kwargs, **its.static}
    loss = svi.loss.loss(key, values, its.model, its.guide, *its.args, **named)
    return Begun(svi, state, params, loss)


def lowers_the_loss(make, program: Callable[[], Program], steps: int = STEPS):
    """Many steps end lower than they began, on the same draws, and at finite parameters."""
    mine = program()
    svi = mine.made_by(make)
    begun = svi.init(KEY, *mine.args, **mine.kwargs)
    result = svi.run(KEY, steps, *mine.args, init_state=begun, progress_bar=False, **mine.kwargs)
    assert result.losses.shape == (steps,)
    assert np.all(np.isfinite(result.losses))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(result.params))
    one = lambda state, key: svi.evaluate(state._replace(rng_key=key), *mine.args, **mine.kwargs)
    mean = jax.jit(lambda state: jnp.mean(jax.vmap(partial(one, state))(jax.random.split(KEY, 64))))
    assert mean(result.state) < mean(begun)
    return svi, result


def shapes(tree):
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
