"""Training: the loop and its parts."""

from vpng.training.data import AbstractData, Batches, InMemory
from vpng.training.fit import FitResult, StopReason, fit
from vpng.training.history import History, Record
from vpng.training.step import StepInfo, TrainState, init_state, make_step

__all__ = [
    "AbstractData",
    "Batches",
    "FitResult",
    "History",
    "InMemory",
    "Record",
    "StepInfo",
    "StopReason",
    "TrainState",
    "fit",
    "init_state",
    "make_step",
]
