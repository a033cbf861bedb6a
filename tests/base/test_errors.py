"""Errors of worker processes arrive whole."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from rlds_cli import errors
from rlds_cli.errors import ClashingDecisions, NotNewest, RldsError


def kinds(kind: type[RldsError] = RldsError) -> Iterator[type[RldsError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds(below)


@pytest.mark.parametrize("kind", [k for k in kinds() if k.__module__ == errors.__name__], ids=lambda k: k.__name__)
def test_an_error_is_the_same_in_another_process(kind: type[RldsError]) -> None:
    error = NotNewest("local/x", 1, 2) if kind is NotNewest else kind("what happened", hint="what to do")
    error.extra = (1, "more")  # type: ignore[attr-defined]
    came = pickle.loads(pickle.dumps(error))
    assert type(came) is kind and vars(came) == vars(error) and str(came) == str(error)


def test_what_an_error_says_beside_its_message_arrives() -> None:
    assert pickle.loads(pickle.dumps(NotNewest("local/x", 1, 2))).version == 1
    assert pickle.loads(pickle.dumps(ClashingDecisions("two sides", clashes=["a"]))).clashes == ("a",)
