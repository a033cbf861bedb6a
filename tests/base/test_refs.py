"""References: ``PLACE[#VERSION]`` is read in one way by Python, commands and addresses; tags name versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_growing_compacting import episode, recorded
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.base import refs
from rlds_cli.base.refs import Ref
from rlds_cli.cli import app
from rlds_cli.errors import DamagedDataset, DatasetNotFound, InvalidArgument, InvalidId, NameTaken
from rlds_cli.keep import compacting, reencoding, repair
from rlds_cli.keep.verification import verify

DIGITS = "7c1f09ab55e2"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def run(home: Path) -> rlds_cli.Dataset:
    """``local/run`` with 10 episodes at version 1 and 20 at version 2."""
    while (found := recorded(home, None, 20)).version != 2:  # a slow machine may commit between
        shutil.rmtree(found.path)
    return found


@pytest.fixture
def ordinary(home: Path) -> rlds_cli.Dataset:
    steps = {"observation": np.zeros((4, 2), np.float32), "action": np.zeros((3, 1), np.float32)}
    return rlds_cli.create("local/fixed", [steps | {"next/reward": np.ones(3, np.float32)}])


def command(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(w) for w in words])


# -- the text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local/a", Ref("local/a")),
        ("local/a#v0", Ref("local/a", version=0)),
        ("local/a@norm#v12", Ref("local/a@norm", version=12)),
        ("local/a#icra", Ref("local/a", tag="icra")),
        ("local/a#v1.2", Ref("local/a", tag="v1.2")),
        ("local/a#V3", Ref("local/a", tag="V3")),
        ("local/a#x_-.9", Ref("local/a", tag="x_-.9")),
        (f"local/a#rlds1:{DIGITS}", Ref("local/a", fingerprint=f"rlds1:{DIGITS}")),
        ("local/a#rlds1:7c1f-09ab-55e2", Ref("local/a", fingerprint=f"rlds1:{DIGITS}")),
        (f"s3://lab/a#rlds1:{'0' * 64}", Ref("s3://lab/a", fingerprint=f"rlds1:{'0' * 64}")),
        ("https://lab/a/?sig=1#v2", Ref("https://lab/a/?sig=1", version=2)),
        ("./a#b#v2", Ref("./a#b", version=2)),
        (Path("a#v2"), Ref(Path("a"), version=2)),
    ],
)
def test_a_reference_is_a_place_and_a_version(text: str | Path, expected: Ref) -> None:
    found = refs.parse(text)
    assert found == expected and type(found.place) is type(expected.place)
    assert refs.parse(str(found)) == Ref(str(found.place), found.version, found.tag, found.fingerprint)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    ["", "3", "v01", "_a", "-a", "a b", "é", "a/b", "a\n", "rlds1:7c1f", "rlds2:" + DIGITS, "rlds1:" + 65 * "0"],
)
def test_what_is_no_version_is_refused_with_the_forms(name: str) -> None:
    with pytest.raises(InvalidId, match="does not name a version") as error:
        refs.parse(f"local/a#{name}")
    assert "#v3" in str(error.value.hint)


def test_a_path_that_exists_is_a_place_as_a_whole(run: rlds_cli.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "odd#v1"
    run.path.rename(path)
    assert refs.parse(path) == Ref(path) and refs.parse("./odd#v1") == Ref("./odd#v1")
    assert rlds_cli.open_dataset(path).version == 2
    assert rlds_cli.open_dataset(f"{path}#v1").version == rlds_cli.open_dataset(Path(f"{path}#v1")).version == 1
    assert command("inspect", "./odd#v1").exit_code == 0


# -- versions of a dataset on this disk


@pytest.mark.thorough
def test_versions_open_by_number_fingerprint_and_tag(run: rlds_cli.Dataset) -> None:
    first = rlds_cli.open_dataset("local/run#v1")
    assert (first.version, first.num_episodes, rlds_cli.open_dataset("local/run").version) == (1, 10, 2)
    first.tag("first")
    digits = first.fingerprint.removeprefix("rlds1:")
    short = "-".join((digits[:4], digits[4:8], digits[8:12]))
    for name in ("first", first.fingerprint, f"rlds1:{short}"):
        assert rlds_cli.open_dataset(f"local/run#{name}").version == 1
        assert rlds_cli.open_dataset(f"{run.path}#{name}").version == 1
    assert rlds_cli.open_dataset(f"local/run#{run.fingerprint}").version == 2


def test_of_several_versions_with_a_fingerprint_the_newest_opens(run: rlds_cli.Dataset) -> None:
    first = rlds_cli.open_dataset("local/run#v1").fingerprint
    compacting.clear("local/run")
    with rlds_cli.writer("local/run") as w:
        w.add_episodes(episode(k) for k in range(20))
    newest = rlds_cli.open_dataset("local/run").version
    assert rlds_cli.open_dataset(f"local/run#{run.fingerprint}").version == newest > 2
    with pytest.raises(DatasetNotFound, match="No version"):
        rlds_cli.open_dataset(f"local/run#{'rlds1:' + '0' * 64}")
    assert rlds_cli.open_dataset(f"local/run#{first}").version == 1  # `run` holds its rows


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9", "no version 9; the newest is 2"),
        ("icra", "no tag icra"),
        ("rlds1:" + "0" * 12, "No version of .* has the"),
    ],
)
def test_versions_that_do_not_exist_are_named(run: rlds_cli.Dataset, name: str, message: str) -> None:
    with pytest.raises(DatasetNotFound, match=message):
        rlds_cli.open_dataset(f"local/run#{name}")
    for verb in ("inspect", "check", "verify", "lock"):
        done = command(verb, f"local/run#{name}")
        assert done.exit_code == 1 and not isinstance(done.exception, AssertionError)


@pytest.mark.thorough
def test_a_dataset_that_does_not_grow_has_version_1(ordinary: rlds_cli.Dataset) -> None:
    assert ordinary.version == 1
    for name in ("v1", ordinary.fingerprint):
        assert rlds_cli.open_dataset(f"local/fixed#{name}").fingerprint == ordinary.fingerprint
    with pytest.raises(DatasetNotFound, match="no version 2; version 1 is the only one"):
        rlds_cli.open_dataset("local/fixed#v2")


@pytest.mark.thorough
def test_commands_read_the_version(run: rlds_cli.Dataset, tmp_path: Path) -> None:
    first = rlds_cli.open_dataset("local/run#v1")
    assert json.loads(command("inspect", "local/run#v1", "--json").stdout)["counts"]["episodes"] == 10
    assert json.loads(command("check", "local/run#v1", "--json").stdout)["fingerprint"] == first.fingerprint
    assert command("info", "local/run#v1", "--fingerprint").stdout.strip() == first.fingerprint
    assert command("info", "local/run#v1").stdout.startswith("local/run#v1   here: ")
    assert [v["number"] for v in json.loads(command("log", "local/run#v1", "--json").stdout)] == [0, 1]
    assert json.loads(command("verify", "local/run#v1", "--json").stdout)[0]["fingerprint"] == first.fingerprint
    assert command("diff", "local/run#v1", f"local/run#{first.fingerprint}").exit_code == 0
    assert command("diff", "local/run#v1", "local/run#v2").exit_code == 1
    locked = json.loads(command("lock", "local/run#v1", "--allow-unreproducible").stdout)["datasets"][0]
    assert (locked["version"], locked["fingerprint"]) == (1, first.fingerprint)
    pushed = json.loads(command("push", "local/run#v1", tmp_path / "store", "--no-pages", "--json").stdout)
    assert (pushed["version"], pushed["fingerprint"]) == (1, first.fingerprint)
    assert command("merge", "local/run#v1", "--name", "local/merged").exit_code == 0
    assert rlds_cli.open_dataset("local/merged").num_episodes == 10
    assert (
        command("preprocess", "local/run#v1", "--fn", "scale_reward", "--arg", "scale=2", "--name", "scaled").exit_code
        == 0
    )
    assert rlds_cli.open_dataset("local/run@scaled").num_episodes == 10


def test_an_earlier_version_of_an_ordinary_dataset_has_its_own_directory(ordinary: rlds_cli.Dataset) -> None:
    ordinary.tag("first")
    second = ordinary.label(quality="good")
    earlier = Path(command("path", "local/fixed#first").stdout.strip())
    assert earlier != second.path and command("path", "local/fixed#v2").stdout.strip() == str(second.path)
    assert rlds_cli.open_dataset(earlier).fingerprint == ordinary.fingerprint
    assert "columns" not in command("info", "local/fixed#first").stdout
    for shown in (command("inspect", "local/fixed#first"), command("verify", "local/fixed#v1")):
        assert shown.stdout.startswith("local/fixed#v1 ")
    for asked, number in (("#v1", 1), ("", 2)):
        assert f"\nlocal/fixed#v{number}: 0 errors" in command("check", f"local/fixed{asked}").stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "words",
    [
        ("du", "local/run#v1"),
        ("rm", "local/run#v1", "--yes"),
        ("convert", "local/run#v1", "--to", "memmap"),
        ("compact", "local/run#v1"),
        ("clear", "local/run#v1", "--yes"),
        ("tag", "local/run#v1", "--delete", "x"),
        ("append", "local/run#v1", "none.csv"),
        ("verify", "local/run#v1", "--fix"),
    ],
    ids=lambda words: words[0],
)
def test_commands_about_a_whole_dataset_refuse_a_version(run: rlds_cli.Dataset, words: tuple[str, ...]) -> None:
    done = command(*words)
    assert done.exit_code == 1 and "names a version" in str(done.exception or done.output)
    assert rlds_cli.open_dataset("local/run").num_episodes == 20
    assert "keeps all versions in" in str(command("path", "local/run#v1").exception)


# -- at addresses


def test_an_address_opens_the_version_that_is_there(run: rlds_cli.Dataset, tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    run.tag("icra")
    rlds_cli.push("local/run", store, pages=False)
    assert rlds_cli.open_dataset(f"{store}#v2", home=other).fingerprint == run.fingerprint
    with pytest.raises(DatasetNotFound, match=r"has version 2; version 1 was asked for"):
        rlds_cli.open_dataset(f"{store}#v1", home=other)
    with pytest.raises(DatasetNotFound, match=r"has version 2; version 1 was asked for"):
        rlds_cli.download(f"{store}#v1", name="local/mine", home=other)
    assert rlds_cli.open_dataset(f"{store}#icra", home=other).fingerprint == run.fingerprint
    assert rlds_cli.download(f"{store}#v2", name="local/mine", home=other).fingerprint == run.fingerprint
    with pytest.raises(InvalidArgument, match="names a version"):
        rlds_cli.push("local/run", f"{store}#v2")


@pytest.mark.thorough
def test_an_ordinary_dataset_at_an_address_has_version_1(ordinary: rlds_cli.Dataset, tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    rlds_cli.push("local/fixed", store, pages=False)
    assert rlds_cli.open_dataset(f"{store}#v1", home=other).fingerprint == ordinary.fingerprint
    with pytest.raises(DatasetNotFound, match="has version 1; version 2"):
        rlds_cli.open_dataset(f"{store}#v2", home=other)


# -- tags


def test_the_command_tags_lists_moves_and_deletes(run: rlds_cli.Dataset) -> None:
    assert command("tag", "local/run").output == "no tags\n"
    assert command("tag", "local/run", "icra").exit_code == 0
    assert command("tag", "local/run#v1", "first").exit_code == 0
    assert command("tag", "local/run").output == "first  version 1\nicra  version 2\n"
    assert json.loads(command("tag", "local/run", "--json").stdout) == {"first": 1, "icra": 2}
    assert json.loads(command("tag", "local/run#icra", "--json").stdout) == {"icra": 2}
    taken = command("tag", "local/run", "first")
    assert taken.exit_code == 1 and rlds_cli.open_dataset("local/run#first").version == 1
    assert command("tag", "local/run", "first", "--force").exit_code == 0
    assert rlds_cli.open_dataset("local/run#first").version == 2
    assert command("tag", "local/run", "--delete", "first").exit_code == 0
    assert command("tag", "local/run", "--delete", "first").exit_code == 1
    assert dict(run.tags) == {"icra": 2}
    assert command("tag", "local/run#v9", "late").exit_code == 1
    assert command("tag", "local/run", "a", "--delete", "b").exit_code == 2


def test_tags_in_python(run: rlds_cli.Dataset) -> None:
    run.tag("a")
    run.tag("a")  # the same version
    first = rlds_cli.open_dataset("local/run#v1")
    with pytest.raises(NameTaken, match="version 2 has the tag a"):
        first.tag("a")
    first.tag("a", force=True)
    assert run.tags == first.tags == {"a": 1}
    for name in ("", "v3", "3", "a b", "a/b", "a#b", "rlds1:" + DIGITS):
        with pytest.raises(InvalidId, match="cannot be a tag"):
            run.tag(name)
    with pytest.raises(InvalidArgument, match="a selection cannot be tagged"):
        run.select(episodes=[0]).tag("b")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["[]", '{"a": "1"}', '{"v1": 1}', '{"a": -1}', '{"a": true}', "{", '{"a": 1'])
def test_a_file_of_other_things_is_damaged(run: rlds_cli.Dataset, text: str) -> None:
    (run.path / "tags.json").write_text(text)
    with pytest.raises(DamagedDataset, match="tags"):
        _ = run.tags
    assert rlds_cli.open_dataset("local/run").version == 2


@pytest.mark.thorough
def test_tags_are_no_part_of_an_ordinary_dataset(ordinary: rlds_cli.Dataset, tmp_path: Path) -> None:
    before = ordinary.fingerprint
    ordinary.tag("icra")
    assert verify("local/fixed").ok
    rlds_cli.push("local/fixed", tmp_path / "store", pages=False)
    got = rlds_cli.download(str(tmp_path / "store"), name="local/got", home=tmp_path / "other")
    assert got.fingerprint == before and got.tags == {}
    reencoding.reencode("local/fixed", to="zarr")
    again = rlds_cli.open_dataset("local/fixed#icra")
    assert (again.fingerprint, again.encoding, again.tags) == (before, "zarr", {"icra": 1})
    again.tag("later")
    assert verify("local/fixed").ok


def test_a_repaired_dataset_keeps_its_tags(home: Path) -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl")
    ds.tag("icra")
    rows = ds.path / "action/c/0/0"
    rows.chmod(0o644)
    rows.write_bytes(bytes([rows.read_bytes()[0] ^ 1]) + rows.read_bytes()[1:])
    assert not verify("sample/pendulum-d4rl").ok
    assert repair.repair("sample/pendulum-d4rl").now.ok
    assert rlds_cli.open_dataset("sample/pendulum-d4rl#icra").fingerprint == ds.fingerprint


@pytest.mark.thorough
def test_a_dataset_of_the_registry_is_tagged(home: Path) -> None:
    rlds_cli.download("sample/pendulum-d4rl").tag("icra")
    assert rlds_cli.open_dataset("sample/pendulum-d4rl#icra").version == 1
