"""The Typer application that commands are registered with (``@app.command("name")``), and Ctrl-C in long commands.

A command is imported and built when it is called: Typer evaluates every annotation, and to build all of them takes as
long as to import Typer itself.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info

from rlds_cli import __version__
from rlds_cli.base import visible
from rlds_cli.cli import helping, out
from rlds_cli.errors import RldsError

# The commands by panel of `rlds --help`, with the first sentence of their help: so it is printed without them.
PANELS = {
    "Get": {
        "list": "List families of datasets, or datasets that match a query.",
        "info": "Show source, licence, task and known defects of a dataset.",
        "download": "Download, verify and convert datasets.",
        "import": "Make a dataset from your own files.",
        "registry": "List, add, remove, refresh or check registries of your own.",
    },
    "Look": {
        "inspect": "Show the contents of a dataset, an episode or a file.",
        "view": "Look at episodes in the browser, and decide on them.",
        "episodes": "List the episodes of a dataset, filtered and sorted.",
        "check": "Check the content of a dataset for errors.",
        "diff": "Compare two datasets.",
        "bench": "Measure how fast a dataset loads on this machine.",
    },
    "Make": {
        "preprocess": "Make a dataset ID@NAME with your function or a built-in one.",
        "select": "Make a dataset of some episodes, or of ranges of their steps.",
        "label": "Set episode columns and facts of a dataset.",
        "drop": "Leave episodes out of a dataset.",
        "apply": "Apply decisions on episodes: labels, drops, trims, sub-tasks.",
        "restore": "Make a next version with the content of an earlier one.",
        "merge": "Make one dataset of several.",
        "export": "Write a dataset in the format of another library.",
    },
    "Share": {
        "push": "Push a dataset to an address; only what is missing is sent.",
        "index": "Make the directory of a dataset an address, in place.",
        "mirror": "Copy the archives of datasets to a store of your own.",
        "lock": "Print a lock file of datasets: all that makes them again.",
        "sync": "Make the datasets of a lock file again.",
        "tag": "Name versions of a dataset, or list their names.",
        "log": "Show the versions of a dataset and what each changed.",
    },
    "House-keeping": {
        "doctor": "Show what is installed, what is missing and what is wrong.",
        "du": "Show the disk usage of your home by dataset.",
        "rm": "Remove datasets; archives and derived datasets stay.",
        "gc": "Free disk space: remove caches of loaders and interrupted work.",
        "path": "Print the directory of a dataset.",
        "verify": "Hash all files again and compare with the recorded hashes.",
        "convert": "Change the storage of a dataset: memory-mapped or compressed.",
    },
    "Growing": {
        "append": "Append the episodes of your own files to a dataset.",
        "compact": "Rewrite a dataset without the rows of episodes that left.",
        "clear": "Remove all episodes of a growing dataset; its fields stay.",
    },
}
COMMANDS = {name: sentence for commands in PANELS.values() for name, sentence in commands.items()}

# What `rlds` without a command shows.
FIRST_STEPS = {
    "rlds download sample/pendulum-d4rl": "a small dataset, without a network",
    "rlds inspect sample/pendulum-d4rl": "what is in it; --html report.html writes a page",
    "rlds list hopper medium": "find one of those that can be downloaded",
    "rlds import FILES --name local/NAME": "make one of your own files",
    "rlds --help": "all commands",
}

# Words that people type, and what does that; none of them runs anything.
_INSTEAD = {
    "add extend": "rlds append ID FILES adds episodes to a dataset",
    "browse open play replay show visualize visualise": "rlds view ID shows episodes in the browser, rlds inspect ID "
    "the contents in the terminal",
    "cat describe head print stats summary": "rlds inspect ID shows the contents of a dataset",
    "clean cleanup prune": "rlds gc frees disk space, rlds rm ID removes a dataset",
    "combine concat concatenate join": "rlds merge IDS --name NAME makes one dataset of several",
    "copy cp publish share upload": "rlds push ID ADDRESS sends a dataset to a directory or a store",
    "create make new": "rlds import FILES --name local/NAME makes a dataset of files, rlds_cli.create of values",
    "decompress compress": "rlds convert ID --storage zarr|memmap changes the storage",
    "del delete erase remove uninstall": "rlds rm ID removes a dataset",
    "disk size": "rlds du shows what takes the space",
    "fetch get install pull": "rlds download ID downloads a dataset",
    "filter query split subset trim": "rlds select ID --where EXPR --name NAME makes a dataset of some episodes",
    "find ls search": "rlds list WORDS finds datasets, rlds list --local those on this disk",
    "freeze": "rlds lock ID prints all that makes a dataset again",
    "history versions": "rlds log ID shows the versions of a dataset",
    "ingest load read": "rlds import FILES --name local/NAME makes a dataset of files",
    "lint quality validate": "rlds check ID --measure all checks the content, rlds verify ID the hashes",
    "map process transform": "rlds preprocess ID --fn MOD:FUNC makes a dataset with your function",
    "revert rollback undo": "rlds restore ID#VERSION makes a next version with the content of an earlier one",
    "train": "rlds_cli.Loader(ID, batch_size=256) makes batches in your training script",
    "where": "rlds path ID prints the directory of a dataset",
}
INSTEAD = {word: hint for words, hint in _INSTEAD.items() for word in words.split()}

_INTERRUPTED = 130  # exit code
_RUN_FUNCTIONS = ("bench", "check", "preprocess", "sync")  # of the user, which may need NumPy's algebra in threads
_KERNEL = Path(__file__).parents[1] / "loader" / "_kernel.json"  # written when the kernel is compiled: hatch_build.py


class _BuiltWhenUsed(MutableMapping[str, Any]):
    """The commands by name; one that is looked up is imported and built."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built and name in COMMANDS:
            if name not in _RUN_FUNCTIONS:  # NumPy starts them when it is imported: a third of a short command
                os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            import_module(f"rlds_cli.cli.{name}{'_' * iskeyword(name)}")  # registers it
            info = next(i for i in app.registered_commands if i.name == name)
            if info.cls is TyperCommand:
                info.cls = helping.Command
            self._built[name] = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    """A group that explains commands which do not exist, and escapes what it quotes in usage errors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = _BuiltWhenUsed()  # instead of those of the modules that happen to be imported

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(width), sentence) for name, sentence in commands.items()])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in INSTEAD:
            raise RldsError(f"There is no rlds {cmd_name}.", hint=INSTEAD[cmd_name])
        return super().get_command(ctx, cmd_name)

    def get_help(self, ctx: Any) -> str:
        return helping.coloured(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:  # rlds help COMMAND
            args = [*args[1:], "--help"]
        return list(super().parse_args(ctx, args))

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with helping.usage_errors():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            with helping.usage_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # of which Typer makes an exit code, without a word
            out.stopped("stopped")
            raise typer.Exit(_INTERRUPTED) from None


app = typer.Typer(
    name="rlds",
    cls=_Commands,
    help="Offline-RL datasets: download, convert, inspect, preprocess, and load.",
    invoke_without_command=True,
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
    context: typer.Context,
    verbose: bool = typer.Option(
        False, "--verbose", "-v", is_eager=True, help="With --version: show the kernel's compiler and flags, too."
    ),
    version: bool = typer.Option(False, "--version", "-V", callback=_version, help="Show the version."),
) -> None:
    if context.invoked_subcommand is None:
        out.result(FIRST_STEPS, visible.lines(f"{command:<40}{what}" for command, what in FIRST_STEPS.items()))


@contextmanager
def resumable(kept: Callable[[], str] | None = None) -> Iterator[None]:
    """Turn Ctrl-C into exit code 130 and a note: what is ``kept``, if given, and the command that continues."""
    try:
        yield
    except KeyboardInterrupt:
        done = f" {kept()}" if kept else ""
        out.stopped(f"stopped.{done}", f"Continue with:  {shlex.join(['rlds', *sys.argv[1:]])}")
        raise typer.Exit(_INTERRUPTED) from None
