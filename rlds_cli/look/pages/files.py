"""The page of files that are not datasets. It imports nothing of datasets, which take most of a second to import."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType

from rlds_cli.base import text, visible
from rlds_cli.base.figures import shape
from rlds_cli.look.pages import Grid, line, plain
from rlds_cli.look.report.files import FileReport
from rlds_cli.look.report.order import rank

_MOST_NODES = 40


class FilePage:
    """The page of a file report."""

    def __init__(self, report: FileReport) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        r = self.report
        yield line(console, _file_heading(r), "bold")
        yield _file_fields(r) if r.reader else _file_tree(r)
        if not r.reader and len(r.tree) > _MOST_NODES:
            yield line(console, f"{len(r.tree) - _MOST_NODES:,} more; --json has all of them", "dim")
        yield from (line(console, f"note: {note}") for note in r.notes)
        if r.suggestion:
            yield line(console, f"hint: {r.suggestion}", whole=True)


def _file_heading(r: FileReport) -> str:
    files = "" if r.files == 1 else f" in {r.files:,} files"
    if r.reader:
        counts = [text.plural(r.episodes, "episode")] if r.episodes is not None else []
        counts += [f"{r.rows:,} rows"] if r.rows is not None else []
        ends = f"; episodes end by {text.ends_in_words(r.episodes_by)}" if r.episodes_by else ""
        made = f": {', '.join(counts)}" if counts else ""
        return visible.lines([f"{r.path}, {text.size_of(r.bytes)}{files}: {r.what}", f"reader {r.reader}{made}{ends}"])
    why = f", no known layout ({r.why})" if r.why else ", which no reader knows"
    inside = f" {text.plural(r.groups, 'group')}, {text.plural(len(r.tree), 'dataset')}:" if r.groups else ""
    inside = inside or (f" {text.plural(len(r.tree), 'array')}:" if r.tree else "")
    alike = f" {r.episodes:,} groups of one content, an episode each, most likely." if r.episodes else ""
    return f"{r.path} is {r.what}, {text.size_of(r.bytes)}{why}.{alike}{inside}"


def _file_fields(r: FileReport) -> Grid:
    table = Grid([("FIELD", "left"), ("AT", "left"), ("DTYPE", "left"), ("SHAPE", "left")])
    for f in sorted(r.fields, key=rank):
        table.add_row(*(plain(c) for c in (f.name, f.placement, f.codec or f.dtype, shape(f.shape))))
    return table


def _file_tree(r: FileReport) -> Grid:
    table = Grid([("", "left")] * 4)
    field_of = {key: field for field, key in (r.guessed or {}).items()}
    for node in r.tree[:_MOST_NODES]:
        guess = f"{field_of[node.name]}?" if node.name in field_of else ""
        dims = "nothing" if node.shape is None else shape(node.shape)
        table.add_row(plain(f"  {node.name}"), plain(dims), plain(node.dtype), plain(guess, "dim"))
    return table
