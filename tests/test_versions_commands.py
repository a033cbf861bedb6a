"""Commands that change a dataset: what they take, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rlds_cli
from rlds_cli.cli import main
from rlds_cli.cli.commands import app
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.maintenance import compacting
from rlds_cli.sharing.pushing import push

assert main


@pytest.fixture
def arm() -> Dataset:
    episodes = [
        {"observation": np.full((t + 1, 2), t, np.float32), "action": np.zeros((t, 1), np.float32),
         "next": {"reward": np.ones(t, np.float32), "terminated": True}, "episode": {"take": t, "success": t % 2 == 0}}
        for t in (3, 4, 5, 6)
    ]  # fmt: skip
    return rlds_cli.create("local/arm", episodes)


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
    with pytest.raises(InvalidArgument, match="names the episodes"):
        run("label", "local/arm", "--from", str(file), "--where", "take > 3")


@pytest.mark.parametrize(
    ("text", "why"),
    [("episode,q\n1,a,b\n", "more values"), ("episode,q\n1\n", "fewer values"), ("episode,q\n9,a\n", "no episode 9"),
     ("episode,q\n1,a\n1,b\n", "twice"), ("q\na\n", "needs a column"), ("id,q\n00,a\n", "no episode of the id")],
)  # fmt: skip
def test_a_file_of_labels_that_is_wrong(arm: Dataset, tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(RldsError, match=why):
        run("label", "local/arm", "--from", str(tmp_path / "labels.csv"))
    assert rlds_cli.open_dataset("local/arm").version == 1


def test_a_column_keeps_its_type(arm: Dataset) -> None:
    with pytest.raises(InvalidArgument, match="of type bool"):
        arm.label(success="yes")
    run("label", "local/arm", "success=True")
    assert rlds_cli.open_dataset("local/arm").episodes["success"].tolist() == [True] * 4


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
