"""Where the time went: what JAX says of its own tracing, lowering and compiling."""

import time
from types import TracebackType
from typing import Any

from jax import monitoring

STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


class Stopwatch:
    """Seconds of a block, in all and by stage; stages that run inside one another count once.

    Attributes:
        seconds: on the wall, of the whole block.
        cpu_seconds: of all cores together.
        marks: seconds of the wall at each mark.
        programs: number of programs that were compiled, or read from a cache.
    """

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self.marks: dict[str, float] = {}
        self.programs = 0
        self._spans: list[tuple[float, float, str]] = []

    def __enter__(self) -> "Stopwatch":
        monitoring.register_event_duration_secs_listener(self._note)
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = time.process_time() - self._cpu_began
        monitoring.unregister_event_duration_listener(self._note)

    def mark(self, name: str) -> None:
        """Note that something was finished now."""
        self.marks[name] = time.perf_counter() - self._began

    def report(self) -> dict[str, Any]:
        """What the table shows; `other` is steps, and Python."""
        stages = self._by_stage()
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "init": self.marks.get("init"),
            **stages,
            "other": self.seconds - sum(stages.values()),
            "programs": self.programs,
        }

    def _note(self, event: str, seconds: float, **_: Any) -> None:
        if event in STAGES:
            now = time.perf_counter()
            self._spans.append((now - seconds, now, STAGES[event]))
            self.programs += STAGES[event] == "compiling"

    def _by_stage(self) -> dict[str, float]:
        """Time in each stage, without that of the stages inside it."""
        found = dict.fromkeys(STAGES.values(), 0.0)
        around: list[tuple[float, str]] = []
        for begin, end, stage in sorted(self._spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1][0] <= begin:
                around.pop()
            found[stage] += end - begin
            if around:
                found[around[-1][1]] -= end - begin
            around.append((end, stage))
        return found
