"""Standard normal draws that are held fixed, with as many exact moments as they can have."""

import math

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

PAIRS_OF_CHUNK = 8
FEWEST_PAIRS = 32
MOST_PAIRS = 128
EDGE = 1e-6


def fixed_draws(size: int, seed: int, *, pairs: int | None = None) -> Float[np.ndarray, "C M P"]:
    """Quasi-random antithetic pairs: mean zero, and unit variances, to rounding.

    With more pairs than latents all correlations vanish too, so that the average of any quadratic
    function is exact. For a normal posterior the objective then has no noise. They come in chunks
    of few, the first of which say roughly what all of them say.

    Args:
        size: P, the number of latents.
        seed: of the scrambling.
        pairs: M / 2; as many as there are latents within bounds, if left out.
    """
    # Half a second, which only who wants a posterior waits for.
    from scipy.stats import qmc

    if pairs is None:
        pairs = min(max(FEWEST_PAIRS, _power_of_two(size + 1)), MOST_PAIRS)
    # From the inside of the unit cube: its corner is infinitely far out.
    points = np.clip(qmc.Sobol(size, rng=seed).random(pairs), EDGE, 1 - EDGE)
    half = ndtri(points)
    if pairs > size:
        # Draws R with R'R = n C become R L^-T, of covariance I, for C = L L'.
        root = np.linalg.cholesky(half.T @ half / pairs)
        half = np.linalg.solve(root, half.T).T
    else:
        half = half / np.sqrt(np.mean(half**2, axis=0))
    chunks = half.reshape(-1, min(PAIRS_OF_CHUNK, pairs), size)
    return np.concatenate([chunks, -chunks], axis=1)


def _power_of_two(size: int) -> int:
    return 2 ** math.ceil(math.log2(size))
