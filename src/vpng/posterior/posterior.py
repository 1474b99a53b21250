"""A posterior with its errors, a verdict, and ways onwards."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer import Predictive

from vpng.checks import positive_integer
from vpng.errors import expected
from vpng.posterior import programs
from vpng.posterior.approximate import Budget, Found, Guide, approximate
from vpng.posterior.density import LogDensity, log_density
from vpng.posterior.exchange import CHAINS, to_arviz
from vpng.posterior.fixed_draws import fixed_draws
from vpng.posterior.frame import Full, unit_frame
from vpng.posterior.hand_over import HandedOver, nuts
from vpng.posterior.linear_response import delta_method
from vpng.posterior.mean_field import MeanField
from vpng.posterior.metric import fitted_metric, metric_of
from vpng.posterior.saved import load, save
from vpng.posterior.summary import Summary, summarise
from vpng.posterior.verdict import Verdict
from vpng.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import DataTree


class Posterior:
    """What is known of a model's latents after the data; printed, a table and the verdict.

    Attributes:
        density: log p(x, z) in unconstrained latents.
        found: everything that was found out.
        guide: the approximation that it is compared with: the user's, or the factorised one.
    """

    def __init__(self, density: LogDensity, found: Found, guide: Guide | None = None) -> None:
        best = found.modes[0]
        self.density = density
        self.found = found
        self.guide = Guide(best.loc, best.scale) if guide is None else guide

    @property
    def verdict(self) -> Verdict:
        """What to make of it."""
        return self.found.verdict

    @property
    def k_hat(self) -> float:
        """The shape of the tail of the importance weights."""
        return self.found.weighted.k_hat

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Log p(x) and its standard error, which is NaN where it is not to be relied on."""
        value, error = self.found.evidence
        return value, error

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Latents and deterministic sites at all draws, along the first axis."""
        return self._constrained(self.found.draws.z)

    @cached_property
    def summary(self) -> Summary:
        """A row for every entry of every site."""
        return summarise(self.values, self.found.draws)

    def __str__(self) -> str:
        value, error = self.found.evidence
        about = f" ± {error:.2g}" if np.isfinite(error) else ", its error unknown"
        return f"{self.summary}\n\nlog evidence {value:.2f}{about}\n{self.verdict}"

    def covariance(self) -> Float[np.ndarray, "P P"]:
        """Of the unconstrained latents, by linear response.

        Raises:
            InputError: where matrices of all latents are not formed; see `covariance_of`.
        """
        frame = self.found.modes[0].frame
        if not isinstance(frame, Full):
            raise expected(
                "posterior.covariance", "no more latents than Budget.max_latents",
                f"{self.density.size}; posterior.covariance_of takes chosen quantities",
            )  # fmt: skip
        return frame.covariance()

    def covariance_of(
        self, function: Callable[[dict[str, Array]], Array]
    ) -> Float[np.ndarray, "K K"]:
        """The covariance of a function of the sites' values, to first order (delta method).

        By linear response, for thousands of latents too: no matrix of all of them is formed.
        """
        flat = lambda z: jnp.atleast_1d(function(self.density.constrained(z))).reshape(-1)
        at = self.found.modes[0].frame.centre
        return np.asarray(delta_method(flat, at, self._times_covariance))

    def _times_covariance(self, slopes: Float[Array, "K P"]) -> Float[Array, "K P"]:
        best = self.found.modes[0]
        if isinstance(best.frame, Full):
            return slopes @ best.frame.root @ best.frame.root.T
        frame = unit_frame(self.density.size, full=False)
        dtype = frame.centre.dtype
        draws = jnp.asarray(fixed_draws(self.density.size, self.found.seed), dtype)
        point = MeanField(jnp.asarray(best.loc, dtype), jnp.asarray(np.log(best.scale), dtype))
        return programs.run(
            programs.response_along, self.density, frame, draws, point, slopes, batch=draws.shape[1]
        )

    def sample(self, rng_key: PRNGKeyArray, num_draws: int = 1000) -> dict[str, np.ndarray]:
        """Draws of equal weight of all sites."""
        chosen = self._chosen(rng_key, positive_integer("num_draws", num_draws))
        return {name: value[chosen] for name, value in self.values.items()}

    def predict(
        self, rng_key: PRNGKeyArray, *args: Any, num_draws: int = 1000, **kwargs: Any
    ) -> dict[str, Array]:
        """Draws from the predictive distribution for these arguments of the model.

        Args:
            rng_key: a key.
            *args: positional arguments, with None for what is to be predicted.
            num_draws: how many.
            **kwargs: keyword arguments.
        """
        draw_key, key = jax.random.split(rng_key)
        names = [latent.name for latent in self.density.latents]
        sampled = self.sample(draw_key, num_draws)
        latents = {name: jnp.asarray(sampled[name]) for name in names}
        model = Predictive(self.density.with_parameters(), latents)
        return model(key, *args, **kwargs)

    def nuts(
        self,
        *,
        num_warmup: int | None = None,
        num_samples: int = 1000,
        num_chains: int = 4,
        chain_method: str | Callable | None = None,
        progress_bar: bool = False,
        seed: int = 0,
        **settings: Any,
    ) -> HandedOver:
        """NumPyro's MCMC with NUTS that starts at draws and has the covariance as its metric.

        Args:
            num_warmup: steps of warm-up; if left out, few where the verdict trusts the posterior.
            num_samples: steps that are kept, of each chain.
            num_chains: how many chains.
            chain_method: as in `numpyro.infer.MCMC`; side by side where that is safe, if left out.
            progress_bar: whether to show one.
            seed: of the draws to start from.
            **settings: of `numpyro.infer.NUTS`.
        """
        chosen = self._chosen(jax.random.key(seed), positive_integer("num_chains", num_chains))
        frame, draws, known = self.found.modes[0].frame, self.found.draws, self.verdict.trusted
        return nuts(
            self.density,
            draws.z[chosen],
            metric_of(self.density, frame, draws) if known else fitted_metric(frame),
            known=known,
            num_warmup=num_warmup,
            num_samples=num_samples,
            chain_method=chain_method,
            progress_bar=progress_bar,
            **settings,
        )

    def to_arviz(self, rng_key: PRNGKeyArray | None = None, num_draws: int = 4000) -> "DataTree":
        """ArviZ's DataTree: posterior, predictions, log likelihoods, sample statistics."""
        rng_key = jax.random.key(0) if rng_key is None else rng_key
        draw_key, key = jax.random.split(rng_key)
        count = -(-positive_integer("num_draws", num_draws) // CHAINS) * CHAINS
        chosen = self._chosen(draw_key, count)
        samples = {name: value[chosen] for name, value in self.values.items()}
        attrs = {
            "k_hat": self.k_hat,
            "log_evidence": self.found.evidence.value,
            "verdict": str(self.verdict),
            "inference_library": "vpng",
        }
        return to_arviz(self.density, samples, self.found.draws.heights[chosen], attrs, key)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Marginals with the guide's and the corrected widths, the ELBO's path, the weights.

        Args:
            path: a file to write the figure to, its format by its suffix.
        """
        from vpng.posterior.figure import draw

        figure = draw(self.found, self.guide, self.density.labels())
        if path is not None:
            write_atomically(Path(path), lambda target: figure.savefig(target))
        return figure

    def save(self, path: str | Path) -> Path:
        """Write it to one file, whole or not at all; no pickle inside, and no model."""
        return save(Path(path), self.density, self.found, self.guide)

    @classmethod
    def load(cls, path: str | Path, model: Callable, *args: Any, **kwargs: Any) -> Self:
        """A posterior that `save` wrote, for the model and the data that it is of."""
        density = log_density(model, args, kwargs)
        return cls(density, *load(Path(path), density))

    def _chosen(self, rng_key: PRNGKeyArray, count: int) -> np.ndarray:
        """Places of draws by their weights, with as few repetitions as can be."""
        offset, order = jax.random.split(rng_key)
        ticks = (np.arange(count) + float(jax.random.uniform(offset))) / count
        total = np.cumsum(self.found.draws.shares)
        places = np.searchsorted(total / total[-1], ticks)
        return places[np.asarray(jax.random.permutation(order, count))]

    def _constrained(self, z: Float[np.ndarray, "S P"]) -> dict[str, np.ndarray]:
        batch = programs.run(programs.constrained, self.density, jnp.asarray(z), batch=len(z))
        return {name: np.asarray(value) for name, value in batch.items()}


def posterior_of(
    density: LogDensity, budget: Budget | None = None, guide: Guide | None = None
) -> Posterior:
    """The posterior of a log density.

    Args:
        density: log p(x, z).
        budget: what may be spent.
        guide: an approximation to start from and to compare with.
    """
    budget = Budget() if budget is None else budget
    return Posterior(density, approximate(density, budget, guide), guide)
