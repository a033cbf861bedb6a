"""What is in a dataset, an episode or a file, as records: summaries for people and for ``--json``.

Each name is loaded when it is first used: summaries need none of what reads archives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlds_cli.report.differences import Difference as Difference
    from rlds_cli.report.differences import compare as compare
    from rlds_cli.report.episodes import EpisodeReport as EpisodeReport
    from rlds_cli.report.episodes import describe_episode as describe_episode
    from rlds_cli.report.files import FileReport as FileReport
    from rlds_cli.report.files import describe_file as describe_file
    from rlds_cli.report.page.writing import PageReport as PageReport
    from rlds_cli.report.page.writing import write_page as write_page
    from rlds_cli.report.summaries import Summary as Summary
    from rlds_cli.report.summaries import summarise as summarise

__all__ = [
    "Difference",
    "EpisodeReport",
    "FileReport",
    "PageReport",
    "Summary",
    "compare",
    "describe_episode",
    "describe_file",
    "summarise",
    "write_page",
]

_HOMES = {
    "Difference": "differences",
    "EpisodeReport": "episodes",
    "FileReport": "files",
    "PageReport": "page",
    "Summary": "summaries",
    "compare": "differences",
    "describe_episode": "episodes",
    "describe_file": "files",
    "summarise": "summaries",
    "write_page": "page",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
