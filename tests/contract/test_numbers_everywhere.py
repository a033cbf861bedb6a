"""Everything that takes or gives numbers of episodes, over a dataset that grew and was changed, and a fresh one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numbers_model import CONSUMERS, FRESH, GROWN, History

import rlds_cli
from rlds_cli import preprocess

pytestmark = pytest.mark.filterwarnings("ignore:where=")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a dataset that grew, was labelled and dropped from, and a fresh one with the same episodes."""
    home = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(home))
        history = History(1)
        history.go(4)
        history.fresh()
    return home


def results(name: str, directory: Path) -> list[Any]:
    """Return what a consumer says of both datasets."""
    found = []
    for id in (GROWN, FRESH):
        (directory / id).mkdir(parents=True)
        more = [directory / id] if len(inspect.signature(CONSUMERS[name]).parameters) > 1 else []
        found.append(CONSUMERS[name](rlds_cli.open_dataset(id), *more))
    return found


@pytest.mark.parametrize("name", CONSUMERS)
def test_no_consumer_tells_a_dataset_that_grew_from_a_fresh_one(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLDS_HOME", str(made))
    grown, fresh = results(name, tmp_path)
    assert grown == fresh


def test_the_dataset_has_dropped_episodes_before_and_between_others(made: Path) -> None:
    """Else the tests above prove nothing: where no episode is gone, all numbers are the same."""
    ds = rlds_cli.open_dataset(made / "datasets" / GROWN)
    assert ds.store.table.dropped >= 2 and ds.store.table.has_gaps and ds.num_episodes >= 4
    assert np.diff(ds.episodes["k"]).max() > 1
    assert len(ds.versions) > 5


@pytest.mark.slow
@settings(max_examples=8)  # of some seconds each
@given(st.integers(0, 2**31), st.integers(0, 12))
def test_no_consumer_tells_them_apart_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int
) -> None:
    directory = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(directory / "home"))
        history = History(seed)
        history.go(steps)
        history.fresh()
        for name in CONSUMERS:
            grown, fresh = results(name, directory / name)
            assert grown == fresh, name


def left_out(ep: Any) -> Any:
    """Leave out every fifth episode, and double what others did."""
    if ep["episode/k"] % 5 == 3:
        return None
    ep["action"] = ep["action"] * 2
    return ep


@pytest.mark.slow
@settings(max_examples=8)
@given(st.integers(0, 2**31))
def test_what_a_second_run_takes_over_is_what_a_run_of_all_makes(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("numbers")))
        history = History(seed, size=8)
        for _ in range(3):
            history.go(2)
            again = preprocess.run(history.dataset, left_out, "made", jobs=0, progress=False)
            assert again.episodes["k"].tolist() == [
                e["episode"]["k"] for e in history.episodes if e["episode"]["k"] % 5 != 3
            ]
            for k, number in enumerate(again.episodes["k"].tolist()):
                assert (again.episode(k)["action"] == 2 * number).all()
        whole = preprocess.run(history.dataset, left_out, "made", jobs=0, progress=False, force=True)
        assert whole.fingerprint == again.fingerprint
