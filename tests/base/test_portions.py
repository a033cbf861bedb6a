"""Parts of archives: as people write them, as they are called, and which files they want."""

from __future__ import annotations

import pytest

from rlds_cli.base import ids
from rlds_cli.base.subset import EVERYTHING, Subset, command, is_subset
from rlds_cli.errors import InvalidId


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("0:100", (0, 100), "episodes-0-100"),
        (":7", (0, 7), "episodes-0-7"),
        ("7:", (7, None), "episodes-7-end"),
        ("12", (12, 13), "episodes-12-13"),
    ],
)
def test_ranges(text: str, expected: tuple[int, int | None], name: str) -> None:
    portion = Subset.of(episodes=text)
    assert (portion.episodes, portion.name) == (expected, name)


@pytest.mark.parametrize("text", [":", "5:5", "9:3", "-1:", "a:b", "1:2:3", "1-2"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(InvalidId):
        Subset.of(episodes=text)


def test_names_are_variants_and_differ_where_the_portions_do() -> None:
    portions = [
        Subset.of(split="train"),
        Subset.of(split="val"),
        Subset.of(split="train", episodes="0:3"),
        Subset.of(include="*.h5"),
        Subset.of(include="*_h5"),
        Subset.of(exclude="*.h5"),
        Subset.of(include="seed1"),
        Subset.of(include=["seed1", "seed2"]),
        Subset.of(include="a" * 300),
        Subset.of(include="a" * 301),
        Subset.of(split="20%"),
    ]
    names = [p.name for p in portions]
    assert names[0] == "split-train"
    assert names[2] == "split-train_episodes-0-3"
    assert names[6] == "include-seed1"
    assert len(set(names)) == len(names)
    for portion in portions:
        assert portion.name and is_subset(portion.name)
        assert ids.parse("d4rl/hopper").with_variant(portion.name).variant == portion.name
        assert Subset.from_facts(portion.facts) == portion
    assert not is_subset("norm")
    assert not is_subset("84x84")


def test_nothing_said_is_everything() -> None:
    assert not EVERYTHING
    assert EVERYTHING.name is None
    assert EVERYTHING.wants("any/file.h5")
    assert Subset.of(episodes="0:1")
    for empty in ({"include": ""}, {"exclude": [""]}, {"split": ""}):
        with pytest.raises(InvalidId):
            Subset.of(**empty)  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"include": "seed1*"}, ["a/seed1.h5", "a/seed10.h5", "a/info.json", "meta/tasks.parquet"]),
        ({"include": "b/*"}, ["b/seed1_x.mp4", "a/info.json", "meta/tasks.parquet"]),
        ({"include": "b"}, ["b/seed1_x.mp4", "a/info.json", "meta/tasks.parquet"]),
        ({"include": "b/"}, ["b/seed1_x.mp4", "a/info.json", "meta/tasks.parquet"]),
        ({"exclude": "*.mp4"}, ["a/seed1.h5", "a/seed10.h5", "a/info.json", "meta/tasks.parquet"]),
        ({"include": "a/*", "exclude": ["*.json", "*10*"]}, ["a/seed1.h5", "meta/tasks.parquet"]),
    ],
)
def test_files(said: dict[str, str], wanted: list[str]) -> None:
    files = ["a/seed1.h5", "a/seed10.h5", "b/seed1_x.mp4", "a/info.json", "meta/tasks.parquet"]
    if said == {"include": "seed1*"}:
        wanted = [*wanted[:2], "b/seed1_x.mp4", *wanted[2:]]
    assert [f for f in files if Subset.of(**said).wants(f)] == wanted


def test_what_people_read() -> None:
    assert str(Subset.of(episodes="0:100", split="train")) == "episodes 0 to 99, of the split train"
    assert str(Subset.of(episodes="4")) == "episode 4"
    assert str(Subset.of(include="a*", exclude=["b", "c"])) == "files a* without b c"
    assert str(Subset.of(exclude="b", episodes="5:")) == "episodes 5 to the last, of files * without b"


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("norm", "rlds preprocess d4rl/x --fn ... --name norm"),
        ("episodes-0-100", "rlds download d4rl/x --episodes 0:100"),
        ("episodes-5-end", "rlds download d4rl/x --episodes 5:"),
        ("split-train", "rlds download d4rl/x --split train"),
        ("split-train_episodes-0-3", "rlds download d4rl/x --split train --episodes 0:3"),
        ("split-train_84x84", "rlds download d4rl/x --split train --frames 84x84"),
        ("include-seed1_episodes-0-3", "rlds download d4rl/x --include GLOB"),
    ],
)
def test_what_makes_a_variant(variant: str, expected: str) -> None:
    assert command(ids.parse(f"d4rl/x@{variant}")) == expected
