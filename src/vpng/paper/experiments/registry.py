"""The experiments by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vpng.paper.experiments import logistic, psd, toy, vae, vmf
from vpng.paper.experiments.results import Results, Table
from vpng.paper.experiments.settings import Preset
from vpng.plot.methods import Method

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """How an experiment is configured, run and shown.

    Attributes:
        config: makes its settings.
        run: settings, session -> results.
        table: results -> heads and rows.
        draw: results, folder -> the figures' files.
        options: the settings that have an option of their own on the command line.
        methods: the methods it knows; none if it compares no methods.
        presets: the settings in which a preset differs from the defaults.
        on_mesh: whether it can be run on several devices and processes.
        load: reads its data, so that missing ones are found before hours of other experiments.
    """

    config: Callable[..., Any]
    run: Callable[..., Results]
    table: Callable[[Results], Table]
    draw: Callable[[Results, Path], list[Path]]
    options: tuple[str, ...]
    methods: tuple[Method, ...] = ()
    presets: Mapping[Preset, Settings] = field(default_factory=dict)
    on_mesh: bool = False
    load: Callable[[Any], object] = lambda config: None

    def settings(self, preset: Preset, given: Settings) -> dict[str, Any]:
        """The settings of the preset, then those given.

        A time budget alone lifts the limit on steps, and a number of steps alone that on time.
        """
        merged = {**self.presets.get(preset, {}), **given}
        if given.get("budget") is not None and "iterations" not in given:
            merged["iterations"] = 10**9
        if given.get("iterations") is not None and "budget" in self.options:
            merged["budget"] = given.get("budget")
        return merged


def _autoencoder(config: Callable[..., vae.VaeConfig], quick: Settings) -> Experiment:
    paper = {"data": vae.DataSet.MNIST, "budget": 1000.0, "pilot": 1.0}
    return Experiment(
        config,
        vae.run,
        vae.table,
        vae.draw,
        ("seeds", "iterations", "budget", "methods", "data"),
        vae.METHODS,
        {Preset.QUICK: quick, Preset.PAPER: paper},
        on_mesh=True,
        load=lambda config: vae.LOADERS[config.data](),
    )


QUICK_VAE = {
    "budget": 8.0,
    "learning_rates": (0.003, 0.01),
    "pilot": 0.25,
    "batch_size": 100,
    "num_particles": 2,
    "record_every": 50,
}
"""Small enough for the bundled digits, which a batch of the paper's size would almost fill."""

EXPERIMENTS = {
    "toy": Experiment(
        toy.ToyConfig,
        toy.run,
        toy.table,
        toy.draw,
        ("seeds", "iterations", "methods"),
        toy.METHODS,
        {Preset.QUICK: {"seeds": 3}},
    ),
    "psd": Experiment(psd.PsdConfig, psd.run, psd.table, psd.draw, ("seeds",)),
    "logistic": Experiment(
        logistic.LogisticConfig,
        logistic.run,
        logistic.table,
        logistic.draw,
        ("seeds", "iterations", "budget", "methods"),
        logistic.METHODS,
        {Preset.QUICK: {"seeds": 5, "learning_rates": (0.3, 1.0, 3.0), "dampings": (3e-4, 1.0)}},
    ),
    "vae": _autoencoder(
        vae.VaeConfig,
        {**QUICK_VAE, "seeds": 3},
    ),
    "vae-no-ema": _autoencoder(
        vae.without_averages,
        {
            **QUICK_VAE,
            "seeds": 2,
            "methods": (Method.GRADIENT, Method.NATURAL_GRADIENT, Method.VPNG),
        },
    ),
    "vmf": Experiment(
        vmf.VmfConfig,
        vmf.run,
        vmf.table,
        vmf.draw,
        ("seeds", "iterations", "budget", "methods", "data"),
        vmf.METHODS,
        {
            Preset.QUICK: {
                "budget": 6.0,
                "seeds": 2,
                "learning_rates": (0.003, 0.01),
                "pilot": 0.25,
                "methods": (
                    Method.GRADIENT,
                    Method.NATURAL_GRADIENT,
                    Method.VPNG,
                    Method.VPNG_EIGENBASIS,
                ),
            },
            Preset.PAPER: {
                "data": vmf.DataSet.ML_20M,
                "num_particles": 10,
                "budget": 1000.0,
                "pilot": 1.0,
            },
        },
        on_mesh=True,
        load=lambda config: vmf.load_counts(config.data, config.min_ratings),
    ),
}
