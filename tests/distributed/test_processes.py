"""Real processes on this machine: refused, killed, resumed by fewer."""

import numpy as np
import pytest
from launch import finished, launch, launch_processes, result, seconds_until_end, wait_for_step

pytestmark = pytest.mark.endurance

REFUSED = (
    "process 1: expected the configuration and libraries of process 0, got "
    "setting another (process 0 has same)"
)


def test_a_killed_process_stops_the_others_and_fewer_go_on(tmp_path):
    """Two processes for a while, one killed, the other stops; one alone ends where one would.

    Before the run one of the two comes with another setting, and both are refused with it.
    """
    kept = ("--methods", "block", "--checkpoints", str(tmp_path / "run"))
    slow = (*kept, "--slow", "0.5", "--tried", "same")
    first, second = launch_processes(2, *slow, own={1: ("--tried", "another")})
    # The checkpoint of step 20 is on the disk when step 30 is announced.
    said = wait_for_step(first, 30)
    second.kill()
    assert REFUSED in said
    assert REFUSED in finished(second)[2]
    assert seconds_until_end(first, 60.0) < 60.0
    code, out, err = finished(first)
    assert code == 1
    assert "RESULT" not in out
    assert "another process of this run is gone" in err
    assert any(int(path.stem[5:]) >= 20 for path in (tmp_path / "run").glob("step-*.vpng"))
    resumed = result(launch(*kept, "--reference"))
    assert resumed["read"] == list(range(67))
    np.testing.assert_allclose(
        resumed["params"]["block"], resumed["alone"]["block"], rtol=0, atol=1e-10
    )
