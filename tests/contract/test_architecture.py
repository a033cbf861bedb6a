"""Which package imports which: by the arrows in scripts/house.py, which reads the files and imports none of them."""

from __future__ import annotations

import fnmatch
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.source

SCRIPT = Path(__file__).parents[2] / "scripts" / "house.py"

# Imports against the arrows that are there today, and how many. It only becomes shorter, and its numbers smaller.
EXCEPTIONS: dict[tuple[str, str], int] = {}
# Files that are in circles of imports: at import, with those inside functions, with those for type checkers.
IN_CIRCLES = (0, 0, 0)


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = spec_from_file_location("house", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["house"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def modules(house: ModuleType) -> dict:
    return house.read()


def test_every_module_has_a_place(house: ModuleType, modules: dict) -> None:
    """A new package needs a line in `ARROWS`; a module at the top level a place in a package."""
    assert {name: m.package for name, m in modules.items() if m.package not in house.ARROWS} == {}


def test_places_are_of_modules_that_are_there(house: ModuleType, modules: dict) -> None:
    there = {name.partition(".")[2] for name in modules}
    moved = [n for n, package in house.PLACES.items() if n != package and not fnmatch.filter(there, n)]
    assert moved == [], "these are elsewhere now: strike them out in scripts/house.py"


def test_the_arrows_have_no_circle(house: ModuleType) -> None:
    edges = {name: sorted(below) for name, below in house.ARROWS.items()}
    assert [c for c in house.components(edges) if len(c) > 1] == []


def test_imports_follow_the_arrows(house: ModuleType, modules: dict) -> None:
    found = house.upward(modules)
    more = {pair: imports for pair, imports in found.items() if len(imports) > EXCEPTIONS.get(pair, 0)}
    assert more == {}, "these imports are against the arrows of scripts/house.py"
    gone = [pair for pair in EXCEPTIONS if pair not in found]
    assert gone == [], "no longer exceptions: strike them out"


def test_nobody_imports_the_command_line(modules: dict) -> None:
    importers = [n for n, m in modules.items() if m.package != "cli" for t in m.imports if modules[t].package == "cli"]
    assert importers == []


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_no_more_files_are_in_circles(house: ModuleType, modules: dict, kind: int) -> None:
    found = house.circles(modules, kind)
    assert sum(map(len, found)) <= IN_CIRCLES[kind], f"circles of imports: {found}"


@pytest.mark.parametrize(
    ("user", "text", "against"),
    [
        ("archives/lab/read", "from rlds_cli.archives.lab import write", ("archives", "archives.exports")),
        ("archives/flat", "from rlds_cli.archives.lab.dropin import load", ("archives", "archives.dropins")),
        (
            "archives/lab/write",
            "from rlds_cli.archives.lab.dropin import load",
            ("archives.exports", "archives.dropins"),
        ),
        ("make/convert/again", "from rlds_cli.archives import export", ("make.convert", "archives.exports")),
        ("archives/lab/dropin", "from rlds_cli.archives.lab import read, write", None),
        ("make/convert/again", "from rlds_cli.archives import reader", None),
    ],
)
def test_a_writer_is_above_readers(
    house: ModuleType, tmp_path: Path, user: str, text: str, against: tuple[str, str] | None
) -> None:
    """Of a room of several parts, and also where the name comes through its face."""
    face = """if TYPE_CHECKING:
    from rlds_cli.archives.lab.read import reader
    from rlds_cli.archives.lab.write import export"""
    files = {"archives/__init__": face, "archives/lab/read": "", "archives/lab/write": "", "archives/lab/dropin": ""}
    for name, content in {**files, user: text}.items():
        path = tmp_path / "rlds_cli" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
        (path.parent / "__init__.py").touch()
    assert [*house.upward(house.read(tmp_path / "rlds_cli"))] == ([against] if against else [])


def test_the_circles_and_floors_of_a_small_package(house: ModuleType, tmp_path: Path) -> None:
    """a -> b -> c at import, c -> a inside a function, d -> e -> d for types; `__init__` imports nothing."""
    package = tmp_path / "rlds_cli"
    package.mkdir()
    files = {
        "__init__": "",
        "a": "from rlds_cli import b",
        "b": "import rlds_cli.c",
        "c": "def f():\n    try:\n        from rlds_cli.a import x\n    finally:\n        pass",
        "d": "from .e import y",
        "e": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlds_cli.d import z",
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text + "\n")
    read = house.read(package)
    abc, de = [f"rlds_cli.{n}" for n in "abc"], [f"rlds_cli.{n}" for n in "de"]
    assert [house.circles(read, kind) for kind in range(3)] == [[], [abc], [abc, de]]
    assert house.floors(read) == 3
