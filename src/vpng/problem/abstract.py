"""What inference needs of a model and its approximation, and nothing else: the single seam."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.errors import expected


class Parameters(NamedTuple):
    """The parameters eta = (lambda, theta), each any pytree of floating arrays."""

    variational: PyTree
    model: PyTree = ()


class Site(NamedTuple):
    """One conditional distribution of a problem.

    Attributes:
        distribution: given its parents.
        value: what it takes in the loss.
        scale: its weight in the loss per datum.
        moving: whether the value moves with the parameters, as a latent does and an observation
            does not.
        name: what messages call it; empty if it is the only one of its kind.
    """

    distribution: dist.Distribution
    value: Any
    scale: Float[Array, "..."] | float
    moving: bool = False
    name: str = ""


def is_distribution(node: Any) -> bool:
    """Whether a node of a pytree is a distribution."""
    return isinstance(node, dist.Distribution)


def distributions_of(tree: PyTree) -> list[dist.Distribution]:
    """The distributions of a pytree whose leaves are distributions."""
    leaves = jax.tree.leaves(tree, is_leaf=is_distribution)
    for leaf in leaves:
        if not is_distribution(leaf):
            raise expected("distributions", "NumPyro distributions", type(leaf).__name__)
    return leaves


class AbstractProblem(eqx.Module):
    """A latent-variable model p(z) p(x | z; theta) with an approximation q(z | x; lambda).

    Write a `Problem`, which is four distributions; a NumPyro model and guide are a problem of their
    own kind. The weights 1/B and 1/n that make everything an average per datum are given here.

    Attributes:
        num_data: number of data n in the whole set, of which a batch may be a part.
        local: whether each datum has its own latent variables.
    """

    num_data: eqx.AbstractVar[int]
    local: eqx.AbstractVar[bool]

    @abstractmethod
    def batch_size(self, batch: PyTree) -> int:
        """The number of data in `batch`."""

    @abstractmethod
    def first_data(self, batch: PyTree, count: int) -> PyTree:
        """At most `count` data of `batch`; refused where a batch has no parts."""

    @abstractmethod
    def reparameterised(self, variational: PyTree, batch: PyTree) -> bool:
        """Whether gradients flow from z to lambda."""

    @abstractmethod
    def has_held_density(self) -> bool:
        """Whether log q(z; lambda) is known for a z that is held fixed, as F_q needs it.

        For a flow it takes the inverse of its network.
        """

    @abstractmethod
    def sums_over_latents(self) -> bool:
        """Whether the loss sums over some of the latents, so that p(x, z) has no single value."""

    @abstractmethod
    def noise(self, rng_key: PRNGKeyArray, batch: PyTree) -> PyTree:
        """Draw eps ~ s(eps), free of parameters; for local latents the data come first."""

    @abstractmethod
    def latent(self, variational: PyTree, noise: PyTree, batch: PyTree) -> PyTree:
        """The reparameterisation z = g(x, eps; lambda), eq. (repara)."""

    @abstractmethod
    def latent_for_sites(self, parameters: Parameters, noise: PyTree, batch: PyTree) -> PyTree:
        """`latent`, with a draw of whatever else the conditional distributions depend on."""

    @abstractmethod
    def kl(self, parameters: Parameters, latent: PyTree, batch: PyTree) -> Float[Array, "..."]:
        """KL(q || p) of each datum (local) or of all (global), or an estimate of it."""

    @abstractmethod
    def latent_and_kl(
        self, parameters: Parameters, noise: PyTree, batch: PyTree
    ) -> tuple[PyTree, Float[Array, "..."]]:
        """`latent` and `kl` together, which may share work, such as an encoder."""

    @abstractmethod
    def latent_and_log_ratio(
        self, parameters: Parameters, noise: PyTree, batch: PyTree
    ) -> tuple[PyTree, Float[Array, ""]]:
        """`latent` and log q(z) - log p(z) at it, over all latents of the batch."""

    @abstractmethod
    def likelihood_sites(self, model: PyTree, latent: PyTree, batch: PyTree) -> list[Site]:
        """The observed sites with their weight: the loss per datum is an average."""

    @abstractmethod
    def approximation_sites(self, variational: PyTree, latent: PyTree, batch: PyTree) -> list[Site]:
        """The latent sites under q with their weight."""

    @abstractmethod
    def prior_sites(self, model: PyTree, latent: PyTree, batch: PyTree) -> list[Site]:
        """The latent sites under p with their weight."""

    @abstractmethod
    def roots(self, model: PyTree, latent: PyTree, batch: PyTree) -> list[bool]:
        """Of each prior site, whether it has no parents: neither parameters nor latents."""

    def has_log_factors(self) -> bool:
        """Whether anything is added to the log density that is no distribution."""
        return False

    def log_factors(self, model: PyTree, latent: PyTree, batch: PyTree) -> Float[Array, " F"]:
        """What is added to the log density and is no distribution, element by element."""
        return jnp.zeros(0)

    @abstractmethod
    def latent_weight(self, batch: PyTree) -> float:
        """The weight of a latent's KL in the loss per datum."""
