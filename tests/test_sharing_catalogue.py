"""The pages beside pushed datasets, and the page of all datasets of a store."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli import settings
from rlds_cli.cli import main
from rlds_cli.errors import NameTaken
from rlds_cli.sharing.catalogue import catalogue
from rlds_cli.sources import addresses, opening
from rlds_cli.sources.source import Body


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlcroissant_reads_what_was_pushed(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    push(made("arm", 5), str(tmp_path / "arm"))
    dataset = mlcroissant.Dataset(str(tmp_path / "arm/croissant.json"))
    assert not dataset.metadata.ctx.issues.errors


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
    with opening.open_objects(addresses.parse(tmp_path / "lab"), settings.read()) as objects:
        objects.put("notes.txt", Body.of(b"x"))
    assert catalogue(tmp_path / "lab").datasets == ()
    assert rows((tmp_path / "lab/index.html").read_text()) == []
