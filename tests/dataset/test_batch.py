import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from rlds_cli.dataset.batch import Batch
from rlds_cli.errors import NoReward, UnknownField


@pytest.fixture
def flat():
    return {
        "observation": np.arange(6, dtype=np.float32).reshape(2, 3),
        "action": np.array([[1.0], [2.0]], np.float32),
        "next/observation": np.arange(6, 12, dtype=np.float32).reshape(2, 3),
        "next/reward": np.array([[0.5], [-1.0]], np.float32),
        "next/terminated": np.array([[False], [True]]),
        "next/truncated": np.array([[True], [False]]),
    }


def test_the_three_ways_to_name_a_nested_field_are_one(flat):
    batch = Batch.nest(flat)
    assert batch["next", "reward"] is batch["next"]["reward"] is batch["next/reward"] is flat["next/reward"]
    assert ("next", "reward") in batch and "next/reward" in batch and "next" in batch and "observation" in batch
    assert "reward" not in batch and ("next", "rewards") not in batch and ("action", "x") not in batch
    assert 3 not in batch
    assert batch.names() == list(flat)
    assert batch.get(("next", "nothing"), 7) == 7 and batch.get("action") is flat["action"]


def test_set_and_delete_reach_into_nested_fields(flat):
    batch = Batch.nest(flat)
    batch["next", "goal"] = 1
    batch["a/b/c"] = 2
    assert batch["next"]["goal"] == 1 and batch["a"]["b"]["c"] == 2 and isinstance(batch["a"], Batch)
    del batch["next", "goal"]
    del batch["a"]
    assert batch.names() == list(flat)


def test_parts_of_a_tuple_may_be_names_with_slashes():
    batch = Batch.nest({"observation/images/top": np.zeros(2), "next/observation/images/top": np.ones(2)})
    camera = "observation/images/top"
    assert batch["next", camera] is batch["next/observation/images/top"] and ("next", camera) in batch
    batch["next", camera] = np.full(2, 5.0)
    assert batch.names() == [camera, f"next/{camera}"], "no second field of the same name"
    assert batch["next"]["observation"]["images"]["top"].tolist() == [5.0, 5.0]
    del batch["next", camera]
    assert batch.names() == [camera] and () not in batch


def test_an_unknown_field_is_a_key_error_that_lists_the_fields(flat):
    batch = Batch.nest(flat)
    for key in ("reward", ("next", "rewards"), "action/x"):
        with pytest.raises(UnknownField, match="next/reward") as e:
            batch[key]
        assert isinstance(e.value, KeyError)


def test_sarsd_gives_terminated_not_done_as_float(flat):
    s, a, r, s2, d = Batch.nest(flat).sarsd()
    assert (
        s is flat["observation"] and a is flat["action"] and r is flat["next/reward"] and s2 is flat["next/observation"]
    )
    assert d.dtype == np.float32 and d.tolist() == [[0.0], [1.0]]


def test_sarsd_of_tensors_has_the_dtype_of_rewards(flat):
    torch = pytest.importorskip("torch")
    batch = Batch.nest(flat).to("cpu")
    batch["next", "reward"] = batch["next", "reward"].double()
    d = batch.sarsd()[4]
    assert d.dtype == torch.float64 and d.tolist() == [[0.0], [1.0]]


def test_sarsd_without_reward_or_next_observation_says_so(flat):
    del flat["next/reward"]
    with pytest.raises(NoReward, match="next/reward"):
        Batch.nest(flat).sarsd()
    flat["next/reward"] = np.zeros((2, 1))
    del flat["next/observation"]
    with pytest.raises(UnknownField, match="next/observation"):
        Batch.nest(flat).sarsd()


def test_clone_owns_its_memory_and_copy_does_not(flat):
    batch = Batch.nest(flat)
    cloned, copied = batch.clone(), batch.copy()
    assert isinstance(cloned["next"], Batch) and isinstance(copied["next"], Batch)
    assert not np.shares_memory(cloned["next", "reward"], flat["next/reward"])
    assert copied["next", "reward"] is flat["next/reward"]
    copied["next", "reward"] = 0
    assert batch["next", "reward"] is flat["next/reward"]


def test_to_and_numpy_are_inverse_and_leave_text_alone(flat):
    torch = pytest.importorskip("torch")
    text = np.array(["go", None], object)
    batch = Batch.nest(flat | {"mission": text})
    tensors = batch.to("cpu")
    assert tensors["mission"] is text
    assert isinstance(tensors["next", "terminated"], torch.Tensor) and tensors["next", "terminated"].dtype == torch.bool
    for (name, x), (_, y) in zip(batch.leaves(), tensors.numpy().leaves(), strict=True):
        assert x.dtype == y.dtype and np.array_equal(x, y), name
    assert Batch(x=torch.ones(2, dtype=torch.bfloat16)).numpy()["x"].dtype == np.float32


def test_tensordict_adds_false_root_flags_and_text(flat):
    torch = pytest.importorskip("torch")
    td = Batch.nest(flat | {"mission": np.array(["go", None], object)}).tensordict()
    assert td.batch_size == torch.Size([2])
    for flag in ("done", "terminated", "truncated"):
        assert td[flag].shape == (2, 1) and td[flag].dtype == torch.bool and not td[flag].any()
    assert td["next", "terminated"].tolist() == [[False], [True]]
    assert td[0]["mission"] == "go" and td[1]["mission"] is None


def test_tensordict_of_slices_has_two_batch_dimensions():
    torch = pytest.importorskip("torch")
    batch = Batch.nest(
        {
            "observation": np.zeros((2, 5, 3), np.float32),
            "mission": np.full((2, 5), "go", object),
            "mask": np.ones((2, 5), bool),
            "next/reward": np.zeros((2, 5, 1), np.float32),
        }
    )
    td = batch.tensordict()
    assert td.batch_size == torch.Size([2, 5]) and td["done"].shape == (2, 5, 1)
    assert td[1, 3]["mission"] == "go"


def test_survives_pickling_and_copying(flat):
    batch = Batch.nest(flat)
    for again in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        assert isinstance(again, Batch) and isinstance(again["next"], Batch)
        assert np.array_equal(again["next", "reward"], flat["next/reward"])


def test_repr_shows_shapes_not_numbers(flat):
    text = repr(Batch.nest(flat))
    assert text.startswith("Batch(observation: float32[2, 3], action: float32[2, 1], next: Batch(")
    assert "terminated: bool[2, 1]" in text


def test_numpy_batches_need_no_torch():
    code = (
        "import sys, numpy as np; from rlds_cli.dataset.batch import Batch;"
        "b = Batch.nest({'next/reward': np.ones((2, 1)), 'observation': np.ones(2)}).clone().numpy(); repr(b);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
