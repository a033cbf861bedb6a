"""The fingerprint and the ids of growing datasets: those of an ordinary dataset of the same episodes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from growing_model import ENDS, FIELDS, Episode, draw, slow_fingerprint

import rlds_cli
from rlds_cli import Fifo, Top
from rlds_cli.keep import compacting
from rlds_cli.store import commits
from rlds_cli.store.growing import logs
from rlds_cli.store.growing.table import LoggedTable


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))


def some(count: int, *, seed: int = 0) -> list[Episode]:
    rng = np.random.default_rng(seed)
    return [draw(rng, 1 + k % 5, end=ENDS[k % 2], observed=k % 4 != 1) for k in range(count)]


def recorded(name: str, episodes: list[Episode], *, commits: int = 3, **how: Any) -> rlds_cli.Dataset:
    with rlds_cli.writer(name, fields=FIELDS, durable=False, **how) as w:
        for k, e in enumerate(episodes):
            w.add_episodes([e.item()])
            if k % commits == 0:
                w.commit()
    return rlds_cli.open_dataset(name)


def created(name: str, episodes: list[Episode]) -> rlds_cli.Dataset:
    return rlds_cli.create(name, [e.item() for e in episodes])


def ids(ds: rlds_cli.Dataset) -> list[bytes]:
    return [bytes(row) for row in ds.episodes["id"]]


@pytest.mark.thorough
def test_it_is_that_of_an_ordinary_dataset_of_the_same_episodes_in_the_same_order() -> None:
    episodes = some(12)
    ds = recorded("local/grown", episodes)
    assert ds.fingerprint == created("local/plain", episodes).fingerprint == slow_fingerprint(episodes)
    assert recorded("local/back", episodes[::-1]).fingerprint == slow_fingerprint(episodes[::-1]) != ds.fingerprint
    chosen = np.array([7, 2, 3])
    assert ds.select(episodes=chosen).fingerprint == slow_fingerprint([episodes[k] for k in chosen])


@pytest.mark.thorough
def test_it_follows_departures_and_survives_compacting() -> None:
    episodes = some(12)
    ds = recorded("local/few", episodes, keep=Fifo(episodes=4))
    assert ds.fingerprint == slow_fingerprint(episodes[-4:])
    best = recorded("local/top", episodes, keep=Top(episodes=5))
    kept = sorted(sorted(range(12), key=lambda k: (-episodes[k].total_reward, k))[:5])
    assert best.store.table.has_gaps
    wanted = slow_fingerprint([episodes[k] for k in kept])
    assert best.fingerprint == wanted
    some_of_them = slow_fingerprint([episodes[kept[k]] for k in (1, 3)])
    assert best.select(episodes=np.array([1, 3])).fingerprint == some_of_them
    before = ids(best)
    compacting.compact("local/top")
    after = rlds_cli.open_dataset("local/top")
    assert not after.store.table.has_gaps and after.fingerprint == wanted and ids(after) == before
    assert after.store.version_id != best.store.version_id


@pytest.mark.thorough
def test_columns_splits_and_seeds_of_departed_episodes_do_not_count() -> None:
    rng = np.random.default_rng(1)
    items = [draw(rng, 3).item() for _ in range(4)]
    items[0]["episode"] = {"only": "here", "mixed": 0.5}
    items[1]["episode"] = {"mixed": 1}
    items[3]["episode"] = {"mixed": 2, "task": "push"}
    with rlds_cli.writer("local/grown", fields=FIELDS, keep=Fifo(episodes=3), durable=False) as w:
        for item in items:
            w.add_episodes([item])
            w.commit()
    whole = rlds_cli.open_dataset("local/grown")
    assert whole.fingerprint == rlds_cli.create("local/plain", items[1:]).fingerprint


@pytest.mark.thorough
def test_it_takes_over_seeds_options_splits_and_columns_of_a_dataset() -> None:
    of = rlds_cli.create("local/of", [e.item() for e in some(6)])
    with rlds_cli.writer("local/grown", durable=False) as w:
        w.add_episodes(of.episode(k) for k in range(6))
    grown = rlds_cli.open_dataset("local/grown")
    assert grown.fingerprint == of.fingerprint
    assert ids(grown) == ids(of)


@pytest.mark.thorough
def test_large_rows_have_digests_of_their_own() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
    item = {"observation": images, "action": np.zeros(2), "next/terminated": [False, True]}
    with rlds_cli.writer("local/grown", durable=False) as w:
        w.add_episodes([item])
    ds = rlds_cli.open_dataset("local/grown")
    rows = b"".join(hashlib.sha256(row.tobytes()).digest() for row in images)
    assert ds.store.digests("observation").tobytes() == hashlib.sha256(rows).digest()
    assert ds.fingerprint == rlds_cli.create("local/plain", [item]).fingerprint


@pytest.mark.thorough
def test_several_writers_give_the_order_of_commits() -> None:
    episodes = some(6)
    how: dict[str, Any] = {"fields": FIELDS, "shared": True, "durable": False}
    with rlds_cli.writer("local/run", **how) as a, rlds_cli.writer("local/run", **how) as b:
        for k in (0, 1, 2):
            for w, e in ((a, episodes[2 * k]), (b, episodes[2 * k + 1])):
                w.add_episodes([e.item()])
                w.commit()
    assert rlds_cli.open_dataset("local/run").fingerprint == slow_fingerprint(episodes)


# -- ids


@pytest.mark.thorough
def test_each_episode_gets_an_id_of_its_own_and_keeps_it() -> None:
    episodes = some(3)
    with rlds_cli.writer("local/run", fields=FIELDS, durable=False) as w:
        w.add_episodes([e.item() for e in (*episodes, episodes[0])])
        w.commit()
        first = ids(w.dataset())
        assert len(set(first)) == 4 and all(any(id) for id in first)
        w.add_episodes([episodes[1].item()])
    assert ids(rlds_cli.open_dataset("local/run"))[:4] == first


@pytest.mark.thorough
def test_an_episode_that_goes_on_keeps_its_id() -> None:
    e = some(5)[4]
    with rlds_cli.writer("local/run", fields=FIELDS, durable=False) as w:
        found = []
        for t in range(e.length):
            w.add(**e.step(t), terminated=t == e.length - 1)
            w.commit()
            found += ids(w.dataset())
    assert len(found) == e.length > 2 and len(set(found)) == 1


@pytest.mark.thorough
def test_an_episode_that_is_added_twice_gets_another_id_the_second_time() -> None:
    of = created("local/of", some(2))
    with rlds_cli.writer("local/run", durable=False) as w:
        w.add_episodes([of.episode(0), of.episode(1), of.episode(0)])
        w.commit()
        w.add_episodes([of.episode(1)])
        w.commit()
        found = ids(w.dataset())
        assert found[:2] == ids(of) and len(set(found)) == 4
        w.clear()
        w.add_episodes([of.episode(1)])
    assert ids(rlds_cli.open_dataset("local/run")) == ids(of)[1:]


# -- logs and versions


@pytest.mark.thorough
def test_a_commit_writes_the_digests_of_its_own_episodes_alone() -> None:
    episodes = some(6)
    width = len(FIELDS) * logs.DIGEST
    with rlds_cli.writer("local/run", fields=FIELDS, durable=False) as w:
        w.add_episodes([e.item() for e in episodes[:4]])
        w.commit()
        file = w.dataset().path / logs.DIGESTS
        before = file.read_bytes()
        assert len(before) == 4 * width
        w.add_episodes([e.item() for e in episodes[4:]])
        w.commit()
        assert file.read_bytes()[: len(before)] == before and file.stat().st_size == 6 * width
    store = rlds_cli.open_dataset("local/run").store
    for name, wanted in (("action", [e.rows["action"].tobytes() for e in episodes]),):
        assert [bytes(d) for d in store.digests(name)] == [hashlib.sha256(v).digest() for v in wanted]


@pytest.mark.thorough
def test_a_version_id_is_of_one_version() -> None:
    with rlds_cli.writer("local/run", fields=FIELDS, durable=False) as w:
        seen = []
        for e in some(3):
            w.add_episodes([e.item()])
            w.commit()
            seen.append(w.dataset().store.version_id)
    path = rlds_cli.open_dataset("local/run").path
    assert len(set(seen)) == 3
    assert [LoggedTable.open(path, n).version_id for n in (1, 2, 3)] == seen
    record = commits.at(path, 2).packed()
    assert seen[1] == hashlib.sha256(record).hexdigest()
