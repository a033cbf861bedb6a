"""What hints tell people to type: each command, and each of its options, is one that the command line has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import rlds_cli
from rlds_cli.cli import main
from rlds_cli.cli.commands import COMMANDS, app

pytestmark = pytest.mark.source

assert main
PACKAGE = Path(rlds_cli.__file__).parent
FILLER = "\0"  # in the place of what a hint has computed
_VERBS = {"wrote", "pushed"}  # after "rlds", where it is the subject of a sentence
_COMMAND = re.compile(rf"\brlds ([a-z]+)((?:(?!\brlds\b)[^;\n{FILLER}]|{FILLER})*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Options of other programs that hints name, after these words.
_OTHERS = re.compile(r"\b(pip|h5repack|git|ffmpeg|hf|uv|cp|mount|aws|gsutil|ray|python -m)\b")


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may become, with a filler for what is computed."""
    match node:
        case ast.Constant(str(value)):
            yield value
        case ast.JoinedStr():
            yield "".join(v.value if isinstance(v, ast.Constant) else FILLER for v in node.values)  # type: ignore[misc]
        case ast.IfExp():
            yield from texts(node.body)
            yield from texts(node.orelse)
        case ast.BoolOp():
            for value in node.values:
                yield from texts(value)
        case ast.BinOp():
            for left in list(texts(node.left)) or [FILLER]:
                for right in list(texts(node.right)) or [FILLER]:
                    yield left + right


@cache
def hints() -> list[tuple[str, str]]:
    """All hints of the package: where each stands, and its text."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "hint" in source.lower() else ():
            named = node.targets if isinstance(node, ast.Assign) else []
            if (isinstance(node, ast.keyword) and node.arg == "hint") or any(map(_is_hint, named)):
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                found += [(where, text) for text in texts(node.value)]  # type: ignore[attr-defined]
    return found


def _is_hint(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and "hint" in target.id.lower()


@cache
def options(command: str) -> frozenset[str]:
    """The long options of a command, and of its subcommands."""
    built: Any = get_command(app)
    of = built.commands[command]
    names = {o for p in of.params for o in (*p.opts, *p.secondary_opts)}
    return frozenset(n for n in names if n.startswith("--"))


@cache
def known() -> frozenset[str]:
    return frozenset(o for command in COMMANDS for o in options(command)) | {"--version", "--help"}


def wrong(text: str) -> list[str]:
    """What a hint tells people to type that the command line does not have."""
    found, rest = [], text
    for name, arguments in _COMMAND.findall(text):
        if name in _VERBS:
            continue
        if name not in COMMANDS:
            found.append(f"rlds {name}")
            continue
        found += [f"rlds {name} {option}" for option in _OPTION.findall(arguments) if option not in options(name)]
        rest = rest.replace(arguments, "") if arguments else rest
    if not _OTHERS.search(rest):
        found += [option for option in _OPTION.findall(rest) if option not in known()]
    return found


def test_hints_are_found() -> None:
    found = hints()
    assert len(found) > 500
    assert any("--copy" in text for _, text in found) and any("rlds verify" in text for _, text in found)


def test_a_hint_with_an_option_that_does_not_exist_is_noticed() -> None:
    assert wrong("rlds label ID --nope x=1") == ["rlds label --nope"]
    assert wrong(f"rlds append {FILLER} --trim f.py; --name NAME") == ["rlds append --trim"]
    assert wrong("rlds upload ID") == ["rlds upload"] and wrong("--never") == ["--never"]
    assert wrong("rlds select ID --name NAME --where x; pip install --upgrade rlds-cli") == []


def test_the_command_line_has_what_hints_say() -> None:
    found = [f"{where}: {what}  ({text})" for where, text in hints() for what in wrong(text)]
    assert not found, "\n".join(found)
