"""optax's transformations, as the type checker should see ours."""

from collections.abc import Callable
from typing import Any

import optax
from jaxtyping import PyTree


def transformation(
    init: Callable[..., PyTree], update: Callable[..., tuple[Any, PyTree]]
) -> optax.GradientTransformationExtraArgs:
    """A transformation whose update may require keywords, which optax's own types do not allow.

    Args:
        init: parameters -> state.
        update: (updates, state, params, **keywords) -> (updates, state).
    """
    return optax.GradientTransformationExtraArgs(init, update)
