"""Loops that never end: ``for batch in loader`` over an endless loader, without a way out of the loop.

Many a script breaks out of such a loop, or takes batches by ``next``, so its own source is asked, once the loop has
taken many times the dataset.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from inspect import CO_GENERATOR, getattr_static
from types import FrameType
from typing import Any

PASSES = 10  # of the dataset, before a loop is looked at
_THROUGH = ("torch.utils.data",)  # whose frames hand on the batches
_LOADERS = {"DataLoader", "Loader", "loader"}  # calls that make one
_HAND_ON = {"enumerate", "iter", "tqdm", "track"}  # calls that end when their argument does
_EXITS = {"exit", "_exit", "quit"}


def never_ends(frame: FrameType | None) -> bool:
    """Return whether the loop that takes batches in ``frame`` never ends; False where that is not certain."""
    while frame is not None and _hands_on(frame):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals)))
    except (SyntaxError, ValueError, RecursionError, SystemError):  # the last if several threads parse, before 3.12
        return False
    found = [loop for loop in ast.walk(tree) if isinstance(loop, ast.For) and _is_at(loop, frame.f_lineno)]
    return len(found) == 1 and _is_handed_on(found[0].iter, frame) and not any(map(_leaves, _within(found[0].body)))


def _hands_on(frame: FrameType) -> bool:
    """Return whether a frame gives batches to another one: tqdm's generator, or a ``DataLoader``."""
    is_generator = bool(frame.f_code.co_flags & CO_GENERATOR)
    return is_generator or str(frame.f_globals.get("__name__")).startswith(_THROUGH)


def _is_at(loop: ast.For, line: int) -> bool:
    return loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno)


def _is_handed_on(node: ast.expr, frame: FrameType) -> bool:
    """Return whether an expression ends when the loader does: ``loader``, ``enumerate(tqdm(loader))``."""
    if isinstance(node, ast.Call):
        made = _name(node.func)
        return made in _LOADERS or (made in _HAND_ON and bool(node.args) and _is_handed_on(node.args[0], frame))
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    value = _value(node, frame)
    own = type(value).__module__.startswith(__package__ or "")
    return own or not isinstance(value, Iterator)  # another iterator may be one that takes some batches


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return what a name stands for where a loop runs, without running a property; None if that is not known."""
    if isinstance(node, ast.Attribute):
        return getattr_static(_value(node.value, frame), node.attr, None)
    return {**frame.f_globals, **frame.f_locals}.get(_name(node))


def _within(nodes: Iterable[ast.AST], *, inner: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield what a loop does, and whether it is ``inner``: in a loop of its own, which a ``break`` leaves."""
    for node in nodes:
        yield node, inner
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _within(ast.iter_child_nodes(node), inner=inner or isinstance(node, ast.For | ast.While))


def _leaves(found: tuple[ast.AST, bool]) -> bool:
    """Return whether something leaves the loop, or may."""
    node, inner = found
    if isinstance(node, ast.Break):
        return not inner
    if isinstance(node, ast.Call):
        return _name(node.func) in _EXITS
    return isinstance(node, ast.Return | ast.Raise | ast.Yield | ast.YieldFrom)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
