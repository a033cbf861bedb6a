"""Where an attack takes place: a home, a user's own files beside it, and commands that are watched while they run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY = 1 << 30  # bytes that a process may hold at most
SILENCE = 60.0  # seconds that a command may run without a word
KILLED_AFTER = 300.0  # three tries of a minute each, and a busy machine
SECRET = "a-key-of-the-user-7f3a91"


@dataclass(frozen=True)
class Result:
    """What a command did. ``silence`` is the longest time without output, in seconds; ``memory`` in bytes."""

    command: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float
    silence: float
    memory: int

    @property
    def said(self) -> str:
        """Both outputs."""
        return self.out + self.err


class Enough(Exception):
    """All commands that an attack may run have been run."""


@dataclass
class Scene:
    """Directories of one attack, and what must stay as it was.

    ``home`` is RLDS_HOME and holds samples; ``work`` is the current directory; ``victim`` holds files of the user that
    no command was asked to touch.
    """

    root: Path
    home: Path
    work: Path
    victim: Path
    environment: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    commands: int = 1 << 30  # that may still be run
    _before: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> Path:
        """A file of the user's that nobody else may read."""
        return self.victim / "key"

    @property
    def executed(self) -> Path:
        """A file that exists once a stranger's command was executed."""
        return self.root / "executed"

    @property
    def dataset(self) -> Path:
        """A dataset that a stranger may have altered."""
        return self.home / "datasets" / "sample" / "pendulum-d4rl"

    def fault(self, text: str) -> None:
        """Record that an attack got through."""
        self.faults.append(text)

    def refused(self, result: Result, what: str = "") -> None:
        """Record a fault unless a command failed, with an error that names ``what``."""
        if result.code in (0, None):
            self.fault(f"{' '.join(result.command)} was not refused: {result.said[-200:]!r}")
        elif what and what not in result.said:
            self.fault(f"{' '.join(result.command)} does not name {what}: {result.err[-200:]!r}")

    def run(self, *words: object) -> Result:
        """Run ``rlds WORDS``, and record what no attack may reach; raise `Enough` after the last that may be run."""
        if not self.commands:
            raise Enough
        self.commands -= 1
        result = watched(("rlds", *map(str, words)), self.work, self._environment())
        if result.silence > SILENCE:
            self.fault(f"{' '.join(result.command)[:160]}: {result.silence:.0f} s without a word")
        self._judge(result)
        return result

    @contextmanager
    def serving(self, *words: object) -> Iterator[tuple[Watched, str]]:
        """Run ``rlds WORDS`` until Ctrl-C; give it, and the first line that it prints."""
        process = Watched(("rlds", *map(str, words)), self.work, self._environment())
        try:
            yield process, process.first_line()
            if not process.runs:
                self.fault(f"{' '.join(map(str, words))} ended by itself")
        finally:
            process.interrupt()
            self._judge(process.result())

    def _judge(self, result: Result) -> None:
        """Record what no command may do, whatever it reads."""
        said = " ".join(result.command)[:160]
        if "Traceback (most recent call last)" in result.said:
            self.fault(f"{said}: a traceback: {result.err[-300:]!r}")
        if result.code < 0 or result.code > 128:
            self.fault(f"{said}: ended by signal {result.code} after {result.seconds:.0f} s")
        if result.memory > MEMORY:
            self.fault(f"{said}: {result.memory >> 20} MiB of memory")
        if any(ord(c) < 32 and c not in "\n\t\r" for c in result.said):
            self.fault(f"{said}: prints control characters: {result.said[-200:]!r}")

    def python(self, code: str) -> str:
        """Run Python of the user's, without watching it, and return what it prints."""
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "check": True, "text": True}
        command = [sys.executable, "-P", "-c", code]
        return str(subprocess.run(command, cwd=self.work, env=self._environment(), **how).stdout)

    def _environment(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "PYTHONPATH")}
        own = {
            "RLDS_HOME": str(self.home),
            "RLDS_READ_MEMORY": "512MiB",
            "HOME": str(self.root / "user"),
            "NO_PROXY": "127.0.0.1",
        }
        return keep | own | self.environment

    def clear(self) -> None:
        """Leave only the samples in the home."""
        for place in ("archives", "datasets", "partial"):
            for directory in (self.home / place).glob("*"):
                if directory.name != "sample":
                    subprocess.run(["rm", "-rf", directory], check=True)

    def remember(self) -> None:
        """Take down the user's files as they are now."""
        self._before = _state(self.victim)

    def close(self) -> None:
        """Record what happened to the user's files, and whether a secret went anywhere."""
        after = _state(self.victim)
        for name in sorted(self._before.keys() | after.keys()):
            if name not in after:
                self.fault(f"deleted: {name}")
            elif self._before.get(name) != after[name]:
                self.fault(f"damaged: {name}: {self._before.get(name)} is {after[name]}")
        if self.executed.exists():
            self.fault("a stranger's command was executed")
        for path in _files(self.home):
            if not path.is_symlink() and path.stat().st_size < 64 << 20 and SECRET.encode() in path.read_bytes():
                self.fault(f"a secret was copied to {path.relative_to(self.root)}")


Attack = Callable[[Scene], None]


def watched(command: tuple[str, ...], directory: Path, environment: Mapping[str, str]) -> Result:
    """Run a command of rlds in a process of its own; kill it where it takes too long or too much memory."""
    return Watched(command, directory, environment).result()


class Watched:
    """A command of rlds that runs in a process of its own, with its outputs, its memory and its silence."""

    def __init__(self, command: tuple[str, ...], directory: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._start = self._last = time.monotonic()
        self._longest, self._peak = 0.0, 0
        self._output = {"out": bytearray(), "err": bytearray()}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlds_cli", *command[1:]],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        streams = (("out", self._process.stdout), ("err", self._process.stderr))
        self._readers = [threading.Thread(target=self._read, args=both, daemon=True) for both in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: Any) -> None:
        while block := os.read(stream.fileno(), 1 << 16):
            now = time.monotonic()
            self._longest, self._last = max(self._longest, now - self._last), now
            if len(self._output[name]) < 1 << 22:
                self._output[name] += block

    def _look(self) -> None:
        self._peak = max(self._peak, _resident(self._process.pid))
        if time.monotonic() - self._start > KILLED_AFTER or self._peak > 2 * MEMORY:
            os.killpg(self._process.pid, signal.SIGKILL)
        time.sleep(0.02)

    def first_line(self) -> str:
        """Wait for the first line that it prints; empty where it ends without one."""
        while b"\n" not in self._output["out"] and self._process.poll() is None:
            self._look()
        return self._output["out"].decode("utf-8", "replace").partition("\n")[0]

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        self._look()
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def result(self) -> Result:
        """Wait until it ends."""
        while self._process.poll() is None:
            self._look()
        for reader in self._readers:
            reader.join(5)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        end = time.monotonic()
        out, err = (self._output[name].decode("utf-8", "replace") for name in ("out", "err"))
        return Result(
            command=self._command,
            code=self._process.returncode,
            out=out,
            err=err,
            seconds=end - self._start,
            silence=max(self._longest, end - self._last),
            memory=self._peak,
        )


def _resident(pid: int) -> int:
    """Bytes of memory that a process and its children hold, without the files that they have mapped."""
    total = 0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total = int(line.split()[1]) << 10
    except OSError:
        return 0
    return total + sum(_resident(int(child)) for child in children)


def _files(directory: Path) -> Iterator[Path]:
    return (p for p in sorted(directory.rglob("*")) if p.is_file())


def _state(directory: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else None
        links = status.st_nlink if path.is_file() else None
        found[str(path.relative_to(directory))] = (oct(status.st_mode), links, content)
    return found


def prepare(base: Path) -> None:
    """Make the home of samples that every scene gets a copy of."""
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "PYTHONPATH")}
    environment |= {"RLDS_HOME": str(base), "HOME": str(base.parent / "user")}
    words = ("rlds", "download", "sample/pendulum-d4rl", "sample/cartpole-minari")
    done = watched(words, base.parent, environment)
    if done.code:
        raise SystemExit(f"The samples cannot be made: {done.err}")


def scene(root: Path, base: Path) -> Scene:
    """A new scene below ``root``, with a copy of the samples."""
    home, work, victim = (root / name for name in ("home", "work", "victim"))
    shutil.copytree(base, home, symlinks=True)
    work.mkdir()
    (victim / "precious").mkdir(parents=True)
    (victim / "precious" / "thesis.txt").write_text("years of work\n")
    (victim / "notes.txt").write_text("notes\n")
    (victim / "key").write_text(SECRET + "\n")
    (victim / "key").chmod(0o600)
    found = Scene(root, home, work, victim)
    found.remember()
    return found


def rewrite(file: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON document in place, as a stranger who made it would have written it."""
    document = json.loads(file.read_text())
    change(document)
    file.chmod(0o644)
    file.write_text(json.dumps(document))


def attacks() -> tuple[dict[str, Attack], Callable[..., Callable[[Attack], Attack]]]:
    """A table of attacks, and the decorator that puts one into it; ``quick`` ones are for a test, too."""
    table: dict[str, Attack] = {}

    def attack(*, quick: bool = False) -> Callable[[Attack], Attack]:
        def put(function: Attack) -> Attack:
            table[function.__name__] = function
            function.quick = quick  # type: ignore[attr-defined]
            return function

        return put

    return table, attack
