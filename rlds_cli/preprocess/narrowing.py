"""The fewest steps of a block that a function of many steps fails on."""

from __future__ import annotations

from collections.abc import Callable

from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess.blocks import Block
from rlds_cli.preprocess.calling import line_of


def narrowed(block: Block, e: PreprocessError, fails: Callable[[Block], PreprocessError | None]) -> PreprocessError:
    """The failure, with the smallest part of the block that shows it, by halves.

    Parameters
    ----------
    e : PreprocessError
        The failure on all of it.
    fails : callable
        The failure on a part of it alone, None where there is none. Another exception, or one of another line, is
        another failure: few steps may be too few for a function.
    """
    smallest = None
    while block.size > 1:
        for half in (block.cut(0, block.size // 2), block.cut(block.size // 2, block.size)):
            found = fails(half)
            if found is not None and _kind(found) == _kind(e):
                block, smallest = half, found
                break
        else:
            break
    if smallest is None or smallest.episode is None:
        return e
    return PreprocessError(f"{e.message} It fails on {block} alone.", hint=smallest.hint).at(
        smallest.episode, smallest.step
    )


def _kind(e: PreprocessError) -> tuple[type, str]:
    return type(e.__cause__), line_of(e.__cause__) if e.__cause__ is not None else ""
