"""Variational matrix factorisation, Section 5.3: users' latents inferred from their rows."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float, Num, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.errors import expected
from vpng.problem import Parameters
from vpng.problems.amortised import AmortisedNormal
from vpng.problems.likelihoods import pair
from vpng.problems.networks import GLOROT, TRUNCATED_NORMAL, mlp_apply, mlp_init
from vpng.problems.softplus_poisson import Counted, PoissonRow, log_softplus


class MatrixFactorization(AmortisedNormal):
    """beta_u ~ N(0, I), R_ui ~ Poisson(softplus(beta_u . theta_i)), q(beta_u | R_u) = N(loc, s^2).

    loc and log s are the outputs of a perceptron at log(1 + R_u); its weights are lambda, and
    theta = `[latent_dim, num_items]` is the model's parameter: with the perceptron's layers one
    more layer, without bias. A batch is `Counted` rows.

    Attributes:
        num_data: the number of users.
        num_items: the length of a row.
        latent_dim: the length of beta_u.
        dropout: the chance that a count is hidden from the perceptron in one draw of eps; what is
            left is scaled up. The bound stays a bound, of a mixture of approximations.
    """

    num_data: int = eqx.field(static=True)
    num_items: int = eqx.field(static=True)
    latent_dim: int = eqx.field(static=True)
    dropout: float = eqx.field(default=0.0, static=True)

    def __check_init__(self) -> None:
        for name in ("num_data", "num_items", "latent_dim"):
            positive_integer(name, getattr(self, name))
        if not 0.0 <= self.dropout < 1.0:
            raise expected("dropout", "a chance in [0, 1)", self.dropout)

    def init(
        self,
        rng_key: PRNGKeyArray,
        *,
        hidden: Sequence[int] = (300, 300),
        initialiser: Initializer = GLOROT,
    ) -> Parameters:
        """Weights drawn by `initialiser`; biases start at zero."""
        encoder_key, items_key = jax.random.split(rng_key)
        sizes = (self.num_items, *hidden, 2 * self.latent_dim)
        encoder = mlp_init(encoder_key, sizes, initialiser)
        items = initialiser(items_key, (self.latent_dim, self.num_items), jnp.result_type(float))
        return Parameters(encoder, items)

    def noise_dtype(self, batch: Counted) -> jnp.dtype:
        return batch.log_factorials.dtype

    def features(self, batch: Counted) -> Float[Array, "B m"]:
        """What the perceptron sees: log(1 + R_u)."""
        if batch.counts.shape[-1] != self.num_items:
            raise expected("batch", f"rows of {self.num_items} items", batch.counts.shape)
        return jnp.log1p(batch.counts.astype(self.noise_dtype(batch)))

    def encode(
        self, variational: PyTree, batch: Counted
    ) -> tuple[Float[Array, "B k"], Float[Array, "B k"]]:
        return pair("encoder", mlp_apply(variational, self.features(batch)))

    def likelihood(
        self, model: Float[Array, "k m"], latent: Float[Array, "B k"], batch: Counted
    ) -> PoissonRow:
        return PoissonRow(latent @ model)

    def observed(self, batch: Counted) -> Counted:
        return batch

    def noise(self, rng_key: PRNGKeyArray, batch: Counted) -> PyTree:
        normal = super().noise(rng_key, batch)
        if not self.dropout:
            return normal
        keep_key = jax.random.fold_in(rng_key, 1)
        return normal, jax.random.bernoulli(keep_key, 1.0 - self.dropout, batch.counts.shape)

    def encode_noisy(
        self, variational: PyTree, noise: PyTree, batch: Counted
    ) -> tuple[Float[Array, "B k"], Float[Array, "B k"], Float[Array, "B k"]]:
        if not self.dropout:
            return super().encode_noisy(variational, noise, batch)
        eps, kept = noise
        seen = jnp.where(kept, self.features(batch) / (1.0 - self.dropout), 0.0)
        return *pair("encoder", mlp_apply(variational, seen)), eps

    def whole(self) -> "MatrixFactorization":
        """The same problem without dropout, to be measured with."""
        return MatrixFactorization(self.num_data, self.num_items, self.latent_dim)


def paper_factorization(
    rng_key: PRNGKeyArray, num_users: int, num_items: int
) -> tuple[MatrixFactorization, Parameters]:
    """Section 5.3: 100 latent dimensions and three layers of 300, 300 and 2 x 100 units."""
    problem = MatrixFactorization(num_data=num_users, num_items=num_items, latent_dim=100)
    return problem, problem.init(rng_key, initialiser=TRUNCATED_NORMAL)


def leading_directions(num_users: int, num_items: int) -> int:
    """How many directions of the rows an optimizer in their eigenbasis may move in.

    Rows of counts have no few leading directions, as images do: with users enough all are kept.
    Directions that hardly any user points in are noise, so there are thirty users to each.
    """
    return max(min(num_items, num_users // 30), 150)


def expected_counts(
    problem: MatrixFactorization, parameters: Parameters, batch: Counted, *, num_steps: int = 0
) -> Float[Array, "B m"]:
    """softplus(beta . theta_i) at the mean of q(beta | R_u), or `num_steps` closer to the mode."""
    loc, _ = problem.encode(parameters.variational, batch)
    if num_steps:
        loc = towards_mode(parameters.model, loc, batch.counts, num_steps)
    return jax.nn.softplus(loc @ parameters.model)


def towards_mode(
    theta: Float[Array, "k m"],
    start: Float[Array, "B k"],
    counts: Num[Array, "B m"],
    num_steps: int,
) -> Float[Array, "B k"]:
    """Steps of Fisher scoring towards the mode of p(beta | R_u, theta), each user alone.

    With t = beta . theta the score in t is R s / r - s for r = softplus(t) and its slope s, and
    the Fisher information s^2 / r; the prior adds -beta and I. Steps are 0.7 of the full one, which
    overshoots where the Fisher information is below the curvature.
    """
    identity = jnp.eye(len(theta), dtype=theta.dtype)

    def one(pair: tuple[Float[Array, " k"], Num[Array, " m"]]) -> Float[Array, " k"]:
        def step(_: int, beta: Float[Array, " k"]) -> Float[Array, " k"]:
            t = beta @ theta
            slope = jax.nn.sigmoid(t)
            # s / r, which tends to 1 where both underflow.
            ratio = jnp.exp(jax.nn.log_sigmoid(t) - log_softplus(t))
            gradient = theta @ (pair[1] * ratio - slope) - beta
            fisher = (theta * (slope * ratio)) @ theta.T + identity
            return beta + 0.7 * jnp.linalg.solve(fisher, gradient)

        return jax.lax.fori_loop(0, num_steps, step, pair[0])

    return jax.lax.map(one, (start, counts.astype(theta.dtype)), batch_size=64)
