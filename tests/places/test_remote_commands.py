"""Commands on datasets at an address: what they show, and what they say that they fetched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.look import checks, report
from rlds_cli.share.pushing import push


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of somebody who has no dataset, which commands use."""
    return tmp_path / "other"


def pushed(store: Path, *, ref: str = "local/arm", seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    episodes = [
        {
            "observation": rng.standard_normal((n + 1, 6), np.float32),
            "action": rng.standard_normal((n, 2), np.float32),
            "next/reward": np.arange(n) / 3,
            "text": ["go left" if k % 2 else "go right" for k in range(n)],
        }
        for n in (30, 50, 41)
    ]
    ds = rlds_cli.create(ref, episodes, force=True)
    push(ds.id, store)
    return ds


def run(*args: str, other: Path, ok: int = 0) -> tuple[str, str]:
    done = run_rlds(*args, "--home", str(other))
    assert done.returncode == ok, done.stderr
    return done.stdout.decode(), done.stderr.decode()


def test_commands_say_what_they_fetched(tmp_path: Path, other: Path) -> None:
    store = tmp_path / "store"
    ds = pushed(store)
    for command, shown in (
        (("inspect", str(store)), "local/arm"),
        (("inspect", str(store), "--episode", "1"), "observation"),
        (("check", "--quick", str(store)), "local/arm"),
        (("info", str(store)), f"at {store}"),
        (("list", str(tmp_path)), "local/arm"),
        (("diff", str(store), str(ds.path)), "the same content"),
    ):
        out, err = run(*command, other=other)
        assert shown in out, command
        assert "fetched" in err and str(tmp_path) in err, command
    assert not (other / "datasets").exists()


@pytest.mark.thorough
def test_the_same_is_shown_as_of_the_dataset_itself(tmp_path: Path, other: Path) -> None:
    store = tmp_path / "store"
    ds = pushed(store)
    there = rlds_cli.open_dataset(store, home=other)
    assert there.store.address
    apart = ("path", "bytes")
    mine, its = report.summarise(there), report.summarise(ds)
    for name in type(mine).__dataclass_fields__:
        if name not in (*apart, "fields"):
            assert getattr(mine, name) == getattr(its, name), name
    assert [f.name for f in mine.fields] == [f.name for f in its.fields]
    assert checks.check(there).findings == checks.check(ds).findings
    assert checks.check(there, quick=True).findings == checks.quick(ds)
    assert report.describe_episode(there, 2) == report.describe_episode(ds, 2)


def test_list_shows_what_lies_below_an_address(tmp_path: Path, other: Path) -> None:
    one, two = pushed(tmp_path / "all/one", seed=1), pushed(tmp_path / "all/two", ref="local/leg", seed=2)
    (tmp_path / "all/nothing").mkdir()
    found = json.loads(run("list", str(tmp_path / "all"), "--json", other=other)[0])
    assert {d["id"]: (d["fingerprint"], Path(d["address"]).name) for d in found} == {
        "local/arm": (one.fingerprint, "one"),
        "local/leg": (two.fingerprint, "two"),
    }
    _, err = run("list", str(tmp_path / "all/nothing"), other=other, ok=1)
    assert "No dataset is at" in err


def test_two_addresses_are_compared(tmp_path: Path, other: Path) -> None:
    pushed(tmp_path / "one", seed=1)
    pushed(tmp_path / "two", seed=2)
    out, _ = run("diff", str(tmp_path / "one"), str(tmp_path / "two"), other=other, ok=1)
    assert "observation" in out
