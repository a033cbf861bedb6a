"""What today's code makes is what the golden files hold: see tests/golden/make.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from golden import EXPECTED, SECTIONS, expected, sandbox
from golden.samples import told
from loader_data import create, varied

Made = Callable[..., dict[str, Any]]
HINT = "python tests/golden/make.py shows what differs, and writes it with --write"
WHOLE = ("samples", "on_disk", "surface")
IN_PARTS = ("conversions", "preprocessing")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A section, made once for all its cases."""

    @cache
    def make(section: str, **how: Any) -> dict[str, Any]:
        directory = tmp_path_factory.mktemp(section)
        with sandbox(directory):
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
    assert len(found) >= 25
    compare(found, expected(section))


@pytest.mark.slow
@pytest.mark.parametrize("section", IN_PARTS)
def test_all_of_a_section_is_unchanged(made: Made, section: str) -> None:
    found = made(section)
    compare(found, expected(section))
    assert set(found) == set(expected(section)), HINT


@pytest.mark.parametrize("sampler", ["Uniform", "Shuffled", "Shuffled in blocks", "Weighted by step"])
def test_a_state_that_was_saved_before_is_gone_on_with(sampler: str) -> None:
    from golden.samples import SEEDS, Loader, Slice, samplers

    ds = create(varied())
    held = expected("samples")
    loader = Loader(
        ds,
        90,
        window=Slice(3),
        sampler=samplers(ds)[sampler],
        extra=tuple(n for n in ("episode", "step", "index", "probability") if n not in samplers(ds)[sampler].gives),
        backend="numpy",
        dtype=None,
        seed=SEEDS[0],
    )
    loader.load_state_dict(held[f"state of {sampler}"])
    assert told(loader, 300) == held[f"resumed, {sampler}"]


def test_the_golden_files_are_small() -> None:
    files = {p.stem: p.stat().st_size for p in EXPECTED.iterdir()}
    assert set(files) == set(SECTIONS)
    stores = sum(p.stat().st_size for p in (EXPECTED.parent / "stores").rglob("*") if p.is_file())
    assert sum(files.values()) + stores < 1_000_000
