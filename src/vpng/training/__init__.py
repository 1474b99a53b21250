"""Training: the loop and its parts."""

from vpng.run.checkpoint import Checkpoints, EverySeconds, EverySteps
from vpng.run.history import History, Record
from vpng.run.outcome import StopReason
from vpng.training.blocks import Blocks
from vpng.training.data import AbstractData, Batches, InMemory
from vpng.training.fitting import fit
from vpng.training.guard import Guard, Trouble
from vpng.training.loop import FitResult, Loop, current, iterate_averaged
from vpng.training.step import StepInfo, TrainState, init_state, make_step

__all__ = [
    "AbstractData",
    "Batches",
    "Blocks",
    "Checkpoints",
    "EverySeconds",
    "EverySteps",
    "FitResult",
    "Guard",
    "History",
    "InMemory",
    "Loop",
    "Record",
    "StepInfo",
    "StopReason",
    "TrainState",
    "Trouble",
    "current",
    "fit",
    "init_state",
    "iterate_averaged",
    "make_step",
]
