"""Products of gradients in the metric, by name."""

from typing import NamedTuple

from jaxtyping import Array, Float


class GradientProducts(NamedTuple):
    """Products v.F^-1 w of g = (g_a + g_b) / 2, d = (g_a - g_b) / 2 and perhaps of scores h_a, h_b.

    The halves a and b of the particles have the gradients g + d and g - d.

    Attributes:
        matrix: of all, in that order, for every block of the metric.
    """

    matrix: Float[Array, "blocks k k"]

    @property
    def power(self) -> Float[Array, " blocks"]:
        """g.F^-1 g, of signal and noise."""
        return self.matrix[:, 0, 0]

    @property
    def noise(self) -> Float[Array, " blocks"]:
        """d.F^-1 d, of noise alone."""
        return self.matrix[:, 1, 1]

    @property
    def has_scores(self) -> bool:
        """Whether the scores of both halves are among the gradients."""
        return self.matrix.shape[-1] >= 4

    @property
    def of_scores(self) -> Float[Array, " blocks"]:
        """h.F^-1 h, summed over the halves."""
        return self.matrix[:, 2, 2] + self.matrix[:, 3, 3]

    @property
    def with_scores(self) -> Float[Array, " blocks"]:
        """g_half.F^-1 h_half, summed over the halves."""
        of_mean = self.matrix[:, 0, 2] + self.matrix[:, 0, 3]
        of_apart = self.matrix[:, 1, 2] - self.matrix[:, 1, 3]
        return of_mean + of_apart
