"""The head of the page and its first section: what the dataset is, where it is from, how much there is of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlds_cli import sizes
from rlds_cli.entries import link
from rlds_cli.hashing import short
from rlds_cli.report.page import charts
from rlds_cli.report.page.content import Content
from rlds_cli.report.page.markup import Markup, join, tag
from rlds_cli.report.summaries import Summary
from rlds_cli.report.svg import tick

_LINKS = ("https://", "http://")
_LONGEST = 2000  # characters of a description


def head(c: Content) -> Markup:
    """Name, one line, and the figures that matter most."""
    s = c.summary
    lead = " · ".join(filter(None, (s.about.title, s.about.env_id, s.about.algorithm)))
    return tag(
        "header",
        tag("p", "Dataset report", class_="kind"),
        tag("h1", s.id),
        tag("p", lead, class_="lead") if lead else None,
        tag("ul", (tag("li", tag("strong", n), " ", tag("span", what)) for n, what in _tiles(c)), class_="tiles"),
        class_="top",
    )


def _tiles(c: Content) -> Iterator[tuple[str, str]]:
    s, counts = c.summary, c.summary.counts
    yield f"{counts.steps:,}", "step" if counts.steps == 1 else "steps"
    yield f"{counts.episodes:,}", "episode" if counts.episodes == 1 else "episodes"
    yield f"{counts.transitions:,}", "transitions"
    if c.returns:
        yield tick(c.returns.median), "median return"
    if s.scores:
        yield f"{s.scores.median:.1f}", "median score"
    yield sizes.text(s.bytes), f"on disk, {s.encoding}"


def about(c: Content) -> Markup:
    """The section on what it is and where it is from."""
    s = c.summary
    description = s.about.description
    return tag(
        "section",
        tag("h2", "Summary"),
        tag("p", description[:_LONGEST], class_="description") if description else None,
        tag(
            "div",
            _facts("What it is", _what(s)),
            _facts("Where it is from", _origin(s)),
            class_="pair",
        ),
        _ends(s),
        _chain(s.provenance),
        id="summary",
    )


def _facts(title: str, facts: Iterator[tuple[str, Markup | str]]) -> Markup:
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts]
    return tag("div", tag("h3", title), tag("dl", pairs, class_="facts"), class_="card")


def _what(s: Summary) -> Iterator[tuple[str, Markup | str]]:
    a = s.about
    if a.portion:
        yield "Part of the archive", a.portion
    if a.env_id:
        yield "Environment", a.env_id
    if a.max_episode_steps:
        yield "Time limit", sizes.plural(a.max_episode_steps, "step")
    if a.algorithm:
        yield "Behaviour", a.algorithm
    if a.ref_min_score is not None and a.ref_max_score is not None:
        yield "Score", f"0 is a return of {tick(a.ref_min_score)}, 100 one of {tick(a.ref_max_score)}"
    known, of = s.counts.final_observations, s.counts.episodes
    yield "Final observations", "recorded" if known == of else f"recorded for {known:,} of {of:,} episodes"
    if s.splits:
        yield "Splits", ", ".join(f"{name} ({sizes.plural(n, 'episode')})" for name, n in list(s.splits.items())[:20])
    yield "Fingerprint", join(tag("code", short(s.fingerprint)), " ", _copy(s.fingerprint, "whole fingerprint"))
    yield "Converted", f"{s.created} by rlds {s.rlds_version}, reader {s.reader}"
    if s.metadata:
        more = len(s.metadata) - 8
        yield "Metadata", ", ".join(s.metadata[:8]) + (f", {more} more" if more > 0 else "")


def _origin(s: Summary) -> Iterator[tuple[str, Markup | str]]:
    a, archive = s.about, s.archive
    first = archive.get("first") or {}
    if first:
        more = int(archive.get("files") or 1) - 1
        yield "Archive", str(first.get("file")) + (f" and {more:,} more" if more > 0 else "")
    if archive.get("bytes") is not None and first:
        yield "Size", sizes.text(float(archive["bytes"]))
    if archive.get("sha256"):
        sha = str(archive["sha256"])
        yield "SHA-256", join(tag("code", f"{sha[:12]}…"), " ", _copy(sha, "whole SHA-256"))
    if a.source:
        yield "Source", _linked(a.source)
    if a.author:
        yield "Author", a.author
    yield "Licence", a.licence or "not stated"
    if a.paper:
        yield "Paper", _linked(link(a.paper), a.paper)
    if a.homepage:
        yield "Homepage", _linked(a.homepage)


def _linked(url: str, words: str | None = None) -> Markup | str:
    """A link, for addresses of the web only."""
    return tag("a", words or url, href=url, rel="noreferrer") if url.startswith(_LINKS) else words or url


def _copy(value: str, what: str) -> Markup:
    return tag("button", "copy", type="button", class_="copy needs-script", data_copy=value, aria_label=f"Copy {what}")


def _ends(s: Summary) -> Markup:
    c = s.counts
    parts = [("terminated", c.terminated), ("truncated", c.truncated), ("cut", c.cut)]
    says = "How episodes end: " + ", ".join(f"{n:,} {name}" for name, n in parts)
    key = (
        tag("li", tag("span", class_=f"swatch is-{name}"), f"{name} ", tag("strong", f"{n:,}"))
        for name, n in parts
        if n
    )
    inside = (
        tag("p", f"{sizes.plural(c.terminated_inside, 'terminated step')} inside episodes.", class_="aside")
        if c.terminated_inside
        else None
    )
    return tag("div", tag("h3", "How episodes end"), charts.shares(parts, says), tag("ul", key, class_="key"), inside)


def _chain(steps: tuple[Mapping[str, Any], ...]) -> Markup | None:
    if not steps:
        return None
    return tag("div", tag("h3", "How it was made"), tag("ol", (tag("li", _made(step)) for step in steps)))


def _made(step: Mapping[str, Any]) -> Markup:
    args = ", ".join(f"{k}={v}" for k, v in (step.get("args") or {}).items())
    function = str(step.get("reference") or step.get("function"))
    source = short(str(step.get("source", "")).partition("+")[0])
    return join(
        tag("code", f"{function}({args})"), f", unit {step.get('unit')}, from ", tag("code", str(step.get("from"))),
        f" ({source})",
    )  # fmt: skip
