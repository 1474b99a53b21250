"""The engine under every experiment: runs are counted, timed, shown and remembered."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from vpng.distributed import Layout, from_first
from vpng.paper.experiments.journal import Journal
from vpng.paper.experiments.results import plain
from vpng.run.interrupted import stop_if_interrupted
from vpng.runtime.blas_threads import limit_blas_threads
from vpng.training import Checkpoints


@dataclass(frozen=True)
class Status:
    """How far an experiment is.

    Attributes:
        title: what is running.
        detail: how it goes, for instance the ELBO so far.
        position: number of the current run, from one; 0 before the first.
        total: number of runs; 0 if not yet known.
        fraction: part of all the work that is done, in [0, 1].
        seconds_left: estimate from this session's own pace; None while there is none.
        finished: whether the current run has just ended.
    """

    title: str
    detail: str = ""
    position: int = 0
    total: int = 0
    fraction: float = 0.0
    seconds_left: float | None = None
    finished: bool = False


class Watcher(Protocol):
    """Whoever shows the status."""

    def __call__(self, status: Status, /) -> None: ...


def silent(status: Status) -> None:
    """Shows nothing."""


@dataclass(frozen=True)
class ProgressReport:
    """Called by a run with the part of it that is done and a word on how it goes.

    Attributes:
        show: what is done with them.
        checkpoints: where the run may keep its state while it lasts; None for nowhere.
    """

    show: Callable[[float, str], None]
    checkpoints: Checkpoints | None = None

    def __call__(self, fraction: float, detail: str) -> None:
        """Show it."""
        self.show(fraction, detail)


class Session:
    """Runs the parts of an experiment one after another and keeps each that has finished.

    A part that the journal remembers is not run again, and one that was stopped may go on from its
    checkpoint. Calling the session with a text shows it. Of several processes only the first has a
    journal; the others hear from it.

    Attributes:
        layout: the mesh to run on; None for one device.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        watcher: Watcher = silent,
        layout: Layout | None = None,
    ) -> None:
        limit_blas_threads()
        self._journal, self._watcher, self.layout = journal, watcher, layout
        self._runs, self._cost = 0, 0.0
        self._position, self._done, self._recalled, self._busy = 0, 0.0, 0.0, 0.0

    def __call__(self, text: str) -> None:
        """Show what is being done between runs."""
        self._watcher(self._status(text, "", 0.0, 0.0))

    def plan(self, runs: int, cost: float | None = None) -> None:
        """Announce `runs` runs of the given total cost, by default one each."""
        self._runs += runs
        self._cost += float(runs) if cost is None else cost

    def run(
        self,
        name: str,
        title: str,
        compute: Callable[[ProgressReport], dict[str, Any]],
        *,
        cost: float = 1.0,
    ) -> dict[str, Any]:
        """The document that `compute` makes, or made in a session that was stopped.

        Args:
            name: identifies the run within its experiment.
            title: what is shown while it runs.
            compute: does the work; what it returns must be representable in JSON, and numbers that
                are not finite come back as None.
            cost: its share of the planned cost, in any unit, for the time that is left.

        Raises:
            InterruptedRunError: if a signal came; what is finished is kept.
        """
        stop_if_interrupted()
        self._position += 1
        document = from_first(lambda: self._journal.recall(name) if self._journal else None)
        if document is not None:
            self._recalled += cost
        else:
            began = time.perf_counter()

            def show(fraction: float, detail: str) -> None:
                spent = time.perf_counter() - began
                self._watcher(self._status(title, detail, min(fraction, 1.0) * cost, spent))

            # Only the first of several processes writes there, and all must do the same.
            directory = from_first(lambda: self._journal and str(self._journal.unfinished(name)))
            tell = ProgressReport(
                show, None if directory is None else Checkpoints(directory, keep=2)
            )
            tell(0.0, "")
            document = plain(compute(tell))
            self._busy += time.perf_counter() - began
            if self._journal:
                self._journal.keep(name, document)
        self._done += cost
        self._watcher(self._status(title, "", 0.0, 0.0, finished=True))
        return document

    def _status(
        self, title: str, detail: str, part: float, spent: float, *, finished: bool = False
    ) -> Status:
        done, worked = self._done + part, self._done + part - self._recalled
        left = None
        if worked > 0.0:
            left = max(self._cost - done, 0.0) * (self._busy + spent) / worked
        fraction = min(done / self._cost, 1.0) if self._cost else 0.0
        return Status(title, detail, self._position, self._runs, fraction, left, finished)
