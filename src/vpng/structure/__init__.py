"""Curvature that uses what is zero in it: found in the traced model, formed and factorised so."""

from vpng.structure.elimination import Elimination, Factorised, Sparse
from vpng.structure.found import dense, structure_of
from vpng.structure.structure import Structure

__all__ = ["Elimination", "Factorised", "Sparse", "Structure", "dense", "structure_of"]
