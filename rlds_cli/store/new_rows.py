"""Write the rows of a field anew, below a dataset that is being made of another one's rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import arrays
from rlds_cli.base.files import safe as safe_files
from rlds_cli.store import compression, videos
from rlds_cli.store.columns import VIDEOS, has_row_digests, stored_row
from rlds_cli.store.frames import laid_out
from rlds_cli.store.opening import Store
from rlds_cli.store.paths import ROW_DIGESTS
from rlds_cli.ted import EncodedFrames, Field

_BLOCK = 65_536  # rows of a sparse file that are written at once


class NewRows:
    """All rows of one field, stored as those of the source are: each is written once, by one of these methods.

    Attributes
    ----------
    field : Field
    """

    def __init__(self, source: Store, name: str, directory: Path) -> None:
        self.field: Field = source.fields[name]
        self._source, self._dataset = source, directory
        self._path = source.table.path_of(name)
        self._directory = directory / self._path

    def write(self, blocks: Iterable[Array]) -> None:
        """Write rows as they are stored, [n, ...] each, end to end."""
        dtype, shape = stored_row(self.field)
        file, count = arrays.data_file(self._directory, 1 + len(shape)), 0
        safe_files.make(file.parent)
        with file.open("wb") as written:
            for values in blocks:
                written.write(arrays.raw(arrays.little_endian(values)))
                count += len(values)
        arrays.finish(self._directory, (count, *shape), dtype)
        self._compress()

    def write_flags(self, count: int, true: IntArray) -> None:
        """Write ``count`` flags, of which those of the ascending rows ``true`` are set; the file is sparse."""
        file = arrays.data_file(self._directory, 1)
        safe_files.make(file.parent)
        with file.open("wb") as sparse:
            sparse.truncate(count)
            for at in np.split(true, np.flatnonzero(np.diff(true // _BLOCK)) + 1) if len(true) else ():
                block = np.zeros(int(at[-1] - at[0]) + 1, np.uint8)
                block[at - at[0]] = 1
                arrays.write_at(sparse.fileno(), int(at[0]), block)
        arrays.finish(self._directory, (count,), "bool")
        self._compress()

    def write_texts(self, codes: Array, texts: Sequence[str]) -> None:
        """Write the code of the text of each row, and the texts."""
        self.write([codes])
        arrays.write_strings(self._dataset / "text" / self._path, list(texts) or [""])

    def write_frames(self, blocks: Iterable[EncodedFrames]) -> None:
        """Write encoded images end to end; one that equals that of the row before is stored once."""
        file, at = arrays.data_file(self._directory / "bytes", 1), 0
        offsets = [np.zeros((0, 2), np.int64)]
        safe_files.make(file.parent)
        with file.open("wb") as written:
            for frames in blocks:
                data, spans = laid_out(frames, at, np.zeros(len(frames), bool))
                written.write(arrays.raw(data))
                offsets.append(spans)
                at += len(data)
        arrays.finish(self._directory / "bytes", (at,), "uint8")
        arrays.write(self._directory / "offsets", np.concatenate(offsets))
        arrays.write_group(self._directory)
        self._compress()

    def write_encoded(self, *, compressed: bool) -> None:
        """Write the rows of the source in the other encoding."""
        compression.encode(self._source.path / self._path, self._directory, self.field, compressed=compressed)

    def write_films(self) -> None:
        """Write the videos of a field one behind the other, if they are in several files; else those are shared."""
        name = self.field.name
        if self._source.files.is_segmented(self._source.table.column(name, "films")):
            videos.write_whole(self._dataset / VIDEOS / self._path, self._source.videos(name))

    @property
    def has_row_digests(self) -> bool:
        """True if the rows have digests of their own, which are written beside them."""
        return has_row_digests(self.field)

    def write_row_digests(self, stored: IntArray) -> None:
        """Write the digests of rows that are those at ``stored`` [n] of the source."""
        of_rows = self._source.table.row_digests(self.field.name)[stored]
        arrays.write(self._dataset / ROW_DIGESTS / self._path, np.asarray(of_rows))

    def _compress(self) -> None:
        if self._source.manifest.encoding == "zarr":
            compression.compress(self._directory, self.field)
