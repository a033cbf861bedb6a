"""What users hold on to: public names and signatures, documented names, options, exit codes, keys of ``--json``."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from conftest import run_rlds
from loader_data import create, varied
from typer.main import get_command

import rlds_cli
from golden import DATA
from golden.on_disk import shape
from rlds_cli import cli, errors
from rlds_cli.base.text import is_below

ROOT = Path(__file__).parents[3]
WITH_ALL = ("rlds_cli", "rlds_cli.loader", "rlds_cli.preprocess", "rlds_cli.report")
_IMPORT = re.compile(r"^\s*(?:>>> )?from (rlds_cli[\w.]*) import (\([^)]*\)|[^\n#]+)", re.M)
_DOTTED = re.compile(r"\b(rlds_cli(?:\.[A-Za-z_]\w*)+)")


def collect(directory: Path) -> dict[str, Any]:
    """All of it, without help texts and messages, which may be worded anew."""
    create(varied()[:12])
    return {
        "names at hand": _at_hand(),
        **{f"{module}.__all__": sorted(import_module(module).__all__) for module in WITH_ALL},
        "signatures": _signatures(),
        "documented names": {name: _about(value) for name, value in sorted(_documented().items())},
        "errors": {
            name: [base.__name__ for base in value.__mro__[1:-1]]
            for name, value in sorted(vars(errors).items())
            if isinstance(value, type) and issubclass(value, Exception)
        },
        "options": _options(),
        "commands": {" ".join(told): _run(told, arguments) for told, arguments in _commands(directory)},
    }


def _at_hand() -> list[str]:
    """Names of a package that nothing else was imported from."""
    code = "import rlds_cli; print(*(n for n in dir(rlds_cli) if not n.startswith('_')))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def _signatures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in WITH_ALL:
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            found[f"{module}.{name}"] = _about(value)
    return found


def _about(value: Any) -> Any:
    """A function's parameters; of a class, those of its public methods, and its properties."""
    if isinstance(value, ModuleType):
        return "module"
    if not isinstance(value, type):
        return _parameters(value) if callable(value) else type(value).__name__
    if issubclass(value, Exception):
        return "error"
    found: dict[str, str] = {"": _parameters(value)}
    for name in sorted({n for c in value.__mro__ if c.__module__.startswith("rlds_cli") for n in vars(c)}):
        if not name.startswith("_"):
            attribute = inspect.getattr_static(value, name)
            held = getattr(attribute, "__func__", attribute)
            found[name] = _parameters(held) if inspect.isroutine(held) else "attribute"
    return found


def _parameters(function: Any) -> str:
    """Names, kinds and defaults; the annotations are mypy's."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "?"
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(plain))


def _documented() -> dict[str, Any]:
    """Names that the documentation, the examples and the wheel's readme import or write out."""
    names: set[str] = set()
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.py"), *ROOT.glob("examples/*.py")]
    for page in pages:
        content = page.read_text()
        for module, imported in _IMPORT.findall(content):
            plain = imported.strip("() \n").replace("\n", " ").split(",")
            names |= {f"{module}.{n.split(' as ')[0].strip()}" for n in plain if n.strip()}
        names |= set(_DOTTED.findall(content))
    found = {}
    for name in names:
        if is_below(name.replace(".", "/"), "rlds_cli/interop/torchrl"):
            continue  # TorchRL may not be installed: tests/archives/test_interop_torchrl.py has these
        value: Any = rlds_cli
        try:
            for part in name.split(".")[1:]:
                value = getattr(value, part) if hasattr(value, part) else import_module(f"{value.__name__}.{part}")
        except (ImportError, AttributeError):
            continue  # a file, or the attribute of what a call gives
        found[name] = value
    return found


def _options() -> dict[str, list[str]]:
    """Of every command its arguments and options: names, whether they are flags or repeated, defaults, choices."""
    group: Any = get_command(cli.app)
    return {name: sorted(map(_option, command.params)) for name, command in sorted(group.commands.items())}


def _option(p: Any) -> str:
    names = ", ".join(sorted([*p.opts, *p.secondary_opts]))
    kind = "flag" if getattr(p, "is_flag", False) else p.type.name
    more = [word for word, holds in (("required", p.required), ("many", p.multiple or p.nargs == -1)) if holds]
    return " ".join([names, kind, *more, *(getattr(p.type, "choices", None) or ())])


def _commands(directory: Path) -> list[tuple[tuple[str, ...], list[str]]]:
    """(as it is shown, as it is run) of commands on a small home, one after the other."""
    archive = str(DATA / "d4rl/kitchen_layout-v0.hdf5")
    module = directory / "own.py"
    module.write_text("def half(episode):\n    episode['action'] = episode['action'] / 2\n    return episode\n")
    lock, fn = str(directory / "rlds.lock"), f"{module}:half"
    known = "local/known"
    lines = [
        ["list"],
        ["list", "hopper", "medium"],
        ["list", "--local"],
        ["info", "d4rl/hopper-medium-v2"],
        ["info", known, "--fingerprint"],
        ["info", "d4rl/hopper-medium-v2", "--cite"],
        ["download", "sample/pendulum-d4rl", "--dry-run"],
        ["download", "sample/pendulum-d4rl", "-j", "0"],
        ["import", archive, "--name", "local/kitchen", "--dry-run"],
        ["import", archive, "--name", "local/kitchen", "-j", "0"],
        ["inspect", known],
        ["inspect", known, "--episode", "3"],
        ["inspect", archive],
        ["check", known],
        ["preprocess", "--list"],
        ["preprocess", known, "--fn", fn, "--try"],
        ["preprocess", known, "--fn", fn, "-j", "0"],
        ["diff", known, f"{known}@half"],
        ["convert", f"{known}@half", "--to", "zarr"],
        ["lock", "sample/pendulum-d4rl"],
        ["verify", known],
        ["verify", "--all"],
        ["du"],
        ["path", known],
        ["gc", "--yes"],
        ["rm", f"{known}@half", "--yes"],
        ["info", "d4rl/no-such-thing"],
        ["path", "local/absent"],
        ["check", "local/absent"],
        ["verify", "local/absent"],
        ["preprocess", known, "--fn", "no_such_module:f"],
        ["inspect", lock],
        ["import", lock, "--name", "local/x"],
        ["rm", "local/absent", "--yes"],
        ["sync", lock],
        ["download"],
        ["nonsense"],
        ["list", "--nonsense"],
        ["export", known],
    ]
    short = {archive: "ARCHIVE", fn: "FN", lock: "LOCK"}
    return [(tuple(short.get(word, word) for word in line), line) for line in lines]


def _run(told: tuple[str, ...], arguments: list[str]) -> Any:
    done = run_rlds(*arguments, *([] if told[0] in ("nonsense", "lock", "export") else ["--json"]))
    try:
        printed = shape(json.loads(done.stdout)) if done.stdout else None
    except ValueError:
        printed = "text"
    return {"exit": done.returncode, "stdout": printed}
