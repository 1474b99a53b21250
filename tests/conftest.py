"""What all tests share: float64 on demand, and reproducible property tests."""

import jax
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "vpng",
    deadline=None,
    derandomize=True,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("vpng")


@pytest.fixture
def x64():
    """Double precision inside this test alone, so that float32 tests coexist in the same run."""
    with jax.enable_x64(True):
        yield
