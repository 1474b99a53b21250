"""Fuzzes the readers, the command line and `fit` for as many cases, or as long, as one likes.

The targets are those of `tests/fuzz`. A case that fails is printed, shrunk, with its traceback; the
exit code is then 1. A case that takes longer than a minute counts as a hang.
"""

import argparse
import faulthandler
import sys
import tempfile
import time
import traceback
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fuzz"))

from fuzz_target import Target
from fuzz_targets import TARGETS

HANG_SECONDS = 60.0


def soak(target: Target, num_cases: int, number: int, deadline: float) -> int:
    """Run cases of one target; returns how many there were, and raises what fails."""
    count = 0

    @seed(number)
    @settings(
        max_examples=num_cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(target.cases)
    def check(case: object) -> None:
        nonlocal count
        if time.monotonic() > deadline:
            return
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "folder"
            folder.mkdir()
            target.check(case, folder)
        count += 1

    try:
        check()
    finally:
        faulthandler.cancel_dump_traceback_later()
    return count


def main() -> int:
    """Soak the targets one after the other; 1 if any of them fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="in all, shared by the targets")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), default=list(TARGETS))
    options = parser.parse_args()
    began = time.monotonic()
    total = sum(TARGETS[name].weight for name in options.targets)
    done, failed = 0, []
    for place, name in enumerate(options.targets):
        wanted = max(round(options.cases * TARGETS[name].weight / total), 1)
        left = options.seconds - (time.monotonic() - began)
        deadline = time.monotonic() + left / (len(options.targets) - place)
        try:
            count = soak(TARGETS[name], wanted, options.seed, deadline)
        except Exception:
            failed.append(name)
            traceback.print_exc()
            print(f"{name}: FAILED", flush=True)
            continue
        done += count
        print(f"[{time.monotonic() - began:5.0f} s] {name}: {count} cases, all well", flush=True)
    listed = f"; failed: {', '.join(failed)}" if failed else ""
    print(f"{done} cases in {time.monotonic() - began:.0f} s{listed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
