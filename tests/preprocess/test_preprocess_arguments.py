"""Arguments of the built-in functions: what does not fit their annotations is refused in a line, before any work."""

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.cli.preprocess import _arguments
from rlds_cli.errors import InvalidArgument


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    episode = {"observation": {"camera": np.zeros((4, 8, 8, 3), np.uint8), "state": np.zeros((4, 2), np.float32)}}
    episode |= {"action": np.zeros((3, 1), np.float32), "next": {"reward": np.arange(3.0)}}
    return rlds_cli.create("local/ds", [episode], home=tmp_path_factory.mktemp("home"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("fn", "arg", "said"),
    [
        ("normalise", "eps=abc", "normalise: eps='abc' is not a number."),
        ("normalise", "mode=1", "normalise: mode=1 is not one of std, range, quantile."),
        ("normalise", "fields=3", "normalise: fields=3 is not a text or a list, each a text."),
        ("select_episodes", "where=1", "select_episodes: where=1 is not a text."),
        ("select_episodes", "split=[1]", "select_episodes: split=[1] is not a text."),
        ("top_episodes", "percent=most", "top_episodes: percent='most' is not a number."),
        ("top_episodes", "by=2", "top_episodes: by=2 is not a text."),
        ("resize", "size=0x0", "resize: size='0x0' is not height and width, in pixels."),
        ("resize", "size=4", "resize: size=4 is not a text or a list, each a whole number."),
        ("resize", "size=[4.5,4]", "resize: size=[4.5, 4] is not a text or a list, each a whole number."),
        ("crop", "box=4", "crop: box=4 is not a list, each a whole number."),
        ("encode", "quality=high", "encode: quality='high' is not a whole number."),
        ("encode", "codec=1", "encode: codec=1 is not one of raw, jpeg, png, h264, hevc, av1."),
        ("return_to_go", "gamma=much", "return_to_go: gamma='much' is not a number."),
        ("return_to_go", "through_terminals=1", "return_to_go: through_terminals=1 is not true or false."),
        ("return_to_go", "into=7", "return_to_go: into=7 is not a text."),
        ("scale_reward", "scale=ten", "scale_reward: scale='ten' is not a number."),
        ("sparsify_reward", "how=0", "sparsify_reward: how=0 is not one of end, threshold."),
        ("reward_from_goal", "elements=0", "reward_from_goal: elements=0 is not a list, each a whole number."),
        ("reward_from_goal", "dense=yes", "reward_from_goal: dense='yes' is not true or false."),
        ("concatenate", "keep=maybe", "concatenate: keep='maybe' is not true or false."),
        ("rename_fields", "names=[1]", "rename_fields: names=[1] is not a mapping of texts to texts or a text."),
        ("cast", "dtype=32", "cast: dtype=32 is not a text."),
        ("ogbench_task", "task=first", "ogbench_task: task='first' is not a whole number."),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(ds, fn, arg, said):
    needed = {"concatenate": {"fields": "action"}, "cast": {"fields": "action"}, "encode": {"codec": "png"}}
    args = needed.get(fn, {}) | _arguments([arg])
    with pytest.raises(InvalidArgument) as e:
        preprocess.run(ds, fn, "x", args=args)
    assert e.value.message == said


def test_numbers_of_numpy_and_whole_ones_for_floats_fit(ds):
    made = preprocess.run(ds, "scale_reward", "x", args={"scale": np.float32(2), "shift": np.int64(1)}, jobs=0)
    assert made.episode(0)["next"]["reward"].ravel().tolist() == [1, 3, 5]
    assert preprocess.run(ds, "resize", "y", args={"size": np.array([4, 4])}, jobs=0).num_steps == 3


def test_text_that_looks_like_a_number_is_said_how_to_write(ds):
    with pytest.raises(InvalidArgument) as e:
        preprocess.run(ds, "select_episodes", args={"split": 1})
    assert e.value.hint == "as a text: --arg 'split=\"1\"'"
    assert _arguments(['split="1"', "size=0x84", "n=10"]) == {"split": "1", "size": "0x84", "n": 10}
