"""The paper's counter-example: the substituted Hessian is indefinite where F_r never is."""

from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from vpng.checks import finite_array, finite_scalar, positive_integer
from vpng.fisher import Predictive
from vpng.paper.experiments.results import Results, Run, params_sha256
from vpng.paper.experiments.session import Session
from vpng.plot.look import house_style, save
from vpng.problem import Parameters
from vpng.problems.linear_latent import (
    LinearLatent,
    draw_joint,
    substituted_hessian,
    substituted_hessian_closed_form,
)

BOUNDARY = 1.0 / np.sqrt(3.0)
PAPER = (
    "The Hessian with the sampled data put in has a negative eigenvalue for |theta| < 1/sqrt(3); "
    "the predictive Fisher F_r is positive semidefinite everywhere (Section 3.2).",
)
"""What the paper proves."""


@dataclass(frozen=True)
class PsdConfig:
    """The sweep over theta.

    Attributes:
        num_thetas: points between -1.5 and 1.5.
        num_draws: Monte Carlo draws for each.
        variational: lambda.
        scale: the standard deviation of q.
        seeds: number of repetitions.
    """

    num_thetas: int = 61
    num_draws: int = 20_000
    variational: float = 0.5
    scale: float = 1.0
    seeds: int = 1

    def __post_init__(self) -> None:
        for name in ("num_thetas", "num_draws", "seeds"):
            positive_integer(name, getattr(self, name))
        finite_scalar("scale", self.scale, minimum=0.0, strict=True)
        finite_array("variational", self.variational)


def run(config: PsdConfig, session: Session | None = None) -> Results:
    """Both matrices over theta, by Monte Carlo, beside the closed form."""
    session = session or Session()
    session.plan(config.seeds)
    thetas = jnp.linspace(-1.5, 1.5, config.num_thetas)
    problem = LinearLatent(num_data=config.num_draws, scale=config.scale)
    closed = jax.vmap(substituted_hessian_closed_form)(thetas)

    @jax.jit
    def matrices(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(theta: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            joint_key, metric_key = jax.random.split(key)
            parameters = Parameters(jnp.asarray(config.variational, theta.dtype), theta)
            joint = draw_joint(joint_key, theta, config.num_draws)
            operator = Predictive(num_particles=1).operator(
                problem, parameters, joint.observed, metric_key
            )
            return substituted_hessian(problem, parameters, joint), operator.to_dense()

        keys = jax.random.split(key, config.num_thetas)
        return jax.lax.map(lambda pair: one(*pair), (thetas, keys))

    def repetition(seed: int) -> Run:
        hessians, fishers = matrices(jax.random.key(seed))
        lowest = {
            "substituted_hessian": jnp.linalg.eigvalsh(hessians)[:, 0],
            "closed_form": jnp.linalg.eigvalsh(closed)[:, 0],
            "predictive_fisher": jnp.linalg.eigvalsh(fishers)[:, 0],
        }
        return Run(
            method="psd",
            seed=seed,
            learning_rate=None,
            params_sha256=params_sha256((hessians, fishers)),
            curves={"theta": thetas.tolist(), **{k: v.tolist() for k, v in lowest.items()}},
            settings={
                "largest_error": float(jnp.max(jnp.abs(hessians - closed))),
                "substituted_hessians": hessians.tolist(),
                "predictive_fishers": fishers.tolist(),
            },
        )

    title = f"{config.num_thetas} values of theta"
    runs = [
        Run(
            **session.run(
                f"seed-{seed}", f"{title}, seed {seed}", lambda _, s=seed: asdict(repetition(s))
            )
        )
        for seed in range(config.seeds)
    ]
    inside = np.abs(np.asarray(thetas)) < BOUNDARY - 1e-6
    stacked = {
        name: np.array([run.curves[name] for run in runs])
        for name in ("substituted_hessian", "closed_form", "predictive_fisher")
    }
    summary = {
        name: {
            "smallest_eigenvalue": float(values.min()),
            "share_negative_inside_boundary": float((values[:, inside] < 0).mean()),
        }
        for name, values in stacked.items()
    }
    summary["substituted_hessian"]["largest_error"] = max(
        run.settings["largest_error"] for run in runs
    )
    extra = {"boundary": float(BOUNDARY), "findings": _findings(summary)}
    return Results("psd", asdict(config), runs, summary, extra, paper=PAPER)


def _findings(summary: dict[str, dict[str, float]]) -> list[str]:
    hessian, fisher = summary["substituted_hessian"], summary["predictive_fisher"]
    share = 100.0 * hessian["share_negative_inside_boundary"]
    sign = (
        "never negative beyond rounding" if fisher["smallest_eigenvalue"] >= -1e-6 else "negative"
    )
    return [
        f"The substituted Hessian has a negative eigenvalue at {share:.0f} % of the values with "
        f"|theta| < 1/sqrt(3), the lowest {hessian['smallest_eigenvalue']:.3f}; Monte Carlo is "
        f"within {hessian['largest_error']:.2g} of the closed form.",
        "The smallest eigenvalue of the predictive Fisher at any theta is "
        f"{fisher['smallest_eigenvalue']:.2g}: {sign}.",
    ]


def table(results: Results) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the printed table."""
    names = {
        "substituted_hessian": "Substituted Hessian, Monte Carlo",
        "closed_form": "Substituted Hessian, closed form",
        "predictive_fisher": "Predictive Fisher F_r",
    }
    rows = [
        [
            label,
            f"{results.summary[name]['smallest_eigenvalue']:.4f}",
            f"{100 * results.summary[name]['share_negative_inside_boundary']:.0f} %",
        ]
        for name, label in names.items()
    ]
    return ["Matrix", "Smallest eigenvalue", "Negative for |theta| < 1/sqrt(3)"], rows


def draw(results: Results, folder: Path) -> list[Path]:
    """The smallest eigenvalues over theta."""
    import matplotlib.pyplot as plt

    curves = results.runs[0].curves
    with house_style():
        figure, axes = plt.subplots(figsize=(6.4, 4.2))
        axes.axhline(0.0, color="black", linewidth=0.8)
        axes.axvspan(-BOUNDARY, BOUNDARY, color="0.92", label=r"$|\theta| < 1/\sqrt{3}$")
        axes.plot(
            curves["theta"], curves["closed_form"], color="#0072B2", label="Hessian, closed form"
        )
        axes.plot(
            curves["theta"],
            curves["substituted_hessian"],
            linestyle="none",
            marker=".",
            color="black",
            label="Hessian, Monte Carlo",
        )
        axes.plot(
            curves["theta"],
            curves["predictive_fisher"],
            color="#D55E00",
            linestyle=(0, (5, 1.5)),
            label=r"Predictive Fisher $F_r$",
        )
        axes.set(xlabel=r"$\theta$", ylabel="smallest eigenvalue, per datum")
        axes.legend()
        return save(figure, folder, "psd")
