"""The cost model against measured times: at which size products are cheaper than a matrix.

Every operation of `vpng.numerics.cost` is timed on plain matrices; then the three ways to solve
with the Fisher of real models: a matrix of parameters, one of rows, and products alone, as many as
an iterative solve takes until its residual is a thousandth, for several dampings relative to the
largest eigenvalue. Times are seconds of one processor (`taskset -c 0`), the least of a few.

    python benchmarks/cost_model.py --out cost-model.json
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread: its seconds are those of the computation, whatever else the machine does.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, PyTree

from vpng import Predictive
from vpng.curvature import ConjugateGradient, Dense, Dual
from vpng.fisher import FisherOperator
from vpng.numerics import cost
from vpng.problems import LogisticRegression
from vpng.problems.autoencoder import mlp_vae

PARTICLES = 1
DAMPINGS = (1e-2, 1e-3, 1e-4, 1e-5)
SHAPES = [(rows, size) for size in (100, 300, 600, 1200) for rows in (size // 4, size, 4 * size)]
LOGISTIC = ((600, 50), (600, 200), (1000, 500), (3000, 500), (300, 800))
NETWORKS = ((4, 50), (8, 50), (8, 200), (16, 100))


def seconds(function: Callable, *arguments: PyTree, repeats: int = 5) -> float:
    """The least processor time of a call, compiled before."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        jax.block_until_ready(compiled(*arguments))
        found.append(time.process_time() - begin)
    return min(found)


def plain(rows: int, size: int) -> dict:
    """The operations on a plain matrix, measured and as the model has them."""
    generator = np.random.default_rng(0)
    factor = jnp.asarray(generator.normal(size=(rows, size)) / rows**0.5, jnp.float32)
    matrix = factor.T @ factor + jnp.eye(size)
    triangle, vector = jnp.linalg.cholesky(matrix), jnp.ones(size)
    unit = lambda vector: vector / jnp.linalg.norm(vector)
    many = lambda R, v: jax.lax.fori_loop(0, 20, lambda _, v: unit(R.T @ (R @ v)), v)
    differentiate = jax.jacfwd if 2 * rows >= size else jax.jacrev
    measured = {
        "jacobian": seconds(
            lambda R, v: differentiate(lambda v: jnp.tanh(R @ v))(v), factor, vector
        ),
        "matrix product": seconds(lambda R: R.T @ R, factor),
        "cholesky": seconds(jnp.linalg.cholesky, matrix),
        "solve": seconds(lambda L, v: cho_solve((L, True), v), triangle, vector),
        "product": seconds(many, factor, vector) / 20,
    }
    model = {
        "jacobian": cost.jacobian(rows, size).time,
        "matrix product": cost.matrix_product(size, rows, size).time,
        "cholesky": cost.cholesky(size).time,
        "solve": cost.solve(size).time,
        "product": cost.product(rows, size).time,
    }
    dense = sum(time for name, time in measured.items() if name != "product")
    return {
        "rows": rows,
        "parameters": size,
        "products at the price of a matrix": dense / measured["product"],
        "of the model": cost.dense(rows, size).time / cost.product(rows, size).time,
        "billions a second": {name: model[name] / measured[name] / 1e9 for name in measured},
    }


def operators() -> Iterator[tuple[str, Callable[..., FisherOperator], PyTree, PyTree]]:
    """Fishers of real models: a name, parameters and data -> operator, and both."""
    metric = Predictive(num_particles=PARTICLES)
    key, generator = jax.random.key(1), np.random.default_rng(0)
    for rows, latents in LOGISTIC:
        covariates = generator.normal(size=(rows, latents)).astype(np.float32)
        labels = generator.integers(0, 2, rows)
        problem, data = LogisticRegression.create(covariates, labels, intercept=False)
        at = lambda params, data, problem=problem: metric.operator(problem, params, data, key)
        yield f"logistic {rows} x {latents}", at, problem.init(key, latents), data
    for width, images in NETWORKS:
        pixels = (generator.uniform(size=(images, 30)) < 0.3).astype(np.float32)
        setup = mlp_vae(key, pixels, latent_dim=2, hidden=(width,))
        at = lambda params, data, of=setup.problem: metric.operator(of, params, data, key)
        yield f"network {width}, {images} images", at, setup.parameters, setup.data


def solves(name: str, at: Callable[..., FisherOperator], params: PyTree, data: PyTree) -> dict:
    """Seconds of each way to solve, and the products that the iterative one takes."""
    operator = at(params, data)
    rows, size = operator.num_rows, operator.num_parameters
    random = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(2), leaf.shape), params)
    gradient = jax.jit(lambda params, data: at(params, data).mv(random))(params, data)
    fisher = np.asarray(jax.jit(lambda params, data: at(params, data).to_dense())(params, data))
    largest = float(np.linalg.eigvalsh(fisher.astype(float))[-1])

    def direct(curvature: Dense | Dual) -> Callable[..., PyTree]:
        metric = lambda params, data: lambda: at(params, data)
        return lambda params, data, damping: (
            curvature.solve(metric(params, data), gradient, damping, ()).direction
        )

    def iterative(params: PyTree, data: PyTree, damping: Array) -> tuple[PyTree, Array, Array]:
        curvature = ConjugateGradient(rtol=1e-3, max_steps=5000)
        solved = curvature.solve(
            lambda: at(params, data), gradient, damping, curvature.init(params)
        )
        return solved.direction, solved.info.iterations, solved.info.residual

    middle = jnp.float32(1e-3 * largest)
    found = {
        "model": name,
        "rows": rows,
        "parameters": size,
        "dense": seconds(direct(Dense()), params, data, middle, repeats=3),
        "dual": seconds(direct(Dual()), params, data, middle, repeats=3) if rows < 2000 else None,
        "products": {},
    }
    for relative in DAMPINGS:
        damping = jnp.float32(relative * largest)
        _, count, residual = jax.jit(iterative)(params, data, damping)
        taken = seconds(iterative, params, data, damping, repeats=2)
        found["products"][relative] = {
            "count": int(count),
            "seconds": taken,
            "residual": float(residual),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    operations = [plain(*shape) for shape in SHAPES]
    print("rows x parameters: products at the price of a matrix, measured and of the model")
    for each in operations:
        shape = f"{each['rows']} x {each['parameters']}"
        pace = ", ".join(f"{name} {value:.0f}" for name, value in each["billions a second"].items())
        print(
            f"{shape:>12}: {each['products at the price of a matrix']:6.0f} "
            f"{each['of the model']:6.0f}   billions of the model a second: {pace}"
        )
    models = []
    print("milliseconds: matrix of parameters, of rows; products, by relative damping")
    for each in operators():
        models.append(found := solves(*each))
        dual = "-" if found["dual"] is None else f"{1e3 * found['dual']:.1f}"
        products = ", ".join(
            f"{relative:g}: {1e3 * way['seconds']:.1f} ({way['count']})"
            for relative, way in found["products"].items()
        )
        shape = f"{found['rows']} x {found['parameters']}"
        print(f"{found['model']}, {shape}: {1e3 * found['dense']:.1f}, {dual}; {products}")
    if arguments.out:
        arguments.out.write_text(json.dumps({"operations": operations, "models": models}, indent=1))


if __name__ == "__main__":
    main()
