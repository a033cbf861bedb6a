"""Write docs/reference/commands.md, and a page for each panel of commands, from the commands themselves.

Usage: python scripts/make_command_docs.py [--check]        --check: exit 1 when a page is not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from rlds_cli.cli import app
from rlds_cli.cli.commands import PANELS

DOCS = Path(__file__).parents[1] / "docs" / "reference"

_WRITTEN = "<!-- Written by scripts/make_command_docs.py; change the commands, then run it. -->"
HEAD = f"""\
# Commands

{_WRITTEN}

Results, and JSON with `--json`, go to stdout; everything else goes to stderr. Exit codes: 0 success, 1 an expected
failure (one line and a hint), 2 wrong usage, 130 interrupted. Texts show sizes in MiB and GiB, JSON in bytes. With
`--json` an error is `{{"error": ..., "kind": ..., "hint": ...}}` on stdout, no question is asked, and stderr is empty
but for what your own functions print; `printed` has the lines that a failed reader printed.
Commands for several datasets accept glob patterns; quote them.

## Environment variables

| variable | meaning |
|---|---|
| `RLDS_HOME` | directory of datasets; default: `$XDG_CACHE_HOME/rlds`, else `~/.cache/rlds` |
| `RLDS_PATH` | further homes to search, read-only, separated by `:` |
| `RLDS_OFFLINE` | `1`: do not use the network |
| `RLDS_READ_MEMORY` | [memory for an archive](security.md#archives); default: `4GiB`, or half of the machine's |
| `RLDS_REGISTRY` | [registries of your own](own-registry.md): files, directories or addresses, separated by commas |
| `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` | address of the hub, its token, and the directory of its own client |
"""

# Said once, above the commands that have them.
COMMON = ("--json", "--quiet", "--verbose", "--home", "--help")


def pages() -> dict[str, str]:
    """The text of each page, by its name."""
    root: Any = typer.main.get_command(app)
    context = root.make_context("rlds", [], resilient_parsing=True)
    panels = {panel: [root.get_command(context, name) for name in names] for panel, names in PANELS.items()}
    commands = [c for panel in panels.values() for c in panel]
    common = {o: p for c in commands for p in c.params for o in p.opts if o in COMMON}
    parts = [
        HEAD,
        "## Common options\n\nMost commands have these options:",
        _options(common[o] for o in COMMON if o in common),
    ]
    made = {}
    for panel, members in panels.items():
        name = f"commands-{panel.lower()}.md"
        rows = [f"| [`rlds {c.name}`]({name}#rlds-{c.name}) | {_cell(PANELS[panel][c.name])} |" for c in members]
        parts.append("\n".join([f"## {panel}", "", "| | |", "|---|---|", *rows]))
        made[name] = _joined([f"# Commands: {panel}", _WRITTEN, *(part for c in members for part in _command(c))])
    return {"commands.md": _joined(parts), **made}


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _command(command: Any) -> Iterator[str]:
    prose, examples = _split_help(command.help or "")
    arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    required = [_name(p).strip("`") for p in command.params if p.required and p.param_type_name == "option"]
    yield f"## rlds {command.name}"
    yield prose
    yield f"Usage: `{' '.join(['rlds', command.name, *arguments, *required, '[OPTIONS]'])}`"
    if examples:
        yield "\n".join(["```console", *(f"$ {e}" for e in examples), "```"])
    own = [p for p in command.params if not set(p.opts) & set(COMMON)]
    yield _options(own) if own else ""


def _split_help(text: str) -> tuple[str, list[str]]:
    """The prose of a docstring, and the commands behind ``Example:``."""
    prose, _, examples = text.replace("\b", "").partition("Example")
    lines = [line.lstrip("s: ").strip() for line in examples.splitlines()]
    return prose.strip(), [line for line in lines if line]


def _options(params: Iterable[Any]) -> str:
    rows = [f"| {_cell(_name(p))} | {_cell(p.help or '')}{_default(p)} |" for p in params if not p.hidden]
    return "\n".join(["| | |", "|---|---|", *rows])


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`"
    long, *short = sorted(param.opts, key=lambda o: not o.startswith("--"))
    value = "" if param.is_flag else f" {param.metavar or _metavar(param)}"
    return ", ".join([f"`{long}{value}`", *(f"`{o}`" for o in short)])


def _metavar(param: Any) -> str:
    choices = getattr(param.type, "choices", None)
    if choices:
        return "|".join(str(getattr(c, "value", c)) for c in choices)
    return {"int": "N", "integer": "N", "path": "PATH", "directory": "DIR"}.get(param.type.name, "TEXT")


def _default(param: Any) -> str:
    if (
        param.param_type_name == "argument"
        or param.is_flag
        or not param.show_default
        or param.default in (None, (), "")
    ):
        return ""
    return f" Default: `{getattr(param.default, 'value', param.default)}`."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    made = pages()
    old = [name for name, text in made.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != text]
    if "--check" in sys.argv:
        sys.exit(f"{', '.join(old)} not current: python scripts/make_command_docs.py" if old else 0)
    for name in old:
        (DOCS / name).write_text(made[name])
