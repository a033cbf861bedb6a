"""The Typer application that commands are registered with (``@app.command("name")``), and Ctrl-C in long commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from rlds_cli import __version__, visible
from rlds_cli.cli import out
from rlds_cli.errors import RldsError

_ZARR = "any Zarr v3 reader opens the directory that rlds path ID names"

# Commands that people expect and that do not exist: (message, hint).
INSTEAD = {
    "export": (
        "There is no rlds export.",
        f'in Python Dataset.to_numpy(layout="ted"|"d4rl"|"ogbench") gives arrays; {_ZARR}',
    ),
    "push": (
        "There is no rlds push: nothing is uploaded.",
        f"copy the directory that rlds path ID names, with any tool; {_ZARR}",
    ),
}
INSTEAD["upload"] = INSTEAD["push"]

_INTERRUPTED = 130  # exit code
UsageError: Any = typer.BadParameter.__mro__[1]  # Typer brings its own click, or imports the package


class _Commands(TyperGroup):
    """A group that explains commands which do not exist, and escapes what it quotes in usage errors."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in INSTEAD:
            message, hint = INSTEAD[cmd_name]
            raise RldsError(message, hint=hint)
        return super().get_command(ctx, cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _escaped_usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _escaped_usage_errors():
            return super().invoke(ctx)


@contextmanager
def _escaped_usage_errors() -> Iterator[None]:
    """Escape control characters in usage errors: a shell may expand a glob to names of a stranger's files."""
    try:
        yield
    except UsageError as e:
        message = e.format_message()
        if not message.startswith("Missing "):  # this one quotes nothing, and lists choices on several lines
            message = visible.message(message)
        e.format_message = lambda: message
        raise


app = typer.Typer(
    name="rlds",
    cls=_Commands,
    help="Offline-RL datasets: download, convert, inspect, preprocess, and load.",
    no_args_is_help=True,
    rich_markup_mode=None,  # importing rich for the help takes 60 ms
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        out.result({"version": __version__}, f"rlds {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


@contextmanager
def resumable(kept: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and a note: what is ``kept``, if given, and the command that continues."""
    try:
        yield
    except KeyboardInterrupt:
        done = f" {kept()}" if kept else ""
        out.note(f"stopped.{done} Continue with:  {shlex.join(['rlds', *sys.argv[1:]])}")
        raise typer.Exit(_INTERRUPTED) from None
