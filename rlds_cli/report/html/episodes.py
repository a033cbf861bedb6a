"""The sections on episodes: the table with sorting and filters, and the viewer; the page's script drives both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlds_cli import text
from rlds_cli.report.html.markup import Markup, join, tag
from rlds_cli.report.plots import tick

if TYPE_CHECKING:
    from rlds_cli.report.html.content import EpisodeListing, PageContent, Viewed, Viewing

PAGE_ROWS = 25
_OWN = "own/"  # before the names of the user's own columns
_ENDS = ("terminated", "truncated", "cut")


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table: ``key`` is its name in the data, ``kind`` the format of its values."""

    key: str
    label: str
    kind: str


def _columns(e: EpisodeListing) -> list[_Column]:
    columns = [_Column("number", "Episode", "episode"), _Column("length", "Length", "whole")]
    columns += [_Column("total", "Return", "number")] if e.total is not None else []
    columns += [_Column("score", "Score", "tenth")] if e.score is not None else []
    columns += [_Column("end", "End", "end"), _Column("observed", "Final observation", "yes")]
    columns += [_Column("seed", "Seed", "text")] if e.seed is not None else []
    columns += [_Column("splits", "Splits", "splits")] if e.splits is not None else []
    columns += [_Column("group", "Group", "text")] if e.group is not None else []
    columns += [_Column(f"{_OWN}{name}", name, _own_kind(values)) for name, values in e.own.items()]
    return [*columns, _Column("findings", "Findings", "count")]


def _own_kind(values: Sequence[Any]) -> str:
    return "text" if any(isinstance(v, str) for v in values) else "number"


def _values(e: EpisodeListing, key: str) -> Sequence[Any]:
    """The values of a column of the table."""
    found: Sequence[Any] = e.own[key.removeprefix(_OWN)] if key.startswith(_OWN) else getattr(e, key)
    return found


def table(c: PageContent) -> Markup:
    """The section with the table; its first rows are in the page itself, for readers without JavaScript."""
    e = c.listing
    columns = _columns(e)
    shown = len(e.number)
    sampled = f"{shown:,} of {e.of:,} episodes are listed: evenly spaced ones, and those of the viewer. "
    heads = (_head(column) for column in columns)
    rows = (tag("tr", (_cell(e, column, k) for column in columns)) for k in range(min(shown, PAGE_ROWS)))
    caption = tag("caption", "Episodes", tag("span", ", with buttons that sort", class_="needs-script"))
    body = tag("table", caption, tag("thead", tag("tr", heads)), tag("tbody", rows), id="episode-table")
    first = f"The first {min(shown, PAGE_ROWS)} of {text.plural(e.of, 'episode')}."
    return tag(
        "section",
        tag("h2", "Episodes"),
        tag("p", sampled, class_="aside") if shown < e.of else None,
        _filters(e),
        tag("p", first, id="listed", role="status"),
        tag("div", body, class_="scroll", tabindex=0, role="region", aria_label="Episodes"),
        tag(
            "nav",
            tag("button", "Previous", type="button", id="page-before"),
            tag("span", "", id="page-number"),
            tag("button", "Next", type="button", id="page-after"),
            class_="pager needs-script",
            aria_label="Pages of the table",
        ),
        tag("p", "The same in Python: ", tag("code", "", id="selection"), " ", tag(
            "button", "copy", type="button", class_="copy", id="copy-selection", aria_label="Copy the selection"
        ), class_="aside needs-script"),
        id="episodes",
    )  # fmt: skip


def _head(column: _Column) -> Markup:
    figure = "figure" if column.kind in ("whole", "number", "tenth", "count") else None
    button = tag("button", column.label, tag("span", "", class_="arrow", aria_hidden="true"), type="button")
    first = "ascending" if column.key == "number" else "none"
    return tag("th", button, scope="col", class_=figure, aria_sort=first, data_key=column.key, data_kind=column.kind)


def _cell(e: EpisodeListing, column: _Column, k: int) -> Markup:
    value: Any = _values(e, column.key)[k]
    match column.kind:
        case "episode":
            return tag("th", f"{value:,}", scope="row")
        case "end":
            words = _ENDS[value]
        case "yes":
            words = "yes" if value else "no"
        case "splits":
            words = ", ".join(e.split_names[i] for i in value)
        case "number" | "tenth":
            words = "–" if value is None else tick(value) if column.kind == "number" else f"{value:.1f}"
        case "whole" | "count":
            words = f"{value:,}"
        case _:
            words = str(value)
    return tag("td", words, class_="figure" if column.kind in ("whole", "number", "tenth", "count") else None)


def _filters(e: EpisodeListing) -> Markup:
    ends = [("", "any"), *((name, name) for k, name in enumerate(_ENDS) if k in set(e.end))]
    fields = [_select("end", "End", ends)]
    if e.splits is not None:
        fields.append(_select("split", "Split", [("", "any"), *((str(i), n) for i, n in enumerate(e.split_names))]))
    fields += [_number("length", "least", "Length from"), _number("length", "most", "to")]
    if e.total is not None:
        fields += [_number("total", "least", "Return from"), _number("total", "most", "to")]
    if e.group is not None:
        fields.append(_label("Group contains", tag("input", type="search", id="filter-group")))
    fields += [_check("findings", "with findings"), _check("viewed", "in the viewer")]
    reset = tag("button", "Reset", type="reset")
    return tag("form", fields, reset, class_="filters needs-script", id="filters", aria_label="Filter episodes")


def _label(words: str, control: Markup) -> Markup:
    return tag("label", tag("span", words), control)


def _select(key: str, words: str, choices: Sequence[tuple[str, str]]) -> Markup:
    options = (tag("option", shown, value=value) for value, shown in choices)
    return _label(words, tag("select", options, id=f"filter-{key}"))


def _number(key: str, side: str, words: str) -> Markup:
    what = f"{'Return' if key == 'total' else 'Length'} at {side}"
    return _label(words, tag("input", type="number", step="any", id=f"filter-{key}-{side}", aria_label=what))


def _check(key: str, words: str) -> Markup:
    control = tag("input", type="checkbox", id=f"filter-{key}")
    return tag("label", control, tag("span", words), class_="check")


def viewer(c: PageContent) -> Markup:
    """The section with the viewer, empty until the script fills it."""
    v, of = c.viewing, c.summary.counts.episodes
    if not v.episodes:
        return tag("section", tag("h2", "Episode viewer"), tag("p", "There are no episodes."), id="viewer")
    return tag(
        "section",
        tag("h2", "Episode viewer"),
        tag("p", _sampling(v, of), class_="aside"),
        tag("noscript", tag("p", "The viewer needs JavaScript.")),
        tag("div", _controls(v), tag("div", "", id="lanes"), id="stage", class_="needs-script"),
        id="viewer",
    )


def _sampling(v: Viewing, of: int) -> Markup:
    shown = len(v.episodes)
    said = f"{shown} of {of:,} episodes are in this file" if shown < of else "All episodes are in this file"
    long = max(e.length for e in v.episodes)
    said += f"; longer ones with {v.most_steps:,} evenly spaced steps" if long > v.most_steps else ""
    hidden = [f"{f.hidden:,} more elements of {f.name}" for f in v.fields if f.hidden]
    hidden += [f"no {name}" for name in v.left_out]
    said += f". Not shown: {', '.join(hidden)}" if hidden else ""
    others = join(" Others: ", tag("code", "rlds inspect ID --episode N"), ".") if shown < of else None
    return join(f"{said}.", others)


def _controls(v: Viewing) -> Markup:
    options = (tag("option", _title(e), value=k) for k, e in enumerate(v.episodes))
    return tag(
        "div",
        tag(
            "div",
            tag("button", "‹", type="button", id="episode-before", aria_label="Previous episode"),
            tag("label", tag("span", "Episode", class_="hidden"), tag("select", options, id="episode")),
            tag("button", "›", type="button", id="episode-after", aria_label="Next episode"),
            tag("button", "Play", type="button", id="play", aria_pressed="false"),
            tag("label", tag("input", type="checkbox", id="common"), tag("span", "one scale for all episodes"),
                class_="check"),
            class_="row",
        ),
        tag("p", "", id="episode-facts", class_="aside"),
        tag(
            "div",
            tag("label", tag("span", "Step", class_="hidden"), tag("input", type="range", id="step", min=0, value=0)),
            tag("output", "", id="step-number", for_="step"),
            class_="row",
        ),
        tag("ul", "", id="events", class_="chips", aria_label="Events"),
        class_="controls",
    )  # fmt: skip


def _title(e: Viewed) -> str:
    why = f" ({', '.join(e.why)})" if e.why else ""
    return f"{e.number:,}: {text.plural(e.length, 'step')}{why}"


def script_data(c: PageContent) -> dict[str, Any]:
    """Data for the page's script."""
    e, v = c.listing, c.viewing
    columns = {column.key: _values(e, column.key) for column in _columns(e)}
    return {
        "id": c.summary.id,
        "of": e.of,
        "rows": PAGE_ROWS,
        "ends": list(_ENDS),
        "splits": e.split_names,
        "columns": columns,
        "fields": [
            {"name": f.name, "indices": list(f.indices), "hold": f.dtype == "bool" or f.dtype.lstrip("u")[:3] == "int"}
            for f in v.fields
        ],
        "images": list(v.images),
        "episodes": [_viewed(one) for one in v.episodes],
        "places": _places(c),
    }


def _viewed(e: Viewed) -> dict[str, Any]:
    return {
        "number": e.number,
        "length": e.length,
        "steps": e.steps if e.steps != list(range(len(e.steps))) else len(e.steps),
        "values": e.values,
        "frames": {n: [[step, p.uri, p.width, p.height] for step, p in strip] for n, strip in e.frames.items()},
        "texts": e.texts,
        "events": e.events,
        "source": e.source,
    }


def _places(c: PageContent) -> list[list[Any]]:
    """Findings by place: episode, step or null, severity, text."""
    return [[p.episode, p.step, f.severity, f.text] for f in c.check.findings for p in f.places]
