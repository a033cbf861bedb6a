"""The page as one HTML document: nothing is fetched, and only its own script runs."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from rlds_cli import __version__
from rlds_cli.report.page import distributions, episodes, integrity, overview
from rlds_cli.report.page.content import Content
from rlds_cli.report.page.markup import Markup, data, join, tag, text

GENERATOR = "rlds-report"  # by which a file is known to be a report
_STYLES = ("page.css", "parts.css")
_SCRIPTS = ("elements.js", "table.js", "curves.js", "viewer.js")
_SECTIONS = (
    ("summary", "Summary"),
    ("integrity", "Integrity"),
    ("distributions", "Distributions"),
    ("fields", "Fields"),
    ("episodes", "Episodes"),
    ("viewer", "Viewer"),
)
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%232f6fb3' "
    "d='M1 9h3v6H1zM6 4h3v11H6zM11 1h3v14h-3z'/%3E%3C/svg%3E"
)


def render(c: Content) -> str:
    """The whole document."""
    style, script = _joined(_STYLES), _joined(_SCRIPTS)
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{c.summary.id} · dataset report"),
        tag("link", rel="icon", href=_ICON),
        tag("style", Markup(style)),
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{_body(c, script)}\n</body>\n</html>\n'


def _body(c: Content, script: str) -> Markup:
    links = (tag("li", tag("a", words, href=f"#{name}")) for name, words in _SECTIONS)
    return join(
        tag("a", "Skip to the content", href="#content", class_="skip"),
        overview.head(c),
        tag("nav", tag("ul", links), class_="sections", aria_label="Sections"),
        tag(
            "main",
            overview.about(c),
            integrity.findings(c),
            distributions.over_episodes(c),
            distributions.over_steps(c),
            episodes.table(c),
            episodes.viewer(c),
            id="content",
            tabindex=-1,
        ),
        tag("footer", tag("p", f"Made by rlds {__version__} from {c.summary.fingerprint}")),
        tag("script", data(episodes.script_data(c)), type="application/json", id="data"),
        tag("script", Markup(script)),
    )


@cache
def _joined(names: tuple[str, ...]) -> str:
    static = files("rlds_cli.report.page") / "static"
    return "\n".join((static / name).read_text("utf-8") for name in names)


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
