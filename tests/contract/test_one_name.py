"""One thing has one name: a parameter of a command, its option, and the keyword of the function that it sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rlds_cli import cli

pytestmark = pytest.mark.source

COMMANDS = Path(cli.__file__).parent

# Options that are called otherwise than the parameter of their command, and why.
OPTIONS = {
    "download --from": "`from` is a word of Python: `source=`",
    "label --from": "`from` is a word of Python; a file of columns, which the function takes as columns",
    "import --set": "sets one of `fps=`, `license=`, `description=` and `depth_unit=`",
    "append --set": "as that of import",
    "label --set": "the mapping `facts=`",
}
# Parameters that set a keyword of another name, and why.
KEYWORDS = {
    "import name id": "what progress is called by",
    "preprocess source_home home": "the home of the source, beside that of the result",
}


def commands() -> dict[str, Any]:
    found: Any = typer.main.get_command(cli.app)
    return {name: found.commands[name] for name in cli.COMMANDS}


def test_an_option_has_the_name_of_its_parameter() -> None:
    other = set()
    for name, command in commands().items():
        for p in command.params:
            names = {o.removeprefix("--").replace("-", "_") for o in p.opts if o.startswith("--")}
            if p.param_type_name == "option" and p.name.rstrip("_") not in names:
                other.add(f"{name} {p.opts[0]}")
    assert other == set(OPTIONS)


def named(value: ast.expr, parameters: set[str]) -> str | None:
    """The parameter that a value is: as it is, or the value of a choice, or with another value in its place."""
    match value:
        case ast.Name(id=name):
            return name if name in parameters else None
        case ast.Attribute(value=inner, attr="value"):
            return named(inner, parameters)
        case ast.BoolOp(values=[first, *_]):
            return named(first, parameters)
        case ast.IfExp(body=body, orelse=other):
            return named(body, parameters) or named(other, parameters)
    return None


def keywords(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Keywords of calls, and of dictionaries that are handed on as keywords, but for those of what is printed."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func).startswith("out.result"):
                continue
            yield from ((k.arg, k.value) for k in node.keywords if k.arg)
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from ((k.value, v) for k, v in pairs if isinstance(k, ast.Constant) and isinstance(k.value, str))
        yield from keywords(node)


def test_a_parameter_sets_the_keyword_of_its_name() -> None:
    other, same = set(), set()
    for file in COMMANDS.glob("*.py"):
        for function in ast.parse(file.read_text()).body:
            decorators = getattr(function, "decorator_list", [])
            if not any(ast.unparse(d).startswith("app.command") for d in decorators):
                continue
            assert isinstance(function, ast.FunctionDef)
            parameters = {a.arg for a in function.args.args}
            for keyword, value in keywords(function):
                p = named(value, parameters)
                if p and p.rstrip("_") != keyword.rstrip("_"):
                    other.add(f"{file.stem.rstrip('_')} {p} {keyword}")
                elif p:
                    same.add(p)
    assert other == set(KEYWORDS)
    assert same >= {"home", "storage", "name", "force", "jobs"}
