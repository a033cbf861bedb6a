"""Archives of strangers are read in another process: what ends it, and what may come back from it."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import child_functions as functions
import h5py
import numpy as np
import pytest
from conftest import run_rlds
from hypothesis import given
from hypothesis import strategies as st
from server import Server

import rlds_cli
from rlds_cli.archives import Archive, planning
from rlds_cli.archives.recognised import ANSWERS
from rlds_cli.base.files import answers, child
from rlds_cli.base.progress import Event
from rlds_cli.errors import ArchiveError, CorruptArchive, Elsewhere, UnsafeArchive
from rlds_cli.look.report import describe_file
from rlds_cli.make.convert.archive import check_plan
from rlds_cli.make.importing import import_files, plan_import

CRASHES = sorted((Path(__file__).parents[1] / "data" / "crashes").iterdir())
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process in this way")


def table(path: Path, rows: int = 20) -> Path:
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as f:
        f["observations"], f["actions"] = np.zeros((rows, 2), "f4"), np.zeros((rows, 1), "f4")
        f["rewards"], f["terminals"] = np.zeros(rows, "f4"), np.arange(rows) % 10 == 9
    return path


def test_calls_within_reading_share_a_process() -> None:
    with child.reading():
        first, second = (child.ask(functions.process, names=()) for _ in range(2))
    other = child.ask(functions.process, names=())
    assert first == second != other
    assert os.getpid() not in (first, other)


def test_values_come_one_by_one() -> None:
    assert [*child.each(functions.count, 5, names=())] == [0, 1, 2, 3, 4]
    with child.reading():
        for value in child.each(functions.count, 10**9, names=()):
            if value == 3:
                break
        assert child.ask(functions.process, names=()) != os.getpid()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash_is_damage_of_the_file(number: int) -> None:
    with child.reading():
        with pytest.raises(CorruptArchive, match=rf"^some/a.h5: .* signal {int(number)} \(") as caught:
            child.ask(functions.end_by, number, Path("some/a.h5"), names=(Path("b.h5"),))
        assert "RLDS_READ_MEMORY=" in str(caught.value.hint)
        assert child.ask(functions.process, names=())


def test_a_process_that_was_killed_or_left() -> None:
    with pytest.raises(ArchiveError, match=r"a\.h5: the process that reads it was killed") as caught:
        child.ask(functions.end_by, signal.SIGKILL, Path("a.h5"), names=())
    assert not isinstance(caught.value, CorruptArchive)
    with pytest.raises(ArchiveError, match=r"a\.h5 and 1 other file: the process that reads it left with exit code 3"):
        child.ask(functions.leave, names=(Path("a.h5"), Path("b.h5")))


@LINUX
def test_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_READ_MEMORY", "100MiB")
    assert child.ask(functions.take, 50 << 20, Path("a.h5"), names=()) == 50 << 20
    with pytest.raises(UnsafeArchive, match=r"^a.h5: reading it takes more than 100.0 MiB") as caught:
        child.ask(functions.take, 200 << 20, Path("a.h5"), names=())
    assert "RLDS_READ_MEMORY=200MiB" in str(caught.value.hint)
    monkeypatch.setenv("RLDS_READ_MEMORY", "400MiB")
    assert child.ask(functions.take, 200 << 20, Path("a.h5"), names=()) == 200 << 20


def test_errors_keep_their_kind_hint_and_causes() -> None:
    with pytest.raises(CorruptArchive, match=r"a\.h5 is damaged\.") as caught:
        child.ask(functions.damaged, names=())
    assert caught.value.hint == "fetch it again"
    assert isinstance(caught.value.__cause__, Elsewhere) and caught.value.__cause__.kind == "ValueError"


def test_environment_and_directory_are_those_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with child.reading():
        monkeypatch.setenv("RLDS_HOME", "elsewhere")
        monkeypatch.chdir(tmp_path)
        assert child.ask(functions.surroundings, names=()) == ("elsewhere", str(tmp_path))


def test_events_and_results_come_back() -> None:
    events: list[Event] = []
    assert child.ask(functions.report, names=(), progress=events.append) == 7
    assert [e.done for e in events] == [1]


def test_what_libraries_print_is_logged_and_not_shown(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="rlds_cli")
    child.ask(functions.say, names=())
    assert capfd.readouterr() == ("", "")
    assert [r.levelname for r in caplog.records] == ["DEBUG"]
    assert caplog.messages[0].endswith("\none\ntwo\\x1b[1m")


def test_what_code_of_the_user_prints_is_logged_as_a_warning(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    child.ask(functions.say_aloud, names=())
    assert capfd.readouterr() == ("", "")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", "one\ntwo\\x1b[1m")]


def test_the_last_words_of_a_process_that_a_file_has_ended_are_a_note_of_the_error(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ArchiveError, match="exit code 3") as caught:
        child.ask(functions.say_and_leave, names=())
    assert caught.value.__notes__ == ["one\ntwo\\x1b[1m"]
    assert pickle.loads(pickle.dumps(caught.value)).__notes__ == caught.value.__notes__
    assert capfd.readouterr() == ("", "") and not caplog.records


def test_each_error_has_what_was_printed_for_it() -> None:
    with child.reading():
        for word in ("one", "two"):
            with pytest.raises(CorruptArchive, match=r"a\.h5 is damaged") as caught:
                child.ask(functions.say_and_fail, word, names=())
            assert caught.value.__notes__ == [word]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("os.kill(os.getpid(), 11)", "ended a process by signal 11"),
        ("os.kill(os.getpid(), 9)", "was killed (signal 9"),
        ("os._exit(3)", "exit code 3"),
        ("raise ValueError('of one kind')", "of one kind"),
    ],
)
def test_a_reader_that_fails_is_one_document_with_what_it_printed(tmp_path: Path, end: str, error: str) -> None:
    reader, data = tmp_path / "lab.py", table(tmp_path / "a.h5")
    said = "print('on stdout', flush=True); print('on stderr\\x1b[1m', file=sys.stderr, flush=True)"
    code = f"import os, sys\nfrom rlds_cli.archives.plain import *\ndef recognise(*_): {said}; {end}\n"
    reader.write_text(code + "plan = read = recognise\n")
    args = ("import", data, "--name", "local/x", "--reader", reader)
    done = run_rlds(*args, "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, b"")
    assert document["printed"] == ["on stdout", "on stderr\\x1b[1m"] and error in document["error"]
    printed = run_rlds(*args).stderr.decode().splitlines()
    assert printed[:2] == document["printed"] and error in printed[2]


@pytest.mark.slow
def test_what_a_library_says_of_a_damaged_schema_stays_off_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_recordings import NUMBERS, mcap

    monkeypatch.setattr(logging.getLogger("rlds_cli"), "handlers", [])
    bad = mcap(tmp_path / "bad.mcap", NUMBERS | {"/odd": ("float64\n", [bytes(8)])})
    dry = ("import", str(bad), "--name", "local/bad", "--dry-run")
    for how in (("inspect", str(bad)), dry):
        usual = run_rlds(*how)
        assert b"Error with" not in usual.stderr + usual.stdout, "of the library that parses schemas"
    assert b"Error with: lab Any float64" in run_rlds(*dry, "--verbose").stderr.splitlines()


def test_what_a_reader_of_the_user_prints_is_shown_but_beside_a_document(tmp_path: Path) -> None:
    code = "from rlds_cli.archives.plain import *\nprint('this is own.py')\n"
    (tmp_path / "own.py").write_text(code)
    args = ["import", table(tmp_path / "a.h5"), "--name", "local/x", "--reader", tmp_path / "own.py", "--dry-run"]
    for more, shown in ((), b"this is own.py\n"), (("--json",), b""):
        done = subprocess.run([sys.executable, "-m", "rlds_cli", *args, *more], capture_output=True)
        assert (done.returncode, done.stderr) == (0, shown)


def test_an_interruption_ends_the_process(tmp_path: Path) -> None:
    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.ask(functions.wait, tmp_path / "pid", names=(), progress=interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# Asks for all kinds of ends, with a thread beside or without; the other process is a copy where there is none.
_ENDS = """
import fcntl, sys, threading, types
import child_functions as functions
from rlds_cli.base.files import child
from rlds_cli.errors import ArchiveError
lock, threads, pid = sys.argv[1:]
sys.modules["ours"] = types.ModuleType("ours")
if threads == "1":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
def ended(function, *arguments):
    try:
        return child.ask(function, *arguments, names=())
    except ArchiveError as e:
        return f"{type(e).__name__} {e.message}{''.join(getattr(e, '__notes__', ()))}"
def ended_by_hand():
    sys.stdout.flush()
    functions.os.kill(functions.os.getpid(), 9)
with open(lock, "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    with child.reading():
        print(child.ask(functions.knows, "ours", names=()))
        print(lock in child.ask(functions.open_files, names=()))
        file.close()
        with open(lock) as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for number in (6, 9, 11, 15):
            print(ended(functions.end_by, number, functions.Path("a.h5")))
        print(ended(functions.leave))
        print(ended(functions.take, 1 << 30, functions.Path("a.h5")))
        print(ended(functions.damaged))
        print([*child.each(functions.count, 3, names=())], sys.stdin.read())
        child.ask(functions.wait, functions.Path(pid), names=(), progress=lambda event: ended_by_hand())
"""


@LINUX
@pytest.mark.parametrize("threads", [False, True])
def test_a_copy_of_a_process_ends_as_a_new_one_does(threads: bool, tmp_path: Path) -> None:
    """It has no file of the other process, nor its locks, and ends with it."""
    given = {**os.environ, "PYTHONPATH": str(Path(functions.__file__).parent), "RLDS_READ_MEMORY": "300MiB"}
    command = [sys.executable, "-c", _ENDS, str(tmp_path / "lock"), str(int(threads)), str(tmp_path / "pid")]
    done = subprocess.run(command, input=b"typed", capture_output=True, env=given, start_new_session=True)
    said = done.stdout.decode().splitlines()
    assert (done.returncode, said[:2]) == (-signal.SIGKILL, [str(not threads), "False"]), done.stderr
    for number, line in zip((6, 9, 11), said[2:5], strict=True):
        assert line.startswith("ArchiveError a.h5: " if number == 9 else "CorruptArchive a.h5: ")
        assert f"signal {number}" in line
    assert said[5] == "ArchiveError a.h5: the process that reads it left with exit code 143."
    assert said[6] == "ArchiveError the archive: the process that reads it left with exit code 3."
    assert said[7].startswith("UnsafeArchive a.h5: reading it takes more than 300.0 MiB")
    assert said[8:] == ["CorruptArchive a.h5 is damaged.", "[0, 1, 2] typed"]
    state = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":  # ended, and nobody has asked
        time.sleep(0.01)


def test_only_plain_data_come_back() -> None:
    with pytest.raises(Elsewhere, match="Trojan is not plain data"):
        child.ask(functions.trojan, names=())
    for text in (b'{"Popen": ["true"]}', b'{"Event": []}', b'{"array": ["O", [1], 0]}', b'{"array": ["<f4", [9], 0]}'):
        with pytest.raises((KeyError, ValueError)):
            answers.load(text, [bytearray(8)], {"Event": Event})


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(PLAIN)
def test_plain_data_are_the_same_on_the_other_side(value: object) -> None:
    said, buffers = answers.dump(value)
    assert answers.load(said, [bytearray(b) for b in buffers], {}) == value


def test_a_record_that_occurs_again_is_sent_once_and_records_of_these_are_sent_whole() -> None:
    one = Event("a/b", "fetch", "text" * 100)
    said, _ = answers.dump([one] * 1000)
    assert len(said) < 100 * len(one.what)
    pair = Event("a/b", "fetch", (one, one))  # type: ignore[arg-type]
    value = [one, pair, pair]
    said, _ = answers.dump(value)
    assert answers.load(said, [], {"Event": Event}) == value


def test_references_to_references_are_refused() -> None:
    """Thirty levels of two references each would be a value of a thousand million records."""
    event = {"Event": ["a/b", "fetch", *[None] * (len(fields(Event)) - 2)]}
    doubled = [{"Event": ["a/b", [{"same": k}, {"same": k}], *event["Event"][2:]]} for k in range(30)]
    with pytest.raises(IndexError):
        answers.load(json.dumps([event, *doubled]).encode(), [], {"Event": Event})


@pytest.mark.parametrize("dtype", ["f4", ">i8", "?", "c8", "U3", "S2", "M8[s]", "O"])
def test_arrays_are_the_same_on_the_other_side(dtype: str) -> None:
    for array in (np.zeros((2, 3), dtype), np.zeros(0, dtype), np.zeros((3, 2), dtype).T, np.zeros((), dtype)):
        said, buffers = answers.dump([array])
        (found,) = answers.load(said, [bytearray(b) for b in buffers], {})
        np.testing.assert_array_equal(found, array, strict=True)


def test_a_plan_is_the_same_on_the_other_side(tmp_path: Path) -> None:
    archive = Archive(tmp_path, (table(tmp_path / "a.h5"),))
    found = child.ask(planning.plan, archive, None, names=archive.files, types=ANSWERS)
    with child.here():
        assert str(child.ask(planning.plan, archive, None, names=archive.files)) == str(found)


def test_a_plan_reads_no_other_file(tmp_path: Path) -> None:
    given, other = table(tmp_path / "a.h5"), table(tmp_path / "b.h5")
    with child.here():
        found = child.ask(planning.plan, Archive(tmp_path, (other,)), None, names=())
    with pytest.raises(UnsafeArchive, match=r"names another file, .*b\.h5"):
        check_plan(found.plan, [given], None)


@pytest.mark.thorough
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_import_is_the_same_in_both_ways(tmp_path: Path, jobs: int) -> None:
    apart = import_files([table(tmp_path / f"{k}.h5") for k in range(3)], "local/apart", jobs=jobs)
    with child.here():
        same = import_files([tmp_path / f"{k}.h5" for k in range(3)], "local/here", jobs=jobs)
    assert apart.fingerprint == same.fingerprint and apart.num_episodes == 6


@pytest.mark.thorough
@LINUX
def test_a_bomb_of_hdf5_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 1.5 MB that inflates to 1.5 GiB, whatever size the dataset says."""
    monkeypatch.setenv("RLDS_READ_MEMORY", "300MiB")
    bomb = zlib.compressobj(9)
    packed = b"".join(bomb.compress(bytes(1 << 24)) for _ in range(96)) + bomb.flush()
    with h5py.File(table(tmp_path / "a.h5"), "a") as f:
        f.create_dataset("infos/x", (20,), "f4", chunks=(20,), compression="gzip").id.write_direct_chunk((0,), packed)
    with pytest.raises(ArchiveError, match=r"a\.h5"):
        import_files(tmp_path / "a.h5", "local/bomb")
    assert not [*Path(os.environ["RLDS_HOME"]).glob("datasets/local/*")]


@pytest.mark.thorough
@pytest.mark.parametrize("path", CRASHES, ids=lambda path: path.name)
def test_files_that_crash_libraries(path: Path) -> None:
    """Random changes of sound files that end the process which reads them with h5py."""
    for jobs in (1, 2):
        with pytest.raises(CorruptArchive, match=rf"{path.name}.* signal \d+"):
            import_files(path, "local/x", jobs=jobs)
    with suppress(ArchiveError):
        describe_file(path)
    with suppress(ArchiveError):
        plan_import(path, "local/x")


@pytest.mark.slow
@pytest.mark.parametrize("path", CRASHES, ids=lambda path: path.name)
@pytest.mark.parametrize("jobs", [1, 2])
def test_skip_bad_leaves_out_a_file_that_ends_the_process(tmp_path: Path, path: Path, jobs: int) -> None:
    sound = [table(tmp_path / "files" / f"{k}.h5") for k in ("a", "z")]
    shutil.copyfile(path, tmp_path / "files" / path.name)
    ds = import_files(tmp_path / "files", "local/kept", skip_bad=True, jobs=jobs)
    assert [s["file"] for s in ds.sources] == [f.name for f in sound]
    assert ds.fingerprint == import_files(sound, "local/sound").fingerprint
    assert any(path.name in n["where"] + n["text"] and "signal" in n["where"] + n["text"] for n in ds.manifest.notes)
    with pytest.raises(CorruptArchive, match=path.name):
        import_files(path, "local/alone", skip_bad=True)


@pytest.mark.slow
def test_skip_bad_of_a_download(tmp_path: Path) -> None:
    with Server() as server:
        files = {f"{k}.h5": table(tmp_path / f"{k}.h5").read_bytes() for k in ("a", "z")}
        for name, content in (files | {p.name: p.read_bytes() for p in CRASHES}).items():
            server.add(f"/runs/{name}", content)
        server.add("/runs/", "".join(f'<a href="{p[6:]}">x</a>' for p in server.pages), content_type="text/html")
        ds = rlds_cli.download(f"{server.url}/runs/*.h5", name="local/runs", skip_bad=True)
    assert [s["file"] for s in ds.sources] == [*files]
    assert any("signal" in n["where"] + n["text"] for n in ds.manifest.notes)


def test_a_file_that_takes_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second note comes after as long again as the first, and ends the wait here."""
    monkeypatch.setattr(child, "_WORD", 0.5)
    events: list[Event] = []

    def told(event: Event) -> None:
        events.append(event)
        if len(events) > 1 and event.what == "some/a.h5":
            (tmp_path / "enough").touch()

    with child.reading(id="local/x", progress=told):
        child.ask(functions.wait_for, tmp_path / "enough", Path("some/a.h5"), names=(Path("b.h5"), Path("c.h5")))
    assert events[0].what in ("b.h5 and 1 other file", "some/a.h5") and events[-1].what == "some/a.h5"
    assert events[1].note == "it has been read for 1 s so far" and {e.stage for e in events} == {"note"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["inspect", "import --dry-run", "import", "append"])
def test_commands_name_the_file_that_takes_long(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a process takes longer than a thousandth of a second."""
    monkeypatch.setattr(child, "_WORD", 0.001)
    path, (name, *more) = table(tmp_path / "a.h5"), command.split()
    given = {"import": [path, "--name", "local/a"], "append": ["local/a", path], "inspect": [path]}[name]
    done = run_rlds(name, *given, *more)
    assert done.returncode == 0
    assert re.search(rb"note +\S*a\.h5: it has been read for 0 s so far\n", done.stderr)
    if more:
        assert b"has been read" not in run_rlds(name, *given, *more, "--quiet").stderr
