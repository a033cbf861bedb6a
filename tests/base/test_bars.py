"""``progress=True`` shows bars; None and False nothing; a function is given the events."""

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.progress import shown, silent
from rlds_cli.errors import InvalidArgument
from rlds_cli.make.importing import import_files


def doubled(episode):
    episode["action"] *= 2
    return episode


@pytest.fixture
def ds():
    return rlds_cli.create("local/ds", [{"observation": np.zeros((4, 2)), "action": np.ones((3, 1))}] * 2)


@pytest.mark.thorough
@pytest.mark.parametrize("progress", [True, False, None])
def test_preprocess_shows_a_bar_where_it_is_told_to(ds, progress, capsys):
    preprocess.run(ds, doubled, jobs=0, progress=progress)
    said = capsys.readouterr()
    assert said.out == ""
    assert ("local/ds@doubled preprocess: " in said.err and "%|" in said.err) == (progress is True)
    assert bool(said.err) == (progress is True)


@pytest.mark.thorough
def test_download_and_import_show_bars(tmp_path, capsys):
    rlds_cli.download("sample/pendulum-d4rl", progress=True)
    assert "pendulum-d4rl.hdf5: 100%|" in (said := capsys.readouterr().err) and " rows/s]" in said
    np.savez(tmp_path / "own.npz", observations=np.zeros((5, 2)), actions=np.zeros((5, 1)), terminals=np.eye(5)[4] > 0)
    import_files(tmp_path / "own.npz", "local/own", progress=True)
    assert "local/own" in (said := capsys.readouterr().err) and "%|" in said


def test_a_function_is_given_the_events_and_anything_else_is_refused(ds):
    said = []
    preprocess.run(ds, doubled, jobs=0, progress=said.append)
    assert said[-1].done == said[-1].total == 8
    assert shown(None) is shown(False) is silent
    with pytest.raises(InvalidArgument, match="progress='yes'"):
        preprocess.run(ds, doubled, jobs=0, progress="yes")
