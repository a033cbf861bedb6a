"""A family whose files come in several layouts, each with a reader of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlds_cli.archives.readers import Archive, ArchivedStep, ArchivedValue, Part, Plan, Reader
from rlds_cli.base.array_types import Array
from rlds_cli.base.subset import Subset
from rlds_cli.ted import Chunk


class Variants:
    """The first of several readers that knows an archive's first file reads it; the last one refuses the others."""

    def __init__(self, *readers: Reader) -> None:
        self._readers = readers
        self.VERSION = readers[0].VERSION

    def _of(self, path: Path) -> Reader:
        return next((r for r in self._readers if r.recognise([path])), self._readers[-1])

    def recognise(self, paths: Sequence[Path]) -> str | None:
        """See `Reader`."""
        return next((said for r in self._readers if (said := r.recognise(paths))), None)

    def choose(
        self, names: Sequence[str], portion: Subset, read: Callable[[str], bytes]
    ) -> tuple[Sequence[str], Subset]:
        """See `Reader`: as the first layout does."""
        return self._readers[0].choose(names, portion, read)

    def plan(self, archive: Archive) -> Plan:
        """See `Reader`."""
        return self._of(archive.files[0]).plan(archive)

    def read(self, plan: Plan, part: Part) -> Iterator[Chunk]:
        """See `Reader`."""
        return self._of(plan.archive.files[0]).read(plan, part)

    def metadata(self, plan: Plan) -> Iterator[tuple[str, Array | str]]:
        """See `Reader`."""
        return self._of(plan.archive.files[0]).metadata(plan)

    def look_up(self, place: ArchivedStep) -> Iterator[ArchivedValue]:
        """See `Reader`."""
        return self._of(place.file).look_up(place)
