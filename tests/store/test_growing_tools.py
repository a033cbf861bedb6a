"""Everything that takes a dataset takes one that grows: compared with an ordinary dataset of the same episodes."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest
from test_growing_compacting import STEPS, episode, recorded
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import app
from rlds_cli.dataset.rows import Rows
from rlds_cli.errors import DatasetNotFound, NameTaken, RldsError, WrongFingerprint
from rlds_cli.keep import pinning, reencoding, removing, repair
from rlds_cli.keep.verification import verify
from rlds_cli.look import report
from rlds_cli.look.checks import check
from rlds_cli.look.report.diff import compare
from rlds_cli.look.report.html import write_page

KEEPS = {
    "all": None,
    "fifo": rlds_cli.Fifo(episodes=9),
    "reservoir": rlds_cli.Reservoir(episodes=9, seed=1),
    "top": rlds_cli.Top(episodes=9),
}


def odd(k: int) -> dict:
    """Return an episode with something for checks and reports to find: NaN, texts, early terminations."""
    e = episode(k)
    length = 20 + k % 5
    found = {
        "observation": {"x": e["observation"][: length + 1], "seen": np.arange(length + 1) % 3 == 0},
        "action": np.sin(np.arange(length * 2, dtype=np.float32) + k).reshape(length, 2),
        "next": {
            "reward": np.cos(np.arange(length) * k),
            "terminated": np.arange(length) == (length - 1 if k % 3 else 5),
            "truncated": np.zeros(length, bool),
        },
        "said": [f"word {(k + t) % 4}" for t in range(length)],
        "episode": {"task": "ab"[k % 2], "score": k / 7},
    }
    if k % 10 == 7:
        found["observation"]["x"][3] = np.nan
    return found


@pytest.fixture(scope="module", params=KEEPS)
def pair(request, tmp_path_factory):
    """Return a dataset that grew, and an ordinary one of the episodes that it keeps."""
    home = tmp_path_factory.mktemp("home")
    with rlds_cli.writer("local/grown", keep=KEEPS[request.param], home=home) as w:
        for k in range(0, 40, 4):
            w.add_episodes(odd(i) for i in range(k, k + 4))
            w.commit()
    grown = rlds_cli.open_dataset("local/grown", home=home)
    plain = rlds_cli.create("local/plain", (grown.episode(k) for k in range(grown.num_episodes)), home=home)
    return grown, plain


@pytest.mark.thorough
def test_episodes_of_a_growing_dataset_make_an_ordinary_one_with_all_that_is_known_of_them(pair):
    grown, plain = pair
    assert plain.num_episodes == (40 if grown.num_episodes == 40 else 9)
    numbers = np.round(plain.episodes["score"] * 7).astype(int).tolist()
    for k, number in enumerate(numbers):
        want = odd(number)
        got = plain.episode(k)
        assert np.array_equal(got["observation", "x"], want["observation"]["x"][:-1], equal_nan=True)
        assert got["said"].tolist() == want["said"]
    assert plain.episodes["task"].tolist() == ["ab"[n % 2] for n in numbers]


def facts(value, *left_out: str) -> dict:
    plain = json.loads(json.dumps(dataclasses.asdict(value), default=str))
    return {name: v for name, v in plain.items() if name not in left_out}


@pytest.mark.thorough
def test_checks_find_the_same(pair):
    found = [facts(check(ds), "id", "version", "path", "fingerprint") for ds in pair]
    assert found[0] == found[1]
    codes = [f["code"] for f in found[0]["findings"]]
    assert "terminated-inside" in codes and any("finite" in f["check"] for f in found[0]["findings"])


def test_summaries_and_pages_say_the_same(pair):
    apart = ("id", "path", "fingerprint", "bytes", "created", "reader", "notes", "version", "keeps")
    one, other = (facts(report.summarise(ds, elements=True), *apart) for ds in pair)
    for of in (one, other):
        for f in of["fields"]:
            del f["bytes"]
        for f in of["findings"]:
            for name in ("places", "num_episodes", "episodes"):  # an ordinary dataset has them from its conversion
                del f[name]
    assert one == other
    grown = pair[0]
    said = report.summarise(grown)
    assert said.version == grown.version and said.counts.rows == int((grown.episodes["length"] + 1).sum())
    with (grown.path.parent / "page.html").open("wb") as f:
        write_page(grown, f)
    for k in (0, -1):
        described = [facts(report.describe_episode(ds, k), "id", "version", "start", "source") for ds in pair]
        assert described[0] == described[1]


def test_differences_between_both_kinds_and_of_episodes(pair):
    grown, plain = pair
    same = compare(grown, plain)
    assert same.same and same.close and {f.change for f in same.fields} == {"same"}
    home = grown.path.parents[2]
    other = rlds_cli.create(
        "local/other", (grown.episode(k) for k in range(1, grown.num_episodes)), force=True, home=home
    )
    found = compare(grown, other)
    assert not found.same and (found.episodes.num_removed, found.episodes.num_added) == (1, 0)


@pytest.mark.thorough
def test_two_versions_are_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    recorded(tmp_path, None, 20)
    found = compare("local/run#v1", "local/run#v2")
    assert (found.episodes.in_both, found.episodes.num_added, found.episodes.num_removed) == (10, 10, 0)
    run = CliRunner().invoke
    assert run(app, ["diff", "local/run", "local/run"]).exit_code == 0
    said = run(app, ["diff", "local/run#v1", "local/run#v2", "--json"])
    assert said.exit_code == 1 and json.loads(said.stdout)["episodes"]["num_added"] == 10
    page = run(app, ["inspect", "local/run#v1"])
    assert (
        page.output.startswith("local/run#v1 ")
        and "keeps every episode" in page.output
        and "10 episodes" in page.output
    )
    assert run(app, ["inspect", "local/run#v9"]).exit_code == 1


@pytest.mark.thorough
def test_commands_run_on_a_growing_dataset_with_gaps(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    ds = recorded(tmp_path, KEEPS["reservoir"], 60)
    run = CliRunner().invoke
    calls = (
        ["inspect", "local/run"], ["inspect", "local/run", "--stats"], ["inspect", "local/run", "--episode", "3"],
        ["check", "local/run"], ["verify", "local/run"], ["list", "local", "--local"], ["info", "local/run"], ["du"],
        ["path", "local/run"], ["gc", "--dry-run"], ["rm", "local/run", "--dry-run"],
        ["inspect", "local/run", "--html", str(tmp_path / "a.html")],
        ["inspect", "local/run", "--plot", "observation", "--episode", "2", "-o", str(tmp_path / "a.svg")],
    )  # fmt: skip
    for call in calls:
        said = run(app, call)
        assert said.exit_code == 0, (call, said.output, said.exception)
    assert "a uniform sample of 9 episodes" in run(app, ["inspect", "local/run"]).output
    assert json.loads(run(app, ["inspect", "local/run", "--json"]).stdout)["counts"]["rows"] == 9 * (STEPS + 1)
    assert ds.num_episodes == 9


def test_a_lock_pins_a_version_and_sync_finds_it_while_it_is_there(tmp_path):
    home, file = tmp_path / "home", tmp_path / "rlds.lock"
    recorded(home, None, 20)
    with pytest.raises(RldsError, match="it grows"):
        pinning.lock(["local/run"], home=home)
    text = pinning.lock(["local/run"], allow_unreproducible=True, home=home)
    (locked,) = json.loads(text)["datasets"]
    assert locked["version"] == 2 and locked["fingerprint"].startswith("rlds1:")
    file.write_text(text)
    recorded(home, None, 10)  # a third version
    (found,) = pinning.sync(file, home=home)
    assert (found.how, found.id) == ("here", "local/run")
    with pytest.raises(DatasetNotFound, match="cannot be made again: it grows"):
        pinning.sync(file, home=tmp_path / "elsewhere")
    recorded(tmp_path / "other", None, 10)
    with pytest.raises(WrongFingerprint, match="pins version 2 of local/run"):
        pinning.sync(file, home=tmp_path / "other")
    rlds_cli.create("local/run", [episode(0)], home=tmp_path / "third")
    with pytest.raises(WrongFingerprint, match="pins version 2 of local/run"):
        pinning.sync(file, home=tmp_path / "third")


def test_what_cannot_be_done_with_a_growing_dataset_says_so(tmp_path):
    recorded(tmp_path, None, 10)
    with pytest.raises(RldsError, match="local/run grows: its rows are memory-mapped"):
        reencoding.reencode("local/run", to="zarr", home=tmp_path)
    assert not reencoding.reencode("local/run", to="memmap", home=tmp_path).changed
    (removal,) = removing.plan_removal(["local/run"], home=tmp_path)
    assert removal.lost == "it grows, and its episodes are stored nowhere else" and removal.bytes > 0
    with pytest.raises(RldsError):
        rlds_cli.create("local/run", [episode(0)], home=tmp_path)
    with pytest.raises(RldsError):
        rlds_cli.make.importing.import_files(__file__, "local/run", home=tmp_path)


def test_a_damaged_episode_is_not_repaired_but_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RLDS_HOME", str(tmp_path))
    ds = recorded(tmp_path, None, 10)
    with (ds.path / "action/c/0/0").open("r+b") as f:
        f.seek(4 * (STEPS + 1) * 3)
        f.write(b"\xff")
    done = repair.repair("local/run")
    assert done.why.startswith("it grows: its episodes are nowhere else") and not done.now.ok
    found = verify("local/run")
    assert str(found.problems[0]).startswith("action: episode 3 ") and "ds.select" in found.hint
    good = rlds_cli.open_dataset("local/run").select(where="episode != 3")
    copied = rlds_cli.merge([good], "local/good")
    assert copied.episodes["number"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    (removal,) = removing.plan_removal(["local/good"])
    assert not removal.lost
    (removal, _) = removing.plan_removal(["local/good", "local/run"])
    assert "which it was merged from" in removal.lost


@pytest.mark.parametrize("keep", ["reservoir", "all"])
def test_datasets_and_episodes_go_to_other_processes_by_pickle(tmp_path, keep):
    ds = recorded(tmp_path, KEEPS[keep], 60)
    again = pickle.loads(pickle.dumps(ds))
    assert again.version == ds.version and np.array_equal(again.episodes["number"], ds.episodes["number"])
    rows = pickle.loads(pickle.dumps(Rows(ds)))
    want = np.concatenate([1000 * n + np.arange(STEPS + 1) for n in ds.episodes["number"]])
    assert np.array_equal(rows.between("observation", 0, len(rows))[:, 0], want)
    batch = pickle.loads(pickle.dumps(ds.episode(4)))
    assert batch.origin is not None
    made = rlds_cli.create("local/one", [batch], home=tmp_path)
    assert made.episodes["number"].tolist() == [ds.episodes["number"][4]]


def same(a, b) -> None:
    """Compare nested batches, dtypes included."""
    assert set(a) == set(b)
    for key in a:
        if hasattr(a[key], "items"):
            same(a[key], b[key])
        else:
            x, y = np.asarray(a[key]), np.asarray(b[key])
            assert x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f"), key


def test_arrays_transitions_and_statistics_are_those_of_the_ordinary_dataset(pair):
    grown, plain = pair
    for layout in ("ted", "d4rl", "ogbench"):
        same(grown.to_numpy(layout=layout), plain.to_numpy(layout=layout))
    same(grown[5:40], plain[5:40])
    same(grown[[30, 1, -1]], plain[[30, 1, -1]])
    for name in plain.stats:
        assert np.array_equal(grown.stats[name].mean, plain.stats[name].mean, equal_nan=True)
        assert tuple(grown.stats[name].histogram) == tuple(plain.stats[name].histogram)
    some = [ds.select(where="task == 'a'") for ds in pair]
    assert some[0].num_steps == some[1].num_steps
    same(some[0][0:9], some[1][0:9])


def test_a_dataset_that_is_being_written_is_neither_removed_nor_replaced(tmp_path):
    with rlds_cli.writer("local/run", home=tmp_path) as w:
        w.add_episodes([episode(0)])
        w.commit()
        with pytest.raises(NameTaken, match="being written"):
            removing.remove(["local/run"], home=tmp_path)
        with pytest.raises(NameTaken, match="being written"):
            rlds_cli.create("local/run", [episode(1)], force=True, home=tmp_path)
        with pytest.raises(NameTaken, match="being written"):
            rlds_cli.merge(["local/run"], "local/run", force=True, home=tmp_path)
        w.add_episodes([episode(1)])
    assert rlds_cli.open_dataset("local/run", home=tmp_path).num_episodes == 2
    removing.remove(["local/run"], home=tmp_path)
    assert not (tmp_path / "datasets/local/run").exists()
