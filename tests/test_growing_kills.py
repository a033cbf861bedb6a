"""A few kills of writers and readers; ``make soak`` has more."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from rlds_cli.growing import segments

SCRIPT = Path(__file__).parents[1] / "scripts" / "soak_growing.py"


def _script() -> ModuleType:
    spec = spec_from_file_location("soak_growing", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["soak_growing"] = module
    spec.loader.exec_module(module)
    return module


soak = _script()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
    yield


@pytest.mark.parametrize("name", soak.soaks())
def test_nothing_committed_is_lost_and_no_episode_is_half(name: str, tmp_path: Path) -> None:
    soak.soaks()[name](tmp_path / "soak", 6, random.Random(5))
