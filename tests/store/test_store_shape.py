"""One class of stores: what it is made of varies, and nothing extends it."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rlds_cli
from rlds_cli import Dataset
from rlds_cli.store import Store

PACKAGE = Path(rlds_cli.__file__).parent
MOST = 30  # public names


def episode(k: int) -> dict[str, object]:
    n = 4
    return {"observation": np.full((n + 1, 3), k, np.float32), "action": np.zeros((n, 2), np.float32)}


def fixed(tmp_path: Path) -> Dataset:
    return rlds_cli.create("local/fixed", [episode(k) for k in range(3)], force=True)


def growing(tmp_path: Path) -> Dataset:
    with rlds_cli.writer("local/grown", durable=False) as w:
        w.add_episodes(episode(k) for k in range(3))
    return rlds_cli.open_dataset("local/grown")


def at_an_address(make: Callable[[Path], Dataset]) -> Callable[[Path], Dataset]:
    def made(tmp_path: Path) -> Dataset:
        rlds_cli.push(make(tmp_path).id, str(tmp_path / "pushed"), pages=False)
        return rlds_cli.open_dataset(str(tmp_path / "pushed"), home=tmp_path / "other")

    return made


MAKERS = {
    "fixed": fixed,
    "growing": growing,
    "fixed at an address": at_an_address(fixed),
    "growing at an address": at_an_address(growing),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_store_has_few_public_names(kind: str, tmp_path: Path) -> None:
    store = MAKERS[kind](tmp_path).store
    assert type(store) is Store
    for name in ("manifest", "episodes"):  # read on first use
        getattr(store, name)
    names = [name for name in dir(store) if not name.startswith("_")]
    assert len(names) <= MOST, names


def parsed(having: str) -> Iterator[tuple[Path, ast.Module]]:
    """Files of the package that match an expression."""
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if re.search(having, text):
            yield file, ast.parse(text)


def test_nothing_extends_a_store_or_asks_for_its_kind() -> None:
    for file, tree in parsed(r"\bStore\b"):
        for x in ast.walk(tree):
            if isinstance(x, ast.ClassDef):
                assert not any(ast.unparse(base).split(".")[-1] == "Store" for base in x.bases), (file, x.name)
            if isinstance(x, ast.Call) and ast.unparse(x.func) in ("isinstance", "issubclass"):
                assert "Store" not in ast.unparse(x.args[1]).replace(".", " ").split(), (file, x.lineno)


def test_tables_and_files_override_nothing_by_force() -> None:
    kinds = 0
    for file, tree in parsed(r"\bclass \w*(Table|Files|ByLog)\b"):
        text = file.read_text()
        for x in tree.body:
            if isinstance(x, ast.ClassDef) and x.name.endswith(("Table", "Files", "ByLog")):
                own = "\n".join(text.split("\n")[x.lineno - 1 : x.end_lineno])
                assert "type: ignore[override]" not in own and "def __getattr__" not in own, x.name
                kinds += 1
    assert kinds > 8


LET_GO = """
import gc, sys
import numpy as np, rlds_cli
from rlds_cli.loader import Loader
gc.disable()

def opened():
    ds = rlds_cli.open_dataset(ref, home=home)
    ds.manifest, ds.episode(1), ds.stats
    np.asarray(ds.column("observation")[:3])
    next(iter(Loader(ds, 4, backend="numpy")))

def mappings():
    # files of the dataset that are mapped, and addresses that are reserved for rows to come
    found = 0
    with open("/proc/self/maps") as f:
        for line in f:
            addresses, rights, *_ = line.split()
            first, behind = (int(x, 16) for x in addresses.split("-"))
            found += root in line or (rights.startswith("---") and behind - first > 1 << 28)
    return found

def held():
    ds = rlds_cli.open_dataset(ref, home=home)
    np.asarray(ds.column("observation")[:3])
    return ds, mappings()

while sys.argv[1:]:
    ref, home, root = sys.argv.pop(1), sys.argv.pop(1) or None, sys.argv.pop(1)
    print(held()[1])
    before = mappings()
    for _ in range(12):
        opened()
    print(mappings() - before)
"""


def test_stores_let_go_of_their_files_without_the_garbage_collector(tmp_path: Path) -> None:
    """12 of them would have mapped 12 files more, and reserved as many addresses for rows to come."""
    stores = list[str]()
    for kind in MAKERS:
        own = tmp_path / kind
        ds = MAKERS[kind](own)
        away = kind.endswith("address")
        stores += [str(own / "pushed"), str(own / "other"), str(own)] if away else [str(ds.path), "", str(ds.path)]
    run = [sys.executable, "-c", LET_GO, *stores]
    told = subprocess.run(run, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout.split()
    assert len(told) == 2 * len(MAKERS)
    for one, more in zip(map(int, told[::2]), map(int, told[1::2]), strict=True):
        assert one > 0 and more < 6


def test_versions_that_are_dropped_are_freed(tmp_path: Path) -> None:
    """A later version shares the files of an earlier one, and does not hold it."""
    ds = growing(tmp_path)
    np.asarray(ds.column("observation")[:])
    gc.disable()
    try:
        with rlds_cli.writer("local/grown", durable=False) as w:
            w.add_episodes(episode(k) for k in range(3))
        held = ds.store.table.lease
        new = ds.refresh()
        np.asarray(new.column("observation")[:])
        assert held is not new.store.table.lease
        count = sys.getrefcount(held)
        del ds
        assert sys.getrefcount(held) < count
    finally:
        gc.enable()
