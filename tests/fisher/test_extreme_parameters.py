"""Rows stay finite where probabilities saturate and scales are tiny, in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from vpng.fisher import has_closed_form, whiten

CASES = {
    "Bernoulli logits": (lambda p: dist.Bernoulli(logits=p), [-200.0, -80.0, 0.0, 80.0, 200.0]),
    "Bernoulli probs": (lambda p: dist.Bernoulli(probs=p), [1e-30, 0.5, 1.0]),
    "Binomial logits": (lambda p: dist.Binomial(9, logits=p), [-80.0, 80.0]),
    "Binomial probs": (lambda p: dist.Binomial(9, probs=p), [1e-30, 1.0]),
    "Geometric logits": (lambda p: dist.Geometric(logits=p), [-80.0, 80.0]),
    "Geometric probs": (lambda p: dist.Geometric(probs=p), [1e-30, 1.0]),
    "Poisson": (lambda p: dist.Poisson(p), [1e-30, 1e30]),
    "Exponential": (lambda p: dist.Exponential(p), [1e-30, 1e30]),
    "Gamma rate": (lambda p: dist.Gamma(2.0, p), [1e-30, 1e30]),
    "Gamma concentration": (lambda p: dist.Gamma(p, 1.0), [1e-3, 1e6]),
    "Normal scale": (lambda p: dist.Normal(0.0, p), [1e-30, 1e30]),
    "StudentT scale": (lambda p: dist.StudentT(3.0, 0.0, p), [1e-30, 1e30]),
    "StudentT df": (lambda p: dist.StudentT(p, 0.0, 1.0), [1e-2, 1e6]),
    "Beta": (lambda p: dist.Beta(p, 2.0), [1e-3, 1e5]),
    "negative binomial": (lambda p: dist.NegativeBinomial2(p, 2.0), [1e-15, 1e15]),
    "Categorical": (
        lambda p: dist.Categorical(logits=jnp.stack([p, -p, 0.5 * p], axis=-1)),
        [-80.0, 0.0, 80.0],
    ),
    "Categorical probs": (
        lambda p: dist.Categorical(probs=jnp.stack([p, 1.0 - p], axis=-1)),
        [0.0, 1e-30, 1.0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_finite(name):
    make, values = CASES[name]

    @jax.jit
    def jacobian(values):
        assert has_closed_form(make(values))
        return jax.jacfwd(lambda p: whiten(make(values), make(p)))(values)

    rows = jacobian(np.asarray(values, np.float32))
    assert rows.dtype == np.float32
    assert np.isfinite(np.asarray(rows)).all()


def test_bernoulli_information_keeps_its_digits_in_the_tails():
    """p (1 - p) at logit 80 is exp(-80), far below the rounding of 1 - p."""
    logits = np.array([-80.0, 80.0], np.float32)
    rows = lambda p: whiten(dist.Bernoulli(logits=logits), dist.Bernoulli(logits=p))
    jacobian = np.asarray(jax.jit(jax.jacfwd(rows))(logits), np.float64)
    roots = jacobian[..., 0, :].diagonal()
    np.testing.assert_allclose(roots, np.exp(-40.0), rtol=1e-5)
