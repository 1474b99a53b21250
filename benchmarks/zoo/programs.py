"""The contenders as compiled programs: vpng with nothing set, and Adam with every step size."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import infer, optim
from numpyro.infer import Trace_ELBO

from vpng.numpyro import SVI
from zoo.case import Case


class Program:
    """An SVI that takes any number of steps in one call, from any state.

    Attributes:
        svi: initialised with the first seed; what it compiles serves all of them.
    """

    def __init__(self, case: Case, make: Callable[[], infer.SVI]) -> None:
        self.case = case
        self._make = make
        self.svi = make()
        self.first = self.svi.init(jax.random.key(0), *case.args)
        self.advance = jax.jit(self._advance)
        self.parameters = jax.jit(self.svi.get_params)

    def start(self, seed: int) -> Any:
        """The state before the first step, from a guide of its own."""
        if seed == 0:
            return self.first
        return self._make().init(jax.random.key(seed), *self.case.args)

    def _advance(self, state: Any, num_steps: int) -> tuple[Any, jax.Array]:
        """The state after further steps, and whether all losses were finite."""
        return self._steps(self.svi, state, num_steps)

    def _steps(self, svi: infer.SVI, state: Any, num_steps: int) -> tuple[Any, jax.Array]:
        def body(_: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
            state, finite = carry
            state, loss = svi.update(state, *self.case.args)
            return state, finite & jnp.isfinite(loss)

        return jax.lax.fori_loop(0, num_steps, body, (state, jnp.asarray(True)))


class Adam(Program):
    """NumPyro's SVI with Adam; `advance_lanes` runs several step sizes side by side."""

    def __init__(self, case: Case, num_particles: int) -> None:
        def make() -> infer.SVI:
            loss = Trace_ELBO(num_particles=num_particles)
            return infer.SVI(case.run, case.make_guide(), optim.Adam(1e-3), loss, **case.training)

        super().__init__(case, make)
        self.num_particles = num_particles
        self.advance_lanes = jax.jit(jax.vmap(self._lane, in_axes=(0, 0, None)))
        self.parameters_of_lanes = jax.jit(jax.vmap(self.svi.get_params))

    def _lane(self, state: Any, rate: jax.Array, num_steps: int) -> Any:
        svi = copy.copy(self.svi)
        svi.optim = optim.Adam(rate)
        return self._steps(svi, state, num_steps)[0]


def ours(case: Case) -> Program:
    """The SVI of vpng with its defaults."""
    return Program(case, lambda: SVI(case.run, case.make_guide(), **case.training))
