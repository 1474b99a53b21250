"""What one update of vpng's SVI costs beside one of NumPyro's Adam with as many particles.

The models and guides are those of `zoo`. Both start from the same point and take so many steps in
one compiled loop: the first steps of vpng, which take the metric in each, cost more than later
ones, so that short runs and long ones have lines of their own. A table goes to the standard error,
one JSON object to the standard output.
"""

import argparse
import json
import sys

import jax

from zoo import choose
from zoo.clock import seconds_per_step
from zoo.programs import Adam, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--steps", type=int, nargs="+", default=[30, 300, 1000])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    entries = []
    for case in choose(options.models):
        vpng = ours(case)
        particles = vpng.svi.loss.num_particles
        programs = {"vpng": vpng, "adam": Adam(case, particles)}
        parameters = jax.tree.leaves(vpng.svi.get_params(vpng.first))
        entry = {
            "model": case.model,
            "guide": case.guide,
            "num_particles": particles,
            "num_parameters": sum(leaf.size for leaf in parameters),
            "runs": [],
        }
        for steps in options.steps:
            seconds = seconds_per_step(programs, steps, options.rounds)
            ratio = seconds["vpng"] / seconds["adam"]
            microseconds = {name: 1e6 * value for name, value in seconds.items()}
            entry["runs"].append({"steps": steps, "microseconds": microseconds, "ratio": ratio})
        entries.append(entry)
        ratios = ", ".join(f"{run['steps']} steps {run['ratio']:.2f}" for run in entry["runs"])
        print(
            f"{case.name} ({entry['num_parameters']} parameters, {particles} particles): {ratios}",
            file=sys.stderr,
            flush=True,
        )
    print(json.dumps({"cases": entries}, indent=1))


if __name__ == "__main__":
    main()
