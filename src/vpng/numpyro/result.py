"""The result of `SVI.run`: NumPyro's, with how the run ended."""

from typing import Any, Self

import jax
from jaxtyping import Array, PyTree
from numpyro.infer.svi import SVIRunResult, SVIState

from vpng.run.history import History
from vpng.run.outcome import StopReason


class Ending:
    """How a run ended.

    Attributes:
        stop_reason: why.
        history: a record of every chunk, with losses as NumPyro reports them; None for a run inside
            a transformation.
        converged: whether the rule for stopping was met; None if there was none.
    """

    def __init__(
        self,
        stop_reason: StopReason = StopReason.STEPS,
        history: History | None = None,
        converged: bool | None = None,
    ) -> None:
        self.stop_reason = stop_reason
        self.history = history
        self.converged = converged

    # Results of two runs are trees of one structure, whatever ended them.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ending)

    def __hash__(self) -> int:
        return hash(Ending)


@jax.tree_util.register_pytree_node_class
class RunResult(SVIRunResult):
    """An `SVIRunResult` that knows how the run ended, and keeps it in copies and in trees.

    Attributes:
        ending: how the run ended.
    """

    ending: Ending

    def __new__(
        cls, params: PyTree, state: SVIState, losses: Array, ending: Ending | None = None
    ) -> Self:
        """NumPyro's three fields, and the ending."""
        self = super().__new__(cls, params, state, losses)
        self.ending = Ending() if ending is None else ending
        return self

    @property
    def stop_reason(self) -> StopReason:
        """Why the run ended."""
        return self.ending.stop_reason

    @property
    def history(self) -> History | None:
        """A record of every chunk of steps; None for a run inside a transformation."""
        return self.ending.history

    @property
    def converged(self) -> bool | None:
        """Whether a rule for stopping found that the ELBO no longer improves.

        None for a run of a fixed number of steps.
        """
        return self.ending.converged

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run; its checkpoint is the place to go on from."""
        return self.stop_reason is StopReason.INTERRUPTED

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**{**self._asdict(), **changes}, ending=self.ending)

    def __getnewargs__(self) -> tuple:
        return (*self, self.ending)

    def tree_flatten(self) -> tuple[tuple, Ending]:
        """NumPyro's fields as children."""
        return tuple(self), self.ending

    @classmethod
    def tree_unflatten(cls, ending: Ending, children: tuple) -> Self:
        """The result that was flattened."""
        params, state, losses = children
        return cls(params, state, losses, ending)
