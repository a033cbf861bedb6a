"""Asking before something is removed."""

from __future__ import annotations

import sys

import typer

from rlds_cli.errors import RldsError


def confirm(what: str, question: str = "Remove?") -> None:
    """Show ``what`` would go and ask.

    Raises
    ------
    RldsError
        The answer is no, or nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise RldsError(f"Nothing was removed, since nobody can be asked here:\n{what}", hint="--yes removes it")
    typer.echo(what, err=True)
    if not typer.confirm(question, err=True):
        raise RldsError("Nothing was removed.")
