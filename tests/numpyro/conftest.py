"""What all tests of the NumPyro front door share."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def looped_random_numbers():
    """The tests compile without optimisation, where the generator that is written out takes long.

    The bits are the same: see `test_random`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vpng.numpyro.svi.written_out", lambda key: key)
        yield
