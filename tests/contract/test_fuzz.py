"""A short run of ``make fuzz``: nothing but errors of rlds comes out of damaged files."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from rlds_cli.base.files import child
from rlds_cli.errors import UnsafeArchive

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz.py"


def _script() -> ModuleType:
    spec = spec_from_file_location("fuzz", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["fuzz"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


fuzz = _script()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_valid_inputs_are_read(name: str) -> None:
    with child.reading():  # one process for all
        for seed in fuzz.TARGETS[name].seeds:
            assert fuzz.attempt(fuzz.TARGETS[name], seed) == "read"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_inputs_are_refused_or_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rounds = 12 if fuzz.TARGETS[name].slow else 120
    assert sum(fuzz.fuzz(name, rounds=rounds).values()) == rounds
    assert not list(tmp_path.iterdir())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in fuzz.TARGETS if fuzz.corpus(name)])
def test_what_failed_once_is_refused_or_read(name: str) -> None:
    with child.reading():  # one process for all, or another one where that has ended
        for content in fuzz.corpus(name):
            assert fuzz.attempt(fuzz.TARGETS[name], content) in ("read", "refused")


def test_the_corpus_is_of_targets() -> None:
    assert {path.name for path in fuzz.CORPUS.iterdir()} <= set(fuzz.TARGETS)


def test_what_asks_for_memory_is_no_refusal() -> None:
    def greedy(content: bytes) -> None:
        try:
            raise MemoryError
        except MemoryError as e:
            raise UnsafeArchive("it needs more memory than there may be.") from e

    with pytest.raises(MemoryError):
        fuzz.attempt(fuzz.Target((b"",), greedy), b"")


def test_what_fails_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(content: bytes) -> None:
        raise ValueError("a bug")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(fuzz.TARGETS, "image", fuzz.Target((b"seed",), broken))
    with pytest.raises(ValueError, match="a bug"):
        fuzz.fuzz("image", rounds=5)
    assert (tmp_path / "fuzz-image.bin").is_file()
