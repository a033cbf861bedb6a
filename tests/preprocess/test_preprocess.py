"""What preprocess makes, against the same computed by hand from the arrays that went in."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import preprocess_functions as functions
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import PreprocessError

LENGTHS = [60 + i % 101 for i in range(150)]  # 15,807 steps: four parts of the size below


def trajectories(lengths, seed=0):
    rng = np.random.default_rng(seed)
    for i, t in enumerate(lengths):
        yield {
            "observation": rng.standard_normal((t + 1, 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {
                "reward": rng.standard_normal(t),
                "terminated": i % 3 == 0,
                "truncated": i % 3 == 1,
            },
            "info": {"number": np.full(t, i), "word": [f"w{i % 5}"] * t},
        }


@pytest.fixture(scope="module")
def truth():
    return list(trajectories(LENGTHS))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def big(truth, place):
    return rlds_cli.create("local/big", truth, home=place)


@pytest.fixture
def small():
    return rlds_cli.create("local/small", trajectories([5, 8, 3, 9, 10, 1, 6]))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of 4,096 rows: several, without much data. Their size decides nothing but who does what."""
    monkeypatch.setattr("rlds_cli.preprocess.job.PART_ROWS", 4096)


def files(ds):
    """All bytes of a dataset but those of its manifest, which holds times."""
    paths = (p for p in sorted(ds.path.rglob("*")) if p.is_file() and p.parent != ds.path)
    return {str(p.relative_to(ds.path)): p.read_bytes() for p in paths}


def both_ways(ds, fn, place=None, **how):
    """The result, after a check that one and two workers write the same bytes."""
    alone = preprocess.run(ds, fn, "alone", jobs=0, force=True, home=place, **how)
    apart = preprocess.run(ds, fn, "apart", jobs=2, force=True, home=place, **how)
    assert alone.fingerprint == apart.fingerprint
    assert files(alone) == files(apart)
    return apart


def rows(truth, name):
    """A field of all episodes as the store has it: T+1 rows each."""
    out = []
    for e in truth:
        value = e
        for part in name.split("/"):
            value = value[part]
        value = np.asarray(value)
        out.append(value if len(value) == len(e["action"]) + 1 else np.concatenate([value, np.zeros_like(value[:1])]))
    return np.concatenate(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (functions.normalise, {}),
        pytest.param(functions.normalise_in_place, {}, marks=pytest.mark.slow),
        (functions.normalise_batch, {}),
        pytest.param(functions.normalise_step, {}, marks=pytest.mark.slow),
    ],
    ids=["new", "in-place", "batch", "step"],
)
def test_normalising_by_every_unit_gives_what_numpy_gives(big, truth, place, fn, how):
    ds = both_ways(big, fn, place, **how)
    observation = rows(truth, "observation")
    assert np.array_equal(ds.column("observation"), (observation - functions.MEAN) / functions.STD)
    assert np.array_equal(ds.column("observation_raw"), observation)
    assert ds.schema["observation_raw"].placement == "both"
    assert np.array_equal(ds.column("action"), rows(truth, "action"))
    assert np.array_equal(ds.column("next/reward"), rows(truth, "next/reward"))
    assert ds.episodes["end"].tolist() == ["terminated", "truncated", "cut"] * 50
    assert sorted(ds.manifest.shared) == [
        "action",
        "info/number",
        "info/word",
        "next/reward",
        "next/terminated",
        "next/truncated",
    ]
    assert (ds.path / "action/c/0/0").samefile(big.path / "action/c/0/0")
    assert np.array_equal(big.column("observation"), observation)  # the source stays as it was


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "how"),
    [
        (functions.obs_norm, {"arrays": "tensordict", "unit": "batch"}),
        (functions.obs_norm, {"arrays": "tensordict"}),
        (functions.obs_norm_torch, {"arrays": "torch"}),
    ],
    ids=["batch", "episode", "torch"],
)
def test_a_torchrl_style_function_adds_obs_norm(big, truth, place, fn, how):
    ds = both_ways(big, fn, place, fields=["observation", "action"], **how)
    last = np.cumsum([t + 1 for t in LENGTHS]) - 1
    norm = np.linalg.norm(rows(truth, "observation").astype(np.float64), axis=-1)
    whole = how["arrays"] == "torch"  # sees T+1 observations, transitions do not
    if not whole:
        norm[last] = 0
    assert np.allclose(ds.column("obs_norm"), norm, rtol=1e-6)
    assert ds.schema["obs_norm"].placement == ("both" if whole else "root")
    assert ds.schema["obs_norm"].dtype == "float32"
    assert set(ds.manifest.shared) == set(big.schema)
    assert ds.episode(0)["info"]["word"].tolist() == ["w0"] * LENGTHS[0]


@pytest.mark.thorough
def test_a_filter_keeps_the_good_episodes_whole(big, truth, place):
    ds = both_ways(big, functions.good, place, args={"at_least": 3.0})
    kept = [e for e in truth if e["next"]["reward"].sum() >= 3.0]
    assert 0 < len(kept) < len(truth)
    assert ds.num_episodes == len(kept)
    for name in ("observation", "action", "next/reward", "info/number"):
        assert np.array_equal(ds.column(name), rows(kept, name)), name
    numbers = [e["info"]["number"][0] for e in kept]
    assert ds.episodes["end"].tolist() == [["terminated", "truncated", "cut"][n % 3] for n in numbers]
    assert ds.episodes["row"].tolist() == numbers
    words = ds.gather("info/word", ds.episodes["start"])
    assert words.tolist() == [f"w{n % 5}" for n in numbers]
    assert ds.manifest.shared == {}


@pytest.mark.slow
def test_a_list_splits_episodes_and_the_pieces_end_as_their_flags_say(big, truth, place):
    ds = both_ways(big, functions.halves, place)
    assert ds.num_episodes == 300 and ds.num_steps == big.num_steps
    assert ds.episodes["length"].tolist() == [n for t in LENGTHS for n in (t // 2, t - t // 2)]
    assert ds.episodes["end"].tolist() == ["cut", "terminated", "cut", "truncated", "cut", "cut"] * 50
    t = LENGTHS[0] // 2
    first, second = ds.episode(0), ds.episode(1)
    assert np.array_equal(first["next", "observation"][-1], truth[0]["observation"][t])
    assert np.array_equal(second["observation"][0], truth[0]["observation"][t])
    assert first["next", "truncated"][-1] and not first["next", "terminated"].any()
    assert np.array_equal(np.concatenate([first["action"], second["action"]]), truth[0]["action"])


@pytest.mark.thorough
def test_lengths_may_change(small):
    ds = preprocess.run(small, functions.first_half)
    assert ds.episodes["length"].tolist() == [2, 4, 1, 4, 5, 3]  # one step has no half
    assert [n["code"] for n in ds.manifest.notes] == ["empty-episodes"]
    assert np.array_equal(ds.episode(1)["observation"], small.episode(1)["observation"][:4])


@pytest.mark.slow
def test_drawing_functions_give_the_same_however_many_work(big, place):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    ds = both_ways(big, functions.noisy, place)
    assert np.array_equal(np.random.get_state()[1], before)
    noise = ds.column("action") - big.column("action")
    steps = np.arange(LENGTHS[0] + 2, big.num_rows)
    assert 0.9 < noise[steps].std() < 1.1
    assert not np.array_equal(noise[1:60], noise[LENGTHS[0] + 2 : LENGTHS[0] + 61])


# -- fields


@pytest.mark.thorough
def test_fields_may_come_go_and_change_dtype_and_shape(small):
    def reshape(e):
        del e["info"]
        e["action"] = e["action"].astype(np.float64)[:, :1]
        e["next"]["cost"] = np.abs(e["next"]["reward"]).astype(np.float16)
        e["next"]["reward"] = e["next"]["reward"][:, None]
        e["grid"] = np.zeros((len(e["observation"]), 2, 2), np.uint8)
        e["label"] = ["even" if i % 2 == 0 else None for i in range(len(e["action"]))]
        return e

    ds = preprocess.run(small, reshape)
    assert {n: (f.dtype, f.shape, f.placement) for n, f in ds.schema.items()} == {
        "action": ("float64", (1,), "root"),
        "grid": ("uint8", (2, 2), "both"),
        "label": ("str", (), "root"),
        "next/cost": ("float16", (), "next"),
        "next/reward": ("float64", (), "next"),
        "next/terminated": ("bool", (), "next"),
        "next/truncated": ("bool", (), "next"),
        "observation": ("float32", (3,), "both"),
    }
    assert np.array_equal(ds.column("action"), small.column("action")[:, :1].astype(np.float64))
    assert ds.episode(0)["label"].tolist() == ["even", None, "even", None, "even"]
    assert "next/reward" in ds.manifest.shared


@pytest.mark.thorough
def test_flags_that_do_not_come_back_are_those_of_the_source(small):
    ds = preprocess.run(small, lambda e: {"observation": e["observation"]}, "bare")
    assert set(ds.schema) == {"observation", "next/terminated", "next/truncated"}
    assert ds.episodes["end"].tolist() == small.episodes["end"].tolist()
    assert set(ds.manifest.shared) == set(ds.schema)


@pytest.mark.thorough
def test_relabelled_flags_decide_how_episodes_end(small):
    def never(e):
        e["next"]["terminated"][:] = False
        return e

    def never_batch(b):
        b["next"]["terminated"][:] = False
        b["next"]["done"] = b["next"]["truncated"]
        return b

    a = preprocess.run(small, never)
    b = preprocess.run(small, never_batch, unit="batch")
    # terminated, truncated, cut, ... : those that terminated now end without a reason
    assert a.episodes["end"].tolist() == ["cut", "truncated", "cut", "cut", "truncated", "cut", "cut"]
    assert a.fingerprint == b.fingerprint
    assert a.episode(0)["next", "truncated"].ravel().tolist() == [False] * 4 + [True]


def test_only_the_fields_asked_for_are_given_and_the_others_carried(small):
    seen = []

    def look(e):
        seen.append(sorted(e.names()))
        e["next"]["reward"] = e["next"]["reward"] * 2
        return e

    ds = preprocess.run(small, look, fields=["next/reward"])
    assert set(map(tuple, seen)) == {("next/reward", "next/terminated", "next/truncated")}
    assert np.array_equal(ds.column("next/reward"), 2 * small.column("next/reward"))
    assert set(ds.manifest.shared) == set(small.schema) - {"next/reward"}
    dropped = preprocess.run(
        small, lambda e: e if len(e["next"]["reward"]) > 4 else None, "long", fields=["next/reward"]
    )
    assert set(dropped.schema) == set(small.schema)
    assert dropped.episodes["length"].tolist() == [5, 8, 9, 10, 6]
    assert np.array_equal(dropped.episode(1)["observation"], small.episode(1)["observation"])
    assert dropped.episode(2)["info"]["word"].tolist() == ["w3"] * 9


@pytest.mark.thorough
def test_final_observations_that_are_not_recorded_stay_so():
    lengths = [4, 6, 5]
    episodes = list(trajectories(lengths))
    episodes[1]["observation"] = episodes[1]["observation"][:-1]
    episodes[0]["observation"] = episodes[0]["observation"][:-1]
    ds = rlds_cli.create("local/open", episodes)
    assert ds.episodes["num_observed"].tolist() == [4, 6, 6]
    shapes = []

    def double(e):
        shapes.append(e["observation"].shape[0])
        return {**e, "observation": e["observation"] * 2, "raw": e["observation"]}

    def double_batch(b):
        seen.append(b["next", "observed"].ravel().tolist())
        for at in (b, b["next"]):
            at["raw"] = at["observation"]
            at["observation"] = at["observation"] * 2
        return b

    def double_td(td):
        for at in (td, td["next"]):
            at["raw"] = at["observation"].clone()
            at["observation"] *= 2
        return td

    seen = []
    by_episode = preprocess.run(ds, double)
    by_batch = preprocess.run(ds, double_batch, unit="batch")
    by_td = preprocess.run(ds, double_td, arrays="tensordict")
    assert sorted(set(shapes)) == [4, 6]
    assert seen[-1] == [True] * 3 + [False] + [True] * 5 + [False] + [True] * 5
    assert by_episode.fingerprint == by_batch.fingerprint == by_td.fingerprint
    assert by_episode.episodes["num_observed"].tolist() == [4, 6, 6]
    want = np.concatenate([episodes[0]["observation"], episodes[0]["observation"][-1:]]) * 2
    assert np.array_equal(by_episode.column("observation")[:5], want)
    # A field that is linked beside one that is not tells nothing about final rows; the source does.
    only = preprocess.run(ds, lambda e: {**e, "action": e["action"] + 1}, "action")
    assert only.episodes["num_observed"].tolist() == [4, 6, 6] and "observation" in only.manifest.shared


@pytest.mark.thorough
def test_next_observations_of_their_own_stay_of_their_own(tmp_path):
    rng = np.random.default_rng(0)
    episodes = [
        {
            "observation": rng.standard_normal((5, 2)),
            "action": rng.standard_normal((5, 1)),
            "next": {"observation": rng.standard_normal((5, 2)), "reward": np.zeros(5), "terminated": True},
        }
        for _ in range(3)
    ]
    ds = rlds_cli.create("local/apart", episodes)
    assert ds.schema["next/observation"].placement == "next"

    def shift(b):
        b["observation"] = b["observation"] + 1
        return b

    for how in ({}, {"unit": "batch"}, {"unit": "step"}, {"arrays": "tensordict"}):
        made = preprocess.run(ds, shift, "shift", force=True, **how)
        assert np.array_equal(made.episode(1)["observation"], episodes[1]["observation"] + 1)
        assert np.array_equal(made.episode(1)["next", "observation"], episodes[1]["next"]["observation"])
        assert "next/observation" in made.manifest.shared


# -- what is linked


@pytest.mark.slow
def test_what_a_later_episode_changes_is_written_after_all(big, truth, place):
    ds = both_ways(big, functions.late_change, place, args={"at": 85})
    want = rows(truth, "action")
    start = int(big.episodes["start"][85])
    want[start : start + LENGTHS[85]] += 1
    assert np.array_equal(ds.column("action"), want)
    assert set(ds.manifest.shared) == set(big.schema) - {"action"}


@pytest.mark.slow
def test_what_a_later_batch_changes_is_written_after_all(big, truth, place):
    ds = both_ways(big, functions.late_in_a_batch, place, args={"at": 85})
    want = rows(truth, "action")
    start = int(big.episodes["start"][85])
    want[start : start + LENGTHS[85]] += 1
    assert np.array_equal(ds.column("action"), want)
    assert set(ds.manifest.shared) == set(big.schema) - {"action"}


@pytest.mark.slow
def test_a_new_field_and_its_next_are_one_where_they_agree_and_two_where_not(big, truth, place):
    one = preprocess.run(big, functions.late_pair, "one", home=place, args={"at": -1})
    assert one.schema["place"].placement == "both" and "next/place" not in one.schema
    assert np.array_equal(one.column("place"), rows(truth, "observation")[:, 0])
    two = both_ways(big, functions.late_pair, place, args={"at": 85})
    assert (two.schema["place"].placement, two.schema["next/place"].placement) == ("root", "next")
    want = truth[85]["observation"][:, 0].copy()
    got = two.episode(85)
    assert np.array_equal(got["place"], want[:-1, None])
    want[4] = 0
    assert np.array_equal(got["next", "place"], want[1:, None])


@pytest.mark.slow
def test_a_function_may_fill_one_buffer_again_and_again(big, truth, place):
    ds = both_ways(big, functions.fills_a_buffer, place)
    assert np.array_equal(ds.column("observation"), 2 * rows(truth, "observation"))


@pytest.mark.slow
def test_a_worker_that_dies_twice_is_reported_with_its_chunk_and_the_rest_kept(big, place):
    with pytest.raises(rlds_cli.errors.RldsError) as e:
        preprocess.run(big, functions.dies, jobs=2, home=place, args={"at": 120})
    ends = np.cumsum(np.array(LENGTHS) + 1) // 4096
    first, last = np.flatnonzero(ends == ends[120])[[0, -1]]
    assert (
        f"the process that worked on chunk {ends[120] + 1} of 4 (episodes {first} to {last}) left with exit code 9, "
        "twice. Finished work is kept." in e.value.message
    )
    assert not (place / "datasets/local/big@dies").exists()


@pytest.mark.slow
def test_a_worker_that_dies_once_is_replaced_and_its_chunk_done_again(big, truth, place, tmp_path):
    said = []
    how = {"home": place, "args": {"at": 120, "once": str(tmp_path / "died")}}
    made = preprocess.run(big, functions.dies, "once", jobs=2, progress=lambda e: said.append(e.note), **how)
    assert [n for n in said if "exit code 9; trying again" in n and "(episodes " in n]
    assert np.array_equal(made.episode(120)["action"], truth[120]["action"] + 1)
    assert made.fingerprint == preprocess.run(big, functions.dies, "never", home=place, args={"at": -1}).fingerprint


@pytest.mark.slow
def test_an_episode_that_is_dropped_late_is_dropped(big, truth, place):
    ds = both_ways(big, functions.late_drop, place, args={"at": 85})
    assert np.array_equal(ds.column("observation"), rows(truth[:85] + truth[86:], "observation"))


@pytest.mark.thorough
def test_the_fingerprint_does_not_depend_on_links(small, tmp_path, monkeypatch):
    """What a function leaves alone hashes the same, whether it is linked, or given again by hand."""
    linked = preprocess.run(small, functions.same)
    assert set(linked.manifest.shared.values()) == {"link"} and linked.fingerprint == small.fingerprint
    again = rlds_cli.create("local/again", trajectories([5, 8, 3, 9, 10, 1, 6]))
    assert again.fingerprint == linked.fingerprint
    everything = small.select(episodes=[0, 1, 2, 3, 4, 5, 6])
    assert preprocess.run(everything, functions.same).path == linked.path


@pytest.mark.thorough
def test_a_selection_is_a_source_too(small):
    chosen = small.select(episodes=[4, 0, 3])
    by_unit = [
        preprocess.run(chosen, fn, fn.__name__)
        for fn in (functions.normalise_in_place, functions.normalise_batch, functions.normalise_step)
    ]
    assert len({ds.fingerprint for ds in by_unit}) == 1
    ds = by_unit[0]
    assert ds.episodes["length"].tolist() == [10, 5, 9]
    assert np.array_equal(ds.episode(0)["observation_raw"], small.episode(4)["observation"])
    assert ds.episode(2)["info"]["word"].tolist() == ["w3"] * 9
    assert ds.episodes["row"].tolist() == [4, 0, 3]
    with pytest.raises(rlds_cli.errors.NameTaken, match=r"source hash was rlds1:.+…, is rlds1:.+…\."):
        preprocess.run(small, functions.normalise_batch)


@pytest.mark.thorough
def test_the_manifest_tells_the_chain_and_keeps_what_is_known(tmp_path):
    ds = rlds_cli.download("sample/pendulum-d4rl")
    one = preprocess.run(ds, functions.normalise)
    two = preprocess.run(one, functions.good, "good", args={"at_least": -1e9})
    first, second = two.manifest.provenance
    assert (first["from"], first["function"], second["from"]) == (ds.id, "normalise", "sample/pendulum-d4rl@normalise")
    assert first["source"] == ds.fingerprint and second["source"] == one.fingerprint
    assert second["args"] == {"at_least": -1e9}
    assert [Path(f).name for f, _ in first["files"]] == ["preprocess_functions.py"]
    assert two.id == "sample/pendulum-d4rl@good"
    assert one.manifest.archive == ds.manifest.archive and one.manifest.episodes_by == ds.manifest.episodes_by
    assert one.manifest.metadata == ds.manifest.metadata and one.manifest.env == ds.manifest.env
    assert set(one.manifest.spaces) == set(ds.manifest.spaces) - {"observation"}
    assert one.fingerprint == two.fingerprint  # nothing was dropped


@pytest.mark.thorough
def test_the_sample_archive_normalised_by_hand(tmp_path):
    source = rlds_cli.download("sample/pendulum-d4rl")
    ds = preprocess.run(source, functions.normalise)
    with h5py.File(Path(rlds_cli.__file__).parent / "samples" / "pendulum-d4rl.hdf5") as f:
        raw, after = f["observations"][...], f["next_observations"][...]
    want, want_next = ((x - functions.MEAN) / functions.STD for x in (raw, after))
    got = ds.to_numpy(fields=["observation", "next/observation"])
    assert np.array_equal(got["observation"], want[: len(got["observation"])])
    assert np.array_equal(got["next/observation"], want_next[: len(got["observation"])])
    assert len(ds) == len(source)


# -- running again


def test_running_again_returns_at_once_and_another_key_is_refused(small):
    ds = preprocess.run(small, functions.good, args={"at_least": 0.0})
    created = ds.manifest.created
    stamp = (ds.path / "zarr.json").stat().st_mtime_ns
    again = preprocess.run("local/small", "preprocess_functions:good", args={"at_least": 0.0}, jobs=2)
    assert again.manifest.created == created and (again.path / "zarr.json").stat().st_mtime_ns == stamp
    with pytest.raises(rlds_cli.errors.NameTaken, match=r'args was \{"at_least": 0.0\}, is \{"at_least": 1.0\}'):
        preprocess.run(small, functions.good, args={"at_least": 1.0})
    forced = preprocess.run(small, functions.good, args={"at_least": -99.0}, force=True)
    assert forced.num_episodes == 7 and rlds_cli.open_dataset("local/small@good").num_episodes == 7


@pytest.mark.thorough
def test_a_changed_source_file_is_another_function(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scale.py").write_text("FACTOR = 2\n")
    Path("prep.py").write_text("from scale import FACTOR\ndef f(e):\n    e['action'] *= FACTOR\n    return e\n")
    ds = preprocess.run(small, "prep.py:f")
    assert [f for f, _ in ds.manifest.provenance[-1]["files"]] == ["prep.py", "scale.py"]
    Path("scale.py").write_text("FACTOR = 3\n")
    with pytest.raises(rlds_cli.errors.NameTaken, match=r"fn source was [0-9a-f]{14}…, is [0-9a-f]{14}…"):
        preprocess.run(small, "prep.py:f")


def test_a_lambda_or_a_closure_goes_to_workers_too(big, truth, place):
    factor = 3
    ds = both_ways(big, lambda e: {**e, "action": e["action"] * factor}, place)
    assert np.array_equal(ds.column("action"), rows(truth, "action") * 3)


def test_importing_imports_no_torch():
    code = "import sys, rlds_cli.preprocess; print([m for m in ('torch', 'zarr', 'h5py') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_attempt_writes_nothing_and_says_what_changes(small, home):
    before = sorted(home.rglob("*"))
    r = preprocess.attempt(small, functions.normalise, episode=1)
    assert sorted(home.rglob("*")) == before
    assert (r.id, r.episode, r.length, r.returned, r.linked) == ("local/small@normalise", 1, 8, (8,), True)
    by_name = {c.name: c for c in r.fields}
    raw = small.episode(1)["observation"]
    assert by_name["observation"].what == "changed" and by_name["observation"].before.shape == (9, 3)
    assert by_name["observation_raw"].what == "new" and by_name["action"].what == "untouched"
    assert by_name["observation"].bytes == 12 * small.num_rows and by_name["action"].bytes == 0
    assert r.total_bytes == 2 * 12 * small.num_rows
    whole = np.concatenate([raw, small.episode(1)["next", "observation"][-1:]])
    assert by_name["observation"].before.mean == pytest.approx(whole.mean())
    json.dumps(r.total_seconds)
    dropped = preprocess.attempt(small, lambda e: None, "none", episode=-1)
    assert dropped.returned == () and dropped.episode == 6
    by_step = preprocess.attempt(small, functions.normalise_step, episode=1)
    assert {c.name: (c.what, c.bytes) for c in by_step.fields} == {c.name: (c.what, c.bytes) for c in r.fields}


LATE_TORCH = """
import sys
import numpy as np
import rlds_cli
from rlds_cli.preprocess.calling import Caller, seed, undisturbed
from rlds_cli.preprocess.task import describe
ds = rlds_cli.create("local/late", [{"observation": np.zeros((4, 2)), "action": np.ones((3, 1))}])
task = describe(ds, "late.py:draws", None, unit=None, arrays="numpy", args={}, fields=None)
call, drawn = task.function.load(), []
assert "torch" not in sys.modules
for again in range(2):
    with undisturbed(task):
        seed(task, 5)
        numbers, threads = call({})
        drawn.append(numbers)
        assert threads == 1
    assert sys.modules["torch"].get_num_threads() == 2
assert drawn[0].equal(drawn[1]), drawn
"""


@pytest.mark.slow
@pytest.mark.parametrize("helper", [False, True], ids=["in the function", "in a module that it imports"])
def test_torch_draws_alike_also_where_the_function_imports_it_first(tmp_path, helper):
    own = "def draws(e):\n    import torch\n    return torch.rand(3), torch.get_num_threads()\n"
    (tmp_path / ("drawing.py" if helper else "late.py")).write_text(own)
    if helper:
        (tmp_path / "late.py").write_text("def draws(e):\n    import drawing\n    return drawing.draws(e)\n")
    path = os.pathsep.join([str(tmp_path), str(Path(rlds_cli.__file__).parents[1])])
    env = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", LATE_TORCH], check=True, env=env, cwd=tmp_path)


def test_an_episode_of_one_step_does_not_tell_how_long_the_whole_takes(tmp_path):
    ds = rlds_cli.create("local/tiny-first", trajectories([1, *[200] * 20]))

    def patient(ep):
        time.sleep(0.02)
        return ep

    r = preprocess.attempt(ds, patient)
    assert r.length == 1 and r.seconds >= 0.02
    assert r.total_seconds < 20  # 21 calls; 4,001 times the 20 ms of a single step would be 80 s
    assert preprocess.attempt(ds, patient, jobs=0).total_seconds > 40


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arrays", ["numpy", "torch", "tensordict"])
def test_a_filter_returns_a_bool(small, arrays):
    def long(episode):
        return len(episode["action"]) > 5

    def positive(episode):  # a bool of NumPy or torch
        return episode["next"]["reward"].sum() > 0

    kept = preprocess.run(small, long, "long", arrays=arrays)
    assert kept.episodes["length"].tolist() == [8, 9, 10, 6]
    totals = [ep["next"]["reward"].sum() for ep in trajectories([5, 8, 3, 9, 10, 1, 6])]
    expected = [k for k, total in enumerate(totals) if total > 0]
    assert 0 < len(expected) < 7
    kept = preprocess.run(small, positive, "positive", arrays=arrays)
    assert kept.column("info/number")[kept.episodes["start"]].tolist() == expected
    alone = [ep for k, ep in enumerate(trajectories([5, 8, 3, 9, 10, 1, 6])) if k in expected]
    assert kept.fingerprint == rlds_cli.create("local/expected", alone).fingerprint


@pytest.mark.parametrize("unit", ["batch", "step"])
def test_a_filter_of_steps_is_refused(small, unit):
    with pytest.raises(PreprocessError, match="a bool was returned") as e:
        preprocess.run(small, lambda data: True, "kept", unit=unit)
    assert "unit=episode" in e.value.hint
