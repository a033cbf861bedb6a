"""Readers that are not part of rlds: in a Python file that the user names, and of an installed package."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import own_files
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli.archives import plugins
from rlds_cli.errors import CorruptArchive, InvalidArgument, NameTaken, ReaderError, RldsError
from rlds_cli.keep import pinning, repair
from rlds_cli.look.report.tracing import trace
from rlds_cli.make import importing
from rlds_cli.make.importing import import_files
from rlds_cli.registry import OwnRegistries

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "writing-a-reader.md"
RIG = re.findall(r"<!-- reader -->\n```python\n(.*?)```", PAGE.read_text(), re.S)[0] + "\nREADER = Rig()\n"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a directory with ``rig.py`` and ``run.h5``, outside of the package, and go there."""
    monkeypatch.chdir(tmp_path)
    Path("rig.py").write_text(RIG)
    write_run(Path("run.h5"))
    return tmp_path


def write_run(path: Path, first: float = 0.0) -> None:
    with h5py.File(path, "w") as f:
        f["q"], f["cmd"] = first + np.arange(18.0).reshape(6, 3), np.arange(6.0).reshape(6, 1)
        f["cost"], f["stop"] = np.arange(6.0), [0, 0, 0, 1, 0, 2]


def install(directory: Path, version: str = "1.2", name: str = "rig", code: str = RIG) -> None:
    """Write a distribution whose entry point is a family, by default that of the page."""
    (directory / "lab").mkdir(parents=True)
    (directory / "lab" / "__init__.py").write_text("")
    (directory / "lab" / "rigs.py").write_text(code)
    info = directory / f"lab_rig-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lab-rig\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = lab.rigs:READER\n")


@pytest.fixture
def package(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Path("rig.py").unlink()
    install(lab / "site")
    monkeypatch.syspath_prepend(lab / "site")
    return lab


def run(*words: str) -> str:
    done = run_rlds(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


# -- a file


@pytest.mark.parametrize("name", ["rig.py", "rig.py:READER", "rig.py:Rig", "./rig.py:READER"])
def test_a_file_and_the_object_in_it(lab: Path, name: str) -> None:
    ds = import_files("run.h5", "local/rig", reader=name)
    assert ds.episodes["end"].tolist() == ["terminated", "truncated"]
    assert ds.manifest.reader == name.removeprefix("./")
    assert ds.manifest.reader_source == plugins.ReaderName(str(lab / "rig.py")).source()
    assert import_files("run.h5", "local/rig", reader=name).fingerprint == ds.fingerprint  # at once
    assert str(lab) not in json.dumps(ds.manifest.to_json(), default=str).replace((lab / "run.h5").as_uri(), "")


@pytest.mark.thorough
def test_a_file_that_changed_makes_another_dataset(lab: Path) -> None:
    import_files("run.h5", "local/rig", reader="rig.py")
    Path("rig.py").write_text(RIG + "\n# better\n")
    with pytest.raises(NameTaken, match="another reader"):
        import_files("run.h5", "local/rig", reader="rig.py")
    again = import_files("run.h5", "local/rig", reader="rig.py", force=True)
    assert again.manifest.reader_source == plugins.ReaderName(str(lab / "rig.py")).source()


@pytest.mark.slow
def test_processes_that_read_parts_load_the_file(lab: Path) -> None:
    for k in range(4):
        write_run(Path(f"run{k}.h5"))
    ds = import_files("run?.h5", "local/rig", reader="rig.py", jobs=2)
    assert len(ds.episodes) == 8


def test_commands_take_a_file(lab: Path) -> None:
    assert "2 episodes" in run("inspect", "run.h5", "--reader", "rig.py")
    assert "0 errors" in run("check", "run.h5", "--reader", "rig.py:READER")
    assert "q" in run("import", "run.h5", "--name", "local/rig", "--reader", "rig.py:READER", "--dry-run")
    run("import", "run.h5", "--name", "local/rig", "--reader", "rig.py:READER")
    assert "reader rig.py:READER (sha256:" in run("info", "local/rig")
    assert "as in the archive" in run("verify", "local/rig", "--trace", "4", "--reader", "rig.py:READER")


def test_a_trace_runs_no_file_that_only_a_manifest_names(lab: Path) -> None:
    ds = import_files("run.h5", "local/rig", reader="rig.py")
    with pytest.raises(ReaderError, match=r"rig\.py \(sha256:") as e:
        trace(ds, 4)
    assert "--trace 100 --reader rig.py" in (e.value.hint or "")
    found = trace(ds, 4, reader="rig.py")
    assert found.steps == 4 and found.ok


@pytest.mark.thorough
def test_a_merge_knows_the_reader_of_each_file(lab: Path) -> None:
    import_files("run.h5", "local/a", reader="rig.py")
    write_run(Path("other.h5"), first=7.0)
    import_files("other.h5", "local/b", reader="rig.py:READER")
    ds = rlds_cli.merge(["local/a", "local/b"], "local/both")
    with pytest.raises(ReaderError, match=r"read by rig\.py.*\(sha256:"):
        trace(ds, 4)
    assert trace(ds, 8, reader="rig.py").ok


def test_an_append_names_its_file_each_time(lab: Path) -> None:
    rlds_cli.append("local/days", "run.h5", reader="rig.py")
    write_run(Path("more.h5"), first=7.0)
    with pytest.raises(ReaderError, match="not run unless it is named") as e:
        rlds_cli.append("local/days", "more.h5")
    assert "--reader rig.py" in (e.value.hint or "")
    assert rlds_cli.append("local/days", "more.h5", reader="rig.py").episodes == 2


def test_a_lock_names_the_file_and_its_hash(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = import_files("run.h5", "local/rig", reader="rig.py")
    Path("rlds.lock").write_text(pinning.lock(["local/rig"]))
    (locked,) = json.loads(Path("rlds.lock").read_text())["datasets"]
    assert locked["options"]["read_by"] == ["rig.py", ds.manifest.reader_source]
    monkeypatch.setenv("RLDS_HOME", str(lab / "elsewhere"))
    with pytest.raises(RldsError, match=r"read by rig\.py \(sha256:") as e:
        pinning.sync("rlds.lock")
    assert "rlds import PATH --name local/rig --reader rig.py" in (e.value.hint or "")


def test_a_damaged_dataset_says_how_to_import_it_again(lab: Path) -> None:
    ds = import_files("run.h5", "local/rig", reader="rig.py")
    file = ds.path / "action" / "c" / "0" / "0"
    file.chmod(0o644)
    file.write_bytes(b"\1" + file.read_bytes()[1:])
    done = repair.repair("local/rig")
    assert not done.now.ok and "--reader rig.py --force" in done.why


# -- a package


@pytest.mark.thorough
def test_an_installed_package_recognises_reads_and_traces(package: Path) -> None:
    ds = import_files("run.h5", "local/rig")
    assert (ds.manifest.reader, ds.manifest.reader_source) == ("rig", "lab-rig 1.2")
    assert trace(ds, 4).ok
    assert import_files("run.h5", "local/named", reader="rig").fingerprint == ds.fingerprint
    assert "reader rig (lab-rig 1.2)" in run("info", "local/rig")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", own_files.FORMATS)
def test_an_installed_package_recognises_tables_of_any_container(package: Path, suffix: str) -> None:
    columns = {"q": np.arange(6.0), "cmd": np.arange(6.0) + 10, "cost": np.arange(6.0), "stop": [0, 0, 0, 1, 0, 2]}
    own_files.write(Path(f"run{suffix}"), columns)
    ds = import_files(f"run{suffix}", "local/rig")
    assert ds.manifest.reader == "rig" and ds.episodes["length"].tolist() == [3, 1]
    assert ds.column("action")[:3].tolist() == [10, 11, 12]
    assert ds.column("observation")[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert trace(ds, 4).ok


def test_a_package_that_is_missing_is_named(package: Path) -> None:
    ds = import_files("run.h5", "local/rig")
    Path("rlds.lock").write_text(pinning.lock(["local/rig"]))
    assert json.loads(Path("rlds.lock").read_text())["datasets"][0]["options"]["read_by"] == ["rig", "lab-rig 1.2"]
    sys.path.remove(str(package / "site"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
        del sys.modules[name]
    with pytest.raises(ReaderError, match=r'reader "rig" is of the package lab-rig 1\.2, which is not installed'):
        trace(ds, 4)
    line = {"id": "lab/run", "urls": [(package / "run.h5").as_uri()], "format": "rig"}
    Path("lab.jsonl").write_text(json.dumps(line))
    done = run_rlds("registry", "add", "lab.jsonl")
    assert done.returncode == 0 and b'lab/run needs the reader "rig"' in done.stderr


@pytest.mark.thorough
def test_a_registry_names_the_reader_of_a_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"id": "lab/run", "urls": [(package / "run.h5").as_uri()], "format": "rig"}
    Path("lab.jsonl").write_text(json.dumps(line))
    assert "ok" in run("registry", "check", "lab.jsonl")
    monkeypatch.setenv("RLDS_REGISTRY", str(package / "lab.jsonl"))
    ds = rlds_cli.download("lab/run")
    assert (ds.manifest.reader, ds.manifest.reader_source) == ("rig", "lab-rig 1.2")


def test_registries_and_urls_name_no_files_of_code(lab: Path) -> None:
    line = {"id": "lab/run", "urls": [(lab / "run.h5").as_uri()], "format": "rig.py:READER"}
    Path("lab.jsonl").write_text(json.dumps(line))

    (problem,) = OwnRegistries().examine("lab.jsonl").problems
    assert "lines name no files of code" in problem
    with pytest.raises(InvalidArgument, match=r"rig\.py"):
        rlds_cli.download("https://host/run.h5", name="local/run", reader="rig.py")


def test_a_package_that_cannot_be_imported_is_named(package: Path) -> None:
    (package / "site" / "lab" / "rigs.py").write_text("import nowhere_at_all\n")
    with pytest.raises(ReaderError, match=r"reader rig cannot be imported.*nowhere_at_all.*rigs\.py, line 1"):
        import_files("run.h5", "local/rig")


# -- faults


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            RIG.replace('KEYS = {"observation": "q"', 'KEYS = {"observation": "joints"'),
            r"KeyError.*joints.*rig\.py, line",
        ),
        (RIG.replace("stop != 0", "stop != nothing"), r"NameError.*nothing.*rig\.py, line \d+, in episodes"),
        (RIG.replace("    def layout", "    def laid_out"), r"abstract.*layout.*rig\.py, line"),
        (RIG + "\nx = (\n", "SyntaxError"),
        ("import nowhere_at_all\n", r"nowhere_at_all.*rig\.py, line 1"),
        ("VERSION = 1\n", "is not a reader: it has no recognise, plan"),
        ("READER = 7\n", "is not a reader: it has no VERSION"),
    ],
)
def test_a_fault_of_a_declaration_is_named_with_its_line(lab: Path, code: str, message: str) -> None:
    Path("rig.py").write_text(code)
    with pytest.raises(ReaderError, match=message):
        import_files("run.h5", "local/rig", reader="rig.py")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("stops[:-1], np.ones(1, bool), end[:1]", "the last stop is 4, and the file has 6 rows"),
        ("stops + [0, 1], np.ones(2, bool), end", "the last stop is 7, and the file has 6 rows"),
        ("stops[::-1], np.ones(2, bool), end", r"stops\[1\] is 4, which is not after 6"),
        ("stops * 1.0, np.ones(2, bool), end", r"stops is float64 \[2\]"),
        ("stops, np.ones(1, bool), end", r"stops has 2 episodes, finals \[1\] and end \[2\]"),
        ("stops, np.ones(2), end", "finals is float64"),
        ("stops, np.ones(2, bool), end + 7", r"end\[0\] is \d+; TERMINATED"),
    ],
)
def test_episodes_that_are_not_those_of_the_rows_are_refused(lab: Path, code: str, message: str) -> None:
    Path("rig.py").write_text(RIG.replace("stops, np.ones(len(stops), bool), end", code))
    with pytest.raises(ReaderError, match=rf"run\.h5: the reader's episodes are invalid: {message}"):
        import_files("run.h5", "local/rig", reader="rig.py")


def test_a_damaged_file_is_the_file_s_fault(lab: Path) -> None:
    Path("run.h5").write_bytes(Path("run.h5").read_bytes()[:3000])
    with pytest.raises(CorruptArchive, match=r"run\.h5"):
        import_files("run.h5", "local/rig", reader="rig.py")


def test_files_that_a_reader_fails_on_can_be_left_out(lab: Path) -> None:
    write_run(Path("run1.h5"))
    with h5py.File("run2.h5", "w") as f:
        f["q"] = np.zeros((6, 3))
    with pytest.raises(ReaderError, match=r"run1\.h5.*KeyError"):
        import_files("run[12].h5", "local/rig", reader="rig.py")
    ds = import_files("run[12].h5", "local/rig", reader="rig.py", skip_bad=True)
    assert len(ds.episodes) == 2
    assert "run2.h5" in ds.manifest.notes[0]["text"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rag.py", r'There is no file .*rag\.py\. Did you mean "rig\.py"'),
        ("rig.py:Nope", r"there is no Nope\. Readers in it: Rig, READER"),
        ("rag", 'There is no reader "rag"'),
        ("rig:READER", "There is no file"),
    ],
)
def test_a_reader_that_is_missing(lab: Path, name: str, message: str) -> None:
    with pytest.raises(ReaderError, match=message):
        importing.plan_import("run.h5", "local/rig", reader=name)


# -- the engine for a group or file of an episode each

TRIALS = """
from rlds_cli.archives.grouped import Grouped


class Trials(Grouped):
    title, parent = "trials", "runs/"
    keys = {"observation/q": "q", "observation/note": "note", "action": "u"}
    keys |= {"next/reward": "r", "next/terminated": "done"}

    def describe(self, f, paths):
        return ("trials", "of a lab") if "runs" in f else None


READER = Trials()
"""


def test_groups_are_declared_by_their_keys(lab: Path) -> None:
    Path("trials.py").write_text(TRIALS)
    rng, wrote = np.random.default_rng(0), {}
    for k, numbers in enumerate([(2, 10), (1,)]):
        with h5py.File(f"t{k}.h5", "w") as f:
            for n in numbers:
                q, u, r = rng.normal(size=(n + 1, 2)), rng.normal(size=(n, 1)), rng.normal(size=n)
                note = [f"{n}.{t}" for t in range(n + 1)]
                done = np.arange(n) == (n - 1 if n != 10 else -1)
                wrote[n] = q, u, r, note
                for key, v in {"q": q, "u": u, "r": r, "done": done, "gain": 0.5}.items():
                    f[f"runs/run_{n}/{key}"] = v
                f.create_dataset(f"runs/run_{n}/note", data=note, dtype=h5py.string_dtype())
    ds = import_files("t?.h5", "local/t", reader="trials.py")
    assert ds.episodes["length"].tolist() == [2, 10, 1]  # in the order of their numbers
    assert ds.episodes["end"].tolist() == ["terminated", "cut", "terminated"]
    for start, n in zip(ds.episodes["start"].tolist(), (2, 10, 1), strict=True):
        q, u, r, note = wrote[n]
        np.testing.assert_array_equal(ds.column("observation/q")[start : start + n + 1], q, strict=True)
        np.testing.assert_array_equal(ds.column("action")[start : start + n], u, strict=True)
        np.testing.assert_array_equal(ds.column("next/reward")[start : start + n], r, strict=True)
        assert list(ds.gather("observation/note", np.arange(start, start + n + 1))) == note
    found = trace(ds, 13, reader="trials.py")
    assert found.ok and not {"observation/q", "observation/note", "action", "next/reward"} - set(found.fields)


RUNS = """
from rlds_cli.archives.grouped import Grouped
from rlds_cli.ted import TERMINATED, TRUNCATED


class Runs(Grouped):
    title, container, by_file = "runs", "{container}", True
    keys = {{"observation": "{q}", "action": "u", "next/reward": "r", "said": "note"}}

    def describe(self, f, paths):
        return ("runs", "of a lab") if {{*self.keys.values(), "won"}} <= set(f) else None

    def end(self, found):
        return TERMINATED if found["won"][-1] else TRUNCATED


READER = Runs()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", own_files.FORMATS)
def test_a_directory_with_a_file_for_each_episode_is_declared(
    lab: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    container = {".h5": "hdf5"}.get(suffix, suffix[1:])
    wide = container == "csv"  # the observation is two columns of the file
    install(lab / "site", code=RUNS.format(container=container, q="[q, v]" if wide else "q"))
    monkeypatch.syspath_prepend(lab / "site")
    for n in (2, 10, 1):
        columns = {"q": np.arange(n) + n / 8, "u": np.arange(n), "r": np.full(n, 0.5), "won": np.arange(n) == 9}
        columns |= {"v": np.arange(n)} if wide else {}
        own_files.write(
            lab / "runs" / f"run_{n}{suffix}", {**columns, "note": np.array([f"{n} of {t}" for t in range(n)])}
        )
    ds = import_files("runs", "local/runs")
    assert (ds.manifest.reader, ds.episodes["length"].tolist()) == ("rig", [1, 2, 10])
    assert ds.episodes["end"].tolist() == ["truncated", "truncated", "terminated"]
    for k, n in enumerate((1, 2, 10)):
        episode = ds.episode(k)
        q = [[n / 8 + t, t][: 1 + wide] for t in range(n)]
        numbers = {"observation": np.ravel(q).tolist(), "action": [*range(n)], "next/reward": [0.5] * n}
        assert {name: episode[name].ravel().tolist() for name in numbers} == numbers
        assert list(episode["said"]) == [f"{n} of {t}" for t in range(n)]
    assert trace(ds, 13).ok


def test_a_group_that_does_not_fit_is_named(lab: Path) -> None:
    Path("trials.py").write_text(TRIALS)
    with h5py.File("t.h5", "w") as f:
        for key, v in {"q": np.zeros((4, 2)), "u": np.zeros((2, 1)), "r": np.zeros(2), "done": [0, 1]}.items():
            f[f"runs/run_0/{key}"] = v
        f["runs/run_0/note"] = np.array([b"a"] * 3)
    with pytest.raises(CorruptArchive, match=r"t\.h5: run_0 has columns of q 4, note 3, u 2"):
        import_files("t.h5", "local/t", reader="trials.py")
