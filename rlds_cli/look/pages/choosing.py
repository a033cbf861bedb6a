"""The page of a record, for a terminal."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PAGES = {
    "CheckReport": ("checks", "CheckPage"),
    "Difference": ("diff", "DifferencePage"),
    "EpisodeReport": ("inspect", "EpisodePage"),
    "FileReport": ("files", "FilePage"),
    "SourceReport": ("source", "SourcePage"),
    "Summary": ("inspect", "SummaryPage"),
}


def page(record: object, **how: Any) -> Any:
    """Return what rich draws of a record; ``how`` are arguments of its page."""
    module, name = _PAGES[type(record).__name__]
    return getattr(import_module(f"{__package__}.{module}"), name)(record, **how)
