"""A disk that fails under a command: one error, which says so, and no traceback."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import run_rlds
from loader_data import create, episode

CALLS = ("fsync", "replace", "rename", "link", "unlink", "ftruncate", "pwrite")
COMMANDS = {
    "tag": ("tag", "local/known", "first"),
    "tag --delete": ("tag", "local/known", "--delete", "old"),
    "drop": ("drop", "local/known", "--episodes", "1"),
    "label": ("label", "local/known", "good=true"),
    "select": ("select", "local/known", "--episodes", "0", "--name", "part"),
    "export": ("export", "local/known", "--to", "minari", "{out}", "--lossy"),
    "import": ("import", "{out}.csv", "--name", "local/table"),
    "convert": ("convert", "local/known", "--to", "zarr"),
    "push": ("push", "local/known", "{out}"),
    "preprocess": ("preprocess", "local/known", "--fn", "normalise", "--name", "normal"),
    "registry": ("registry", "add", "{out}.jsonl"),
    "rm": ("rm", "local/known", "--yes"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_failing_disk(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = create([episode(k, 5 + k) for k in range(3)])
    ds.tag("old")
    out = tmp_path / "out"
    out.with_suffix(".csv").write_text("observation,action,done\n1,2,0\n3,4,1\n")
    out.with_suffix(".jsonl").write_text('{"id": "lab/a", "urls": ["https://h.org/a.hdf5"]}\n')
    args = [word.format(out=out) for word in COMMANDS[command]]

    def fails(*_: Any, **how: Any) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        for name in CALLS:
            failing.setattr(os, name, fails)
        done = run_rlds(*args)
    said = done.stderr.decode()
    assert done.returncode == 1 and "Traceback" not in said, said
    assert len(re.findall(r"^\w+: ", said, re.M)) == 1 and "Input/output error" in said, said


@pytest.mark.parametrize("command", ["inspect", "verify", "check"])
def test_reading_from_a_failing_disk(command: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create([episode(k, 5 + k) for k in range(3)])
    opened = os.open

    def fails(path: Any, *how: Any, **more: Any) -> int:
        if str(path).startswith(str(home / "datasets" / "local")):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return opened(path, *how, **more)

    with monkeypatch.context() as failing:
        failing.setattr(os, "open", fails)
        done = run_rlds(command, "local/known")
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert f"{home / 'datasets'}" in done.stderr.decode() + done.stdout.decode()
