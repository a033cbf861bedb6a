"""The benchmark of planted faults: its generator stays as it was, kinds have one name, and LeRobot's files hold all."""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.look import CODES

HERE = Path(__file__).parents[2] / "benchmarks" / "defects"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmark, which is a directory that Python runs."""
    monkeypatch.syspath_prepend(str(HERE))
    yield import_module
    for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(HERE))]:
        del sys.modules[name]


def test_the_generator_is_the_one_that_no_threshold_was_chosen_by() -> None:
    """A change of its dynamics after a measure was looked at with it would make the tables worthless."""
    digest = hashlib.sha256((HERE / "generator.py").read_bytes()).hexdigest()
    assert digest == "13f0023b66c04d989e0a501bf631bccdff9861fb0770ca160e42fa7a5950fddd"


def test_kinds_of_all_checkers_have_the_names_of_ours(load: Any) -> None:
    kinds = load("planting").CODES
    assert len(set(kinds)) == 20
    assert set(kinds) <= set(CODES)
    for peer in load("peers").PEERS:
        assert peer.looks_for <= set(kinds), peer.name


def test_what_a_checker_names_for_most_episodes_is_left_out(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = load("peers")
    said = [("everywhere", k) for k in range(9)] + [("gap", 3), ("gap", 4)]
    peer = peers.Peer(
        name="some", commands=lambda dataset, out: (), named=lambda out: iter(said), kinds={"gap": ("time-jump",)}
    )
    found = peers.found_by(peer, HERE, 12)
    assert found == {"gap": {3, 4}}
    assert peers.in_our_words(peer, found) == {"time-jump": {3, 4}}
    with pytest.raises(peers.NotRun, match="not installed"):
        peers.found_by(
            peers.Peer(name="x", commands=lambda d, o: (["no-such-checker"],), named=lambda o: iter(()), kinds={}),
            HERE,
            1,
        )


@pytest.mark.slow
def test_files_of_lerobot_hold_the_episodes(load: Any, tmp_path: Path) -> None:
    """Angles are degrees, stamps whole periods, and a jump of 10 periods stays one."""
    generator = load("generator")
    made = [generator.episode(np.random.default_rng(k), k) for k in range(3)]
    stamp = made[1].stamp.copy()
    stamp[20:] += 10 / generator.RATE
    made[1] = generator.replace(made[1], stamp=stamp)
    ds = rlds_cli.import_files(load("lerobot_files").write_lerobot(tmp_path / "arm", made), "local/arm")
    assert ds.episodes["task"].tolist() == [e.task for e in made]
    for k, e in enumerate(made):
        got, n = ds.episode(k), len(e.action)
        np.testing.assert_allclose(got["observation/state"][:n, :6], np.rad2deg(e.joints), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(got["action"][:, 6], e.action[:, 6], rtol=1e-6)
        periods = np.rint(np.diff(got["timestamp"].reshape(-1)) * 15)
        assert periods[19] == (11 if k == 1 else 1)
        assert (np.delete(periods, 19) == 1).all()
        seen = np.asarray(got["observation/images/front"][:n], np.float64)
        assert np.abs(seen - e.cameras["front"]).mean() < 12  # H.264 loses colour and noise
