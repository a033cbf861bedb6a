"""Names and URLs that others wrote."""

from __future__ import annotations

import pytest

from rlds_cli.base.files import names
from rlds_cli.base.text import natural
from rlds_cli.errors import DownloadFailed, UnsafeArchive


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x.h5",
        "a/../../x.h5",
        "a/..",
        "/etc/passwd",
        "//host/share",
        "~/x",
        "C:/x.h5",
        "c:x.h5",
        "a\\..\\x.h5",
        "a\0b",
        "a\nb",
        "a//b",
        "./a",
        "a/",
        "x" * 241,
        "é" * 121,
        "a\ud800",
        "/" * 200_000,
        "a/" * 64 + "b",
        "a/" * 20 + "b" * 1000,
        "a\x9bb",
        "a\u202eb",
        "a\u2028b",
        "CON",
        "data/nul.h5",
        "lpt1",
        "a\tb",
    ],
)
def test_a_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    with pytest.raises(UnsafeArchive, match="Nothing was written"):
        names.safe(name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "x.h5",
        "DAPG(expert)/door_v2d-v1.h5",
        "a/b/c",
        "...",
        "a..b",
        ".hidden",
        "é.h5",
        "a b",
        "constant.h5",
        "nullable",
        "a/" * 63 + "b",
    ],
)
def test_an_ordinary_name_is_left_as_it_is(name: str) -> None:
    assert names.safe(name) == name


@pytest.mark.parametrize(
    "pair",
    [("a", "a"), ("a", "a.json"), ("a", "a.part"), ("a", "a.part.json"), ("a", "a/b"), ("x/y", "x/y/z/w")],
)
def test_names_that_would_overwrite_each_other_are_refused(pair: tuple[str, str]) -> None:
    for order in (pair, pair[::-1]):
        with pytest.raises(UnsafeArchive):
            names.all_safe(order)


def test_names_side_by_side_are_fine() -> None:
    names.all_safe(["data/main_data.hdf5", "data/metadata.json", "data.json", "data/1/a", "data/10/a"])


def test_numbers_in_names_sort_as_numbers() -> None:
    assert sorted(["s10.h5", "s9.h5", "a/2/x", "a/10/x", "s1.h5"], key=natural) == [
        "a/2/x",
        "a/10/x",
        "s1.h5",
        "s9.h5",
        "s10.h5",
    ]


def test_the_name_of_a_download_is_the_last_part_of_its_url() -> None:
    assert names.basename("http://host/a/Ant%20maze.hdf5?download=1") == "Ant maze.hdf5"
    for url in ("http://host/", "http://host", "http://host/a/"):
        with pytest.raises(DownloadFailed, match="directory"):
            names.basename(url)
    for url in ("http://host/..", "http://host/a/%2e%2e", "http://host/a%5Cb", "http://host/C%3Ax"):
        with pytest.raises(UnsafeArchive):
            names.basename(url)


FILES = [
    "README.md",
    ".gitattributes",
    "DAPG(expert)/door_v2d-v1_seed10.h5",
    "DAPG(expert)/door_v2d-v1_seed2.h5",
    "DAPG(expert)/door_v2d-v1_notes.txt",
    "DAPG(expert)/door_v2d-v10_seed1.h5",
    "DAPG(expert)/pen/a.h5",
    "DAPG(expert)/pen/.cache/b.h5",
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (
            "DAPG(expert)/door_v2d-v1*.h5",
            ["door_v2d-v1_seed2.h5", "door_v2d-v1_seed10.h5", "door_v2d-v10_seed1.h5"],
        ),
        ("DAPG(expert)/door_v2d-v1**.h5", ["door_v2d-v1_seed2.h5", "door_v2d-v1_seed10.h5"]),
        ("DAPG(expert)/door_v2d-v1", ["door_v2d-v1_notes.txt", "door_v2d-v1_seed2.h5", "door_v2d-v1_seed10.h5"]),
        ("DAPG(expert)/pen", ["a.h5"]),
        ("DAPG(expert)/pen/a.h5", ["a.h5"]),
        ("DAPG(expert)*pen*.h5", []),
        ("**/*.h5", [n for n in sorted(FILES, key=natural) if n.endswith(".h5") and "/." not in n]),
        ("DAPG(expert)/pen/a.h", []),
        ("DAPG(expert)/p*/a.h5", ["pen/a.h5"]),
        ("nothing", []),
        ("", [n for n in sorted(FILES, key=natural) if "/." not in n and not n.startswith(".")]),
    ],
)
def test_what_a_path_selects(wanted: str, expected: list[str]) -> None:
    assert list(names.selected(FILES, wanted).values()) == expected


def test_a_file_that_stands_beside_a_directory_of_its_name_with_a_suffix() -> None:
    assert names.selected(["data/x.h5", "data2/x.h5", "data"], "data") == {"data": "data"}
    assert names.selected(["data/x.h5", "data2/x.h5"], "data") == {"data/x.h5": "x.h5"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A.bin", "a.bin"),
        ("caf\u00e9.h5", "cafe\u0301.h5"),  # one letter, or a letter and its accent
        ("\u00c9/x", "e\u0301/X"),
        ("stra\u00dfe", "STRASSE"),
        ("data", "DATA/x"),
        ("x.h5", "X.H5.JSON"),
    ],
)
def test_names_that_some_file_systems_take_for_one_are_refused_with_both(one: str, other: str) -> None:
    for listed in ((one, other), (other, one)):
        with pytest.raises(UnsafeArchive) as caught:
            names.all_safe(listed)
        assert f'"{one}"' in caught.value.message and f'"{other}"' in caught.value.message
    names.all_safe(["A/x", "a/y", "B.bin", "b.bin2"])
