"""An HTML document with our style sheet, which fetches nothing and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from rlds_cli import __version__
from rlds_cli.report.html.markup import Markup, join, tag, text

_STYLES = ("page.css", "parts.css")
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%232f6fb3' "
    "d='M1 9h3v6H1zM6 4h3v11H6zM11 1h3v14h-3z'/%3E%3C/svg%3E"
)


def document(title: str, body: Markup, *, generator: str, script: str | None = None) -> str:
    """Return a document; its ``generator`` tag says what made it, and browsers run no other script than ``script``."""
    style = joined(_STYLES)
    runs = "none" if script is None else _digest(script)
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{runs}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", name="generator", content=f"{generator} {__version__}"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href=_ICON),
        tag("style", Markup(style)),
    )
    run = "" if script is None else tag("script", Markup(script))
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}{run}\n</body>\n</html>\n'


@cache
def joined(names: tuple[str, ...]) -> str:
    """Return files of ``static/`` as one text."""
    static = files("rlds_cli.report.html") / "static"
    return "\n".join((static / name).read_text("utf-8") for name in names)


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
