"""``rlds bench``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    ref: Annotated[
        str, typer.Argument(metavar="ID", help="A dataset that is here.", autocompletion=options.complete_here)
    ],
    window: Annotated[
        str, typer.Option("--window", metavar="W", help="What a sample is: Slice(32), Transition(n_step=3).")
    ] = "Transition()",
    sampler: Annotated[
        str, typer.Option("--sampler", metavar="S", help='Which samples: Shuffled, Uniform(by="episode").')
    ] = "Uniform()",
    batch_size: Annotated[int, typer.Option("--batch-size", metavar="B", min=1, help="Samples of a batch.")] = 256,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop its files from the page cache first: data larger than memory.")
    ] = False,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Processes that load it at the same time.")
    ] = 1,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="How long each of them loads.")] = 3.0,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """How fast a dataset loads on this machine, beside a plain copy of the same bytes, and in how much memory.

    Example: rlds bench d4rl/hopper-medium-v2 --window "Slice(32)" --batch-size 8 --processes 4
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli.bench import measure
    from rlds_cli.cli.pages.bench import measured

    found = measure(
        ref,
        window=window,
        sampler=sampler,
        batch_size=batch_size,
        cold=cold,
        processes=processes,
        seconds=seconds,
        cache_dir=cache_dir,
    )
    out.result(found, measured(found))
