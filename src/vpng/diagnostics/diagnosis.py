"""What `diagnose` finds."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vpng.diagnostics.landscape import Landscape
from vpng.diagnostics.spectrum import Spectrum
from vpng.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Direction:
    """Where a method would go, and how its solve went.

    Attributes:
        vector: of steepest ascent of the ELBO per datum in the method's metric, flat.
        outcome: of the solve, in words.
        residual: of the solve, relative.
    """

    vector: np.ndarray
    outcome: str
    residual: float

    def angle(self, other: "Direction") -> float:
        """Degrees between two directions; NaN if one of them vanishes."""
        lengths = np.linalg.norm(self.vector) * np.linalg.norm(other.vector)
        if not lengths > 0:
            return float("nan")
        cosine = self.vector @ other.vector / lengths
        return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


@dataclass(frozen=True)
class Diagnosis:
    """The metric, the directions and the approximation at one point; printed, it is a table.

    Attributes:
        elbo: of all data, with analytic KL where there is one, or by the objective that was given.
        elbo_standard_error: over the particles.
        num_particles: draws behind the ELBO, the gradient and k-hat.
        k_hat: shape of the tail of the importance weights; NaN where they do not differ, and where
            the objective sums over latents of the model, so that there are none.
        spectrum: of the metric, per datum.
        damping: added to the metric in the solve of `vpng`, per datum.
        gradient: the plain gradient of the ELBO per datum.
        natural_gradient: F_q^-1 of it for lambda, the gradient itself for theta.
        vpng: (F + damping I)^-1 of it, F the metric.
        promised_gain: nats that a full VPNG step gains by its quadratic model; the noise of the
            gradient counts in it.
        landscape: the ELBO around the point, for the figure.
    """

    elbo: float
    elbo_standard_error: float
    num_particles: int
    k_hat: float
    spectrum: Spectrum
    damping: float
    gradient: Direction
    natural_gradient: Direction
    vpng: Direction
    promised_gain: float
    landscape: Landscape = field(repr=False)

    @property
    def condition(self) -> float:
        """The condition number of the damped metric."""
        return self.spectrum.condition(self.damping)

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """The spectrum, and the paper's Figure 1 for this model.

        Contours of the ELBO in the plane of the gradient and the VPNG direction through the current
        parameters, with the three directions; the natural gradient is projected onto the plane.

        Args:
            path: a file to write the figure to, its format by its suffix.
        """
        from vpng.diagnostics.figure import draw

        figure = draw(self)
        if path is not None:
            write_atomically(Path(path), lambda target: figure.savefig(target))
        return figure

    def _rows(self) -> list[tuple[str, str]]:
        metric, approximately = self.spectrum, "" if self.spectrum.complete else "about "
        smallest = f"{metric.smallest:.3g}" if metric.complete else "not computed"
        bound = "" if metric.complete else "at most "
        return [
            ("parameters", f"{metric.num_parameters}"),
            ("ELBO", f"{self.elbo:.6g} ± {self.elbo_standard_error:.2g}"),
            ("k-hat", f"{self.k_hat:.2f}, {_verdict(self.k_hat)}"),
            ("metric, largest eigenvalue", f"{metric.largest:.3g}"),
            ("metric, smallest eigenvalue", smallest),
            (
                "metric, effective rank",
                f"{approximately}{metric.effective_rank:.2f} of {metric.num_parameters}",
            ),
            ("condition with damping", f"{bound}{self.condition:.3g} with {self.damping:.2g}"),
            (
                "gradient to natural gradient",
                f"{self.gradient.angle(self.natural_gradient):.1f} degrees",
            ),
            ("gradient to VPNG", f"{self.gradient.angle(self.vpng):.1f} degrees"),
            (
                "natural gradient to VPNG",
                f"{self.natural_gradient.angle(self.vpng):.1f} degrees",
            ),
            ("solve, natural gradient", _solve(self.natural_gradient)),
            ("solve, VPNG", _solve(self.vpng)),
            ("gain of a full VPNG step", f"{self.promised_gain:.3g} nats promised"),
        ]


def _verdict(k_hat: float) -> str:
    if np.isnan(k_hat):
        return "no importance weights that differ"
    if k_hat < 0.5:
        return "good: importance weights have a finite variance"
    if k_hat < 0.7:
        return "usable: importance weights can correct the approximation"
    return "the approximation misses part of the posterior"


def _solve(direction: Direction) -> str:
    return f"{direction.outcome}, residual {direction.residual:.1g}"
