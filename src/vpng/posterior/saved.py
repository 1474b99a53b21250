"""A posterior as one file: settings and arrays, checked on the way in."""

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from vpng.errors import expected
from vpng.posterior.approximate import Draws, Evidence, Found, Guide
from vpng.posterior.cost import Cost
from vpng.posterior.density import LogDensity
from vpng.posterior.frame import AbstractFrame, Diagonal, Full
from vpng.posterior.importance import Weighted
from vpng.posterior.modes import Mode
from vpng.posterior.verdict import Corrected, SeveralModes, UseIt, UseNUTS
from vpng.storage.archive import read_archive, write_archive

KIND = "Posterior"
WEIGHTED = ("z", "mode", "heights", "log_weights")
VERDICTS = {kind.__name__: kind for kind in (UseIt, Corrected, SeveralModes, UseNUTS)}


def save(path: Path, density: LogDensity, found: Found, guide: Guide) -> Path:
    """Write what was found about a posterior."""
    settings = {
        "latents": _latents(density),
        "verdict": type(found.verdict).__name__,
        "reasons": list(found.verdict.reasons),
        "chains": found.draws.chains,
        "seed": found.seed,
    }
    arrays = {
        "guide.loc": guide.loc,
        "guide.scale": guide.scale,
        "shares": found.shares,
        "numbers": np.array(_numbers(found)),
        **{f"draws.{name}": getattr(found.draws, name) for name in ("z", "heights", "shares")},
        **{f"weighted.{name}": getattr(found.weighted, name) for name in WEIGHTED},
    }
    for place, mode in enumerate(found.modes):
        arrays |= {f"mode.{place}.{name}": value for name, value in _of_mode(mode).items()}
    return write_archive(path, KIND, settings, {k: np.asarray(v) for k, v in arrays.items()})


def load(path: Path, density: LogDensity) -> tuple[Found, Guide]:
    """What `save` wrote, for the model that it is of.

    Raises:
        InputError: for a file that is damaged, foreign, or of other latents.
    """
    settings, arrays = read_archive(path, KIND)
    if settings.get("latents") != _latents(density):
        raise expected(str(path), f"the latents {_latents(density)}", settings.get("latents"))
    try:
        value, error, effective, k_hat, seconds, *cost = map(float, arrays["numbers"])
        z, heights, weights = (arrays[f"draws.{name}"] for name in ("z", "heights", "shares"))
        draws = Draws(z, heights, weights, effective, settings["chains"])
        z, mode, heights, log_weights = (arrays[f"weighted.{name}"] for name in WEIGHTED)
        weighted = Weighted(z, mode, heights, log_weights, k_hat)
        shares = arrays["shares"]
        modes = tuple(_mode(arrays, f"mode.{place}.") for place in range(len(shares)))
        verdict = VERDICTS[settings["verdict"]](tuple(settings["reasons"]))
        guide = Guide(arrays["guide.loc"], arrays["guide.scale"])
    except (KeyError, TypeError, ValueError) as problem:
        raise expected(str(path), f"what a {KIND} saves", f"no {problem}") from problem
    evidence = Evidence(value, error)
    found = Found(
        modes, shares, draws, weighted, evidence, None, verdict, Cost(*cost), seconds,
        settings["seed"],
    )  # fmt: skip
    return found, guide


def _numbers(found: Found) -> list[float]:
    tail = (found.draws.effective, found.weighted.k_hat, found.seconds)
    return [*found.evidence, *tail, *found.cost]


def _latents(density: LogDensity) -> list[Any]:
    return [[latent.name, list(latent.shape)] for latent in density.latents]


def _of_mode(mode: Mode) -> dict[str, np.ndarray]:
    return {
        "centre": np.asarray(mode.frame.centre),
        "root": np.asarray(mode.frame.root),
        "loc": mode.loc,
        "scale": mode.scale,
        "path": mode.path,
        "numbers": np.array([mode.elbo, float(mode.exact)]),
    }


def _mode(arrays: dict[str, np.ndarray], prefix: str) -> Mode:
    root = jnp.asarray(arrays[prefix + "root"])
    kind: type[AbstractFrame] = Full if root.ndim == 2 else Diagonal
    frame = kind(jnp.asarray(arrays[prefix + "centre"]), root)
    elbo, exact = arrays[prefix + "numbers"]
    if not math.isfinite(elbo):
        raise ValueError("finite ELBO")
    loc, scale, path = (arrays[prefix + name] for name in ("loc", "scale", "path"))
    return Mode(frame, loc, scale, float(elbo), bool(exact), path)
