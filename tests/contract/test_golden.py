"""What today's code makes is what the golden files hold: see tests/contract/golden/make.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_rlds
from golden import EXPECTED, HERE, SECTIONS, expected, samples, sandbox, stores
from loader_data import create, varied

import rlds_cli
from rlds_cli.base.files import child
from rlds_cli.loader import Loader, Sequential, Slice

Made = Callable[..., dict[str, Any]]
HINT = "python tests/contract/golden/make.py shows what differs, and writes it with --write"
WHOLE = ("on_disk", "surface")
STORES = HERE / "stores"
IN_PARTS = ("conversions", "preprocessing", "samples")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A section, made once for all its cases; one process reads the archives of those that are quick."""

    @cache
    def make(section: str, **how: Any) -> dict[str, Any]:
        directory = tmp_path_factory.mktemp(section)
        quick = how.get("quick") or section in WHOLE
        with sandbox(directory), child.reading() if quick else nullcontext():
            found = import_module(f"golden.{section}").collect(directory, **how)
        result: dict[str, Any] = json.loads(json.dumps(found))  # as a file holds it
        return result

    return make


def compare(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Fail with the cases that differ, and in each with the entries that do."""
    differing = {name: differences(found[name], wanted.get(name)) for name in found if found[name] != wanted.get(name)}
    assert not differing, f"{json.dumps(differing, indent=1)}\n{HINT}"


def differences(found: Any, wanted: Any) -> Any:
    """Of mappings the entries that differ: [expected, found]."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
        return {name: differences(found.get(name), wanted.get(name)) for name in names}
    return [wanted, found]


@pytest.mark.parametrize("section", WHOLE)
def test_a_section_is_unchanged(made: Made, section: str) -> None:
    found = made(section)
    compare(found, expected(section))
    assert set(found) == set(expected(section)), HINT


@pytest.mark.parametrize("section", IN_PARTS)
def test_a_part_of_a_section_is_unchanged(made: Made, section: str) -> None:
    found = made(section, quick=True)
    assert len(found) >= 15
    compare(found, expected(section))


@pytest.mark.slow
@pytest.mark.parametrize("section", IN_PARTS)
def test_all_of_a_section_is_unchanged(made: Made, section: str) -> None:
    found = made(section)
    compare(found, expected(section))
    assert set(found) == set(expected(section)), HINT


SAVED = ["Uniform", "Shuffled", "Shuffled in blocks", "Weighted by step", "Prioritized behind"]


@pytest.mark.parametrize("name", SAVED)
def test_a_state_that_was_saved_before_is_gone_on_with(name: str) -> None:
    """States of version 0.1.0: most of them JSON, and one with tensors."""
    ds = create(varied())
    sampler = samples.samplers(ds)[name]
    extra = tuple(n for n in samples.EXTRA if n not in sampler.gives)
    how: dict[str, Any] = {
        "window": Slice(3),
        "sampler": sampler,
        "fields": [..., *extra],
        "backend": "numpy",
        "dtype": None,
    }
    loader = Loader(ds, samples.BATCH, **how)
    held = expected("samples")
    if "behind" in name:
        loader.load_state_dict(torch.load(STORES / "prioritized.pt", weights_only=True))
    else:
        loader.load_state_dict(held[f"state of {name}"])
    assert samples.told(loader, 300) == held[f"resumed, {name}"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("kept")
    stores.unpacked(home)
    return home


@pytest.mark.parametrize("name", ["local/plain", "local/packed", "local/plain@half"])
def test_datasets_of_before_open_and_hold_what_was_written(kept: Path, name: str) -> None:
    ds = rlds_cli.open_dataset(name, home=kept)
    assert (ds.encoding, ds.num_episodes, ds.num_steps) == ("zarr" if "packed" in name else "memmap", 3, 6)
    assert ds.episodes["length"].tolist() == [2, 3, 1]
    assert ds.episodes["num_observed"].tolist() == [3, 3, 2]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "truncated"]
    assert ds.episodes["total_reward"].tolist() == [3.0, 6.0, 1.0]
    assert len(ds) == 5  # the last observation of episode 1 is not recorded
    for k, hand in enumerate(stores.HAND):
        e, n = ds.episode(k), len(hand["text"])
        assert e["observation"].tolist() == hand["observation"][:n]
        assert e["text"].tolist() == hand["text"]
        assert e["action"][:, 0].tolist() == [(10 * k + t) / (2 if "half" in name else 1) for t in range(n)]
        assert e["next", "reward"].ravel().tolist() == [float(t + 1) for t in range(n)]
    batch = next(iter(Loader(ds, 5, sampler=Sequential(), backend="numpy", dtype=None)))
    assert batch["observation"].tolist() == [[0, 1], [2, 3], [6, 7], [8, 9], [12, 13]]
    assert batch["next", "observation"].tolist() == [[2, 3], [4, 5], [8, 9], [10, 11], [14, 15]]


def test_datasets_of_before_verify(kept: Path) -> None:
    done = run_rlds("verify", "--all", "--home", kept, "--json")
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_the_golden_files_are_small() -> None:
    files = {p.stem: p.stat().st_size for p in EXPECTED.iterdir()}
    assert set(files) == set(SECTIONS)
    assert sum(files.values()) + sum(p.stat().st_size for p in STORES.iterdir()) < 1_000_000
