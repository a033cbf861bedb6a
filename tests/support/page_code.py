"""What pages of the documentation show, and a reader who does it all: runs their code, and types their commands."""

from __future__ import annotations

import io
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import family_files
import h5py
import hub_tables
import image_archives
import numpy as np
import pytest
import rllib_files
import robot_recordings
import tfds_files
import torchrl_dumps
import zarr_files
from conftest import run_rlds

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "rlds_cli" / "samples"
PYTHON, SHELL = ("python", "py"), ("console", "sh", "bash")

# What a page shows with a published dataset is run with a sample, and shorter.
STAND_INS = {
    "d4rl/hopper-medium-v2": "sample/pendulum-d4rl",
    "d4rl/hopper-{level}-v2": "sample/pendulum-d4rl",
    "d4rl/walker2d-medium-v2": "sample/mountaincar-robohive",
    "roboset/dapg-expert/door_v2d-v1": "sample/mountaincar-robohive",
    "jobs=4": "jobs=1",
    "100_000": "3",
}

# Pages that go on with the code and the data of another one, in the order of the guides.
CHAPTERS = {
    "docs/guides/bring-your-own-data.md": (
        "docs/reference/tables.md",
        "docs/guides/cameras.md",
        "docs/guides/create.md",
    ),
    "docs/reference/commands.md": tuple(
        f"docs/reference/commands-{panel}.md" for panel in ("get", "look", "make", "share", "house-keeping", "growing")
    ),
    "docs/guides/dataset.md": ("docs/guides/curate.md",),
    "docs/guides/downloading.md": ("docs/reference/urls.md",),
    "docs/guides/export.md": ("docs/reference/export-formats.md",),
    "docs/reference/format.md": ("docs/reference/format-home.md", "docs/reference/format-growing.md"),
    "docs/guides/frameworks.md": ("docs/reference/settings-elsewhere.md",),
    "docs/guides/inspect.md": ("docs/guides/check.md",),
    "docs/guides/preprocess.md": ("docs/guides/cluster.md",),
    "docs/reference/writing-a-reader.md": ("docs/reference/reader-protocol.md",),
}
LATER = {page for pages in CHAPTERS.values() for page in pages}


def text_of(page: str) -> str:
    """A page, and those that go on with it."""
    return "\n".join((ROOT / p).read_text() for p in (page, *CHAPTERS.get(page, ())))


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of code or commands of a page."""

    page: str
    language: str
    code: str
    before: str  # the line above it

    @property
    def file(self) -> str | None:
        """The name of the file that a reader writes it to: its first comment says so, or the line above a script."""
        if self.language in PYTHON:
            named = re.match(r"# (\w+\.py)\n", self.code)
        else:
            named = re.search(r"`([\w.]+)`:$", self.before) if self.code.startswith("#!") else None
        return named and named[1]

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """Its commands, without their prompts and comments, and the lines that each is shown to print."""
        if self.language == "bash":
            return [(self.code, [])]
        found: list[tuple[str, list[str]]] = []
        for line in self.code.replace("\\\n", " ").splitlines():
            if self.language == "console" and not line.startswith("$ "):
                found[-1][1].append(line)
            elif line.strip():
                found.append((re.split(r" +#", line.removeprefix("$ "))[0].strip(), []))
        return found


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page and of those that go on with it, in their order, but for those of readers of archives."""
    found = []
    for shown in (page, *CHAPTERS.get(page, ())):
        text = (ROOT / shown).read_text()
        for fence in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.S | re.M):
            before = text[: fence.start()].rstrip("\n").rpartition("\n")[2]
            if before != "<!-- reader -->":
                found.append(Block(page=shown, language=fence[1], code=fence[2], before=before))
    return found


def blocks(page: str, language: str) -> list[str]:
    """The code of the blocks of a language."""
    return [block.code for block in blocks_of(page) if block.language == language]


def stand_in(code: str, more: Mapping[str, str] | None = None) -> str:
    """Code with what can be had here in place of what is elsewhere."""
    for shown, run in ({**more, **STAND_INS, **more} if more else STAND_INS).items():
        code = code.replace(shown, run)
    return code


class Reader:
    """Somebody at a desk who does what a page shows, from its first block to its last.

    ``names`` are those of the code, and ``printed``, what each block of code has printed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, str] | None = None, **names: Any) -> None:
        self.names: dict[str, Any] = {**names, "printed": []}
        self._monkeypatch, self._more = monkeypatch, more
        monkeypatch.setenv("COLUMNS", "100")  # where pages show what is printed
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def follow(self, block: Block) -> None:
        """Run a block, or write it to the file that it is of."""
        if block.file:
            Path(block.file).write_text(stand_in(block.code, self._more))
        if block.language in PYTHON:
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(stand_in(block.code, self._more), block.page, "exec"), self.names)
            self.names["printed"].append(printed.getvalue())
        elif not block.file:
            for command, shown in block.commands:
                printed = self.type(command)
                missing = [line for line in shown if line != "..." and _words(line) not in map(_words, printed)]
                assert not missing, f"{block.page}: {command} does not print {missing}, but {printed}"

    def type(self, command: str) -> list[str]:
        """Type a command; return the lines that it prints."""
        command = stand_in(command, self._more)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._monkeypatch.setenv(name, shlex.split(value)[0])
            return []
        if command.startswith("rlds view"):
            return _until_ctrl_c(command)
        if " && rlds " in command:
            return [line for part in command.split(" && ") for line in self.type(part)]
        rest, into, file = command.rpartition(" > ")
        plain, file = (rest, file) if into and re.fullmatch(r"\S+", file) else (command, "")
        if not plain.startswith("rlds ") or re.search(r"[;|$\n]", re.sub(r"'[^']*'", "", plain)):
            done = subprocess.run(command, shell=True, capture_output=True, timeout=300)
        else:
            done = run_rlds(*_given(plain)[1:])
            if file:
                Path(file).write_bytes(done.stdout)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == 0, f"{command}\n{out}{err}"
        assert out.strip() or err.strip(), f"{command} says nothing"
        return out.splitlines()


def _given(command: str) -> list[str]:
    """The words that a shell gives to a program."""
    found: list[str] = []
    for word in re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""", command):
        files = sorted(map(str, Path().glob(word))) if "*" in word and not {"'", '"'} & set(word) else []
        found += files or shlex.split(re.sub("^~", str(Path.home()), word))
    return found


def _words(line: str) -> str:
    """A line but for its columns, and for bytes on disk, which depend on the file system."""
    return " ".join(re.sub(r"[\d.]+ [KM]?i?B\b", "", line).split())


def _until_ctrl_c(command: str) -> list[str]:
    """Run a command that prints an address and serves until Ctrl-C."""
    with subprocess.Popen([*shlex.split(command), "--no-open"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0 and address.startswith("http://127.0.0.1:"), command
    return [address]


# -- the desk


@pytest.fixture(scope="session")
def written_desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a little of everything that the pages speak of."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copytree(SAMPLES / "cartpole-minari", desk / ".minari/datasets/cartpole/medium-v0")
    shutil.copy(SAMPLES / "pendulum-d4rl.hdf5", desk / "my_rollouts.hdf5")
    (desk / "runs").mkdir()
    for seed in (1, 2):
        shutil.copy(SAMPLES / "mountaincar-robohive.h5", desk / f"runs/seed{seed}.h5")
    with h5py.File(desk / "run42.h5", "w") as f:
        f["state/q"], f["cmd"] = np.random.default_rng(0).normal(size=(2, 100, 7))
        f["r"], f["success"] = np.zeros(100, np.float32), np.arange(100) % 20 == 19
    (desk / "logs").mkdir()
    log = {"states": np.zeros((4, 2)), "actions": np.ones((3, 1)), "r": [0.0, 0.0, 1.0], "success": True}
    (desk / "logs/1.pkl").write_bytes(pickle.dumps(log | {"timeout": False}))
    for module in (
        image_archives,
        tfds_files,
        family_files,
        torchrl_dumps,
        robot_recordings,
        hub_tables,
        rllib_files,
        zarr_files,
    ):
        module.write_desk(desk)
    (desk / "examples").symlink_to(ROOT / "examples")
    (desk / "docs").symlink_to(ROOT / "docs")
    return desk


@pytest.fixture
def desk(written_desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of the test's own with those files; the working directory."""
    for variable in ("RLDS_HOME", "RLDS_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RLDS_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(written_desk, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path
