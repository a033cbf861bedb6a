"""``--json`` of every command: stdout is one JSON document, also for an error, and stderr is empty."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import typer
import typer.main
from conftest import run_rlds
from loader_data import create, episode

import rlds_cli
from rlds_cli import cli, look
from rlds_cli.cli import commands, out

# A call of each command that does something, and one that cannot; {tmp} is a directory of the test's own.
DONE = {
    "append": "local/grown {tmp}/more.csv",
    "apply": "local/known {tmp}/decisions.csv",
    "bench": "local/known --seconds 0.01",
    "check": "local/known",
    "clear": "local/grown --yes",
    "compact": "local/known",
    "convert": "local/known --to zarr",
    "diff": "local/known local/other",
    "doctor": "",
    "download": "sample/pendulum-d4rl",
    "drop": "local/known --episodes 1",
    "du": "",
    "episodes": "local/known",
    "export": "local/known --to minari {tmp}/out --lossy",
    "gc": "--yes",
    "import": "{tmp}/more.csv --name local/table",
    "index": "{tmp}/home/datasets/local/known",
    "info": "local/known",
    "inspect": "local/known",
    "label": "local/known good=true",
    "list": "hopper",
    "log": "local/known",
    "merge": "local/known local/other --name local/both",
    "mirror": "sample/pendulum-d4rl {tmp}/mirror",
    "path": "local/known",
    "preprocess": "local/known --fn normalise",
    "push": "local/known {tmp}/pushed",
    "registry": "list",
    "restore": "local/known#v1",
    "rm": "local/known --yes",
    "select": "local/known --episodes 0 --name part",
    "sync": "{tmp}/rlds.lock",
    "tag": "local/known first",
    "verify": "local/known",
}
FAILS = {
    "append": "local/grown {tmp}/none.csv",
    "apply": "local/known {tmp}/none.csv",
    "clear": "local/grown",  # asks
    "convert": "local/none --to zarr",
    "diff": "local/known local/none",
    "download": "d4rl/none",
    "export": "local/known --to minari {tmp} --lossy",
    "gc": "{tmp}/none",
    "import": "{tmp}/unknown.npz --name local/table",  # of a layout that is described
    "index": "{tmp}/none",
    "list": "--family none",
    "merge": "local/known local/none --name local/both",
    "mirror": "d4rl/none {tmp}/mirror",
    "preprocess": "local/known --fn none_such",
    "push": "local/none {tmp}/pushed",
    "registry": "remove {tmp}/none.jsonl",
    "rm": "local/known",  # asks
    "select": "local/known --where nothing>1 --name part",
    "sync": "{tmp}/none.lock",
    "label": "local/none good=true",
    "drop": "local/none --episodes 1",
}
ON_NOTHING = "bench check compact episodes info inspect log path restore tag verify"  # an id that is not here
FAILS |= dict.fromkeys(ON_NOTHING.split(), "local/none")
NO_ERRORS = {"du", "doctor"}  # of a home that is not there yet, too


def with_json() -> set[str]:
    """The commands that have the option."""
    commands: Any = typer.main.get_command(cli.app)
    return {name for name in cli.COMMANDS if any("--json" in p.opts for p in commands.commands[name].params)}


def test_every_command_with_the_option_is_tested() -> None:
    assert set(DONE) == with_json() and set(FAILS) == with_json() - NO_ERRORS


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str, str], tuple[int, Any]]:
    """Run a command with ``--json``; its exit code and the document that it prints, when stderr is empty."""
    known = create([episode(k, 5 + k) for k in range(3)])
    create([episode(9 + k, 5) for k in range(2)], ref="local/other")
    (tmp_path / "more.csv").write_text("observation,action,done\n1,2,0\n3,4,1\n")
    np.savez(tmp_path / "unknown.npz", rows=np.zeros((4, 2)), of=np.zeros(3))
    (tmp_path / "decisions.csv").write_text(f"id,good\n{known.episodes['id'][0].tobytes().hex()},true\n")

    def run_with_json(command: str, args: str) -> tuple[int, Any]:
        if "grown" in args:
            with rlds_cli.writer("local/grown") as w:
                w.add(1, 2, terminated=True)
        if "rlds.lock" in args:
            run_rlds("download", "sample/pendulum-d4rl")
            (tmp_path / "rlds.lock").write_bytes(run_rlds("lock", "sample/pendulum-d4rl").stdout)
        done = run_rlds(command, *args.format(tmp=tmp_path).split(), "--json")
        assert done.stderr == b"", done.stderr
        return done.returncode, json.loads(done.stdout)

    return run_with_json


@pytest.mark.parametrize("command", DONE)
def test_an_answer_is_a_document(run: Callable[[str, str], tuple[int, Any]], command: str) -> None:
    code, said = run(command, DONE[command])
    assert code == (command in ("diff", "mirror")), said  # two that differ; one that has no archive to be copied


@pytest.mark.parametrize("command", FAILS)
def test_an_error_is_a_document(run: Callable[[str, str], tuple[int, Any]], command: str) -> None:
    code, said = run(command, FAILS[command])
    assert code == (2 if command == "diff" else 1)  # whose 1 says that two differ
    assert said.keys() == {"error", "kind", "hint"} and said["error"]


@pytest.mark.parametrize("command", DONE)
def test_a_usage_error_is_a_document(command: str) -> None:
    done = run_rlds(command, "--no-such-option", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr, said["hint"]) == (2, b"", f"rlds {command} -h")
    assert said.keys() == {"error", "kind", "hint"} and "--no-such-option" in said["error"]


def test_a_word_that_another_command_answers_is_a_document() -> None:
    done = run_rlds("delete", "local/known", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, b"")
    assert (said["error"], said["hint"]) == ("There is no rlds delete.", "rlds rm ID removes a dataset")


def test_what_is_not_expected_is_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> NoReturn:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr(look, "diagnose", fails)
    done = run_rlds("doctor", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, b"")
    assert (said["kind"], said["error"]) == ("ZeroDivisionError", "of nothing")
    assert "in fails" in "".join(said["traceback"])


def test_warnings_are_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "lastResort", None)
    record = logging.LogRecord("h5py", logging.WARNING, "x.py", 1, "stranger", (), None)
    with out.escaped_warnings():
        for json_mode in (False, True):
            out.configure(json=json_mode)
            assert bool(warnings.formatwarning("strange", UserWarning, "x.py", 1)) is not json_mode
            assert logging.lastResort is not None
            logging.lastResort.handle(record)
            assert capsys.readouterr().err == ("" if json_mode else "stranger\n")


def test_what_ctrl_c_ends_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    out.configure(json=True)
    with pytest.raises(typer.Exit) as ended, commands.resumable(lambda: "Kept: 2 files."):
        raise KeyboardInterrupt
    printed, said = capsys.readouterr()
    assert (ended.value.exit_code, said) == (130, "")
    assert json.loads(printed)["error"] == "stopped. Kept: 2 files." and "rlds" in json.loads(printed)["hint"]


@pytest.mark.parametrize("json_mode", [False, True])
@pytest.mark.parametrize("command", ["import", "check"])
def test_every_command_says_that_ctrl_c_ended_it(
    command: str, json_mode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import goes on where it was, with the same command."""

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlds_cli.make.importing.import_files", interrupted)
    monkeypatch.setattr("rlds_cli.make.import_files", interrupted)
    monkeypatch.setattr("rlds_cli.homes.version_or_file", interrupted)
    (tmp_path / "a.h5").touch()
    words = ["import", tmp_path / "a.h5", "--name", "local/a"] if command == "import" else ["check", "local/a"]
    done = run_rlds(*words, *(["--json"] if json_mode else []))
    said = json.loads(done.stdout) if json_mode else done.stderr.decode()
    assert done.returncode == 130
    assert (said["error"] if json_mode else said).startswith("stopped")
    assert ("Continue with:  rlds import" in str(said)) is (command == "import")
