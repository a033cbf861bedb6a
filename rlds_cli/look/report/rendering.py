"""Documents from templates: pages and charts, in which every value is escaped as HTML, and cards in Markdown.

jinja2 is imported when the first document is made.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlds_cli import __version__
from rlds_cli.base import text
from rlds_cli.base.files.hashing import short
from rlds_cli.base.pages import STYLE
from rlds_cli.dataset import ProvenanceStep

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).with_name("templates")
# HTML allows no control characters, and UTF-8 no lone surrogates (from file names that are not UTF-8).
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def render(template: str, **values: Any) -> str:
    """Render a template of HTML or SVG; characters that neither allows become U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", _pages().get_template(template).render(values))


@cache
def _pages() -> Environment:
    from markupsafe import Markup

    made = environment(autoescape=True)
    made.globals |= {
        "version": __version__,
        "style": Markup("".join(path.read_text("utf-8") for path in (STYLE, _TEMPLATES / "report.css"))),
        "script": Markup((_TEMPLATES / "report.js").read_text("utf-8")),
    }
    made.filters["sha256"] = _digest
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def environment(**options: Any) -> Environment:
    """Return an environment of the templates with filters for numbers; ``options`` are those of jinja2."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    made.filters |= {
        "tick": tick,
        "count": lambda n: f"{n:,}",
        "plural": text.plural,
        "size": text.size_of,
        "short": short,
        "shape": lambda shape: " × ".join(map(str, shape)) or "scalar",
        "call": _call,
    }
    made.tests["change"] = lambda step: ProvenanceStep(step).is_change
    return made


def _call(step: Mapping[str, Any]) -> str:
    """Return the call or the change by which a dataset was made, a step of its provenance."""
    if ProvenanceStep(step).is_change:
        return ProvenanceStep(step).described()
    return f"{step['reference']}({', '.join(f'{k}={v}' for k, v in step['args'].items())})"


def _digest(source: str) -> str:
    """Return the hash by which a content security policy allows a script or a style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"


def tick(value: float) -> str:
    """Format a number for an axis: ``1,000``, ``0.25``, ``1e-07``."""
    if value == 0 or abs(value) < 1e-12:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
