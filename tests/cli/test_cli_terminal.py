"""What commands print on a terminal of 80 columns, and what NO_COLOR, FORCE_COLOR, TERM=dumb and pipes make of it."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import run_rlds
from loader_data import create, episode

import rlds_cli
from rlds_cli import cli

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def terminal(columns: int) -> Iterator[int]:
    """A terminal in place of stdout and stderr; yields where what they show is read."""
    shown, inside = os.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept, streams = (os.dup(1), os.dup(2)), (sys.stdout, sys.stderr)
    os.dup2(inside, 1)
    os.dup2(inside, 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(inside), "w", buffering=1) for _ in range(2))
    try:
        yield shown
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.close()
        for k, fd in enumerate(kept, 1):
            os.dup2(fd, k)
            os.close(fd)
        sys.stdout, sys.stderr = streams
        os.close(inside)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run ``rlds ARGS`` on a terminal of 80 columns, and return what it shows."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def run(*args: object, **environment: str) -> str:
        with monkeypatch.context() as m:
            for name, value in environment.items():
                m.setenv(name, value)
            m.setattr(sys, "argv", ["rlds", *map(str, args)])
            with terminal(80) as shown:
                with suppress(SystemExit):
                    cli.main()
                sys.stdout.flush()
                sys.stderr.flush()
                os.set_blocking(shown, False)
                said = b""
                while part := _read(shown):
                    said += part
            os.close(shown)
        lines = said.decode().replace("\r\n", "\n").split("\n")
        return "\n".join(line if "\x1b" in line else line.rstrip() for line in lines)

    return run


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""


def too_wide(said: str) -> list[str]:
    lines = [ESCAPE.sub("", line) for line in said.split("\n")]
    return [line for line in lines if len(line.rstrip()) > 80 and not line.startswith("use:")]


SHOWN = (["inspect", "local/known"], ["rm", "--help"], ["inspect", "local/none"], ["list"])


@pytest.mark.parametrize("args", SHOWN, ids=" ".join)
def test_styles_are_for_terminals_that_show_them(on_terminal: Callable[..., str], args: list[str]) -> None:
    create([episode(k, 5 + k) for k in range(3)])
    usual = on_terminal(*args)
    assert ("\x1b[" in usual) == (args != ["list"]), "a list has no styles"
    lines = [line.rstrip() for line in ESCAPE.sub("", usual).split("\n")]
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert on_terminal(*args, **environment).split("\n") == lines
    piped = run_rlds(*args)
    assert b"\x1b" not in piped.stdout + piped.stderr


def test_an_error_is_broken_at_words_and_its_hint_between_commands(on_terminal: Callable[..., str]) -> None:
    said = ESCAPE.sub("", on_terminal("info", "nothing", COLUMNS="60"))
    hint = said[said.index("  hint:") :].splitlines()
    assert hint == [
        "  hint: rlds list shows all datasets;",
        "        rlds import PATH --name local/NAME imports files of your own",
    ]
    create([episode(0, 5)])
    said = ESCAPE.sub("", on_terminal("episodes", "local/known", "--where", "nothing > 1"))
    first, *more = said.split("  hint:")[0].rstrip().split("\n")
    assert first.startswith("InvalidExpression: ") and more and all(line.startswith("  ") for line in more)
    assert too_wide(said) == []
    piped = run_rlds("episodes", "local/known", "--where", "nothing > 1").stderr.decode()
    assert piped.startswith(" ".join([first, *(line.strip() for line in more)]))


def test_texts_of_episodes_are_cut_on_a_terminal_alone(on_terminal: Callable[..., str]) -> None:
    place, task = "/data/" + "deep/" * 30, "put the carrot on the plate " * 4
    made = {"observation": np.zeros((3, 1), "f4"), "action": np.zeros((2, 1), "f4"), "episode": {"a": place, "b": task}}
    rlds_cli.create("local/long", [made, made])
    said = on_terminal("episodes", "local/long")
    assert too_wide(said) == [] and "/data/deep" in said and "put the carrot" in said and "…" in said
    piped = run_rlds("episodes", "local/long").stdout.decode()
    assert place in piped and task.strip() in piped and "…" not in piped


def test_columns_of_episodes_beyond_the_terminal_are_named(on_terminal: Callable[..., str]) -> None:
    flags = {f"a_rather_long_flag_{k}": k > 2 for k in range(6)}
    made = {"observation": np.zeros((3, 1), "f4"), "action": np.zeros((2, 1), "f4"), "episode": flags}
    rlds_cli.create("local/flagged", [made, made])
    said = on_terminal("episodes", "local/flagged")
    note = " ".join(said[said.index("note:") :].split("2 episodes")[0].split())
    left_out = note.removeprefix("note: not on this terminal: ").split(";")[0].split(", ")
    shown = next(line for line in said.split("\n") if line.startswith("EPISODE")).split()[1:]
    assert too_wide(said) == [] and {*shown} | {*left_out} >= {*flags} and left_out
    assert (
        not {*shown} & {*left_out}
        and "not on this terminal" not in run_rlds("episodes", "local/flagged").stderr.decode()
    )


def test_what_there_is_fits(on_terminal: Callable[..., str], home: Path) -> None:
    create([episode(k, 5 + k) for k in range(3)])
    for args in ("du",), ("doctor",), ("preprocess", "--list"), ("export", "local/known", "there"):
        said = on_terminal(*args)
        assert [line for line in too_wide(said) if str(home) not in line] == [] and "…" not in said, said


def test_every_help_fits(on_terminal: Callable[..., str]) -> None:
    assert [wide for name in cli.COMMANDS for wide in too_wide(on_terminal(name, "--help"))] == []


def test_what_is_made_is_said_in_lines_that_fit(on_terminal: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / f"{'a_rather_long_name_' * 2}.csv"
    file.write_text("observation,action,episode\n1,2,0\n3,4,0\n5,6,1\n")
    assert too_wide(on_terminal("import", file, "--name", "local/made", "--quiet")) == []
    *table, count, home = on_terminal("list").splitlines()
    assert too_wide("\n".join([*table, count])) == [] and count.endswith(" no longer;") and home.startswith("1 here")
