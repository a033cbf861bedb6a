from __future__ import annotations

import numpy as np
import pytest

from rlds_cli.dataset.selection import episodes_where
from rlds_cli.errors import InvalidExpression

COLUMNS = {
    "length": np.array([10, 20, 30, 40]),
    "total_reward": np.array([1.0, -2.0, np.nan, 4.0]),
    "end": np.array(["cut", "terminated", "truncated", "cut"]),
    "train": np.array([True, True, False, False]),
}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("length > 20", [2, 3]),
        ("length >= 20 and total_reward > 0", [3]),
        ("length < 20 or length == 40", [0, 3]),
        ("not train", [2, 3]),
        ("~train", [2, 3]),
        ("train", [0, 1]),
        ("train & (length > 10)", [1]),
        ("train | (length > 30)", [0, 1, 3]),
        ("10 < length <= 30", [1, 2]),
        ("end != 'cut'", [1, 2]),
        ("end in ('cut', 'truncated')", [0, 2, 3]),
        ("end not in ['cut']", [1, 2]),
        ("length in (10, 40)", [0, 3]),
        ("total_reward / length > 0.05", [0, 3]),
        ("length - 10 == 0", [0]),
        ("length * 2 + 1 == 41", [1]),
        ("total_reward < -1", [1]),
        ("total_reward == total_reward", [0, 1, 3]),
        ("True", [0, 1, 2, 3]),
        ("False", []),
        ("1 < 2", [0, 1, 2, 3]),
        ("'cut' == end", [0, 3]),
    ],
)
def test_what_may_be_asked(text: str, chosen: list[int]) -> None:
    assert np.flatnonzero(episodes_where(text, COLUMNS)).tolist() == chosen


@pytest.mark.parametrize(
    "text",
    [
        "",
        "length >",
        "length",
        "length + 1",
        "'x'",
        "(1, 2)",
        "length > 'a'",
        "__import__('os').system('true')",
        "length.__class__",
        "length[0] > 1",
        "(lambda: 1)()",
        "[x for x in length]",
        "length ** 99999999 > 1",
        "length if train else length",
        "length is 10",
        "f'{length}'",
        "b'x' == end",
        "x := 1",
        "length > 1j",
        "length > 1; length > 2",
        "length << 70 > 1",
        "(" * 300 + "length" + ")" * 300,
        "length > 1 " + " " * 2000,
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidExpression):
        episodes_where(text, COLUMNS)


def test_a_column_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidExpression, match=r'no episode column "lenght". Did you mean "length"\?'):
        episodes_where("lenght > 1", COLUMNS)


def test_the_result_is_an_array_of_its_own() -> None:
    result = episodes_where("train", COLUMNS)
    result[:] = False
    assert COLUMNS["train"].tolist() == [True, True, False, False]


def test_no_episodes() -> None:
    assert episodes_where("length > 1", {"length": np.zeros(0, np.int64)}).shape == (0,)


def test_the_number_of_an_episode_is_known() -> None:
    assert np.flatnonzero(episodes_where("episode > 1 or episode == 0", COLUMNS)).tolist() == [0, 2, 3]
    numbers = np.array([7, 3, 5, 9])
    assert np.flatnonzero(episodes_where("3 < episode < 9 and length >= 10", COLUMNS, numbers)).tolist() == [0, 2]
    own = {**COLUMNS, "episode": np.array([0, 0, 0, 1])}  # a column of that name comes first
    assert np.flatnonzero(episodes_where("episode == 1", own)).tolist() == [3]
    with pytest.raises(InvalidExpression, match='Did you mean "episode"'):
        episodes_where("epsiode > 1", COLUMNS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("length > 3 and True", [False, True, True]),
        ("length > 3 or False", [False, True, True]),
        ("1 < 2 < length", [False, True, True]),
        ("True", [True, True, True]),
        ("length / zero > 1", [True, True, True]),
        ("length > " + "9" * 900, [False, False, False]),
    ],
)
def test_constants_are_like_columns(text: str, expected: list[bool]) -> None:
    columns = {"length": np.array([1, 5, 9]), "zero": np.zeros(3)}
    assert episodes_where(text, columns).tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a" * 99999999999 == task', "is not a number"),
        ('task * 99999999999 == "a"', "is not a number"),
        ("length in [1] * 99999999999", "is not a number"),
        ("1 / 0 > length", "divides by zero"),
        ("length / " + "9" * 900 + " > 0", "holds values that cannot be compared"),
        ("length in (1, (2, 3))", "holds values that cannot be compared"),
    ],
)
def test_what_would_take_for_ever_is_refused(text: str, message: str) -> None:
    columns = {"length": np.array([1, 5]), "task": np.array(["a", None], object)}
    with pytest.raises(InvalidExpression, match=message):
        episodes_where(text, columns)


def test_an_expression_nested_as_deeply_as_it_is_long() -> None:
    with pytest.raises(InvalidExpression, match="nested"):
        episodes_where("(" * 400 + "length" + ")" * 400, {"length": np.array([1])})
