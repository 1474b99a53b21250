"""What regularises matrix factorisation with few users? Train, validation and test ELBO by epoch.

The users of ml-latest-small are split as in `vpng reproduce vmf`: a tenth for the test, a tenth to
stop early by, the rest to learn from. Both methods run without regularisation at two steps, VPNG at
the smaller one with each regularisation; all have the same batches, and all are measured at the
average of their iterates, with the whole row and the whole KL term. Early stopping is read off the
curves: the test ELBO at the epoch of the best validation ELBO, next to the one at the end. One JSON
object is printed, and a table in Markdown to the standard error.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO, optimizers
from vpng.paper.datasets import split_users
from vpng.paper.experiments.vmf import DataSet, load_counts
from vpng.problem import Parameters
from vpng.problems import Counted, MatrixFactorization, counted, leading_directions
from vpng.training import Loop, iterate_averaged
from vpng.training.mean_elbo import mean_elbo
from vpng.transform import iterate_average

BATCH = 64
LIMITS = (-1600.0, -700.0)
Curves = dict[str, list[float]]
Optimizer = Callable[[MatrixFactorization, Parameters, Counted], optax.GradientTransformation]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def vpng(learning_rate: float) -> Optimizer:
    def optimizer(
        problem: MatrixFactorization, parameters: Parameters, data: Counted
    ) -> optax.GradientTransformation:
        most = leading_directions(problem.num_data, problem.num_items)
        rate = lambda step: learning_rate / jnp.sqrt(1.0 + step / 400.0)
        return optimizers.network_vpng(
            problem, parameters, data, rate, batch_size=BATCH, max_rank=most
        )

    return optimizer


def gradient(learning_rate: float) -> Optimizer:
    rule = optax.scale_by_adam()
    return lambda *_: iterate_average(optimizers.gradient(learning_rate, rule=rule))


@dataclass(frozen=True)
class Setting:
    """A method and what regularises it."""

    optimizer: Optimizer = vpng(0.004)
    kl_weight: float = 1.0
    dropout: float = 0.0
    weight_decay: float = 0.0


SETTINGS = {
    "gradient, rate 0.001": Setting(gradient(0.001)),
    "gradient, rate 0.003": Setting(gradient(0.003)),
    "VPNG, rate 0.008": Setting(vpng(0.008)),
    "VPNG, rate 0.004": Setting(),
    "VPNG, KL weight 0.5": Setting(kl_weight=0.5),
    "VPNG, KL weight 2": Setting(kl_weight=2.0),
    "VPNG, dropout 0.3": Setting(dropout=0.3),
    "VPNG, dropout 0.5": Setting(dropout=0.5),
    "VPNG, weight decay 0.003": Setting(weight_decay=0.003),
    "VPNG, weight decay 0.01": Setting(weight_decay=0.01),
    "VPNG, dropout 0.5, weight decay 0.01": Setting(dropout=0.5, weight_decay=0.01),
}


def curves_of(setting: Setting, counts: np.ndarray, seed: int, epochs: int) -> Curves:
    """The three ELBOs and the epoch, of one run."""
    split = split_users(counts, seed=seed)
    size = len(split.test)
    validation, train = split.train[:size], split.train[size:]
    problem = MatrixFactorization(len(train), counts.shape[1], 50, dropout=setting.dropout)
    parameters, data = problem.init(jax.random.key(seed)), counted(train)
    optimizer = setting.optimizer(problem, parameters, data)
    if setting.weight_decay:
        optimizer = optax.chain(optimizer, optax.add_decayed_weights(-setting.weight_decay))
    per_epoch = len(train) // BATCH
    parts = {"train": train[:size], "validation": validation, "test": split.test}
    loop = Loop(
        problem,
        parameters,
        data,
        optimizer,
        objective=ELBO(1, kl_weight=setting.kl_weight),
        batch_size=BATCH,
        record_every=per_epoch,
        metrics={
            name: mean_elbo(problem.whole(), counted(rows), 4) for name, rows in parts.items()
        },
        readout=iterate_averaged,
    )
    state = loop.init(parameters, jax.random.key(seed))
    history = loop.run(state, epochs * per_epoch, progress=False).history.to_dict()
    epoch = [float(iteration / per_epoch) for iteration in history["iteration"]]
    return {"epoch": epoch, **{name: history[name] for name in parts}}


def summary(runs: list[Curves]) -> dict[str, float]:
    """Means over the splits: stopped at the best validation ELBO, and at the end."""
    best = [int(np.nanargmax(curves["validation"])) for curves in runs]
    pairs = list(zip(runs, best, strict=True))
    mean = lambda values: float(np.mean(list(values)))
    return {
        "train_final": mean(curves["train"][-1] for curves in runs),
        "train_stopped": mean(curves["train"][place] for curves, place in pairs),
        "test_stopped": mean(curves["test"][place] for curves, place in pairs),
        "test_final": mean(curves["test"][-1] for curves in runs),
        "epoch_stopped": mean(curves["epoch"][place] for curves, place in pairs),
    }


def draw(curves: dict[str, list[Curves]], path: Path) -> None:
    """Train and test ELBO by epoch, means over the splits."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9.0, 3.6), sharex=True)
    for panel in panels:
        panel.set(prop_cycle=plt.cycler(color=plt.get_cmap("tab20").colors), ylim=LIMITS)
    for name, runs in curves.items():
        for panel, part in zip(panels, ("train", "test"), strict=True):
            values = np.mean([run[part] for run in runs], axis=0)
            panel.plot(runs[0]["epoch"], values, label=name, lw=1.2)
            panel.set(xlabel="epoch", ylabel=f"{part} ELBO per user")
    panels[0].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=DataSet, default=DataSet.ML_LATEST_SMALL)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--figure", type=Path, default=None)
    options = parser.parse_args()
    counts = load_counts(options.data)
    curves: dict[str, list[Curves]] = {}
    rows = []
    say("| Setting | Train ELBO | Test ELBO | Test ELBO, stopped early | at epoch |")
    say("| --- | --- | --- | --- | --- |")
    for name, setting in SETTINGS.items():
        runs = [curves_of(setting, counts, seed, options.epochs) for seed in range(options.splits)]
        curves[name], found = runs, summary(runs)
        cells = (f"{found[column]:.0f}" for column in ("train_final", "test_final", "test_stopped"))
        say(f"| {name} | {' | '.join(cells)} | {found['epoch_stopped']:.0f} |")
        rows.append({"setting": name, **found})
    if options.figure:
        draw(curves, options.figure)
    about = {"data": options.data, "epochs": options.epochs, "splits": options.splits}
    print(json.dumps({**about, "settings": rows, "curves": curves}))


if __name__ == "__main__":
    main()
