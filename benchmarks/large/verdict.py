"""What the curves say: who arrives first, what a step costs, who ends higher."""

import math
from collections.abc import Iterator
from typing import Any

Found = dict[str, Any]
Curve = list[tuple[float, int, float | None]]

VPNG = "vpng"


def runs_of(found: Found) -> Iterator[tuple[str, str, Found]]:
    """Contender, setting and run of all that did not fail."""
    for contender, entry in found.items():
        if not isinstance(entry, dict) or "failed" in entry:
            continue
        if "rates" in entry:
            for rate, run in entry["rates"].items():
                yield contender, f"{contender}, {rate}", run
        else:
            yield contender, contender, entry


def final(run: Found) -> float:
    """The last ELBO."""
    last = run["curve"][-1][2]
    return -math.inf if last is None else last


def best_of(found: Found) -> float:
    """The highest ELBO at which any run ended."""
    return max((final(run) for _, _, run in runs_of(found)), default=-math.inf)


def tolerance(best: float) -> float:
    """How near counts as there."""
    return max(1.0, 1e-3 * abs(best))


def arrival(run: Found, target: float) -> float:
    """Seconds until the ELBO was first at the target."""
    return next((s for s, _, e in run["curve"] if e is not None and e >= target), math.inf)


def judged(found: Found) -> dict[str, Any]:
    """Seconds to arrive, the last ELBO below the best and the step's cost, of vpng and Adam."""
    best = best_of(found)
    target = best - tolerance(best)
    own = [run for contender, _, run in runs_of(found) if contender == VPNG]
    adams = [(c, s, run) for c, s, run in runs_of(found) if c != VPNG]
    verdict: dict[str, Any] = {"best": best, "vpng": math.inf, "adam": math.inf}
    for run in own:
        verdict |= {"vpng": arrival(run, target), "vpng_short": best - final(run)}
        verdict["vpng_ready"] = run["ready"]
        verdict["noise"] = 3.0 * run["standard_error"]
        alike = [
            other["microseconds_per_step"]
            for c, _, other in adams
            if c.split()[1] == str(run["num_particles"])
        ]
        if alike:
            verdict["step_ratio"] = run["microseconds_per_step"] / min(alike)
        alone = [o["microseconds_per_step"] for c, _, o in adams if c.split()[1] == "1"]
        if alone:
            verdict["step_ratio_to_one"] = run["microseconds_per_step"] / min(alone)
    if adams:
        _, setting, first = min(adams, key=lambda each: arrival(each[2], target))
        verdict |= {"adam": arrival(first, target), "adam_setting": setting}
        verdict["adam_short"] = best - max(final(run) for _, _, run in adams)
        verdict["adam_ready"] = first["ready"]
    return verdict


def summary(cases: dict[str, Found]) -> dict[str, Any]:
    """Over all cases."""
    verdicts = {name: judged(found) for name, found in cases.items()}
    known = {
        name: each
        for name, each in verdicts.items()
        if "adam_short" in each and ("vpng_short" in each or VPNG in cases[name])
    }
    limit = {name: max(run["curve"][-1][0] for _, _, run in runs_of(cases[name])) for name in known}
    seconds = lambda name, who: min(known[name][who], limit[name])
    ratios = [seconds(name, "adam") / seconds(name, "vpng") for name in known]
    steps = {name: each["step_ratio"] for name, each in known.items() if "step_ratio" in each}
    return {
        "cases": len(known),
        "vpng_first": [n for n in known if known[n]["vpng"] < known[n]["adam"]],
        "adam_first": [n for n in known if known[n]["adam"] < known[n]["vpng"]],
        "geometric_mean_of_seconds": _geometric_mean(ratios),
        "geometric_mean_of_step_ratios": _geometric_mean(list(steps.values())),
        "steps_beyond_five_times": {n: round(r, 1) for n, r in steps.items() if r > 5.0},
        "ends_lower_than_adam": [
            name
            for name, each in known.items()
            if each.get("vpng_short", math.inf) - each["adam_short"] > 0.5 + each.get("noise", 0.0)
        ],
        "warned": [name for name in known if cases[name][VPNG].get("warnings")],
        "failed": [n for n, f in cases.items() for e in f.values() if _failed(e)],
    }


def table(cases: dict[str, Found]) -> str:
    """In Markdown."""
    lines = [
        "| model, guide | latents | curvature | seconds: vpng | Adam | of it ready: vpng, Adam | "
        "nats short: vpng | Adam | a step over Adam's, as many particles | one |",
        "| --- " * 10 + "|",
    ]
    for name, found in cases.items():
        v = judged(found)
        own = found.get(VPNG, {})
        row = [
            name.replace("/", ", "),
            str(found["latents"]),
            own.get("representation", "failed" if _failed(own) else ""),
            _seconds(v["vpng"]),
            f"{_seconds(v['adam'])} ({_setting(v.get('adam_setting', ''))})",
            f"{v.get('vpng_ready', math.nan):.1f}, {v.get('adam_ready', math.nan):.1f}",
            _nats(v.get("vpng_short")),
            _nats(v.get("adam_short")),
            f"{v.get('step_ratio', math.nan):.1f}",
            f"{v.get('step_ratio_to_one', math.nan):.1f}",
        ]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def summary_line(found: Found, contender: str) -> str:
    """What one contender found."""
    entry = found[contender]
    if _failed(entry):
        return f"failed: {entry['failed']}"
    parts = []
    for name, setting, run in runs_of({contender: entry}):
        rate = setting.removeprefix(f"{name}, ") if setting != name else ""
        parts.append(
            f"{rate} ELBO {final(run):.1f} after {run['steps']} steps, "
            f"{run['microseconds_per_step']:.0f} us each, ready {run['ready']:.1f} s".strip()
        )
    said = entry.get("warnings") or []
    how = [entry[key] for key in ("representation", "ended") if key in entry]
    return "; ".join([*parts, *how, *(f"WARNED {text}" for text in said)])


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _failed(entry: Any) -> bool:
    return isinstance(entry, dict) and "failed" in entry


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.1f}"


def _nats(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _setting(name: str) -> str:
    parts = name.split(", ")
    return ", ".join([parts[1].split()[0], parts[2]]) if len(parts) == 3 else ""
