"""The experiments by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vpng.experiments import logistic, psd, toy, vae
from vpng.experiments.methods import Method
from vpng.experiments.results import Results

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """How an experiment is configured, run and shown.

    Attributes:
        config: makes its settings.
        run: settings -> results.
        table: results -> heads and rows.
        draw: results, folder -> the figures' files.
        options: the settings that the command line can change.
        methods: the methods it knows; none if it compares no methods.
    """

    config: Callable[..., Any]
    run: Callable[[Any, Announce], Results]
    table: Callable[[Results], tuple[list[str], list[list[str]]]]
    draw: Callable[[Results, Path], list[Path]]
    options: tuple[str, ...]
    methods: tuple[Method, ...] = ()


def _autoencoder(config: Callable[..., vae.VaeConfig]) -> Experiment:
    options = ("seeds", "iterations", "budget", "methods", "data")
    return Experiment(config, vae.run, vae.table, vae.draw, options, vae.METHODS)


EXPERIMENTS = {
    "toy": Experiment(
        toy.ToyConfig,
        toy.run,
        toy.table,
        toy.draw,
        ("seeds", "iterations", "methods"),
        toy.METHODS,
    ),
    "psd": Experiment(psd.PsdConfig, psd.run, psd.table, psd.draw, ("seeds",)),
    "logistic": Experiment(
        logistic.LogisticConfig,
        logistic.run,
        logistic.table,
        logistic.draw,
        ("seeds", "iterations", "budget", "methods"),
        logistic.METHODS,
    ),
    "vae": _autoencoder(vae.VaeConfig),
    "vae-no-ema": _autoencoder(vae.without_averages),
}
