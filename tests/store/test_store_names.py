from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.errors import RldsError
from rlds_cli.store.paths import assign_paths, component, is_field_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("observation", "observation"),
        ("a.b-c_d+e=f@g,h~i", "a.b-c_d+e=f@g,h~i"),
        ("", "%"),
        (".", "%2E"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("__meta", "%5F_meta"),
        ("zarr.json", "%7Aarr.json"),
        ("Zarr.json", "%5Aarr.json"),
        ("reference.json", "%72eference.json"),
        ("a b", "a%20b"),
        ("a\\b", "a%5Cb"),
        ("a\0b", "a%00b"),
        ("%41", "%2541"),
        ("é", "%C3%A9"),
        ("c", "c"),
    ],
)
def test_one_component(name: str, directory: str) -> None:
    assert component(name) == directory


def test_long_names_are_cut_and_stay_apart() -> None:
    a, b = component("x" * 300 + "a"), component("x" * 300 + "b")
    assert a != b
    assert max(len(a), len(b)) <= 200


@pytest.mark.parametrize("name", ["a/" * 64 + "b", "/".join(["x" * 160] * 10), "/".join(["\u4e2d" * 60] * 8)])
def test_names_that_no_file_system_takes_are_refused(name: str) -> None:
    with pytest.raises(RldsError, match="cannot be stored"):
        assign_paths(["observation", name])
    assert assign_paths(["a/" * 63 + "b"])
    assert not is_field_path("a/" * 600 + "b")


def test_what_stands_beside_the_fields_is_not_overwritten() -> None:
    found = assign_paths(["episodes", "Metadata/x", "text", "digests", "sources/a", "observation"])
    tops = {p.split("/")[0].lower() for p in found.values()}
    assert not tops & {"episodes", "metadata", "text", "digests", "sources"}
    assert found["observation"] == "observation"


def test_names_that_differ_in_case_only_get_paths_that_differ_in_more() -> None:
    found = assign_paths(["info/X", "info/x", "INFO/x"])
    assert len({p.lower() for p in found.values()}) == 3


def test_the_order_of_names_does_not_matter() -> None:
    names = ["b/X", "b/x", "a", "A"]
    assert assign_paths(names) == assign_paths(reversed(names))


@pytest.mark.thorough
@given(st.lists(st.text(min_size=1, max_size=30), max_size=8, unique=True))
def test_any_names_become_safe_distinct_relative_paths(names: list[str]) -> None:
    found = assign_paths(names)
    assert set(found) == set(names)
    assert len({p.lower() for p in found.values()}) == len(names)
    for path in found.values():
        for part in path.split("/"):
            assert part not in ("", ".", "..", "zarr.json")
            assert not part.startswith((".", "__"))
            assert part.isascii()
            assert part.isprintable()
            assert len(part) <= 220


def test_no_field_lies_in_the_directory_of_another() -> None:
    assert assign_paths(["A", "a/c", "a/c/0", "B/x", "b"]) == {
        "A": "A",
        "a/c": "a~2/c",
        "a/c/0": "a~2/c~2/0",
        "B/x": "B/x",
        "b": "b~2",
    }
