"""Summaries of a dataset, an episode or a file, as records for pages and for ``--json``.

Each name is imported when it is first used: a summary of a dataset needs no reader of archives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds_cli.look.report.diff import Difference as Difference
    from rlds_cli.look.report.diff import compare as compare
    from rlds_cli.look.report.episode import EpisodeReport as EpisodeReport
    from rlds_cli.look.report.episode import describe_episode as describe_episode
    from rlds_cli.look.report.files import FileReport as FileReport
    from rlds_cli.look.report.files import describe_file as describe_file
    from rlds_cli.look.report.html import PageReport as PageReport
    from rlds_cli.look.report.html import write_page as write_page
    from rlds_cli.look.report.inspecting import inspect as inspect
    from rlds_cli.look.report.plots import plot as plot
    from rlds_cli.look.report.source import SourceReport as SourceReport
    from rlds_cli.look.report.source import describe_source as describe_source
    from rlds_cli.look.report.summary import Summary as Summary
    from rlds_cli.look.report.summary import summarise as summarise

__all__ = [
    "Difference",
    "EpisodeReport",
    "FileReport",
    "PageReport",
    "SourceReport",
    "Summary",
    "compare",
    "describe_episode",
    "describe_file",
    "describe_source",
    "inspect",
    "plot",
    "summarise",
    "write_page",
]

_HOMES = {
    "Difference": "diff",
    "EpisodeReport": "episode",
    "FileReport": "files",
    "PageReport": "html",
    "SourceReport": "source",
    "Summary": "summary",
    "compare": "diff",
    "describe_episode": "episode",
    "describe_file": "files",
    "describe_source": "source",
    "inspect": "inspecting",
    "plot": "plots",
    "summarise": "summary",
    "write_page": "html",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
