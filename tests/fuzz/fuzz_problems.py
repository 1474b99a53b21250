"""Problems, data and settings of odd shapes."""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from fuzz_target import Target, refused
from hypothesis import strategies as st

from vpng import Parameters, optimizers
from vpng.problems import GaussianMean
from vpng.training import fit

ODD = st.sampled_from(
    [
        np.zeros((0, 2), np.float32),
        np.zeros((1, 2), np.float32),
        np.ones((5, 2), np.float32),
        np.ones((5, 2), np.float64),
        np.ones((5, 2), np.int32),
        np.ones((5, 2), bool),
        np.ones((5, 2), np.complex64),
        np.full((5, 2), np.nan, np.float32),
        np.ones(5, np.float32),
        np.float32(1.0),
        np.ones((5, 3), np.float32),
        np.ones((5, 2), object),
        np.array([["a", "b"]]),
        [],
        {},
        None,
        (),
        [[1.0, 2.0], [3.0]],
        {"x": np.ones((5, 2)), "y": np.ones((4, 2))},
        np.full((5, 2), np.inf, np.float32),
        "text",
        3,
        np.full((5, 2), 1e30, np.float32),
    ]
)
START = st.sampled_from(
    [
        Parameters(jnp.zeros(2)),
        Parameters(jnp.zeros(3)),
        Parameters(jnp.zeros((), jnp.int32)),
        Parameters(()),
        jnp.zeros(2),
        None,
        Parameters(jnp.full(2, jnp.nan)),
        Parameters([0.0, 0.0]),
        Parameters(np.zeros(2)),
        Parameters(None),
        Parameters("text"),
        Parameters(jnp.zeros(2), jnp.zeros(1)),
    ]
)
RUNS = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.sampled_from([None, 1, 2, 5, 6, 0, -1, 1.5, True, "3"]),
        "record_every": st.sampled_from([1, 3, 0, -2, 2.5]),
        "max_seconds": st.sampled_from([0.0, -1.0, 1e-9, float("nan"), 1e9]),
    },
)


def check_fit(case: tuple, folder: Path) -> None:
    data, params, options, num_steps, number = case
    problem = GaussianMean.create(jnp.eye(2), number)
    optimizer = optimizers.gradient(0.1, rule=optax.scale_by_adam())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad, result = refused(
            lambda: fit(
                problem,
                params,
                data,
                optimizer,
                num_steps,
                jax.random.key(0),
                progress=False,
                **options,
            )
        )
    if not bad:
        assert isinstance(params, Parameters)
        begun = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
        now = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
        assert now or not begun
        assert 1 <= int(result.state.step) <= num_steps


TARGETS = {
    "fit": Target(
        st.tuples(
            ODD, START, RUNS, st.sampled_from([1, 2, 0, -1, 2.0]), st.sampled_from([5, 1, 4])
        ),
        check_fit,
        0.5,
    ),
}
