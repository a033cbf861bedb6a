"""Listings: hub repositories, single files, directories, the package, mirrors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server import COMMIT, Server

from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.base.settings import Settings
from rlds_cli.errors import DownloadFailed, Offline, UnsafeArchive
from rlds_cli.make.downloads import listing
from rlds_cli.make.downloads.fetch import fetching, planning
from rlds_cli.places import RemoteFile

HASTY = RetryPolicy(attempts=3, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
MINARI = {
    "door/human-v2/data/main_data.hdf5": b"\x89HDF human",
    "door/human-v2/data/metadata.json": b'{"a": 1}',
    "door/human-v2/namespace_metadata.json": b"{}",
    "door/human-v20/data/main_data.hdf5": b"\x89HDF other",
    "pen/expert-v2/data/0/part-0.arrow": b"zero",
    "pen/expert-v2/data/2/part-0.arrow": b"two",
    "pen/expert-v2/data/10/part-0.arrow": b"ten",
    "pen/expert-v2/data/metadata.json": b"{}",
    "README.md": b"read me",
    ".gitattributes": b"*.hdf5 filter=lfs",
}
LFS = [name for name in MINARI if name.endswith((".hdf5", ".arrow"))]
ROBOSET = {
    "DAPG(expert)/door_v2d-v1_seed10.h5": b"ten",
    "DAPG(expert)/door_v2d-v1_seed2.h5": b"two",
    "DAPG(expert)/door_v2d-v1_seed2.txt": b"notes",
    "DAPG(expert)/door_v2d-v10_seed1.h5": b"another",
    "DAPG(expert)/pen_v2d-v1_seed1.h5": b"pen",
    "DAPG(human)/door_v2d-v1_seed1.h5": b"human",
}
DOOR = "hf://datasets/farama-minari/D4RL/door/human-v2/data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as running:
        yield running


@pytest.fixture
def where(server: Server, tmp_path: Path) -> Settings:
    return server.settings(tmp_path)


def listed(where: Settings, *urls: str, **more: Any) -> tuple[RemoteFile, ...]:
    return listing.list_files(urls, where, policy=HASTY, **more)


def brought(files: tuple[RemoteFile, ...], where: Settings, directory: Path) -> dict[str, bytes]:
    came = fetching.fetch(planning.plan(files, directory, where), where, policy=HASTY)
    return {c.file.path: c.path.read_bytes() for c in came}


def test_a_directory_of_the_hub(server: Server, where: Settings, tmp_path: Path) -> None:
    server.add_repository("farama-minari/D4RL", MINARI, lfs=LFS)
    files = listed(where, DOOR)
    assert [f.path for f in files] == ["main_data.hdf5", "metadata.json"]
    data, metadata = files
    assert (data.size, data.sha256) == (10, hashlib.sha256(b"\x89HDF human").hexdigest())
    assert (metadata.sha256, metadata.git_sha1) == (None, hashlib.sha1(b'blob 8\0{"a": 1}').hexdigest())
    assert data.revision == COMMIT
    assert (
        data.urls[0] == f"{server.url}/datasets/farama-minari/D4RL/resolve/{COMMIT}/door/human-v2/data/main_data.hdf5"
    )
    assert data.key == "farama-minari/D4RL/door/human-v2/data/main_data.hdf5"
    assert brought(files, where, tmp_path / "d") == {"main_data.hdf5": b"\x89HDF human", "metadata.json": b'{"a": 1}'}
    record = json.loads((tmp_path / "d" / "main_data.hdf5.json").read_text())
    assert (record["revision"], record["sha256"]) == (COMMIT, data.sha256)


SERVERS: list[dict[str, Any]] = [
    {},
    {"page_size": 2},
    {"recursive": False},
    {"subpaths": False},
    {"revisions": False},
    {"revisions": False, "pinned": False},
    {"recursive": False, "revisions": False, "pinned": False, "page_size": 1},
    {"subpaths": False, "revisions": False, "pinned": False, "page_size": 3},
]


@pytest.mark.thorough
@pytest.mark.parametrize("server_knows", SERVERS, ids=str)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("door/human-v2/data", ["main_data.hdf5", "metadata.json"]),
        ("pen/expert-v2/data", ["0/part-0.arrow", "2/part-0.arrow", "10/part-0.arrow", "metadata.json"]),
        ("door/human-v2/data/metadata.json", ["metadata.json"]),
        ("README.md", ["README.md"]),
    ],
)
def test_servers_that_know_little_of_the_hub(
    server: Server, where: Settings, tmp_path: Path, server_knows: dict[str, Any], path: str, expected: list[str]
) -> None:
    server.add_repository("farama-minari/D4RL", MINARI, lfs=LFS, **server_knows)
    files = listed(where, f"hf://datasets/farama-minari/D4RL/{path}")
    assert [f.path for f in files] == expected
    assert files[0].revision == ("main" if server_knows.get("pinned") is False else COMMIT)
    parent = path if expected != [Path(path).name] else str(Path(path).parent)
    assert brought(files, where, tmp_path / "d") == {
        name: MINARI[name if parent == "." else f"{parent}/{name}"] for name in expected
    }


@pytest.mark.thorough
@pytest.mark.parametrize("server_knows", SERVERS, ids=str)
def test_a_prefix_and_a_suffix(server: Server, where: Settings, server_knows: dict[str, Any]) -> None:
    server.add_repository("jdvakil/RoboSet_Sim", ROBOSET, **server_knows)
    url = "hf://datasets/jdvakil/RoboSet_Sim/DAPG(expert)/door_v2d-v1"
    expected = ["door_v2d-v1_seed2.h5", "door_v2d-v1_seed10.h5"]
    assert [f.path for f in listed(where, url, suffix=".h5")] == expected
    assert [f.path for f in listed(where, url + "**.h5")] == expected
    assert [f.path for f in listed(where, url)] == ["door_v2d-v1_seed2.h5", "door_v2d-v1_seed2.txt", expected[1]]


def test_a_prefix_that_is_a_directory_too(server: Server, where: Settings) -> None:
    files = {"DAPG(expert)/door_v2d-v1/seed10.h5": b"a", "DAPG(expert)/door_v2d-v1/seed9.h5": b"b"}
    server.add_repository("jdvakil/RoboSet_Sim", files)
    found = listed(where, "hf://datasets/jdvakil/RoboSet_Sim/DAPG(expert)/door_v2d-v1", suffix=".h5")
    assert [f.path for f in found] == ["door_v2d-v1/seed9.h5", "door_v2d-v1/seed10.h5"]


def test_a_whole_repository(server: Server, where: Settings) -> None:
    server.add_repository("farama-minari/D4RL", MINARI, lfs=LFS)
    assert {f.path for f in listed(where, "hf://datasets/farama-minari/D4RL")} == set(MINARI) - {".gitattributes"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("url", "revision"),
    [
        ("hf://datasets/o/r@v3.0/x.h5", "v3.0"),
        ("hf://datasets/o/r/x.h5@v3.0", "v3.0"),
        ("hf://datasets/o/r@refs/pr/1/x.h5", "refs/pr/1"),
        ("hf://datasets/o/r/x.h5@refs/pr/1", "refs/pr/1"),
    ],
)
def test_a_revision(server: Server, where: Settings, tmp_path: Path, url: str, revision: str) -> None:
    server.add_repository("o/r", {"x.h5": b"old"}, revision=revision)
    server.add_repository("o/r", {"x.h5": b"new"}, revision="main", pinned=False, revisions=False)
    (file,) = listed(where, url)
    assert file.revision == COMMIT
    assert brought((file,), where, tmp_path / "d") == {"x.h5": b"old"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "url", ["hf://datasets/only", "hf://models/o/r", "hf://datasets/../r/x", "hf://", "hf://datasets/o/.."]
)
def test_what_is_no_repository(where: Settings, url: str) -> None:
    with pytest.raises(DownloadFailed, match="does not name a dataset repository"):
        listed(where, url)


def test_what_a_repository_does_not_have(server: Server, where: Settings) -> None:
    server.add_repository("o/r", {"a/x.h5": b"x"})
    with pytest.raises(DownloadFailed, match='nothing called "a/y"'):
        listed(where, "hf://datasets/o/r/a/y")
    with pytest.raises(DownloadFailed, match="does not list o/other at main: HTTP 404"):
        listed(where, "hf://datasets/o/other")


def test_another_revision_is_taken_only_where_the_first_is_not_there(server: Server, where: Settings) -> None:
    server.add_repository("o/r", {"x.h5": b"two"}, revision="v2.1")
    urls = [f"hf://datasets/o/r@{revision}" for revision in ("v3.0", "v2.1")]
    assert listed(where, *urls)[0].path == "x.h5"
    for call in ("revision", "tree"):
        server.add(f"/api/datasets/o/r/{call}/v3.0", b"", statuses=[(503, {})] * 10)
    with pytest.raises(DownloadFailed, match=r"v3\.0: HTTP 503"):
        listed(where, *urls)


def test_a_listing_that_fails_for_a_moment(server: Server, where: Settings) -> None:
    server.add_repository("o/r", {"x.h5": b"x"}, revisions=False)
    server.pages["/api/datasets/o/r/tree/main"].statuses = [(503, {}), (429, {"Retry-After": "0"})]
    assert len(listed(where, "hf://datasets/o/r/x.h5")) == 1


@pytest.mark.parametrize("body", ["<html>", '{"error": "x"}', '["x"]', '[{"path": 5}]', "[]"])
def test_a_listing_that_is_none(server: Server, where: Settings, body: str) -> None:
    server.add("/api/datasets/o/r/tree/main", body)
    with pytest.raises(DownloadFailed):
        listed(where, "hf://datasets/o/r")


def test_a_listing_that_goes_in_circles(server: Server, where: Settings) -> None:
    entries = [{"type": "file", "path": "x.h5", "size": 1}, {"type": "directory", "path": "a"}]
    page = server.add("/api/datasets/o/r/tree/main", json.dumps(entries))
    page.headers["Link"] = f'<{server.url}/api/datasets/o/r/tree/main>; rel="next"'
    server.pages["/api/datasets/o/r/tree/main/a"] = page
    assert [f.path for f in listed(where, "hf://datasets/o/r")] == ["x.h5"]


def test_a_repository_that_only_lists_siblings(server: Server, where: Settings) -> None:
    server.add("/api/datasets/o/r/revision/main", json.dumps({"siblings": [{"rfilename": "d/x.h5"}]}))
    (file,) = listed(where, "hf://datasets/o/r/d")
    assert (file.path, file.size, file.sha256) == ("x.h5", None, None)


@pytest.mark.thorough
@pytest.mark.parametrize("oid", ["0" * 40, "f" * 40, "1234", "0" * 39 + "1", None])
def test_a_placeholder_is_no_hash(server: Server, where: Settings, oid: str | None) -> None:
    server.add("/api/datasets/o/r/tree/main", json.dumps([{"type": "file", "path": "x.h5", "oid": oid, "size": 3}]))
    (file,) = listed(where, "hf://datasets/o/r")
    assert file.git_sha1 is None


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["../x.h5", "/etc/x.h5", "a\\..\\x.h5", "C:/x.h5", "a/../../x.h5", "x\0.h5"])
def test_a_listed_name_that_leaves_its_directory(server: Server, where: Settings, path: str) -> None:
    entries = [{"type": "file", "path": path, "size": 1}]
    server.add("/api/datasets/o/r/tree/main", json.dumps(entries))
    with pytest.raises(UnsafeArchive):
        listed(where, "hf://datasets/o/r")


def test_offline_the_hub_is_not_asked(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, RLDS_OFFLINE="1")
    with pytest.raises(Offline):
        listed(where, DOOR)
    assert server.asked == []


# Tokens


def test_the_token_goes_to_the_hub(server: Server, tmp_path: Path) -> None:
    server.add_repository("o/r", {"x.h5": b"secret data"}, token="hf_secret")
    with pytest.raises(DownloadFailed, match="HF_TOKEN"):
        listed(server.settings(tmp_path), "hf://datasets/o/r")
    where = server.settings(tmp_path, HF_TOKEN="hf_secret")
    assert brought(listed(where, "hf://datasets/o/r"), where, tmp_path / "d") == {"x.h5": b"secret data"}
    written = [p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file()]
    assert written
    assert not any(b"hf_secret" in content for content in written)


def test_the_token_goes_nowhere_else(server: Server, tmp_path: Path) -> None:
    where = server.settings(tmp_path, HF_TOKEN="hf_secret")
    with Server() as elsewhere:
        far = elsewhere.add("/cdn/x.h5", b"bytes")
        pages = server.add_repository(
            "o/r", {"x.h5": b"bytes"}, token="hf_secret", redirect=elsewhere.url + "/cdn/x.h5"
        )
        assert brought(listed(where, "hf://datasets/o/r"), where, tmp_path / "d") == {"x.h5": b"bytes"}
        plain = elsewhere.add("/y.h5", b"bytes")
        brought(listed(where, elsewhere.url + "/y.h5"), where, tmp_path / "e")
    assert pages["x.h5"].requests[0].headers["Authorization"] == "Bearer hf_secret"
    assert all("Authorization" not in r.headers for r in [*far.requests, *plain.requests])


def test_netrc_does_not_take_the_place_of_the_token(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    where = server.settings(tmp_path, HF_TOKEN="hf_secret")
    server.add_repository("o/r", {"x.h5": b"bytes"}, token="hf_secret")
    assert len(listed(where, "hf://datasets/o/r")) == 1


def test_errors_and_records_hold_no_secrets(server: Server, where: Settings, tmp_path: Path) -> None:
    server.add("/x.h5", b"bytes")
    url = server.url.replace("http://", "http://user:hunter2@") + "/x.h5?token=hunter2"
    assert brought(listed(where, url), where, tmp_path / "d") == {"x.h5": b"bytes"}
    assert not any(b"hunter2" in p.read_bytes() for p in (tmp_path / "d").rglob("*") if p.is_file())
    with pytest.raises(DownloadFailed) as caught:
        brought(listed(where, url.replace("/x.h5", "/y.h5")), where, tmp_path / "d")
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_a_token_that_cannot_be_a_header_is_not_shown(server: Server, tmp_path: Path) -> None:
    server.add_repository("o/r", {"x.h5": b"bytes"})
    with pytest.raises(DownloadFailed) as caught:
        listed(server.settings(tmp_path, HF_TOKEN="hf_sec\nret"), "hf://datasets/o/r")
    assert "hf_sec" not in str(caught.value)


# Plain URLs, several of them


def test_a_plain_url_is_not_asked_before_it_is_fetched(server: Server, where: Settings) -> None:
    (file,) = listed(where, f"{server.url}/gym/hopper.hdf5", size=5, sha256="AB" * 32)
    assert (file.path, file.size, file.sha256) == ("hopper.hdf5", 5, "ab" * 32)
    assert server.asked == []


def test_mirrors_of_one_file_are_further_urls(server: Server, where: Settings) -> None:
    urls = [f"{server.url}/gym/hopper.hdf5", "hf://datasets/imone/D4RL/hopper.hdf5"]
    for order in (urls, urls[::-1]):
        (file,) = listed(where, *order, sha256="ab" * 32)
        assert file.urls == tuple(order)
    assert server.asked == []


def test_a_mirror_on_the_hub_is_fetched_when_the_first_fails(server: Server, where: Settings, tmp_path: Path) -> None:
    server.add_repository("imone/D4RL", {"hopper.hdf5": b"hop"})
    files = listed(where, f"{server.url}/gone/hopper.hdf5", "hf://datasets/imone/D4RL/hopper.hdf5")
    assert brought(files, where, tmp_path / "d") == {"hopper.hdf5": b"hop"}


@pytest.mark.thorough
def test_the_next_listing_is_asked_when_the_first_fails(server: Server, where: Settings) -> None:
    server.add_repository("farama-minari/D4RL", MINARI, lfs=LFS)
    files = listed(where, "hf://datasets/somebody/gone/data", DOOR)
    assert [f.path for f in files] == ["main_data.hdf5", "metadata.json"]
    with pytest.raises(DownloadFailed, match="somebody/gone"):
        listed(where, "hf://datasets/somebody/gone/data", "hf://datasets/somebody/else/data")


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://bucket/x", "http:///x.h5", "http://host/"])
def test_what_cannot_be_fetched(where: Settings, url: str) -> None:
    with pytest.raises(DownloadFailed):
        listed(where, url)


# On this machine


def test_a_directory_a_file_and_a_pattern_on_this_machine(where: Settings, tmp_path: Path) -> None:
    base = tmp_path / "my data"
    for name in ("data/10/p.arrow", "data/9/p.arrow", "data/.DS_Store", "seed2.h5", "seed10.h5", "seed1.txt"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(name.encode())
    for url in (str(base / "data"), (base / "data").as_uri()):
        assert [f.path for f in listed(where, url)] == ["9/p.arrow", "10/p.arrow"]
    assert [f.path for f in listed(where, str(base / "seed*.h5"))] == ["seed2.h5", "seed10.h5"]
    (file,) = listed(where, str(base / "seed2.h5"))
    assert (file.path, file.size, file.urls) == ("seed2.h5", 8, ((base / "seed2.h5").as_uri(),))
    with pytest.raises(DownloadFailed, match="does not exist"):
        listed(where, str(base / "seed3.h5"))
    with pytest.raises(DownloadFailed, match="another machine"):
        listed(where, "file://elsewhere/x.h5")


def test_records_of_ours_are_not_files_of_an_archive(server: Server, where: Settings, tmp_path: Path) -> None:
    server.add_repository("farama-minari/D4RL", MINARI, lfs=LFS)
    brought(listed(where, DOOR), where, tmp_path / "d")
    assert [f.path for f in listed(where, str(tmp_path / "d"))] == ["main_data.hdf5", "metadata.json"]


def test_samples_inside_the_package(where: Settings) -> None:
    import rlds_cli

    inside = Path(rlds_cli.__file__).parent / "samples" / "pendulum-d4rl.hdf5"
    (file,) = listed(where, "package:samples/pendulum-d4rl.hdf5")
    assert (file.path, file.size, file.urls) == (
        "pendulum-d4rl.hdf5",
        inside.stat().st_size,
        ("package:samples/pendulum-d4rl.hdf5",),
    )
    found = listed(where, "package:samples/cartpole-minari")
    assert {f.path for f in found} == {"data/main_data.hdf5", "data/metadata.json"}
    assert {f.urls[0] for f in found} >= {"package:samples/cartpole-minari/data/metadata.json"}
    for url in ("package:../pyproject.toml", "package:/etc/passwd"):
        with pytest.raises(UnsafeArchive):
            listed(where, url)


# --from


HOPPER = "http://rail.example.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"


@pytest.mark.parametrize(
    "place",
    [
        "hopper_medium-v2.hdf5",
        "gym_mujoco_v2/hopper_medium-v2.hdf5",
        "datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5",
        "rail.example.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5",
    ],
)
def test_from_a_local_mirror(where: Settings, tmp_path: Path, place: str) -> None:
    copy = tmp_path / "mirror" / place
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"hop")
    for source in (str(tmp_path / "mirror"), (tmp_path / "mirror").as_uri(), str(copy)):
        (file,) = listed(where, HOPPER, source=source, size=5, sha256="ab" * 32)
        assert (file.path, file.urls) == ("hopper_medium-v2.hdf5", (copy.as_uri(),))
        assert (file.size, file.sha256) == (3, "ab" * 32)


def test_from_a_file_of_another_name(where: Settings, tmp_path: Path) -> None:
    (tmp_path / "mine.h5").write_bytes(b"hop")
    (file,) = listed(where, HOPPER, source=str(tmp_path / "mine.h5"))
    assert file.path == "hopper_medium-v2.hdf5"
    assert brought((file,), where, tmp_path / "d") == {"hopper_medium-v2.hdf5": b"hop"}


@pytest.mark.parametrize(
    "root",
    ["", "farama-minari", "farama-minari/D4RL", "farama-minari/D4RL/door", "farama-minari/D4RL/door/human-v2/data"],
)
def test_from_a_local_copy_of_what_the_hub_lists(server: Server, tmp_path: Path, root: str) -> None:
    where = server.settings(tmp_path, RLDS_OFFLINE="1")
    data = tmp_path / "mirror" / "farama-minari/D4RL/door/human-v2/data"
    data.mkdir(parents=True)
    (data / "main_data.hdf5").write_bytes(b"x")
    (data / "metadata.json").write_bytes(b"{}")
    files = listed(where, DOOR, source=str(tmp_path / "mirror" / root))
    assert [f.path for f in files] == ["main_data.hdf5", "metadata.json"]
    assert server.asked == []


def test_from_a_local_copy_of_a_pattern(where: Settings, tmp_path: Path) -> None:
    for name, content in ROBOSET.items():
        (tmp_path / "mirror" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mirror" / name).write_bytes(content)
    url = "hf://datasets/jdvakil/RoboSet_Sim/DAPG(expert)/door_v2d-v1"
    for root in ("mirror", "mirror/DAPG(expert)"):
        files = listed(where, url, suffix=".h5", source=str(tmp_path / root))
        assert [f.path for f in files] == ["door_v2d-v1_seed2.h5", "door_v2d-v1_seed10.h5"]


def test_from_a_directory_that_does_not_hold_it(where: Settings, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "hopper_medium-v2.hdf5.bak").write_bytes(b"x")
    with pytest.raises(DownloadFailed, match=r"does not hold.*hopper_medium-v2\.hdf5"):
        listed(where, HOPPER, source=str(tmp_path / "mirror"))
    with pytest.raises(DownloadFailed, match=r"There is no .*nowhere"):
        listed(where, HOPPER, source=str(tmp_path / "nowhere"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "place",
    [
        "/m/hopper_medium-v2.hdf5",
        "/m/gym_mujoco_v2/hopper_medium-v2.hdf5",
        "/m/rail.example.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5",
    ],
)
def test_from_a_mirror_over_http(server: Server, where: Settings, tmp_path: Path, place: str) -> None:
    server.add(place, b"hop")
    for source in (f"{server.url}/m", f"{server.url}/m/", server.url + place):
        files = listed(where, HOPPER, source=source)
        assert brought(files, where, tmp_path / source[-3:].strip("/")) == {"hopper_medium-v2.hdf5": b"hop"}


def test_from_a_mirror_without_it_names_what_was_tried(server: Server, where: Settings, tmp_path: Path) -> None:
    files = listed(where, HOPPER, source=f"{server.url}/m")
    with pytest.raises(DownloadFailed, match=r"/m/gym_mujoco_v2/hopper_medium-v2\.hdf5: HTTP 404"):
        brought(files, where, tmp_path / "d")
    assert not any("rail.example.edu" in p and "/m/" not in p for p in server.asked)


def test_from_a_mirror_of_the_hub(server: Server, where: Settings, tmp_path: Path) -> None:
    with Server() as mirror:
        mirror.add_repository("farama-minari/D4RL", MINARI, lfs=LFS)
        files = listed(where, DOOR, source=mirror.url)
        assert brought(files, where, tmp_path / "d")["main_data.hdf5"] == b"\x89HDF human"
    assert server.asked == []


def test_from_a_mirror_of_the_files_that_the_hub_lists(server: Server, where: Settings, tmp_path: Path) -> None:
    pages = server.add_repository("farama-minari/D4RL", MINARI, lfs=LFS)
    with Server() as mirror:
        mirror.add("/door/human-v2/data/main_data.hdf5", b"\x89HDF human")
        mirror.add("/door/human-v2/data/metadata.json", b'{"a": 1}')
        files = listed(where, DOOR, source=mirror.url)
        assert brought(files, where, tmp_path / "d")["main_data.hdf5"] == b"\x89HDF human"
    assert all(not page.requests for page in pages.values())


@pytest.mark.thorough
def test_from_a_repository_of_the_hub(server: Server, where: Settings) -> None:
    server.add_repository("imone/D4RL", {"gym/hopper_medium-v2.hdf5": b"hop"})
    (file,) = listed(where, HOPPER, source="hf://datasets/imone/D4RL/gym")
    assert file.sha256 == hashlib.sha256(b"hop").hexdigest()
