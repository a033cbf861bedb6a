"""Work in processes of their own, by this checkout or by an earlier one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from results import DATA

ROOT = Path(__file__).resolve().parents[1]


def earlier(named: str) -> Path:
    """Return the directory of another checkout, or the files of a commit below `DATA`; its C code is compiled."""
    found = Path(named).resolve()
    if not found.is_dir():
        commit = _git("rev-parse", "--verify", f"{named}^{{commit}}").decode().strip()
        found = (DATA / "before" / commit).resolve()
        if not found.is_dir():
            with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as files:
                files.extractall(found, filter="data")
    if not (found / "rlds_cli/loader/_kernel.so").exists():
        subprocess.run([sys.executable, "hatch_build.py"], cwd=found, check=True, stdout=subprocess.DEVNULL)
    return found


def _git(*command: str) -> bytes:
    return subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True).stdout


def here() -> AbstractContextManager[None]:
    """Have archives read in this process: its time and memory are then all of them."""
    try:
        from rlds_cli.base.files import child
    except ImportError:  # older checkouts have no other process
        return nullcontext()
    return child.here()


def imported(*given: Any, **options: Any) -> Any:
    """Import the files of a user, by whichever checkout this process works for."""
    from rlds_cli.make import importing

    work = getattr(importing, "import_files", None) or importing.import_archive  # in older checkouts
    return work(*given, progress=False, **options)


def measured(script: str, *arguments: object, checkout: Path = ROOT, env: Mapping[str, str] | None = None) -> Any:
    """Return what a script prints last, as JSON; it imports rlds from ``checkout``."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(checkout, env))
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} of {checkout} ended with {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def started(
    script: str, *arguments: object, checkout: Path = ROOT, env: Mapping[str, str] | None = None
) -> Iterator[Callable[[str], Any]]:
    """Start a script; the function gives it a line, and returns the line of JSON that it answers."""
    command = [sys.executable, script, *map(str, arguments)]
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipe, env=_environment(checkout, env)) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(line: str) -> Any:
            print(line, file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


def _environment(checkout: Path, more: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout), **(more or {})}
