"""The experiments by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpng.experiments import logistic, psd, toy
from vpng.experiments.methods import Method
from vpng.experiments.results import Results

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """How an experiment is configured, run and shown.

    Attributes:
        config: its dataclass of settings.
        run: settings -> results.
        table: results -> heads and rows.
        draw: results, folder -> the figures' files.
        methods: the methods it knows; none if it compares no methods.
        takes_iterations: whether a number of iterations can be set.
        takes_budget: whether a time budget can be set.
    """

    config: type
    run: Callable[[Any, Announce], Results]
    table: Callable[[Results], tuple[list[str], list[list[str]]]]
    draw: Callable[[Results, Path], list[Path]]
    methods: tuple[Method, ...] = ()
    takes_iterations: bool = False
    takes_budget: bool = False


EXPERIMENTS = {
    "toy": Experiment(
        toy.ToyConfig, toy.run, toy.table, toy.draw, toy.METHODS, takes_iterations=True
    ),
    "psd": Experiment(psd.PsdConfig, psd.run, psd.table, psd.draw),
    "logistic": Experiment(
        logistic.LogisticConfig,
        logistic.run,
        logistic.table,
        logistic.draw,
        logistic.METHODS,
        takes_iterations=True,
        takes_budget=True,
    ),
}
