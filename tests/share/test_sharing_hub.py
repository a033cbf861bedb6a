"""The hub as a store: pushes and downloads over a loopback hub, with faults, kills, two at once, and secrets."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import TOKEN, Hub
from made_once import made_once
from object_store import Fault

import rlds_cli
from rlds_cli.base import settings
from rlds_cli.base.http.client import Client, RetryPolicy
from rlds_cli.base.http.connections import Retryable
from rlds_cli.base.progress import Event, silent
from rlds_cli.base.refs import Ref
from rlds_cli.errors import (
    DamagedDataset,
    DatasetNotFound,
    DownloadFailed,
    NameTaken,
    RldsError,
    UploadFailed,
    WrongHash,
)
from rlds_cli.places import Address, Pull
from rlds_cli.places.sources import opening
from rlds_cli.places.sources.place import Body
from rlds_cli.places.sources.transfer import Stream
from rlds_cli.share import collecting, pushing, snapshot
from rlds_cli.share.pushing import Pushed

HASTY = RetryPolicy(attempts=4, first=0.001, longest=0.01, asked=1.0, connect=60.0, read=60.0)
PLACE = "hf://datasets/lab/arm"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with Hub() as running:
        for name in ("HF_ENDPOINT", "HF_TOKEN", "NO_PROXY"):
            monkeypatch.setenv(name, running.environ(tmp_path)[name])
        yield running


def arm(name: str = "arm", *, episodes: int = 4, seed: int = 0, scale: float = 1.0) -> rlds_cli.Dataset:
    rng = np.random.default_rng(seed)
    made = [
        {
            "observation": rng.normal(size=(51, 30)),
            "action": scale * np.arange(50.0),
            "next": {"reward": np.ones(50), "terminated": k % 2 == 0, "truncated": k % 2 == 1},
        }
        for k in range(episodes)
    ]
    make = partial(rlds_cli.create, f"local/{name}", made, force=True)
    return made_once(f"local/{name}", make, __name__, episodes, seed, scale)


def push(ds: rlds_cli.Dataset, to: str = PLACE, **options: Any) -> Pushed:
    taken = snapshot.take(Ref(ds.path))
    options = {"force": True, **options}  # the datasets of these tests have names of their own
    return pushing.send(taken, Address.parse(to), settings.read(), progress=silent, policy=HASTY, **options)


def pull(home: Path, address: str = PLACE, name: str = "local/copy") -> rlds_cli.Dataset:
    where = replace(settings.read(home), hub_token=settings.read().hub_token)
    return rlds_cli.open_dataset(Pull(Address.parse(address), where, name=name, policy=HASTY).run())


def same(a: rlds_cli.Dataset, b: rlds_cli.Dataset) -> bool:
    return a.fingerprint == b.fingerprint and all(
        np.array_equal(a.column(name), b.column(name)) for name in ("observation", "action", "next/reward")
    )


@pytest.mark.thorough
def test_a_pushed_dataset_comes_back(hub: Hub, tmp_path: Path) -> None:
    ds = arm()
    done = push(ds, documents=lambda plan, objects: {"README.md": b"# arm\n"})
    repository = hub.repositories["lab/arm"]
    assert len(repository.commits) == 2  # the first is the hub's own
    content = hub.content("lab/arm")
    assert content["README.md"] == b"# arm\n"
    assert json.loads(content["rlds.json"])["versions"][0][3] == ds.fingerprint
    assert sum(name.startswith("objects/") for name in content) == done.objects == 1
    assert hub.received <= sum(map(len, content.values()))  # each byte once
    assert same(pull(tmp_path / "other"), ds)


@pytest.mark.thorough
def test_a_directory_of_a_repository_and_a_revision(hub: Hub, tmp_path: Path) -> None:
    first = arm("first", seed=1)
    push(first, "hf://datasets/lab/many/arms/one")
    before = hub.repositories["lab/many"].head
    second = arm("second", seed=2)
    push(second, "hf://datasets/lab/many/arms/one")
    assert same(pull(tmp_path / "b", "hf://datasets/lab/many/arms/one"), second)
    assert same(pull(tmp_path / "a", f"hf://datasets/lab/many/arms/one@{before}"), first)
    pinned = f"hf://datasets/lab/many/arms/one#{first.fingerprint}"
    with pytest.raises(RldsError, match="was asked for"):
        pull(tmp_path / "c", pinned)


@pytest.mark.thorough
def test_what_the_repository_has_is_not_sent(hub: Hub) -> None:
    ds = arm()
    push(ds)
    commits, received = len(hub.repositories["lab/arm"].commits), hub.received
    push(ds)
    assert hub.received == received
    assert len(hub.repositories["lab/arm"].commits) == commits  # no empty commit
    larger = arm("larger", episodes=6)  # the observations of the first four are the same
    push(larger)
    assert hub.received > received


def test_a_dataset_beside_another_shares_its_objects(hub: Hub, tmp_path: Path) -> None:
    push(arm("one"), "hf://datasets/lab/many/one")
    received = hub.received
    other = arm("two", scale=2.0)  # with other actions
    push(other, "hf://datasets/lab/many/two")
    observations = 4 * 51 * 30 * 8
    assert hub.received - received < observations / 2
    assert same(pull(tmp_path / "x", "hf://datasets/lab/many/two"), other)


@pytest.mark.thorough
def test_a_new_version_sends_what_is_new(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, steps, width = np.random.default_rng(0), 2000, 64
    with rlds_cli.writer("local/run") as writer:
        for k in range(3):
            writer.add_episodes([{"observation": rng.normal(size=(steps + 1, width)), "action": np.zeros(steps)}])
            writer.commit()
            before = hub.received
            ds = rlds_cli.open_dataset("local/run")
            push(ds, "hf://datasets/lab/run")
            rows = (steps + 1) * width * 8
            assert rows < hub.received - before < 1.1 * rows  # and actions, and the episode
            with monkeypatch.context() as patch:
                patch.setenv("RLDS_HOME", str(tmp_path / "other"))
                came = rlds_cli.download("hf://datasets/lab/run", name="local/copy")
                assert came.num_episodes == k + 1
                assert came.fingerprint == ds.fingerprint


def test_objects_are_sent_in_parts(hub: Hub, tmp_path: Path) -> None:
    hub.part = 4096
    ds = arm()
    push(ds)
    parts = [r for r in hub.stored if "part=" in r.path]
    assert len(parts) > 10 and max(r.size for r in parts) == 4096
    assert same(pull(tmp_path / "x"), ds)


SENDING = [Fault("503", "PUT", times=2), Fault("429", "PUT"), Fault("reset", "PUT", times=2), Fault("lost", "PUT")]
CALLS = [
    Fault("503", "POST", "batch", times=2),
    Fault("reset", "POST", "batch"),
    Fault("503", "POST", "verify"),
    Fault("503", "POST", "commit", times=2),
    Fault("reset", "POST", "commit"),
    Fault("lost", "POST", "commit"),
    Fault("lost", "POST", "create"),
    Fault("503", "POST", "preupload"),
    Fault("short", "GET", "revision"),
    Fault("reset", "GET", "tree"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "part"),
    [
        *((fault, part) for fault in SENDING for part in (None, 16384)),
        (Fault("lost", "POST", "complete"), 16384),
        *((fault, None) for fault in CALLS),
    ],
    ids=lambda f: f"{f.kind}-{f.method}-{f.path}" if isinstance(f, Fault) else str(f),
)
def test_faults_of_the_hub_are_retried(hub: Hub, tmp_path: Path, fault: Fault, part: int | None) -> None:
    hub.part = part
    hub.faults = [replace(fault)]
    ds = arm()
    if fault.kind == "lost" and fault.path == "complete" and part:
        with pytest.raises(UploadFailed):  # the hub has joined the parts, and knows them no more
            push(ds)
    push(ds)
    assert same(pull(tmp_path / "x"), ds)
    assert len(hub.repositories["lab/arm"].commits) == 2


def test_a_push_says_what_it_waits_for(hub: Hub) -> None:
    said = list[Event]()
    hub.faults = [Fault("503", "PUT", wait=2.0)]
    pushing.push(arm(), PLACE, progress=said.append)
    notes = [(e.id, e.note) for e in said if "trying again" in e.note]
    assert notes == [(PLACE, "HTTP 503 Service Unavailable: trying again in 2 s")]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["503", "reset", "short", "429"])
def test_faults_while_reading_are_retried(hub: Hub, tmp_path: Path, kind: str) -> None:
    ds = arm()
    push(ds)
    hub.faults = [Fault(kind, "GET", path) for path in ("revision", "rlds.json", "lab/arm/[0-9a-f]{64}")]
    assert same(pull(tmp_path / "x"), ds)


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["objects", "groups"])
def test_wrong_bytes_are_never_opened(hub: Hub, tmp_path: Path, which: str) -> None:
    push(arm())
    (file,) = [f for name, f in hub.repositories["lab/arm"].files.items() if name.startswith(which)]
    place = file[0] if isinstance(file, tuple) else which  # a small file is no object of LFS
    hub.faults = [Fault("other", "GET", place, times=1000)]
    with pytest.raises(WrongHash if which == "objects" else DamagedDataset):
        pull(tmp_path / "x")
    assert not list((tmp_path / "x/datasets").rglob("zarr.json"))
    hub.faults = []
    pull(tmp_path / "x")


@pytest.mark.thorough
def test_a_push_that_ends_for_good_leaves_the_old_dataset(hub: Hub, tmp_path: Path) -> None:
    first, second = arm(), arm("second", seed=5)
    push(first)
    hub.faults = [Fault("500", "POST", "commit", times=1000)]
    with pytest.raises(UploadFailed, match="HTTP 500"):
        push(second)
    assert same(pull(tmp_path / "a"), first)
    hub.faults = []
    received = hub.received
    push(second)
    assert hub.received == received  # all of it had been sent
    assert same(pull(tmp_path / "b"), second)


def test_of_two_pushes_one_is_told(hub: Hub, tmp_path: Path) -> None:
    first, second, third = arm(), arm("second", seed=5), arm("third", seed=6)
    push(first)

    def overtaken(plan: Any, objects: Any) -> dict[str, bytes]:
        push(third)
        return {}

    with pytest.raises(UploadFailed, match="meanwhile"):
        push(second, documents=overtaken)
    assert same(pull(tmp_path / "a"), third)
    push(second)
    assert same(pull(tmp_path / "b"), second)


def test_commits_of_others_to_other_files_do_not_matter(hub: Hub, tmp_path: Path) -> None:
    first, second = arm(), arm("second", seed=5)
    push(first)
    repository = hub.repositories["lab/arm"]

    def somebody(plan: Any, objects: Any) -> dict[str, bytes]:
        repository.commit({**repository.files, "notes.md": b"by hand"}, "notes")
        return {}

    push(second, documents=somebody)
    assert hub.content("lab/arm")["notes.md"] == b"by hand"
    assert same(pull(tmp_path / "a"), second)


def test_pushes_from_many_threads_leave_a_whole_dataset(hub: Hub, tmp_path: Path) -> None:
    made = [arm(f"arm{k}", seed=k) for k in range(4)]
    told: list[str] = []

    def one(ds: rlds_cli.Dataset) -> None:
        try:
            push(ds)
            told.append(ds.fingerprint)
        except UploadFailed as e:
            assert "meanwhile" in e.message

    threads = [threading.Thread(target=one, args=(ds,)) for ds in made]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert told
    found = pull(tmp_path / "x")
    assert any(same(found, ds) for ds in made if ds.fingerprint in told)


@pytest.mark.thorough
def test_a_reader_keeps_to_one_commit(hub: Hub, tmp_path: Path) -> None:
    first, second = arm(), arm("second", seed=5)
    push(first)
    where = settings.read()
    with opening.open_objects(Address.parse(PLACE), where, policy=HASTY) as objects:
        before = objects.read("rlds.json")
        push(second)
        collecting.collect(PLACE)
        assert objects.read("rlds.json") == before
        assert all(objects.size(name) for name in objects.names("objects/"))


def test_an_object_that_the_hub_lists_with_another_hash_is_sent_again(hub: Hub, tmp_path: Path) -> None:
    hub.large = 1000
    ds = arm()
    push(ds)
    repository = hub.repositories["lab/arm"]
    files = dict(repository.files)
    name = next(n for n in files if n.startswith("objects/"))
    whole = files[name]
    assert isinstance(whole, tuple)
    data = bytes(whole[1])
    wrong = hashlib.sha256(data).hexdigest()
    hub.objects["lab/arm", wrong] = data
    repository.commit(files | {name: (wrong, len(data))}, "damage")
    assert push(ds).mended == len(data)
    assert repository.files[name] == whole
    assert same(pull(tmp_path / "x"), ds)


def index_of(content: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the index of the newest version in a repository."""
    found: dict[str, Any] = json.loads(content[f"indexes/{json.loads(content['rlds.json'])['versions'][-1][1]}"])
    return found


@pytest.mark.thorough
def test_objects_are_removed_in_one_commit(hub: Hub, tmp_path: Path) -> None:
    push(arm())
    second = arm("second", seed=5)
    push(second)
    before = len(hub.repositories["lab/arm"].commits)
    collecting.collect(PLACE)
    assert len(hub.repositories["lab/arm"].commits) <= before + 2  # the versions, and the objects
    content = hub.content("lab/arm")
    index = index_of(content)
    named = {f"{kind}/{o[0]}" for o in index["objects"] for kind in ("objects", "blocks")}
    named |= {f"groups/{index['groups'][0]}", *(n for n in content if n.startswith("indexes/"))}
    assert sum(n.startswith("indexes/") for n in content) == 1
    assert named == {n for n in content if "/" in n}
    assert same(pull(tmp_path / "x"), second)


# -- tokens


def test_the_token_goes_to_the_hub_only(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.part = 30_000
    hub.faults = [Fault("503", "PUT", times=1), Fault("reset", "PUT", times=1, skip=1)]
    push(arm())
    pull(tmp_path / "x")
    assert hub.stored and not [r for r in hub.stored if TOKEN in str(r.headers) or "Authorization" in r.headers]
    assert [r for r in hub.requests if r.headers.get("Authorization") == f"Bearer {TOKEN}"]
    out = capfd.readouterr()
    for text in (out.out, out.err, *(r.getMessage() for r in caplog.records if r.name.startswith("rlds"))):
        assert TOKEN not in text and "canary-of-the-storage" not in text
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert TOKEN.encode() not in file.read_bytes() and b"canary-of-the-storage" not in file.read_bytes()
    for data in hub.content("lab/arm").values():
        assert TOKEN.encode() not in data


def test_errors_hold_no_token_and_no_signature(hub: Hub) -> None:
    hub.faults = [Fault("403", "PUT", times=1000)]
    with pytest.raises(UploadFailed) as e:
        push(arm())
    chain: BaseException | None = e.value
    texts = []
    while chain is not None:
        texts.append(str(chain))
        chain = chain.__cause__ or chain.__context__
    assert "HTTP 403" in texts[0]
    assert TOKEN not in "".join(texts) and "canary-of-the-storage" not in "".join(texts)


def test_a_private_repository_needs_a_token(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = arm()
    push(ds)
    hub.repositories["lab/arm"].private = True
    assert same(pull(tmp_path / "a"), ds)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(DownloadFailed, match=r"HTTP 401.*need a token: HF_TOKEN"):
        pull(tmp_path / "b")


def test_a_push_without_a_token_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RldsError, match="HF_TOKEN"):
        push(arm())
    assert not hub.repositories and not hub.stored


@pytest.mark.thorough
def test_the_hubs_own_words_are_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import hub_server

    monkeypatch.setattr(
        hub_server._Hub, "_commit",
        lambda self, *args: self._json({"error": "x"}, 400, {"X-Error-Message": "Invalid metadata in README.md\x1b"}),
    )  # fmt: skip
    with pytest.raises(UploadFailed) as e:
        push(arm())
    assert "HTTP 400" in e.value.message and (e.value.hint or "").startswith(
        "the hub says: Invalid metadata in README.md"
    )
    assert "\x1b" not in (e.value.hint or "")


def test_a_push_to_somebody_else_is_refused(hub: Hub) -> None:
    with pytest.raises(UploadFailed, match="HTTP 403"):
        push(arm(), "hf://datasets/others/arm")
    assert not hub.repositories


def test_no_token_is_sent_in_the_clear(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    where = replace(settings.read(tmp_path), hub="http://hub.example", hub_token=TOKEN)
    with opening.open_objects(Address.parse(PLACE), where, policy=HASTY) as objects:
        session = objects.client._session

        def request(method: str, url: str, auth: Any = None, **more: Any) -> None:
            import requests

            asked.append(str(auth(requests.Request(method, url).prepare()).headers))
            raise requests.ConnectionError("no network here")

        monkeypatch.setattr(session, "request", request)
        with pytest.raises(Retryable):
            objects.client.send("POST", "http://hub.example/api/repos/create", b"{}")
    assert asked and TOKEN not in asked[0]


def test_nothing_was_pushed_there(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound):
        pull(tmp_path / "x", "hf://datasets/lab/nothing")


# -- the store itself


def test_a_server_that_takes_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        policy = replace(HASTY, connect=0.2, read=0.3)
        with Client(settings.read(tmp_path), policy=policy) as client:
            begun = time.monotonic()
            with pytest.raises(Retryable):
                client.send("PUT", url, io.BytesIO(bytes(64 << 20)), size=64 << 20)
            assert time.monotonic() - begun < 60


@pytest.mark.thorough
def test_a_slow_part_is_sent_again_and_not_for_ever(hub: Hub) -> None:
    policy = replace(HASTY, idle=0.2, least=1000)
    hub.faults = [Fault("lost", "PUT", times=1000, wait=0.3)]
    with opening.open_objects(Address.parse(PLACE), settings.read(), policy=policy) as objects:
        with pytest.raises(UploadFailed):
            objects.put("objects/" + "0" * 64, Body.of(b"x" * 5000))  # of which the hub stores nothing
        assert 2 < len(hub.stored) < 20
        hub.faults = [Fault("lost", "PUT", times=1, wait=0.3)]
        objects.put("large", Body.of(b"x" * 5000))


HOSTILE: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("batch", lambda v: {"objects": []}),
    ("batch", lambda v: {"objects": [{"oid": "0" * 64, "size": 1, "actions": {}}]}),
    ("batch", lambda v: {"objects": [v["objects"][0] | {"error": {"code": 422, "message": "\x1b[2J no"}}]}),
    ("batch", lambda v: {"objects": [v["objects"][0] | {"actions": {"upload": {"href": "file:///etc/passwd"}}}]}),
    ("batch", lambda v: {"objects": [v["objects"][0] | {"actions": {"upload": {"href": 7}}}]}),
    (
        "batch",
        lambda v: {
            "objects": [v["objects"][0] | {"actions": {"upload": {"href": "http://x/", "header": {"chunk_size": "0"}}}}]
        },
    ),
    ("preupload", lambda v: {"files": "no"}),
    ("preupload", lambda v: []),
    ("commit", lambda v: "no"),
    ("revision", lambda v: {"sha": "../../x"}),
]


@pytest.mark.parametrize(("call", "change"), HOSTILE)
def test_answers_that_make_no_sense_are_errors(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, call: str, change: Callable[[dict[str, Any]], Any]
) -> None:
    import hub_server

    original = hub_server._Hub._json

    def answer(self: Any, value: Any, *args: Any, **more: Any) -> None:
        original(self, change(value) if call in self.place else value, *args, **more)

    monkeypatch.setattr(hub_server._Hub, "_json", answer)
    with pytest.raises(RldsError) as e:
        push(arm())
    assert "\x1b" not in e.value.message


# -- a process that is killed

SCRIPT = """
import sys
from rlds_cli.share import packing, pushing
packing.LEAST = 1 << 19
pushing.push(sys.argv[1], sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_push_repeats_at_most_one_object(hub: Hub, tmp_path: Path, home: Path) -> None:
    ds = arm(episodes=400)  # 5 MB in ten objects
    hub.part = 1 << 17
    hub.faults = [Fault("", "PUT", times=10_000, wait=0.05)]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT, ds.id, PLACE]
    kills = 0
    for _ in range(20):
        whole, before = {oid for _, oid in hub.objects}, len(hub.stored)
        process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        while len(hub.stored) < before + 5 and process.poll() is None:  # an object has four parts
            time.sleep(0.002)
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        sent = {r.path.partition("?")[0].rpartition("/")[2] for r in hub.stored[before:]}
        assert not sent & whole  # what was there whole was not sent again
        if process.returncode == 0:
            break
        assert "rlds.json" not in hub.content("lab/arm")  # and nothing is visible yet
    assert kills > 4
    subprocess.run(command, env=env, check=True)
    assert len(index_of(hub.content("lab/arm"))["objects"]) > 5
    assert same(pull(tmp_path / "x"), ds)


# -- the loopback hub is one that others' clients know


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its packages
def test_the_hubs_own_client_works_with_this_hub(hub: Hub, tmp_path: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    ds = arm()
    push(ds)
    hub.part = 2000
    api = huggingface_hub.HfApi(endpoint=hub.url, token=TOKEN)
    stream = (tmp_path / "a").open("wb+")
    stream.write(bytes(range(256)) * 40)
    stream.seek(0)
    with stream:
        api.upload_file(path_or_fileobj=stream, path_in_repo="x/a", repo_id="lab/arm", repo_type="dataset")
    api.upload_file(path_or_fileobj=b"small", path_in_repo="x/b", repo_id="lab/arm", repo_type="dataset")
    with opening.open_objects(Address.parse(f"{PLACE}/x"), settings.read(), policy=HASTY) as objects:
        assert objects.names() == {"a": 10240, "b": 5}
        got = bytearray()
        objects.bring("a", Stream(255, 258, got.extend))
        assert got == b"\xff\x00\x01"
    listed = {
        f.path: f.size for f in api.list_repo_tree("lab/arm", repo_type="dataset", recursive=True) if hasattr(f, "size")
    }
    assert {"rlds.json", "x/a", "x/b"} <= listed.keys()
    local = api.hf_hub_download("lab/arm", "rlds.json", repo_type="dataset", local_dir=tmp_path / "got")
    assert json.loads(Path(local).read_text())["versions"][-1][3] == ds.fingerprint


@pytest.mark.thorough
def test_another_dataset_is_refused(hub: Hub) -> None:
    push(arm("arm"))
    with pytest.raises(NameTaken, match="holds local/arm"):
        push(arm("other"), force=False)
    assert push(arm("arm", scale=2.0), force=False).id == "local/arm"
