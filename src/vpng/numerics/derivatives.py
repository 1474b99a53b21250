"""Derivatives in forward mode, where there are any.

A part of a function may know its derivative in reverse mode alone (`jax.custom_vjp`), as the
solvers of differential equations do. The rows of its Jacobian are then pulled back one by one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

Push = Callable[[PyTree], Array]
Pull = Callable[[Array], PyTree]


def jacobian(
    function: Callable[[Float[Array, " n"]], Array], point: Float[Array, " n"]
) -> Float[Array, "... n"]:
    """The derivative of every entry, in forward mode if it can be."""
    try:
        return jax.jacfwd(function)(point)
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
    return jax.jacrev(function)(point)


def linearised(function: Callable[[PyTree], Array], point: PyTree) -> tuple[Push, Pull]:
    """The maps v -> J v and w -> J^T w; J itself is formed where there is no forward mode."""
    _, push = jax.linearize(function, point)
    transposed = jax.linear_transpose(push, point)
    pull = lambda rows: transposed(rows)[0]
    # JAX says only when it pushes that it cannot.
    if "custom_lin" not in primitives(jax.make_jaxpr(push)(point)):
        return push, pull
    flat, unravel = ravel_pytree(point)
    matrix = jax.jacrev(lambda vector: function(unravel(vector)))(flat)
    return lambda vector: matrix @ ravel_pytree(vector)[0], pull


def primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives of a program, those inside loops and calls too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for part in parts(equation):
            yield from primitives(part)


def parts(equation: Any) -> Iterator[Any]:
    """The programs that an equation runs."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(part, "eqns"):
                yield part
