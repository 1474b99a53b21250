"""All of scikit-learn's estimator checks for the three models, with what each one took.

The suite has those that need no fit and a few that do; here are all of them. Fits are short: the
checks ask for conventions, not for quality. Exits with an error if a check fails.
"""

import argparse
import json
import sys
import time
from typing import Any
from unittest import SkipTest

from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import estimator_checks_generator

from vpng.models import VAE, BayesianLogisticRegression, PoissonFactorization

SHORT: dict[str, Any] = {"hidden": (4,), "max_epochs": 2, "random_state": 0}
ESTIMATORS: dict[str, BaseEstimator] = {
    "BayesianLogisticRegression": BayesianLogisticRegression(num_steps=200, random_state=0),
    "PoissonFactorization": PoissonFactorization(2, **SHORT),
    "VAE": VAE(2, **SHORT),
}
ONE_NUMBER_A_ROW = "wants one number for each row from predict; here it is a row of rates"
NOT_APPLICABLE = {
    "PoissonFactorization": {
        "check_estimator_sparse_array": ONE_NUMBER_A_ROW,
        "check_estimator_sparse_matrix": ONE_NUMBER_A_ROW,
    }
}
"""Checks that do not fit what a model is, by model, and why."""


def main() -> None:
    """Check the estimators, or the one that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ESTIMATORS, default=None)
    options = parser.parse_args()
    report = {}
    for name in [options.only] if options.only else ESTIMATORS:
        passed, failed = 0, {}
        began = time.process_time()
        for estimator, check in estimator_checks_generator(ESTIMATORS[name]):
            title = getattr(check, "func", check).__name__
            clock, outcome = time.process_time(), "passed"
            reason = NOT_APPLICABLE.get(name, {}).get(title)
            try:
                check(estimator)
                passed += 1
            except SkipTest as skipped:
                outcome = f"skipped: {skipped}"
            except Exception as error:  # every failure is reported, whatever its kind
                outcome = f"does not apply: {reason}"
                if reason is None:
                    outcome = failed[title] = f"{type(error).__name__}: {error}"[:300]
            taken = time.process_time() - clock
            print(f"{name} {title}: {taken:.1f} s, {outcome}", file=sys.stderr, flush=True)
        seconds = time.process_time() - began
        report[name] = {"passed": passed, "failed": failed, "processor_seconds": round(seconds, 1)}
    print(json.dumps(report, indent=1))
    sys.exit(any(entry["failed"] for entry in report.values()))


if __name__ == "__main__":
    main()
