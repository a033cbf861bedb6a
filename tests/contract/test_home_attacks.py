"""A home that another person may write to: what they put there is neither followed, nor written, nor removed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import write_d4rl
from server import Server

import rlds_cli
from rlds_cli import registry
from rlds_cli.base import ids
from rlds_cli.base.files import disk, publishing
from rlds_cli.errors import DamagedDataset, DownloadFailed, NameTaken, NoPermission, RldsError
from rlds_cli.homes import Home, usage
from rlds_cli.keep import gc, reencoding, removing
from rlds_cli.make.downloads import download, request
from rlds_cli.make.downloads.request import DownloadRequest
from rlds_cli.registry import lookup
from rlds_cli.store import sharing

SAMPLE = "sample/pendulum-d4rl"
ARCHIVE = "archives/sample/pendulum-d4rl"
UNHASHED = next(e.id for e in lookup.entries("d4rl") if not e.sha256 and e.status == "open" and len(e.files) == 1)
FILE = registry.get(UNHASHED).files[0].path
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
LEFT = "It was left as it is."
STRANGER = 54321  # a user that nobody is

Plant = Callable[["Victim", Path], None]


class Victim:
    """Files of the user outside the home, which must stay as they are."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "victim"
        self.file = self.directory / "secret"
        (self.directory / "below").mkdir(parents=True)
        (self.directory / "below/deep.part").write_bytes(b"deep")
        self.file.write_bytes(b"precious" * 10_000)
        self.file.chmod(0o600)
        self._before = self._state()

    def _state(self) -> dict[str, tuple[int, bytes]]:
        paths = sorted(self.directory.rglob("*"))
        return {str(p): (p.lstat().st_mode, p.read_bytes() if p.is_file() else b"") for p in paths}

    def check(self) -> None:
        assert self._state() == self._before


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


def to_file(victim: Victim, path: Path) -> None:
    path.symlink_to(victim.file)


def to_directory(victim: Victim, path: Path) -> None:
    path.symlink_to(victim.directory)


def second_name(victim: Victim, path: Path) -> None:
    os.link(victim.file, path)


def plant(path: Path, how: Plant, victim: Victim) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    how(victim, path)
    return path


def attempt(action: Callable[[], object], victim: Victim) -> str:
    """Do something that an attacker has prepared; the error over it, if there is one."""
    said = ""
    try:
        action()
    except RldsError as exc:
        said = exc.message
    victim.check()
    return said


# -- downloads and conversions


@pytest.mark.parametrize(
    "place",
    [
        *("locks", "partial", "archives", "datasets", "archives/sample", "datasets/sample", ARCHIVE),
        *("datasets/sample/pendulum-d4rl", "locks/sample+pendulum-d4rl.lock"),
    ],
)
def test_a_download_leaves_the_home_by_no_link(home: Path, victim: Victim, place: str) -> None:
    planted = plant(home / place, to_file if place.endswith(".lock") else to_directory, victim)
    said = attempt(lambda: rlds_cli.download(SAMPLE, force=True), victim)
    assert said == f"{planted} is a symbolic link. It was left as it is."
    assert planted.is_symlink()


@pytest.mark.parametrize("how", [to_file, second_name])
@pytest.mark.parametrize("place", ["partial/sample+pendulum-d4rl.order", f"{ARCHIVE}/.listing.json", f"{ARCHIVE}/*"])
def test_a_download_puts_new_files_into_the_place_of_links(home: Path, victim: Victim, place: str, how: Plant) -> None:
    planted = plant(home / place.replace("*", registry.get(SAMPLE).files[0].path), how, victim)
    assert attempt(lambda: rlds_cli.download(SAMPLE), victim) == ""
    assert not planted.is_symlink()
    assert victim.file.stat().st_nlink == 1


@pytest.mark.parametrize("how", [to_file, second_name])
@pytest.mark.parametrize("end", [".part", ".part.lock", ".part.json", ".part.spans", ".json"])
def test_what_a_server_sends_is_not_written_through_links(
    tmp_path: Path, home: Path, victim: Victim, end: str, how: Plant
) -> None:
    write_d4rl(tmp_path / "a.hdf5", [30])
    plant(home / "archives" / UNHASHED / f"{FILE}{end}", how, victim)
    with Server() as server:
        server.add(f"/{FILE}", (tmp_path / "a.hdf5").read_bytes())
        said = attempt(lambda: rlds_cli.download(UNHASHED, source=server.url), victim)
    refused = end == ".part" or (end == ".part.lock" and how is to_file)
    assert ("was left as it is" in said) == refused, said


def test_a_fifo_in_the_place_of_a_record_holds_nobody(home: Path) -> None:
    (home / ARCHIVE).mkdir(parents=True)
    name = registry.get(SAMPLE).files[0].path
    for end in (".json", ".part.json", ".part", ".part.spans"):
        os.mkfifo(home / ARCHIVE / f"{name}{end}")
    os.mkfifo(home / ARCHIVE / ".listing.json")
    assert rlds_cli.download(SAMPLE).num_episodes > 0


@pytest.fixture(scope="module")
def name_of_work(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory in which the sample is converted, as anybody can find it out."""
    root = tmp_path_factory.mktemp("attacker")
    found: list[str] = []

    def look(_: Path) -> None:
        found.extend(p.name for p in (root / "partial").iterdir() if p.is_dir())

    download.deliver(DownloadRequest(SAMPLE, home=root), check=look)
    (only,) = found
    return only


@pytest.fixture
def work(home: Path, name_of_work: str) -> Path:
    return home / "partial" / name_of_work


@pytest.mark.parametrize("how", [to_directory, second_name])
@pytest.mark.parametrize("below", [".", "journal.jsonl"])
def test_work_is_not_taken_up_where_somebody_has_prepared_it(
    work: Path, victim: Victim, below: str, how: Plant
) -> None:
    planted = plant(work / below, how, victim)
    said = attempt(lambda: rlds_cli.download(SAMPLE), victim)
    if how is to_directory:
        assert said == f"{planted} is a symbolic link. {LEFT}"


def test_nobody_else_looks_into_work_and_everybody_into_what_is_published(home: Path) -> None:
    modes = []

    def look(built: Path) -> None:
        modes.extend(stat.S_IMODE(p.stat().st_mode) for p in (home / "partial").iterdir() if p.is_dir())

    mask = os.umask(0o002)
    try:
        ds = download.deliver(DownloadRequest(SAMPLE), check=look)
        copy = rlds_cli.download(SAMPLE, source=str(home), home=home.with_name("other"))
        reencoding.reencode(SAMPLE, to="zarr")
    finally:
        os.umask(mask)
    assert modes == [0o700]
    for path in (ds.path, copy.path, ds.path / "observation"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o775


# -- datasets of strangers


def make(ref: str = "local/x", **more: object) -> Path:
    episode = {"observation": np.zeros((101, 4)), "action": np.zeros((100, 1))}
    return rlds_cli.create(ref, [episode], **more).path  # type: ignore[arg-type]


def test_a_link_in_a_dataset_is_not_copied_with_it(tmp_path: Path, victim: Victim) -> None:
    found = make(home=tmp_path / "theirs")
    (found / "observation/c/key").symlink_to(victim.file)
    with pytest.raises(DamagedDataset, match="is a symbolic link"):
        sharing.share_tree(found, tmp_path / "copy")
    victim.check()


def test_publishing_makes_no_file_read_only_that_has_another_name(tmp_path: Path, victim: Victim) -> None:
    (tmp_path / "built").mkdir()
    os.link(victim.file, tmp_path / "built/rows")
    publishing.publish(tmp_path / "built", tmp_path / "datasets/x")
    victim.check()


def test_a_file_that_may_be_written_is_copied_before_it_is_made_read_only(tmp_path: Path, home: Path) -> None:
    theirs = make(home=tmp_path / "theirs")
    column = theirs / "observation/c/0/0"
    column.chmod(0o644)
    sharing.share_tree(theirs, tmp_path / "copy")
    publishing.publish(tmp_path / "copy", home / "datasets/local/x")
    assert stat.S_IMODE(column.stat().st_mode) == 0o644
    assert not (home / "datasets/local/x/observation/c/0/0").samefile(column)
    assert (home / "datasets/local/x/action/c/0/0").samefile(theirs / "action/c/0/0")


def test_a_copy_is_read_by_nobody_who_may_not_read_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "key").write_bytes(b"private")
    (tmp_path / "key").chmod(0o600)
    assert disk.share(tmp_path / "key", tmp_path / "copy") in ("reflink", "copy")
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600


@ROOT
def test_a_file_of_another_user_is_copied(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"bytes")
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    assert disk.share(tmp_path / "theirs", tmp_path / "copy") in ("reflink", "copy")
    assert (tmp_path / "theirs").stat().st_nlink == 1


def test_ids_that_differ_in_case_only_are_one_too_many(home: Path) -> None:
    make("local/press")
    with pytest.raises(NameTaken):
        make("local/Press")
    with pytest.raises(NameTaken, match="local/Press and local/press, which exists, differ only in case"):
        make("local/Press", force=True)
    assert [p.name for p in (home / "datasets/local").iterdir()] == ["press"]


# -- removing


@pytest.mark.parametrize("how", [to_directory, to_file])
@pytest.mark.parametrize(
    "place",
    [
        *("packed", "partial", "archives", "datasets", "locks", "archives/d4rl", "datasets/d4rl", "archives/d4rl/pen"),
        *("partial/local+x.0123456789abcdef", "partial/local+x.order", "partial/anything", "packed/abc-def.rows"),
        *("datasets/d4rl/.x.removed", "archives/d4rl/.x.old", "archives/d4rl/pen/x.part", "archives/d4rl/pen/below"),
    ],
)
def test_collecting_passes_over_links(home: Path, victim: Victim, place: str, how: Plant) -> None:
    planted = plant(home / place, how, victim)
    planned = gc.find_garbage(archives=True)
    assert gc.collect(planned).removed == ()
    assert planted.is_symlink()
    assert usage().total < 10_000  # a link itself
    victim.check()
    if "below" not in place and (how is to_directory or place != "archives/d4rl/pen"):
        assert [(g.path, g.why) for g in planned.kept] == [(planted, "a link")]


def test_collecting_passes_over_what_it_does_not_know(home: Path) -> None:
    files = [
        *("partial/notes.txt", "partial/local+x.mine/a", "partial/.git/config", "partial/LOCAL+x.0123456789abcdef/a"),
        *("packed/weights.pt", "packed/models/a", "datasets/d4rl/.my thesis.old/a"),
    ]
    for file in files:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text("mine")
    (home / "archives/d4rl/pen/x.part").mkdir(parents=True)
    (home / "archives/d4rl/pen/x.part/thesis").write_text("mine")
    planned = gc.find_garbage()
    assert planned.removed == ()
    assert {g.why for g in planned.kept} == {"not made by rlds"}
    assert sorted(g.path.relative_to(home).as_posix() for g in planned.kept) == [
        *(
            "archives/d4rl/pen/x.part",
            "datasets/d4rl/.my thesis.old",
            "packed/models",
            "packed/weights.pt",
            "partial/.git",
        ),
        *("partial/LOCAL+x.0123456789abcdef", "partial/local+x.mine", "partial/notes.txt"),
    ]
    assert gc.collect(planned) == planned
    assert all((home / f).exists() for f in [*files, "archives/d4rl/pen/x.part/thesis"])


@ROOT
def test_collecting_passes_over_what_others_have_made(home: Path) -> None:
    places = ["partial/local+x.0123456789abcdef", "packed/abc-def.rows", "archives/d4rl/pen/x.part"]
    for place in places:
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if place.startswith("partial") else path.touch()
        os.chown(path, STRANGER, STRANGER)
    planned = gc.find_garbage()
    assert (planned.removed, {g.why for g in planned.kept}) == ((), {"owned by another user"})
    assert len(planned.kept) == 3


def test_collecting_removes_links_below_work_and_not_what_they_lead_to(home: Path, victim: Victim) -> None:
    work = home / "partial/local+x.0123456789abcdef"
    plant(work / "rows/observation", to_directory, victim)
    plant(work / "rows/key", second_name, victim)
    done = gc.collect(gc.find_garbage())
    assert [g.path for g in done.removed] == [work]
    assert not work.exists()
    victim.check()


def test_a_lock_that_is_a_link_keeps_what_it_locks(home: Path, victim: Victim) -> None:
    plant(home / "locks/local+x.lock", to_file, victim)
    (home / "partial/local+x.0123456789abcdef").mkdir(parents=True)
    (kept,) = gc.find_garbage().kept
    assert kept.why.startswith("its lock cannot be taken: ")
    victim.check()


def test_an_archive_with_files_of_somebody_stays(home: Path) -> None:
    rlds_cli.download(SAMPLE)
    removing.remove([SAMPLE])
    notes = home / ARCHIVE / "thesis/notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    planned = gc.find_garbage(archives=True)
    assert [g.why for g in planned.kept] == ["rlds has not downloaded its thesis/notes.txt"]
    assert gc.collect(planned).removed == ()
    rlds_cli.download(SAMPLE, keep_archive=False)
    assert [p.relative_to(home / ARCHIVE).as_posix() for p in sorted((home / ARCHIVE).rglob("*"))] == [
        *("thesis", "thesis/notes.txt")
    ]


def test_a_dataset_behind_a_link_is_not_removed(tmp_path: Path, home: Path) -> None:
    theirs = make("local/x", home=tmp_path / "theirs")
    (home / "datasets").mkdir(parents=True)
    (home / "datasets/local").symlink_to(theirs.parent)
    assert rlds_cli.open_dataset("local/x").num_episodes == 1  # reading is for everybody
    with pytest.raises(NoPermission, match="datasets/local is a symbolic link"):
        removing.remove(["local/x"])
    (home / "datasets/local").unlink()
    (home / "datasets/local").mkdir()
    (home / "datasets/local/x").symlink_to(theirs)
    with pytest.raises(NoPermission, match="datasets/local/x is a symbolic link"):
        removing.remove(["local/x"])
    assert (theirs / "zarr.json").exists()


@pytest.mark.parametrize("how", [to_directory, to_file])
def test_what_stands_in_the_way_of_a_removal_stays(home: Path, victim: Victim, how: Plant) -> None:
    path = make()
    planted = plant(path.with_name(".x.removed"), how, victim)
    removing.remove(["local/x"])
    victim.check()
    assert list(path.parent.iterdir()) == [planted]


# -- orders


def test_orders_hold_no_credentials_and_are_their_owners(home: Path) -> None:
    id, place = ids.parse(UNHASHED), Home(home)
    asked = DownloadRequest(UNHASHED, source="https://me:pass@host.example/mirror")
    with pytest.raises(KeyboardInterrupt), request.recorded(asked, id, place):
        raise KeyboardInterrupt
    file = place.partial(id, "order")
    assert "pass" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert DownloadRequest.unfinished() == (replace(asked, source="https://host.example/mirror", withheld="user"),)


def test_a_download_with_credentials_is_gone_on_with_by_giving_them_again(tmp_path: Path, home: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [300, 200])
    with Server() as server:
        page = server.add(f"/{FILE}", (tmp_path / "a.hdf5").read_bytes(), drops=[5000], statuses=[None, (401, {})])
        private = server.url.replace("://", "://me:pass@")
        with pytest.raises(DownloadFailed, match="401"):
            rlds_cli.download(UNHASHED, source=private)
        (order,) = DownloadRequest.unfinished()
        page.drops, page.statuses = [], [(401, {})] * 9
        with pytest.raises(DownloadFailed, match="Its address had credentials, which were not kept") as caught:
            download.deliver(order)
        assert caught.value.hint == (
            f"rlds download {UNHASHED} --from ADDRESS, with the whole address, resumes it; so does ~/.netrc"
        )
        assert DownloadRequest.unfinished() == (order,)
        page.statuses = []
        assert rlds_cli.download(UNHASHED, source=private).num_episodes == 2
        assert page.requests[-1].start == 5000
    written = [p for p in home.rglob("*") if p.is_file()]
    assert not [p for p in written if b"pass" in p.read_bytes() and p.suffix in (".json", ".order", ".lock")]


def test_an_order_whose_query_was_secret_is_not_tried_without_it(home: Path) -> None:
    id, place = ids.parse(UNHASHED), Home(home)
    asked = DownloadRequest(UNHASHED, source="https://host.example/mirror?token=abc")
    with pytest.raises(KeyboardInterrupt), request.recorded(asked, id, place):
        raise KeyboardInterrupt
    assert "abc" not in place.partial(id, "order").read_text()
    (order,) = DownloadRequest.unfinished()
    with pytest.raises(DownloadFailed, match="the rest of its address is not on the disk"):
        download.deliver(order)
    (planned,) = download.plan_download([order], guess=True).datasets
    assert "not on the disk" in planned.note


@pytest.mark.parametrize(
    "values",
    [
        {"ref": UNHASHED, "storage": "pickle"},
        {"ref": UNHASHED, "source": 5},
        {"ref": UNHASHED, "files": [{"path": 5, "urls": ["x"]}]},
        {"ref": UNHASHED, "files": 7},
        {"ref": UNHASHED, "pinned": [{"path": "x"}]},
        {"ref": UNHASHED, "portion": {"include": 5, "what": 1}},
        {"ref": UNHASHED, "portion": "x"},
        {"ref": UNHASHED, "force": "yes"},
        {"ref": UNHASHED, "withheld": ["user"]},
    ],
)
def test_an_order_that_is_none_is_passed_over(home: Path, values: dict[str, object]) -> None:
    (home / "partial").mkdir(parents=True)
    (home / f"partial/{UNHASHED.replace('/', '+')}.order").write_text(json.dumps(values))
    assert DownloadRequest.unfinished() == ()


@ROOT
def test_nobody_orders_for_others(home: Path) -> None:
    (home / "partial").mkdir(parents=True)
    file = home / f"partial/{UNHASHED.replace('/', '+')}.order"
    file.write_text(json.dumps({"ref": UNHASHED, "source": "https://attacker.example"}))
    assert len(DownloadRequest.unfinished()) == 1
    os.chown(file, STRANGER, STRANGER)
    assert DownloadRequest.unfinished() == ()


def test_files_with_addresses_are_their_owners(tmp_path: Path, home: Path) -> None:
    write_d4rl(tmp_path / "a.hdf5", [30, 20])
    seen: dict[str, int] = {}

    def look(event: object) -> None:
        for path in home.rglob("*"):
            if path.suffix in (".json", ".order") and "datasets" not in path.parts and "rows" not in path.parts:
                with suppress(FileNotFoundError):
                    seen[path.name] = stat.S_IMODE(path.stat().st_mode)

    with Server() as server:
        server.add(f"/{FILE}", (tmp_path / "a.hdf5").read_bytes())
        rlds_cli.download(UNHASHED, source=server.url, progress=look)
    assert set(seen) >= {f"{FILE}.json", ".listing.json", f"{UNHASHED.replace('/', '+')}.order"}
    assert set(seen.values()) == {0o600}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_records_that_may_not_be_read_are_not_taken_for_files(tmp_path: Path, home: Path) -> None:
    rlds_cli.download(SAMPLE)
    for record in (home / ARCHIVE).glob("*.json"):
        record.chmod(0)
    assert rlds_cli.download(SAMPLE, source=str(home / ARCHIVE), home=tmp_path / "other").num_episodes > 0
