"""Members of a mixture whose fields differ: names, sizes, kinds, scales."""

import itertools
import threading

import numpy as np
import pytest

import rlds_cli
from rlds_cli.errors import InvalidArgument, NoReward, UnknownField
from rlds_cli.loader import (
    Batch,
    Clip,
    Goals,
    Loader,
    Member,
    Mixture,
    Normalize,
    Offsets,
    ReturnToGo,
    Reward,
    Slice,
    Transition,
)

LENGTHS = (6, 4, 9)


def arrays(seed, action=2, rows=3):
    """Episodes of which every value is known."""
    rng = np.random.default_rng(seed)
    for length in LENGTHS:
        yield {
            "observation": rng.normal(seed, 2, (length + 1, rows)),
            "action": rng.standard_normal((length, action)).astype(np.float32),
            "next": {
                "reward": rng.standard_normal(length),
                "terminated": np.arange(length) == length - 1,
                "truncated": np.zeros(length, bool),
            },
        }


def robot(seed):
    """Other names: a nested observation, a count, text, and no reward but another measure."""
    rng = np.random.default_rng(seed)
    for e in arrays(seed, action=4):
        length = len(e["action"])
        yield {
            "observation": {"state": e["observation"], "depth": rng.integers(0, 255, (length + 1, 4, 4), np.uint8)},
            "action": e["action"],
            "info": {"count": np.arange(length, dtype=np.int32), "task": [f"task {t}" for t in range(length)]},
            "next": {**{k: v for k, v in e["next"].items() if k != "reward"}, "dense": e["next"]["reward"]},
        }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def one(home):
    return rlds_cli.create("local/one", arrays(0))


@pytest.fixture(scope="module")
def two(home):
    return rlds_cli.create("local/two", arrays(5, action=4))


@pytest.fixture(scope="module")
def arm(home):
    return rlds_cli.create("local/arm", robot(9))


KNOWN = {"one": list(arrays(0)), "two": list(arrays(5, action=4)), "arm": list(arrays(9, action=4))}
LACKING = {"rename": {"observation/state": "observation"}}
RENAMED = {"observation/state": "observation", "next/dense": "next/reward"}


def batches(mixture, n=6, size=8, **options):
    fields = [*options.pop("fields", [...]), "step", "episode"]
    loader = Loader(mixture, size, fields=fields, **{"backend": "numpy", "dtype": None, **options})
    return itertools.islice(loader, n)


def samples(mixture, names, n=6, **options):
    """Batch, place in it, and the member, episode and step that it is from."""
    for batch in batches(mixture, n, **options):
        columns = (batch[k].reshape(len(batch["source"]), -1)[:, 0].tolist() for k in ("source", "episode", "step"))
        for i, (m, e, t) in enumerate(zip(*columns, strict=True)):
            yield batch, i, KNOWN[names[m]][e], t, names[m]


# -- names


@pytest.mark.thorough
def test_renamed_fields_are_one_field(one, arm):
    mixture = Mixture({"one": one, "arm": Member(arm, rename=RENAMED)}, pad={"action": 4})
    for batch, i, known, t, _ in samples(mixture, ("one", "arm")):
        assert np.array_equal(batch["observation"][i], known["observation"][t])
        assert np.array_equal(batch["next/observation"][i], known["observation"][t + 1])
        assert batch["next/reward"].shape == (8, 1) and batch["next/reward"][i] == known["next"]["reward"][t]


def test_a_renamed_reward_is_summed_up(one, arm):
    mixture = Mixture({"one": one, "arm": Member(arm, rename=RENAMED)}, pad={"action": 4})
    for batch, i, known, t, _ in samples(mixture, ("one", "arm"), window=Transition(3, 0.5)):
        rewards = known["next"]["reward"][t : t + 3]
        assert np.isclose(batch["next/reward"][i, 0], sum(0.5**j * r for j, r in enumerate(rewards)))


def test_a_prefix_renames_what_is_below(arm):
    mixture = Mixture({"arm": Member(arm, rename={"observation": "obs", "info": "facts"})})
    batch = next(batches(mixture, fields=("obs", "next/obs", "facts/count")))
    assert {"obs/state", "obs/depth", "next/obs/state", "next/obs/depth", "facts/count"} < set(batch.names())
    with pytest.raises(UnknownField, match='Mixture, arm: no field "observation"'):
        next(batches(mixture, fields=("observation",)))


@pytest.mark.parametrize(
    ("rename", "error", "says"),
    [
        ({"observation/stat": "x"}, UnknownField, 'no field "observation/stat".*Did you mean "observation/state"'),
        ({"action": "observation/state"}, InvalidArgument, '"action" and "observation/state" of local/arm would both'),
        ({"observation/state": "observation/depth"}, InvalidArgument, "would both be"),
        ({"info/count": "next/reward"}, InvalidArgument, 'outcomes of actions stand under "next/"'),
        ({"action": "mask"}, InvalidArgument, "a mixture adds itself"),
        ({"action": "source/action"}, InvalidArgument, "a mixture adds itself"),
    ],
)
def test_names_that_cannot_be(arm, rename, error, says):
    with pytest.raises(error, match=says):
        Loader(Mixture({"arm": Member(arm, rename=rename)}), 4)


def test_names_may_be_swapped(arm):
    swap = {"observation/state": "observation/depth", "observation/depth": "observation/state"}
    batch = next(batches(Mixture({"arm": Member(arm, rename=swap)})))
    assert batch["observation/state"].dtype == np.uint8 and batch["observation/depth"].shape == (8, 3)


def test_one_field_here_and_several_there(one, arm):
    with pytest.raises(InvalidArgument, match='"observation" is one field in one and several in another') as e:
        Loader(Mixture({"one": one, "arm": arm}, missing="zero", pad={"action": 4}), 4)
    assert "rename=" in str(e.value)


# -- sizes


def test_sizes_that_differ_name_the_way_out(one, two):
    with pytest.raises(InvalidArgument) as e:
        Loader(Mixture({"bridge": one, "aloha": two}), 4)
    assert str(e.value) == (
        'Mixture: "action" is [2] in bridge and [4] in aloha.\n  hint: pad={"action": 4} adds batch["mask", "action"]'
    )
    with pytest.raises(InvalidArgument, match=r"pad=3 is less"):
        Loader(Mixture({"bridge": one, "aloha": two}, pad={"action": 3}), 4)


def test_padding(one, two):
    mixture = Mixture({"one": one, "two": two}, pad={"action": 5})
    for batch, i, known, t, _ in samples(mixture, ("one", "two"), fields=[..., "next/action"]):
        size = known["action"].shape[1]
        assert batch["action"].shape == batch["mask", "action"].shape == (8, 5) and batch["action"].dtype == np.float32
        assert batch["mask", "action"].dtype == bool
        assert batch["action"][i].tolist() == [*known["action"][t].tolist(), *[0.0] * (5 - size)]
        assert batch["mask", "action"][i].tolist() == [j < size for j in range(5)]
        after = known["action"][t + 1].tolist() if t + 1 < len(known["action"]) else [0.0] * size
        assert batch["next/action"][i].tolist() == [*after, *[0.0] * (5 - size)]
        assert batch["mask", "next", "action"][i].tolist() == [j < size for j in range(5)]


@pytest.mark.thorough
@pytest.mark.parametrize("fill", ["edge", "zero"])
def test_padding_of_slices(one, two, fill):
    mixture = Mixture({"one": one, "two": two}, pad={"action": 4})
    for batch, i, known, t, _ in samples(mixture, ("one", "two"), window=Slice(5, after=4, fill=fill)):
        length, size = known["action"].shape
        inside = np.arange(t, t + 5) < length
        assert batch["mask", "step"].shape == (8, 5) and batch["mask", "step"][i].tolist() == inside.tolist()
        assert batch["mask", "action"].shape == (8, 5, 4)
        assert np.array_equal(batch["mask", "action"][i], inside[:, None] & (np.arange(4) < size))
        real = batch["action"][i][batch["mask", "action"][i]]
        assert np.array_equal(real, known["action"][t : t + 5].reshape(-1))
        assert not batch["action"][i, :, size:].any()
        assert fill == "edge" or not batch["action"][i][~inside].any()


def test_padding_of_offsets(one, two):
    window = Offsets({"action": (-1, 0, 1)})
    for batch, i, known, t, _ in samples(
        Mixture({"one": one, "two": two}, pad={"action": 4}), ("one", "two"), window=window
    ):
        length, size = known["action"].shape
        inside = np.array([t > 0, True, t + 1 < length])
        assert batch["action"].shape == batch["mask", "action"].shape == (8, 3, 4)
        assert np.array_equal(batch["mask", "action"][i], inside[:, None] & (np.arange(4) < size))
        assert np.array_equal(batch["action"][i, 1, :size], known["action"][t])


@pytest.mark.thorough
def test_padding_below_a_name_with_offsets(arm, home):
    def narrow():
        for e in robot(9):
            yield {**e, "observation": {**e["observation"], "state": e["observation"]["state"][:, :2]}}

    other = rlds_cli.create("local/narrow", narrow())
    mixture = Mixture({"arm": arm, "other": other}, pad={"observation/state": 3})
    batch = next(batches(mixture, window=Offsets({"observation": (-1, 0)}), fields=("observation", "action")))
    assert batch["mask", "observation", "step"].shape == (8, 2)
    assert batch["mask", "observation", "state"].shape == batch["observation/state"].shape == (8, 2, 3)
    assert batch["observation/depth"].shape == (8, 2, 4, 4) and "depth" not in batch["mask", "observation"]


def test_padding_where_it_means_nothing(one, two, arm):
    assert "mask" in next(batches(Mixture({"one": one}, pad={"action": 3})))
    assert "mask" not in next(batches(Mixture({"one": one, "two": two}, pad={"action": 4}), fields=("observation",)))
    with pytest.raises(InvalidArgument, match=r'pad."observation".: that is observation/depth, observation/state'):
        Loader(Mixture({"arm": arm}, pad={"observation": 3}), 4)
    with pytest.raises(UnknownField, match=r'pad: no field "acton" in one, two. Did you mean "action"'):
        Loader(Mixture({"one": one, "two": two}, pad={"acton": 4}), 4)


def test_other_shapes_cannot_be_padded(one, arm):
    flat = Member(arm, rename={"observation/depth": "picture"})
    pictures = ({**e, "picture": np.zeros((len(e["action"]), 5, 4), np.uint8)} for e in arrays(1))
    square = rlds_cli.create("local/square", pictures)
    with pytest.raises(InvalidArgument, match=r'"picture" is \[4, 4\] in a and \[5, 4\] in b') as e:
        Loader(Mixture({"a": flat, "b": square}), 4, fields=("picture",))
    assert "transform" in str(e.value)


# -- fields that are not there


def test_a_field_that_a_member_lacks(one, arm):
    with pytest.raises(UnknownField) as e:
        Loader(Mixture({"one": one, "arm": Member(arm, **LACKING)}, pad={"action": 4}), 4)
    assert 'Mixture: "next/reward" is in one and not in arm.' in str(e.value) and 'missing="zero"' in str(e.value)
    with pytest.raises(UnknownField, match='Mixture, one: no field "observation/depth" in local/one'):
        Loader(Mixture({"one": one, "arm": arm}), 4, fields=("observation/depth",))
    with pytest.raises(NoReward, match="Mixture, arm: local/arm has no reward"):
        Loader(Mixture({"one": one, "arm": arm}, missing="zero"), 4, window=Transition(3))
    with pytest.raises(UnknownField, match='no field "nothing"'):
        Loader(Mixture({"one": one, "arm": arm}, missing="zero"), 4, fields=("action", "nothing"))


def test_zeros_where_a_field_is_not(one, arm):
    mixture = Mixture({"one": one, "arm": Member(arm, **LACKING)}, pad={"action": 4}, missing="zero")
    extra = ("info/count", "info/task", "observation/depth")
    with pytest.raises(InvalidArgument, match="one field in"):
        next(batches(mixture, fields=[..., *extra]))
    seen = set()
    for batch, i, known, t, name in samples(
        mixture, ("one", "arm"), fields=[..., *extra[:2]], transform=Reward(shift=7.0)
    ):
        assert batch["mask", "next", "reward"].shape == (8,) and batch["mask", "info", "count"].dtype == bool
        assert batch["mask", "next", "reward"][i] == (name == "one")
        assert batch["mask", "info", "count"][i] == batch["mask", "info", "task"][i] == (name == "arm")
        assert batch["next/reward"][i, 0] == (known["next"]["reward"][t] + 7 if name == "one" else 0)
        assert batch["info/count"][i] == (t if name == "arm" else 0) and batch["info/count"].dtype == np.int32
        assert batch["info/task"][i] == (f"task {t}" if name == "arm" else None)
        assert "observation" not in batch["mask"]
        seen.add(name)
    assert len(seen) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("fill", ["edge", "zero"])
def test_zeros_in_slices(one, arm, fill):
    mixture = Mixture({"one": one, "arm": Member(arm, **LACKING)}, pad={"action": 4}, missing="zero")
    window = Slice(5, before=4, fill=fill)
    for batch, i, _, _, name in samples(mixture, ("one", "arm"), window=window, transform=Reward(shift=7.0)):
        mask = batch["mask", "step"][i]
        assert np.array_equal(batch["mask", "next", "reward"][i], mask & (name == "one"))
        if name == "arm":
            assert not batch["next/reward"][i].any()
        elif fill == "zero":
            assert not batch["next/reward"][i][~mask].any() and batch["next/reward"][i][mask].all()


def test_zeros_at_offsets(one, arm):
    mixture = Mixture({"one": one, "arm": Member(arm, **LACKING)}, pad={"action": 4}, missing="zero")
    window = Offsets({"info/count": (-1, 0)})
    for batch, i, _, t, name in samples(mixture, ("one", "arm"), window=window, fields=[..., "info/count"]):
        assert batch["info/count"].shape == batch["mask", "info", "count"].shape == (8, 2)
        assert batch["mask", "info", "count"][i].tolist() == [name == "arm" and t > 0, name == "arm"]
        assert batch["info/count"][i, 1] == (t if name == "arm" else 0)


# -- kinds


def test_kinds_that_differ(one, home):
    def kinds(action, text):
        for e in arrays(3):
            words = ["x"] * len(e["action"]) if text else np.zeros(len(e["action"]), np.int64)
            yield {**e, "action": e["action"].astype(action), "info": {"w": words}}

    ints = rlds_cli.create("local/ints", kinds(np.int32, False))
    shorts = rlds_cli.create("local/shorts", kinds(np.int16, True))
    dtypes = {
        (ints, shorts, None): np.int32,
        (one, ints, None): np.float64,  # NumPy's common kind of float32 and int32
        (one, ints, "float32"): np.float32,
        (one, shorts, None): np.float32,
    }
    for (a, b, dtype), common in dtypes.items():
        batch = next(batches(Mixture({"a": a, "b": b}), dtype=dtype))
        assert batch["action"].dtype == common
    with pytest.raises(InvalidArgument, match=r'"info/w" is int64 in a and text in b'):
        Loader(Mixture({"a": ints, "b": shorts}), 4, fields=[..., "info/w"])


def test_text(arm, one):
    mixture = Mixture({"a": arm, "b": Member(arm, rename={"info/task": "info/task"})})
    for batch in batches(mixture, fields=[..., "info/task"], backend="torch"):
        assert batch["info/task"].tolist() == [f"task {t}" for t in batch["step"].tolist()]


# -- transforms


def test_statistics_of_each(one, two):
    members = {name: Member(ds, transform=Normalize(ds, eps=0)) for name, ds in (("one", one), ("two", two))}
    every = {name: np.concatenate([e["observation"][:-1] for e in KNOWN[name]]) for name in members}
    mixture = Mixture(members, pad={"action": 4})
    for batch, i, known, t, name in samples(mixture, ("one", "two")):
        mean, std = every[name].mean(0), every[name].std(0)
        assert np.allclose(batch["observation"][i], (known["observation"][t] - mean) / std)
        assert np.allclose(batch["next/observation"][i], (known["observation"][t + 1] - mean) / std)


def test_either_name_will_do(arm):
    every = np.concatenate([e["observation"][:-1] for e in KNOWN["arm"]])
    transforms = [Normalize(arm, ["observation/state"], eps=0), Reward(2.0), Clip("observation", 0.5)]
    mixture = Mixture({"arm": Member(arm, rename=RENAMED, transform=transforms)})
    for batch, i, known, t, _ in samples(mixture, ("arm",)):
        expected = ((known["observation"][t] - every.mean(0)) / every.std(0)).clip(-0.5, 0.5)
        assert np.allclose(batch["observation"][i], expected)
        assert batch["next/reward"][i] == 2 * known["next"]["reward"][t]
    with pytest.raises(UnknownField, match=r"Mixture, arm: .*touches none"):
        Loader(Mixture({"arm": Member(arm, transform=Clip("state", 2.0))}), 4, fields=("action",))


def test_each_reward_before_it_is_summed_up(one, two):
    members = {"one": Member(one, transform=Reward(shift=1.0)), "two": two}
    mixture = Mixture(members, pad={"action": 4})
    options = {"window": Transition(3, 0.5), "transform": Reward(scale=10.0)}
    for batch, i, known, t, name in samples(mixture, ("one", "two"), **options):
        rewards = 10 * (known["next"]["reward"][t : t + 3] + (name == "one"))
        assert np.isclose(batch["next/reward"][i, 0], sum(0.5**j * r for j, r in enumerate(rewards)))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_functions_get_batches_of_one_member(one, two, backend):
    kinds = set()

    def double(batch):
        kinds.add(type(batch["action"]).__module__)
        batch["action"] *= 2
        batch["double"] = batch["action"][:, :1] * 0 + 1

    def cut(batch):
        return Batch.nest({**dict(batch.leaves()), "action": batch["action"][:, :2]})

    members = {"one": Member(one, transform=double), "two": Member(two, transform=[cut, Reward(3.0)])}
    for batch in batches(Mixture(members, missing="zero"), backend=backend):
        kind = type(batch["action"])
        assert batch["action"].shape == (8, 2) and type(batch["double"]) is kind
        flat = batch.numpy()
        for i, (m, e, t) in enumerate(zip(flat["source"], flat["episode"], flat["step"], strict=True)):
            known = KNOWN[("one", "two")[m]][e]
            assert np.array_equal(flat["action"][i], known["action"][t] * 2 if m == 0 else known["action"][t, :2])
            assert flat["double"][i] == (m == 0) == flat["mask", "double"][i]
            assert flat["next/reward"][i] == known["next"]["reward"][t] * (1 if m == 0 else 3)
    assert kinds == {backend}


def test_functions_see_zeros_where_fill_is_zero(one):
    seen = []
    member = Member(one, transform=lambda b: seen.append((b["mask"].copy(), b["action"].copy())))
    list(batches(Mixture({"one": member}), window=Slice(4, after=3, fill="zero")))
    assert all(not action[~mask].any() for mask, action in seen) and any(not mask.all() for mask, _ in seen)


def test_functions_of_members_run_where_reading_does(one):
    threads = set()
    member = Member(one, transform=lambda b: threads.add(threading.current_thread().name))
    list(batches(Mixture({"one": member}), prefetch=2))
    assert any(name.startswith("rlds-loader") for name in threads)


# -- columns computed for the sample


def test_returns_and_goals(one, two):
    mixture = Mixture({"one": one, "two": two}, pad={"action": 4})
    extra = (ReturnToGo(), Goals("goal", horizon="final"))
    for batch, i, known, t, _ in samples(mixture, ("one", "two"), fields=[..., *extra]):
        assert np.isclose(batch["return_to_go"][i, 0], known["next"]["reward"][t:].sum())
        assert np.array_equal(batch["goal"][i], known["observation"][-1])
        assert batch["goal_distance"][i, 0] == len(known["action"]) - t


@pytest.mark.thorough
def test_unknown_final_observations_are_told_of_all(one, home):
    def open_ended():
        for e in arrays(0):
            last = np.arange(len(e["action"])) == len(e["action"]) - 1
            ended = {"reward": e["next"]["reward"], "terminated": ~last & last, "truncated": last}
            yield {**e, "observation": e["observation"][:-1], "next": ended}

    mixture = Mixture({"one": one, "cut": rlds_cli.create("local/cut", open_ended())})
    for batch, i, known, t, name in samples(mixture, ("one", "one"), window=Slice(3), size=4):
        assert name == "one"
        expected = [batch["source"][i, 0] == 0 or s + 1 < len(known["action"]) for s in range(t, t + 3)]
        assert batch["next/observed"][i, :, 0].tolist() == expected


def test_tensordict(one, two):
    pytest.importorskip("tensordict")
    mixture = Mixture({"one": one, "two": two}, pad={"action": 4})
    assert next(iter(Loader(mixture, 6))).tensordict().batch_size == (6,)
    td = next(iter(Loader(mixture, 6, window=Slice(3, after=2)))).tensordict()
    assert td.batch_size == (6, 3) and td["mask", "action"].shape == (6, 3, 4)


@pytest.mark.thorough
def test_memory_is_contiguous_writable_and_not_shared(one, two):
    mixture = Mixture({"one": one, "two": two}, pad={"action": 4})
    for options in ({}, {"window": Slice(3, after=2)}, {"window": Transition(2)}, {"size": 1}):
        kept = list(batches(mixture, 30, **options))
        leaves = [x for b in kept for _, x in b.leaves()]
        assert all(x.flags.c_contiguous and x.flags.writeable for x in leaves)
        before = [x.copy() for x in leaves]
        for x in leaves:
            x[...] = 0
            assert not x.any()
        for x, old in zip(leaves, before, strict=True):
            x[...] = old
        assert all(np.array_equal(x, old) for x, old in zip(leaves, before, strict=True))
