"""What readers raise or claim, as the rest of the program sees it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlds_cli.archives import Archive, Part, Plan, Replan
from rlds_cli.archives.boundary import Guarded
from rlds_cli.errors import CorruptArchive, NoPermission, NoSpace, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.ted import Field


def archive(tmp_path: Path) -> Archive:
    (tmp_path / "a.h5").write_bytes(bytes(100))
    return Archive(tmp_path, (tmp_path / "a.h5",))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("raised", "error"),
    [
        *((kind("odd"), CorruptArchive) for kind in (KeyError, TypeError, ValueError, IndexError, AttributeError)),
        (OverflowError("odd"), CorruptArchive),
        (OSError(errno.EIO, "odd"), CorruptArchive),
        (OSError(errno.ENOSPC, "odd"), NoSpace),
        (PermissionError(errno.EACCES, "odd"), NoPermission),
        (MemoryError(), UnsafeArchive),
        (RecursionError("odd"), UnsafeArchive),
        (UnknownLayout("odd"), UnknownLayout),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Exception) else "",
)
def test_any_exception_is_an_error_with_its_cause(tmp_path: Path, raised: Exception, error: type[RldsError]) -> None:
    def fails(*_: Any) -> Iterator[Any]:
        raise raised
        yield

    given = archive(tmp_path)
    plan = Plan("x", given, (), (), "file")
    reader = Guarded("x", SimpleNamespace(plan=lambda a: next(fails()), read=fails, metadata=fails, cells=fails))
    for call in (
        lambda: reader.plan(given),
        lambda: list(reader.read(plan, Part(1, {}))),
        lambda: list(reader.metadata(plan)),
    ):
        with pytest.raises(error) as caught:
            call()
        assert caught.value is raised or caught.value.__cause__ is raised
        assert "\n" not in caught.value.message


def test_replan_passes(tmp_path: Path) -> None:
    def replans(*_: Any) -> Iterator[Any]:
        raise Replan(plan)
        yield

    plan = Plan("x", archive(tmp_path), (), (), "file")
    with pytest.raises(Replan):
        list(Guarded("x", SimpleNamespace(read=replans)).read(plan, Part(1, {})))


@pytest.mark.parametrize(
    ("field", "rows", "match"),
    [
        (Field("x", "float32", (2,)), 1 << 40, "claims 1,099,511,627,776 rows"),
        (Field("x", "float64", (1 << 20, 1 << 20)), 1, "claims rows of 8,796,093,022,208 bytes"),
    ],
)
def test_plans_that_no_file_of_that_size_holds(tmp_path: Path, field: Field, rows: int, match: str) -> None:
    plan = Plan("x", archive(tmp_path), (field,), (Part(rows, {}),), "file")
    with pytest.raises(UnsafeArchive, match=match):
        Guarded("x", SimpleNamespace(plan=lambda _: plan)).plan(plan.archive)


def test_texts_that_are_no_unicode(tmp_path: Path) -> None:
    plan = Plan("x", archive(tmp_path), (), (), "file", facts={"author": "\ud800"})
    with pytest.raises(CorruptArchive, match="not Unicode"):
        Guarded("x", SimpleNamespace(plan=lambda _: plan)).plan(plan.archive)
    said = Guarded("x", SimpleNamespace(metadata=lambda _: iter([("a\ud800", "b\ud800")])))
    assert list(said.metadata(plan)) == [("a?", "b?")]
