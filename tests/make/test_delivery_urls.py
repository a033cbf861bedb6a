"""Archives at any URL: ``rlds download https://HOST/run.hdf5 --name local/run``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import run_rlds, write_d4rl
from server import Server

import rlds_cli
from rlds_cli.errors import (
    ArchiveError,
    DatasetNotFound,
    DownloadFailed,
    InvalidArgument,
    InvalidId,
    NameTaken,
    RldsError,
    UnknownLayout,
    WrongHash,
)
from rlds_cli.keep import pinning, verification
from rlds_cli.make import DownloadRequest
from rlds_cli.make.importing import import_files

TABLE = "q,a,r,trial\n" + "".join(f"{t * 0.5},{t % 3},{t},{t // 4}\n" for t in range(12))
MAPPING = {"observation": "q", "action": "a", "reward": "r"}


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as server:
        for name, value in server.environment(tmp_path).items():
            monkeypatch.setenv(name, value)
        write_d4rl(tmp_path / "run.hdf5", [5, 7, 9])
        server.add("/data/run.hdf5", (tmp_path / "run.hdf5").read_bytes())
        server.add("/data/table.csv", TABLE)
        yield server


def run_url(web: Server) -> str:
    return f"{web.url}/data/run.hdf5"


def sha256_of(web: Server, path: str) -> str:
    return hashlib.sha256(web.pages[path].content).hexdigest()


def replace_run(web: Server, tmp_path: Path) -> None:
    """Another file is at the URL from now on."""
    write_d4rl(tmp_path / "later.hdf5", [4, 4], seed=1)
    web.add("/data/run.hdf5", (tmp_path / "later.hdf5").read_bytes(), etag='"v2"')


@pytest.mark.thorough
def test_an_archive_at_a_url_is_the_import_of_its_file(web: Server, tmp_path: Path) -> None:
    ds = rlds_cli.download(run_url(web), name="local/run")
    assert (ds.id, len(ds), ds.manifest.reader) == ("local/run", 21, "d4rl")
    assert ds.fingerprint == import_files(tmp_path / "run.hdf5", "local/same").fingerprint
    source = ds.store.sources[0]
    assert (source["url"], source["sha256"]) == (run_url(web), sha256_of(web, "/data/run.hdf5"))


@pytest.mark.thorough
def test_a_second_run_asks_nothing(web: Server) -> None:
    first = rlds_cli.download(run_url(web), name="local/run")
    asked = len(web.asked)
    assert rlds_cli.download(run_url(web), name="local/run").fingerprint == first.fingerprint
    assert rlds_cli.download(run_url(web), name="local/run", offline=True).fingerprint == first.fingerprint
    assert run_rlds("download", run_url(web), "--name", "local/run").returncode == 0
    assert len(web.asked) == asked


@pytest.mark.thorough
def test_the_hash_that_arrived_is_printed(web: Server) -> None:
    done = run_rlds("download", run_url(web), "--name", "local/run")
    assert done.returncode == 0
    assert sha256_of(web, "/data/run.hdf5") in done.stderr.decode()


def test_a_wrong_hash(web: Server, home: Path) -> None:
    with pytest.raises(WrongHash, match="f" * 64):
        rlds_cli.download(run_url(web), name="local/run", sha256="f" * 64)
    assert not list(home.glob("archives/**/*.hdf5"))
    ds = rlds_cli.download(run_url(web), name="local/run", sha256=sha256_of(web, "/data/run.hdf5").upper())
    assert len(ds) == 21
    with pytest.raises(NameTaken, match="f" * 64):
        rlds_cli.download(run_url(web), name="local/run", sha256="f" * 64)
    with pytest.raises(InvalidArgument, match="not a sha256"):
        rlds_cli.download(run_url(web), name="local/other", sha256="abc")


def test_another_url_or_other_options_for_an_id(web: Server) -> None:
    rlds_cli.download(run_url(web), name="local/run")
    web.add("/other/run.hdf5", web.pages["/data/run.hdf5"].content)
    with pytest.raises(NameTaken, match="/other/run"):
        rlds_cli.download(f"{web.url}/other/run.hdf5", name="local/run")
    with pytest.raises(NameTaken, match="made with episodes_by"):
        rlds_cli.download(run_url(web), name="local/run", episodes_by="timeouts")
    rlds_cli.create("local/made", [{"observation": [[0.0], [1.0]], "action": [[0.0]]}])
    with pytest.raises(NameTaken, match="local/made"):
        rlds_cli.download(run_url(web), name="local/made")
    forced = rlds_cli.download(f"{web.url}/other/run.hdf5", name="local/run", force=True)
    assert forced.store.sources[0]["url"] == f"{web.url}/other/run.hdf5"


def test_a_file_of_another_url_is_not_used(web: Server, tmp_path: Path) -> None:
    """The archive stays when its dataset is removed; another URL may end in the same name."""
    rlds_cli.download(run_url(web), name="local/run")
    assert run_rlds("rm", "local/run", "--yes").returncode == 0
    write_d4rl(tmp_path / "other.hdf5", [3, 3], seed=5)
    web.add("/other/run.hdf5", (tmp_path / "other.hdf5").read_bytes())
    assert len(rlds_cli.download(f"{web.url}/other/run.hdf5", name="local/run")) == 6


def test_force_fetches_a_file_that_has_changed(web: Server, tmp_path: Path) -> None:
    rlds_cli.download(run_url(web), name="local/run")
    was = sha256_of(web, "/data/run.hdf5")
    replace_run(web, tmp_path)
    assert len(rlds_cli.download(run_url(web), name="local/run")) == 21
    done = run_rlds("download", run_url(web), "--name", "local/run", "--force")
    assert done.returncode == 0
    assert was in done.stderr.decode()  # the note says that it has changed
    assert len(rlds_cli.open_dataset("local/run")) == 8


@pytest.mark.thorough
@pytest.mark.parametrize("sha256", [True, False])
def test_a_lock_makes_it_again_elsewhere(web: Server, tmp_path: Path, sha256: bool) -> None:
    promised = sha256_of(web, "/data/run.hdf5") if sha256 else None
    ds = rlds_cli.download(run_url(web), name="local/run", sha256=promised)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/run"]))
    done = pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    assert [(d.fingerprint, d.how) for d in done] == [(ds.fingerprint, "downloaded")]
    again = rlds_cli.open_dataset("local/run", home=tmp_path / "elsewhere")
    assert again.manifest.options == ds.manifest.options
    replace_run(web, tmp_path)
    with pytest.raises(WrongHash, match=sha256_of(web, "/data/run.hdf5")):
        pinning.sync(lock, allow_address=True, home=tmp_path / "third")


@pytest.mark.thorough
def test_a_lock_of_mapped_columns_and_of_a_part(web: Server, tmp_path: Path) -> None:
    how = {"fields": MAPPING, "episodes_by": "field:trial"}
    whole = rlds_cli.download(f"{web.url}/data/table.csv", name="local/table", **how)  # type: ignore[arg-type]
    part = rlds_cli.download(f"{web.url}/data/table.csv", name="local/table", episodes="1:3", **how)  # type: ignore[arg-type]
    assert (whole.num_episodes, part.id, part.num_episodes) == (3, "local/table@episodes-1-3", 2)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/table", part.id]))
    done = pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    assert [d.fingerprint for d in done] == [whole.fingerprint, part.fingerprint]


def test_options_of_import_on_the_command_line(web: Server, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.json"
    mapping.write_text(json.dumps({"fields": {"observation": "q", "action": "a"}, "episodes_by": "field:trial"}))
    url = f"{web.url}/data/table.csv"
    done = run_rlds("download", url, "--name", "local/t", "--map", mapping, "--map", "reward=r")
    assert done.returncode == 0
    ds = rlds_cli.open_dataset("local/t")
    assert (ds.num_episodes, ds.schema["next/reward"].dtype) == (3, "int64")


def test_options_of_archives_are_refused_for_the_registry(web: Server) -> None:
    with pytest.raises(InvalidArgument, match="--sha256"):
        rlds_cli.download("sample/pendulum-d4rl", sha256="0" * 64)
    with pytest.raises(InvalidArgument, match="--map"):
        rlds_cli.download("sample/pendulum-d4rl", fields={"observation": "x"})
    with pytest.raises(InvalidId, match="registry"):
        rlds_cli.download(run_url(web), name="d4rl/run")
    with pytest.raises(InvalidId, match="needs an id") as e:
        rlds_cli.download(run_url(web))
    assert "local/run" in str(e.value.hint)


def test_what_is_no_archive(web: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="404"):
        rlds_cli.download(f"{web.url}/none.hdf5", name="local/x")
    web.add("/login.hdf5", "<!doctype html><title>Log in</title>")
    with pytest.raises(DownloadFailed, match="web page"):
        rlds_cli.download(f"{web.url}/login.hdf5", name="local/x")
    web.add("/noise.bin", b"\x00\x01\x02" * 1000)
    with pytest.raises(UnknownLayout, match=r"noise\.bin"):
        rlds_cli.download(f"{web.url}/noise.bin", name="local/x")
    with pytest.raises(DatasetNotFound) as e:
        rlds_cli.download(str(tmp_path / "run.hdf5"), name="local/x")
    assert "rlds import" in str(e.value.hint)


PAGES = {
    "https://huggingface.co/datasets/o/n/blob/main/a/run.hdf5": "https://huggingface.co/datasets/o/n/resolve/main/a/run",
    "https://huggingface.co/datasets/o/n/tree/main": "https://huggingface.co/datasets/o/n/resolve/main/FILE",
    "https://huggingface.co/datasets/o/n/viewer": "https://huggingface.co/datasets/o/n/resolve/main/FILE",
    "https://github.com/o/n/blob/main/run.hdf5": "https://github.com/o/n/raw/main/run.hdf5",
}


@pytest.mark.parametrize("url", PAGES)
def test_pages_about_files_say_where_the_file_is(url: str) -> None:
    with pytest.raises(InvalidArgument, match="page about") as e:
        rlds_cli.download(url, name="local/x")
    assert PAGES[url] in str(e.value.hint)


def test_import_of_a_url_says_how_to_download_it(web: Server) -> None:
    with pytest.raises(ArchiveError) as e:
        import_files(run_url(web), "local/run")
    assert f"rlds download {run_url(web)} --name local/run" in str(e.value.hint)


@pytest.mark.thorough
def test_the_address_of_a_dataset_is_kept_apart(web: Server, tmp_path: Path) -> None:
    """A path with an index is a dataset, also if its name looks like that of a file."""
    ds = rlds_cli.download("sample/pendulum-d4rl")
    rlds_cli.push(ds.id, tmp_path / "pushed", pages=False)
    for file in (tmp_path / "pushed").rglob("*"):
        if file.is_file():
            web.add(f"/pushed/data.v2/{file.relative_to(tmp_path / 'pushed').as_posix()}", file.read_bytes())
    came = rlds_cli.download(f"{web.url}/pushed/data.v2", name="local/came")
    assert came.fingerprint == ds.fingerprint
    assert "entry" not in came.manifest.options


def test_secrets_are_not_written(web: Server, home: Path, tmp_path: Path) -> None:
    url = run_url(web).replace("http://", "http://me:secret1@") + "?token=secret2&download=1"
    ds = rlds_cli.download(url, name="local/run")
    shown = f"{run_url(web)}?token=***&download=1"
    assert ds.store.sources[0]["url"] == shown
    assert ds.store.sources[0]["file"] == "run.hdf5"
    assert b"secret" not in b"".join(f.read_bytes() for f in home.rglob("*") if f.is_file())
    assert "secret" not in pinning.lock(["local/run"])
    asked = len(web.asked)
    assert rlds_cli.download(url, name="local/run").fingerprint == ds.fingerprint
    assert len(web.asked) == asked


def test_an_interrupted_download_goes_on(web: Server, home: Path) -> None:
    content = web.pages["/data/run.hdf5"].content
    page = web.add("/data/run.hdf5", content, drops=[9000, 9000, 9000, 9000, 9000, 9000], ranges=True)
    page.statuses = [None, (403, {})]
    with pytest.raises(DownloadFailed, match="403"):
        rlds_cli.download(run_url(web), name="local/run")
    assert list(home.glob("archives/local/run/*.part"))
    (request,) = DownloadRequest.unfinished()
    assert (request.ref, request.url) == ("local/run", run_url(web))
    page.drops, page.statuses, before = [], [], page.sent
    assert run_rlds("download", "--resume-all").returncode == 0
    assert page.sent - before < len(content)
    assert len(rlds_cli.open_dataset("local/run")) == 21


def test_a_damaged_dataset_is_made_again(web: Server, home: Path) -> None:
    ds = rlds_cli.download(run_url(web), name="local/run")
    file = home / "datasets/local/run/observation/c/0/0"
    file.chmod(0o600)
    file.write_bytes(bytes(len(file.read_bytes())))
    assert not verification.verify("local/run").ok
    done = run_rlds("verify", "local/run", "--fix")
    assert done.returncode == 0, done.stderr
    assert rlds_cli.open_dataset("local/run").fingerprint == ds.fingerprint
    assert verification.verify("local/run").ok


def test_a_lock_cannot_redefine_a_dataset_of_the_package(web: Server, tmp_path: Path) -> None:
    rlds_cli.download(run_url(web), name="local/run")
    content = json.loads(pinning.lock(["local/run"]))
    (d,) = content["datasets"]
    d["id"] = d["options"]["entry"]["id"] = "d4rl/strange"
    lock = tmp_path / "rlds.lock"
    lock.write_text(json.dumps(content))
    with pytest.raises(RldsError, match="d4rl/strange"):
        pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    asked = len(web.asked)
    for wrong in ("file:///etc/passwd", "package:samples/pendulum-d4rl.hdf5", "ftp://host/x", 3):
        d["id"] = d["options"]["entry"]["id"] = "local/run"
        d["options"]["entry"]["urls"] = [wrong]
        lock.write_text(json.dumps(content))
        with pytest.raises(RldsError, match="is not a lock file"):
            pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    assert len(web.asked) == asked


# -- several URLs and patterns


@pytest.fixture
def runs(web: Server, tmp_path: Path) -> dict[str, bytes]:
    """Three files, and a page of links of their directory."""
    found = {}
    for i, lengths in {1: [5, 7], 2: [3], 10: [4, 4]}.items():
        write_d4rl(tmp_path / f"runs/run_{i}.hdf5", lengths, seed=i)
        found[f"run_{i}.hdf5"] = (tmp_path / f"runs/run_{i}.hdf5").read_bytes()
        web.add(f"/runs/run_{i}.hdf5", found[f"run_{i}.hdf5"])
    web.add("/runs/notes.txt", "about the runs")
    names = [*found, "notes.txt", ".hidden.hdf5", "older/"]
    web.add("/runs/", "".join(f'<a href="{n}">{n}</a>' for n in names), content_type="text/html")
    return found


def sources(ds: rlds_cli.Dataset) -> dict[str, str]:
    return {s["file"]: s["url"] for s in ds.store.sources}


@pytest.mark.thorough
def test_several_urls_are_the_files_of_one_archive(web: Server, runs: dict[str, bytes], tmp_path: Path) -> None:
    urls = [f"{web.url}/runs/{name}" for name in reversed(runs)]
    assert run_rlds("download", *urls, "--name", "local/runs").returncode == 0
    ds = rlds_cli.open_dataset("local/runs")
    files = [tmp_path / "runs" / name for name in runs]
    assert ds.fingerprint == import_files(files, "local/same").fingerprint
    assert sources(ds) == {name: f"{web.url}/runs/{name}" for name in runs}
    assert [s["sha256"] for s in ds.store.sources] == [hashlib.sha256(content).hexdigest() for content in runs.values()]
    asked = len(web.asked)
    assert rlds_cli.download(urls[::-1], name="local/runs").fingerprint == ds.fingerprint
    with pytest.raises(NameTaken, match=r"run_1\.hdf5 and 2 more"):
        rlds_cli.download(urls[:2], name="local/runs")
    assert len(web.asked) == asked


@pytest.mark.thorough
def test_a_pattern_names_the_files_of_a_page_of_links(web: Server, runs: dict[str, bytes], tmp_path: Path) -> None:
    done = run_rlds("download", f"{web.url}/runs/run_*.hdf5", "--name", "local/runs")
    assert done.returncode == 0, done.stderr
    ds = rlds_cli.open_dataset("local/runs")
    assert ds.fingerprint == import_files(tmp_path / "runs", "local/same").fingerprint
    assert sources(ds) == {name: f"{web.url}/runs/{name}" for name in runs}
    assert not any("older" in path for path in web.asked)  # no pattern matches in a directory below
    asked = len(web.asked)
    assert rlds_cli.download(f"{web.url}/runs/run_*.hdf5", name="local/runs", offline=True).path == ds.path
    assert len(web.asked) == asked
    one = rlds_cli.download([f"{web.url}/runs/*1.hdf5", f"{web.url}/runs/run_2.hdf5"], name="local/two")
    assert list(sources(one)) == ["run_1.hdf5", "run_2.hdf5"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "pattern", ["run_[12].hdf5", "run_{1,2}.hdf5", "{run_1,run_2}.hdf5", "run_[1-2].h{df5}", "*_[12].hdf5"]
)
def test_braces_and_brackets_stand_for_several_urls(web: Server, runs: dict[str, bytes], pattern: str) -> None:
    ds = rlds_cli.download(f"{web.url}/runs/{pattern}", name="local/two")
    assert list(sources(ds)) == ["run_1.hdf5", "run_2.hdf5"]
    asked = len(web.asked)
    assert rlds_cli.download(f"{web.url}/runs/{pattern}", name="local/two").path == ds.path
    assert len(web.asked) == asked


@pytest.mark.parametrize(
    "pattern", ["run_[1.hdf5", "run_{1,2.hdf5", "run_[9-1].hdf5", "run_[0-9][0-9][0-9][0-9][0-9].hdf5"]
)
def test_patterns_that_stand_for_nothing(web: Server, runs: dict[str, bytes], pattern: str) -> None:
    with pytest.raises(InvalidArgument, match=r"brace|range|10,000"):
        rlds_cli.download(f"{web.url}/runs/{pattern}", name="local/two")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["hf", "s3", "gs"])
def test_patterns_of_buckets_and_the_hub(web: Server, runs: dict[str, bytes], scheme: str, tmp_path: Path) -> None:
    files = {f"day1/{name}": content for name, content in runs.items()} | {"day1/notes.txt": b"x", "day2/a.hdf5": b"x"}
    if scheme == "hf":
        web.add_repository("lab/runs", files)
    else:
        web.add_bucket("lab", files)
    place = {"hf": "hf://datasets/lab/runs", "s3": "s3://lab", "gs": "gs://lab"}[scheme]
    ds = rlds_cli.download(f"{place}/day1/run_*.hdf5", name="local/runs")
    assert list(sources(ds)) == list(runs)
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/runs"]))
    done = pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    assert [(d.fingerprint, d.how) for d in done] == [(ds.fingerprint, "downloaded")]
    again = rlds_cli.open_dataset("local/runs", home=tmp_path / "elsewhere")
    assert again.manifest.options == ds.manifest.options
    with pytest.raises(DownloadFailed) as e:
        rlds_cli.download(f"{place}/day1/*.npz", name="local/none")
    assert "4 files: day1/notes.txt" in str(e.value.hint)


def test_a_pattern_that_matches_nothing_says_what_is_there(web: Server, runs: dict[str, bytes]) -> None:
    with pytest.raises(DownloadFailed, match=r"\*\.npz") as e:
        rlds_cli.download(f"{web.url}/runs/*.npz", name="local/none")
    assert e.value.hint == "it has 4 files: runs/notes.txt, runs/run_1.hdf5, runs/run_2.hdf5, runs/run_10.hdf5"
    with pytest.raises(DownloadFailed, match="does not list its files"):
        rlds_cli.download(f"{web.url}/nowhere/*.npz", name="local/none")


def test_files_of_one_name_keep_their_directories(web: Server, runs: dict[str, bytes]) -> None:
    for i, content in enumerate(runs.values()):
        web.add(f"/days/{i}/run.hdf5", content)
        web.add(f"/days/{i}/", '<a href="run.hdf5">run</a>', content_type="text/html")
    web.add("/days/", "".join(f'<a href="{i}/">{i}</a>' for i in range(3)), content_type="text/html")
    ds = rlds_cli.download(f"{web.url}/days/*/run.hdf5", name="local/days")
    assert list(sources(ds)) == ["0/run.hdf5", "1/run.hdf5", "2/run.hdf5"]
    two = rlds_cli.download([f"{web.url}/days/{i}/run.hdf5" for i in (0, 2)], name="local/two")
    assert list(sources(two)) == ["0/run.hdf5", "2/run.hdf5"]
    assert sources(rlds_cli.download(f"{web.url}/days/**/run.hdf5", name="local/all")) == sources(ds)


@pytest.mark.thorough
def test_a_lock_pins_every_file(web: Server, runs: dict[str, bytes], tmp_path: Path) -> None:
    ds = rlds_cli.download(f"{web.url}/runs/*.hdf5", name="local/runs")
    lock = tmp_path / "rlds.lock"
    lock.write_text(pinning.lock(["local/runs"]))
    web.add("/runs/", "", content_type="text/html")  # the list of files is in the lock
    done = pinning.sync(lock, allow_address=True, home=tmp_path / "elsewhere")
    assert [(d.fingerprint, d.how) for d in done] == [(ds.fingerprint, "downloaded")]
    web.add("/runs/run_2.hdf5", runs["run_1.hdf5"])
    with pytest.raises(WrongHash, match=r"run_2\.hdf5"):
        pinning.sync(lock, allow_address=True, home=tmp_path / "third")


def test_what_is_asked_for_with_several_urls(web: Server, runs: dict[str, bytes]) -> None:
    urls = [f"{web.url}/runs/{name}" for name in runs]
    with pytest.raises(InvalidArgument, match="sha256"):
        rlds_cli.download(urls, name="local/runs", sha256="0" * 64)
    with pytest.raises(InvalidId, match="needs an id") as e:
        rlds_cli.download(f"{web.url}/runs/*.hdf5")
    assert "local/run" in str(e.value.hint)
    for other in (f"{web.url}/runs/", "d4rl/hopper-medium-v2", "/data/run.hdf5"):
        with pytest.raises(InvalidArgument, match="not the URL of a file"):
            rlds_cli.download([urls[0], other], name="local/runs")
    assert run_rlds("download", *urls).returncode != 0


@pytest.mark.thorough
def test_an_interrupted_download_of_several_files_goes_on(web: Server, runs: dict[str, bytes]) -> None:
    content = runs["run_2.hdf5"]
    page = web.add("/runs/run_2.hdf5", content, drops=[9000] * 6, ranges=True)
    page.statuses = [None, (403, {})]
    with pytest.raises(DownloadFailed, match="403"):
        rlds_cli.download(f"{web.url}/runs/*.hdf5", name="local/runs")
    page.drops, page.statuses, before, listings = [], [], page.sent, web.asked.count("/runs/")
    assert run_rlds("download", "--resume-all").returncode == 0
    assert page.sent - before < len(content)
    assert web.asked.count("/runs/") == listings
    assert rlds_cli.open_dataset("local/runs").num_episodes == 5


def test_secrets_of_patterns_are_not_written(web: Server, runs: dict[str, bytes], home: Path) -> None:
    url = f"{web.url}/runs/*.hdf5?token=secret2"
    ds = rlds_cli.download(url, name="local/runs")
    assert sources(ds)["run_1.hdf5"] == f"{web.url}/runs/run_1.hdf5?token=***"
    assert rlds_cli.download(url, name="local/runs").path == ds.path
    assert b"secret" not in b"".join(f.read_bytes() for f in home.rglob("*") if f.is_file())
