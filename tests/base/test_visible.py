"""What strangers wrote is printed, and no terminal obeys it."""

from __future__ import annotations

import io
import json
import logging
import pickle
import re
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.table import Table
from server import Server

import rlds_cli
from rlds_cli import cli
from rlds_cli.base import visible, workers
from rlds_cli.base.progress import Bars, Event, silent
from rlds_cli.cli import out
from rlds_cli.errors import DownloadFailed, PreprocessError, RldsError

HOSTILE = "a\x1b[2J\x9b31m\x07\r\nError: all is well\u202eb\u2028c\u200bd\x7f[red]e[link=http://x]f[/link]"
SHOWN = r"a\x1b[2J\x9b31m\x07\r\nError: all is well\u202eb\u2028c\u200bd\x7f[red]e[link=http://x]f[/link]"
BEGINS = r"a\x1b[2J\x9b31m\x07\r\nError: all is well\u202eb"  # tables fold what is longer than they are


def obeyed(text: str) -> set[str]:
    """Characters that no output may hold, and lines that are not ours."""
    found = {c for c in text if not c.isprintable() and c != "\n"}
    return found | {line for line in text.split("\n") if line.startswith("Error: all is well")}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("plain ünïcode 漢字 🙂 [0, 1] \\n", "plain ünïcode 漢字 🙂 [0, 1] \\n"),
        ("no\u00a0break\u3000wide", "no\u00a0break\u3000wide"),
        ("\ttab\nline\r", r"\ttab\nline\r"),
        ("\x1b]8;;http://x\x1b\\", "\\x1b]8;;http://x\\x1b\\"),
        ("\x00\x9c\x7f", r"\x00\x9c\x7f"),
        ("\u202a\u2066\u200e\u200f\u061c", r"\u202a\u2066\u200e\u200f\u061c"),
        ("\u200b\u200d\u2060\ufeff\u00ad", r"\u200b\u200d\u2060\ufeff\xad"),
        ("\u2028\u2029\u0085", r"\u2028\u2029\x85"),
        ("\u3164\u115f\u034f\U000e0101", r"\u3164\u115f\u034f\U000e0101"),
        ("\ud800\U000e0041", r"\ud800\U000e0041"),
        ("https://u:hun\u200bter2@h/x?token=hunter2", "https://h/x?token=***"),
        (HOSTILE, SHOWN),
    ],
)
def test_a_line(text: str, expected: str) -> None:
    assert visible.line(text) == expected
    assert visible.line(expected) == expected


def test_breaks_between_lines_are_ours() -> None:
    assert visible.lines(["a\nb", visible.lines(["c", "d"])]) == "a\\nb\nc\nd"
    assert visible.line(visible.lines(["c", "d"])) == "c\nd"


def test_every_way_to_print(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    table = Table(HOSTILE)
    table.add_row(out.plain({"a": HOSTILE})["a"].replace("[", "("))
    out.result(None, HOSTILE)
    out.note(HOSTILE)
    out.error(RldsError(HOSTILE, hint=HOSTILE))
    out.page(HOSTILE, None)
    out.page(table, None)
    out.aside(table)
    out.result(None, out.table(("A", "B"), [(HOSTILE, HOSTILE)], right="A"))
    with Bars(sys.stderr) as bars:
        bars(Event(HOSTILE, "note", HOSTILE, note=HOSTILE))
        bars(Event(HOSTILE, "fetch", HOSTILE, 5, 5, note=HOSTILE))
    shown = capsys.readouterr()
    assert obeyed(shown.out) == obeyed(shown.err) == set()
    assert shown.out.count(SHOWN) >= 4 and shown.err.count(SHOWN) >= 9


def test_bars_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(sys.stderr, live=True) as bars:
        bars(Event(HOSTILE, "fetch", HOSTILE, 1, 5))
        bars(Event(HOSTILE, "fetch", HOSTILE, 5, 5))
        bars(Event(HOSTILE, "note", HOSTILE, note=HOSTILE))
    shown = capsys.readouterr().err
    assert "\x1b[2J" not in shown and "\u202e" not in shown and "\x9b" not in shown and BEGINS in shown


def test_a_terminal_is_told_of_notes_and_not_of_work_that_ends_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Bars(sys.stderr, live=True) as bars:
        bars(Event("a/b", "verify", "x.h5", note="sha256 ok"))
    assert "sha256 ok" not in capsys.readouterr().err
    with Bars(sys.stderr, live=True) as bars:
        bars(Event("a/b", "verify", "x.h5", note="sha256 ok"))
        bars(Event("a/b", "note", note="trying again"))
    shown = capsys.readouterr().err
    assert shown.index("sha256 ok") < shown.index("trying again")


@pytest.mark.parametrize(
    "event, end",
    [
        (Event("", "fetch", done=1 << 30, total=5 << 30), "B/s]"),
        (Event("", "convert", done=123_456_789, total=923_456_789, unit="rows"), " rows/s]"),
        (Event("", "convert", done=123_456_789, unit="rows", beside="1,234 of 9,999 parts"), "1,234 of 9,999 parts]"),
        (Event("", "export", done=1, total=4, unit="steps", beside="999.9 MiB came, 9.5 s waiting"), "s waiting]"),
    ],
)
def test_a_bar_fits_80_columns(
    event: Event, end: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    with Bars(sys.stderr, live=True) as bars:
        bars(replace(event, id="family/a-rather-long-name-of-a-dataset-v0", what="a_long_name_of_a_file.h5"))
    shown = [line for line in re.split(r"[\r\n]", capsys.readouterr().err) if line.strip()]
    assert shown and all(len(line) <= 80 and line.endswith(end) and "file.h5" in line for line in shown)


def test_a_long_silence_ends_with_a_word() -> None:
    stream = Spoken()
    with Bars(stream, live=False, word=0.01) as bars:
        assert stream.waits_for("rlds  note     still at work")
        bars(Event("a/b", "fetch", "x.h5", 3 << 20))
        assert stream.waits_for("a/b  fetch    x.h5: 3.0 MiB so far")


class Spoken(io.StringIO):
    """A stream that can be waited for."""

    def waits_for(self, line: str) -> bool:
        end = time.monotonic() + 60
        while f"{line}\n" not in self.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        return f"{line}\n" in self.getvalue()


def test_warnings_and_logs_of_libraries(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with out.escaped_warnings():
        assert obeyed(warnings.formatwarning(UserWarning(HOSTILE), UserWarning, "x.py", 1)) == set()
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    out.configure()
    record = logging.LogRecord("urllib3", logging.WARNING, "x.py", 1, "%s at /x?token=hunter2", (HOSTILE,), None)
    assert logging.lastResort is not None
    logging.lastResort.handle(record)
    shown = capsys.readouterr().err
    assert obeyed(shown) == set() and "token=***" in shown and SHOWN in shown


def test_json_is_ascii_and_complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(out._mode, "json", True)
    out.result({HOSTILE: [HOSTILE], "url": "ftp://u:hunter2@h/x?pwd=hunter2"})
    shown = capsys.readouterr().out
    assert obeyed(shown) == set() and shown.isascii()
    assert json.loads(shown) == {HOSTILE: [HOSTILE], "url": "ftp://h/x?pwd=***"}


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """The command line itself: exit code and what it printed; nothing that a terminal obeys."""
    monkeypatch.setattr(sys, "argv", ["rlds", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr()
    assert obeyed(shown.out) == obeyed(shown.err) == set(), arguments
    return int(left.value.code or 0), shown.out, shown.err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLDS_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(out._mode, "json", False)
    monkeypatch.setitem(out._mode, "quiet", False)
    monkeypatch.setitem(out._mode, "verbose", False)
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)
    return tmp_path


def test_texts_of_a_file(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of columns and of the file itself."""
    table = pa.table({HOSTILE: [0.5, 1.5], "action": [1, 2], "reward": [0.0, 1.0], "done": [False, True]})
    file = home / "x\x1b[2J\u202e.parquet"
    pq.write_table(table, file)
    for arguments in (["inspect", str(file)], ["import", str(file), "--name", "local/x", "--dry-run"]):
        for verbose in ([], ["--verbose"]):
            _, printed, said = run(capsys, monkeypatch, *arguments, *verbose)
            assert r"x\x1b[2J\u202e.parquet" in printed + said
    code, printed, _ = run(capsys, monkeypatch, "inspect", str(file), "--json")
    assert code == 0 and json.loads(printed)["path"] == str(file)


def test_texts_of_a_dataset(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = {"observation": np.zeros((3, 2)), "action": np.zeros((3, 1)), "next/reward": np.zeros(3)}
    zeros |= {"episode": {"task": HOSTILE}}
    about = {"description": HOSTILE, "license": HOSTILE, "citation": HOSTILE.replace("\n", " ")}
    rlds_cli.create("local/x", [zeros], **about)
    for arguments in (["info"], ["inspect"], ["inspect", "--episode", "0"], ["check"], ["info", "--cite"], ["verify"]):
        _, printed, _ = run(capsys, monkeypatch, arguments[0], "local/x", *arguments[1:])
        assert printed
    assert r"\x1b[2J" in run(capsys, monkeypatch, "inspect", "local/x")[1]
    for command in ("du", "list"):
        run(capsys, monkeypatch, command)


def test_texts_of_a_server(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server() as server:
        server.add("/d/hopper_medium-v2.hdf5", f"<html><title>{HOSTILE.replace(chr(10), '')}</title>", chunked=True)
        where = f"{server.url.replace('http://', 'http://me:hunter2@')}/d/hopper_medium-v2.hdf5?jwt=hunter2"
        code, printed, said = run(capsys, monkeypatch, "download", "d4rl/hopper-medium-v2", "--from", where, "-v")
    assert code == 1 and r"\x1b[2J" in said and "hunter2" not in printed + said


def test_verbose_shows_what_led_to_an_error(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        try:
            raise KeyError(HOSTILE)
        except KeyError as exc:
            raise ValueError("/x?token=hunter2") from exc
    except ValueError as exc:
        failed = DownloadFailed("It failed.")
        failed.__cause__ = exc
    out.error(failed)
    assert capsys.readouterr().err == "DownloadFailed: It failed.\n"
    monkeypatch.setitem(out._mode, "verbose", True)
    out.error(failed)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["DownloadFailed: It failed.", "  caused by: ValueError: /x?token=***"]
    assert len(said) == 3 and said[2].startswith("  caused by: KeyError: ") and obeyed(said[2]) == set()


def test_an_error_that_nobody_expected(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(cli, "app", broken)
    code, _, said = run(capsys, monkeypatch, "list")
    assert code == 1 and said.startswith("Traceback") and r"\x1b[2J" in said


def test_an_error_is_kept_as_it_may_be_printed() -> None:
    exc = RldsError(HOSTILE, hint=f"https://me:{'s' * 5000}@host/x?token={'t' * 5000}")
    assert (exc.message, exc.hint) == (SHOWN, "https://host/x?token=***")


def test_an_error_does_not_go_on_for_pages() -> None:
    for value in ("x" * 40_000, "x " * 20_000, "\x1b" * 40_000):
        exc = RldsError(f'"{value}" is not known.', hint=value)
        assert len(str(exc)) < 8_200
        assert exc.message.startswith(visible.line(f'"{value[:50]}'))
        assert exc.message.endswith("is not known.")
        assert "characters] ..." in exc.message
        assert RldsError(exc.message).message == exc.message
    short = "y" * 1000
    assert RldsError(f"{short} {short}").message == f"{short} {short}"


def test_usage_errors_are_visible(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for args in (
        ["list", f"--{HOSTILE}"],
        [HOSTILE],
        ["convert", "a", "--to", HOSTILE],
        ["tag", HOSTILE * 1000, "--no"],
    ):
        monkeypatch.setattr(sys, "argv", ["rlds", *args])
        with pytest.raises(SystemExit) as e:
            cli.main()
        assert e.value.code == 2
        said = capsys.readouterr().err
        assert visible.lines(said.split("\n")) == said
        assert len(said) < 5_000


def test_what_led_to_an_error_of_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            {}["inner"]
        except KeyError as e:
            raise ValueError(HOSTILE) from e
    except ValueError as e:
        exc = PreprocessError("It failed.").at(3)
        exc.__cause__ = e
    for _ in range(2):  # through two processes
        exc = pickle.loads(pickle.dumps(exc))
    out.configure(verbose=True)
    out.error(exc)
    out.note(out.traceback(exc))
    said = capsys.readouterr().err
    assert f"  caused by: ValueError: {SHOWN}\n  caused by: KeyError: 'inner'\n" in said
    assert '{}["inner"]' in said
    assert exc.episode == 3


def test_a_log_is_shown_while_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("rlds_cli.anything")
    for verbose, shown in ((True, "read\n"), (True, "read\n"), (False, "")):
        out.configure(verbose=verbose)
        log.warning("read")
        assert capsys.readouterr().err == shown


def _fails(shared: None) -> None:
    try:
        raise OSError("the disk is on fire")
    except OSError as e:
        raise RldsError("It failed.") from e


@pytest.mark.slow
def test_what_led_to_an_error_of_a_worker() -> None:
    with pytest.raises(RldsError) as caught:
        list(workers.run_items(_fails, None, {0: ()}, workers.Processes(1), id="x", name=str, progress=silent))
    assert str(caught.value.__cause__).endswith("OSError: the disk is on fire")
