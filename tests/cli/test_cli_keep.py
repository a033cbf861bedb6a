"""``rlds inspect``, ``verify``, ``convert``, ``du``, ``rm``, ``gc`` and ``path``: what they print, and how they end."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import made_once

import rlds_cli
from rlds_cli import cli, create, open_dataset
from rlds_cli.base.figures import number
from rlds_cli.cli.du import ago
from rlds_cli.loader import Loader

Rlds = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rlds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rlds:
    """Run ``rlds ARGS`` as its entry point does: (exit code, stdout, stderr)."""

    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds", *map(str, args)])
        try:
            cli.main()
            code: Any = 0
        except SystemExit as e:
            code = e.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def make(ref: str = "local/x") -> Path:
    rng = np.random.default_rng(0)
    episodes = [
        {
            "observation": rng.normal(size=(41, 3)).astype(np.float32),
            "action": np.clip(rng.normal(0, 2, (40, 2)), -1, 1),
            "next": {"reward": np.full(40, k / 4), "terminated": k == 0},
            "info": {"qpos": np.zeros((40, 2)), "qvel": np.zeros((40, 2)), "say": ["hello"] * 40},
        }
        for k in range(5)
    ]
    return made_once(ref, lambda: create(ref, episodes), __name__).path


def on_a_terminal(*args: str, columns: int = 200, answer: str = "", script: str = "") -> str:
    """What ``rlds ARGS``, or another script, shows on a terminal of so many columns."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", script or _RUN, *args],
        stdin=child, stdout=child, stderr=child, env=env,
    )  # fmt: skip
    os.close(child)
    if answer:
        os.write(parent, answer.encode())
    shown = b""
    while True:
        try:
            data = os.read(parent, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    process.wait()
    os.close(parent)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")


class Answer(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


_RUN = "import sys; from rlds_cli.cli import main; sys.argv[0] = 'rlds'; main()"


# rlds inspect


@pytest.mark.thorough
def test_inspect(rlds: Rlds) -> None:
    make()
    code, text, err = rlds("inspect", "local/x")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in text.splitlines()]
    fingerprint = open_dataset("local/x").fingerprint
    short = f"{fingerprint[:10]}-{fingerprint[10:14]}-{fingerprint[14:18]}"
    assert lines[0].startswith(f"local/x   {short}   ")
    assert lines[0].endswith("memmap   made by create")
    assert lines[1] == "200 steps   5 episodes: 1 terminated, 4 cut   200 transitions (final observations recorded)"
    assert lines[2].split() == ["FIELD", "AT", "DTYPE", "SHAPE", "SIZE", "MEAN", "STD", "MIN", "MAX"]
    table = {line.split("  ")[0]: line for line in lines[3:9]}
    assert table["observation"].split()[1:4] == ["both", "float32", "[3]"]
    assert re.search(r"-1\.00 +1\.00 +█\S+  \d\d % saturated$", table["action"])
    assert table["next/reward"].split()[-4:-2] != []
    below = lines.index(next(line for line in lines if line.split()[0] == "info"))
    assert lines[below + 1].split()[:4] == ["├─", "qpos,", "qvel", "root"]
    assert any("1 text" in line for line in lines)
    assert any(
        line.startswith("not loaded by default: info/qpos") and 'fields=[..., "info/qpos"]' in line for line in lines
    )
    returns = next(k for k, line in enumerate(lines) if line.startswith("returns"))
    assert re.match(r"returns  \S[\S ]+\S +0 … 20 … 40$", lines[returns])
    assert re.match(r"lengths  █ +40 … 40 … 40$", lines[returns + 1])
    assert re.match(r"ends     █+░+  20 % terminated, 80 % cut$", lines[returns + 2])
    assert lines[-1].endswith("in the manifest; rlds check local/x also reads the rows")


def test_inspect_stats_and_episode(rlds: Rlds) -> None:
    make()
    code, text, _ = rlds("inspect", "local/x", "--stats")
    assert code == 0
    assert "observation[2]" in text
    assert "99 %" in text
    code, text, _ = rlds("inspect", "local/x", "--episode", "1")
    assert code == 0
    assert text.startswith(
        "local/x   episode 1 of 5\n40 steps   cut   return 10   40 transitions   final observation recorded\n"
    )
    assert "info/say" in text
    assert '"hello"' in text
    code, text, err = rlds("inspect", "local/x", "--episode", "5")
    assert (code, text) == (1, "")
    assert "has no episode 5" in err
    assert "hint: 0 to 4" in err


@pytest.mark.thorough
def test_inspect_json(rlds: Rlds) -> None:
    make()
    code, text, err = rlds("inspect", "local/x", "--json")
    found = json.loads(text)
    assert (code, err) == (0, "")
    assert (found["id"], found["counts"]["episodes"]) == ("local/x", 5)
    assert [f["name"] for f in found["fields"]][:2] == ["observation", "action"]
    assert json.loads(rlds("inspect", "local/x", "--episode", "-1", "--json")[1])["episode"] == 4


# One process that changes the width of its terminal, since each takes longer to start than to draw all pages.
_PAGES = """
import fcntl, struct, sys, termios
from rlds_cli.cli import main
for width in map(int, sys.argv[1].split(",")):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    for more in ([], ["--stats"], ["--episode", "1"]):
        sys.argv = ["rlds", "inspect", "local/x", *more]
        print(f"=={width}", flush=True)
        try:
            main()
        except SystemExit as e:
            assert not e.code
"""


@pytest.mark.slow
def test_inspect_fits_the_terminal() -> None:
    make()
    widths = [20, 40, 60, 80, 100, 200]
    shown = on_a_terminal(",".join(map(str, widths)), script=_PAGES)
    assert "Traceback" not in shown
    pages = [page.partition("\n") for page in shown.split("==")[1:]]
    assert [int(width) for width, _, _ in pages] == [w for w in widths for _ in range(3)]
    for width, _, page in pages:
        lines = page.splitlines()
        assert len(lines) > 4
        assert max(map(len, lines)) <= int(width)
    assert max(len(line) for _, _, page in pages[-3:] for line in page.splitlines()) > 100  # the width is looked at


@pytest.mark.thorough
def test_lines_in_pipes_are_whole(rlds: Rlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    make()
    _, text, _ = rlds("inspect", "local/x")
    assert "200 steps   5 episodes: 1 terminated, 4 cut   200 transitions (final observations recorded)" in text


def test_a_terminal_that_knows_ascii_only() -> None:
    make()
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = subprocess.run([sys.executable, "-c", _RUN, "inspect", "local/x"], env=env, capture_output=True)
    assert run.returncode == 0, run.stderr
    run.stdout.decode("ascii")
    assert b"0 .. 20 .. 40" in run.stdout


def test_inspect_a_file_a_path_and_nothing(rlds: Rlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make()
    assert rlds("inspect", path)[1].startswith("local/x ")
    monkeypatch.chdir(path.parent)
    assert rlds("inspect", "x")[1].startswith("local/x ")
    sample = Path(rlds_cli.__file__).parent / "samples/pendulum-d4rl.hdf5"
    code, text, _ = rlds("inspect", sample)
    assert code == 0
    assert "reader d4rl: 26 episodes; episodes end by flags" in text
    assert text.rstrip().endswith(f"hint: rlds import {sample} --name local/pendulum-d4rl")
    assert rlds("inspect", sample, "--episode", "3")[0] == 2
    code, text, err = rlds("inspect", "nothing.h5")
    assert (code, text) == (1, "")
    assert err.startswith('UnknownDataset: "nothing.h5" is neither a file nor a known dataset')
    (tmp_path / "page.hdf5").write_text("<html>")
    assert "is an HTML page" in rlds("inspect", tmp_path / "page.hdf5")[2]


def test_names_with_brackets_are_no_markup(rlds: Rlds) -> None:
    create("local/b", [{"observation": {"[red]x[/red]": np.zeros(3)}, "action": np.zeros(2), "[/]": np.zeros(2)}])
    code, text, _ = rlds("inspect", "local/b")
    assert code == 0
    assert "observation/[red]x[/red]" in text
    assert "[/]" in text


# rlds verify


@pytest.mark.thorough
def test_verify(rlds: Rlds) -> None:
    path = make()
    make("local/yy")
    code, text, _ = rlds("verify", "--all", "-q")
    assert (code, text) == (0, "local/x   ok    8 arrays\nlocal/yy  ok    8 arrays\n2 ok\n")
    file = path / "action/c/0/0"
    file.chmod(0o644)
    with file.open("r+b") as f:
        f.write(b"\xff")
    code, text, _ = rlds("verify", "local/*", "-q")
    assert code == 1
    lines = text.splitlines()
    assert lines[0] == "local/x   BAD   action: episode 0 differs" and "ds.select(episodes=...)" in lines[1]
    assert lines[2:] == ["local/yy  ok    8 arrays", "1 ok, 1 bad"]
    code, text, _ = rlds("verify", "local/x", "--json", "-q")
    (found,) = json.loads(text)
    assert code == 1
    assert found["ok"] is False
    assert found["problems"][0] == {"where": "action", "what": "differs", "episodes": [0, 1], "bytes": None}


def test_verify_usage(rlds: Rlds) -> None:
    make()
    assert rlds("verify")[0] == 2
    assert rlds("verify", "local/x", "--all")[0] == 2
    assert rlds("verify", "local/x", "--expect", "nonsense")[0] == 1
    assert rlds("verify", "local/x", "--expect", "12345678", "-q")[0] == 1
    assert rlds("verify", "local/x", "--expect", open_dataset("local/x").fingerprint, "-q")[0] == 0
    assert rlds("verify", "local/none")[0] == 1


def test_verify_nothing(rlds: Rlds) -> None:
    assert rlds("verify", "--all")[:2] == (0, "nothing here\n")


# rlds convert, path


def test_convert_and_path(rlds: Rlds) -> None:
    path = make()
    assert rlds("path", "local/x")[:2] == (0, f"{path}\n")
    assert json.loads(rlds("path", "local/X", "--json")[1]) == {"id": "local/x", "path": str(path)}
    code, text, _ = rlds("convert", "local/x", "--to", "zarr", "-q")
    assert code == 0
    assert re.match(rf"local/x  rlds1:\S+  zarr: .* before, .* now, the same content\n{path}\n", text)
    assert rlds("convert", "local/x", "--to", "zarr", "-q")[1] == f"local/x is zarr already: {path}\n"
    assert rlds("convert", "local/x", "--to", "tar")[0] == 2
    assert rlds("convert", "local/x")[0] == 2
    found = json.loads(rlds("convert", "local/x", "--to", "memmap", "--json", "-q")[1])
    assert (found["encoding"], found["changed"]) == ("memmap", True)
    assert rlds("path", "local/none")[0] == 1


# rlds rm


def test_rm_asks_where_somebody_can_answer(rlds: Rlds, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, text, err = rlds("rm", "local/x")
    assert (code, text) == (1, "")
    assert "--yes" in err
    assert "local/x" in err
    assert "cannot be made again: it was created from values in Python" in err
    assert path.exists()
    monkeypatch.setattr(sys, "stdin", Answer("n\n"))
    assert "Nothing was removed" in "".join(rlds("rm", "local/x")[1:])
    assert path.exists()
    shown = on_a_terminal("rm", "local/x", answer="y\n")
    assert "removed local/x: " in shown
    assert not path.exists()


def test_rm_without_asking(rlds: Rlds) -> None:
    make()
    make("local/y")
    rlds_cli.download("sample/pendulum-d4rl")
    code, text, _ = rlds("rm", "local/*", "sample/pendulum-d4rl", "--yes", "-q")
    assert code == 0
    lines = text.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [
        "removed local/x",
        "removed local/y",
        "removed sample/pendulum-d4rl",
    ]
    assert all(line.endswith("cannot be made again: it was created from values in Python") for line in lines[:2])
    assert re.search(r"its archive \(\d.* KiB\) stays$", lines[2])
    assert re.match(r"\d.* freed$", lines[3])
    assert rlds("rm", "local/x", "--yes")[0] == 1
    assert rlds("rm")[0] == 2


# rlds du


def test_du(rlds: Rlds, home: Path) -> None:
    assert rlds("du")[1].startswith(f"0 B in {home}, ")
    make()
    make("local/x@v")
    rlds_cli.download("sample/pendulum-d4rl")
    code, text, _ = rlds("du")
    lines = text.splitlines()
    assert code == 0
    assert lines[0].split() == ["ARCHIVE", "CACHE", "SHARED", "LAST", "OPENED", "SHARED", "WITH"]
    assert [line.split()[0] for line in lines[1:4]] == ["local/x", "@v", "sample/pendulum-d4rl"]
    assert lines[2].startswith("  @v")
    assert lines[3].endswith("today")
    assert f" in {home}, " in lines[5]
    found = json.loads(rlds("du", "--json")[1])
    assert found["total"] == found["archives"] + found["caches"] + found["packed"] + found["partial"]
    assert found["datasets"][0]["id"] == "local/x"


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("2026-05-20T23:59:59+00:00", "today"),
        ("2026-05-19T00:00:00+00:00", "yesterday"),
        ("2026-05-18T12:00:00+00:00", "2 days ago"),
        ("2026-05-07T12:00:00+00:00", "13 days ago"),
        ("2026-05-06T12:00:00+00:00", "2 weeks ago"),
        ("2026-03-25T12:00:00+00:00", "8 weeks ago"),
        ("2026-03-21T12:00:00+00:00", "2 months ago"),
        ("2024-05-20T12:00:00+00:00", "2 years ago"),
    ],
)
def test_times(then: str, said: str) -> None:
    from datetime import UTC, datetime

    assert ago(then, datetime(2026, 5, 20, 12, tzinfo=UTC)) == said


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("x", "dtype", "text"),
    [
        (3.14159, "float32", "3.14"),
        (-9.98, "float32", "-9.98"),
        (0.0, "float32", "0.00"),
        (0.00123, "float32", "1.2e-03"),
        (1234.5, "float32", "1,234.50"),
        (1e7, "float32", "1.0e+07"),
        (5.0, "int64", "5"),
        (2.0**62, "int64", "4.6e+18"),
        (1.0, "bool", "1"),
        (None, "float32", "·"),
        (float("nan"), "float32", "·"),
    ],
)
def test_numbers(x: float | None, dtype: str, text: str) -> None:
    assert number(x, dtype) == text


def test_commands_start_light() -> None:
    make()
    script = (
        "import sys; from rlds_cli.cli import main\n"
        "heavy = {'torch', 'jinja2', 'zarr', 'h5py', 'requests', 'numpy', 'PIL', 'tensordict'}\n"
        "for line in ('path local/x', 'du', 'inspect local/x'):\n"
        "    sys.argv = ['rlds', *line.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    print(line.split()[0], *sorted(set(sys.modules) & heavy), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr.splitlines() == ["path", "du", "inspect numpy"]


# rlds gc


def test_gc(rlds: Rlds, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rlds("gc") == (0, "nothing to remove\n", "")
    make()
    rlds_cli.download("sample/pendulum-d4rl")
    for file in ("packed/aa-bb.rows", "packed/aa-cc.rows", "partial/local+x@v.0123/rows"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_bytes(bytes(8192))
    _, text, err = rlds("du")
    assert "packed rows (rebuilt when needed)" in text
    assert "partial downloads and conversions" in text
    assert re.fullmatch(
        r"hint: rlds gc frees 24\.0 KiB; rlds gc --archives frees up to \S+ KiB more in archives .*\n", err
    )
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    code, text, err = rlds("gc")
    assert (code, text) == (1, "")
    assert "packed rows (2)  16.0 KiB" in err
    assert "--yes" in err
    assert (home / "packed").exists()
    monkeypatch.setattr(sys, "stdin", Answer("n\n"))
    assert "Nothing was removed" in "".join(rlds("gc")[1:])
    assert (home / "packed").exists()
    shown = on_a_terminal("gc", answer="y\n")
    assert "Remove 24.0 KiB?" in shown
    assert "partial/local+x@v.0123  8.0 KiB  interrupted work" in shown
    assert "24.0 KiB freed" in shown
    assert not (home / "packed").exists()
    code, text, _ = rlds("gc", "--archives", "--yes", "--json", "-q")
    found = json.loads(text)
    assert code == 0
    assert [(g["kind"], g["id"]) for g in found["removed"]] == [("archive", "sample/pendulum-d4rl")]
    assert found["bytes"] == found["removed"][0]["bytes"] > 0
    assert rlds("gc", "--archives", "--yes") == (0, "nothing to remove\n", "")


def test_what_is_suggested_does_not_train_on_the_validation_split(rlds: Rlds, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, episodes in (("x-v0.npz", 3), ("x-v0-val.npz", 2)):
        rows = {
            "observations": rng.standard_normal((4 * episodes, 3)),
            "actions": rng.standard_normal((4 * episodes, 2)),
        }
        np.savez(tmp_path / name, **rows, terminals=np.arange(4 * episodes) % 4 == 3, qpos=rows["observations"])
    code, _, err = rlds("import", tmp_path / "x-v0.npz", tmp_path / "x-v0-val.npz", "--name", "local/x")
    assert code == 0 and "note: outside the split train: 2 episodes of 5" in err
    line = next(x for x in err.splitlines() if x.startswith("use:")).removeprefix("use:")
    exec(line.strip(), pasted := {})
    loader = pasted["loader"]
    assert loader.dataset.num_episodes == 3 and loader.dataset.episodes["train"].all()
    assert "2 of them not of the split train" in Loader("local/x").describe()
    assert "split" not in loader.describe()
    code, _, err = rlds("import", tmp_path / "x-v0.npz", "--name", "local/y")
    assert code == 0 and 'loader = rlds_cli.Loader("local/y", batch_size=256)' in err
