"""The Typer application that commands are registered with (``@app.command("name")``), and Ctrl-C in long commands."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
_KERNEL = Path(__file__).parents[1] / "loader" / "_kernel.json"  # written when the kernel is compiled: hatch_build.py
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
        several_lines = message.startswith(("Missing ", "Usage: "))  # lists choices, or is the help: quotes nothing
        if not several_lines:
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


def _version(context: typer.Context, value: bool) -> None:
    if not value:
        return
    about, lines = {"version": __version__}, [f"rlds {__version__}"]
    if context.params.get("verbose"):
        kernel = _kernel()
        about |= kernel
        lines.append(f"kernel: {' '.join(kernel.values()) or 'not compiled'}")
    out.result(about, visible.lines(lines))
    raise typer.Exit


def _kernel() -> dict[str, str]:
    """Read with which compiler and flags the loader's kernel was compiled; nothing if it was not."""
    try:
        found: dict[str, str] = json.loads(_KERNEL.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


@app.callback()
def _root(
    verbose: bool = typer.Option(
        False, "--verbose", "-v", is_eager=True, help="With --version: show the kernel's compiler and flags, too."
    ),
    version: bool = typer.Option(False, "--version", callback=_version, help="Show the version."),
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
