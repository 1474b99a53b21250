"""The steps that are measured: an autoencoder and a matrix factorisation, by several methods."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import vpng
from vpng.distributed import Layout
from vpng.distributed.layout import compiled
from vpng.paper.experiments.networks import Factored, network_optimizer
from vpng.plot.methods import Method
from vpng.problem import Parameters, Problem
from vpng.problems import MatrixFactorization, counted, mlp_vae
from vpng.training import Batches, Blocks, TrainState, init_state, make_step
from vpng.training.placed import placed

SWEPT = ("gradient", "vpng_block", "vpng", "cg", "dual")
STATISTICS_PERIOD = 5


class Case(NamedTuple):
    problem: Problem
    params: Parameters
    data: Any
    batch_size: int
    num_particles: int
    inverse_period: int


class Program(NamedTuple):
    """A compiled chunk of steps.

    Attributes:
        run: (state, data, number of steps) -> state.
        state: before the first step.
        data: placed.
        text: of the compiled program.
        memory: bytes that it needs at most, arguments and results included.
    """

    run: Callable
    state: TrainState
    data: Any
    text: str
    memory: int


def vae(batch_size: int, *, width: int = 200, num_particles: int = 10, pixels: int = 784) -> Case:
    """The paper's autoencoder on made-up images."""
    images = np.random.default_rng(0).uniform(size=(2 * batch_size, pixels)) < 0.2
    problem, params, data = mlp_vae(
        jax.random.key(0), images.astype(np.float32), latent_dim=100, hidden=(width, width)
    )
    return Case(problem, params, data, batch_size, num_particles, STATISTICS_PERIOD)


def vmf(batch_size: int, *, items: int = 1000) -> Case:
    """The paper's matrix factorisation on made-up counts."""
    counts = np.random.default_rng(0).poisson(0.1, size=(2 * batch_size, items)).astype(np.uint8)
    problem = MatrixFactorization(2 * batch_size, items, 100)
    return Case(
        problem, problem.init(jax.random.key(0)), counted(counts), batch_size, 1, inverse_period=20
    )


CASES = {"vae": vae, "vmf": vmf}


def optimizer_of(case: Case, method: str) -> optax.GradientTransformation:
    """The optimizer of one method, at the step size that the paper's autoencoder used."""
    few = jax.tree.map(lambda leaf: jnp.asarray(leaf[: case.batch_size]), case.data)
    if method in ("cg", "dual"):
        solver = vpng.ConjugateGradient(max_steps=10) if method == "cg" else vpng.Dual()
        metric = vpng.Predictive(vpng.Probed(1), num_particles=1)
        return vpng.optimizers.vpng(
            case.problem, 0.01, metric=metric, curvature=solver, damping=0.1
        )
    factored = Factored(
        statistics_period=STATISTICS_PERIOD, inverse_period=case.inverse_period, num_particles=1
    )
    return network_optimizer(factored, Method(method), case.problem, case.params, few, 0.01, False)


def program(case: Case, method: str, layout: Layout | None) -> Program:
    """The steps compiled, on one device or on a mesh with the data divided."""
    optimizer = optimizer_of(case, method)
    rows = jax.tree.leaves(case.data)[0].shape[0]
    blocks = 1 if layout is None else layout.num_devices
    host = jax.tree.map(np.asarray, case.data)
    if layout is None:
        source = Blocks.create(host, 1)
    else:
        read = lambda chosen: jax.tree.map(lambda leaf: leaf[chosen], host)
        source = placed(Blocks.of_process(layout, read, rows, blocks), layout)
    batches = Batches(rows, case.batch_size, blocks)
    step = make_step(case.problem, optimizer, vpng.ELBO(case.num_particles), batches)
    state = init_state(jax.random.key(0), case.params, optimizer, batches)
    state = state if layout is None else layout.put_state(state)

    def steps(state: TrainState, data: Any, count: jax.Array) -> TrainState:
        def body(_: Any, state: TrainState) -> TrainState:
            new, _ = step(state, data)
            return new if layout is None else layout.pin(new)

        return jax.lax.fori_loop(0, count, body, state)

    run = compiled(layout, steps, state, source, np.int32(0))
    sizes: Any = run.memory_analysis()
    memory = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return Program(run, state, source, run.as_text(), memory)


def factor_bytes(state: TrainState) -> int:
    """Bytes of all factors that a Kronecker-factored curvature keeps."""
    from vpng.kronecker.averages import Averages

    nodes = jax.tree.leaves(state.optimizer, is_leaf=lambda node: isinstance(node, Averages))
    return sum(
        leaf.nbytes
        for node in nodes
        if isinstance(node, Averages)
        for leaf in jax.tree.leaves(node.sums)
    )
