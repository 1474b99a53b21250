"""How the damping mu of F + mu I is shared between the two factors of a block."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.kronecker.factor_statistics import Factors


class AbstractFactorDamping(eqx.Module):
    """What is added to the diagonals of A and of G."""

    @abstractmethod
    def split(
        self, factors: Factors, damping: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The dampings of A and of G for a given mu."""


class PerFactor(AbstractFactorDamping):
    """mu on each factor, as in the paper: (A + mu I) (x) (G + mu I)."""

    def split(
        self, factors: Factors, damping: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return damping, damping


class FactoredTikhonov(AbstractFactorDamping):
    """(A + pi sqrt(mu) I) (x) (G + sqrt(mu) / pi I), whose last term is mu I.

    Attributes:
        balanced: whether pi^2 is the ratio of the mean eigenvalues of A and G, which makes the
            result independent of how the scale of F is shared between them; if not, pi = 1.
    """

    balanced: bool = eqx.field(default=True, static=True)

    def split(
        self, factors: Factors, damping: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        root = jnp.sqrt(damping)
        if not self.balanced:
            return root, root
        inputs, outputs = mean_eigenvalue(factors.inputs), mean_eigenvalue(factors.outputs)
        positive = (inputs > 0) & (outputs > 0)
        ratio = jnp.where(positive, inputs, 1.0) / jnp.where(positive, outputs, 1.0)
        pi = jnp.sqrt(ratio)
        return root * pi, root / pi


def mean_eigenvalue(factor: Float[Array, "n n"] | Float[Array, " n"]) -> Float[Array, ""]:
    """Trace / n of a full or a diagonal factor."""
    return jnp.mean(factor) if factor.ndim == 1 else jnp.trace(factor) / factor.shape[0]
