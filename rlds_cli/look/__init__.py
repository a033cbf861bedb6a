"""Look at datasets: summaries, checks, comparisons and pages; and at files that are not datasets.

Records: `summarise` and `describe_episode` describe a dataset, `describe_source` what it was made of, `describe_file` a
file, `compare` two datasets, `inspect` any of them, and `summarise_derived` what a preprocess run made. An
`EpisodeTable` filters and sorts episodes, and `HomeContents` are the datasets of a home. `trace` compares single steps
with the archive. `overview`, `listing` and `card` describe what the disk and the registry hold, with `citation`,
`fingerprint` and `nearest`. `check` and `check_archive` look for faults in the content, each of one of the `CODES`,
`quick` without its rows; `record_findings` writes them into a manifest. `Measures` are numbers that tell the bad
episodes. `choose_files` and `files_to_import` return the files that a user's paths and patterns stand for. `diagnose`
looks at the installation, whose readers are the `installed_readers`.

Pages: `page` draws a record on a terminal, and `account_lines` the account of an archive; fields are sorted by `rank`.
`write_page` writes the HTML report, `write_plot` a chart or pictures (`plot_suffixes`), `plot` a chart. `pages_beside`
makes the pages beside a pushed dataset, and a `CollectionPage` is that of several (`CollectionEntry`).

A record is made by a module of `report` (`summary`, `episodes`, `diff`, `catalogue`, `tracing`, ...), drawn on a
terminal by one of `pages`, and as HTML by `html` and `rendering`; `card` and `croissant` are for other programs.
`checks` has a module for what is looked at (`values`, `episodes`, `frames`, `alignment`, ...), whose checks of a
`subject` are called by `run`; `measures` has the numbers of episodes. `files` finds files that are not datasets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.look.checks.findings import CODES
    from rlds_cli.look.checks.run import check_archive, quick, record_findings
    from rlds_cli.look.files.given import choose_files, files_to_import
    from rlds_cli.look.measures.asking import Measures
    from rlds_cli.look.measures.checking import check
    from rlds_cli.look.pages.choosing import page
    from rlds_cli.look.report.account import account_lines
    from rlds_cli.look.report.beside import pages_beside
    from rlds_cli.look.report.catalogue import card, citation, fingerprint, listing, nearest, overview
    from rlds_cli.look.report.contents import HomeContents
    from rlds_cli.look.report.derived import summarise_derived
    from rlds_cli.look.report.diff import compare
    from rlds_cli.look.report.doctor import diagnose, installed_readers
    from rlds_cli.look.report.episode import describe_episode
    from rlds_cli.look.report.episodes import EpisodeTable
    from rlds_cli.look.report.files import describe_file
    from rlds_cli.look.report.html import write_page
    from rlds_cli.look.report.html.collection import CollectionEntry, CollectionPage
    from rlds_cli.look.report.inspecting import inspect
    from rlds_cli.look.report.order import rank
    from rlds_cli.look.report.plots import plot, plot_suffixes, write_plot
    from rlds_cli.look.report.source import describe_source
    from rlds_cli.look.report.summary import summarise
    from rlds_cli.look.report.tracing import trace

__all__ = [
    "CODES",
    "CollectionEntry",
    "CollectionPage",
    "EpisodeTable",
    "HomeContents",
    "Measures",
    "account_lines",
    "card",
    "check",
    "check_archive",
    "choose_files",
    "citation",
    "compare",
    "describe_episode",
    "describe_file",
    "describe_source",
    "diagnose",
    "files_to_import",
    "fingerprint",
    "inspect",
    "installed_readers",
    "listing",
    "nearest",
    "overview",
    "page",
    "pages_beside",
    "plot",
    "plot_suffixes",
    "quick",
    "rank",
    "record_findings",
    "summarise",
    "summarise_derived",
    "trace",
    "write_page",
    "write_plot",
]

lazy(
    __name__,
    {
        "checks.findings": "CODES",
        "checks.run": "check_archive quick record_findings",
        "files.given": "choose_files files_to_import",
        "measures.asking": "Measures",
        "measures.checking": "check",
        "pages.choosing": "page",
        "report.account": "account_lines",
        "report.beside": "pages_beside",
        "report.catalogue": "card citation fingerprint listing nearest overview",
        "report.contents": "HomeContents",
        "report.derived": "summarise_derived",
        "report.diff": "compare",
        "report.doctor": "diagnose installed_readers",
        "report.episode": "describe_episode",
        "report.episodes": "EpisodeTable",
        "report.files": "describe_file",
        "report.html": "write_page",
        "report.html.collection": "CollectionEntry CollectionPage",
        "report.inspecting": "inspect",
        "report.order": "rank",
        "report.plots": "plot plot_suffixes write_plot",
        "report.source": "describe_source",
        "report.summary": "summarise",
        "report.tracing": "trace",
    },
)
