"""The beginnings of ``make attack``: nothing comes of what strangers send."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "attack"


def _harness() -> ModuleType:
    spec = spec_from_file_location("attack_harness", SCRIPTS / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


harness = _harness()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("attacks") / "base"
    sys.modules["scene"].prepare(home)
    return home


# Attacks with a cheaper one of their kind beside them.
LONG = {
    "archives.descriptions_of_other_types",
    "datasets.words_of_a_terminal",
    "locks.a_file_of_the_users",
    "locks.a_module_beside_the_lock",
}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in harness.QUICK]


@pytest.mark.thorough
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_of_it(name: str, tmp_path: Path, base: Path) -> None:
    assert harness.run(name, tmp_path / "scene", base, harness.COMMANDS) == []
