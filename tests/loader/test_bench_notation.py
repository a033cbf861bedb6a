"""Windows and samplers as text: what is read, and that nothing is run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import (
    Episode,
    Offsets,
    Prioritized,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
)
from rlds_cli.loader.texts import parse_sampler, parse_window


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("Transition", Transition()),
        (" Transition() ", Transition()),
        ("Transition(3, gamma=0.9)", Transition(3, 0.9)),
        ("Slice(32, before=4, fill='zero')", Slice(32, before=4, fill="zero")),
        ("Episode(max_length=100)", Episode(100)),
        ("Offsets({'observation': (-1, 0), 'action': [0, 1]})", Offsets({"observation": (-1, 0), "action": [0, 1]})),
    ],
)
def test_windows(text: str, wanted: Any) -> None:
    assert parse_window(text) == wanted


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("Shuffled", Shuffled()),
        ("Shuffled(drop_last=True)", Shuffled(drop_last=True)),
        ('Uniform(by="episode")', Uniform(by="episode")),
        ("Sequential()", Sequential()),
        ("Prioritized(alpha=0.5)", Prioritized(alpha=0.5)),
    ],
)
def test_samplers(text: str, wanted: Any) -> None:
    assert parse_sampler(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Slice(",
        "32",
        "Slice(1 + 1)",
        "Slice(open('x'))",
        "Slice(**{'length': 3})",
        "Slice(*[3])",
        "loader.Slice(3)",
        "Slice(3); Slice(4)",
        "Slice(3) if 1 else 2",
        "Slice(x := 3)",
        "Slice(\0)",
        "(" * 5000,
    ],
)
def test_what_is_no_call_with_literals(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a name with numbers"):
        parse_window(text)


def test_names_that_are_not_there() -> None:
    with pytest.raises(InvalidArgument, match=r'there is no sampler shufled. Did you mean "Shuffled"\?') as caught:
        parse_sampler("shufled")
    assert caught.value.hint == "Pairs, Prioritized, Sequential, Shuffled, Uniform, Weighted"
    with pytest.raises(InvalidArgument, match="there is no window Shuffled"):
        parse_window("Shuffled()")
    with pytest.raises(InvalidArgument, match="there is no window __import__"):
        parse_window("__import__('os')")


def test_arguments_that_are_not_taken() -> None:
    with pytest.raises(InvalidArgument, match=r"Slice\(\) got an unexpected keyword argument 'len'"):
        parse_window("Slice(len=3)")
    with pytest.raises(InvalidArgument, match="length"):
        parse_window("Slice(0)")


@given(st.text(max_size=30))
def test_no_text_does_anything_else(text: str) -> None:
    try:
        parse_window(text)
    except InvalidArgument:
        return
    assert text.strip().startswith(("Transition", "Slice", "Offsets", "Episode"))
