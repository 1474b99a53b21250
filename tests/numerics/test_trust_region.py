"""The damping follows the model's quality, within its bounds."""

import jax.numpy as jnp
import pytest

from vpng.numerics.trust_region import TrustRegion

REGION = TrustRegion(lower=0.5, worse=2.0, rejected=4.0, failed=10.0, minimum=0.1, maximum=30.0)


@pytest.mark.parametrize(
    ("good", "bad", "wanted"), [(True, False, 0.5), (False, True, 2.0), (False, False, 1.0)]
)
def test_a_step_that_was_taken(good, bad, wanted):
    after = REGION.after_step(jnp.asarray(1.0), good=jnp.asarray(good), bad=jnp.asarray(bad))
    assert float(after) == wanted


def test_a_step_that_was_not_taken_says_more_and_a_failed_solve_more_still():
    damping = jnp.asarray(1.0)
    assert float(REGION.after_rejection(damping)) == 4.0
    assert float(REGION.after_failure(damping)) == 10.0


def test_bounds():
    good, bad = jnp.asarray(True), jnp.asarray(False)
    assert float(REGION.after_step(jnp.asarray(0.15), good=good, bad=bad)) == pytest.approx(0.1)
    assert float(REGION.after_rejection(jnp.asarray(20.0))) == 30.0
    assert float(REGION.after_failure(jnp.asarray(20.0))) == 30.0
