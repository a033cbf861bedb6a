"""Choose the workers of a task: this process, several processes of this machine, or a Ray cluster."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from rlds_cli.preprocess import functions
from rlds_cli.preprocess.task import Task
from rlds_cli.progress import Event, Progress
from rlds_cli.settings import cores
from rlds_cli.store.workers import Executor, Processes

_WORTH_A_WORKER = 2.0  # seconds of work that pay for starting a process


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """The workers of a task: a ``cluster``, or else ``jobs`` processes of this machine; None for as many as pay off.

    ``in_place`` allows several processes to write to one file.
    """

    task: Task
    jobs: int | None
    progress: Progress
    cluster: Executor | None = None
    in_place: bool = True

    def executor(self, seconds: float, chunks: int) -> Executor | None:
        """Return an executor for the chunks, which take ``seconds`` in one process; None to work in this process."""
        if self.cluster is not None:
            return self.cluster
        count = min(process_count(self.jobs, seconds), chunks)
        if count < 2:
            return None
        why = why_not_portable(self.task)
        if why:
            self.progress(Event(str(self.task.id), "note", note=f"working in this process: {why}"))
            return None
        return Processes(count, self.in_place)

    @property
    def threads(self) -> int:
        """Number of threads that hash in this process."""
        return max(2, self.jobs if self.jobs is not None and self.cluster is None else cores())


def why_not_portable(t: Task) -> str:
    """Say why no other process can run the function; empty if one can."""
    if not t.function.portable:
        return f"{t.function.name} is in no module and cannot be pickled (pip install cloudpickle)"
    script = functions.script()
    if script is None and hasattr(sys.modules.get("__main__"), "__file__"):
        return "a program from standard input cannot be run again by workers"
    if script and script.suffix == ".py" and "__name__" not in script.read_text(errors="replace"):
        return f'workers would run {script.name} again: put its main part under `if __name__ == "__main__":`'
    return ""


def process_count(jobs: int | None, seconds: float) -> int:
    """Return the number of processes: ``jobs``, or else as many as pay off for work of ``seconds``."""
    if jobs is not None:
        return jobs
    return min(cores(), math.floor(seconds / _WORTH_A_WORKER))
