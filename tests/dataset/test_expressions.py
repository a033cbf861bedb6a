from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rlds_cli.dataset.expressions import episodes_where, expression_of
from rlds_cli.errors import InvalidExpression

COLUMNS = {
    "length": np.array([10, 20, 30, 40]),
    "total_reward": np.array([1.0, -2.0, np.nan, 4.0]),
    "end": np.array(["cut", "terminated", "truncated", "cut"]),
    "train": np.array([True, True, False, False]),
}


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(5)
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
        "length > 1 " + " " * 1_000_000,
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


@pytest.mark.thorough
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


# -- texts, missing values, and columns of different kinds

MORE = {
    **COLUMNS,
    "task": np.array(["push to the corner", "pick a cube", None, "corner"], object),
    "place": np.array(["corner", "shelf", None, "corner"], object),
    "success": np.array([True, None, False, True], object),
    "unknown": np.array([None] * 4, object),
    "seed": np.array([2**63 + 1, 3, 5, 7], np.uint64),
    "stamp": np.array([2**62, 1, -(2**62), 2**53 + 1]),
    "class": np.array([1, 2, 3, 4]),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("'cut' in end", [0, 3]),
        ("'cut' not in end", [1, 2]),
        ("'trun' in end", [2]),
        ("'corner' in task", [0, 3]),
        ("'corner' not in task", [1, 2]),  # a missing text contains nothing
        ("place in task", [0, 3]),
        ("'push to the corner' in task", [0]),
        ("task.contains('corner')", [0, 3]),
        ("task.contains(place)", [0, 3]),
        ("task.startswith('pick')", [1]),
        ("task.startswith(('pick', 'push'))", [0, 1]),
        ("task.endswith('corner')", [0, 3]),
        ("not task.endswith('corner')", [1, 2]),
        ("task.like('p%c%e%')", [0, 1]),
        ("task.like('corner')", [3]),
        ("task.like('_orner')", [3]),
        ("task.like('p[ui]%')", []),
        ("end.like('t%ted')", [1, 2]),
        ("task == 'corner'", [3]),
        ("task != 'corner'", [0, 1, 2]),
        ("task < 'p'", [3]),
        ("task in ('corner', None)", [2, 3]),
        ("task not in ['corner', 'pick a cube']", [0, 2]),
        ("'corner' in (task, place)", [0, 3]),
        ("task is None", [2]),
        ("task != None", [0, 1, 3]),
        ("total_reward is None", [2]),
        ("success is not None", [0, 2, 3]),
        ("success", [0, 3]),
        ("not success", [1, 2]),
        ("success == False", [2]),
        ("success != True", [1, 2]),
        ("success == 1", [0, 3]),
        ("success in (True, False)", [0, 2, 3]),
        ("train + success == 2", [0]),
        ("unknown == 'x' or unknown == 3 or unknown or 'x' in unknown or unknown.contains('x')", []),
        ("unknown is None", [0, 1, 2, 3]),
        ("'a' in ['a', 'b']", [0, 1, 2, 3]),
        ("'a' not in ['a', 'b']", []),
        ("episode in []", []),
        ("length in (total_reward, 20)", [1]),
        ("length in (10, 20.0, 40.5, 9" + "9" * 900 + ")", [0, 1]),
        ("'cut' == end != 'terminated'", [0, 3]),
        ("return > 0", [0, 3]),
        ("return == total_reward and 'return' not in task", [0, 1, 3]),
        ("class == 2", [1]),
        ("seed in (9223372036854775808, 5)", [2]),  # as float64, the first number is seed[0]
        ("seed in (9223372036854775809,)", [0]),
        ("seed - 10 < 0", [1, 2, 3]),  # 64 bits without a sign would wrap around
        ("stamp * 4 > 0", [0, 1, 3]),
        ("stamp * 4 == 18446744073709551616", [0]),
        ("stamp in (9007199254740992.0,)", []),
        ("-stamp > 0", [2]),
    ],
)
def test_texts_and_missing_values(text: str, chosen: list[int]) -> None:
    assert np.flatnonzero(episodes_where(text, MORE)).tolist() == chosen


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("3 in length", "length is a number", "length == 3"),
        ("length in total_reward", "total_reward is a number", "length == total_reward"),
        ("True in train", "train is a flag", ""),
        ("3 in task", "3 is a number, task is a text", "'3' in task"),
        ("length in task", "length is a number, task is a text", ""),
        ("task in 'corner'", "'corner' is a text", "task == 'corner'"),
        ("end in ('cut')", "'cut' is a text", "end == 'cut'"),
        ("length == 'x'", "length is a number, 'x' is a text", ""),
        ("length == '10'", "'10' is a text", "length == 10"),
        ("task == 3", "task is a text, 3 is a number", "task == '3'"),
        ("task > length", "task is a text", ""),
        ("success == 'true'", "success is a flag", "not success"),
        ("length in (10, 'a')", "'a' is a text", ""),
        ("end == ('cut', 'truncated')", "is a list", ""),
        ("not length", "not true or false", "length > 0"),
        ("length and train", "not true or false", "length > 0"),
        ("task or train", "not true or false", "task == "),
        ("end == 'cut' or 'truncated'", "'truncated' is a text", "end in "),
        ("length > 3 & train", "not true or false", "parentheses"),
        ("end == 'terminatd'", 'Did you mean "terminated"', None),
        ("end != 'cutt'", 'Did you mean "cut"', None),
        ("end in ('cut', 'truncatd')", 'Did you mean "truncated"', None),
        ("'failed' in end", "Values: terminated, truncated, cut", None),
        ("end.startswith('q')", "Values: terminated", None),
        ("end == cut", 'no episode column "cut"', "'cut'"),
        ("retrun > 1", 'Did you mean "return"', None),
        ("task.contian('x')", 'Did you mean "contains"', None),
        ("task.str.contains('x')", "task.str is not needed", "task.contains"),
        ("contains(task, 'x')", "a method of a text column", "task.contains"),
        ("task like 'x%'", "not an expression", "task.like"),
        ("length.contains('x')", "length is a number", ""),
        ("task.contains(3)", "3 is a number", "task.contains"),
        ("task.contains()", "needs one text", "task.contains"),
        ("length = 3", "not an expression", "=="),
        ("length > 3 AND train", "not an expression", "and"),
        ("None", "not true or false", ""),
        ("length is 10", "None only", ""),
        ("is > 1", "not an expression", ""),
    ],
)
def test_what_would_be_wrong_without_a_word_is_refused(text: str, what: str, hint: str | None) -> None:
    with pytest.raises(InvalidExpression) as e:
        episodes_where(text, MORE)
    assert what in e.value.message
    assert hint is None or hint in str(e.value.hint)


def test_without_rewards_there_is_no_return() -> None:
    with pytest.raises(InvalidExpression, match='no episode column "return"'):
        episodes_where("return > 1", {"length": np.array([1])})
    own = {"return": np.array([1, 5]), "total_reward": np.array([5.0, 1.0])}  # a column of that name comes first
    assert episodes_where("return > 2", own).tolist() == [False, True]


def test_a_pattern_takes_no_time_that_grows_with_its_length_squared() -> None:
    columns = {"task": np.array(["a" * 1000], object)}
    assert episodes_where(f"task.like('{'%a' * 40}b')", columns).tolist() == [False]


@pytest.mark.parametrize(
    ("episodes", "text"),
    [
        ([], "episode in []"),
        ([4], "episode in [4]"),
        ([2, 5, 8], "episode in [2, 5, 8]"),
        ([0, 1, 2, 7, 9, 10], "0 <= episode <= 2 or episode in [7, 9, 10]"),
        ([5, 6, 7], "5 <= episode <= 7"),
    ],
)
def test_the_expression_of_episodes(episodes: list[int], text: str) -> None:
    assert expression_of(episodes) == text
    assert np.flatnonzero(episodes_where(text, {"length": np.ones(12)})).tolist() == episodes


@pytest.mark.thorough
def test_thousands_of_episodes_by_number() -> None:
    some = list(range(1, 10_000, 2))
    assert np.flatnonzero(episodes_where(expression_of(some), {"length": np.ones(10_000)})).tolist() == some


# -- names that are not words

ODD = {
    "length": np.array([4, 5, 6]),
    "quality": np.array([1.0, 2.0, 3.0]),
    "idle": np.array([10.0, 10.0, 10.0]),
    "quality/idle": np.array([0.9, 0.1, 0.9]),  # the quotients are 0.1, 0.2, 0.3
    "quality-idle": np.array([5, 6, 7]),  # the differences are negative
    "success rate": np.array([0.0, 0.5, 1.0]),
    "info.place": np.array(["shelf", "bin", None], object),
    "episode#": np.array([7, 8, 9]),
    "and": np.array([True, False, True]),
    "None": np.array([1, 2, 3]),
    "-1": np.array([0, 0, 1]),
    "fi": np.array([0, 0, 1]),
    "\N{LATIN SMALL LIGATURE FI}": np.array([1, 0, 0]),  # to Python's parser the same name as fi
    "a`b": np.array([1, 1, 1]),
}


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("`quality/idle` < 0.25", [1]),
        ("(quality) / (idle) < 0.25", [0, 1]),
        ("`quality` / `idle` < 0.25", [0, 1]),
        ("quality / length < 0.3", [0]),  # 0.25, 0.4, 0.5, and no column is called so
        ("length*`quality/idle` > 3", [0, 2]),  # 3.6, 0.5, 5.4
        ("not `quality/idle` < 0.25 and`and`", [0, 2]),
        ("`quality-idle` > 5", [1, 2]),
        ("quality - (idle) > 5", []),
        ("`success rate`>=0.5", [1, 2]),
        ("`info.place`.contains('in')", [1]),
        ("`info.place` is None", [2]),
        ("'`quality/idle`' == `info.place` or 'quality/idle' in `info.place`", []),
        ("`episode#` == 8", [1]),
        ("`and` and True", [0, 2]),
        ("`None` > 1", [1, 2]),
        ("quality is not None", [0, 1, 2]),
        ("quality > -1", [0, 1, 2]),
        ("`-1` > 0", [2]),
        ("fi > 0", [2]),
        ("\N{LATIN SMALL LIGATURE FI} > 0", [0]),
        ("`length` > 4", [1, 2]),
    ],
)
def test_a_name_that_is_not_a_word_stands_in_backquotes(text: str, chosen: list[int]) -> None:
    assert np.flatnonzero(episodes_where(text, ODD)).tolist() == chosen


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("quality/idle < 0.25", "`quality/idle`"),
        ("quality / idle < 0.25", "`quality/idle`"),
        ("0.5 > length * quality/idle", "`quality/idle`"),
        ("quality - idle > 5", "`quality-idle`"),
        ("length > 4 and success rate > 0.5", "`success rate`"),
        ("info.place.contains('bin')", "`info.place`"),
        ("episode# == 8", "#"),
        ("length > 4 # longer", "#"),
        ("`qualty/idle` < 1", "`quality/idle`"),  # did you mean
        ("`quality/idle < 1", "not closed"),
        ("`` < 1", "no name"),
        (" < 1", "shell"),
    ],
)
def test_without_backquotes_such_a_name_is_refused(text: str, name: str) -> None:
    with pytest.raises(InvalidExpression) as e:
        episodes_where(text, ODD)
    assert name in str(e.value)


def test_what_is_to_be_typed_has_backquotes() -> None:
    with pytest.raises(InvalidExpression) as e:
        episodes_where("`quality/idle`", ODD | {"flag/x": np.array([True] * 3)})
    with pytest.raises(InvalidExpression) as of_flag:
        episodes_where("not `quality/idle`", ODD)
    assert e.value.hint is not None and of_flag.value.hint == "`quality/idle` > 0"
    with pytest.raises(InvalidExpression, match=r"Columns: .*`quality/idle`"):
        episodes_where("speed > 1", ODD)


# -- quantiles, and columns of texts that few or many episodes share


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 1])
def test_a_quantile_is_that_of_numpy_without_missing_values(share: float) -> None:
    rng = np.random.default_rng(0)
    score = rng.standard_normal(101)
    score[::7] = np.nan
    columns = {"score": score, "length": rng.integers(1, 50, 101)}
    limits = {name: np.nanquantile(values, share) for name, values in columns.items()}

    found = episodes_where(f"score >= quantile(score, {share})", columns)
    both = episodes_where(f"length < quantile(length, {share}) or score < quantile(score, 1 - {share})", columns)

    assert found.tolist() == (score >= limits["score"]).tolist()
    other = np.nanquantile(score, 1 - share)
    assert both.tolist() == ((columns["length"] < limits["length"]) | (score < other)).tolist()


def test_a_quantile_of_what_is_computed() -> None:
    columns = {"a": np.arange(10.0), "b": np.arange(10.0)[::-1].copy(), "won": np.arange(10) < 3}

    found = episodes_where("a * b > quantile(a * b, 0.5) and quantile(won, 0.8) == 1", columns)

    assert found.tolist() == (columns["a"] * columns["b"] > np.median(columns["a"] * columns["b"])).tolist()


def test_a_quantile_is_that_of_all_episodes_of_the_dataset() -> None:
    whole = {"length": np.arange(100), "task": np.array(["pick", None] * 50, object)}
    some = {name: values[80:] for name, values in whole.items()}

    found = episodes_where("length > quantile(length, 0.9)", some, np.arange(80, 100), whole)

    assert found.tolist() == (some["length"] > np.quantile(whole["length"], 0.9)).tolist()


def test_a_column_without_values_has_no_quantile() -> None:
    columns = {"score": np.full(3, np.nan), "speed": np.array([None] * 3, object), "length": np.arange(3)}

    assert not episodes_where("length > quantile(score, 0.5) or length <= quantile(speed, 0.5)", columns).any()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("length > quantile(length, 90)", "from 0 to 1"),
        ("length > quantile(length, length)", "from 0 to 1"),
        ("length > quantile(length, 'half')", "from 0 to 1"),
        ("length > quantile(task, 0.5)", "task is not a number"),
        ("length > quantile(3, 0.5)", "the same for all episodes"),
        ("length > quantile(length)", "not known"),
        ("length > percentile(length, 90)", "not known"),
        ("length > length.quantile(0.9)", "not a method"),
        ("quantile(length, 0.5)", "not true or false"),
    ],
)
def test_a_quantile_that_cannot_be_is_refused(text: str, what: str) -> None:
    columns = {"length": np.arange(4), "task": np.array(["a", "b", "a", None], object)}
    with pytest.raises(InvalidExpression) as e:
        episodes_where(text, columns)
    assert what in e.value.message
    assert e.value.hint


@pytest.mark.parametrize("different", [3, 20_000])
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("task == 'text 2'", lambda t, o: t == "text 2"),
        ("task != 'text 2'", lambda t, o: t != "text 2"),
        ("task in ('text 0', 'text 399', None)", lambda t, o: t in ("text 0", "text 399", None)),
        ("task in ('text 1', operator)", lambda t, o: t == "text 1" or (t is not None and t == o)),
        ("task.endswith(('1', '7'))", lambda t, o: t is not None and t.endswith(("1", "7"))),
        ("task is None", lambda t, o: t is None),
        ("task >= 'text 2'", lambda t, o: t is not None and t >= "text 2"),
        ("task == operator", lambda t, o: t is not None and t == o),
        ("operator in task", lambda t, o: t is not None and o is not None and o in t),
        ("'2' in task", lambda t, o: t is not None and "2" in t),
    ],
)
def test_texts_that_few_or_many_episodes_share(different: int, text: str, fits: Callable[..., bool]) -> None:
    rng = np.random.default_rng(different)
    tasks = [None if k % 11 == 0 else f"text {k}" for k in rng.integers(0, different, 5000).tolist()]
    operators = [None if k == 4 else f"text {k}" for k in rng.integers(0, 5, 5000).tolist()]
    columns = {"task": np.array(tasks, object), "operator": np.array(operators, object)}

    found = episodes_where(text, columns)

    assert found.tolist() == [fits(t, o) for t, o in zip(tasks, operators, strict=True)]
