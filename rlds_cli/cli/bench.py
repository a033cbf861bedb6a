"""``rlds bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlds_cli.base import refs, visible
from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app

if TYPE_CHECKING:
    from rlds_cli.loader.bench import Measurement


@app.command("bench")
def bench(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A dataset on this disk, or an address.", autocompletion=options.complete_here
        ),
    ],
    window: Annotated[
        str, typer.Option("--window", metavar="W", help="Window of a sample: Slice(32), Transition(n_step=3).")
    ] = "Transition()",
    sampler: Annotated[
        str, typer.Option("--sampler", metavar="S", help='Sampler: Shuffled, Uniform(by="episode").')
    ] = "Uniform()",
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="B", min=1, help="Samples per batch.")] = 256,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop the files from the page cache first, as for data larger than memory.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Processes that load at the same time.")
    ] = 1,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Duration of the measurement.")] = 3.0,
    home: options.Home = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Measure how fast a dataset loads on this machine.

    The rate is compared with a plain copy of the same bytes. Memory is measured, too. For a dataset at an address,
    it says how much time went to waiting, and which part of the bytes that came was used.

    Example: rlds bench d4rl/hopper-medium-v2 --window "Slice(32)" --batch-size 8 --processes 4
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.loader import measure

    with out.progress() as progress:
        found = measure(
            ref,
            window=window,
            sampler=sampler,
            batch_size=batch_size,
            cold=cold,
            processes=processes,
            seconds=seconds,
            home=home,
            progress=progress,
        )
    out.result(found, _measured(found, ref))


def _measured(m: Measurement, ref: str) -> str:
    """Rates, the limit, memory and page faults, a line each."""
    cold = ", cold" if m.cold else ""
    title = f"{refs.named(m.id, m.version, ref)}   batches of {m.batch_size:,}, {m.window}, {m.sampler}"
    rows = [
        ("batches", f"{_count(m.batches_per_second)} /s", _each(m)),
        ("samples", f"{_count(m.samples_per_second)} /s", f"{out.size(m.batch_bytes / m.batch_size)} each"),
        ("bytes", f"{out.size(m.bytes_per_second)}/s", ""),
        ("of the limit", f"{m.share_of_limit:.0%}", f"{out.size(m.limit_bytes_per_second)}/s: numpy.take, packed rows"),
        ("memory", out.size(m.anonymous), f"anonymous, beside imports; {out.size(m.mapped)} of mapped files"),
        ("PSS", out.size(m.proportional), f"added by {_processes(m)} in all"),
        ("major faults", f"{m.major_faults:,}", f"{m.minor_faults:,} minor"),
    ]
    if m.requests:
        share = f"{m.used / m.fetched:.2g} times as many were used" if m.fetched else ""
        rows += [
            ("first batch", f"{m.first_batch:.2f} s", ""),
            ("waiting", f"{m.waiting:.0%}", "of the time, for blocks"),
            ("requests", f"{m.requests:,}", f"{out.size(m.fetched / m.requests)} each"),
            ("fetched", out.size(m.fetched), share),
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
