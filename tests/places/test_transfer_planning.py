"""Plans: what is reused, verified, adopted, linked and fetched, and that carrying them out keeps to it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from server import Server

from rlds_cli.base.files import disk
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.progress import Event
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, NoSpace, Offline, UnsafeArchive, WrongHash
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile

HASTY = RetryPolicy(attempts=2, first=0.001, longest=0.01)
CONTENT = b"\x89HDF" + bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
GIT = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
KEY = "farama-minari/D4RL/door/human-v2/data/x.h5"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        running.add("/d/x.h5", CONTENT)
        yield running


@pytest.fixture
def where(server: Server, tmp_path: Path) -> Settings:
    return server.settings(tmp_path)


@pytest.fixture
def file(server: Server) -> RemoteFile:
    return RemoteFile("x.h5", (f"{server.url}/d/x.h5",), size=len(CONTENT), sha256=SHA256, key=KEY)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def bring(file: RemoteFile, archive: Path, where: Settings) -> fetching.Fetched:
    return fetching.fetch(planning.plan([file], archive, where), where, policy=HASTY)[0]


def decided(file: RemoteFile, archive: Path, where: Settings, **more: bool) -> planning.Step:
    return planning.plan([file], archive, where, **more).steps[0]


def write(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_what_is_not_here_is_fetched(file: RemoteFile, archive: Path, where: Settings) -> None:
    plan = planning.plan([file, replace(file, path="y.h5", size=None)], archive, where)
    assert [s.action for s in plan.steps] == ["fetch", "fetch"]
    assert (plan.to_fetch, plan.to_write, plan.unknown_sizes, plan.finished) == (len(CONTENT), len(CONTENT), 1, False)
    assert not archive.exists()


def test_what_is_here_and_recorded_is_reused_at_once(
    file: RemoteFile, archive: Path, where: Settings, server: Server
) -> None:
    bring(file, archive, where)
    plan = planning.plan([file], archive, where)
    assert plan.finished
    assert (plan.to_fetch, plan.to_write) == (0, 0)
    assert fetching.fetch(plan, replace(where, offline=True))[0].record.sha256 == SHA256
    assert len(server.asked) == 1


def test_what_was_touched_is_verified(file: RemoteFile, archive: Path, where: Settings, server: Server) -> None:
    bring(file, archive, where)
    os.utime(archive / "x.h5", (1, 1))
    assert decided(file, archive, where).action == "verify"
    fetched = bring(file, archive, where)
    assert fetched.action == "verify"
    assert fetched.record.url == file.urls[0]
    assert decided(file, archive, where).action == "reuse"
    assert len(server.asked) == 1


def test_verifying_on_request(file: RemoteFile, archive: Path, where: Settings) -> None:
    bring(file, archive, where)
    assert decided(file, archive, where, rehash=True).action == "verify"


@pytest.mark.parametrize("promised", [True, False])
def test_what_was_altered_is_fetched_again(
    file: RemoteFile, archive: Path, where: Settings, server: Server, promised: bool
) -> None:
    """Without a published hash the recorded one decides."""
    file = file if promised else replace(file, sha256=None, size=None)
    bring(file, archive, where)
    os.utime(write(archive / "x.h5", b"!" + CONTENT[1:]), (1, 1))
    assert bring(file, archive, where).action == "fetch"
    assert (archive / "x.h5").read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_what_was_altered_without_a_trace_is_found_by_rehashing(
    file: RemoteFile, archive: Path, where: Settings, server: Server
) -> None:
    bring(file, archive, where)
    before = (archive / "x.h5").stat()
    os.utime(write(archive / "x.h5", b"!" + CONTENT[1:]), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert decided(file, archive, where).action == "reuse"
    plan = planning.plan([file], archive, where, rehash=True)
    assert fetching.fetch(plan, where, policy=HASTY)[0].action == "fetch"
    assert (archive / "x.h5").read_bytes() == CONTENT


def test_what_was_cut_short_is_fetched_again(file: RemoteFile, archive: Path, where: Settings) -> None:
    bring(file, archive, where)
    os.truncate(archive / "x.h5", 100)
    assert decided(file, archive, where).action == "fetch"
    bring(file, archive, where)
    assert (archive / "x.h5").read_bytes() == CONTENT


def test_a_new_promise_is_not_met_by_an_old_file(
    file: RemoteFile, archive: Path, where: Settings, server: Server
) -> None:
    bring(file, archive, where)
    new = CONTENT[::-1]
    server.add("/d/x.h5", new)
    newer = replace(file, sha256=hashlib.sha256(new).hexdigest())
    assert decided(newer, archive, where).action == "verify"  # of the size promised; the hash decides
    assert bring(newer, archive, where).action == "fetch"
    assert (archive / "x.h5").read_bytes() == new


def test_a_file_that_somebody_put_there_is_verified_by_its_hash(
    file: RemoteFile, archive: Path, where: Settings, server: Server
) -> None:
    write(archive / "x.h5")
    assert decided(replace(file, sha256=None), archive, where).action == "fetch"
    assert bring(file, archive, where).action == "verify"
    assert json.loads((archive / "x.h5.json").read_text())["sha256"] == SHA256
    assert server.asked == []


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"size": "x"}', "\x00"])
def test_a_record_that_cannot_be_read_is_none(file: RemoteFile, archive: Path, where: Settings, junk: str) -> None:
    bring(file, archive, where)
    (archive / "x.h5.json").write_text(junk)
    assert decided(file, archive, where).action == "verify"
    assert decided(replace(file, sha256=None), archive, where).action == "fetch"


# Adoption


def test_a_copy_of_d4rl_is_adopted(
    file: RemoteFile, archive: Path, where: Settings, server: Server, tmp_path: Path
) -> None:
    copy = write(tmp_path / "d4rl" / "x.h5")
    file = replace(file, key="rail.example.edu/datasets/gym_mujoco_v2/x.h5")
    step = decided(file, archive, where)
    assert (step.action, step.origin, step.to_fetch, step.to_write) == ("adopt", copy, 0, 0)
    events: list[Event] = []
    (came,) = fetching.fetch(planning.plan([file], archive, where), where, id="d4rl/x", progress=events.append)
    assert (came.action, came.shared) == ("adopt", "link")
    assert came.path.samefile(copy)
    assert came.record.url == file.urls[0]
    assert [(e.stage, e.note) for e in events] == [("verify", "sha256 ok"), ("adopt", f"hard link of {copy}")]
    assert server.asked == []
    assert decided(file, archive, where).action == "reuse"


@pytest.mark.parametrize(
    "place",
    [
        "minari/D4RL/door/human-v2/data/x.h5",
        "user/.ogbench/data/x.h5",
        f"cache/huggingface/hub/datasets--farama-minari--D4RL/blobs/{SHA256}",
        f"cache/huggingface/hub/datasets--farama-minari--D4RL/blobs/{GIT}",
    ],
)
def test_copies_of_other_tools_are_adopted(
    file: RemoteFile, archive: Path, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    where = server.settings(tmp_path)
    copy = write(tmp_path / place)
    before = copy.stat()
    came = bring(replace(file, git_sha1=GIT), archive, where)
    assert came.action == "adopt"
    assert (archive / "x.h5").read_bytes() == CONTENT
    after = copy.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert server.asked == []


def test_a_copy_of_a_file_that_only_git_names_is_adopted(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path
) -> None:
    write(tmp_path / "minari" / "D4RL/door/human-v2/data/x.h5")
    assert bring(replace(file, sha256=None, git_sha1=GIT), archive, where).action == "adopt"


def test_a_link_in_the_cache_of_the_hub_is_followed(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path
) -> None:
    real = write(tmp_path / "elsewhere" / "blob")
    (tmp_path / "d4rl").mkdir()
    (tmp_path / "d4rl" / "x.h5").symlink_to(real)
    assert bring(file, archive, where).path.samefile(real)
    assert not (archive / "x.h5").is_symlink()


def test_a_copy_that_is_another_file_is_left_alone(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path, server: Server
) -> None:
    other = write(tmp_path / "d4rl" / "x.h5", CONTENT[::-1])
    assert decided(file, archive, where).action == "adopt"  # the size fits
    assert bring(file, archive, where).action == "fetch"
    assert other.read_bytes() == CONTENT[::-1]
    assert (archive / "x.h5").read_bytes() == CONTENT
    write(other, CONTENT[:-1])
    assert decided(file, tmp_path / "again", where).action == "fetch"


def test_nothing_is_adopted_without_a_hash(file: RemoteFile, archive: Path, where: Settings, tmp_path: Path) -> None:
    write(tmp_path / "d4rl" / "x.h5")
    assert decided(replace(file, sha256=None), archive, where).action == "fetch"


def test_offline_a_copy_that_does_not_fit_is_named(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path
) -> None:
    write(tmp_path / "d4rl" / "x.h5", CONTENT[::-1])
    with pytest.raises(Offline, match="sha256 is"):
        bring(file, archive, replace(where, offline=True))


def test_a_copy_that_cannot_be_read_is_passed_over(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path
) -> None:
    copy = write(tmp_path / "d4rl" / "x.h5")
    copy.chmod(0)
    assert bring(file, archive, where).action == ("adopt" if os.geteuid() == 0 else "fetch")


def test_a_copy_that_does_not_fit_is_not_blamed_for_a_source_that_is_gone(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path, server: Server
) -> None:
    write(tmp_path / "d4rl" / "x.h5", CONTENT[::-1])
    with pytest.raises(DownloadFailed, match="HTTP 404"):
        bring(replace(file, urls=(f"{server.url}/gone/x.h5",)), archive, where)


# Files of this machine


def test_a_local_file_is_linked_and_never_changed(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path
) -> None:
    source = write(tmp_path / "mine" / "x.h5")
    source.chmod(0o440)
    before = source.stat()
    local = RemoteFile("x.h5", (source.as_uri(),), size=len(CONTENT))
    step = decided(local, archive, where)
    assert (step.action, step.origin, step.to_write) == ("link", source, 0)
    came = bring(local, archive, replace(where, offline=True))
    assert (came.action, came.shared, came.record.sha256) == ("link", "link", SHA256)
    after = source.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ino) == (before.st_mode, before.st_mtime_ns, before.st_ino)
    assert source.read_bytes() == CONTENT
    assert decided(local, archive, where).action == "reuse"


def test_a_local_file_of_the_wrong_hash(archive: Path, where: Settings, tmp_path: Path) -> None:
    source = write(tmp_path / "mine" / "x.h5")
    with pytest.raises(WrongHash, match="left as it is") as caught:
        bring(RemoteFile("x.h5", (source.as_uri(),), sha256="ab" * 32), archive, where)
    assert str(source) in caught.value.message
    assert source.read_bytes() == CONTENT
    assert not (archive / "x.h5").exists()


def test_a_local_file_that_is_gone(archive: Path, where: Settings, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="does not exist"):
        bring(RemoteFile("x.h5", ((tmp_path / "gone.h5").as_uri(),)), archive, where)


def test_a_local_file_that_is_gone_is_fetched_from_the_next_url(
    file: RemoteFile, archive: Path, where: Settings, tmp_path: Path
) -> None:
    both = replace(file, urls=((tmp_path / "gone.h5").as_uri(), *file.urls))
    assert bring(both, archive, where).action == "fetch"


def test_a_local_file_replaces_what_was_there(archive: Path, where: Settings, tmp_path: Path) -> None:
    old, new = write(tmp_path / "old" / "x.h5"), write(tmp_path / "new" / "x.h5", CONTENT[::-1])
    bring(RemoteFile("x.h5", (old.as_uri(),)), archive, where)
    bring(RemoteFile("x.h5", (new.as_uri(),), sha256=hashlib.sha256(CONTENT[::-1]).hexdigest()), archive, where)
    assert (archive / "x.h5").read_bytes() == CONTENT[::-1]
    assert old.read_bytes() == CONTENT


# Space, names, listings


def test_copies_count_as_bytes_to_write(archive: Path, where: Settings, tmp_path: Path) -> None:
    other_disk = Path("/dev/shm")
    if not os.access(other_disk, os.W_OK) or other_disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second disk here")
    source = other_disk / f"rlds-test-{os.getpid()}.h5"
    try:
        write(source)
        local = RemoteFile("x.h5", (source.as_uri(),))
        assert decided(local, archive, where).to_write == len(CONTENT)
        came = bring(local, archive, where)
        assert came.shared == "copy"
        assert came.path.read_bytes() == CONTENT
        assert decided(local, archive, where).action == "reuse"
    finally:
        source.unlink()


def test_space_is_asked_of_the_nearest_directory_that_exists(tmp_path: Path) -> None:
    nowhere = tmp_path / "a" / "b" / "c"
    assert disk.free(nowhere) == pytest.approx(disk.free(tmp_path), rel=0.1)
    disk.check_space(1, nowhere)
    with pytest.raises(NoSpace, match=r"1024\.0 TiB") as caught:
        disk.check_space(2**50, nowhere)
    assert "--home" in str(caught.value)
    assert not nowhere.exists()


@pytest.mark.parametrize("name", ["../x.h5", "/x.h5", "a\\b"])
def test_a_name_that_leaves_the_destination_is_not_planned(
    file: RemoteFile, archive: Path, where: Settings, name: str
) -> None:
    with pytest.raises(UnsafeArchive):
        planning.plan([replace(file, path=name)], archive, where)


def test_a_listing_is_remembered(file: RemoteFile, archive: Path, where: Settings) -> None:
    assert planning.recorded(archive) is None
    bring(file, archive, where)
    assert planning.recorded(archive) == (file,)
    (archive / "x.h5").unlink()
    assert planning.recorded(archive) is None


@pytest.mark.parametrize(
    "junk", ["", "{}", '{"files": 5}', '{"files": []}', '{"files": [{"path": "x.h5"}]}', '{"files": [5]}']
)
def test_a_listing_that_cannot_be_read_is_none(file: RemoteFile, archive: Path, where: Settings, junk: str) -> None:
    bring(file, archive, where)
    (archive / ".listing.json").write_text(junk)
    assert planning.recorded(archive) is None


def test_a_failed_transfer_is_not_remembered(file: RemoteFile, archive: Path, where: Settings, server: Server) -> None:
    both = [file, replace(file, path="y.h5", urls=(f"{server.url}/gone/y.h5",))]
    with pytest.raises(DownloadFailed):
        fetching.fetch(planning.plan(both, archive, where), where, policy=HASTY)
    assert planning.recorded(archive) is None
