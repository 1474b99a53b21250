"""What the metric, the directions and the approximation look like at one point."""

from vpng.diagnostics.diagnosing import diagnose
from vpng.diagnostics.diagnosis import Diagnosis, Direction
from vpng.diagnostics.spectrum import Spectrum

__all__ = ["Diagnosis", "Direction", "Spectrum", "diagnose"]
