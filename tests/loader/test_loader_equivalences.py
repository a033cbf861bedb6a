"""What other libraries do, as settings: the tables of docs/reference/settings-elsewhere.md, against loaders."""

from __future__ import annotations

import re

import numpy as np
import pytest
from loader_data import episode
from loader_samples import PAGE, load, make, read, table

import rlds_cli.loader
from rlds_cli.loader import Loader, Sequential


def expression(text, **names):
    return eval(text, vars(rlds_cli.loader) | names)


LENGTHS = (10, 16, 40, 128, 150)
LONG = [episode(i, length) for i, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    yield from make(tmp_path_factory, LONG)


def windows_of(ds, length, window):
    """The steps of every window of the episode of that length, in order."""
    ds = ds.select(episodes=np.array([LENGTHS.index(length)]))
    return [steps for _, steps in read(window, next(iter(load(ds, window, Sequential()))))]


def settings_of(start):
    """The window in the row of the page's last table that starts so."""
    (cells,) = [cells for cells in table("### Others") if cells[0].startswith(start)]
    return expression(re.findall(r"`([^`]+)`", cells[1])[0])


@pytest.mark.thorough
def test_the_example_of_amago(long):
    n, l = 10, 4
    rows = table("### AMAGO")
    for _, window, starts, example in rows:
        samples = windows_of(long, n, expression(window.strip("`"), l=l))
        assert len(samples) == eval(starts, {"n": n, "l": l})
        assert [sum(t in steps for steps in samples) for t in range(n)] == list(map(int, example.split()))
    assert len(rows) == 6


OTHERS = {
    "Decision Transformer": lambda T: [range(t, min(t + 20, T)) for t in range(T)],
    "d3rlpy": lambda T: [range(max(0, t - 19), t + 1) for t in range(T)],
    "TorchRL, `SliceSampler(slice_len=32)`": lambda T: [range(t, t + 32) for t in range(T - 31)],
    "`SliceSampler(slice_len=32, span": lambda T: [range(max(0, s), s + 32) for s in range(-8, T - 31)],
    "`PrioritizedSliceSampler`": lambda T: [range(t, t + 32) for t in range(T - 31)],
    "the same, all fields": lambda T: [range(max(0, s), min(s + 16, T)) for s in range(-1, T - 16 + 7 + 1)],
    "robomimic: `seq_length=10, pad_seq_length=True`": lambda T: [range(t, min(t + 10, T)) for t in range(T)],
    "robomimic: `seq_length=10, pad_seq_length=False`": lambda T: [range(t, t + 10) for t in range(T - 9)],
    "chunks": lambda T: [range(t, min(t + 64, T)) for t in range(0, T, 64)],
}


@pytest.mark.thorough
@pytest.mark.parametrize("row", OTHERS)
@pytest.mark.parametrize("length", [40, 128, 150])
def test_the_settings_give_the_slices_of_other_libraries(long, row, length):
    assert windows_of(long, length, settings_of(row)) == [list(steps) for steps in OTHERS[row](length)]


@pytest.mark.thorough
@pytest.mark.parametrize("length", [10, 16, 40])
def test_the_settings_give_the_edges_of_diffusion_policy(long, length):
    """Sequences of 16 from step -1 to 7 steps beyond the end; edges repeat; 2 observations, 16 actions."""
    k = LENGTHS.index(length)
    one, ds = LONG[k], long.select(episodes=np.array([k]))
    batch = next(iter(load(ds, settings_of("Diffusion Policy"), Sequential())))
    starts = range(-1, length - 16 + 7 + 1)
    assert len(batch["action"]) == len(starts)
    for observation, action, start in zip(batch["observation"], batch["action"], starts, strict=True):
        inside = np.clip(np.arange(start, start + 16), 0, length - 1)
        assert np.array_equal(observation, one.observation[inside[:2]])
        assert np.array_equal(action, one.action[inside])


@pytest.mark.thorough
def test_every_setting_of_the_page_makes_a_loader(long):
    ds = long
    names = {"weights": np.ones(5), "M": 5, "L": 8, "a": 3, "b": 2, "s": 2, "n": 3, "l": 4, "alpha": 0.6}
    names |= {"beta": 0.4, "eps": 1e-6, "w": np.ones(5), "field": "observation", "O": (0, 1)}
    found = re.findall(r"`((?:Slice|Transition|Offsets|Episode|Uniform|Shuffled|Weighted|Prioritized)\([^`]*\))`", PAGE)
    for text in found:
        if "..." in text or "bucket=n" in text:
            continue
        made = expression(text, **names)
        kind = "window" if hasattr(made, "extent") else "sampler"
        assert len(next(iter(Loader(ds, 4, **{kind: made})))["action"]) == 4, text
    assert len(found) > 50


def test_the_code_of_the_page_runs(long):
    space = {"ds": long}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(code, space)
    assert space["correction"].shape == (64,) and space["windows"] == sum(LENGTHS)
