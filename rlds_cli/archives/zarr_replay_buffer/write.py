"""A replay buffer in Zarr of format 2, as ``ReplayBuffer`` of Diffusion Policy reads it: all episodes end to end.

::

    <directory>/<name>.zarr             or <name>.zarr.zip, whose root is the store
        data/<key>            [N, ...] of observation/<key> and of fields with no place of their own
        data/action           [N, A]
        data/reward           [N]
        data/terminated, data/truncated     [N], unless all episodes were cut: others do not say how they ended
        meta/episode_ends     int64 [E], the row behind each episode

``ReplayBuffer`` takes everything below ``data`` for an array of N rows: names with several parts are joined by ``_``.
Images are uint8 [N, H, W, C], one a chunk, so that a window of them is read without others. The compressor is the one
that ``ReplayBuffer`` calls "disk".
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc, VLenUTF8  # type: ignore[import-untyped]

from rlds_cli.archives.exports.content import AT_ENDS, Loss
from rlds_cli.archives.exports.format import Format, Unit, sync
from rlds_cli.archives.exports.hdf5 import decoded, fitting, losses_of_values, renamed
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.files import trees
from rlds_cli.base.text import is_below
from rlds_cli.errors import ExportError
from rlds_cli.ted import CUT, FLAGS, REWARD, TASK_AT, Field

# Keys that the reader gives another meaning: those of actions, rewards and flags; and those of a single observation.
MEANT = {
    *("action", "actions", "act", "acts", "reward", "rewards", "rew", "rews"),
    *("terminated", "terminateds", "terminal", "terminals", "termination", "terminations", "is_terminal"),
    *("truncated", "truncateds", "truncation", "truncations", "timeout", "timeouts"),
}
ALONE = {"observation", "observations", "obs", "ob", "states", "state", "_obs_key", "state_features"}
_KEYS = {"action": "action", REWARD: "reward", FLAGS[0]: "terminated", FLAGS[1]: "truncated"}
_CHUNK = 2_000_000  # bytes of a chunk of anything but images
_PIECE = 16 << 20  # bytes that are read at once
_IMAGE = 1 << 12  # bytes of a row that has a chunk of its own
_ENDS = "meta/episode_ends"


class ZarrReplayBuffer(Format):
    """Diffusion Policy's layout."""

    name = "zarr-replay-buffer"
    reader = "zarr_replay_buffer"
    can = frozenset(("unknown-final", "cut"))
    forms = ("directory", "zip")

    def files(self, directory: Path) -> Sequence[Path]:
        """Return the store."""
        return [self._store(directory, zipped=self.form == "zip")]

    def _store(self, directory: Path, *, zipped: bool = False) -> Path:
        return directory / f"{self.target.name}.zarr{'.zip' if zipped else ''}"

    # -- what is lost

    def losses(self) -> list[Loss]:
        """Return what the layout cannot represent of episodes and fields."""
        found = super().losses()
        if (truncated := self.content.flags_inside[1]) > 0:
            text = f"truncated flags of {truncated:,} steps inside episodes"
            found.append(Loss("flags", text, FLAGS[1], AT_ENDS))
        if self.content.of_steps and not any(loss.kind == "columns" for loss in found):
            found.append(Loss("columns", "the tasks of episodes"))
        return found

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of fields: values, names, placements, encoded images."""
        kept = {}
        for f in self.content.fields.values():
            lost = list(losses_of_values(self.content, f, widest=16, kinds="biufc"))
            if f.name == TASK_AT:
                lost = [Loss("field", f"{f.name}, which says what each step is about", f.name)]
            elif f.kind == "array" and 0 in f.shape:
                lost = [Loss("field", f"{f.name}, whose rows have no values", f.name)]
            yield from lost
            if not any(loss.kind == "field" for loss in lost):
                kept[f.name] = f
        for name, becomes in _read_as(kept).items():
            f = kept[name]
            yield from renamed(name, becomes)
            yield from _placed(f, becomes)
            if becomes == REWARD and f.shape == (1,):
                yield Loss("shape", "rewards of one element: will be numbers", name)
            if f.kind == "frames":
                yield decoded(f)

    def check(self) -> None:
        """Refuse datasets that have nothing to be written."""
        if all(name in FLAGS for name in self.content.fields):
            raise ExportError(f"{self.content.id} has no field that {self.name} could hold.")

    # -- what is written

    @property
    def _written(self) -> dict[str, Field]:
        """The fields by the key of their array. Names are those that the losses gave them."""
        silent = bool((self.content.table.end == CUT).all()) and not any(self.content.flags_inside)
        return {_key(n): f for n, f in self.content.fields.items() if not (silent and n in FLAGS)}

    def prepare(self, directory: Path) -> None:
        """Make the arrays, and write where episodes end."""
        group = zarr.open_group(self._store(directory), mode="w", zarr_format=2)
        ends = np.cumsum(self.content.table.length).astype(np.int64)
        made = group.create_array(_ENDS, shape=ends.shape, dtype=np.int64, chunks=ends.shape, compressors=None)
        made[...] = ends
        disk, steps = Blosc("zstd", clevel=5, shuffle=Blosc.BITSHUFFLE), int(ends[-1])
        for key, f in self._written.items():
            text = f.kind == "text"
            group.create_array(
                f"data/{key}",
                shape=(steps, *f.shape),
                dtype="str" if text else f.dtype,
                chunks=(_rows_of_chunk(f, steps), *f.shape),
                filters=[VLenUTF8()] if text else None,
                compressors=disk,
                fill_value="" if text else 0,
            )
        for path in trees.files(self._store(directory)):
            sync(path)

    def write(self, unit: Unit, directory: Path) -> Any:
        """Write the chunks that begin in some episodes: those at the end hold rows of the next ones, too."""
        ends = np.concatenate([[0], np.cumsum(self.content.table.length)])
        with zarr.config.set({"array.write_empty_chunks": True}):
            group = zarr.open_group(self._store(directory), mode="r+", zarr_format=2)
            for key, f in self._written.items():
                self._write_chunks(group[f"data/{key}"], f, unit, ends)
        return None

    def _write_chunks(self, array: Any, f: Field, unit: Unit, ends: IntArray) -> None:
        size, steps = array.chunks[0], int(ends[-1])
        first, stop = (-(-int(k) // size) for k in (ends[unit.first], ends[unit.stop]))
        at_once = max(1, _PIECE // max(1, f.row_bytes) // size)
        for k in range(first, stop, at_once):
            a, b = k * size, min(min(k + at_once, stop) * size, steps)
            array[a:b] = self._steps(f, a, b, ends)
        for k in range(first, stop):
            sync(Path(array.store.root, array.path, ".".join([str(k), *"0" * len(f.shape)])))

    def _steps(self, f: Field, start: int, stop: int, ends: IntArray) -> Array:
        """Return values of steps, numbered without the last rows of episodes: step k of episode e is row k + e."""
        first, last = (int(k) + int(np.searchsorted(ends, k, "right")) - 1 for k in (start, stop - 1))
        values = self.content.rows(f.name, first, last + 1)
        values = np.delete(values, self.content.last_rows(first, last + 1) - first, axis=0)
        if f.name == FLAGS[1]:
            cut = ends[1:][self.content.table.end == CUT] - 1 - start  # whose last steps count as truncated here
            values = values.copy()
            values[cut[(cut >= 0) & (cut < len(values))]] = False
        return values.astype(str) if f.kind == "text" else values

    def finish(self, directory: Path, results: Any) -> None:
        """Pack the store into a zip, whose members are as they lie in the directory."""
        store, packed = self._store(directory), self._store(directory, zipped=True)
        if self.form == "directory":
            return
        if not packed.exists():
            growing = packed.with_name(f"{packed.name}.part")
            with zipfile.ZipFile(growing, "w", zipfile.ZIP_STORED) as into:
                for path in sorted(trees.files(store)):
                    into.write(path, path.relative_to(store).as_posix())
            sync(growing)
            growing.replace(packed)
        trees.discard(store)


def _key(name: str) -> str:
    """Return the key of the array of a field that has the name that it is read as."""
    return _KEYS.get(name) or name.removeprefix("observation/")


def _read_as(fields: Collection[str]) -> dict[str, str]:
    """Return the name with which each field is read again: all that has no key of its own is an observation."""
    others = sorted((n for n in fields if n not in _KEYS), key=lambda n: (not is_below(n, "observation"), n))
    found = {n: n for n in fields if n in _KEYS}
    taken = set(MEANT)
    for name in others:
        key = "_".join(fitting(name.removeprefix("observation/"), ()).split("/"))
        key = f"_{key}" if key.startswith(".") else key
        key = fitting(key, taken)
        taken.add(key)
        found[name] = "observation" if len(others) == 1 and key in ALONE else f"observation/{key}"
    return found


def _placed(f: Field, becomes: str) -> Iterator[Loss]:
    if is_below(becomes, "observation") and f.placement != "both":
        text = f"{f.name} has no value at the final observation: the one before will be repeated"
        yield Loss("placement", text, f.name, "both")
    elif becomes == "action" and f.placement == "both":
        yield Loss("placement", f"the values of {f.name} at final observations", f.name, "root")


def _rows_of_chunk(f: Field, steps: int) -> int:
    """Return the rows of a chunk: one of images and of other large rows, else about 2 MB."""
    size = f.row_bytes if f.kind == "array" else 64
    if size >= _IMAGE or (len(f.shape) >= 3 and f.dtype == "uint8"):
        return 1
    return min(max(1, _CHUNK // size), steps)
