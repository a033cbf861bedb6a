"""Names that cross the borders of rooms: how scripts/doors.py counts them, and how many may go past a face."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.source

SCRIPT = Path(__file__).parents[2] / "scripts" / "doors.py"

# Names that are used past the face of their room. The number only becomes smaller.
PAST_A_FACE = 0
# Names that cross and are used, and pairs of rooms of which one uses the other.
CROSSING, PAIRS = 293, 68


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("doors", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["doors"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def counted(script: ModuleType, directory: Path, user: str, **files: str) -> tuple[set[str], set[str]]:
    """Names that cross, and those that are used, where `cli/user.py` is ``user`` and the other rooms are ``files``."""
    root = directory / "rlds_cli"
    texts = {"__init__": "", "cli/__init__": "", "cli/user": user, "store/__init__": "", "base/__init__": "", **files}
    for name, text in texts.items():
        path = root / f"{name.replace('__', '/') if not name.endswith('__init__') else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = script.doors(root)
    return {".".join(name) for name in found.users}, {".".join(name) for name in found.used}


TAGS = "class Kind: pass\ndef read(): pass\ndef write(): pass\n_hidden = 1"


@pytest.mark.parametrize(
    ("user", "names"),
    [
        ("from rlds_cli.store.tags import read\nread()", {"store.tags.read"}),
        ("from rlds_cli.store.tags import read as r\nr()", {"store.tags.read"}),
        ("from rlds_cli.store import tags\ntags.read()\ntags.write()", {"store.tags.read", "store.tags.write"}),
        ("from ..store import tags\ntags.read()", {"store.tags.read"}),
        ("import rlds_cli.store.tags as t\nt.read()", {"store.tags.read"}),
        ("import rlds_cli.store.tags\nrlds_cli.store.tags.read()", {"store.tags.read"}),
        ("def f():\n    from rlds_cli.store.tags import read\n    read.x.y", {"store.tags.read"}),
        ("from rlds_cli.store import tags\nprint(tags)", {"store.tags.*"}),
        ("from rlds_cli.store.tags import *", {"store.tags.Kind", "store.tags.read", "store.tags.write"}),
        ("from rlds_cli.store.tags import read", set()),  # an import alone uses nothing
        ("from rlds_cli.base import text\ntext.natural()", set()),  # the ground
    ],
)
def test_each_form_of_an_import_counts(script: ModuleType, tmp_path: Path, user: str, names: set[str]) -> None:
    assert counted(script, tmp_path, user, store__tags=TAGS) == (names, names)


def test_annotations_are_told_apart(script: ModuleType, tmp_path: Path) -> None:
    user = "from rlds_cli.store.tags import Kind, read\ndef f(kind: Kind) -> list[Kind]:\n    x: Kind = read()"
    assert counted(script, tmp_path, user, store__tags=TAGS) == (
        {"store.tags.Kind", "store.tags.read"},
        {"store.tags.read"},
    )


@pytest.mark.parametrize(
    "bundle",
    [
        "class All:\n    @staticmethod\n    def read(): pass\n    @staticmethod\n    def write(): pass",
        "class All:\n    'Functions.'\n    read = _read\n    write = _write",
        "from types import SimpleNamespace\nAll = SimpleNamespace(read=1, write=2)",
    ],
)
def test_each_function_of_a_bundle_counts(script: ModuleType, tmp_path: Path, bundle: str) -> None:
    user = "from rlds_cli.store import All\nAll.read()\nAll.write()"
    names = {"store.All.read", "store.All.write"}
    assert counted(script, tmp_path, user, **{"store/__init__": bundle}) == (names, names)


def test_a_class_with_a_method_is_one_name(script: ModuleType, tmp_path: Path) -> None:
    kind = "class Kind:\n    @classmethod\n    def made(cls): pass\n    def close(self): pass"
    assert counted(
        script, tmp_path, "from rlds_cli.store import Kind\nKind.made().close()", **{"store/__init__": kind}
    )[1] == {"store.Kind"}


def test_a_name_past_the_face_is_told(script: ModuleType, tmp_path: Path) -> None:
    """`read` is in the face of the store; `tags.write` is not, and neither is `read` by the way of its module."""
    user = "from rlds_cli.store import read, tags\nfrom rlds_cli.store.tags import write\nread()\nwrite()\ntags.read()"
    face = "from rlds_cli.store.tags import read\n__all__ = ['read']"
    counted(script, tmp_path, user, **{"store/__init__": face}, store__tags=TAGS)
    found = script.doors(tmp_path / "rlds_cli")
    assert found.past() == [("store", "tags", "read"), ("store", "tags", "write")]
    assert found.pairs == {("cli", "store")}


def test_no_more_names_cross(script: ModuleType) -> None:
    found = script.doors()
    beyond = [".".join(name) for name in found.past()]
    assert len(beyond) <= PAST_A_FACE, f"use names of a face, or put what one room alone uses into it: {beyond}"
    assert len(found.used) <= CROSSING
    assert len(found.pairs) <= PAIRS, sorted(found.pairs)
