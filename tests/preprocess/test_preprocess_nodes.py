"""What a node of a cluster looks at before it works, and what it hands back; without a cluster."""

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import preprocess_functions as functions
import preprocess_units as units
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import DamagedDataset, MissingPackage, PreprocessError, RldsError
from rlds_cli.preprocess import task, workers
from rlds_cli.preprocess.job import fit_chunk, parts
from rlds_cli.preprocess.workers import JobEnvironment


@pytest.fixture
def ds():
    return rlds_cli.create("local/ds", units.episodes())


@pytest.fixture
def place(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = home / "locks" / "mark"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text("word")
    return JobEnvironment(home, mark, "word", str(tmp_path), tuple(sys.path))


def described(ds, fn):
    return task.describe(ds, fn, None, unit=None, arrays="numpy", args={}, fields=None)


def work(place, t, call=fit_chunk):
    """The answer of a node that is asked for the first chunk of a task."""
    others = (parts(t, kept=True)[0],)
    return workers.run_item(pickle.dumps(call), pickle.dumps(t), pickle.dumps(others), place)


def failure(answer):
    assert answer.value is None and "Traceback" in answer.trace
    return pickle.loads(answer.failure)


@pytest.mark.thorough
def test_the_answer_is_what_the_call_gives_here(ds, place):
    t = described(ds, functions.standardise)
    answer = work(place, t)
    assert answer.value == fit_chunk(t, parts(t, kept=True)[0]) and answer.failure is None


def test_a_failure_comes_back_as_it_was(ds, place):
    t = described(ds, functions.fails)
    error = failure(work(place, t, call=_raises_ours))
    assert (error.message, error.hint, error.episode, error.step) == ("no", "yes", 3, 4)
    assert isinstance(failure(work(place, t, call=_raises_what_cannot_be_pickled)), RldsError)


def _raises_ours(*given):
    raise PreprocessError("no", hint="yes").at(3, 4)


class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(a)


def _raises_what_cannot_be_pickled(*given):
    raise Odd(1, 2)


def test_another_version_or_home_is_refused(ds, place, home):
    t = described(ds, functions.standardise)
    error = failure(work(replace(place, version="0.0.1"), t))
    assert "the job was started with 0.0.1" in error.message and "pip install rlds-cli==0.0.1" in error.hint
    place.mark.write_text("another")
    assert f"does not see the home {home}: it has another directory there" in failure(work(place, t)).message
    error = failure(work(replace(place, home=Path("/nowhere"), mark=Path("/nowhere/locks/mark")), t))
    assert "/nowhere: it has no such directory" in error.message and "storage that all nodes see" in error.hint


def test_a_source_that_is_not_there_or_another_is_named(ds, place):
    t = described(ds, functions.standardise)
    pickled, others = pickle.dumps(t), pickle.dumps((parts(t, kept=True)[0],))
    rlds_cli.create("local/ds", list(units.episodes())[:3], force=True)
    error = failure(workers.run_item(pickle.dumps(fit_chunk), pickled, others, place))
    assert isinstance(error, PreprocessError) and "cannot open the source" in error.message
    assert not isinstance(error, DamagedDataset)


def test_a_function_whose_file_is_gone_or_another_is_named(ds, place):
    Path("prep.py").write_text("def same(e):\n    return e\n")
    t = described(ds, "prep.py:same")
    Path("prep.py").unlink()
    assert "does not see" in failure(work(place, t)).message
    Path("mod_of_the_test.py").write_text("def same(e):\n    return e\n")
    t = described(ds, "mod_of_the_test:same")
    Path("mod_of_the_test.py").write_text("def same(e):\n    return {**e}\n")
    assert "has another" in failure(work(place, t)).message
    Path("mod_of_the_test.py").unlink()
    sys.modules.pop("mod_of_the_test")
    error = failure(work(place, t))
    assert "has no module mod_of_the_test, which mod_of_the_test:same needs" in error.message


def test_without_ray(ds, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.workers.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match="ray is not installed") as e:
        preprocess.run(ds, functions.same, executor="ray")
    assert "rlds-cli[ray]" in e.value.hint


def test_arguments_that_do_not_go_together(ds, monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.workers.find_spec", lambda name: name)
    with pytest.raises(PreprocessError, match="jobs=0"):
        preprocess.run(ds, functions.same, executor="ray", jobs=0)
    with pytest.raises(PreprocessError, match=r'executor="ray"'):
        preprocess.run(ds, functions.same, address="127.0.0.1:6379")
    with pytest.raises(PreprocessError, match='There is no executor "dask"'):
        preprocess.run(ds, functions.same, executor="dask")
