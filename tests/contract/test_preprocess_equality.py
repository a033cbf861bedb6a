"""Whoever works, the bytes are the same: this process, two others, four shards; and they are what NumPy computes."""

import preprocess_units as units
import pytest

import rlds_cli
from rlds_cli import preprocess


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", units.ROWS)


@pytest.fixture
def ds():
    return rlds_cli.create("local/ds", units.episodes())


@pytest.mark.slow
@pytest.mark.parametrize("name", units.CASES)
def test_workers_and_shards_give_the_bytes_that_numpy_computes(ds, name):
    case = units.CASES[name]
    here = preprocess.run(ds, case.fn, "by0", jobs=0, **case.how)
    units.check(here, case)
    content = units.content(here)
    for jobs in (1, 2):
        assert units.content(preprocess.run(ds, case.fn, f"by{jobs}", jobs=jobs, **case.how)) == content
    for number in (3, 1, 4, 3, 2):
        report = preprocess.run_shard(ds, case.fn, "shards", shard=(number, 4), jobs=0, **case.how)
    assert report.missing == ()
    assert units.content(preprocess.finish(ds, case.fn, "shards", **case.how)) == content
