"""``rlds inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlds_cli.cli import options, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID|PATH",
            help="A dataset that is here, or files of any kind.",
            autocompletion=options.complete_here,
        ),
    ],
    stats: Annotated[bool, typer.Option("--stats", help="Statistics of every element of a row.")] = False,
    episode: Annotated[
        int | None, typer.Option("--episode", metavar="N", help="One episode; -1 is the last.", show_default=False)
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="A report as one HTML file; - is stdout.", show_default=False),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="returns|lengths|NAME", help="A chart as SVG; frames as PNG.", show_default=False
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where --plot goes.", show_default=False)
    ] = None,
    video: Annotated[
        str | None,
        typer.Option("--video", metavar="FILE", help="Frames of --episode N (else 0) as MP4.", show_default=False),
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="Which frames --video takes.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --html replace a file that is no report.")] = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """What is in a dataset, one of its episodes, or a file.

    Example: rlds inspect d4rl/hopper-medium-v2 --episode 12
    """
    out.configure(json=json, quiet=quiet, verbose=verbose)
    from rlds_cli import report
    from rlds_cli.cli.pages import file, inspect
    from rlds_cli.cli.pages import inspect as episode_page
    from rlds_cli.home import locate

    path, is_dataset = locate.dataset_or_file(ref, cache_dir=cache_dir)
    if episode is not None and not is_dataset:
        raise typer.BadParameter(f"--episode needs a dataset; {ref} is a file (rlds import makes one of it)")
    if (plot is not None or video is not None) and not is_dataset:
        raise typer.BadParameter(f"--plot and --video need a dataset; {ref} is a file (rlds import makes one of it)")
    if html is not None and (plot is not None or video is not None):
        raise typer.BadParameter("--html by itself, without --plot and --video")
    if plot is not None or video is not None:
        from rlds_cli.cli.pages import output_files

        if plot is not None:
            output_files.draw(path, plot, output, episode=episode)
        if video is not None:
            output_files.film(path, video, episode=episode, field=field)
    elif html is not None:
        from rlds_cli.cli.pages import output_files as html_page

        with out.progress():  # says now and then that the work goes on
            html_page.write(path, html, is_dataset=is_dataset, whole=episode is None, force=force)
    elif not is_dataset:
        with out.progress():
            found = report.describe_file(path)
        out.page(file.FilePage(found), found)
    elif episode is not None:
        one = report.describe_episode(path, episode, elements=stats)
        out.page(episode_page.EpisodePage(one), one)
    else:
        whole = report.summarise(path, elements=stats)
        out.page(inspect.SummaryPage(whole), whole)
