"""The section on findings: what checks found, each place a link into the viewer where it holds the episode."""

from __future__ import annotations

from collections.abc import Collection

from rlds_cli import sizes
from rlds_cli.checks.findings import Finding, Place
from rlds_cli.report.page.content import Content
from rlds_cli.report.page.markup import Markup, join, tag

_WORDS = {"error": "Error", "warning": "Warning", "note": "Note"}


def findings(c: Content) -> Markup:
    """The section on findings."""
    r, viewed = c.check, {v.number for v in c.viewing.episodes}
    counts = (sizes.plural(r.errors, "error"), sizes.plural(r.warnings, "warning"), sizes.plural(r.notes, "note"))
    said = ", ".join(counts) if r.findings else "nothing found"
    return tag(
        "section",
        tag("h2", "Integrity"),
        tag("p", f"Every row was read: {said}.", class_="aside"),
        tag("ul", (_finding(f, viewed) for f in r.findings), class_="findings") if r.findings else None,
        tag("p", tag("span", "✓ ", aria_hidden="true"), f"No findings: {', '.join(r.ok)}.", class_="aside")
        if r.ok
        else None,
        tag("ul", (tag("li", f"Not checked: {name} ({why})") for name, why in r.skipped.items()), class_="aside")
        if r.skipped
        else None,
        id="integrity",
    )


def _finding(f: Finding, viewed: Collection[int]) -> Markup:
    places = [_place(p, viewed) for p in f.places]
    more = f.count - len(places)
    return tag(
        "li",
        tag("span", _WORDS[f.severity], class_="severity"),
        tag(
            "div",
            tag("p", f.text),
            tag("p", _spaced(places), f" and {more:,} more" if places and more > 0 else None, class_="places")
            if places
            else None,
            tag(
                "p", tag("code", f.code), f" · field {f.field}" if f.field else None,
                f" · known as {', '.join(f.known)}" if f.known else None, class_="aside",
            ),
        ),
        class_=f"finding {f.severity}",
    )  # fmt: skip


def _spaced(parts: list[Markup | str]) -> Markup:
    return join(*(item for k, part in enumerate(parts) for item in ((" · ", part) if k else (part,))))


def _place(p: Place, viewed: Collection[int]) -> Markup | str:
    if p.episode not in viewed:
        return str(p)
    return tag("a", str(p), href=f"#episode-{p.episode}" + ("" if p.step is None else f"-step-{p.step}"))
