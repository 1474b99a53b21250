"""The figure of the scaling benchmark."""

from pathlib import Path

METHODS = {
    "gradient": "gradient",
    "vpng_block": "block-diagonal",
    "vpng": "tridiagonal",
    "cg": "CG",
    "dual": "dual",
}


def draw(report: dict, path: Path) -> None:
    """Step time and memory against width, batch and particles; the modelled time of a step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 3, figsize=(12, 10))
    for column, (name, methods) in enumerate(report["sweep"].items()):
        for method, points in methods.items():
            values = [int(value) for value in points]
            seconds = [1e3 * (point["seconds"] or float("nan")) for point in points.values()]
            memory = [point["memory"] / 2**20 for point in points.values()]
            axes[0, column].loglog(values, seconds, "o-", label=METHODS[method])
            axes[1, column].loglog(values, memory, "o-", label=METHODS[method])
        axes[0, column].set(xlabel=name, ylabel="ms a step")
        axes[1, column].set(xlabel=name, ylabel="MB at most")
        for panel in axes[:2, column]:
            panel.set_xticks(values, [str(value) for value in values])
            panel.minorticks_off()
    for column, (case, found) in enumerate(report["scaling"].items()):
        for method, answer in found["methods"].items():
            counts = [int(count) for count in answer["modelled"]]
            for kind, style in (("strong", "o-"), ("weak", "s--")):
                seconds = [1e3 * point[kind]["seconds"] for point in answer["modelled"].values()]
                label = f"{METHODS[method]}, {kind}"
                axes[2, column].loglog(counts, seconds, style, label=label)
        axes[2, column].set(xlabel="devices", ylabel="ms a step, modelled", title=case)
    for panel in axes.flat:
        if panel.lines:
            panel.legend(fontsize=6)
        else:
            panel.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
