"""Faces of rooms: a face lists its names once more for type checkers, and for the import when one is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "rlds_cli"
FACES = sorted(p for p in PACKAGE.glob("*/__init__.py") if "\nlazy(" in p.read_text())
ROOMS = [path.parent.name for path in FACES]


def seen_by_type_checkers(path: Path) -> dict[str, str]:
    """Names that a face imports for type checkers, and the modules that they come from."""
    (block,) = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.If))
    return {alias.name: str(node.module) for node in block.body for alias in getattr(node, "names", ())}


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_has_the_names_that_type_checkers_see(room: str) -> None:
    face, seen = import_module(f"rlds_cli.{room}"), seen_by_type_checkers(PACKAGE / room / "__init__.py")
    assert sorted(face.__all__) == sorted(seen) == dir(face)
    for name, module in seen.items():
        assert getattr(face, name) is getattr(import_module(module), name), name


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_takes_the_place_of_a_name_of_a_face(room: str) -> None:
    modules = {p.stem for p in (PACKAGE / room).iterdir() if p.suffix == ".py" or p.is_dir()}
    assert modules & set(import_module(f"rlds_cli.{room}").__all__) == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_that_a_face_lacks_is_an_attribute_error(room: str) -> None:
    assert not hasattr(import_module(f"rlds_cli.{room}"), "no_such_name")


def test_faces_import_nothing_until_a_name_is_used() -> None:
    """In a process of its own: this one has imported most modules."""
    code = f"import sys\nfor room in {ROOMS}: __import__(f'rlds_cli.{{room}}')\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    below = [m for m in loaded if m.count(".") > 1 and m.split(".")[1] in ROOMS]
    assert below == []
    assert not {"torch", "numpy", "zarr", "h5py", "requests"} & set(loaded)
