"""Several users of one home, of which one opened a dataset at an address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from test_safe_files import stranger

import rlds_cli

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody may reach; those above ``tmp_path`` are closed."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_second_user_reads_what_the_first_one_opened(
    public: Path, mode: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3001, 64), np.uint8)
    rlds_cli.create("local/arm", [{"observation": rows, "action": np.zeros((3000, 1))}])
    rlds_cli.push("local/arm", public / "store")
    home, own = public / "home", public / "own"
    assert (rlds_cli.open_dataset(public / "store", home=home)[:100]["observation"] == rows[:100]).all()
    for made in (own, home):
        made.mkdir(exist_ok=True)
        made.chmod(mode if made == home else 0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own))
    with stranger():
        second = rlds_cli.open_dataset(public / "store", home=home)
        assert (second[:3000]["observation"] == rows[:3000]).all()
        assert second.store.path.is_relative_to(home if mode == 0o777 else own)
    assert any(str(own) in m for m in caplog.messages) == (mode == 0o755)
