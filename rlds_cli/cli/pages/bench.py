"""What ``rlds bench`` says to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli import visible
from rlds_cli.cli import out

if TYPE_CHECKING:
    from rlds_cli.bench import Measurement


def measured(m: Measurement) -> str:
    """Rates, the limit, memory and page faults, a line each."""
    cold = ", cold" if m.cold else ""
    title = f"{m.id}   batches of {m.batch_size:,}, {m.window}, {m.sampler}"
    rows = [
        ("batches", f"{_count(m.batches_per_second)} /s", _each(m)),
        ("samples", f"{_count(m.samples_per_second)} /s", f"{out.size(m.batch_bytes / m.batch_size)} each"),
        ("bytes", f"{out.size(m.bytes_per_second)}/s", ""),
        ("of the limit", f"{m.share_of_limit:.0%}", f"{out.size(m.limit_bytes_per_second)}/s: numpy.take, packed rows"),
        ("memory", out.size(m.anonymous), f"anonymous, beside imports; {out.size(m.mapped)} of mapped files"),
        ("PSS", out.size(m.proportional), f"added by {_processes(m)} in all"),
        ("major faults", f"{m.major_faults:,}", f"{m.minor_faults:,} minor"),
    ]
    width = max(len(figure) for _, figure, _ in rows)
    lines = [f"{what:<14}{figure:>{width}}   {more}".rstrip() for what, figure, more in rows]
    return visible.lines([title, f"{_processes(m)}{cold}, {m.seconds:g} s", *lines])


def _each(m: Measurement) -> str:
    mean, best = (m.processes / rate * 1e6 for rate in (m.batches_per_second, m.best_batches_per_second))
    return f"{_count(mean)} µs each, best {_count(best)} µs"


def _processes(m: Measurement) -> str:
    return "1 process" if m.processes == 1 else f"{m.processes} processes"


def _count(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:,.1f}"
