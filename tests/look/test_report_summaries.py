from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli import create
from rlds_cli.cli import out
from rlds_cli.errors import RldsError
from rlds_cli.look.report import describe_episode, summarise
from rlds_cli.look.report.columns import distribution, resample, sparkline, trace


def make(**more: Any) -> tuple[Any, list[dict[str, np.ndarray]]]:
    rng = np.random.default_rng(1)
    made = []
    for k in range(6):
        t = 10 + 10 * k
        made.append(
            {
                "o": rng.normal(3, 2, (t + 1, 4)).astype(np.float32),
                "a": np.clip(rng.normal(0, 2, (t, 2)), -1, 1),
                "r": np.full(t, float(k)),
                "w": ["left", "right", None][k % 3],
            }
        )
    dicts = [
        {
            "observation": m["o"],
            "action": m["a"],
            "next": {"reward": m["r"], "terminated": k < 2, "truncated": 2 <= k < 5},
            "info": {"word": [m["w"]] * len(m["r"]), "n": np.arange(len(m["r"]), dtype=np.int16)},
        }
        for k, m in enumerate(made)
    ]
    return create("local/x", dicts, env_id="Press-v1", **more), made


def test_a_page_of_figures() -> None:
    ds, _ = make()
    s = summarise("local/x")
    assert (s.id, s.fingerprint, s.path, s.encoding, s.env_id) == (
        "local/x",
        ds.fingerprint,
        ds.path,
        "memmap",
        "Press-v1",
    )
    assert s.counts == ds.manifest.counts
    assert (s.counts.steps, s.counts.terminated, s.counts.truncated, s.counts.cut) == (210, 2, 3, 1)
    assert [f.name for f in s.fields] == [
        *("observation", "action", "next/reward", "next/terminated", "next/truncated", "info/n", "info/word")
    ]
    assert [f.default for f in s.fields] == [True] * 5 + [False] * 2
    assert s.returns is not None
    assert s.lengths is not None
    returns = [0.0, 20, 60, 120, 200, 300]
    assert (s.returns.min, s.returns.median, s.returns.max) == (0, 90, 300)
    assert s.returns.mean == pytest.approx(np.mean(returns))
    assert (s.lengths.min, s.lengths.median, s.lengths.max) == (10, 35, 60)
    assert sum(s.lengths.histogram.counts) == 6
    assert s.scores is None


def test_statistics_are_over_steps_and_elements() -> None:
    _, made = make()
    o, *_ = summarise("local/x", elements=True).fields
    steps = np.concatenate([m["o"][:-1] for m in made]).astype(np.float64)
    assert (o.mean, o.std) == (pytest.approx(steps.mean()), pytest.approx(steps.std()))
    assert (o.min, o.max) == (steps.min(), steps.max())
    assert o.histogram is not None
    assert sum(o.histogram.counts) == steps.size
    assert o.elements is not None
    assert [e.index for e in o.elements] == ["[0]", "[1]", "[2]", "[3]"]
    assert [e.mean for e in o.elements] == pytest.approx(steps.mean(0).tolist())
    assert [e.max for e in o.elements] == steps.max(0).tolist()


def test_text_has_no_numbers() -> None:
    make()
    word = summarise("local/x").fields[-1]
    assert (word.mean, word.histogram, word.saturation) == (None, None, None)
    assert word.distinct == 2


def test_saturation() -> None:
    _, made = make()
    found = summarise("local/x").fields[1].saturation
    assert found is not None
    a = np.concatenate([m["a"] for m in made])
    assert found.of == "extremes"
    assert found.share == pytest.approx((np.abs(a) == 1).any(1).mean())
    assert found.steps == 210
    create("local/y", [{"observation": np.zeros(501), "action": np.random.default_rng(0).normal(size=(500, 2))}])
    assert summarise("local/y").fields[1].saturation is None  # the extremes of a normal distribution are not bounds
    create("local/z", [{"observation": np.zeros(501), "action": np.arange(500) % 3}])
    assert summarise("local/z").fields[1].saturation is None  # nor is there any in discrete actions


def test_saturation_by_the_bounds_of_the_space() -> None:
    sample_dataset("pendulum-d4rl")
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl")
    document = json.loads((ds.path / "zarr.json").read_text())
    space = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}
    document["attributes"]["rlds"]["spaces"] = {"action": space}
    (ds.path / "zarr.json").chmod(0o644)
    (ds.path / "zarr.json").write_text(json.dumps(document))
    found = next(f for f in summarise("sample/pendulum-d4rl").fields if f.name == "action").saturation
    assert found is not None
    assert (found.of, found.steps) == ("space", 4096)
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl")
    rows = np.ones(ds.num_rows, bool)
    rows[ds.episodes["start"] + ds.episodes["length"]] = False
    a = ds.column("action")[rows]
    assert found.share == pytest.approx((np.abs(a) >= 2 - 0.004).mean(), abs=0.02)
    for low in ("-Infinity", [["-Infinity"]], "nonsense", None):
        space["low"] = low
        (ds.path / "zarr.json").write_text(json.dumps(document))
        summarise("sample/pendulum-d4rl")


def test_scores_where_references_are_known() -> None:
    ds = sample_dataset("cartpole-minari")
    s = summarise(ds)
    assert s.scores is not None
    assert s.returns is not None
    # The registry has 22 for 0 and 500 for 1; papers give 100 times the score.
    assert s.scores.max == pytest.approx(100 * (s.returns.max - 22) / 478)
    assert s.archive["files"] == 2


def test_no_rewards_nan_and_constant() -> None:
    create(
        "local/g", [{"observation": np.array([1.0, np.nan, np.inf, 1.0]), "action": np.zeros((3, 1, 2), np.float32)}]
    )
    s = summarise("local/g")
    assert (s.returns, s.scores) == (None, None)
    o, a = s.fields[:2]
    assert (o.mean, o.nonfinite, a.std, a.min) == (1.0, 2, 0.0, 0.0)
    create("local/nan", [{"observation": np.full(4, np.nan), "action": np.zeros((3, 0))}])
    o, a = summarise("local/nan", elements=True).fields[:2]
    assert (o.mean, o.min, o.histogram, o.nonfinite) == (None, None, None, 3)
    assert (a.mean, a.elements) == (None, ())


@pytest.mark.parametrize("storage", ["memmap", "zarr"])
def test_the_same_in_both_encodings(storage: Any) -> None:
    make(storage=storage)
    s = summarise("local/x", elements=True)
    assert s.encoding == storage
    assert s.fields[0].mean == pytest.approx(3, abs=0.5)
    assert describe_episode("local/x", 5).fields[0].rows == 61


def test_a_selection_is_summed_up_as_a_whole() -> None:
    ds, _ = make()
    assert summarise(ds.select(episodes=[0])).counts.episodes == 6


def test_everything_is_json() -> None:
    make()
    text = json.dumps(out.plain(summarise("local/x", elements=True)), allow_nan=False)
    found = json.loads(text)
    assert found["counts"]["steps"] == 210
    assert found["fields"][0]["shape"] == [4]
    json.dumps(out.plain(describe_episode("local/x", 1)), allow_nan=False)


@pytest.mark.thorough
def test_a_summary_needs_no_other_library() -> None:
    make()
    script = textwrap.dedent("""
        import sys
        from rlds_cli.look.report import summarise
        summarise("local/x")
        print(sorted(set(sys.modules) & {"torch", "zarr", "h5py", "requests", "PIL", "rich", "jinja2"}))
    """)
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


# One episode


def test_an_episode() -> None:
    _, made = make()
    e = describe_episode("local/x", 1)
    assert (e.episode, e.of, e.start, e.length, e.end) == (1, 6, 11, 20, "terminated")
    assert (e.num_observed, e.num_transitions, e.total_reward, e.num_done, e.score) == (21, 20, 20.0, 1, None)
    assert (e.seed, e.options, e.splits) == (None, None, ())
    o = e.fields[0]
    assert o.rows == 21
    first = made[1]["o"][:, 0]
    d = o.dimensions[0]
    assert (d.index, d.first, d.last, d.max) == ("[0]", first[0], first[-1], first.max())
    assert d.mean == pytest.approx(first.mean())
    assert d.trace == tuple(float(x) for x in first)
    word = e.fields[-1]
    assert (word.texts, word.rows) == (("right",), 20)
    assert describe_episode("local/x", 2).fields[-1].texts == ()


def test_episodes_from_the_end_and_beyond() -> None:
    ds, _ = make()
    assert describe_episode("local/x", -1).episode == 5
    for bad in (6, -7, 10**9):
        with pytest.raises(RldsError, match="has no episode"):
            describe_episode("local/x", bad)
    assert describe_episode(ds.select(episodes=[4, 2]), 1).length == 30


def test_wide_fields_are_cut_unless_asked_for() -> None:
    create("local/wide", [{"observation": np.zeros((3, 10, 10)), "action": np.zeros((2, 1))}])
    o = describe_episode("local/wide", 0).fields[0]
    assert (len(o.dimensions), o.hidden) == (32, 68)
    assert o.dimensions[31].index == "[3, 1]"
    o = describe_episode("local/wide", 0, elements=True).fields[0]
    assert (len(o.dimensions), o.hidden) == (100, 0)


def test_images_are_not_shown_pixel_by_pixel_unless_asked_for() -> None:
    create("local/seen", [{"observation": np.zeros((3, 10, 10, 3), np.uint8), "action": np.zeros((2, 1))}])
    o = describe_episode("local/seen", 0).fields[0]
    assert (o.dimensions, o.hidden, o.bytes, o.rows) == ((), 300, 900, 3)
    assert len(describe_episode("local/seen", 0, elements=True).fields[0].dimensions) == 300


def test_where_an_episode_came_from() -> None:
    sample_dataset("cartpole-minari")
    e = describe_episode("sample/cartpole-minari", 10)
    assert e.source == {"file": "main_data.hdf5", "group": "episode_10", "row": 0}
    assert e.score is not None
    assert e.seed is not None


# The charts


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ([0, 1, 8, 4, 0], " ▁█▄ "),
        ([1, 1000], "▁█"),
        ([], ""),
        ([0, 0], "  "),
        ([5], "█"),
    ],
)
def test_sparklines(counts: list[int], line: str) -> None:
    assert sparkline(counts) == line


def test_sparklines_in_less_room() -> None:
    assert sparkline([1, 1, 4, 4], width=2) == "▂█"
    assert len(sparkline(range(16), width=7)) == 7
    assert sparkline([1, 8], ascii_only=True) == ".#"


def test_traces() -> None:
    assert trace([0.0, 1.0, None, 2.0, float("nan")]) == "▁▅ █ "
    assert trace([3.0, 3.0]) == "▁▁"
    assert trace([]) == ""
    assert trace([None]) == " "


def test_resampling() -> None:
    assert resample(np.array([1.0, 3.0, 5.0, 7.0]), 2) == (2.0, 6.0)
    assert resample(np.array([1.0, np.nan]), 4) == (1.0, None)
    assert resample(np.array([1.0, np.nan, np.nan, np.nan]), 2) == (1.0, None)


def test_distributions() -> None:
    d = distribution([1, 2, 3, 4, np.nan])
    assert d is not None
    assert (d.min, d.median, d.mean, d.max) == (1, 2.5, 2.5, 4)
    assert distribution([]) is None
    same = distribution([7, 7])
    assert same is not None
    assert same.histogram.counts == (2,)


def test_fields_that_a_function_added_are_loaded_by_default():
    episode = {"observation": np.zeros((4, 2)), "action": np.zeros(3), "next": {"reward": [1, 2, 3]}}
    ds = rlds_cli.create("local/raw", [episode | {"info": {"a": np.zeros(3)}}])
    made = rlds_cli.preprocess.run(ds, lambda e: {**e, "info": {**e["info"], "value": np.ones(3)}}, "valued", jobs=0)
    batch = next(iter(rlds_cli.Loader(made, 2, seed=0, backend="numpy")))
    by_default = {f.name: f.default for f in summarise(made).fields}
    assert by_default["info/value"] and "value" in batch["info"]
    assert not by_default["info/a"] and "a" not in batch["info"]
