"""What commands have in common beyond Typer's: options in groups, colour on a terminal, and errors as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand

from rlds_cli.base import visible
from rlds_cli.cli import out, styles

UsageError: Any = typer.BadParameter.__mro__[1]  # Typer brings its own click, or imports the package

_MANY = 20  # options, from which on a help has them in groups

# Options by group. Those that no group has stand first, as the command's own.
_GROUPS = {
    "How files are read": (
        "--reader --map --episodes-by --last-step --rewards --missing --topics --hz --nearest --episode-info --skip-bad"
    ),
    "A part of the archive": "--include --exclude --split --episodes",
    "Calls of the function": "--unit --history --future --arrays --arg --fields",
    "Try it first": "--try --episode --step",
    "Many machines": "--shard --finish --executor --address",
    "How it is stored": "--storage --frames --set --copy --no-keep-archive",
    "How it runs": "--dry-run --force --keep-going --depends-on --resume-all --jobs --offline --source-home --home",
    "Output": "--json --quiet --verbose --help",
}
_GROUP_OF = {option: group for group, options in _GROUPS.items() for option in options.split()}


class Command(TyperCommand):
    """A command whose help has its options in groups, if they are many."""

    def get_help(self, ctx: Any) -> str:  # noqa: D102 - of Typer
        return coloured(super().get_help(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: D102 - of Typer
        params = [(p, p.get_help_record(ctx)) for p in self.get_params(ctx)]
        arguments = [record for p, record in params if p.param_type_name == "argument" and record]
        options = [(p, record) for p, record in params if p.param_type_name == "option" and record]
        sections: dict[str, list[Any]] = {"Arguments": arguments, "Options": []}
        for p, record in options:
            group = next((_GROUP_OF[o] for o in p.opts if o in _GROUP_OF), "Options")
            sections.setdefault(group if len(options) >= _MANY else "Options", []).append(record)
        order = ["Arguments", "Options", *_GROUPS]
        width = max((len(name) for records in sections.values() for name, _ in records), default=0)
        for title in sorted(sections, key=order.index):
            if sections[title]:
                with formatter.section(title):
                    formatter.write_dl([(name.ljust(min(width, 30)), said) for name, said in sections[title]])


def coloured(help: str) -> str:
    """The text of a help, in colours if it goes to a terminal."""
    return styles.help_page(help) if styles.wanted(sys.stdout) else help


@contextmanager
def usage_errors() -> Iterator[None]:
    """Escape control characters in usage errors, since a shell may expand a glob to names of a stranger's files.

    With ``--json`` the error is a record, too.
    """
    try:
        yield
    except UsageError as e:
        message = e.format_message()
        several_lines = message.startswith(("Missing ", "Usage: "))  # lists choices, or is the help: quotes nothing
        if not several_lines:
            message = visible.message(message)
        shown = out.by_words(f"Error: {message}", stream=sys.stderr).removeprefix("Error: ")
        e.format_message = lambda: message if several_lines else shown
        if "--json" in sys.argv:
            out.configure(json=True)
            command = f"rlds {e.ctx.info_name}" if e.ctx and e.ctx.parent else "rlds"
            record = {"error": message, "kind": "UsageError", "hint": f"{command} -h"}
            e.show = lambda file=None: out.result(record)
        raise
