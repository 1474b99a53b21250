"""NumPyro's `init` as one compiled program.

NumPyro draws, transforms and differentiates one operation after the other, and every operation is a
program of its own: nearly two hundred are compiled before the first step. Traced as a whole they
are one. An autoguide keeps what it saw of the model in its first call: these arrays are results of
the program too, and take the places of the traced ones.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree
from numpyro import infer
from numpyro.infer.svi import SVIState

from vpng.numerics.trees import Tracer, is_traced
from vpng.numpyro_names import first_looks, without_vain_checks
from vpng.runtime.kept_tracers import kept_tracers, with_values
from vpng.runtime.programs import compiled_program


def first_state(
    svi: infer.SVI,
    rng_key: PRNGKeyArray,
    args: tuple,
    kwargs: dict[str, Any],
    init_params: dict[str, PyTree] | None,
) -> SVIState:
    """What `svi.init` returns, sooner; guide and `svi` are left as it leaves them.

    The data keep their values, which a model may read; only what is drawn is traced. What cannot be
    traced at all, or finds no valid start, is done by `svi.init` itself, which knows what to say.
    """
    init = lambda key: svi.init(key, *args, init_params=init_params, **kwargs)
    # Inside jit every new array is traced, whatever it is made of.
    given = (rng_key, args, kwargs, init_params, jnp.zeros(()))
    if any(map(is_traced, jax.tree.leaves(given))):
        return init(rng_key)
    # Drawing until a point is valid is a loop, as long as all the rest, and few models need it.
    for repeated in (False, True):
        attempt = _Attempt(svi, init, repeated=repeated)
        state = attempt.state(rng_key)
        if not attempt.not_valid:
            break
    return init(rng_key) if state is None else state


class _Attempt:
    """One attempt to run `init` as a program, after which nothing is changed unless it went well.

    Attributes:
        not_valid: whether the point that was found has no finite density or gradient.
    """

    def __init__(
        self, svi: infer.SVI, init: Callable[[PRNGKeyArray], SVIState], *, repeated: bool
    ) -> None:
        """Prepare.

        Args:
            svi: what is initialised.
            init: does so, from a key.
            repeated: whether a point is drawn again until it is valid.
        """
        self._init, self._repeated, self.not_valid = init, repeated, False
        own = [each for each in (svi.guide, svi.model) if _may_change(each)]
        self._before = {id(each): (each, dict(vars(each))) for each in [*own, svi]}
        self._tracers: list[Tracer] = []
        self._names: list[str] = []

    def state(self, rng_key: PRNGKeyArray) -> SVIState | None:
        """The state; None if there is no such program, or it finds no valid start."""
        state, said = None, []
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found, values, valid = compiled_program(self._traced, rng_key, num_steps=1)(rng_key)
            self.not_valid = not bool(valid)
            if not self.not_valid and self._put_back(values):
                state = found._replace(optim_state={n: found.optim_state[n] for n in self._names})
        except Exception:
            # Whatever it is: if it is a fault of the model, NumPyro's own `init` meets it too.
            state = None
        if state is None:
            self._undo()
            return None
        for each in said:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return state

    def _traced(self, rng_key: PRNGKeyArray) -> tuple[SVIState, list[Array], Bool[Array, ""]]:
        with without_vain_checks(), first_looks(repeated=self._repeated) as seen:
            try:
                state = self._init(rng_key)
            finally:
                for guide, attributes in seen.guides:
                    self._before.setdefault(id(guide), (guide, attributes))
        self._names = list(state.optim_state)
        self._tracers = kept_tracers(self._attributes())
        ends = jax.tree.leaves([found.param_info[1:] for found in seen.found])
        valid = [jnp.all(jnp.isfinite(leaf)) for leaf in ends]
        return state, list(self._tracers), jnp.all(jnp.asarray([True, *valid]))

    def _attributes(self) -> list[dict[str, Any]]:
        """Of all objects that may keep something of the trace."""
        return [vars(each) for each, _ in self._before.values()]

    def _put_back(self, values: list[Array]) -> bool:
        """Give every object its values; whether nothing traced is left."""
        whole = [each for each, _ in self._before.values()]
        for own in self._attributes():
            own.update(with_values(dict(own), self._tracers, values, whole))
        return not kept_tracers(self._attributes())

    def _undo(self) -> None:
        for each, attributes in self._before.values():
            vars(each).clear()
            vars(each).update(attributes)


def _may_change(function: Callable) -> bool:
    """Whether a call could change attributes: those of an object, but not of a plain function."""
    return hasattr(function, "__dict__") and not hasattr(function, "__code__")
