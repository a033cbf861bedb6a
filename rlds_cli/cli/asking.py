"""Asking before something is removed."""

from __future__ import annotations

import sys

import typer

from rlds_cli import visible
from rlds_cli.errors import RldsError


def confirm(what: str, question: str = "Remove?") -> None:
    """Show ``what`` would go and ask.

    Raises
    ------
    RldsError
        The answer is no, or nobody can be asked.
    """
    typer.echo(visible.line(what), err=True)
    if not sys.stdin.isatty():
        raise RldsError("Nothing was removed, since nobody can be asked here.", hint="--yes removes it")
    if not typer.confirm(question, err=True):
        raise RldsError("Nothing was removed.")
