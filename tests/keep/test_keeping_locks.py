"""What stands in a lock file is checked as a whole: the value that is wrong is named by its place."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lock_mutations
import pytest

from rlds_cli.errors import RldsError
from rlds_cli.keep import lock_file, pinning

F, S = "rlds1:" + "a" * 64, "b" * 64
STEP = {
    "id": "local/x@norm",
    "from": "local/x",
    "reference": "prep.py:norm",
    "function": "norm",
    "code": S,
    "files": [["prep.py", S]],
    "args": {"eps": 0.5},
    "depends": {"model.npy": S},
    "unit": "window",
    "window": [3, 0],
    "arrays": "numpy",
    "fields": ["observation"],
}
EDITS = {
    "from": "local/x",
    "base": F,
    "episodes": [[0, 90], [95, 3, 10], [95, 10, 12], [91, 92]],
    "columns": {
        "quality": {"dtype": "str", "values": ["bad", None], "counts": [3, 90]},
        "score": {"dtype": "float64", "values": [0.5], "counts": [93]},
        "count": {"dtype": "uint64", "values": [(1 << 64) - 1, 3], "counts": [1, 92]},
        "gone": None,
    },
    "facts": {"fps": 50.0, "license": None},
}
LOCK: dict[str, Any] = {
    "rlds_lock": 1,
    "datasets": [
        {
            "id": "local/x",
            "fingerprint": F,
            "fields": {"observation": S},
            "files": [
                {"file": "a/b.hdf5", "size": 3, "sha256": S, "url": "https://host/a/b.hdf5", "revision": None},
                {"file": "c.hdf5", "size": None, "sha256": None, "url": None, "revision": "main"},
            ],
            "options": {"frames": "84x84", "skip_bad": True, "portion": {"include": ["a*"], "episodes": [0, None]}},
            "made_by": [],
        },
        {"id": "local/x@norm", "fingerprint": F, "fields": {}, "files": [], "options": {}, "made_by": [STEP]},
        {
            "id": "local/x@short",
            "fingerprint": F,
            "fields": {},
            "files": [],
            "options": {},
            "made_by": [],
            "edits": EDITS,
            "version": 3,
        },
    ],
}


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(lock: Any) -> None:
        for key in path[:-1]:
            lock = lock[key]
        lock[path[-1]] = value

    return change


FIRST, FILE, MADE = ("datasets", 0), ("datasets", 0, "files", 0), ("datasets", 1, "made_by", 0)
VIEW, EDITED = ("datasets", 2), ("datasets", 2, "edits")
WRONG: dict[str, Callable[[Any], Any]] = {
    r"rlds_lock is \"1\", not a whole number": put("rlds_lock", value="1"),
    r"rlds_lock is true": put("rlds_lock", value=True),
    r"rlds_lock is 0, not a version": put("rlds_lock", value=0),
    r"rlds_lock is Infinity": put("rlds_lock", value=1e999),
    r"datasets is an object, not a list": put("datasets", value={}),
    r"datasets\[0\] is 3, not an object": put("datasets", 0, value=3),
    r"datasets\[0\] has no \"id\"": lambda lock: lock["datasets"][0].pop("id"),
    r"datasets\[0\] has \"path\", which is not a member of lock files": put(*FIRST, "path", value="/home/me"),
    r"datasets\[0\]\.id is \"\.\./x\", not a dataset id": put(*FIRST, "id", value="../x"),
    r"datasets\[0\]\.id is \"/etc/x\"": put(*FIRST, "id", value="/etc/x"),
    r"datasets\[1\]\.id is \"local/X\", not an id that occurs once": lambda lock: lock["datasets"].insert(
        1, {**lock["datasets"][0], "id": "local/X"}
    ),
    r"datasets\[1\]\.made_by is a list, not one step": lambda lock: lock["datasets"][1]["made_by"].append(
        lock["datasets"][1]["made_by"][0]
    ),
    r"datasets\[0\]\.fingerprint is \"rlds1:aa\"": put(*FIRST, "fingerprint", value="rlds1:aa"),
    r"datasets\[0\]\.fields is a list, not an object": put(*FIRST, "fields", value=[]),
    r"datasets\[0\]\.fields\.observation is 7": put(*FIRST, "fields", "observation", value=7),
    r"files\[0\]\.file is \"\.\./b\", not a relative path": put(*FILE, "file", value="../b"),
    r"files\[0\]\.file is \"/etc/passwd\"": put(*FILE, "file", value="/etc/passwd"),
    r"files\[1\]\.file is \"c\.hdf5\", not a name that": put(*FILE, "file", value="c.hdf5"),
    r"files\[0\]\.size is -1": put(*FILE, "size", value=-1),
    r"files\[0\]\.size is 1\.5": put(*FILE, "size", value=1.5),
    r"holds an integer of 30 digits": put(*FILE, "size", value=10**29),
    r"files\[0\]\.sha256 is \"B{59}\.\.\.": put(*FILE, "sha256", value="B" * 64),
    r"files\[0\]\.url is \"/etc/passwd\"": put(*FILE, "url", value="/etc/passwd"),
    r"files\[0\]\.url is \"~/\.ssh/id_rsa\"": put(*FILE, "url", value="~/.ssh/id_rsa"),
    r"files\[0\]\.url is \"FILE:///etc/passwd\"": put(*FILE, "url", value="FILE:///etc/passwd"),
    r"files\[0\]\.url is \"file:///home/me/x\", not an address": put(*FILE, "url", value="file:///home/me/x"),
    r"datasets\[1\] has no \"made_by\"": lambda lock: lock["datasets"][1].pop("made_by"),
    r"files\[0\]\.url is \"ftp://host/x\"": put(*FILE, "url", value="ftp://host/x"),
    r"files\[0\]\.url is \"http:/x\"": put(*FILE, "url", value="http:/x"),
    r"files\[0\]\.url is \"http://\[::1\"": put(*FILE, "url", value="http://[::1"),
    r"files\[0\]\.url is \"http://h:99999999/x\"": put(*FILE, "url", value="http://h:99999999/x"),
    r"files\[0\]\.url is \"https://host": put(*FILE, "url", value="https://me:secret@host/x"),
    r"options\.frames is \"huge\"": put(*FIRST, "options", "frames", value="huge"),
    r"options\.skip_bad is \"yes\"": put(*FIRST, "options", "skip_bad", value="yes"),
    r"options\.portion\.include is \"a\*\"": put(*FIRST, "options", "portion", "include", value="a*"),
    r"options\.portion\.episodes is a list": put(*FIRST, "options", "portion", "episodes", value=[5, 2]),
    r"\.from is \"local/x@norm\", not an earlier dataset": put(*MADE, "from", value="local/x@norm"),
    r"made_by\[0\]\.from is \"/home/me/x\"": put(*MADE, "from", value="/home/me/x"),
    r"made_by\[0\]\.from is \"local/x\", not a dataset that local": put("datasets", 1, "id", value="local/y@norm"),
    r"made_by\[0\]\.files\[0\]\[0\] is \"\.\./prep\.py\"": put(*MADE, "files", 0, 0, value="../prep.py"),
    r"made_by\[0\]\.files\[0\] is a list, not a file and its sha256": put(*MADE, "files", 0, value=["prep.py"]),
    r"made_by\[0\]\.unit is \"all\", not one of": put(*MADE, "unit", value="all"),
    r"made_by\[0\]\.arrays is a list": put(*MADE, "arrays", value=["numpy"]),
    r"made_by\[0\]\.args is null": put(*MADE, "args", value=None),
    r"made_by\[0\]\.window\[0\] is 1099511627776": put(*MADE, "window", value=[1 << 40, 0]),
    r"datasets\[1\] is nested more than 32 levels": put(*MADE, "args", "eps", value=lock_mutations.deep(100)),
    r"datasets\[2\] has no \"version\"": lambda lock: lock["datasets"][2].pop("version"),
    r"datasets\[2\]\.version is 0": put(*VIEW, "version", value=0),
    r"datasets\[2\]\.made_by is a list, not empty": put(*VIEW, "made_by", value=[STEP]),
    r"datasets\[2\]\.address is .*, not missing": put(*VIEW, "address", value="s3://bucket/x"),
    r"edits has no \"base\"": lambda lock: lock["datasets"][2]["edits"].pop("base"),
    r"edits has \"code\", which is not a member": put(*EDITED, "code", value="x"),
    r"edits\.base is .*, not the fingerprint of local/x": put(*EDITED, "base", value="rlds1:" + "c" * 64),
    r"edits\.from is \"local/y\", not an earlier dataset": put(*EDITED, "from", value="local/y"),
    r"edits\.from is \"local/x\", not a dataset that local/y": put("datasets", 2, "id", value="local/y@short"),
    r"edits\.episodes is 3, not a list": put(*EDITED, "episodes", value=3),
    r"episodes\[1\] is a list, not whole episodes": put(*EDITED, "episodes", 1, value=[95, 10, 10]),
    r"episodes\[2\] is a list, not whole episodes": put(*EDITED, "episodes", 2, value=[95, -1, 2]),
    r"episodes\[3\] is 7, not whole episodes": put(*EDITED, "episodes", 3, value=7),
    r"episodes\[0\] is a list, not whole": put(*EDITED, "episodes", 0, value=[0, True]),
    r"episodes\[0\] is a list, not whole .*": put(*EDITED, "episodes", 0, value=[0, 1 << 60]),
    r"episodes\[2\] is a list, not apart from .*\[1\]: a step is in both": put(
        *EDITED, "episodes", 2, value=[95, 9, 12]
    ),
    r"episodes\[3\] is a list, not apart from .*\[0\]": put(*EDITED, "episodes", 3, value=[89, 92]),
    r"episodes\[1\] is a list, not apart from .*\[0\]": put(*EDITED, "episodes", 1, value=[4, 0, 1]),
    r"columns is .*, not names of episode columns: .* of TED itself": put(*EDITED, "columns", value={"length": None}),
    r"columns\.quality\.dtype is \"object\"": put(*EDITED, "columns", "quality", "dtype", value="object"),
    r"quality\.values\[0\] is 3, not a value of the type str": put(*EDITED, "columns", "quality", "values", 0, value=3),
    r"quality\.values\[1\] is .*, not a value": put(*EDITED, "columns", "quality", "values", 1, value="a" * 70_000),
    r"quality\.values\[1\] is .*, not a value .*": put(*EDITED, "columns", "quality", "values", 1, value="\ud800"),
    r"score\.values\[0\] is 1, not a value of the type float64": put(*EDITED, "columns", "score", "values", 0, value=1),
    r"count\.values\[1\] is -1, not a value": put(*EDITED, "columns", "count", "values", 1, value=-1),
    r"score\.counts is a list, not one of numbers whose sum is 93": put(
        *EDITED, "columns", "score", "counts", value=[3]
    ),
    r"score\.counts is a list, not one of 1 numbers": put(*EDITED, "columns", "score", "counts", value=[90, 3]),
    r"score\.counts\[0\] is 0, not a number of episodes": put(*EDITED, "columns", "score", "counts", value=[0]),
    r"facts has \"owner\"": put(*EDITED, "facts", "owner", value="me"),
    r"facts\.fps is NaN": put(*EDITED, "facts", "fps", value=float("nan")),
    r"facts\.license is 3, not a text": put(*EDITED, "facts", "license", value=3),
    r"made_by\[0\]\.reference is .*, not a text that can be printed": put(*MADE, "reference", value="a:\x1b[2J"),
}


def read(tmp_path: Path, content: Any) -> tuple[lock_file.Locked, ...]:
    file = tmp_path / "rlds.lock"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return pinning.read(file)


def test_a_sound_lock(tmp_path: Path) -> None:
    source, made, view = read(tmp_path, LOCK)
    assert [f["url"] for f in source.files] == ["https://host/a/b.hdf5", None]  # local files are somebody else's
    assert made.made_by == (STEP,) and made.reproducible
    assert view.edits == EDITS and view.source == "local/x" and not view.recorded


@pytest.mark.sampled(38)
@pytest.mark.parametrize("place", WRONG)
def test_a_value_that_is_wrong_is_named(tmp_path: Path, place: str) -> None:
    lock = copy.deepcopy(LOCK)
    WRONG[place](lock)
    with pytest.raises(RldsError, match=place) as caught:
        read(tmp_path, lock)
    assert "is not a lock file" in caught.value.message and "\n" not in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"rlds_lock": ' + "9" * 5000 + "}", "\ud800", "nul", '{"rlds_lock": 2}']
)
def test_what_is_no_json_of_this_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "rlds.lock").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(RldsError, match=r"is not a lock file|written by a later rlds"):
        pinning.read(tmp_path / "rlds.lock")


def test_mutants_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever is changed: rlds reads it, or raises an error of its own, and nothing of a mutant is used unchecked."""
    rng = random.Random(11)
    counts = {"read": 0, "refused": 0}
    for _ in range(1500):
        try:
            for d in lock_file.datasets(lock_mutations.mutated(LOCK, rng)):
                assert all(f["url"] is None or f["url"].startswith("https://host/") for f in d.files)
                assert all(".." not in f["file"] and not f["file"].startswith("/") for f in d.files)
            counts["read"] += 1
        except (lock_file.InvalidLock, lock_file.LaterVersion) as e:
            assert len(str(e)) < 600
            counts["refused"] += 1
    assert min(counts.values()) > 50
