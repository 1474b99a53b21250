"""The variational autoencoder as an estimator."""

from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.errors import expected
from vpng.models.amortised import AmortisedEstimator, Setup
from vpng.problem import Parameters
from vpng.problems import (
    AbstractLikelihood,
    BernoulliLikelihood,
    CategoricalLikelihood,
    NormalLikelihood,
    PoissonLikelihood,
    VariationalAutoencoder,
    decode,
    mlp_vae,
    standardised,
)

_LIKELIHOODS = (BernoulliLikelihood, CategoricalLikelihood, NormalLikelihood, PoissonLikelihood)


class VAE(AmortisedEstimator):
    """A variational autoencoder of two perceptrons.

    Args:
        n_components: the length of z.
        hidden: widths of the encoder's hidden layers; the decoder mirrors them.
        likelihood: of the data given z, from `vpng.problems`; None for Bernoulli if the data are
            zeros and ones, else Normal with a learned scale.
        kl_weight: of the KL term in the training loss; 1 is the ELBO.
        weight_decay: the share by which every step shrinks the weights.
        learning_rate: a number, or None for the optimizer's own decaying step.
        batch_size: data for a step.
        max_epochs: most passes through the data.
        validation_fraction: the share of rows held out for early stopping; 0 for none.
        patience: epochs without a better validation ELBO before training ends.
        random_state: a seed, None, or NumPy's RandomState.
        progress: whether to show a progress bar.

    Attributes:
        parameters_: the fitted parameters of encoder and decoder.
        likelihood_: the likelihood in use.
        n_iter_: epochs done.
        history_: loss and validation ELBO after every epoch.
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        hidden: tuple[int, ...] = (200, 200),
        likelihood: AbstractLikelihood | None = None,
        kl_weight: float = 1.0,
        weight_decay: float = 0.0,
        learning_rate: float | None = None,
        batch_size: int = 256,
        max_epochs: int = 100,
        validation_fraction: float = 0.1,
        patience: int = 10,
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.n_components = n_components
        self.hidden = hidden
        self.likelihood = likelihood
        self.kl_weight = kl_weight
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.progress = progress

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def inverse_transform(self, Z: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n ..."]:
        """E[x | z] at each row of Z."""
        problem, parameters = self._fitted()
        assert isinstance(problem, VariationalAutoencoder)
        latent = np.asarray(Z, np.float32)
        if latent.ndim != 2 or latent.shape[1] != self.n_components:
            raise expected("Z", f"rows of length {self.n_components}", f"shape {latent.shape}")
        return np.asarray(decode(problem, parameters.model, jnp.asarray(latent)))

    def predict(self, X: Any) -> Float[np.ndarray, "n ..."]:
        """The reconstructions: E[x | z] at the mean of q(z | x)."""
        return self.inverse_transform(self.transform(X))

    def _chosen(self, rows: np.ndarray) -> AbstractLikelihood:
        if self.likelihood is None:
            binary = bool(((rows == 0) | (rows == 1)).all())
            return BernoulliLikelihood() if binary else NormalLikelihood(scale=None)
        if not isinstance(self.likelihood, AbstractLikelihood):
            wanted = "a likelihood of vpng.problems or None"
            raise expected("likelihood", wanted, repr(self.likelihood))
        return self.likelihood

    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        rows = self._validated(X, reset)
        if reset:
            self.likelihood_ = self._chosen(rows)
        self.likelihood_.check("X", jnp.asarray(rows))  # pyright: ignore[reportOptionalMemberAccess]
        return rows

    def _setup(self, rng_key: PRNGKeyArray, num_data: int) -> Setup:
        assert self.likelihood_ is not None
        example = np.zeros((num_data, self.n_features_in_), np.float32)
        made = mlp_vae(
            rng_key,
            example,
            latent_dim=self.n_components,
            hidden=self.hidden,
            likelihood=self.likelihood_,
        )
        return Setup(made.problem, made.problem, made.parameters)

    def _begin(self, parameters: Parameters, rows: np.ndarray) -> Parameters:
        if isinstance(self.likelihood_, NormalLikelihood):
            return standardised(parameters, jnp.asarray(rows))
        return parameters

    def _batch(self, rows: np.ndarray) -> PyTree | Array:
        return jnp.asarray(rows)

    def _saved_settings(self) -> dict[str, Any]:
        # The likelihood in use, so that a loaded model needs no data to choose one.
        used = self.likelihood_
        if type(used) not in _LIKELIHOODS:
            listed = ", ".join(kind.__name__ for kind in _LIKELIHOODS)
            raise expected("likelihood", f"one of {listed} to be saved", type(used).__name__)
        fields = {
            name: value if value is None or isinstance(value, bool | int) else float(value)
            for name, value in vars(used).items()
        }
        named = {"likelihood": {"kind": type(used).__name__, "fields": fields}}
        return {**super()._saved_settings(), **named}

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        known = {kind.__name__: kind for kind in _LIKELIHOODS}
        described = settings["likelihood"]
        likelihood = known[described["kind"]](**described["fields"])
        return super()._from_settings({**settings, "likelihood": likelihood})

    def _chosen_settings(self) -> dict[str, Any]:
        return {"likelihood": self.likelihood_}

    def _prepare(self, width: int) -> None:
        super()._prepare(width)
        self.likelihood_ = self.likelihood
