"""The page of ``rlds inspect --source``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType

from rlds_cli.base import text
from rlds_cli.look.pages import Grid, line, plain
from rlds_cli.look.report.account import account_lines
from rlds_cli.look.report.source import SourceReport


class SourcePage:
    """The page of a source report."""

    def __init__(self, report: SourceReport) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        r = self.report
        files = r.archive.get("files")
        size = f", {text.size_of(r.archive['bytes'])}" if "bytes" in r.archive else ""
        made = f": {text.plural(files, 'file')}{size}" if files else ""
        yield line(console, f"{r.id}, read by {r.reader}{made}", "bold")
        table = Grid([("SOURCE", "left"), ("KIND", "left"), ("COUNT", "right"), ("USED AS", "left")])
        for e in r.account:
            if not e.left_out:
                table.add_row(*map(plain, (e.name or "no name", e.kind, f"{e.count:,}", ", ".join(e.used_as))))
        yield table
        yield from (line(console, said) for said in account_lines(r.account, most=None))
