"""The built-in functions that choose: episodes, fields, other names, several fields as one."""

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.errors import InvalidArgument, InvalidExpression, PreprocessError, RldsError, UnknownField
from rlds_cli.keep.verification import verify
from rlds_cli.loader import Loader

LENGTHS = [4, 7, 2, 9, 5, 3, 8, 6, 1, 10]
REWARDS = [1.0, -1.0, 3.0, 0.5, 2.0, 2.0, 0.0, -0.5, 9.0, 1.5]  # of every step


def trajectories():
    rng = np.random.default_rng(3)
    for i, (t, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        yield {
            "observation": {
                "position": rng.standard_normal((t + 1, 2)).astype(np.float32),
                "speed": rng.standard_normal(t + 1),
                "word": [f"w{i}" if k % 2 else None for k in range(t + 1)],
            },
            "action": rng.standard_normal((t, 2)),
            "next": {"reward": np.full(t, reward), "terminated": i % 2 == 0, "cost": np.arange(t)},
            "info": {"number": np.full(t, i), "torque": rng.standard_normal((t, 1))},
        }


@pytest.fixture
def truth():
    return list(trajectories())


@pytest.fixture
def ds(truth):
    return rlds_cli.create("local/choice", truth)


# -- episodes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("where", "want"),
    [
        ("length >= 7", [1, 3, 6, 9]),
        ("total_reward > 8 and length < 10", [4, 8]),
        ("end == 'terminated' or length == 10", [0, 2, 4, 6, 8, 9]),
        pytest.param("length > 0", list(range(10)), marks=pytest.mark.filterwarnings("ignore:.*selects all")),
    ],
)
def test_episodes_are_selected_by_their_columns(ds, truth, where, want):
    made = preprocess.run(ds, "select_episodes", "some", args={"where": where})
    assert made.episodes["row"].tolist() == want
    assert made.episodes["length"].tolist() == [LENGTHS[k] for k in want]
    for k, source in enumerate(want):
        e, got = truth[source], made.episode(k)
        assert np.array_equal(got["observation/position"], e["observation"]["position"][:-1])
        assert got["next/observation/word"].tolist() == e["observation"]["word"][1:]
        assert np.array_equal(got["next/cost"], e["next"]["cost"])
    step = made.manifest.provenance[-1]
    assert step["args"] == {"where": where} and step["from"] == "local/choice"
    assert (set(made.manifest.shared) == set(ds.schema)) == (len(want) == 10)


def test_episodes_of_a_split(ds, truth):
    split = rlds_cli.create("local/split", truth)
    with pytest.raises(RldsError, match='has no split "train"'):
        preprocess.run(split, "select_episodes", args={"split": "train"})
    with pytest.warns(UserWarning, match="selects all of the 10 episodes") as told:
        preprocess.run(ds, "select_episodes", "all", args={"where": "length > 0"}, jobs=2)
    assert len(told) == 1
    for args, kind, what in (
        ({}, InvalidArgument, "needs where or split"),
        ({"where": "length > 10"}, InvalidArgument, "none of the 10 episodes"),
        ({"where": "size > 10"}, InvalidExpression, 'no episode column "size"'),
        ({"where": "__import__('os')"}, InvalidExpression, "not allowed"),
    ):
        with pytest.raises(kind, match=what):
            preprocess.run(ds, "select_episodes", args=args)


def test_the_same_name_for_another_choice_is_refused(ds):
    preprocess.run(ds, "select_episodes", "long", args={"where": "length > 5"})
    with pytest.raises(rlds_cli.errors.NameTaken, match="args was"):
        preprocess.run(ds, "select_episodes", "long", args={"where": "length > 6"})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("args", "want"),
    [
        ({"percent": 20}, [4, 9]),  # returns 4 -7 6 4.5 10 6 0 -3 9 15
        ({"percent": 25}, [4, 9]),
        ({"percent": 5}, [9]),
        ({"percent": 50}, [2, 4, 5, 8, 9]),
        ({"percent": 100}, list(range(10))),
        ({"percent": 40}, [2, 4, 8, 9]),  # 2 and 5 have the same return: the earlier
        ({"percent": 30, "of": "steps"}, [4, 8, 9]),  # 10, 15 and 16 of 55 steps
        ({"percent": 29, "of": "steps"}, [4, 9]),
        ({"percent": 20, "by": "length"}, [3, 9]),
    ],
)
def test_the_best_episodes_by_return(ds, args, want):
    made = preprocess.run(ds, "top_episodes", "best", args=args)
    assert made.episodes["row"].tolist() == want


@pytest.mark.parametrize(
    ("args", "kind", "what"),
    [
        ({"percent": 0}, InvalidArgument, "percent=0"),
        ({"percent": 101}, InvalidArgument, "percent=101"),
        ({"of": "rows"}, InvalidArgument, 'neither "episodes" nor "steps"'),
        ({"by": "end"}, InvalidArgument, "is text"),
        ({"by": "returns"}, UnknownField, 'no episode column "returns"'),
    ],
)
def test_shares_that_cannot_be(ds, args, kind, what):
    with pytest.raises(kind, match=what):
        preprocess.run(ds, "top_episodes", args=args)


# -- fields


@pytest.mark.thorough
@pytest.mark.parametrize(
    "args",
    [
        {"fields": "observation/position,action,next/reward"},
        {"drop": ["observation/speed", "observation/word", "info", "next/cost"]},
    ],
)
def test_fields_stay_or_go_and_nothing_is_copied(ds, args):
    made = preprocess.run(ds, "select_fields", args=args)
    kept = {"observation/position", "action", "next/reward", "next/terminated", "next/truncated"}
    assert set(made.schema) == kept and set(made.manifest.shared) == kept
    assert (made.path / "action/c/0/0").samefile(ds.path / "action/c/0/0")
    assert made.manifest.provenance[-1]["changed"] == sorted(set(ds.schema) - kept)
    assert verify("local/choice@select_fields").ok


@pytest.mark.thorough
def test_fields_of_some_episodes_are_copied(ds, truth):
    made = preprocess.run(ds.select(episodes=[3, 1]), "select_fields", args={"fields": "observation"})
    assert set(made.schema) == {f"observation/{n}" for n in ("position", "speed", "word")} | {
        "next/terminated", "next/truncated",
    }  # fmt: skip
    assert np.array_equal(made.episode(0)["observation/speed"][:, 0], truth[3]["observation"]["speed"][:-1])
    assert made.episode(1)["observation/word"].tolist() == truth[1]["observation"]["word"][:-1]


@pytest.mark.thorough
def test_fields_get_other_names_and_nothing_is_copied(ds, truth):
    names = "info=state,observation/word=instruction,observation/position=observation/place,next/cost=next/price"
    made = preprocess.run(ds, "rename_fields", args={"names": names})
    assert set(made.schema) == {
        "action", "instruction", "next/price", "next/reward", "next/terminated", "next/truncated",
        "observation/place", "observation/speed", "state/number", "state/torque",
    }  # fmt: skip
    e, got = truth[4], made.episode(4)
    assert np.array_equal(got["next/observation/place"], e["observation"]["position"][1:])
    assert got["instruction"].tolist() == e["observation"]["word"][:-1]
    assert np.array_equal(got["state/torque"], e["info"]["torque"])
    assert np.array_equal(got["next/price"], e["next"]["cost"])
    assert set(made.manifest.shared) == set(made.schema)
    assert (made.path / "state/number/c/0").samefile(ds.path / "info/number/c/0")
    changed = {"info/number", "info/torque", "next/cost", "observation/position", "observation/word"}
    assert changed < set(made.manifest.provenance[-1]["changed"])
    assert verify("local/choice@rename_fields").ok


@pytest.mark.thorough
def test_renamed_fields_have_the_fingerprint_of_fields_created_so(ds, truth):
    made = preprocess.run(ds, "rename_fields", args={"names": {"info/number": "episode_number"}})
    for e in truth:
        e["episode_number"] = e["info"].pop("number")
    assert made.fingerprint == rlds_cli.create("local/other", truth).fingerprint
    some = preprocess.run(ds.select(where="length > 4"), "rename_fields", "some", args={"names": {"info": "state"}})
    assert np.array_equal(some.episode(0)["state/torque"], truth[1]["info"]["torque"])


def test_two_fields_may_change_names(ds, truth):
    names = {"action": "info/number", "info/number": "action"}
    made = preprocess.run(ds, "rename_fields", args={"names": names})
    assert np.array_equal(made.episode(2)["action"], truth[2]["info"]["number"])
    assert np.array_equal(made.episode(2)["info/number"], truth[2]["action"])


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("fn", "args", "kind", "what"),
    [
        ("select_fields", {}, InvalidArgument, "either fields, to keep, or drop"),
        ("select_fields", {"fields": "action", "drop": "info"}, InvalidArgument, "either fields"),
        ("select_fields", {"drop": "next/terminated"}, InvalidArgument, "next/terminated cannot be dropped"),
        ("select_fields", {"fields": "actions"}, UnknownField, 'Did you mean "action"'),
        ("rename_fields", {"names": {"actions": "a"}}, UnknownField, 'Did you mean "action"'),
        ("rename_fields", {"names": "action"}, InvalidArgument, "names='action'"),
        ("rename_fields", {"names": {}}, InvalidArgument, "names={}"),
        ("rename_fields", {"names": "action=info/number"}, InvalidArgument, "called info/number and info/number"),
        ("rename_fields", {"names": "action=info/Number"}, InvalidArgument, "info/number and info/Number|Number and "),
        ("rename_fields", {"names": "action=info"}, InvalidArgument, "info would be both a field and a group that"),
        ("rename_fields", {"names": "action=next/action"}, InvalidArgument, "action cannot become next/action"),
        ("rename_fields", {"names": "next/cost=cost"}, InvalidArgument, "next/cost cannot become cost"),
        ("rename_fields", {"names": "next/terminated=next/over"}, InvalidArgument, "is a flag, whose name is fixed"),
        ("concatenate", {"fields": "action,observation/speed"}, InvalidArgument, "cannot become observation"),
        ("concatenate", {"fields": "observation/word"}, InvalidArgument, "observation/word is text"),
        ("concatenate", {"fields": "next/cost"}, InvalidArgument, "cannot become observation"),
        ("concatenate", {"fields": "info/number,info/torque", "into": "action"}, InvalidArgument, "a field action"),
    ],
)
def test_what_cannot_be_chosen(ds, fn, args, kind, what):
    with pytest.raises(kind, match=what):
        preprocess.run(ds, fn, args=args)


# -- several as one


def test_vectors_are_joined_in_the_order_given(ds, truth):
    plain = preprocess.run(ds, "select_fields", "plain", args={"drop": "observation/word"})
    made = preprocess.run(plain, "concatenate", args={"fields": "observation/speed,observation/position"})
    want = [np.concatenate([o["speed"][:, None], o["position"]], -1) for o in (e["observation"] for e in truth)]
    assert np.array_equal(made.column("observation"), np.concatenate(want))
    assert {n for n in made.schema if n.startswith("observation")} == {"observation"}
    assert (made.schema["observation"].placement, made.schema["observation"].dtype) == ("both", "float64")
    assert "action" in made.manifest.shared and len(made.manifest.provenance) == 2
    with pytest.raises(PreprocessError, match="observation was returned, but the source has observation/word"):
        preprocess.run(ds, "concatenate", "all", args={"fields": "observation/speed,observation/position"})


@pytest.mark.thorough
def test_what_is_joined_may_stay(ds, truth):
    args = {"fields": ["info/torque", "info/number"], "into": "info/both", "keep": True}
    made = preprocess.run(ds, "concatenate", args=args)
    e = truth[3]["info"]
    assert np.array_equal(made.episode(3)["info/both"], np.concatenate([e["torque"], e["number"][:, None]], -1))
    assert {"info/torque", "info/number"} <= set(made.manifest.shared)
    other = preprocess.run(ds, "concatenate", "next", args={"fields": "next/cost,next/reward", "into": "next/two"})
    assert np.array_equal(other.episode(3)["next/two"][:, 0], truth[3]["next"]["cost"])
    assert "next/cost" not in other.schema


@pytest.fixture
def bodies():
    """Fields in groups, of which some are recorded with the final observation."""
    rng = np.random.default_rng(0)
    made = {
        "observation": {
            "arm": {f"joint{k}": np.full((5, 1), k, np.float32) for k in (10, 9, 1)},
            "base": rng.standard_normal((5, 2)).astype(np.float32),
        },
        "action": rng.standard_normal((4, 2)),
        "info": {"energy": rng.standard_normal(5), "power": rng.standard_normal(4)},
        "next": {"terminated": True, "cost": np.arange(4.0)},
    }
    return rlds_cli.create("local/bodies", [made])


@pytest.mark.thorough
def test_a_group_is_concatenated_in_the_order_of_its_names(bodies):
    made = preprocess.run(
        bodies, "concatenate", "flat", args={"fields": "observation/arm,observation/base", "keep": True, "into": "flat"}
    )
    assert made.schema["flat"].shape == (5,) and made.schema["flat"].placement == "both"
    assert made.column("flat")[0, :3].tolist() == [1, 9, 10]
    assert np.array_equal(made.column("flat")[:, 3:], bodies.column("observation/base"))
    whole = preprocess.run(bodies, "concatenate", "whole", args={"fields": ["observation"]})
    assert np.array_equal(whole.column("observation"), made.column("flat")) and "observation/base" not in whole.schema


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "fields",
    [
        "observation",
        ["observation/arm"],
        [("observation", "base")],
        ["next/info"],
        ["next/observation/arm"],
        ["info", "action"],
    ],
)
def test_names_stand_for_the_same_in_preprocess_and_in_a_loader(bodies, fields):
    """A function sees each field once: ``next/x`` of a loader is the ``x`` of the row after."""
    seen = set()

    def look(episode):
        seen.update(episode.names())
        return episode

    preprocess.attempt(bodies, look, fields=fields)
    read = Loader(bodies, 1, fields=fields, backend="numpy").fields
    expected = {n if n in bodies.schema else n.removeprefix("next/") for n in read}
    assert seen - {"next/terminated", "next/truncated"} == expected
