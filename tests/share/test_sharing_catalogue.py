"""The pages beside pushed datasets, and the page of all datasets of a store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import Hub
from object_store import ObjectStore
from test_report_page import Document

import rlds_cli
from rlds_cli.base import settings
from rlds_cli.cli import main
from rlds_cli.errors import NameTaken
from rlds_cli.look import pages_beside
from rlds_cli.look.report.html import is_report
from rlds_cli.places import Address, Index, PushedDataset
from rlds_cli.places.sources import opening
from rlds_cli.places.sources.place import Body
from rlds_cli.share.cataloguing import catalogue


def made(name: str, steps: int, *, seed: int = 0) -> rlds_cli.Dataset:
    rng = np.random.default_rng(seed)
    episode = {
        "observation": rng.normal(size=(steps + 1, 3)),
        "action": rng.normal(size=(steps, 2)),
        "next": {"reward": np.ones(steps), "terminated": True},
    }
    return rlds_cli.create(f"local/{name}", [episode], force=True)


def push(ds: rlds_cli.Dataset, to: str) -> None:
    rlds_cli.push(ds.path, to)


@pytest.mark.thorough
def test_pages_lie_beside_a_pushed_dataset(tmp_path: Path, home: Path) -> None:
    ds = made("arm", 5)
    to = tmp_path / "store/arm"
    push(ds, str(to))
    card = (to / "README.md").read_text()
    assert card.startswith('---\npretty_name: "arm"\n') and ds.fingerprint in card
    assert str(tmp_path) not in card and str(home) not in card
    assert is_report(to / "report.html")
    described = json.loads((to / "croissant.json").read_text())
    files = {f["contentUrl"]: f for f in described["distribution"] if "contentUrl" in f}
    there = {f.relative_to(to).as_posix() for f in to.rglob("*") if f.is_file() and f.name[0] != "."}
    lists = {f"blocks/{name.removeprefix('objects/')}" for name in there if name.startswith("objects/")}
    assert lists <= there  # they are proved by the hashes of groups, and the index does not name their own
    assert files.keys() == there - lists - {"README.md", "croissant.json", "report.html", "rlds.json"}
    for name, file in files.items():
        data = (to / name).read_bytes()
        assert (file["sha256"], file["contentSize"]) == (hashlib.sha256(data).hexdigest(), f"{len(data)} B")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlcroissant_reads_what_was_pushed(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    push(made("arm", 5), str(tmp_path / "arm"))
    dataset = mlcroissant.Dataset(str(tmp_path / "arm/croissant.json"))
    assert not dataset.metadata.ctx.issues.errors


def forty(width: int = 8) -> rlds_cli.Dataset:
    episodes = [
        {
            "observation": np.random.default_rng(k).normal(size=(301, width)),
            "action": np.zeros(300),
            "next": {"reward": np.ones(300), "terminated": True},
        }
        for k in range(40)
    ]
    return rlds_cli.create("local/forty", episodes, force=True)


def pages_of(path: Path, index: Index, **how: Any) -> Mapping[str, bytes]:
    """Return the pages to be written where there are none yet."""
    size = sum(o.size for o in index.objects)
    stored = index.stored_files
    return pages_beside(path, stored, lambda _: None, size=size, version=index.version, address=None, url=None, **how)


@pytest.mark.thorough
def test_the_report_is_small_beside_what_is_sent(tmp_path: Path) -> None:
    ds = forty()
    push(ds, str(tmp_path / "arm"))
    with opening.open_objects(Address.parse(tmp_path / "arm"), settings.read()) as objects:
        index = PushedDataset(objects).named_index()
        size = sum(o.size for o in index.objects)
        for page in ("README.md", "croissant.json", "report.html"):
            (tmp_path / "arm" / page).unlink()
        whole = pages_of(ds.path, index)["report.html"]
        scaled = pages_of(ds.path, index, sent=size)["report.html"]
        assert whole == scaled and 60_000 < len(scaled) < 200_000  # of a megabyte
        assert "report.html" not in pages_of(ds.path, index, sent=size - 1)
        always = pages_of(ds.path, index, sent=0, always=True)["report.html"]
        assert Document(always.decode()).wrong == []
    large = forty(400)  # 38 MB
    push(large, str(tmp_path / "large"))
    with opening.open_objects(Address.parse(tmp_path / "large"), settings.read()) as objects:
        index = PushedDataset(objects).named_index()
        (tmp_path / "large/report.html").unlink()
        part = pages_of(large.path, index, sent=20_000_000)["report.html"]
        assert 100_000 < len(part) < 600_000


@pytest.mark.thorough
def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    ds = made("arm", 5)
    push(ds, str(tmp_path / "arm"))
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "arm").iterdir() if f.is_file()}
    push(ds, str(tmp_path / "arm"))
    now = {f: f.stat().st_mtime_ns for f in before}
    assert {f.name for f in before if before[f] != now[f]} <= {"rlds.json"}


@pytest.mark.thorough
def test_pages_that_somebody_took_over_stay(tmp_path: Path) -> None:
    to = tmp_path / "arm"
    push(made("arm", 5), str(to))
    mine = "---\nlicense: mit\n---\n# My arm\n"
    for name, text in (("README.md", mine), ("report.html", "<html>mine</html>")):
        (to / name).chmod(0o644)
        (to / name).write_text(text)
    push(made("arm", 6, seed=1), str(to))
    assert (to / "README.md").read_text() == mine
    assert (to / "report.html").read_text() == "<html>mine</html>"
    (to / "README.md").unlink()
    push(made("arm", 7, seed=2), str(to))
    assert "**7 steps, 1 episode," in (to / "README.md").read_text()


def growing(steps: int) -> rlds_cli.Dataset:
    with rlds_cli.writer("local/log") as writer:
        for k in range(steps):
            after = np.full(3, k + 1, np.float32)
            writer.add(np.full(3, k, np.float32), np.zeros(2), 1.0, k == steps - 1, next_observation=after)
    return writer.dataset()


def test_pages_of_a_dataset_that_grows(tmp_path: Path) -> None:
    ds = growing(3)
    push(ds, str(tmp_path / "log"))
    card = (tmp_path / "log/README.md").read_text()
    assert f"at version {ds.version}; it keeps" in card and "**3 steps, 1 episode," in card


def rows(page: str) -> list[list[str]]:
    """The cells of the table, row by row."""
    body = page.split("<tbody>")[1].split("</tbody>")[0]
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in body.split("<tr>")[1:]
    ]


def check(page: bytes, address: str) -> None:
    text = page.decode()
    assert Document(text).wrong == []
    one, two = rows(text)
    assert (one[0], one[2:4]) == ("one", ["1", "5"])
    assert one[1] == "observation, action, next/reward, next/terminated, next/truncated"
    assert two[0].startswith("two version ") and two[2:4] == ["1", "3"]
    assert one[6] == f"rlds download {address}/one --name local/one"
    assert [a["href"] for a in Document(text).all("a")] == ["./one/report.html", "./two/report.html"]


@pytest.mark.thorough
def test_the_page_of_a_directory(tmp_path: Path) -> None:
    push(made("one", 5), str(tmp_path / "lab/one"))
    push(growing(3), str(tmp_path / "lab/two"))
    done = catalogue(tmp_path / "lab")
    check((tmp_path / "lab/index.html").read_bytes(), "ADDRESS")
    assert [d.id for d in done.datasets] == ["local/one", "local/log"]
    assert str(tmp_path) not in (tmp_path / "lab/index.html").read_text()


@pytest.mark.thorough
def test_the_page_of_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with ObjectStore() as store:
        store.buckets["lab"] = {}
        for name, value in store.environ(tmp_path).items():
            if name.startswith("AWS"):
                monkeypatch.setenv(name, value)
        push(made("one", 5), "s3://lab/data/one")
        push(growing(3), "s3://lab/data/two")
        catalogue("s3://lab/data")
        check(store.buckets["lab"]["data/index.html"], "s3://lab/data")
        kinds = {r.path.partition("?")[0]: r.headers.get("Content-Type") or r.headers.get("content-type")
                 for r in store.requests if r.method == "PUT"}  # fmt: skip
        assert kinds["/lab/data/index.html"] == kinds["/lab/data/one/report.html"] == "text/html; charset=utf-8"
        assert kinds["/lab/data/one/README.md"] == "text/markdown; charset=utf-8"


@pytest.mark.thorough
def test_the_page_of_a_repository_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Hub() as hub:
        for name in ("HF_ENDPOINT", "HF_TOKEN", "NO_PROXY"):
            monkeypatch.setenv(name, hub.environ(tmp_path)[name])
        push(made("one", 5), "hf://datasets/lab/data/one")
        push(growing(3), "hf://datasets/lab/data/two")
        catalogue("hf://datasets/lab/data")
        told = run(capsys, monkeypatch, "push", "local/one", "hf://datasets/lab/other")
        assert f"rlds download hf://datasets/lab/other#{rlds_cli.open_dataset('local/one').fingerprint}" in told
        content = hub.content("lab/data")
        check(content["index.html"], "hf://datasets/lab/data")
        described = json.loads(content["one/croissant.json"])
        assert described["url"] == f"{hub.url}/datasets/lab/data/tree/main/one"


BROKEN: list[Any] = [b"{}", b"\x00", b'{"rlds_dataset": 99}', b'{"rlds_dataset": 1, "id": "</td><script>"}']


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_dataset_is_on_the_page(tmp_path: Path, text: bytes) -> None:
    push(made("one", 5), str(tmp_path / "lab/one"))
    (tmp_path / "lab/bad").mkdir()
    (tmp_path / "lab/bad/rlds.json").write_bytes(text)
    done = catalogue(tmp_path / "lab")
    assert [d.problem is None for d in done.datasets] == [False, True]
    page = (tmp_path / "lab/index.html").read_text()
    assert "<script" not in page and str(tmp_path) not in page


@pytest.mark.thorough
def test_a_damaged_manifest_is_on_the_page(tmp_path: Path) -> None:
    push(made("one", 5), str(tmp_path / "lab/one"))
    (found,) = (tmp_path / "lab/one/objects").iterdir()
    found.chmod(0o644)
    data = found.read_bytes()
    found.write_bytes(data.replace(b'"counts"', b'"COUNTS"'))
    (one,) = catalogue(tmp_path / "lab").datasets
    assert one.problem is not None and "do not have the sha256" in one.problem


def test_a_page_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    push(made("one", 5), str(tmp_path / "lab/one"))
    (tmp_path / "lab/index.html").write_text("<h1>mine</h1>")
    with pytest.raises(NameTaken):
        catalogue(tmp_path / "lab")
    assert (tmp_path / "lab/index.html").read_text() == "<h1>mine</h1>"


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr("sys.argv", ["rlds", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    assert not ended.value.code, out.err
    return out.out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made("one", 5), made("two", 4)
    lab = str(tmp_path / "lab")
    told = run(capsys, monkeypatch, "push", "local/one", f"{lab}/one", "--no-pages")
    fingerprint = rlds_cli.open_dataset("local/one").fingerprint
    assert f"rlds download {lab}/one#{fingerprint}" in told and not (tmp_path / "lab/one/README.md").exists()
    words = ("push", "local/two", f"{lab}/two", "--pages", "--catalogue", lab, "--json")
    both = json.loads(run(capsys, monkeypatch, *words))
    assert both["push"]["id"] == "local/two"
    assert [d["report"] for d in both["catalogue"]["datasets"]] == [False, True]
    assert rows((tmp_path / "lab/index.html").read_text())[1][0] == "two"
    (tmp_path / "lab/index.html").unlink()
    assert "would list 2 datasets" in run(capsys, monkeypatch, "push", "--catalogue", lab, "--dry-run")
    assert not (tmp_path / "lab/index.html").exists()
    assert "lists 2 datasets" in run(capsys, monkeypatch, "push", "--catalogue", lab)


@pytest.mark.parametrize("words", [[], ["local/one"], ["local/one", "--catalogue", "x"]])
def test_incomplete_commands(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["rlds", "push", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "ID and TO" in capsys.readouterr().err


def test_an_empty_store_has_an_empty_page(tmp_path: Path) -> None:
    with opening.open_objects(Address.parse(tmp_path / "lab"), settings.read()) as objects:
        objects.put("notes.txt", Body.of(b"x"))
    assert catalogue(tmp_path / "lab").datasets == ()
    assert rows((tmp_path / "lab/index.html").read_text()) == []
