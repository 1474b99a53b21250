"""K-FAC: Kronecker-factored curvature for any network, found from the traced function.

`discover` finds the layers, `statistics` computes their factors, `Kronecker` and
`KroneckerTridiagonal` average, invert and solve.
"""

from vpng.kronecker.averages import Averages
from vpng.kronecker.base import AbstractKronecker, KroneckerState
from vpng.kronecker.block_diagonal import Kronecker
from vpng.kronecker.discovery import discover
from vpng.kronecker.eigenbasis import EigenbasisState, in_eigenbasis
from vpng.kronecker.factor_damping import AbstractFactorDamping, FactoredTikhonov, PerFactor
from vpng.kronecker.factor_source import (
    AbstractSides,
    AbstractSource,
    FisherFactors,
    GradientFactors,
    Inputs,
    InputsAndOutputs,
)
from vpng.kronecker.factor_statistics import Factors, Statistics, statistics, zero_statistics
from vpng.kronecker.matrices import AbstractRank, FullRank, LogarithmicRank
from vpng.kronecker.structure import Layer, Other, Structure
from vpng.kronecker.tridiagonal import KroneckerTridiagonal

__all__ = [
    "AbstractFactorDamping",
    "AbstractKronecker",
    "AbstractRank",
    "AbstractSides",
    "AbstractSource",
    "Averages",
    "EigenbasisState",
    "FactoredTikhonov",
    "Factors",
    "FisherFactors",
    "FullRank",
    "GradientFactors",
    "Inputs",
    "InputsAndOutputs",
    "Kronecker",
    "KroneckerState",
    "KroneckerTridiagonal",
    "Layer",
    "LogarithmicRank",
    "Other",
    "PerFactor",
    "Statistics",
    "Structure",
    "discover",
    "in_eigenbasis",
    "statistics",
    "zero_statistics",
]
