"""Ctrl-C in long commands: a line with the command that continues the work."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from rlds_cli.cli import out

_INTERRUPTED = 130


@contextmanager
def resumable(kept: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and a note: what is ``kept``, if given, and the command that continues."""
    try:
        yield
    except KeyboardInterrupt:
        done = f" {kept()}" if kept else ""
        out.note(f"stopped.{done} Continue with:  {shlex.join(['rlds', *sys.argv[1:]])}")
        raise typer.Exit(_INTERRUPTED) from None
