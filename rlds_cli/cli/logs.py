"""Warnings that libraries log, where nothing else listens: they quote addresses and names of strangers."""

from __future__ import annotations

import logging
import sys

from rlds_cli import visible


class _Visible(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{visible.line(self.format(record))}\n")


def show() -> None:
    """Print them on stderr, as text that a terminal does not obey."""
    logging.lastResort = _Visible(logging.WARNING)
