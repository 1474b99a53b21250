"""The toy of Section 3: where each method points, and how it gets there."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vpng.checks import finite_array, finite_scalar, positive_integer
from vpng.errors import expected
from vpng.fisher import Predictive, Variational
from vpng.objective import ELBO
from vpng.paper.experiments.results import Headline, Results, Run, mean_and_std, params_sha256
from vpng.paper.experiments.session import Session
from vpng.plot.look import house_style, line_look, save
from vpng.plot.methods import Method
from vpng.problem import Parameters
from vpng.problems import GaussianMean
from vpng.transform import Hessian

METHODS = (Method.GRADIENT, Method.NATURAL_GRADIENT, Method.VPNG, Method.HESSIAN_FREE)
DEFAULT_METHODS = METHODS[:3]
PAPER = (
    "VPNG points almost directly to the optimum; the gradient and the natural gradient, which have "
    "the same direction here, point almost at a right angle to it (Figure 1; no numbers given).",
)
"""What the paper says of its own runs."""


@dataclass(frozen=True)
class ToyConfig:
    """The bivariate Gaussian with covariance [[1, 1 - epsilon], [1 - epsilon, 1]].

    Attributes:
        epsilon: how far the correlation is from one.
        num_data: n.
        true_mean: the mean of the data.
        scale: the fixed standard deviation of q.
        seeds: number of data sets.
        iterations: most steps of a method.
        learning_rates: the grid; each method gets its best.
        tolerance: relative distance to the optimum that counts as arrived.
        methods: which to run.
    """

    epsilon: float = 0.01
    num_data: int = 100
    true_mean: tuple[float, float] = (2.0, 1.0)
    scale: float = 0.1
    seeds: int = 1
    iterations: int = 5000
    learning_rates: tuple[float, ...] = tuple(float(2.0**-k) for k in range(-8, 12))
    tolerance: float = 1e-3
    methods: tuple[Method, ...] = DEFAULT_METHODS

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise expected("epsilon", "a number between 0 and 1", self.epsilon)
        precision = jnp.result_type(float)
        if np.asarray(1.0 - self.epsilon, precision) == 1.0:
            raise expected(
                "epsilon", f"a number that 1 - epsilon shows in {precision}", self.epsilon
            )
        positive_integer("seeds", self.seeds)
        positive_integer("iterations", self.iterations)
        positive_integer("num_data", self.num_data)
        for name in ("scale", "tolerance"):
            finite_scalar(name, getattr(self, name), minimum=0.0, strict=True)
        for rate in self.learning_rates:
            finite_scalar("learning_rates", rate, minimum=0.0, strict=True)
        finite_array("true_mean", self.true_mean)


def make_problem(config: ToyConfig, seed: int) -> tuple[GaussianMean, Float[Array, "n 2"]]:
    """The problem and the data of one seed."""
    off_diagonal = 1.0 - config.epsilon
    covariance = jnp.array([[1.0, off_diagonal], [off_diagonal, 1.0]])
    problem = GaussianMean.create(covariance, config.num_data, scale=config.scale)
    noise = jax.random.normal(jax.random.key(seed), (config.num_data, 2))
    return problem, jnp.asarray(config.true_mean) + noise @ problem.covariance_root.T


def directions(
    problem: GaussianMean,
    data: Float[Array, "n 2"],
    methods: tuple[Method, ...],
    rng_key: PRNGKeyArray,
) -> dict[Method, Callable[[Float[Array, " 2"]], Float[Array, " 2"]]]:
    """The ascent direction of each method as a function of lambda, with the exact gradient."""
    at = lambda mean: Parameters(mean)
    gradient = jax.grad(lambda mean: problem.elbo(mean, data) / problem.num_data)

    def solve_with(metric: Predictive | Variational) -> Callable[[Array], Array]:
        def direction(mean: Array) -> Array:
            operator = metric.operator(problem, at(mean), data, rng_key)
            return jnp.linalg.solve(operator.to_dense(), gradient(mean))

        return direction

    def newton(mean: Array) -> Array:
        product = Hessian().linearise(problem, ELBO(1), at(mean), data, rng_key, jnp.int32(0))
        columns = jax.vmap(lambda e: product(at(e)).variational)(jnp.eye(2))
        return jnp.linalg.solve(columns, gradient(mean))

    every = {
        Method.GRADIENT: gradient,
        Method.NATURAL_GRADIENT: solve_with(Variational()),
        Method.VPNG: solve_with(Predictive(num_particles=1)),
        Method.HESSIAN_FREE: newton,
    }
    return {method: jax.jit(every[method]) for method in methods}


def run(config: ToyConfig, session: Session | None = None) -> Results:
    """Directions at the start and trajectories at every step size, for every seed."""
    session = session or Session()
    session.plan(config.seeds * len(config.methods))
    runs = []
    for seed in range(config.seeds):
        problem, data = make_problem(config, seed)
        for method, direction in directions(
            problem, data, config.methods, jax.random.key(seed)
        ).items():
            start, optimum = problem.init().variational, problem.optimum(data)
            compute = partial(_one, config, method, seed, direction, start, optimum)
            document = session.run(
                f"{method}-{seed}",
                f"{method.label}, seed {seed}",
                lambda _, compute=compute: asdict(compute()),
            )
            runs.append(Run(**document))
    summary = {}
    for method in config.methods:
        mine = [run for run in runs if run.method == method.value]
        of = lambda name, mine=mine: [run.settings[name] for run in mine]
        summary[method.value] = {
            "angle_to_optimum_degrees": mean_and_std(of("angle_to_optimum_degrees"))["mean"],
            "steps_to_1e-3": _median_steps(of("steps")),
            "learning_rate": mine[0].learning_rate,
        }
    headline = Headline(
        "relative_distance",
        "relative distance to the optimum",
        higher_is_better=False,
        goal=config.tolerance,
    )
    return Results("toy", asdict(config), runs, summary, headline=headline, paper=PAPER)


def _one(
    config: ToyConfig,
    method: Method,
    seed: int,
    direction: Callable[[Array], Array],
    start: Array,
    optimum: Array,
) -> Run:
    best = _best_trajectory(config, direction, start, optimum)
    return Run(
        method=method.value,
        seed=seed,
        learning_rate=best.learning_rate,
        params_sha256=params_sha256(best.path[-1]),
        curves={
            "iteration": list(range(len(best.path))),
            "relative_distance": best.distance.tolist(),
            "lambda_1": best.path[:, 0].tolist(),
            "lambda_2": best.path[:, 1].tolist(),
        },
        settings={
            "angle_to_optimum_degrees": _angle(direction(start), optimum - start),
            "steps": best.steps,
        },
    )


@dataclass(frozen=True)
class _Trajectory:
    learning_rate: float
    steps: int | None
    path: np.ndarray
    distance: np.ndarray


def _best_trajectory(
    config: ToyConfig, direction: Callable[[Array], Array], start: Array, optimum: Array
) -> _Trajectory:
    """The trajectory of the step size that arrives first, or else ends nearest."""
    rates = jnp.asarray(config.learning_rates)

    @jax.jit
    def trajectories(rates: Array) -> Array:
        def walk(rate: Array) -> Array:
            def step(mean: Array, _: None) -> tuple[Array, Array]:
                moved = mean + rate * direction(mean)
                return moved, moved

            return jax.lax.scan(step, start, length=config.iterations)[1]

        return jax.vmap(walk)(rates)

    walked = np.asarray(trajectories(rates), dtype=np.float64)
    first = np.broadcast_to(np.asarray(start, np.float64), (len(walked), 1, 2))
    paths = np.concatenate([first, walked], axis=1)
    target = np.asarray(optimum, dtype=np.float64)
    distances = np.linalg.norm(paths - target, axis=2)
    distances = distances / distances[:, :1]
    inside = np.nan_to_num(distances, nan=np.inf) <= config.tolerance
    # Arrived for good: no later point leaves the tolerance again.
    stays = np.flip(np.logical_and.accumulate(np.flip(inside, axis=1), axis=1), axis=1)
    arrivals = np.where(stays.any(axis=1), stays.argmax(axis=1), config.iterations + 1)
    final = np.nan_to_num(distances[:, -1], nan=np.inf)
    best = int(np.lexsort((final, arrivals))[0])
    arrived = int(arrivals[best]) <= config.iterations
    end = int(arrivals[best]) if arrived else config.iterations
    return _Trajectory(
        config.learning_rates[best],
        end if arrived else None,
        paths[best, : end + 1],
        distances[best, : end + 1],
    )


def _angle(direction: Array, towards: Array) -> float:
    a, b = np.asarray(direction, np.float64), np.asarray(towards, np.float64)
    cosine = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def _median_steps(steps: list[int | None]) -> float | None:
    numbers = [np.inf if count is None else count for count in steps]
    median = float(np.median(numbers))
    return median if np.isfinite(median) else None


def table(results: Results) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the printed table."""
    heads = ["Method", "Angle to the optimum", "Steps to 1e-3", "Learning rate"]
    limit = results.configuration["iterations"]
    rows = [
        [
            Method(name).label,
            f"{entry['angle_to_optimum_degrees']:.2f} deg",
            f"more than {limit}"
            if entry["steps_to_1e-3"] is None
            else f"{entry['steps_to_1e-3']:g}",
            f"{entry['learning_rate']:g}",
        ]
        for name, entry in results.summary.items()
    ]
    return heads, rows


def draw(results: Results, folder: Path) -> list[Path]:
    """Figure 1: contours of the ELBO, the directions at the start and the trajectories."""
    import matplotlib.pyplot as plt

    config = ToyConfig(**results.configuration)
    problem, data = make_problem(config, 0)
    optimum = np.asarray(problem.optimum(data))
    first = [run for run in results.runs if run.seed == 0]
    paths = {r.method: np.stack([r.curves["lambda_1"], r.curves["lambda_2"]], 1) for r in first}
    size = 1.25 * float(np.abs(optimum).max())
    grid = np.linspace(-0.75 * size, size, 141)
    xs, ys = np.meshgrid(grid, grid)
    points = jnp.asarray(np.stack([xs.ravel(), ys.ravel()], 1))
    elbo = np.asarray(jax.vmap(lambda mean: problem.elbo(mean, data))(points)).reshape(xs.shape)
    deficit = np.log10(1.0 + float(problem.elbo(jnp.asarray(optimum), data)) - elbo)
    ways = directions(problem, data, config.methods, jax.random.key(0))
    with house_style():
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.6))
        for panel in axes:
            panel.contour(xs, ys, deficit, levels=14, colors="0.75", linewidths=0.8)
            panel.plot(*optimum, marker="*", markersize=14, color="black", linestyle="none")
            panel.set(xlabel=r"$\lambda_1$", ylabel=r"$\lambda_2$", aspect="equal")
            panel.set(xlim=(grid[0], grid[-1]), ylim=(grid[0], grid[-1]))
            panel.grid(False)
        axes[0].set_title("Direction at the start")
        axes[1].set_title("Trajectory with the best step size")
        # The gradient and the natural gradient coincide here: different lengths show both.
        reach = float(np.linalg.norm(optimum))
        lengths = {
            Method.GRADIENT: 0.65 * reach,
            Method.NATURAL_GRADIENT: 0.35 * reach,
            Method.VPNG: 0.8 * reach,
            Method.HESSIAN_FREE: 0.6 * reach,
        }
        for method, direction in ways.items():
            arrow = np.asarray(direction(problem.init().variational), dtype=np.float64)
            arrow *= lengths[method] / np.linalg.norm(arrow)
            look = line_look(method)
            axes[0].annotate(
                "",
                xy=tuple(arrow),
                xytext=(0.0, 0.0),
                arrowprops={"arrowstyle": "-|>", "color": look["color"], "lw": 2.2},
            )
            axes[0].annotate(method.label, tuple(arrow), (5, -4), textcoords="offset points")
            path = paths[method.value]
            axes[1].plot(
                path[:, 0],
                path[:, 1],
                markevery=max(1, len(path) // 8),
                **look,
                label=f"{method.label}: {len(path) - 1} steps",
            )
        axes[1].legend(loc="upper left")
        return save(figure, folder, "toy")
