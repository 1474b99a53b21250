"""Long runs of NUTS as the truth about a posterior, kept as means and deviations."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from vpng.runtime.blas_threads import limit_blas_threads
from vpng.storage.files import write_atomically
from zoo.case import Case

FILE = Path(__file__).with_name("truth.json")
DENSE = 120
"""Most latents for a dense mass matrix."""
DIGITS = 6


def known() -> dict[str, Any]:
    """The truths found so far, by model."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def long_run(case: Case, *, chains: int = 4, warmup: int = 700, draws: int = 1250) -> dict:
    """Means and deviations of all latents, and how far they are to be trusted."""
    limit_blas_threads()
    with jax.enable_x64(True):
        args = tuple(np.asarray(array, dtype=_double(array)) for array in case.args)
        size = sum(leaf.size for leaf in jax.tree.leaves(_latents(case, args)))
        kernel = NUTS(case.run, dense_mass=size <= DENSE, target_accept_prob=0.9)
        mcmc = MCMC(
            kernel, num_warmup=warmup, num_samples=draws, num_chains=chains,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        mcmc.run(jax.random.key(0), *args, extra_fields=("diverging",))
        samples = jax.device_get(mcmc.get_samples(group_by_chain=True))
        diverging = int(mcmc.get_extra_fields()["diverging"].sum())
    flat = {name: value.reshape(chains, draws, -1) for name, value in samples.items()}
    return {
        "chains": chains,
        "draws": draws,
        "divergences": diverging,
        "r_hat": round(max(float(np.nanmax(split_gelman_rubin(v))) for v in flat.values()), 3),
        "ess": round(min(float(np.nanmin(effective_sample_size(v))) for v in flat.values())),
        "mean": {name: _rounded(v.mean((0, 1))) for name, v in flat.items()},
        "sd": {name: _rounded(v.std((0, 1))) for name, v in flat.items()},
    }


def keep(model: str, entry: dict[str, Any]) -> None:
    """Add the truth about one model to the file."""
    text = json.dumps({**known(), model: entry}) + "\n"
    write_atomically(FILE, lambda temporary: temporary.write_text(text))


def _latents(case: Case, args: tuple) -> Any:
    from numpyro.infer.util import initialize_model

    return initialize_model(jax.random.key(0), case.run, model_args=args).param_info.z


def _double(array: Any) -> Any:
    return np.float64 if np.issubdtype(array.dtype, np.floating) else array.dtype


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
