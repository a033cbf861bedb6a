"""Commands that change a dataset: what they take, and what they refuse."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import main, selecting
from rlds_cli.cli.commands import app
from rlds_cli.dataset import Dataset
from rlds_cli.errors import (
    DatasetNotFound,
    InvalidArgument,
    InvalidEpisode,
    InvalidExpression,
    NameTaken,
    NoPermission,
    RldsError,
)
from rlds_cli.keep import compacting
from rlds_cli.keep.verification import verify
from rlds_cli.share.pushing import push
from rlds_cli.store import Change

assert main


@pytest.fixture(scope="module")
def home_with_arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("arm")
    episodes = [
        {"observation": np.full((t + 1, 2), t, np.float32), "action": np.zeros((t, 1), np.float32),
         "next": {"reward": np.ones(t, np.float32), "terminated": True}, "episode": {"take": t, "success": t % 2 == 0}}
        for t in (3, 4, 5, 6)
    ]  # fmt: skip
    rlds_cli.create("local/arm", episodes, home=home)
    return home


@pytest.fixture
def arm(home_with_arm: Path, home: Path) -> Dataset:
    shutil.copytree(home_with_arm, home)
    return rlds_cli.open_dataset("local/arm")


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found.output


def test_a_file_of_labels_names_episodes_of_the_whole_dataset(arm: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("episode, quality,good\n2, fine,TRUE\n0,bad,false\n")
    run("label", "local/arm", "--from", str(file))
    e = rlds_cli.open_dataset("local/arm").episodes
    assert e["quality"].tolist() == ["bad", None, "fine", None]
    assert e["good"].tolist() == [False, None, True, None]
    assert "label --from labels.csv (2 episodes)\n" in run("log", "local/arm")
    with pytest.raises(InvalidArgument, match="names the episodes"):
        run("label", "local/arm", "--from", str(file), "--where", "take > 3")


def test_texts_stay_texts_and_numbers_numbers(arm: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("episode,operator,speed\n0,ann,1.5\n1,7,nan\n2,,-inf\n3,bob,2\n")
    run("label", "local/arm", "--from", str(file))
    e = rlds_cli.open_dataset("local/arm").episodes
    assert e["operator"].tolist() == ["ann", "7", None, "bob"]
    np.testing.assert_array_equal(e["speed"], [1.5, np.nan, -np.inf, 2])
    file.write_text("episode,operator\n0,12\n")  # all of them look like numbers, in a column of texts
    with pytest.raises(InvalidArgument, match="names episodes by their numbers"):  # of v1, or of v2?
        run("label", "local/arm", "--from", str(file))
    run("label", "local/arm#v2", "--from", str(file))
    run("label", "local/arm", "--episodes", "1", "operator=true")
    run("label", "local/arm", "--episodes", "3", "operator=null")
    assert rlds_cli.open_dataset("local/arm").episodes["operator"].tolist() == ["12", "true", None, None]
    with pytest.raises(InvalidArgument, match="q is set twice: '1' and '2'"):
        run("label", "local/arm", "q=1", "q=2")
    with pytest.raises(InvalidArgument, match="license is set twice"):
        run("label", "local/arm", "--set", "license=MIT", "--set", "license=BSD")


def test_a_file_of_labels_that_is_wrong(arm: Dataset, tmp_path: Path) -> None:
    for text, why in (
        ("episode,q\n1,a,b\n", "more values"),
        ("episode,q\n1\n", "fewer values"),
        ("episode,q\n9,a\n", "no episode 9"),
        ("episode,q\n1,a\n1,b\n", "twice"),
        ("q\na\n", "needs a column"),
        ("id,q\n00,a\n", "no episode of the id"),
        (",episode,q\n0,1,a\n", "column 1 has no name"),
        ("episode,q\n", "no line below"),
        ("episode,q,q\n1,a,b\n", "two columns 'q'"),
    ):
        (tmp_path / "labels.csv").write_text(text)
        with pytest.raises(RldsError, match=why):
            run("label", "local/arm", "--from", str(tmp_path / "labels.csv"))
    assert rlds_cli.open_dataset("local/arm").version == 1


def test_columns_whose_names_are_no_words(arm: Dataset) -> None:
    """Without backquotes, take / length is 1 in each episode."""
    run("label", "local/arm", "take/length=0", "success rate=1.5")
    run("label", "local/arm", "--episodes", "2", "take/length=7")
    where = "`take/length` > 3 and `success rate` > 1"
    run("label", "local/arm", "--where", where, "my quality=rather good")
    e = rlds_cli.open_dataset("local/arm").episodes
    assert e["my quality"].tolist() == [None, None, "rather good", None]
    for text in ("take/length > 0.5", "take / length > 0.5", "success rate > 1"):
        with pytest.raises(InvalidExpression, match=r"needs backquotes"):
            run("label", "local/arm", "--where", text, "quality=bad")
    typed = ["label", "--where", where, "my quality=rather good"]
    assert shlex.split(changes()[-1])[:4] == typed
    for name in ("a`b", "a\nb"):
        with pytest.raises(InvalidEpisode, match="expressions could not name it"):
            arm.label(**{name: 1})


@pytest.mark.thorough
def test_any_version_is_verified(arm: Dataset) -> None:
    labelled = arm.label(quality="bad")
    one, newest = verify("local/arm#v1"), verify("local/arm")
    assert (one.ok, one.fingerprint) == (True, arm.fingerprint)
    assert (newest.ok, newest.fingerprint) == (True, labelled.fingerprint) and one.fingerprint != newest.fingerprint
    with pytest.raises(DatasetNotFound, match="no version 9"):
        verify("local/arm#v9")


def test_a_column_keeps_its_type(arm: Dataset) -> None:
    with pytest.raises(InvalidArgument, match="of type bool"):
        arm.label(success="yes")
    run("label", "local/arm", "success=True")
    assert rlds_cli.open_dataset("local/arm").episodes["success"].tolist() == [True] * 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fact", ["fps=fast", "fps=-1", "fps=0", "license=3", "speed=3"])
def test_facts_that_are_none(arm: Dataset, fact: str) -> None:
    with pytest.raises(InvalidArgument):
        run("label", "local/arm", "--set", fact)


def test_nothing_that_is_selected_is_nothing_to_change(arm: Dataset) -> None:
    with pytest.raises(InvalidArgument, match="nothing to label"):
        arm.select(episodes=[]).label(quality="bad")
    with pytest.raises(InvalidArgument, match="no episodes are selected"):
        arm.drop()
    assert rlds_cli.open_dataset("local/arm").version == 1


@pytest.mark.thorough
def test_an_earlier_version_is_pushed_by_its_tag(arm: Dataset, tmp_path: Path) -> None:
    arm.tag("paper")
    arm.select(episodes=[0]).drop()
    push("local/arm#paper", str(tmp_path / "there"), pages=False)
    assert rlds_cli.open_dataset(f"file://{tmp_path / 'there'}").fingerprint == arm.fingerprint


def test_an_address_is_not_changed(arm: Dataset, tmp_path: Path) -> None:
    push("local/arm", str(tmp_path / "there"), pages=False)
    with pytest.raises(InvalidArgument, match="is an address"):
        run("label", f"file://{tmp_path / 'there'}", "quality=bad")


def test_compact_takes_the_space_of_what_it_writes(arm: Dataset) -> None:
    left = arm.select(where="take < 5").drop()
    compacting.compact("local/arm")
    now = rlds_cli.open_dataset("local/arm")
    assert (now.fingerprint, now.num_rows, [v.number for v in now.versions]) == (left.fingerprint, 6 + 7, [3])


def changes(id: str = "local/arm") -> list[str]:
    return [v.change for v in rlds_cli.open_dataset(id).versions]


def test_a_command_changes_the_newest_version_also_if_it_was_made_meanwhile(
    arm: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(f"id,quality\n{arm.episodes['id'][1].tobytes().hex()},bad\n")
    read = selecting.from_file

    def meanwhile(file: Path, ds: Dataset, **how: Any) -> Any:
        if ds.version == 1:
            arm.label(speed=2)  # by another process, since the command has opened the dataset
        return read(file, ds, **how)

    monkeypatch.setattr(selecting, "from_file", meanwhile)
    run("label", "local/arm", "--from", str(file))
    newest = rlds_cli.open_dataset("local/arm")
    assert newest.version == 3
    assert newest.episodes["quality"].tolist() == [None, "bad", None, None]
    assert newest.episodes["speed"].tolist() == [2] * 4


@pytest.mark.parametrize("command", [("label", "quality=bad"), ("drop",)])
def test_numbers_are_not_looked_up_in_a_version_that_was_made_meanwhile(
    command: tuple[str, ...], arm: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = selecting.numbers

    def meanwhile(text: str, count: int) -> list[int]:
        if count == 4:
            arm.select(episodes=[0]).drop()  # by another process, since the command has opened the dataset
        return read(text, count)

    monkeypatch.setattr(selecting, "numbers", meanwhile)
    with pytest.raises(InvalidArgument, match="v1 is not the newest version"):
        run(command[0], "local/arm", "--episodes", "1", *command[1:])
    newest = rlds_cli.open_dataset("local/arm")
    assert newest.episodes["take"].tolist() == [4, 5, 6] and "quality" not in newest.episodes


def test_a_version_that_is_named_and_not_the_newest_is_not_changed(arm: Dataset) -> None:
    run("label", "local/arm", "quality=bad")
    with pytest.raises(InvalidArgument, match=r"local/arm#v1 is not the newest version: that is v2"):
        run("label", "local/arm#v1", "quality=good")
    run("label", "local/arm#v2", "quality=good")
    assert rlds_cli.open_dataset("local/arm").version == 3


def test_labels_that_change_nothing_make_no_version(arm: Dataset) -> None:
    assert "nothing changed" in run("label", "local/arm", "--where", "take == 4", "success=true")
    run("label", "local/arm", "--set", "fps=50", "speed=1.5")
    assert "nothing changed" in run("label", "local/arm", "--set", "fps=50", "speed=1.5", "none=null")
    assert "nothing changed" not in run("label", "local/arm", "speed=2.5")
    assert rlds_cli.open_dataset("local/arm").version == 3


def test_an_earlier_version_is_restored(arm: Dataset) -> None:
    second = arm.select(episodes=[1]).label(quality="bad", facts={"fps": 50})
    second.tag("good")
    second.select(episodes=[0]).drop().label(quality="none", facts={"fps": 20})
    run("restore", "local/arm#good")
    now = rlds_cli.open_dataset("local/arm")
    assert (now.version, now.fingerprint, now.manifest.env["fps"]) == (5, second.fingerprint, 50)
    assert [v.number for v in now.versions] == [1, 2, 3, 4, 5] and changes()[-1] == "restore local/arm#v2"
    assert dict(now.tags) == {"good": 2}
    file = Path("observation", "c", "0", "0")
    assert (now.path / file).samefile(second.path / file)
    assert "nothing changed" in run("restore", "local/arm#v2")
    with pytest.raises(InvalidArgument, match="Which version"):
        run("restore", "local/arm")


def test_a_dataset_of_the_registry_is_not_restored() -> None:
    ds = rlds_cli.download("sample/pendulum-d4rl")
    with pytest.raises(InvalidArgument, match="of the registry"):
        run("restore", f"{ds.id}#v1")


def test_the_log_says_what_was_typed(arm: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("episode,good\n0,true\n3,false\n")
    run("label", "local/arm", "--where", "episode in [1, 3]", "quality=bad", "note=very slow")
    run("label", "local/arm#v2", "--from", str(file), "--set", "fps=50")
    run("drop", "local/arm", "--episodes", "0-1,3")
    arm.select(where="take > 3").select(where="take < 6", episodes=[0, 1, 2]).save("some")
    run("select", "local/arm#v1", "--where", "take > 4", "--name", "late")
    run("select", "local/arm#v1", "--episodes", "3,1-2", "--name", "turned")
    run("label", "local/arm", "--episodes", "0,0", 'code="3"', "note=" + 300 * "x")
    assert changes() == [
        "create",
        'label --where "episode in [1, 3]" quality=bad note="very slow" (2 episodes)',
        "label --from labels.csv --set fps=50 (2 episodes)",
        "drop --episodes 0-1,3 (3 episodes)",
        f"label --episodes 0 code='\"3\"' note={200 * 'x'}... (1 episode)",
    ]
    assert changes("local/arm@turned") == ["select --episodes 3,1-2 (3 episodes)"]
    assert changes("local/arm@some") == ['select --where "(take > 3) and (take < 6)" --episodes 1-2 (2 episodes)']
    assert changes("local/arm@late") == ['select --where "take > 4" (2 episodes)']


def test_numbers_of_episodes_that_are_wrong(arm: Dataset) -> None:
    for numbers, why in (("-1", "not the number of an episode"), ("2,4", "no episode 4"), ("3-1", "ends before")):
        with pytest.raises(InvalidArgument, match=why):
            run("drop", "local/arm", "--episodes", numbers)


def test_a_dataset_with_tags_is_not_replaced(arm: Dataset, tmp_path: Path) -> None:
    arm.tag("icra")
    arm.label(quality="bad").tag("paper")
    episodes = [{"observation": np.zeros((2, 1)), "action": np.zeros((1, 1)), "next": {"terminated": True}}]
    why = r"has tags: icra \(v1\), paper \(v2\). Replacing it would remove them, and 2 versions. Nothing was replaced"
    with pytest.raises(NameTaken, match=f"local/arm {why}"):
        rlds_cli.create("local/arm", episodes, force=True)
    with pytest.raises(NameTaken, match=f"local/arm {why}"):
        run("merge", "local/arm#icra", "--name", "local/arm", "--force")
    few = arm.select(episodes=[0]).save("few")
    few.label(quality="good").tag("kept")
    with pytest.raises(NameTaken, match="kept"):
        run("select", "local/arm", "--episodes", "1", "--name", "few", "--force")
    with pytest.raises(NameTaken, match="kept"):
        rlds_cli.preprocess.run(arm, "scale_reward", "few", args={"scale": 2}, force=True)
    now = rlds_cli.open_dataset("local/arm")
    assert (now.version, dict(now.tags)) == (2, {"icra": 1, "paper": 2})


def test_a_dataset_without_tags_is_replaced_with_its_versions(arm: Dataset) -> None:
    few = arm.select(episodes=[0]).save("few").label(quality="good")
    run("select", "local/arm", "--episodes", "1", "--name", "few", "--force")
    assert [v.number for v in rlds_cli.open_dataset(few.id).versions] == [1]
    assert not list((few.path.parents[2] / "versions").glob("*/*/*"))


def test_the_same_content_in_other_storage_keeps_tags_and_versions(arm: Dataset) -> None:
    arm.label(quality="bad").tag("paper")
    run("convert", "local/arm", "--to", "zarr")
    now = rlds_cli.open_dataset("local/arm")
    assert (now.encoding, dict(now.tags), [v.number for v in now.versions]) == ("zarr", {"paper": 2}, [1, 2])


def test_a_removal_names_versions_and_tags(arm: Dataset) -> None:
    arm.tag("icra")
    arm.label(quality="bad").label(quality="good")
    said = "with 2 earlier versions and its tags icra (v1)"
    assert said in run("rm", "local/arm", "--dry-run")
    with pytest.raises(RldsError, match="Nothing was removed"):
        run("rm", "local/arm")
    assert rlds_cli.open_dataset("local/arm").version == 3
    assert said in run("rm", "local/arm", "--yes")
    assert not rlds_cli.find("local/arm", local=True)


def test_an_open_version_that_compact_removes(arm: Dataset) -> None:
    first = rlds_cli.open_dataset("local/arm")
    action = first.column("action")
    before = action.copy()
    arm.select(episodes=[0]).drop()
    run("compact", "local/arm")
    np.testing.assert_array_equal(first.column("action"), before)
    with pytest.raises(DatasetNotFound, match=r"local/arm#v1 was removed since it was opened: rlds compact") as e:
        first.column("observation")
    assert e.value.hint is not None and "open local/arm again, at v3" in e.value.hint


def test_tags_are_shown_beside_their_versions(arm: Dataset) -> None:
    assert "TAGS" not in run("list", "--local")
    arm.tag("icra")
    arm.label(quality="bad").tag("paper")
    assert "icra (v1), paper (v2)" in run("list", "--local")
    assert [line.split()[:2] for line in run("log", "local/arm").splitlines()] == [["v2", "[paper]"], ["v1", "[icra]"]]
    assert run("inspect", "local/arm").startswith("local/arm#v2 [paper] ")
    assert run("inspect", "local/arm#v1").startswith("local/arm#v1 [icra] ")


@pytest.mark.thorough
def test_a_result_of_a_part_without_a_name_names_both(arm: Dataset) -> None:
    some = arm.select(episodes=[0, 1]).save("some")
    assert rlds_cli.preprocess.run(some, "scale_reward", args={"scale": 2}).id == "local/arm@some-scale_reward"
    assert rlds_cli.preprocess.run(arm, "scale_reward", args={"scale": 2}).id == "local/arm@scale_reward"
    assert rlds_cli.preprocess.run(some, "scale_reward", "x", args={"scale": 2}).id == "local/arm@x"


@pytest.mark.parametrize("function", ["scale_reward", "missing.py:moving"])
def test_a_function_of_a_trim_that_is_not_found(arm: Dataset, function: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--trim {function}: ") as e:
        run("select", "local/arm", "--trim", function, "--name", "x")
    assert e.value.hint is not None and e.value.hint.startswith("--trim FILE.py:FUNCTION")


def test_a_dataset_that_is_fetched_again_keeps_its_tags(arm: Dataset, tmp_path: Path) -> None:
    there = str(tmp_path / "there")
    push("local/arm", there, pages=False)
    arm.tag("icra")
    run("download", f"file://{there}", "--name", "local/arm", "--force")
    assert dict(rlds_cli.open_dataset("local/arm").tags) == {"icra": 1}
    arm = rlds_cli.open_dataset("local/arm").label(quality="bad")
    with pytest.raises(NameTaken, match="has tags: icra"):
        run("download", f"file://{there}", "--name", "local/arm", "--force")
    assert rlds_cli.open_dataset("local/arm").fingerprint == arm.fingerprint


@pytest.mark.thorough
def test_other_users_may_read_what_changes_have_made(arm: Dataset) -> None:
    arm.select(episodes=[0, 1]).save("some")
    arm.trim({0: (0, 1)}, "start")
    changed = arm.label(q=1).select(episodes=[0]).drop()
    path = rlds_cli.open_dataset("local/arm#v1").restore().path
    home = path.parents[2]
    made = [*home.glob("datasets/local/*"), *home.glob("versions/local/arm/*")]
    assert len(made) == 6 and changed.version == 3
    assert {path.stat().st_mode & 0o777 for path in made} == {path.parent.stat().st_mode & 0o777}
    compacting.compact("local/arm")
    assert path.stat().st_mode == path.parent.stat().st_mode
    assert not list((home / "partial").iterdir())


def test_a_dataset_in_the_home_of_another_is_changed_by_a_name(arm: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **how: Any) -> None:
        raise NoPermission("/data/partial may not be written.", hint="another home")

    monkeypatch.setattr(Change, "write", refused)
    with pytest.raises(NoPermission, match=r"local/arm is as it was.") as e:
        arm.label(q=1)
    assert "--name NAME" in str(e.value.hint)
