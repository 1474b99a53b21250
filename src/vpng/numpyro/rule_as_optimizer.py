"""`svi.optim`: what programs read from NumPyro's optimizer, answered by the rule of the steps."""

from typing import Any, NoReturn

from jaxtyping import PyTree

from vpng.errors import InputError
from vpng.numpyro.rules import AbstractRule, by_name, split_by_name
from vpng.numpyro_names import NumPyroOptim

NOT_INITIALISED = (
    "svi_state: expected an SVI that was initialised; call svi.init(rng_key, *args) or "
    "svi.run(...) on this object first."
)

_USE_UPDATE = (
    "svi.optim.{method}: expected svi.update(svi_state, *args) instead, since a step needs the "
    "curvature at the model's arguments and not the gradient alone."
)


def _nothing() -> tuple[None, None, None]:
    return None, None, None


class Passing(NumPyroOptim):
    """Hands on the parameters that NumPyro's `init` finds."""

    def __init__(self) -> None:
        super().__init__(_nothing)

    def init(self, params: PyTree) -> PyTree:
        return params


class RuleAsOptimizer(NumPyroOptim):
    """The rule of one SVI in the shape of a NumPyro optimizer, to read and to start states with.

    Attributes:
        rule: None before `svi.init`.
        model_names: parameters of the model alone.
    """

    def __init__(
        self, rule: AbstractRule | None = None, model_names: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(_nothing)
        self.rule = rule
        self.model_names = model_names

    def init(self, params: dict[str, PyTree]) -> PyTree:
        """The state of the first step from unconstrained parameters."""
        return self._rule().init(split_by_name(params, self.model_names))

    def get_params(self, state: PyTree) -> dict[str, PyTree]:
        """The unconstrained parameters of a state."""
        self._rule()
        return by_name(state.accepted)

    def update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(_USE_UPDATE.format(method="update"))

    def eval_and_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(_USE_UPDATE.format(method="eval_and_update"))

    def eval_and_stable_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(_USE_UPDATE.format(method="eval_and_stable_update"))

    def _rule(self) -> AbstractRule:
        if self.rule is None:
            raise InputError(NOT_INITIALISED)
        return self.rule
