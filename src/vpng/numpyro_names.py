"""NumPyro's names without a promise: everything the library uses of them.

`tests/numpyro/conformance/test_private_names.py` says what is relied on.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from numpyro import primitives
from numpyro.distributions.distribution import Distribution, MaskedDistribution, Unit
from numpyro.infer import autoguide, elbo, util
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.util import ModelInfo
from numpyro.optim import _NumPyroOptim as NumPyroOptim
from numpyro.optim import optax_to_numpyro

from vpng.numerics.trees import is_traced

CHECKED_WITH = ("0.22",)
"""Versions, by their first two numbers, that the tests were run with."""

__all__ = [
    "CHECKED_WITH",
    "FirstLook",
    "NumPyroOptim",
    "Unit",
    "first_looks",
    "is_handled",
    "is_validating",
    "mask_of",
    "names_in_order",
    "optax_to_numpyro",
    "without_vain_checks",
]


def mask_of(distribution: MaskedDistribution) -> Bool[Array, "..."]:
    """What a distribution counts of its batch."""
    return jnp.broadcast_to(jnp.asarray(distribution._mask), distribution.batch_shape)


def is_handled() -> bool:
    """Whether this is inside a handler of NumPyro's, which then changes what a model does."""
    return bool(primitives._PYRO_STACK)


def is_validating() -> bool:
    """Whether distributions check their arguments."""
    return bool(Distribution._validate_args)


class FirstLook(NamedTuple):
    """What autoguides do when they are first called: they run the model, and keep what they saw.

    Attributes:
        guides: those that did, each with its attributes before.
        found: the point that each starts from, with the density and its gradient there.
    """

    guides: list[tuple[AutoGuide, dict[str, Any]]]
    found: list[ModelInfo]


_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def first_looks(*, repeated: bool) -> Iterator[FirstLook]:
    """Notes the first looks of autoguides inside.

    Args:
        repeated: whether another point is drawn while the last one is not valid, as NumPyro does;
            else the first is taken as it is.
    """
    seen = FirstLook([], [])

    def set_up(guide: AutoGuide, *args: Any, **kwargs: Any) -> None:
        seen.guides.append((guide, dict(vars(guide))))
        _set_up(guide, *args, **kwargs)

    def initialize(*args: Any, **kwargs: Any) -> ModelInfo:
        seen.found.append(_initialize(*args, **kwargs))
        return seen.found[-1]

    def once(valid: Callable, body: Callable, state: Any) -> Any:
        return body(state)

    with _ONE_AT_A_TIME:
        _set_up: Callable = AutoGuide._setup_prototype
        _initialize: Callable = autoguide.initialize_model
        with (
            patch.object(AutoGuide, "_setup_prototype", set_up),
            patch.object(autoguide, "initialize_model", initialize),
            patch.object(util, "while_loop", util.while_loop if repeated else once),
        ):
            yield seen


@contextmanager
def without_vain_checks() -> Iterator[None]:
    """Inside, distributions check what is known, and no argument whose value is not yet.

    NumPyro computes the check and then leaves it: a fifth of what is traced in a step.
    """
    with _ONE_AT_A_TIME:
        check: Callable = Distribution.validate_args

        def check_what_is_known(distribution: Distribution, strict: bool = True) -> None:
            if strict:
                check(distribution, strict)
                return
            arguments = distribution.get_args()
            # Of arrays on the host nothing is compiled.
            known = {
                name: np.asarray(value) if isinstance(value, jax.Array) else value
                for name, value in arguments.items()
                if not is_traced(value)
            }
            if known:
                with patch.object(distribution, "get_args", lambda: known):
                    check(distribution, strict)

        with patch.object(Distribution, "validate_args", check_what_is_known):
            yield


class _Sorted(set):
    """A set that is gone through in the same order in every process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(set.__iter__(self), key=str))

    def union(self, *others: Any) -> "_Sorted":
        # NumPyro calls it on the class too, where the first one is a plain set.
        return _Sorted(set.union(self, *others))


@contextmanager
def names_in_order() -> Iterator[None]:
    """Inside, `Trace_ELBO` adds up its sites in the order of their names.

    NumPyro goes through a set of names, so that the sum, and with it the last bits of a run and the
    text of its program, would be other ones in the next process.
    """
    with _ONE_AT_A_TIME, patch.object(elbo, "set", _Sorted, create=True):
        yield
