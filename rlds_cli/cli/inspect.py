"""``rlds inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out
from rlds_cli.cli.commands import app


@app.command("inspect")
def inspect(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID|PATH",
            help="A dataset on this disk, or files of any kind.",
            autocompletion=options.complete_here,
        ),
    ],
    stats: Annotated[bool, typer.Option("--stats", help="Show statistics of every element of a row.")] = False,
    episode: Annotated[
        int | None, typer.Option("--episode", metavar="N", help="Show one episode; -1 is the last.", show_default=False)
    ] = None,
    html: Annotated[
        str | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a report as one HTML file; - is stdout.", show_default=False
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="returns|lengths|NAME",
            help="Write a chart as SVG, or image frames as PNG.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="File that --plot writes.", show_default=False)
    ] = None,
    video: Annotated[
        str | None,
        typer.Option(
            "--video", metavar="FILE", help="Write the frames of --episode N (else 0) as MP4.", show_default=False
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="Image field that --video writes.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --html replace a file that is not a report.")] = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the contents of a dataset, an episode or a file.

    Example: rlds inspect d4rl/hopper-medium-v2 --episode 12
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import report
    from rlds_cli.home import locate

    path, is_dataset = locate.dataset_or_file(ref, cache_dir=cache_dir)
    if episode is not None and not is_dataset:
        raise typer.BadParameter(f"--episode needs a dataset; {ref} is a file (rlds import makes a dataset of it)")
    if (plot is not None or video is not None) and not is_dataset:
        raise typer.BadParameter(
            f"--plot and --video need a dataset; {ref} is a file (rlds import makes a dataset of it)"
        )
    if html is not None and (plot is not None or video is not None):
        raise typer.BadParameter("--html cannot be combined with --plot and --video")
    if plot is not None or video is not None:
        from rlds_cli.cli.pages import output_files

        if plot is not None:
            output_files.write_plot(path, plot, output, episode=episode)
        if video is not None:
            output_files.write_video(path, video, episode=episode, field=field)
    elif html is not None:
        from rlds_cli.cli.pages import output_files

        with out.progress():
            output_files.write_report(path, html, is_dataset=is_dataset, whole=episode is None, force=force)
    elif not is_dataset:
        from rlds_cli.cli.pages.file import FilePage

        with out.progress():
            found = report.describe_file(path)
        out.page(FilePage(found), found)
    elif episode is not None:
        from rlds_cli.cli.pages.inspect import EpisodePage

        one = report.describe_episode(path, episode, elements=stats)
        out.page(EpisodePage(one), one)
    else:
        from rlds_cli.cli.pages.inspect import SummaryPage

        whole = report.summarise(path, elements=stats)
        out.page(SummaryPage(whole), whole)
