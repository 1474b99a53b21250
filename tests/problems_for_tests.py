"""Small problems with every combination that the library claims to support.

`LocalProblem` and `GlobalProblem` draw a Gaussian z and map it through a little nonlinear decoder
to the natural parameters of any likelihood family. `SwitchLocal` and `SwitchGlobal` have Bernoulli
latents, `ChoiceGlobal` a Categorical one, whose expectations are finite sums.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from vpng import Parameters, Problem

NUM_FEATURES = 2
NUM_OUTPUTS = 3
NUM_LATENTS = 2


def _normal(outputs, model):
    return dist.Normal(outputs[..., 0], jnp.exp(0.3 * outputs[..., 1]))


def _bernoulli(outputs, model):
    return dist.Bernoulli(logits=outputs).to_event(1)


def _binomial(outputs, model):
    return dist.Binomial(total_count=4, logits=outputs[..., 0])


def _categorical(outputs, model):
    return dist.Categorical(logits=outputs)


def _poisson(outputs, model):
    return dist.Poisson(jnp.exp(0.5 * outputs)).to_event(1)


def _multivariate_normal(outputs, model):
    tril = jnp.array([[1.0, 0.0], [0.7, 0.4]]) * jnp.exp(0.1 * model["shift"][0])
    return dist.MultivariateNormal(outputs[..., :2], scale_tril=tril)


def _gamma(outputs, model):
    return dist.Gamma(jnp.exp(0.3 * outputs[..., 0]), jnp.exp(0.3 * outputs[..., 1]))


FAMILIES: dict[str, Callable[..., dist.Distribution]] = {
    "normal": _normal,
    "bernoulli": _bernoulli,
    "binomial": _binomial,
    "categorical": _categorical,
    "poisson": _poisson,
    "multivariate_normal": _multivariate_normal,
    "gamma": _gamma,
}

SUPPORTS: dict[str, np.ndarray] = {
    "bernoulli": np.array([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)]),
    "binomial": np.arange(5),
    "categorical": np.arange(3),
}
"""The outcomes x' of one datum, for the families that have finitely many."""

OBSERVATIONS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda generator, count: generator.normal(size=count),
    "bernoulli": lambda generator, count: generator.integers(0, 2, (count, NUM_OUTPUTS)),
    "binomial": lambda generator, count: generator.integers(0, 5, count),
    "categorical": lambda generator, count: generator.integers(0, NUM_OUTPUTS, count),
    "poisson": lambda generator, count: generator.poisson(1.0, (count, NUM_OUTPUTS)),
    "multivariate_normal": lambda generator, count: generator.normal(size=(count, 2)),
    "gamma": lambda generator, count: generator.gamma(1.0, size=count),
}
"""So many data that the family can give, whatever the parameters."""


class _Decoded(Problem):
    num_data: int
    family: str

    def prior(self, model: Any, batch: Any) -> dist.Distribution:
        shape = (batch["inputs"].shape[0], NUM_LATENTS) if self.local else (NUM_LATENTS,)
        return dist.Normal(jnp.zeros(shape), 1.0).to_event(1)

    def likelihood(self, model: Any, latent: Any, batch: Any) -> dist.Distribution:
        context = batch["inputs"] @ model["inputs"]
        outputs = jnp.tanh(latent @ model["latents"] + context) * 1.5 + model["shift"]
        return FAMILIES[self.family](outputs, model)

    def observed(self, batch: Any) -> Any:
        return batch["observed"]

    def batch_size(self, batch: Any) -> int:
        return batch["inputs"].shape[0]


class LocalProblem(_Decoded):
    """z_i ~ N(0, I), q(z_i | x_i) with a linear encoder: one latent vector a datum."""

    num_data: int
    family: str
    local: bool = True

    def approximation(self, variational: Any, batch: Any) -> dist.Distribution:
        mean = batch["inputs"] @ variational["weights"] + variational["bias"]
        return dist.Normal(mean, jnp.exp(variational["log_scale"])).to_event(1)


class GlobalProblem(_Decoded):
    """One z ~ N(0, I) for all data."""

    num_data: int
    family: str
    local: bool = False

    def approximation(self, variational: Any, batch: Any) -> dist.Distribution:
        return dist.Normal(variational["bias"], jnp.exp(variational["log_scale"])).to_event(1)


def random_problem(
    kind: str, family: str, seed: int, num_data: int = 3, num_total: int | None = None
):
    """A problem, parameters and a batch; arrays in the default precision of the moment."""
    generator = np.random.default_rng(seed)
    normal = lambda *shape, loc=0.0, scale=0.6: jax.device_put(
        loc + scale * generator.normal(size=shape)
    )
    bias, log_scale = normal(NUM_LATENTS), normal(NUM_LATENTS, loc=-0.5, scale=0.3)
    variational = {"bias": bias, "log_scale": log_scale}
    if kind == "local":
        variational["weights"] = normal(NUM_FEATURES, NUM_LATENTS)
    model = {
        "inputs": normal(NUM_FEATURES, NUM_OUTPUTS),
        "latents": normal(NUM_LATENTS, NUM_OUTPUTS),
        "shift": normal(NUM_OUTPUTS, scale=0.2),
    }
    inputs = normal(num_data, NUM_FEATURES, scale=1.0)
    cls = LocalProblem if kind == "local" else GlobalProblem
    problem = cls(num_data=num_total or num_data, family=family)
    parameters = Parameters(variational, model)
    observed = jax.device_put(OBSERVATIONS[family](generator, num_data))
    return problem, parameters, {"inputs": inputs, "observed": observed}


class SwitchGlobal(Problem):
    """z ~ Bernoulli(1/2)^2 for all data, x_i ~ N(theta . z, 1), q(z) = Bernoulli(logits)^2."""

    num_data: int
    local: bool = False

    def approximation(self, variational: Any, batch: Any) -> dist.Distribution:
        return dist.Bernoulli(logits=variational).to_event(1)

    def prior(self, model: Any, batch: Any) -> dist.Distribution:
        return dist.Bernoulli(probs=jnp.full((2,), 0.5)).to_event(1)

    def likelihood(self, model: Any, latent: Any, batch: Any) -> dist.Distribution:
        return dist.Normal(jnp.broadcast_to(latent @ model, batch.shape), 1.0)

    def observed(self, batch: Any) -> Any:
        return batch


class SwitchLocal(Problem):
    """z_i ~ Bernoulli(1/2), x_i ~ N(theta_0 + theta_1 z_i, 1), q(z_i) = Bernoulli(a + b x_i)."""

    num_data: int
    local: bool = True

    def approximation(self, variational: Any, batch: Any) -> dist.Distribution:
        return dist.Bernoulli(logits=variational[0] + variational[1] * batch)

    def prior(self, model: Any, batch: Any) -> dist.Distribution:
        return dist.Bernoulli(probs=jnp.full(batch.shape, 0.5))

    def likelihood(self, model: Any, latent: Any, batch: Any) -> dist.Distribution:
        return dist.Normal(model[0] + model[1] * latent, 1.0)

    def observed(self, batch: Any) -> Any:
        return batch


class ChoiceGlobal(Problem):
    """z ~ Categorical(1/4 each) for all data, x_i ~ N(theta_0 + theta_1 z, 1), q by its logits."""

    num_data: int
    local: bool = False

    def approximation(self, variational: Any, batch: Any) -> dist.Distribution:
        return dist.Categorical(logits=variational)

    def prior(self, model: Any, batch: Any) -> dist.Distribution:
        return dist.Categorical(logits=jnp.zeros(4))

    def likelihood(self, model: Any, latent: Any, batch: Any) -> dist.Distribution:
        return dist.Normal(jnp.broadcast_to(model[0] + model[1] * latent, batch.shape), 1.0)

    def observed(self, batch: Any) -> Any:
        return batch


def relative_error(actual: Any, wanted: Any) -> float:
    """|actual - wanted| / |wanted| in the Euclidean (Frobenius) norm."""
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    return float(np.linalg.norm(actual - wanted) / np.linalg.norm(wanted))
