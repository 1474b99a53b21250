"""One model with one guide and its data."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import init_to_feasible
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal


@dataclass(frozen=True)
class Case:
    """What a contender is given.

    Attributes:
        model: name of the model.
        guide: name of the guide.
        run: the model.
        make_guide: a new guide; one for each start, since autoguides keep their first.
        args: the data.
        training: keyword arguments while training only, such as the size of a minibatch.
        elbo_divisor: 1, or the number of data where the ELBO is counted per datum.
        elbo_samples: for a first look at an ELBO, and for one that counts.
    """

    model: str
    guide: str
    run: Callable
    make_guide: Callable[[], Callable]
    args: tuple
    training: dict[str, Any] = field(default_factory=dict)
    elbo_divisor: int = 1
    elbo_samples: tuple[int, int] = (128, 2000)

    @property
    def name(self) -> str:
        """Unique over all cases."""
        return f"{self.model}/{self.guide}"


def num_latents(case: Case) -> int:
    """Numbers that are not known."""

    def values() -> dict[str, jax.Array]:
        model = handlers.substitute(handlers.seed(case.run, 0), substitute_fn=init_to_feasible)
        return {
            name: site["value"]
            for name, site in handlers.trace(model).get_trace(*case.args).items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(values)))


def normal_guides(model: str, run: Callable, args: tuple, *, full: bool = True) -> tuple[Case, ...]:
    """The model with a factorised normal guide and, if `full`, with one of full covariance."""
    args = tuple(jnp.asarray(_single(array)) for array in args)
    factorised = Case(model, "AutoNormal", run, lambda: AutoNormal(run), args)
    if not full:
        return (factorised,)
    return factorised, Case(
        model, "AutoMultivariateNormal", run, lambda: AutoMultivariateNormal(run), args
    )


def _single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
