"""The command ``rlds``: one short module per command, each a thin face over the library."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from rlds_cli import __version__, visible
from rlds_cli.cli import out
from rlds_cli.errors import NoPermission, NoSpace, RldsError

# In the order in which `rlds --help` shows them.
COMMANDS: tuple[str, ...] = (
    "list",
    "info",
    "download",
    "import_",
    "convert",
    "inspect",
    "check",
    "diff",
    "bench",
    "preprocess",
    "verify",
    "lock",
    "sync",
    "du",
    "rm",
    "gc",
    "path",
)

_NO_PLACE = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)

_ZARR = "any Zarr v3 reader opens the directory that rlds path ID names"

# What people type, and what there is instead: (what is missing, hint).
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


_UsageError: Any = typer.BadParameter.__mro__[1]  # typer has click of its own, or the package


class _Commands(TyperGroup):
    """Answers commands that people expect, and that are not there."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in INSTEAD:
            message, hint = INSTEAD[cmd_name]
            raise RldsError(message, hint=hint)
        return super().get_command(ctx, cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _visible():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _visible():
            return super().invoke(ctx)


@contextmanager
def _visible() -> Iterator[None]:
    """What is wrong with the command line is said in visible text: shells expand names of a stranger's files."""
    try:
        yield
    except _UsageError as e:
        said = e.format_message()
        if not said.startswith("Missing "):  # which lists choices of ours, line by line
            said = visible.message(said)
        e.format_message = lambda: said
        raise


app = typer.Typer(
    name="rlds",
    cls=_Commands,
    help="Offline-RL datasets: download, convert, inspect, preprocess, and load.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich help costs 60 ms
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


for _name in COMMANDS:
    import_module(f"rlds_cli.cli.{_name}").register(app)


def main() -> None:
    """Run the command line; exit 0 done, 1 expected failure, 2 usage, 130 interrupted."""
    try:
        with out.guarded():
            app()
    except RldsError as e:
        out.error(e)
        sys.exit(1)
    except PermissionError as e:  # a home or a file of somebody else's, wherever it was met
        out.error(NoPermission(f"{e.filename} may not be read or written by this user."))
        sys.exit(1)
    except KeyboardInterrupt:
        out.note("stopped")
        sys.exit(130)
    except BrokenPipeError:
        _hush()
        sys.exit(1)
    except OSError as e:
        if e.errno in _NO_PLACE:
            out.error(NoPermission(f"{e.filename} is no place for files: {e.strerror}."))
            sys.exit(1)
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            out.crash(e)
            sys.exit(1)
        out.error(NoSpace(f"The disk is full: {e.filename or 'what was to be printed'} could not be written."))
        _hush()
        sys.exit(1)
    except Exception as e:
        out.crash(e)
        sys.exit(1)


def _hush() -> None:
    """Nothing more can be printed, and what is left to print is no error of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
